# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
``pi0_ros record``: an mcap with everything that replay needs, and what made the run.

Topics of the robot (cameras, joint states), of the nodes (setpoints, commands, chunks, prompt,
diagnostics) and the parameters of every node, the checkpoint's hash and this package's version.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path

from pi0_ros import __version__
from pi0_ros.errors import Pi0RosError
from pi0_ros.robot import RobotSpec

OWN_TOPICS = (
    'action_chunk', 'joint_command', 'joint_command_raw', 'prompt', 'emergency_stop',
    'safety_filter/status', 'predicted_trajectory', '/diagnostics', '/clock', '/tf', '/tf_static',
    'robot_description',
)  # fmt: skip


def topics_of(robot: RobotSpec) -> list[str]:
    """Return every topic of a run with a robot, the replayable inputs first."""
    topics = [
        camera.topic if camera.transport == 'raw' or camera.topic.endswith('/compressed')
        else f'{camera.topic}/compressed'
        for camera in robot.cameras.values()
    ]  # fmt: skip
    topics += [topic for topic, _ in robot.joint_state_sources]
    for arm in robot.arms:
        out = arm.output
        if out.kind == 'interbotix':
            topics += [f'{out.namespace}/commands/joint_{k}' for k in ('group', 'single')]
        topics += [t for t in (out.topic, out.gripper_topic) if t]
    return list(dict.fromkeys([*topics, *OWN_TOPICS]))


def checkpoint_hash(folder: Path) -> str:
    """Return a SHA-256 over a checkpoint's files: names, config whole, weights whole."""
    digest = hashlib.sha256()
    for path in sorted(p for p in Path(folder).rglob('*') if p.is_file()):
        digest.update(str(path.relative_to(folder)).encode())
        with open(path, 'rb') as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--robot', default='aloha', help='robot name or YAML file')
    parser.add_argument('--out', type=Path, default=None, help='bag folder (pi0_<date>)')
    parser.add_argument('--checkpoint', default=None, help='folder whose hash is kept')
    parser.add_argument('--all', action='store_true', help='every topic instead of the known ones')
    parser.add_argument('--seconds', type=float, default=None, help='stop after so long')
    parser.add_argument('--compress', action='store_true', help='zstd; images cost a core')


def run(args: argparse.Namespace) -> int:
    robot = RobotSpec.load(args.robot)
    out = args.out or Path(time.strftime('pi0_%Y%m%d_%H%M%S'))
    if out.exists():
        raise Pi0RosError(f"'{out}' exists already; give another folder with --out")
    if args.seconds is not None and not args.seconds > 0:
        raise Pi0RosError(f'--seconds is {args.seconds}; expected a number above zero')
    metadata = {'pi0_ros_version': __version__, 'robot': robot.name}
    if args.checkpoint:
        metadata['checkpoint'] = str(args.checkpoint)
        if Path(args.checkpoint).is_dir():
            metadata['checkpoint_sha256'] = checkpoint_hash(Path(args.checkpoint))
    from pi0_ros.nodes.recorder import record

    recording = record(out, None if args.all else topics_of(robot), metadata, args.seconds,
                       args.compress)  # fmt: skip
    for topic, count in sorted(recording.counts.items()):
        print(f'{count:8d}  {topic}')
    for topic in recording.missing:
        print(f'       -  {topic} (nobody published it)')
    dropped = sum(recording.dropped.values())
    lost = f'; {dropped} messages lost, the disk was too slow' if dropped else ''
    print(f'{recording.messages} messages in {out}{lost}')
    return 1 if dropped or not recording.messages else 0
