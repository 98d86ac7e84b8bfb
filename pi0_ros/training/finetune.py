# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
``pi0_ros finetune``: any pi0 checkpoint, further trained on bags or LeRobot data sets.

Samples become tensors by the policy's own maps (ALOHA space, relative actions, normalisation,
prompt, resize), so that training and acting cannot differ. The loss is the model's; rows past an
episode's end and padded dimensions count for nothing. What a step sees depends on the seed and its
number alone, whatever the number of processes: they split one batch, and a resumed run goes on as
if it had never stopped.

Several processes: ``accelerate launch --config_file config/training/ddp.yaml -m pi0_ros.cli
finetune ...``. Everything that is saved is safetensors or JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from pi0_ros.errors import Pi0RosError
from pi0_ros.robot import RobotSpec
from pi0_ros.training import lora
from pi0_ros.training.augment import augment
from pi0_ros.training.command import bag_episodes, bag_options
from pi0_ros.training.dataset import (
    ChunkDataset,
    DatasetError,
    Sample,
    check_policy,
    check_robot,
    statistics,
    write_statistics,
)
from pi0_ros.training.lerobot import LeRobotDataset, is_lerobot

STATE_FILE, NOTES_FILE = 'training.safetensors', 'training.json'
HELD_OUT_SAMPLES = 32
"""Held-out observations on which the result is tried; a full sampling each."""
HORIZONS = (1, 10, 25, 50)
"""Rows of a chunk at which its error is told."""


# --- samples to tensors ----------------------------------------------------------------------


class Collator:
    """
    Turns samples into what ``Pi0Model.loss`` takes, by the maps of a policy.

    :param policy: a ``Pi0Policy`` (its model is not used).
    :param vary: True: vary the pictures as training does (:mod:`pi0_ros.training.augment`).
    """

    def __init__(self, policy, vary: bool = False):
        self.policy, self.vary = policy, vary

    def __call__(
        self, samples: Sequence[Sample], draws: Sequence[np.random.Generator] | None = None
    ) -> dict:
        """
        Return a batch.

        :param draws: one generator a sample, for varying its pictures; None: they stay.
        :return: ``images`` (list of float32 [B, 3, S, S]), ``image_masks``, ``tokens``,
            ``token_masks``, ``state`` float32 [B, max_state_dim], ``actions`` float32 [B, chunk,
            max_action_dim], ``padded`` bool [B, chunk].
        """
        import torch

        policy, config, n = self.policy, self.policy.config, len(samples)
        state = np.zeros((n, config.max_state_dim), dtype=np.float32)
        actions = np.zeros((n, config.chunk, config.max_action_dim), dtype=np.float32)
        texts = []
        for k, sample in enumerate(samples):
            seen = SimpleNamespace(state=sample.state, prompt=sample.prompt)
            base, normal, tokens = policy._inputs(seen)
            state[k, : policy.dof] = normal
            actions[k, :, : policy.dof] = policy._model_actions(sample.actions, base)
            texts.append(tokens)
        tokens = np.zeros((n, max(map(len, texts))), dtype=np.int64)
        masks = np.zeros(tokens.shape, dtype=bool)
        for k, text in enumerate(texts):
            tokens[k, : len(text)], masks[k, : len(text)] = text, True
        images = self._images(samples, draws)
        return {
            'images': images, 'image_masks': [torch.ones(n, dtype=torch.bool)] * len(images),
            'tokens': torch.from_numpy(tokens), 'token_masks': torch.from_numpy(masks),
            'state': torch.from_numpy(state), 'actions': torch.from_numpy(actions),
            'padded': torch.from_numpy(np.stack([s.padded for s in samples])),
        }  # fmt: skip

    def _images(self, samples, draws) -> list:
        import torch

        from pi0_ros.policy.images import model_input

        policy, images = self.policy, []
        for name, slot in policy.cameras.items():
            if name not in samples[0].images:
                continue
            rows = []
            for k, sample in enumerate(samples):
                picture = sample.images[name]
                if self.vary and draws is not None:
                    picture = augment(picture, draws[k], crop='wrist' not in slot)
                rows.append(model_input(picture, policy.config.vision.image, policy._resize))
            images.append(torch.stack(rows))
        return images


