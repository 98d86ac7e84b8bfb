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
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
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
        ``actions`` float32 [steps, dof], ``success`` (the strict one), ``seed``.
    """
    from pi0_ros.sim import expert

    rng = np.random.default_rng(seed)
    sim.reset(seed)
    for _ in range(SETTLE_STEPS):
        sim.step()
    actions = expert.plan(sim)
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
        'seed': seed,
    }


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--out', type=Path, required=True, help='folder to write')
    parser.add_argument('--episodes', type=int, default=700)
    parser.add_argument('--disturbed', type=float, default=0.6, help='share with noise')
    parser.add_argument('--disturbance', type=float, default=0.015, help='noise [rad]')
    parser.add_argument('--image-size', type=int, default=128, help='pixels, square')
    parser.add_argument('--stride', type=int, default=5, help='steps between frames')
    parser.add_argument('--seed', type=int, default=FIRST_SEED, help='of the first episode')
    parser.add_argument('--workers', type=int, default=1, help='processes, one core each')


_sim = None  # of this process


def _record(task: tuple) -> dict:
    """Run the expert once in this process's simulator."""
    global _sim
    if _sim is None:
        from pi0_ros.sim import TABLE_FOVY_DEG, AlohaSim

        _sim = AlohaSim(top_fovy_deg=TABLE_FOVY_DEG)
    return record_episode(_sim, *task)


def run(args: argparse.Namespace) -> int:
    from rich.progress import track

    from pi0_ros.sim import CONTROL_PERIOD, TABLE_FOVY_DEG

    if args.episodes < 1 or not 0.0 <= args.disturbed <= 1.0 or args.workers < 1:
        raise Pi0RosError(
            '--episodes and --workers must be at least 1 and --disturbed lie in 0..1'
        )
    args.out.mkdir(parents=True, exist_ok=True)
    tasks = [
        (args.seed + index, args.disturbance if index % 100 < 100 * args.disturbed else 0.0,
         args.image_size, args.stride)
        for index in range(args.episodes)
    ]  # fmt: skip
    kept: dict[str, list] = {'images': [], 'steps': [], 'states': [], 'actions': []}
    ends, seeds, total = [], [], 0
    with ProcessPoolExecutor(args.workers, multiprocessing.get_context('spawn')) as pool:
        episodes = pool.map(_record, tasks)
        for episode in track(episodes, 'demonstrations', total=len(tasks)):
            seed = episode.pop('seed')
            if not episode.pop('success'):
                continue
            episode['steps'] = episode['steps'] + total
            total += len(episode['actions'])
            ends.append(total)
            seeds.append(seed)
            for key, values in kept.items():
                values.append(episode[key])
    if not ends:
        raise Pi0RosError(f'none of {args.episodes} episodes succeeded; lower --disturbance')
    for key, values in kept.items():
        np.save(args.out / f'{key}.npy', np.concatenate(values))
    np.save(args.out / 'ends.npy', np.array(ends))
    failed = args.episodes - len(ends)
    meta = {
        'prompt': PROMPT, 'robot': 'aloha', 'rate': 1.0 / CONTROL_PERIOD, 'camera': 'cam_high',
        'episodes': len(ends), 'failed': failed, 'steps': total, 'disturbed': args.disturbed,
        'disturbance': args.disturbance, 'first_seed': args.seed, 'seeds': seeds,
        'simulation': {'top_fovy_deg': TABLE_FOVY_DEG},
    }  # fmt: skip
    (args.out / 'meta.json').write_text(json.dumps(meta) + '\n')
    print(f'{len(ends)} episodes, {total} steps in {args.out}; {failed} failed and were left out')
    return 0
