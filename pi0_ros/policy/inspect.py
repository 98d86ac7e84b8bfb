# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
``pi0_ros inspect``: what a checkpoint is, and what it lacks to run on a robot.

Exit codes: 0 nothing is missing, 1 something is, 2 it is no pi0 checkpoint.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from pi0_ros.errors import Pi0RosError
from pi0_ros.policy.aloha import AlohaAdapter
from pi0_ros.policy.checkpoint import (
    ALOHA_DELTA_MASK,
    check_modes,
    locate,
    looks_relative,
    match_cameras,
    read_checkpoint,
)
from pi0_ros.policy.normalization import Normalizer, live_width
from pi0_ros.policy.prompt import PALIGEMMA
from pi0_ros.robot import RobotSpec


def describe(
    path, robot: RobotSpec | None = None, asset_id: str | None = None
) -> tuple[list[tuple[str, str]], list[str]]:
    """
    Return what a checkpoint is, as (name, value) rows, and what is missing, as sentences.

    :param asset_id: which of openpi's statistics, where there are several.
    :raises Pi0RosError: when it is no pi0 checkpoint.
    """
    from pi0_ros.policy.convert import open_source

    folder = locate(path)
    info = read_checkpoint(folder, asset_id)
    missing: list[str] = []
    rows = [('folder', str(folder)), ('layout', info.layout)]
    try:
        source = open_source(folder, family=info.family)
        config = source.config
        info = replace(info, kind=config.kind)
        count = sum(math.prod(t.shape) for t in source.tensors.values())
        size = sum(math.prod(t.shape) * t.dtype.itemsize for t in source.tensors.values())
        dtypes = sorted({str(t.dtype).removeprefix('torch.') for t in source.tensors.values()})
        rows += [
            ('model', f'{config.kind}, {count / 1e6:.1f} M parameters, {", ".join(dtypes)}'),
            ('memory', f'{size / 2**30:.2f} GiB as stored, {count * 2 / 2**30:.2f} in bfloat16'),
            ('arithmetic', f'{config.family} (Euler times, time embedding)'),
            ('chunk', f'{config.chunk} actions, {config.num_steps} flow steps'),
            ('pictures', f'{config.vision.image} x {config.vision.image}, resize {info.resize}'),
        ]
        if source.layout != 'safetensors':
            missing.append(f"weights: openpi's JAX parameters; run pi0_ros convert {folder} NEW")
    except Pi0RosError as error:
        missing.append(f'weights: {error}')
    cameras = info.cameras or {}
    rows.append(('cameras', ', '.join(f'{n} -> {s}' for n, s in cameras.items()) or 'by slot'))
    state_mode, action_mode = check_modes(info, None)
    rows.append(('normalisation', f'state {state_mode}, actions {action_mode} ({info.dialect})'))
    if info.statistics is None:
        rows.append(('statistics', 'none'))
        if info.assets:
            missing.append(f'asset_id: one of {", ".join(info.assets)}')
        elif (state_mode, action_mode) != ('identity', 'identity'):
            missing.append('statistics: give norm_stats.json, or say no_normalization')
    else:
        rows.append(('statistics', f'{info.statistics_source}: {_widths(info.statistics)}'))
    hint = ''
    if info.statistics is not None and info.action_space != 'delta':
        hint = ' (the statistics look like deltas)' if looks_relative(info.statistics) else ''
    rows.append(('action space', (info.action_space or 'not said') + hint))
    if info.action_space is None:
        missing.append("action space: say action_space='absolute' or 'delta'")
    rows.append(('ALOHA constants', info.aloha or 'not said'))
    if info.aloha is None and (robot is None or robot.dof == len(ALOHA_DELTA_MASK)):
        missing.append("ALOHA space: say aloha='openpi', 'lerobot_old' or 'off'")
    names = ('tokenizer.json', 'tokenizer.model', 'paligemma_tokenizer.model')
    own = [name for name in names if (folder / name).is_file()]
    rows.append(('tokenizer', own[0] if own else f'{info.tokenizer or PALIGEMMA}, from the hub'))
    rows += [('note', note) for note in info.notes]
    if robot is not None:
        rows.append(('robot', f'{robot.name}, {robot.dof} joints'))
        missing += _missing_for(info, robot, (state_mode, action_mode))
    return rows, missing