class Steps:
    """
    The batches of a training run, for torch's DataLoader: item i is micro-batch i.

    Which samples, noises and times a step has depends on seed and step alone. Process ``rank`` of
    ``world`` gets its share of them, the same rows that one process would have in that place.

    :param batch: samples of one process in one micro-batch.
    :param accumulate: micro-batches a step.
    """

    def __init__(
        self, data: ChunkDataset, collate: Collator, *, steps: int, batch: int,
        accumulate: int = 1, seed: int = 0, rank: int = 0, world: int = 1, first: int = 0,
    ):  # fmt: skip
        self.data, self.collate = data, collate
        self.steps, self.batch, self.accumulate = steps, batch, accumulate
        self.seed, self.rank, self.world, self.first = seed, rank, world, first

    def __len__(self) -> int:
        return (self.steps - self.first) * self.accumulate

    def __getitem__(self, index: int) -> dict:
        import torch

        if not 0 <= index < len(self):
            raise IndexError(index)
        step, micro = divmod(index + self.first * self.accumulate, self.accumulate)
        draw = np.random.default_rng([self.seed, step])
        total = self.batch * self.world * self.accumulate
        config = self.collate.policy.config
        chosen = draw.integers(len(self.data), size=total)
        noise = draw.standard_normal(
            (total, config.chunk, config.max_action_dim), dtype=np.float32
        )
        # openpi's: mostly noisy, never exactly 0 nor 1
        time = (draw.beta(1.5, 1.0, size=total) * 0.999 + 0.001).astype(np.float32)
        rows = sum(int((~self.data.actions(int(i))[1]).sum()) for i in chosen)
        begin = (micro * self.world + self.rank) * self.batch
        own = slice(begin, begin + self.batch)
        draws = [np.random.default_rng([self.seed, step, begin + k]) for k in range(self.batch)]
        batch = self.collate([self.data[int(i)] for i in chosen[own]], draws)
        return batch | {
            'noise': torch.from_numpy(noise[own]), 'time': torch.from_numpy(time[own]),
            'rows': max(rows, 1),
        }  # fmt: skip


def masked_loss(model, batch: dict, dof: int):
    """
    Return the part that a batch has in the mean loss of the whole step.

    :param model: ``Pi0Model``, or what peft or accelerate wrapped around it.
    :param batch: of :class:`Steps`; ``rows`` counts the valid rows of the whole step.
    :param dof: dimensions that the robot has; the padded ones are not learned.
    """
    names = ('images', 'image_masks', 'tokens', 'token_masks', 'state', 'actions', 'noise', 'time')
    loss = model(**{name: batch[name] for name in names})[..., :dof].mean(-1)
    valid = (~batch['padded']).to(loss.device)
    return (loss * valid).sum() / batch['rows']


# --- the policy around it ----------------------------------------------------------------------


def with_statistics(policy, values, normalization: str | None = None):
    """Return the same policy with other statistics; model and tokenizer are shared."""
    from pi0_ros.policy.checkpoint import check_modes
    from pi0_ros.policy.normalization import Normalizer

    result = copy.copy(policy)
    modes = check_modes(policy.info, normalization)
    result._state, result._actions = (
        Normalizer.from_statistics(name, values[name], mode, policy.info.dialect, policy.dof)
        for name, mode in zip(('state', 'actions'), modes)
    )
    return result


def deploy(policy, folder, values=None, prompt: str = '') -> Path:
    """
    Write a policy's model and pipeline as a checkpoint in the documented format.

    :param values: statistics to save; None: those beside the weights that it was loaded from.
    :return: the folder.
    :raises Pi0RosError: when it holds a checkpoint already.
    """
    folder = Path(folder)
    if (folder / 'model.safetensors').exists():
        raise Pi0RosError(f'{folder} holds a checkpoint already; give another folder')
    info, model = policy.info, policy.model
    state_mode, action_mode = policy._state.mode, policy._actions.mode
    pipeline = {
        'action_space': 'absolute' if policy._delta_mask is None else 'delta',
        'aloha': policy.aloha_constants, 'state_mode': state_mode, 'action_mode': action_mode,
        'dialect': info.dialect, 'cameras': dict(policy.cameras),
        'camera_order': list(policy.cameras), 'resize': policy._resize,
        'state_dim': policy.dof, 'action_dim': policy.dof,
        'prompt_tokens': policy.tokenizer.length, 'truncate': info.truncate,
        'prompt': prompt or policy.prompt,
    }  # fmt: skip
    if info.tokenizer:
        pipeline['tokenizer'] = info.tokenizer
    if policy._delta_mask is not None:
        pipeline['delta_mask'] = [bool(v) for v in policy._delta_mask]
    if values is None:
        values = {
            name: {key: np.asarray(v, dtype=float).reshape(-1).tolist()
                   for key, v in group.items() if v is not None}
            for name, group in (info.statistics or {}).items()
        } or None  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    config = {'type': model.config.kind, 'format': 'pi0_ros', 'model': model.config.to_dict(),
              'pipeline': pipeline}  # fmt: skip
    (folder / 'config.json').write_text(json.dumps(config, indent=2) + '\n')
    if values is not None:
        write_statistics(folder, values)
    for name in ('tokenizer.json', 'tokenizer.model', 'paligemma_tokenizer.model'):
        if (Path(info.path) / name).is_file():
            shutil.copyfile(Path(info.path) / name, folder / name)
    model.save(folder / 'model.safetensors')
    return folder


