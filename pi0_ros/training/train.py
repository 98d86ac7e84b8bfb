# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Flow matching on demonstrations, from a fresh small pi0.

Not a command yet: no run of it has solved the task.

The model is the ordinary one (SigLIP, Gemma, action expert) at a size from :data:`POCKET`; the
loss is its own ``loss``. AdamW, cosine schedule with warm-up, gradient clipping, an exponential
moving average that becomes the checkpoint, resume from any saved step.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pi0_ros.errors import Pi0RosError

POCKET = {
    'vision': {'hidden': 128, 'layers': 2, 'heads': 4, 'mlp': 512, 'patch': 16, 'image': 128},
    'text': {
        'width': 128, 'depth': 3, 'heads': 4, 'kv_heads': 1, 'head_dim': 32, 'mlp': 512,
        'vocab': 512,
    },
    'expert': {'width': 128, 'depth': 3, 'heads': 4, 'kv_heads': 1, 'head_dim': 32, 'mlp': 512},
    'chunk': 50, 'max_state_dim': 14, 'max_action_dim': 14, 'num_steps': 10, 'n_cams': 3,
}  # fmt: skip
"""Sizes of the pocket pi0, about two million parameters."""

DRAWS = 2
"""Noises and flow times that each picture of a batch is trained with; the prefix runs once."""

STATE_NOISE = 0.3
"""Largest deviation of the noise on the normalised state; each sample draws its own below."""
STATE_DROPOUT = 0.2
"""
Share of samples that see no state at all.

Once an arm is on its way its joints tell where it is going, and a policy that believes them never
corrects a wrong start: noise and dropout make it look at the pictures.
"""
START_S, START_WEIGHT = 1.7, 3.0
"""Frames of an episode's first seconds are drawn this many times as often as others."""
SMALLEST_STD = 0.02
"""A joint that hardly moves in the data would else make noise of its measurement huge [rad]."""
CONTRAST = 40.0
"""Grey levels that one unit of a whitened picture stands for."""


@dataclass(frozen=True)
class Demonstrations:
    """The folder that ``pi0_ros demonstrate`` writes, memory-mapped."""

    images: np.ndarray  # uint8 [frames, H, W, 3]
    steps: np.ndarray  # int64 [frames]
    states: np.ndarray  # float32 [steps, dof]
    actions: np.ndarray  # float32 [steps, dof]
    ends: np.ndarray  # int64 [episodes]
    meta: dict

    @classmethod
    def load(cls, folder: Path) -> Demonstrations:
        """
        Open a folder.

        :raises Pi0RosError: naming the file that is missing.
        """
        names = ('images', 'steps', 'states', 'actions', 'ends')
        for name in (*(f'{n}.npy' for n in names), 'meta.json'):
            if not (folder / name).is_file():
                raise Pi0RosError(
                    f"{folder} holds no demonstrations ('{name}' is missing); "
                    'write some with pi0_ros.training.demonstrate'
                )
        arrays = {n: np.load(folder / f'{n}.npy', mmap_mode='r') for n in names}
        return cls(**arrays, meta=json.loads((folder / 'meta.json').read_text()))

    def chunks(self, frames: np.ndarray, length: int) -> np.ndarray:
        """Return the next ``length`` actions from each frame, the last one repeated at the end."""
        starts = self.steps[frames]
        last = self.ends[np.searchsorted(self.ends, starts, side='right')] - 1
        rows = np.minimum(starts[:, None] + np.arange(length), last[:, None])
        return self.actions[rows]

    def frame_shares(self, seconds: float, weight: float) -> np.ndarray:
        """
        Return cumulative shares of the frames, for drawing them: float64 [frames], up to 1.

        :param seconds: frames of this first part of each episode count ``weight`` times.
        """
        starts = np.concatenate([[0], self.ends[:-1]])
        episode = np.searchsorted(self.ends, self.steps, side='right')
        early = self.steps - starts[episode] < seconds * self.meta['rate']
        shares = np.cumsum(np.where(early, weight, 1.0))
        return shares / shares[-1]


def spread(values: np.ndarray) -> dict[str, list[float]]:
    """Return mean, std and the 1 and 99 per cent quantiles of each column."""
    values = values.astype(np.float64)
    q01, q99 = np.quantile(values, [0.01, 0.99], axis=0)
    return {
        'mean': values.mean(0).tolist(), 'std': values.std(0).tolist(),
        'q01': q01.tolist(), 'q99': q99.tolist(),
    }  # fmt: skip