def _widths(statistics) -> str:
    """Return the dimensions that statistics are for; what cannot be read is said so."""
    try:
        return ', '.join(
            f'{name} {live_width(group)}'
            + (f' (padded to {longest})' if longest > live_width(group) else '')
            for name, group in statistics.items()
            for longest in [max((np.size(v) for v in group.values() if v is not None), default=0)]
        )
    except Pi0RosError as error:
        return str(error)


def _missing_for(info, robot: RobotSpec, modes) -> list[str]:
    missing = []
    for name, said in (('actions', info.action_dim), ('state', info.state_dim)):
        if said is not None and said != robot.dof:
            missing.append(f'{name}: {said} in the checkpoint, {robot.dof} joints')
    if info.statistics is not None:
        before = len(missing)
        for name, mode in zip(('state', 'actions'), modes):
            try:
                Normalizer.from_statistics(
                    name, info.statistics[name], mode, info.dialect, robot.dof
                )
            except Pi0RosError as error:
                missing.append(str(error))
        if len(missing) == before:
            missing += actions_outside_limits(info, robot)
    if info.cameras is not None:
        own = {name: camera.slot for name, camera in robot.cameras.items()}
        _, absent = match_cameras(info.cameras, own)
        if absent:
            missing.append(f'cameras {", ".join(absent)} (will be masked)')
    return missing


def actions_outside_limits(info, robot: RobotSpec) -> list[str]:
    """
    Compare where the actions of training lay with where the robot can go.

    :param info: from ``read_checkpoint``; relative actions are not judged.
    :return: a sentence for each joint of which less than half of the range between the 1st and
        the 99th percentile (else mean and two standard deviations) is within its limits.
    """
    group = (info.statistics or {}).get('actions') or {}
    if info.action_space == 'delta' or live_width(group) < robot.dof:
        return []
    ends = [group.get('q01'), group.get('q99')]
    if ends[0] is None or ends[1] is None:
        if group.get('mean') is None or group.get('std') is None:
            return []
        mean, std = np.asarray(group['mean'], float), np.asarray(group['std'], float)
        ends = [mean - 2.0 * std, mean + 2.0 * std]
    ends = np.array([np.asarray(end, float)[: robot.dof] for end in ends])
    if info.aloha not in (None, 'off'):
        ends = AlohaAdapter(info.aloha).robot_actions_from_pi(ends)
    low, high = np.sort(robot.policy_to_command(ends), axis=0)
    found = []
    for joint, a, b in zip(robot.joints, low, high):
        inside = min(b, joint.upper) - max(a, joint.lower)
        if inside < 0.5 * (b - a) or not joint.lower <= 0.5 * (a + b) <= joint.upper:
            found.append(
                f'{joint.name}: actions of training lie from {a:.3g} to {b:.3g}, the robot allows '
                f'{joint.lower:.3g} to {joint.upper:.3g} {joint.unit}; another robot or unit?'
            )
    return found


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('checkpoint', help='folder or hub id')
    parser.add_argument('--robot', default=None, help='robot name or YAML file')
    parser.add_argument('--asset-id', default=None, help="which of openpi's statistics")


def run(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    robot = RobotSpec.load(args.robot) if args.robot else None
    rows, missing = describe(args.checkpoint, robot, args.asset_id)
    table = Table(title=Path(args.checkpoint).name, show_header=False)
    table.add_column(style='bold')
    table.add_column(overflow='fold')
    for name, value in rows:
        table.add_row(name, value)
    console = Console()
    console.print(table)
    for sentence in missing:
        console.print(f'missing: {sentence}', style='yellow', markup=False)
    if not missing:
        where = f' on {robot.name}' if robot else ''
        console.print(f'ready to run{where}', style='green')
    return 1 if missing else 0