# --- the run -----------------------------------------------------------------------------------


class Ema:
    """An exponential moving average of what learns, in float32."""

    def __init__(self, parameters: dict, decay: float):
        self.decay = decay
        self.values = {n: p.detach().float().clone() for n, p in parameters.items()}

    def update(self, parameters: dict, step: int) -> None:
        """Follow the weights; early steps count more, so that the start is forgotten."""
        decay = min(self.decay, (1.0 + step) / (10.0 + step))
        for name, parameter in parameters.items():
            self.values[name].lerp_(parameter.detach().float(), 1.0 - decay)

    def copy_to(self, parameters: dict) -> None:
        import torch

        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(self.values[name])


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add('--checkpoint', required=True, help='folder or hub id to start from')
    add('--data', nargs='+', required=True, help='bags and LeRobot data sets')
    add('--out', type=Path, required=True, help='folder to write')
    add('--robot', default='aloha', help='robot name or YAML file')
    add('--steps', type=int, default=3000)
    add('--batch', type=int, default=8, help='samples a process and micro-batch')
    add('--accumulate', type=int, default=1, help='micro-batches a step')
    add('--lr', type=float, default=2.5e-5, help='peak learning rate')
    add('--warm-up', type=int, default=100, help='steps')
    add('--weight-decay', type=float, default=1e-10)
    add('--clip', type=float, default=1.0, help='largest gradient norm')
    add('--ema', type=float, default=0.99, help='decay of the average that is deployed; 0: none')
    add('--lora', type=int, default=0, metavar='RANK', help='train adapters of this rank')
    add('--lora-parts', nargs='+', default=['text', 'expert'], choices=tuple(lora.PARTS))
    add('--freeze', default='none', choices=lora.FREEZING)
    add('--precision', default='float32', choices=('float32', 'bfloat16'),
        help='bfloat16: autocast, weights that learn stay float32')  # fmt: skip
    add('--gradient-checkpointing', action='store_true', help='less memory, a third more time')
    add('--no-augmentation', action='store_true', help='pictures as they are')
    add('--statistics', default='data', choices=('data', 'checkpoint'),
        help='normalise with those of the data, or keep those of the checkpoint')  # fmt: skip
    add('--held-out', type=float, default=0.0, help='share of episodes to test on')
    add('--save-every', type=int, default=500, help='steps between saves')
    add('--resume', action='store_true', help='go on from the last save in --out')
    add('--workers', type=int, default=0, help='processes that prepare batches')
    add('--device', default='auto', help='cpu, cuda, or auto')
    add('--seed', type=int, default=0)
    bag_options(add)
    add('--action-space', default=None, choices=('absolute', 'delta'))
    add('--aloha', default=None, help="pi's ALOHA space: openpi, lerobot_old, off")
    add('--normalization', default=None)
    add('--tokenizer', default=None, help='folder, file or hub id')


