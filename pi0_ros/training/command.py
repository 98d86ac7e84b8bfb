# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
``pi0_ros dataset``: bags and LeRobot data sets as training data; shown, or written anew.

Without ``--out`` it says what there is to train on, whether it fits the robot, and the statistics
by joint. With it everything named becomes one LeRobot data set.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import numpy as np

from pi0_ros.errors import Pi0RosError
from pi0_ros.robot import RobotSpec
from pi0_ros.training.dataset import (
    ACTION_TOPICS,
    ChunkDataset,
    DatasetError,
    check_robot,
    read_bag,
    statistics,
    write_statistics,
)
from pi0_ros.training.lerobot import WRITABLE, LeRobotDataset, is_lerobot, write_lerobot


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add('data', nargs='+', type=Path, help='bags and LeRobot data sets')
    add('--robot', default='aloha', help='robot name or YAML file')
    add('--out', type=Path, default=None, help='LeRobot data set to write')
    add('--format', default='v3.0', choices=WRITABLE, help='its version')
    add('--videos', action='store_true', help='encode pictures as video: smaller, lossy')
    add('--fps', type=int, default=None, help="frames a second; default: the actions' rate")
    add('--size', type=int, default=None, help='shrink pictures to this square')
    add('--statistics', type=Path, default=None, help='folder to write norm_stats.json into')
    bag_options(add)


def bag_options(add) -> None:
    """Add the options on how a bag is read; ``add`` is a parser's ``add_argument``."""
    add('--prompt', default='', help="instruction, instead of the data's own")
    add('--actions', default=ACTION_TOPICS[0], help='topic of bags: what the arms were told')
    add('--leader', nargs='+', default=[], metavar='TOPIC:PREFIX',
        help="leader arms' joint states, whose poses are the actions")  # fmt: skip
    add('--leader-gripper', nargs=2, type=float, default=None, metavar=('CLOSED', 'OPEN'),
        help="motor angles of the leader's gripper [rad]")  # fmt: skip
    add('--received-time', action='store_true', help='stamp messages without one on reception')


def bag_episodes(path, robot: RobotSpec, args, image_size: int | None) -> list:
    """Read a bag by the options of :func:`bag_options`."""
    sources = []
    for text in args.leader:
        topic, _, prefix = text.partition(':')
        sources.append((topic, prefix))
    return read_bag(
        path, robot, prompt=args.prompt, actions=args.actions, leader=sources,
        leader_gripper=args.leader_gripper and tuple(args.leader_gripper),
        image_size=image_size, use_received_time=args.received_time,
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    robot = RobotSpec.load(args.robot)
    if args.size is not None and args.size < 1:
        raise Pi0RosError(f'--size is {args.size}; expected pixels, 1 or more')
    episodes, incomplete = [], 0
    for path in args.data:
        if is_lerobot(path):
            data = LeRobotDataset.open(path)
            print(
                f'{path}: LeRobot {data.version}, {data.robot_type or "robot not named"}, '
                f'{len(data.entries)} episodes, {data.fps:g} Hz, cameras '
                f'{", ".join(data.cameras) or "none"}'
            )
            for sentence in data.missing:
                print(f'  missing: {sentence}')
            incomplete += len(data.missing)
            found = data.read_all(images=args.out is not None, image_size=args.size, robot=robot)
        else:
            found = bag_episodes(path, robot, args, args.size)
            print(
                f'{path}: bag, {len(found)} episodes, {sum(map(len, found))} observations, '
                f'{found[0].rate:g} actions a second, cameras {", ".join(found[0].images)}'
            )
            for note in found[0].notes:
                print(f'  {note}')
        episodes += found
    prompts = Counter(prompt for episode in episodes for prompt in episode.prompts)
    for prompt, count in prompts.most_common(10):
        print(f'{count:8d} x "{prompt}"')
    data = ChunkDataset(episodes, 1, episodes[0].rate)
    values = statistics(data)
    show_statistics(values, robot.joint_names)
    if args.statistics is not None:
        print(f'statistics: {write_statistics(args.statistics, values)}')
    if args.out is not None:
        write_lerobot(
            args.out, episodes, robot if data.dof == robot.dof else None, version=args.format,
            videos=args.videos, fps=args.fps,
        )  # fmt: skip
        print(f'{len(episodes)} episodes in {args.out} (LeRobot {args.format})')
        return 0
    try:
        check_robot(_with_cameras(data, args.data), robot)
    except DatasetError as error:
        print(f'not fit for training: {error}')
        return 1
    print(f"fits robot '{robot.name}'" + ('; not complete' if incomplete else ''))
    return 1 if incomplete else 0


def _with_cameras(data: ChunkDataset, paths) -> ChunkDataset:
    """Return the data with its cameras' names, where pictures were not read."""
    if data.cameras:
        return data
    from dataclasses import replace

    cameras = LeRobotDataset.open(paths[0]).cameras
    blank = np.zeros((1, 1, 3), dtype=np.uint8)
    named = [replace(e, images={c: [blank] * len(e) for c in cameras}) for e in data.episodes]
    return ChunkDataset(named, data.chunk, data.rate)


def show_statistics(values, names) -> None:
    """Print mean, std and quantiles of each joint's state and action."""
    from rich.console import Console
    from rich.table import Table

    table = Table('joint', 'quantity', 'mean', 'std', '1 %', '99 %')
    for quantity in ('state', 'actions'):
        group = values[quantity]
        width = len(group['mean'])
        labels = names if len(names) == width else [str(i) for i in range(width)]
        for k, label in enumerate(labels):
            row = (f'{group[key][k]:.4f}' for key in ('mean', 'std', 'q01', 'q99'))
            table.add_row(label, quantity, *row)
    Console().print(table)
