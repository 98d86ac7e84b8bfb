# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Scripted demonstrations of the cube transfer, as training data. Not a command yet.

The simulator is stepped in process, with the robot's own maps from measured joints to the
policy's state and from actions to commands, so that what is learned is what the nodes feed and
execute. Part of the episodes is disturbed: correlated noise is added to what the arm is told,
never to what is recorded as the right action, so that the policy sees how to come back.

A folder of demonstrations holds ``images.npy`` (uint8 [frames, H, W, 3] RGB, top camera),
``steps.npy`` (int64 [frames], the step of each frame), ``states.npy`` and ``actions.npy``
(float32 [steps, dof], policy space), ``ends.npy`` (int64 [episodes], one past each episode's last
step) and ``meta.json``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from pi0_ros.errors import Pi0RosError

PROMPT = 'transfer the cube to the left arm'
FIRST_SEED = 1_000_000
"""Demonstrations draw their cubes from here on; evaluation seeds stay below."""

SETTLE_STEPS = 25
"""Half a second at rest: the cube falls 3 cm onto the table."""

HOLD_STEPS = 40
"""How long the hands stay at the end, so that holding is learned too."""


def record_episode(sim, seed: int, disturbance: float, image_size: int, stride: int) -> dict:
    """
    Run the expert once.

    :param sim: an ``AlohaSim``.
    :param disturbance: standard deviation [rad] of the noise on arm joints; 0: none.
    :param stride: a frame is rendered every so many steps.
    :return: ``images`` uint8 [frames, size, size, 3], ``steps`` int64 [frames], ``states`` and
        ``actions`` float32 [steps, dof], ``success`` (the strict one).
    """
    from pi0_ros.sim import expert

    rng = np.random.default_rng(seed)
    sim.reset(seed)
    for _ in range(SETTLE_STEPS):
        sim.step()
    actions = expert.plan(sim, rng)
    actions = np.concatenate([actions, np.repeat(actions[-1:], HOLD_STEPS, axis=0)])
    noise = expert.correlated_noise(len(actions), sim.robot.dof, disturbance, rng)
    noise[:, list(sim.robot.gripper_indices)] = 0.0
    images, steps, states = [], [], []
    for k, action in enumerate(actions):
        states.append(sim.robot.measured_to_policy(sim.measured()))
        if k % stride == 0:
            images.append(sim.render('cam_high', image_size, image_size))
            steps.append(k)
        sim.step(sim.robot.policy_to_command(action + noise[k]))
    return {
        'images': np.stack(images),
        'steps': np.array(steps),
        'states': np.array(states, dtype=np.float32),
        'actions': np.array(actions, dtype=np.float32),
        'success': sim.strict_success,
    }


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--out', type=Path, required=True, help='folder to write')
    parser.add_argument('--episodes', type=int, default=700)
    parser.add_argument('--disturbed', type=float, default=0.5, help='share with noise')
    parser.add_argument('--disturbance', type=float, default=0.012, help='noise [rad]')
    parser.add_argument('--image-size', type=int, default=128, help='pixels, square')
    parser.add_argument('--stride', type=int, default=5, help='steps between frames')
    parser.add_argument('--seed', type=int, default=FIRST_SEED, help='of the first episode')


def run(args: argparse.Namespace) -> int:
    from rich.progress import Progress

    from pi0_ros.sim.aloha_sim import CONTROL_PERIOD, AlohaSim

    if args.episodes < 1 or not 0.0 <= args.disturbed <= 1.0:
        raise Pi0RosError('--episodes must be at least 1 and --disturbed lie in 0..1')
    args.out.mkdir(parents=True, exist_ok=True)
    sim = AlohaSim()
    kept: dict[str, list] = {'images': [], 'steps': [], 'states': [], 'actions': []}
    ends, failed, total = [], 0, 0
    with Progress() as progress:
        task = progress.add_task('demonstrations', total=args.episodes)
        for index in range(args.episodes):
            disturbed = index % 100 < 100 * args.disturbed
            episode = record_episode(
                sim, args.seed + index, args.disturbance if disturbed else 0.0,
                args.image_size, args.stride,
            )  # fmt: skip
            progress.advance(task)
            if not episode.pop('success'):
                failed += 1
                continue
            episode['steps'] = episode['steps'] + total
            total += len(episode['actions'])
            ends.append(total)
            for key, values in kept.items():
                values.append(episode[key])
    sim.close()
    for key, values in kept.items():
        np.save(args.out / f'{key}.npy', np.concatenate(values))
    np.save(args.out / 'ends.npy', np.array(ends))
    meta = {
        'prompt': PROMPT, 'robot': 'aloha', 'rate': 1.0 / CONTROL_PERIOD, 'camera': 'cam_high',
        'episodes': len(ends), 'failed': failed, 'steps': total,
        'disturbed': args.disturbed, 'disturbance': args.disturbance, 'first_seed': args.seed,
    }  # fmt: skip
    (args.out / 'meta.json').write_text(json.dumps(meta, indent=1) + '\n')
    print(f'{len(ends)} episodes, {total} steps in {args.out}; {failed} failed and were left out')
    return 0