def run(args: argparse.Namespace) -> int:
    check_arguments(args)
    robot = RobotSpec.load(args.robot)
    accelerator = _accelerator(args.device)
    told = accelerator.is_main_process
    policy = _load(args, robot, accelerator)
    data = load_data(args, robot, policy)
    check_robot(data, robot)
    check_policy(data, policy)
    data, held = data.split(args.held_out, args.seed)
    values = None
    if args.statistics == 'data':
        values = statistics(data, policy._aloha, policy._delta_mask)
        policy = with_statistics(policy, values, args.normalization)
    if told:
        print(f'{len(data.episodes)} episodes, {len(data)} samples of {", ".join(data.cameras)}'
              + (f'; {len(held.episodes)} episodes held out' if held else ''))  # fmt: skip
    model, losses = _train(args, policy, data, accelerator)
    policy.model = model
    if told:
        prompts = {p for e in data.episodes for p in e.prompts}
        folder = deploy(policy, args.out / 'checkpoint', values,
                        next(iter(prompts)) if len(prompts) == 1 else '')  # fmt: skip
        plot_losses(losses, args.out / 'loss.png')
        if held is not None:
            for row, error in held_out_errors(policy, held).items():
                print(f'row {row}: mean error {error:.4f} on held-out episodes')
        print(f'loss {np.mean(losses[-50:]):.4f} after {len(losses)} steps; deploy {folder}')
    accelerator.wait_for_everyone()
    return 0


def check_arguments(args) -> None:
    """
    Refuse settings that cannot be meant, all at once.

    :raises Pi0RosError: naming each with its value.
    """
    faults = [
        f'--{name.replace("_", "-")} is {getattr(args, name)}; at least {least} is needed'
        for name, least in (('steps', 1), ('batch', 1), ('accumulate', 1), ('warm_up', 0),
                            ('save_every', 1), ('lora', 0), ('workers', 0))
        if getattr(args, name) < least
    ]  # fmt: skip
    if not args.lr > 0:
        faults.append(f'--lr is {args.lr}; it must be above zero')
    if not 0.0 <= args.ema < 1.0:
        faults.append(f'--ema is {args.ema}; it must lie in 0..1')
    if args.lora and args.freeze != 'none':
        faults.append('--lora freezes all but adapters and heads already; leave --freeze out')
    if (args.out / 'checkpoint' / 'model.safetensors').exists():
        faults.append(f'{args.out} holds a finished training; give another --out')
    elif (args.out / STATE_FILE).exists() and not args.resume:
        faults.append(f'{args.out} holds an unfinished training; go on with --resume')
    if faults:
        raise Pi0RosError('; '.join(faults))


def load_data(args, robot: RobotSpec, policy) -> ChunkDataset:
    """
    Read every bag and data set that was named.

    :raises Pi0RosError: what cannot be read, or has another rate than the robot's policy_rate.
    """
    size = policy.config.vision.image if policy._resize == 'pillow' else None
    episodes = []
    for path in map(Path, args.data):
        if is_lerobot(path):
            found = LeRobotDataset.open(path).read_all(image_size=size, robot=robot)
        else:
            found = bag_episodes(path, robot, args, size)
        for episode in found:
            if not np.isclose(episode.rate, robot.policy_rate):
                raise DatasetError(
                    f'{episode.source} has {episode.rate:g} actions a second, robot '
                    f"'{robot.name}' a policy_rate of {robot.policy_rate:g} Hz; set policy_rate "
                    f"to {episode.rate:g} in the robot's YAML (the executor interpolates)"
                )
        if args.prompt:
            from dataclasses import replace

            found = [replace(e, prompts=(args.prompt,) * len(e)) for e in found]
        episodes += found
    return ChunkDataset(episodes, policy.chunk_size, robot.policy_rate)


def _accelerator(device: str):
    try:
        from accelerate import Accelerator
    except ImportError:
        raise Pi0RosError(
            "training needs accelerate; install it with pip install 'pi0_ros[train]'"
        ) from None
    return Accelerator(cpu=device == 'cpu')


def _load(args, robot: RobotSpec, accelerator):
    from pi0_ros.policy import Pi0Policy

    given = {
        name: getattr(args, name)
        for name in ('action_space', 'aloha', 'normalization', 'tokenizer') if getattr(args, name)
    }  # fmt: skip
    return Pi0Policy.from_pretrained(
        args.checkpoint, device=str(accelerator.device), robot=robot,
        no_normalization=args.statistics == 'data', **given,
    )  # fmt: skip


