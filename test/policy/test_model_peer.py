# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""The model agrees with transformers' own PI0 on random configs and weights."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from golden import gap, pick, random_inputs, tiny_config

from pi0_ros.policy import Pi0Model

transformers = pytest.importorskip('transformers', minversion='5.4')


def benchmark():
    """Return the benchmark's module, which knows how to hand our weights to the peer."""
    path = Path(__file__).resolve().parents[2] / 'bench' / 'inference.py'
    spec = importlib.util.spec_from_file_location('bench_inference', path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope='module')
def bench():
    return benchmark()


def random_config(seed: int):
    pick_one = torch.Generator().manual_seed(seed)

    def one(*choices):
        return choices[int(torch.randint(len(choices), (1,), generator=pick_one))]

    heads, groups = one((4, 1), (4, 2), (8, 1), (2, 1))
    head_dim, depth = one(8, 16), one(1, 2, 3)
    shared = {'depth': depth, 'heads': heads, 'kv_heads': groups, 'head_dim': head_dim}
    patch = one(4, 7)
    return tiny_config(
        kind='pi0', family='transformers',
        dims={
            'vision': {
                'hidden': one(16, 24), 'layers': one(1, 2), 'heads': one(2, 4), 'mlp': one(20, 40),
                'patch': patch, 'image': patch * one(2, 3),
            },
            'text': {'width': one(24, 32), 'mlp': one(40, 48), 'vocab': 50, **shared},
            'expert': {'width': one(16, 24), 'mlp': one(20, 32), **shared},
            'chunk': one(3, 6), 'max_state_dim': 9, 'max_action_dim': 8,
        },
    )  # fmt: skip


@pytest.mark.parametrize('seed', range(6))
def test_sampling_agrees_with_transformers(bench, seed):
    config = random_config(seed)
    model = Pi0Model.random(config, seed=seed)
    peer = bench.TransformersPi0(model)
    data = random_inputs(config)
    data['token_masks'][0, 4:] = False
    masks = data['image_masks'].clone()
    masks[0, seed % 3] = seed % 2 == 0
    listed = [list(data['images'].unbind(1)), list(masks.unbind(1)), *pick(data)[2:]]
    ours = model.sample_actions(*listed, noise=data['noise'])
    theirs = peer.sample_actions(*listed, noise=data['noise'])
    assert gap(ours, theirs) < 1e-5


def test_the_loss_agrees_with_transformers(bench):
    config = random_config(11)
    model = Pi0Model.random(config, seed=11)
    peer = bench.TransformersPi0(model).model
    peer.config.loss_reduction = 'none'
    data = random_inputs(config, batch=2)
    image_ids = torch.full((2, 3 * config.vision.tokens), config.text.vocab)
    with torch.no_grad():
        theirs = peer(
            state=data['state'], noise=data['noise'], timestep=data['time'],
            input_ids=torch.cat([image_ids, data['tokens']], 1), pixel_values=data['images'],
            pixel_attention_mask=torch.ones(2, 3, dtype=torch.bool),
            attention_mask=torch.ones(2, image_ids.shape[1] + 6).long(), actions=data['actions'],
        ).loss  # fmt: skip
        ours = model.loss(*pick(data), data['actions'], data['noise'], data['time'])
    assert gap(ours, theirs) < 5e-5
    assert float(theirs.abs().max()) > 0.1


def test_what_transformers_saves_loads_here(bench, tmp_path):
    config = random_config(12)
    model = Pi0Model.random(config, seed=12)
    bench.TransformersPi0(model).model.save_pretrained(tmp_path)
    loaded = Pi0Model.load(tmp_path, config)
    for (name, ours), theirs in zip(loaded.named_parameters(), model.parameters()):
        assert gap(ours, theirs) == 0, name
