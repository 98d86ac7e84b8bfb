# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Success rate of a checkpoint in the simulator, closed loop: in process, or through the nodes.

In process the policy acts through the same maps and the same safety filter as on a robot, and
inference takes no simulated time. Through the nodes every episode is a ``pi0_ros demo``:
simulator, policy_node and safety_filter as processes of their own, with the time that inference
takes, stitched chunks and the collision check.

Success is gym-aloha's (one frame of contact off the table counts) with the strict one beside it:
held by the left fingers alone for ten steps.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from pi0_ros.errors import Pi0RosError

NORMAL_95 = 1.959964  # two-sided 95 % point of the standard normal


@dataclass(frozen=True)
class Episode:
    """Outcome of one episode; ``seconds`` is the simulated time to strict success, or None."""

    seed: int
    success: bool
    strict_success: bool
    seconds: float | None
    limited_ticks: int


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """Return the 95 % Wilson score interval of a success rate."""
    if trials < 1:
        raise Pi0RosError(f'{trials} episodes give no success rate; run at least one')
    z, p = NORMAL_95, successes / trials
    centre = p + z**2 / (2 * trials)
    half = z * math.sqrt(p * (1 - p) / trials + z**2 / (4 * trials**2))
    scale = 1 + z**2 / trials
    return (centre - half) / scale, (centre + half) / scale


def run_episode(policy, sim, seed: int, *, prompt: str, horizon: int, max_steps: int,
                image_size: int, settle_steps: int = 25) -> Episode:  # fmt: skip
    """
    Run one episode.

    :param policy: has ``predict(observation, noise)``; a ``Pi0Policy``.
    :param horizon: actions executed of each chunk.
    """
    from pi0_ros.observation import Observation
    from pi0_ros.safety import Limits, SafetyFilter

    robot = sim.robot
    sim.reset(seed)
    for _ in range(settle_steps):
        sim.step()
    safety = SafetyFilter(Limits.from_robot(robot), period=1.0 / robot.control_rate)
    safety.reset(robot.measured_to_command(sim.measured()))
    rng = np.random.default_rng(seed)
    chunk, row, limited, seconds = None, 0, 0, None
    for step in range(max_steps):
        if chunk is None or row >= min(horizon, len(chunk)):
            images = {'cam_high': sim.render('cam_high', image_size, image_size)}
            state = robot.measured_to_policy(sim.measured())
            noise = rng.standard_normal((policy.chunk_size, policy.config.max_action_dim))
            chunk = policy.predict(
                Observation(images=images, state=state, prompt=prompt),
                noise=noise.astype(np.float32),
            )
            row = 0
        command, report = safety.step(
            robot.policy_to_command(chunk[row]), robot.measured_to_command(sim.measured())
        )
        row += 1
        limited += bool(report)
        sim.step(command)
        if sim.strict_success and seconds is None:
            seconds = step / robot.control_rate
            break
    return Episode(seed, sim.success, sim.strict_success, seconds, limited)


def run_episode_through_nodes(checkpoint: str, task: str, seed: int, prompt: str,
                              max_steps: int) -> Episode:  # fmt: skip
    """
    Run one episode as a demo of its own.

    :raises Pi0RosError: when the demo left no summary, with the end of what it said.
    """
    with tempfile.TemporaryDirectory(prefix='pi0_ros_evaluate_') as out:
        done = subprocess.run(
            [sys.executable, '-m', 'pi0_ros.cli', 'demo', '--checkpoint', checkpoint,
             '--task', task, '--seed', str(seed), '--prompt', prompt,
             '--seconds', str(max_steps / 50.0), '--out', out,
             '--no-record', '--no-pictures'],
            capture_output=True, text=True,
        )  # fmt: skip
        path = Path(out) / 'summary.json'
        if not path.is_file():
            raise Pi0RosError(
                f'seed {seed}: the demo ended with {done.returncode} and no summary: '
                f'{(done.stdout + done.stderr)[-800:]}'
            )
        result = json.loads(path.read_text())
    limited = sum(result['limit_hits'].values())
    return Episode(seed, result['success'], result['strict_success'], None, limited)


def summary(episodes: list[Episode]) -> dict:
    """Return rates with intervals, and the mean time to success."""
    n = len(episodes)
    result = {'episodes': n}
    for key in ('success', 'strict_success'):
        count = sum(getattr(e, key) for e in episodes)
        low, high = wilson_interval(count, n)
        result[key] = {'count': count, 'rate': count / n, 'low': low, 'high': high}
    times = [e.seconds for e in episodes if e.seconds is not None]
    result['mean_seconds'] = float(np.mean(times)) if times else None
    result['limited_ticks'] = sum(e.limited_ticks for e in episodes)
    return result


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--checkpoint', required=True)
    parser.add_argument('--task', default='transfer_cube')
    parser.add_argument('--prompt', default=None, help="default: the checkpoint's own")
    parser.add_argument('--episodes', type=int, default=50)
    parser.add_argument('--seed', type=int, default=0, help='of the first episode')
    parser.add_argument('--horizon', type=int, default=25, help='actions executed of a chunk')
    parser.add_argument('--max-steps', type=int, default=400, help='control steps an episode')
    parser.add_argument('--image-size', type=int, default=128, help='camera pixels, square')
    parser.add_argument('--threads', type=int, default=1, help='of torch')
    parser.add_argument(
        '--nodes', action='store_true',
        help='each episode through policy_node, safety_filter and sim_robot (takes minutes)',
    )  # fmt: skip
    parser.add_argument('--out', type=Path, default=None, help='JSON file to write')


def run(args: argparse.Namespace) -> int:
    import torch
    from rich.progress import Progress

    from pi0_ros.policy import Pi0Policy
    from pi0_ros.robot import RobotSpec
    from pi0_ros.sim import AlohaSim, top_fovy_of
    from pi0_ros.training.demonstrate import PROMPT

    torch.set_num_threads(args.threads)
    sim = None
    policy = Pi0Policy.from_pretrained(args.checkpoint, robot=RobotSpec.load('aloha'))
    prompt = args.prompt or policy.prompt or PROMPT
    if not args.nodes:
        sim = AlohaSim(args.task, top_fovy_deg=top_fovy_of(args.checkpoint))
    episodes = []
    with Progress() as progress:
        task = progress.add_task('episodes', total=args.episodes)
        for seed in range(args.seed, args.seed + args.episodes):
            if args.nodes:
                episode = run_episode_through_nodes(
                    args.checkpoint, args.task, seed, prompt, args.max_steps
                )
            else:
                episode = run_episode(
                    policy, sim, seed, prompt=prompt, horizon=args.horizon,
                    max_steps=args.max_steps, image_size=args.image_size,
                )  # fmt: skip
            episodes.append(episode)
            done = sum(e.strict_success for e in episodes)
            progress.update(task, advance=1, description=f'episodes ({done} strict successes)')
    if sim is not None:
        sim.close()
    result = summary(episodes)
    for key in ('success', 'strict_success'):
        r = result[key]
        print(f'{key}: {r["count"]}/{result["episodes"]} = {r["rate"]:.0%} '
              f'(95 %: {r["low"]:.0%}..{r["high"]:.0%})')  # fmt: skip
    failed = [e.seed for e in episodes if not e.strict_success]
    print(f'not strictly done, seeds: {", ".join(map(str, failed)) or "none"}')
    if args.out:
        rows = {'summary': result, 'episodes': [asdict(e) for e in episodes]}
        args.out.write_text(json.dumps(rows, indent=1) + '\n')
    return 0
