# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
The scripted expert in the place of the policy: demonstrations through the real nodes.

``python -m pi0_ros.training.teacher --out DIR`` runs ``pi0_ros demo`` once an episode, with
:func:`expert_policy` as its policy. What is recorded is what a run on a robot leaves: cameras and
joint states of the simulator, commands that went through the safety filter, in simulated time.
Bags of episodes that fail are deleted.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pi0_ros.errors import Pi0RosError
from pi0_ros.robot import RobotSpec

SECOND = 1_000_000_000
FIRST_SEED = 2_000_000
"""Beyond the seeds of ``pi0_ros demonstrate`` and of evaluations."""

SETTLE_STEPS = 25
"""Half a second at rest: the cube falls 3 cm onto the table."""

WAIT_STEPS = 50
"""A second at the start pose, in which every node comes up and the cube lies still."""

HOLD_S = 1.0
"""How long the recording goes on after the expert's last step."""

CHUNK = 50


class Teacher:
    """
    A policy that plays a fixed plan, by the stamps of what it is shown.

    :param actions: float [steps, dof] in the policy's space, one every 1 / rate s from the first
        observation on; afterwards the last one is held.
    """

    chunk_size = CHUNK

    def __init__(self, actions: np.ndarray, rate: float):
        self.actions, self.rate = np.asarray(actions, dtype=np.float32), rate
        self.action_dim = self.actions.shape[1]
        self._begin: int | None = None

    def predict(self, observation, noise=None) -> np.ndarray:
        """Return float32 [50, dof]: the plan from one step after the observation on."""
        if self._begin is None:
            self._begin = observation.stamp_ns
        done = (observation.stamp_ns - self._begin) * self.rate / SECOND
        rows = np.clip(done + 1 + np.arange(CHUNK), 0, len(self.actions) - 1)
        before = np.floor(rows).astype(int)
        after = np.minimum(before + 1, len(self.actions) - 1)
        share = (rows - before)[:, None].astype(np.float32)
        return self.actions[before] + share * (self.actions[after] - self.actions[before])

    def reset(self) -> None:
        """Begin the plan anew with the next observation."""
        self._begin = None


def plan(robot: RobotSpec | str, task: str, seed: int) -> np.ndarray:
    """Return the expert's actions for a seed, float [steps, dof]: wait, then the transfer."""
    from pi0_ros.sim import expert
    from pi0_ros.sim.aloha_sim import AlohaSim

    robot = RobotSpec.load(robot) if isinstance(robot, str) else robot
    sim = AlohaSim(task, robot, seed)
    try:
        for _ in range(SETTLE_STEPS):
            sim.step()
        actions = expert.plan(sim)
    finally:
        sim.close()
    return np.concatenate([np.repeat(actions[:1], WAIT_STEPS, axis=0), actions])


def expert_policy(parameters: Mapping) -> Teacher:
    """
    Build the teacher from a node's parameters; the factory that policy_node is given.

    :param parameters: ``robot``, and ``checkpoint``: a JSON file with ``task`` and ``seed``.
    :raises Pi0RosError: when that file is not there.
    """
    path = Path(parameters.get('checkpoint') or '')
    try:
        lesson = json.loads(path.read_text(encoding='utf-8'))
        task, seed = str(lesson['task']), int(lesson['seed'])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Pi0RosError(
            f"the teacher needs 'checkpoint' to be a JSON file with task and seed ({error})"
        ) from None
    robot = RobotSpec.load(parameters.get('robot') or 'aloha')
    return Teacher(plan(robot, task, seed), robot.policy_rate)


def record_episode(folder: Path, robot: str, task: str, seed: int) -> dict:
    """
    Run one demonstration through the nodes; return the demo's summary.

    :raises Pi0RosError: when the demo could not run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lesson = folder / 'lesson.json'
    lesson.write_text(json.dumps({'task': task, 'seed': seed}) + '\n', encoding='utf-8')
    seconds = len(plan(robot, task, seed)) / RobotSpec.load(robot).policy_rate + HOLD_S
    done = subprocess.run(
        [sys.executable, '-m', 'pi0_ros.cli', 'demo', '--robot', robot, '--task', task, '--seed',
         str(seed), '--seconds', f'{seconds:.2f}', '--no-pictures', '--out', str(folder),
         '--policy', 'pi0_ros.training.teacher:expert_policy', '--checkpoint', str(lesson)],
        capture_output=True, text=True,
    )  # fmt: skip
    summary = folder / 'summary.json'
    if not summary.is_file():
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ['no output']
        raise Pi0RosError(f'seed {seed}: the nodes did not run to the end ({last[0]})')
    return json.loads(summary.read_text(encoding='utf-8'))


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--out', type=Path, required=True, help='folder; a bag for each episode')
    parser.add_argument('--episodes', type=int, default=10)
    parser.add_argument('--seed', type=int, default=FIRST_SEED, help='of the first episode')
    parser.add_argument('--robot', default='aloha', help='robot name or YAML file')
    parser.add_argument('--task', default='transfer_cube', choices=('transfer_cube',))


def run(args: argparse.Namespace) -> int:
    if args.episodes < 1:
        raise Pi0RosError(f'--episodes is {args.episodes}; at least 1 is needed')
    kept = 0
    for seed in range(args.seed, args.seed + args.episodes):
        folder = args.out / f'episode_{seed}'
        summary = record_episode(folder, args.robot, args.task, seed)
        success = bool(summary['strict_success'])
        kept += success
        print(f'seed {seed}: {"kept" if success else "failed, deleted"}', flush=True)
        if not success:
            shutil.rmtree(folder)
    print(f'{kept} of {args.episodes} episodes in {args.out}; next: pi0_ros dataset '
          f'{args.out}/*/bag --out DIR')  # fmt: skip
    return 0 if kept else 1


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog='pi0_ros.training.teacher',
                                     description=__doc__.splitlines()[1])  # fmt: skip
    configure(parser)
    args = parser.parse_args(argv)
    try:
        return run(args)
    except Pi0RosError as error:
        print(f'teacher: {error}', file=sys.stderr)
        return 2


if __name__ == '__main__':
    sys.exit(main())