def learning_rate(step: int, steps: int, peak: float, warm_up: int) -> float:
    """Return the rate of a step: linear warm-up, then half a cosine down to a fiftieth."""
    if step < warm_up:
        return peak * (step + 1) / warm_up
    fraction = (step - warm_up) / max(1, steps - warm_up)
    return peak * (0.02 + 0.98 * 0.5 * (1.0 + math.cos(math.pi * min(fraction, 1.0))))


def sine_cosine_positions(side: int, width: int) -> np.ndarray:
    """Return two-dimensional position embeddings of unit scale, float32 [side * side, width]."""
    quarter = width // 4
    rates = 1.0 / 100.0 ** (np.arange(quarter) / quarter)
    rows, columns = np.mgrid[:side, :side].reshape(2, -1, 1)
    parts = [f(axis * rates) for axis in (rows, columns) for f in (np.sin, np.cos)]
    return (np.concatenate(parts, axis=1) * math.sqrt(2.0)).astype(np.float32)


def initialise_vision(model, mean_image: np.ndarray) -> None:
    """
    Give the image encoder initial values with which it learns to see in minutes.

    The patch embedding gets the scale of whitened pictures; the mean picture's share of it is
    subtracted in the position embedding, which also starts as sines and cosines of row and column.
    Both are ordinary weights of SigLIP: nothing of the architecture changes.

    :param mean_image: float [H, W, 3] RGB, 0..255.
    """
    import torch

    vision = model.vision
    patch, hidden = vision.patch_size, vision.patch.out_features
    with torch.no_grad():
        vision.patch.weight.normal_(std=127.5 / CONTRAST / math.sqrt(vision.patch.in_features))
        vision.patch.bias.zero_()
        mean = torch.from_numpy(mean_image.astype(np.float32) / 127.5 - 1.0).permute(2, 0, 1)
        patches = torch.nn.functional.unfold(mean[None], patch, stride=patch)[0].T
        side = math.isqrt(vision.position.shape[0])
        vision.position.copy_(torch.from_numpy(sine_cosine_positions(side, hidden)))
        vision.position.sub_(patches @ vision.patch.weight.T)


class Average:
    """An exponential moving average of a model's parameters."""

    def __init__(self, model, decay: float):
        self.decay = decay
        self.values = {n: p.detach().clone() for n, p in model.named_parameters()}

    def update(self, model, step: int) -> None:
        """Follow the model; early steps count more, so that the start is forgotten."""
        decay = min(self.decay, (1.0 + step) / (10.0 + step))
        for name, parameter in model.named_parameters():
            self.values[name].lerp_(parameter.detach(), 1.0 - decay)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--data', type=Path, required=True, help='folder of demonstrations')
    parser.add_argument('--out', type=Path, required=True, help='checkpoint to write')
    parser.add_argument('--steps', type=int, default=5400)
    parser.add_argument('--batch', type=int, default=32)
    parser.add_argument('--lr', type=float, default=1e-3, help='peak learning rate')
    parser.add_argument('--warm-up', type=int, default=100, help='steps')
    parser.add_argument('--ema', type=float, default=0.998, help='decay of the average')
    parser.add_argument('--weight-decay', type=float, default=0.01)
    parser.add_argument('--clip', type=float, default=1.0, help='largest gradient norm')
    parser.add_argument('--threads', type=int, default=1, help='of torch')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--save-every', type=int, default=500, help='steps between saves')
    parser.add_argument('--resume', action='store_true', help='go on from the last save')