def _train(args, policy, data: ChunkDataset, accelerator):
    """Return the trained model (adapters merged, averaged) and the losses of all steps."""
    import torch

    from pi0_ros.training.train import learning_rate

    torch.manual_seed(args.seed)
    model = policy.model
    for parameter in model.parameters():  # inference's column order is of no use to gradients
        parameter.data = parameter.data.contiguous()
    model.gradient_checkpointing = args.gradient_checkpointing
    if args.lora:
        model = lora.add_lora(model, args.lora, parts=args.lora_parts, seed=args.seed)
    else:
        lora.freeze(model, args.freeze)
    lora.leave_unread(model, policy.config)
    model.train()
    learning = {n: p for n, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(
        learning.values(), lr=args.lr, betas=(0.9, 0.95), weight_decay=args.weight_decay
    )
    average, losses = Ema(learning, args.ema) if args.ema else None, []
    if args.resume:
        losses = restore(args.out, learning, optimizer, average)
    wrapped, optimizer = accelerator.prepare(model, optimizer)
    sharded = str(accelerator.distributed_type).endswith('FSDP')
    if sharded and (args.ema or args.lora or args.resume):
        raise Pi0RosError(
            'weights shared by several GPUs (FSDP) are trained with --ema 0, without --lora and '
            '--resume; use config/training/ddp.yaml for these'
        )
    steps = Steps(
        data, Collator(policy, vary=not args.no_augmentation), steps=args.steps,
        batch=args.batch, accumulate=args.accumulate, seed=args.seed,
        rank=accelerator.process_index, world=accelerator.num_processes, first=len(losses),
    )  # fmt: skip
    batches = iter(torch.utils.data.DataLoader(steps, batch_size=None, num_workers=args.workers))
    narrow = torch.autocast(
        accelerator.device.type, torch.bfloat16, enabled=args.precision == 'bfloat16'
    )
    with _progress(accelerator.is_main_process, args.steps, len(losses)) as advance:
        for step in range(len(losses), args.steps):
            for group in optimizer.param_groups:
                group['lr'] = learning_rate(step, args.steps, args.lr, args.warm_up)
            optimizer.zero_grad(set_to_none=True)
            total = torch.zeros((), device=accelerator.device)
            for micro in range(args.accumulate):
                last = micro + 1 == args.accumulate
                quiet = contextlib.nullcontext() if last else accelerator.no_sync(wrapped)
                with quiet, narrow:
                    loss = masked_loss(wrapped, next(batches), policy.dof)
                    # gradients are averaged over processes, the parts of a mean are summed
                    accelerator.backward(loss * accelerator.num_processes)
                total += loss.detach()
            accelerator.clip_grad_norm_(wrapped.parameters(), args.clip)
            optimizer.step()
            if average is not None:
                average.update(learning, step)
            losses.append(float(accelerator.reduce(total, 'sum')))
            if not np.isfinite(losses[-1]):
                raise Pi0RosError(
                    f'the loss is {losses[-1]} at step {step + 1}; lower --lr, or look for '
                    'outliers in the data (pi0_ros dataset prints its statistics)'
                )
            advance(losses)
            if (step + 1) % args.save_every == 0 and step + 1 < args.steps and not sharded:
                if accelerator.is_main_process:
                    save(args.out, learning, optimizer, average, losses)
                accelerator.wait_for_everyone()
    if sharded:
        return _gathered(accelerator, wrapped, policy.config), losses
    trained = accelerator.unwrap_model(wrapped)
    if average is not None:
        average.copy_to(learning)
    if args.lora:
        if accelerator.is_main_process:
            folder = lora.save_adapters(trained, args.out / 'adapter', str(args.checkpoint))
            print(f'adapters alone: {folder}')
        trained = lora.merge(trained)
    trained.gradient_checkpointing = False
    return trained.eval().requires_grad_(False), losses


def _gathered(accelerator, wrapped, config):
    """Return a whole model of weights that several processes share; None but in the first."""
    from pi0_ros.policy.model import Pi0Model

    state = accelerator.get_state_dict(wrapped)
    if not accelerator.is_main_process:
        return None
    model = Pi0Model.empty(config)
    model.load_state_dict(state)
    return model.eval().requires_grad_(False)


@contextlib.contextmanager
def _progress(shown: bool, steps: int, done: int):
    """Yield a function that is told the losses after each step."""
    if not shown:
        yield lambda losses: None
        return
    from rich.progress import Progress, TimeRemainingColumn

    columns = ['[progress.description]{task.description}', *Progress.get_default_columns()[1:3],
               TimeRemainingColumn()]  # fmt: skip
    with Progress(*columns) as progress:
        task = progress.add_task('training', total=steps, completed=done)
        yield lambda losses: progress.update(
            task, advance=1, description=f'loss {np.mean(losses[-50:]):.4f}'
        )


def held_out_errors(policy, held: ChunkDataset, samples: int = HELD_OUT_SAMPLES) -> dict:
    """
    Return by how much predicted chunks miss what was done in episodes never trained on.

    :param samples: observations, evenly over the episodes.
    :return: row of the chunk (from 1) -> mean absolute error in the policy's units.
    """
    rows: dict[int, list[float]] = {}
    for index in np.unique(np.linspace(0, len(held) - 1, samples).astype(int)):
        sample = held[int(index)]
        seen = SimpleNamespace(images=sample.images, state=sample.state, prompt=sample.prompt)
        error = np.abs(policy.predict(seen) - sample.actions).mean(axis=1)
        for row in (h for h in HORIZONS if h <= len(error) and not sample.padded[h - 1]):
            rows.setdefault(row, []).append(float(error[row - 1]))
    return {row: float(np.mean(values)) for row, values in rows.items()}


def plot_losses(losses: Sequence[float], path: Path) -> None:
    """Draw the loss over steps, and its mean over the last fifty."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout='constrained')
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    steps = np.arange(1, len(losses) + 1)
    axes.plot(steps, losses, color='0.75', linewidth=0.8, label='each step')
    width = min(50, len(losses))
    mean = np.convolve(losses, np.ones(width) / width, 'valid')
    axes.plot(steps[width - 1 :], mean, color='tab:blue', label=f'mean of {width}')
    axes.set(xlabel='step', ylabel='flow-matching loss', yscale='log')
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def save(folder: Path, learning: dict, optimizer, average: Ema | None, losses) -> None:
    """Write all that is needed to go on: weights that learn, optimizer, average, losses."""
    import torch
    from safetensors.torch import save_file

    state = {f'model.{n}': p.detach().contiguous() for n, p in learning.items()}
    if average is not None:
        state |= {f'average.{n}': v.contiguous() for n, v in average.values.items()}
    for name, parameter in learning.items():
        slot = optimizer.state.get(parameter)
        if slot:
            state[f'exp_avg.{name}'] = slot['exp_avg'].contiguous()
            state[f'exp_avg_sq.{name}'] = slot['exp_avg_sq'].contiguous()
    state['losses'] = torch.tensor(losses, dtype=torch.float64)
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f'{STATE_FILE}.part'
    save_file(state, str(part))
    part.replace(folder / STATE_FILE)


def restore(folder: Path, learning: dict, optimizer, average: Ema | None) -> list[float]:
    """
    Load what :func:`save` wrote; return the losses so far.

    :raises Pi0RosError: there is nothing to go on from, or it is of other settings.
    """
    import torch
    from safetensors.torch import load_file

    path = folder / STATE_FILE
    if not path.is_file():
        raise Pi0RosError(f'{folder} holds no saved training to resume; leave --resume out')
    state = load_file(str(path))
    wanted = {f'model.{n}': p.shape for n, p in learning.items()}
    if average is not None:
        wanted |= {f'average.{n}': p.shape for n, p in learning.items()}
    have = {n: v.shape for n, v in state.items() if n.startswith(('model.', 'average.'))}
    odd = sorted(n for n in wanted.keys() | have.keys() if wanted.get(n) != have.get(n))
    if odd:
        raise Pi0RosError(
            f'{path} was saved with other settings ({len(odd)} weights differ, {odd[0]} first); '
            'give the same --lora, --freeze and --ema as before'
        )
    losses = state['losses'].tolist()
    with torch.no_grad():
        for name, parameter in learning.items():
            parameter.copy_(state[f'model.{name}'])
            if average is not None:
                average.values[name].copy_(state[f'average.{name}'])
            if f'exp_avg.{name}' in state:
                optimizer.state[parameter] = {
                    'step': torch.tensor(float(len(losses))),
                    'exp_avg': state[f'exp_avg.{name}'].to(parameter.device),
                    'exp_avg_sq': state[f'exp_avg_sq.{name}'].to(parameter.device),
                }
    return losses
