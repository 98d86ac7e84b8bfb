# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""How tests read the peers' reference numbers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from pi0_ros.policy import Pi0Config, Pi0Model

PREFIX = ('images', 'image_masks', 'tokens', 'token_masks')
ALL = (*PREFIX, 'state')


def load_arrays(path: Path) -> dict:
    """Return a file's arrays as tensors; images from their uint8 form if they are not there."""
    arrays = {}
    with np.load(path) as file:
        for name in file:
            array = file[name]
            arrays[name] = array if array.dtype.kind == 'U' else torch.from_numpy(array)
    if 'images_u8' in arrays and 'images' not in arrays:
        scaled = arrays['images_u8'].float() / 255 * 2 - 1
        arrays['images'] = scaled.permute(0, 1, 4, 2, 3).contiguous()
    return arrays


def dims_of(path: Path) -> dict:
    return json.loads(path.read_text())


def load_model(weights: Path, dims: dict, family: str = 'lerobot', dtype='float32') -> Pi0Model:
    return Pi0Model.load(weights, Pi0Config.from_dims(dims, family=family), 'cpu', dtype)


def pick(arrays: dict, names=ALL) -> list:
    return [arrays[name] for name in names]


def gap(ours, theirs) -> float:
    ours, theirs = torch.as_tensor(ours).detach(), torch.as_tensor(theirs).detach()
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    return float((ours.double() - theirs.double()).abs().max())


def tiny_config(**changes) -> Pi0Config:
    """Return a config small enough for unit tests: one image is four tokens."""
    dims = {
        'vision': {'hidden': 16, 'layers': 2, 'heads': 2, 'mlp': 24, 'patch': 4, 'image': 8},
        'text': {
            'width': 24, 'depth': 2, 'heads': 4, 'kv_heads': 1, 'head_dim': 8, 'mlp': 32,
            'vocab': 40,
        },
        'expert': {'width': 16, 'depth': 2, 'heads': 4, 'kv_heads': 1, 'head_dim': 8, 'mlp': 24},
        'chunk': 5, 'max_state_dim': 7, 'max_action_dim': 6, 'num_steps': 4, 'n_cams': 3,
    }  # fmt: skip
    return Pi0Config.from_dims({**dims, **changes.pop('dims', {})}, **changes)


def random_inputs(config: Pi0Config, batch: int = 1, cameras: int = 3, tokens: int = 6) -> dict:
    """Return inputs with everything valid."""
    generator = torch.Generator().manual_seed(batch + 10 * cameras + tokens)
    size = config.vision.image

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    actions = (batch, config.chunk, config.max_action_dim)
    return {
        'images': normal(batch, cameras, 3, size, size).clamp(-1, 1),
        'image_masks': torch.ones(batch, cameras, dtype=torch.bool),
        'tokens': torch.randint(3, config.text.vocab, (batch, tokens), generator=generator),
        'token_masks': torch.ones(batch, tokens, dtype=torch.bool),
        'state': normal(batch, config.max_state_dim),
        'noise': normal(*actions),
        'actions': normal(*actions),
        'time': torch.rand(batch, generator=generator) * 0.9 + 0.05,
    }