def run(args: argparse.Namespace) -> int:
    import torch
    from rich.progress import Progress, TimeRemainingColumn

    from pi0_ros.policy.config import Pi0Config
    from pi0_ros.policy.model import Pi0Model

    data = Demonstrations.load(args.data)
    config = Pi0Config.from_dims(POCKET, 'pi0')
    size, dof = config.vision.image, data.actions.shape[1]
    if data.images.shape[1:3] != (size, size):
        raise Pi0RosError(
            f'{args.data} has pictures of {data.images.shape[1:3]} pixels, the model sees '
            f'{size}x{size}; demonstrate again with --image-size {size}'
        )
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    rng = np.random.default_rng(args.seed)
    statistics = {'state': spread(data.states[:]), 'actions': spread(data.actions[:])}
    for values in statistics.values():
        values['std'] = np.maximum(values['std'], SMALLEST_STD).tolist()
    model = Pi0Model.random(config, args.seed)
    sample = np.sort(rng.choice(len(data.images), min(512, len(data.images)), replace=False))
    initialise_vision(model, data.images[sample].mean(axis=0))
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=args.weight_decay
    )
    average, losses, first = Average(model, args.ema), [], 0
    args.out.mkdir(parents=True, exist_ok=True)
    if args.resume:
        first, losses = restore(args.out, model, optimizer, average)
    normal = {k: (np.array(v['mean']), np.array(v['std']) + 1e-6) for k, v in statistics.items()}
    shares = data.frame_shares(START_S, START_WEIGHT)
    tokens, token_masks = prompt_tokens(data.meta['prompt'], config, args.batch)
    columns = ['[progress.description]{task.description}', *Progress.get_default_columns()[1:3],
               TimeRemainingColumn()]  # fmt: skip
    with Progress(*columns) as progress:
        task = progress.add_task('training', total=args.steps, completed=first)
        for step in range(first, args.steps):
            # one generator per step: a resumed run draws what an uninterrupted one draws
            draw = np.random.default_rng((args.seed, step))
            torch.manual_seed(args.seed * 1_000_003 + step)
            frames = np.sort(np.searchsorted(shares, draw.random(args.batch)))
            images = torch.from_numpy(data.images[frames].astype(np.float32) / 127.5 - 1.0)
            mean, std = normal['state']
            state = np.repeat((data.states[data.steps[frames]] - mean) / std, DRAWS, axis=0)
            scale = STATE_NOISE * draw.random((len(state), 1))
            state = state + scale * draw.standard_normal(state.shape)
            state[draw.random(len(state)) < STATE_DROPOUT] = 0.0
            mean, std = normal['actions']
            actions = (data.chunks(frames, config.chunk) - mean) / std
            actions = padded(actions, config.max_action_dim).repeat_interleave(DRAWS, dim=0)
            time = torch.distributions.Beta(1.5, 1.0).sample((len(state),)) * 0.999 + 0.001
            loss = flow_loss(
                model, [images.permute(0, 3, 1, 2).contiguous()], tokens, token_masks,
                padded(state, config.max_state_dim), actions, torch.randn(actions.shape), time,
            )[..., :dof].mean()  # fmt: skip
            for group in optimizer.param_groups:
                group['lr'] = learning_rate(step, args.steps, args.lr, args.warm_up)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            optimizer.step()
            average.update(model, step)
            losses.append(float(loss.detach()))
            recent = float(np.mean(losses[-50:]))
            progress.update(task, advance=1, description=f'loss {recent:.4f}')
            if (step + 1) % args.save_every == 0 or step + 1 == args.steps:
                save(args.out, model, optimizer, average, losses, statistics, data.meta)
                print(f'step {step + 1}: loss {recent:.4f}', flush=True)
    deploy(args.out / 'checkpoint', model, average, statistics, data.meta)
    return 0


def flow_loss(model, images, tokens, token_masks, state, actions, noise, time):
    """
    Return ``model.loss`` with several draws for each picture, whose prefix is run only once.

    :param images: list of float [B, 3, S, S] in [-1, 1], all of them shown.
    :param tokens: int [B, L]; :param token_masks: bool [B, L].
    :param state: float [B * draws, max_state_dim], rows of the same picture together.
    :param actions: float [B * draws, chunk, max_action_dim]; :param noise: the same shape.
    :param time: float [B * draws].
    :return: float32 [B * draws, chunk, max_action_dim].
    """
    import torch

    shown = [torch.ones(len(image), dtype=torch.bool) for image in images]
    cache = model.encode_prefix(model.embed_prefix(images, shown, tokens, token_masks))
    draws = len(state) // len(tokens)
    for kept in (cache.keys, cache.values):
        kept[:] = [part.repeat_interleave(draws, dim=0) for part in kept]
    cache.lengths = cache.lengths.repeat_interleave(draws)
    if cache.mask is not None:
        cache.mask = cache.mask.repeat_interleave(draws, dim=0)
    model.add_state(cache, state)
    t = time[:, None, None]
    velocity = model.velocity(cache, t * noise + (1 - t) * actions, model.embed_times(time))
    return (velocity - (noise - actions)).square()


