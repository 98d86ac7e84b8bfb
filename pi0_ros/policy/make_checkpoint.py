# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
``pi0_ros make_checkpoint``: a complete checkpoint with random weights.

For trying nodes and tools without a trained one. The format is this package's documented one
(docs/checkpoints.md), the same that ``pi0_ros convert`` writes. The statistics put the actions
near the robot's start pose, so that an arm wanders instead of leaping.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from pi0_ros.errors import Pi0RosError
from pi0_ros.policy.config import SIZES, Pi0Config
from pi0_ros.robot import RobotSpec

CHUNK = 50
"""Rows of a chunk, as in the published model; at 50 Hz one second."""

WANDER_RAD = 0.08
"""Standard deviation of the random actions around the start pose."""


def write_checkpoint(
    folder: Path, model, pipeline: dict, statistics: dict, tokenizer, dtype: str | None = None,
    more: Mapping = MappingProxyType({}),
) -> Path:  # fmt: skip
    """
    Write a checkpoint in the documented format.

    :param model: a ``Pi0Model``.
    :param pipeline: the section of that name in config.json.
    :param statistics: ``state`` and ``actions``, each with mean, std, q01, q99.
    :param tokenizer: a ``tokenizers.Tokenizer``.
    :param more: further sections of config.json, such as ``simulation``.
    :raises Pi0RosError: when the folder holds a model already.
    """
    folder = Path(folder)
    if (folder / 'model.safetensors').exists():
        raise Pi0RosError(f'{folder} holds a checkpoint already; give another folder')
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        'type': model.config.kind, 'format': 'pi0_ros', 'model': model.config.to_dict(),
        'pipeline': pipeline, **more,
    }  # fmt: skip
    (folder / 'config.json').write_text(json.dumps(config, indent=2) + '\n')
    (folder / 'norm_stats.json').write_text(json.dumps({'norm_stats': statistics}) + '\n')
    tokenizer.save(str(folder / 'tokenizer.json'))
    model.save(folder / 'model.safetensors', dtype)
    return folder


def make_checkpoint(
    path, size: str = 'tiny', robot: str | RobotSpec = 'aloha', seed: int = 0,
    dtype: str | None = None,
) -> Path:  # fmt: skip
    """
    Write a random checkpoint for a robot.

    :param size: ``tiny``, ``small`` or ``full`` (3.24 billion parameters, 13 GB in float32).
    :return: the folder.
    :raises Pi0RosError: for an unknown size or robot, or a folder that holds a model already.
    """
    from pi0_ros.policy.model import Pi0Model
    from pi0_ros.policy.prompt import build_byte_tokenizer

    robot = RobotSpec.load(robot) if isinstance(robot, str) else robot
    config = Pi0Config.named(size).replace(chunk=CHUNK)
    model = Pi0Model.random(config, seed, dtype=dtype if dtype == 'bfloat16' else 'float32')
    pipeline = {
        'action_space': 'absolute', 'aloha': 'off', 'state_mode': 'zscore',
        'action_mode': 'zscore', 'dialect': 'openpi',
        'cameras': {name: cam.slot for name, cam in robot.cameras.items() if cam.slot},
        'resize': 'pillow', 'state_dim': robot.dof, 'action_dim': robot.dof,
        'prompt_tokens': config.default_prompt_tokens, 'prompt': '',
    }  # fmt: skip
    centre = start_state(robot)
    return write_checkpoint(
        path, model, pipeline,
        {'state': _spread(centre, 0.3), 'actions': _spread(centre, WANDER_RAD)},
        build_byte_tokenizer(), dtype,
    )  # fmt: skip


def start_state(robot: RobotSpec) -> np.ndarray:
    """Return the robot's start pose in the policy's space, or the middle of its range."""
    command = robot.poses.get('start')
    if command is None:
        command = [0.5 * (joint.lower + joint.upper) for joint in robot.joints]
    state = np.array(command, dtype=np.float64)
    if robot.policy_units == 'deg':
        arm = [i for i, joint in enumerate(robot.joints) if not joint.is_gripper]
        state[arm] = np.degrees(state[arm])
    for index, gripper in robot.grippers.items():
        if gripper.policy_space in ('normalized', 'pi_angle'):
            state[index] = 0.5  # half open: the noise reaches neither bound
    return state


def _spread(centre: np.ndarray, scale: float) -> dict:
    return {
        'mean': centre.tolist(), 'std': [scale] * len(centre),
        'q01': (centre - 2.33 * scale).tolist(), 'q99': (centre + 2.33 * scale).tolist(),
    }  # fmt: skip


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--size', choices=tuple(SIZES), default='tiny')
    parser.add_argument('--robot', default='aloha', help='robot name or YAML file')
    parser.add_argument('--out', type=Path, required=True, help='folder to write')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--dtype', choices=('float32', 'bfloat16'), default=None)


def run(args: argparse.Namespace) -> int:
    folder = make_checkpoint(args.out, args.size, args.robot, args.seed, args.dtype)
    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    print(f'{args.size} pi0 with random weights for {args.robot}: {folder} ({size:.1f} MB)')
    return 0