def deploy(
    folder: Path, model, average: Average, statistics: dict, meta: dict, dtype: str | None = None
) -> Path:
    """
    Write the averaged weights as a checkpoint in the documented format.

    :param dtype: of the stored weights, such as 'float16'; None: as they were trained.
    """
    import torch

    from pi0_ros.policy.make_checkpoint import write_checkpoint
    from pi0_ros.policy.prompt import build_word_tokenizer
    from pi0_ros.robot import RobotSpec

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(average.values[name])
    camera = RobotSpec.load(meta['robot']).cameras[meta['camera']]
    width = len(statistics['actions']['mean'])
    pipeline = {
        'action_space': 'absolute', 'aloha': 'off', 'state_mode': 'zscore',
        'action_mode': 'zscore', 'dialect': 'openpi', 'cameras': {camera.name: camera.slot},
        'resize': 'pillow', 'state_dim': width, 'action_dim': width,
        'prompt_tokens': model.config.default_prompt_tokens, 'prompt': meta['prompt'],
    }  # fmt: skip
    return write_checkpoint(
        folder, model, pipeline, statistics, build_word_tokenizer([meta['prompt']]), dtype,
        {'simulation': meta['simulation']} if 'simulation' in meta else {},
    )


def padded(values: np.ndarray, width: int):
    """Return float32 values with the last axis filled up with zeros."""
    import torch

    result = torch.zeros(*values.shape[:-1], width)
    result[..., : values.shape[-1]] = torch.from_numpy(np.asarray(values, dtype=np.float32))
    return result


def prompt_tokens(prompt: str, config, batch: int):
    """Return tokens and masks [batch, L] of one prompt: bos, words, newline."""
    import torch

    from pi0_ros.policy.prompt import BOS, build_word_tokenizer

    ids = build_word_tokenizer([prompt]).encode(prompt + '\n', add_special_tokens=False).ids
    tokens = torch.tensor([BOS, *ids]).repeat(batch, 1)
    return tokens, torch.ones_like(tokens, dtype=torch.bool)


def save(folder: Path, model, optimizer, average: Average, losses, statistics, meta) -> None:
    """Write everything needed to deploy and to go on: safetensors and JSON, no pickle."""
    import torch
    from safetensors.torch import save_file

    state = {f'model.{n}': p.detach().contiguous() for n, p in model.named_parameters()}
    state |= {f'average.{n}': v.contiguous() for n, v in average.values.items()}
    for name, parameter in model.named_parameters():
        slot = optimizer.state.get(parameter)
        if slot:  # what nothing reads (the last prefix layer's output) has no gradient, no state
            state[f'exp_avg.{name}'] = slot['exp_avg'].contiguous()
            state[f'exp_avg_sq.{name}'] = slot['exp_avg_sq'].contiguous()
    state['losses'] = torch.tensor(losses, dtype=torch.float64)
    part = folder / 'training.part'
    save_file(state, str(part))
    part.replace(folder / 'training.safetensors')
    (folder / 'statistics.json').write_text(json.dumps({'norm_stats': statistics}) + '\n')
    (folder / 'training.json').write_text(json.dumps(meta, indent=1) + '\n')


def restore(folder: Path, model, optimizer, average: Average) -> tuple[int, list[float]]:
    """
    Load what :func:`save` wrote.

    :return: the next step and the losses so far.
    :raises Pi0RosError: when there is nothing to go on from.
    """
    import torch
    from safetensors.torch import load_file

    path = folder / 'training.safetensors'
    if not path.is_file():
        raise Pi0RosError(f'{folder} holds no saved training to resume; leave --resume out')
    state = load_file(str(path))
    losses = state['losses'].tolist()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(state[f'model.{name}'])
            average.values[name].copy_(state[f'average.{name}'])
            if f'exp_avg.{name}' in state:
                optimizer.state[parameter] = {
                    'step': torch.tensor(float(len(losses))),
                    'exp_avg': state[f'exp_avg.{name}'],
                    'exp_avg_sq': state[f'exp_avg_sq.{name}'],
                }
    return len(losses), losses
