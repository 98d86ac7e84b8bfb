# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Measures the timing from camera frame to setpoint with the real nodes, as docs/timing.md says.

Processes: this one (three cameras 640x480 at 30 Hz, joints at 100 Hz, and the listener),
policy_node with a scripted policy of set latency, safety_filter. The policy turns both wrists at
constant speed, so that every step at the filter's output should be ``v * dt``.

Publishing times are the middleware's source timestamps, so a late listener changes nothing.

    python bench/loop.py                       # every scenario, 60 s each
    python bench/loop.py --seconds 10 --only sleep-0.3 gil-0.3
    python bench/loop.py --soak 1800           # memory and drift over half an hour
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
DT = 0.02
WRISTS = (5, 12)
RANGE_RAD = 2.4
"""The wrists turn through this much; far from their limits of +-3.14 rad."""

SETTLE_S = 3.0
"""Start of motion, left out of every figure."""


@dataclass(frozen=True)
class Scenario:
    """One policy and how long it takes."""

    name: str
    factory: str
    latency: float
    stall: float = 0.0


SCENARIOS = (
    *(Scenario(f'sleep-{t}', 'Sleeping', t) for t in (0.05, 0.3, 0.8)),
    *(Scenario(f'gil-{t}', 'Computing', t) for t in (0.05, 0.3, 0.8)),
    *(Scenario(f'torch-{t}', 'Multiplying', t) for t in (0.05, 0.3, 0.8)),
    Scenario('stall-0.03', 'Stalling', 0.3, 0.03),
    Scenario('stall-0.2', 'Stalling', 0.3, 0.2),
)


# -- the policies, loaded by policy_node as 'loop:<class>' ----------------------------------------


class Sleeping:
    """Waits, as for a GPU or a server. Truth: both wrists turn at constant speed."""

    def __init__(self, parameters):
        self.latency = float(parameters['latency'])
        self.stall = float(parameters.get('stall', 0.0))
        self.rows = int(parameters['rows'])
        self.velocity = float(parameters['velocity'])
        self.journal = open(parameters['journal'], 'a', encoding='utf-8')
        self.origin = None

    def warm_up(self):
        self.work()

    def predict(self, observation, noise=None):
        began = time.time_ns()
        if self.origin is None or self.left_behind(observation):
            self.origin = (observation.stamp_ns, np.array(observation.state))
        self.work()
        stamp, state = self.origin
        ahead = (observation.stamp_ns - stamp) / 1e9 + DT * np.arange(1, self.rows + 1)
        chunk = np.tile(state, (self.rows, 1))
        chunk[:, WRISTS] += (self.velocity * ahead)[:, None]
        stamps = getattr(observation, 'image_stamps_ns', {}) or {'all': observation.stamp_ns}
        self.journal.write(
            json.dumps(
                {
                    'began': began,
                    'ended': time.time_ns(),
                    'newest': observation.stamp_ns,
                    'oldest': min(stamps.values()),
                }
            )
            + '\n'
        )
        self.journal.flush()
        return chunk

    def left_behind(self, observation) -> bool:
        """Say whether the arm was stopped: truth goes on from where it stands."""
        stamp, state = self.origin
        truth = state[WRISTS[0]] + self.velocity * (observation.stamp_ns - stamp) / 1e9
        return truth - observation.state[WRISTS[0]] > self.velocity * (2 * self.latency + 0.3)

    def work(self):
        time.sleep(self.latency)


class Computing(Sleeping):
    """Holds the interpreter all the time: a loop of pure Python."""

    def work(self):
        end, number = time.monotonic() + self.latency, 0
        while time.monotonic() < end:
            for _ in range(1000):
                number = (number * 31 + 7) % 1000003


class Multiplying(Sleeping):
    """Keeps torch busy with as many threads as policy_node allows."""

    def __init__(self, parameters):
        import torch

        super().__init__(parameters)
        self.torch = torch
        self.matrix = torch.randn(512, 512)

    def work(self):
        end = time.monotonic() + self.latency
        product = self.matrix
        while time.monotonic() < end:
            product = self.torch.tanh(product @ self.matrix)


class Stalling(Sleeping):
    """Blocks the whole interpreter once a call: C code that does not release it."""

    def work(self):
        time.sleep(self.latency / 2)
        ctypes.PyDLL(None).usleep(int(self.stall * 1e6))
        time.sleep(self.latency / 2)


# -- the robot and the listener -------------------------------------------------------------------


class Rig:
    """Publishes what a robot publishes and notes when what was sent to it."""

    def __init__(self, domain: int, width: int = 640, height: int = 480, reliable: bool = False):
        import rclpy
        from rclpy.context import Context
        from rclpy.executors import SingleThreadedExecutor
        from rclpy.qos import QoSProfile, ReliabilityPolicy
        from sensor_msgs.msg import Image, JointState
        from trajectory_msgs.msg import JointTrajectory

        from pi0_ros.messages import image_rgb8
        from pi0_ros.robot import RobotSpec

        self.rclpy = rclpy
        self.robot = RobotSpec.load('aloha')
        self.context = Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.node = rclpy.create_node('bench_robot', context=self.context)
        offered = ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT
        quiet = QoSProfile(depth=1, reliability=offered)
        noise = np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8)
        self.cameras = [
            (self.node.create_publisher(Image, camera.topic, quiet), image_rgb8(noise, 0, name))
            for name, camera in self.robot.cameras.items()
        ]
        self.joints = [
            self.node.create_publisher(JointState, arm.joint_states, quiet)
            for arm in self.robot.arms
        ]
        pose = np.array(self.robot.poses['start'])
        pose[list(WRISTS)] = -RANGE_RAD / 2
        self.pose = pose
        self.commands: list[tuple[int, float]] = []
        self.setpoints: list[tuple[int, float]] = []
        self.chunks: list[tuple[int, int]] = []
        self.load: dict[str, float] = {}
        self.status: dict[str, dict] = {}
        self._listen(JointState, 'joint_command', self._on_command)
        self._listen(JointState, 'joint_command_raw', self._on_setpoint)
        self._listen(JointTrajectory, 'action_chunk', self._on_chunk)
        from diagnostic_msgs.msg import DiagnosticArray

        self._listen(DiagnosticArray, '/diagnostics', self._on_status)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.stop = threading.Event()
        self.threads = [
            threading.Thread(target=target, daemon=True) for target in (self._spin, self._publish)
        ]
        for thread in self.threads:
            thread.start()

    def _listen(self, kind, topic, callback):
        from rclpy.qos import QoSProfile

        self.node.create_subscription(kind, topic, callback, QoSProfile(depth=1000))

    def _spin(self):
        while not self.stop.is_set():
            self.executor.spin_once(timeout_sec=0.1)

    def _on_command(self, message, info):
        self.pose = np.array(message.position)
        self.commands.append((info['source_timestamp'], message.position[WRISTS[0]]))

    def _on_setpoint(self, message, info):
        self.setpoints.append((info['source_timestamp'], message.position[WRISTS[0]]))

    def _on_chunk(self, message, info):
        stamp = message.header.stamp
        self.chunks.append((info['source_timestamp'], stamp.sec * 10**9 + stamp.nanosec))

    def _on_status(self, message):
        for row in message.status:
            self.status[row.name.split(': ', 1)[-1]] = {
                'message': row.message, **{pair.key: pair.value for pair in row.values}
            }  # fmt: skip

    def _publish(self):
        from pi0_ros.messages import joint_state, time_from_ns

        names = [
            [*(j.name[len(arm.prefix) :] for j in arm.joints), 'left_finger', 'right_finger']
            for arm in self.robot.arms
        ]
        began = time.monotonic()
        frames, samples = [0, 0, 0], 0
        while not self.stop.is_set():
            elapsed = time.monotonic() - began
            if elapsed * 100 >= samples:
                samples = int(elapsed * 100) + 1
                stamp = time.time_ns()
                for arm, publisher, own in zip(self.robot.arms, self.joints, names):
                    pose = self.pose[list(arm.indices)]
                    finger = float(arm.gripper.finger_m(pose[-1]))
                    publisher.publish(joint_state(own, [*pose, finger, -finger], stamp))
            for i, (publisher, image) in enumerate(self.cameras):
                if elapsed * 30 - i / 3 >= frames[i]:  # phases a third of a period apart
                    frames[i] = int(elapsed * 30 - i / 3) + 1
                    image.header.stamp = time_from_ns(time.time_ns())
                    publisher.publish(image)
            self.stop.wait(0.001)

    def close(self):
        self.stop.set()
        for thread in self.threads:
            thread.join(5.0)
        self.executor.shutdown()
        self.node.destroy_node()
        self.rclpy.shutdown(context=self.context)


def node_process(name: str, domain: int, parameters: dict, log) -> subprocess.Popen:
    command = [sys.executable, '-m', f'pi0_ros.nodes.{name}', '--ros-args']
    for key, value in parameters.items():
        command += ['-p', f'{key}:={json.dumps(value)}']
    path = os.pathsep.join([str(HERE), str(ROOT), *filter(None, [os.environ.get('PYTHONPATH')])])
    env = {**os.environ, 'ROS_DOMAIN_ID': str(domain), 'PYTHONPATH': path}
    return subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)


def resident_mib(pid: int) -> float:
    for line in Path(f'/proc/{pid}/status').read_text(encoding='ascii').splitlines():
        if line.startswith('VmRSS'):
            return int(line.split()[1]) / 1024
    return 0.0


def processor_s(pid: int) -> float:
    """Return the processor time that a process has used [s]."""
    fields = Path(f'/proc/{pid}/stat').read_text(encoding='ascii').rsplit(')', 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')


def run(scenario: Scenario, seconds: float, parameters: dict, filtered: bool, on_second=None):
    """Run one scenario; return its figures."""
    domain = random.SystemRandom().randrange(1, 100)
    velocity = min(RANGE_RAD / (seconds + SETTLE_S + 2.0), 0.1)
    folder = Path(tempfile.mkdtemp(prefix='pi0_ros_loop_'))
    processes = []
    with open(folder / 'log', 'w', encoding='utf-8') as log:
        rig = Rig(domain)
        try:
            if filtered:
                processes.append(
                    node_process(
                        'safety_filter', domain, {'output': 'none', 'auto_enable': True}, log
                    )
                )
            policy = {
                'policy': f'loop:{scenario.factory}',
                'prompt': 'turn',
                'latency': scenario.latency,
                'stall': scenario.stall,
                'velocity': velocity,
                'rows': 50 + round(2 * (scenario.latency + scenario.stall) / DT),
                'journal': str(folder / 'journal'),
                **parameters,
            }
            processes.append(node_process('policy_node', domain, policy, log))
            out = rig.commands if filtered else rig.setpoints
            deadline = time.monotonic() + 40.0
            while not rig.chunks or len(out) < 50:
                if time.monotonic() > deadline or any(p.poll() is not None for p in processes):
                    sys.exit(f'nothing came; see {folder}/log')
                time.sleep(0.1)
            time.sleep(SETTLE_S)
            names = ['safety_filter', 'policy_node'] if filtered else ['policy_node']
            before, own = [processor_s(p.pid) for p in processes], time.process_time()
            first = time.time_ns()
            for second in range(int(seconds)):
                time.sleep(1.0)
                if on_second is not None:
                    on_second(second, rig, processes)
            last = time.time_ns()
            used = [processor_s(p.pid) - b for p, b in zip(processes, before)]
            rig.load = {
                **{n: round(u * 1e9 / (last - first), 2) for n, u in zip(names, used)},
                'this': round((time.process_time() - own) * 1e9 / (last - first), 2),
            }
            time.sleep(0.2)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.send_signal(signal.SIGINT)
            for process in processes:
                try:
                    process.wait(10.0)
                except subprocess.TimeoutExpired:
                    process.kill()
            rig.close()
    return figures(rig, folder, velocity, first, last, out)


def figures(rig: Rig, folder: Path, velocity: float, first: int, last: int, out) -> dict:
    """Return tick errors, steps, staleness and latency between two times [ns]."""
    output = np.array([(t, v) for t, v in out if first <= t <= last], dtype=np.float64)
    ticks = np.abs(np.diff(output[:, 0]) / 1e6 - 1e3 * DT)
    steps = np.diff(output[:, 1]) / (velocity * DT)
    sent_values = np.array([v for t, v in rig.setpoints if first <= t <= last])
    raw = np.diff(sent_values) / (velocity * DT)
    lines = (folder / 'journal').read_text(encoding='utf-8').splitlines()
    calls = [c for c in map(json.loads, lines) if first <= c['began'] and c['ended'] <= last]
    sent = np.array([t for t, _ in rig.setpoints], dtype=np.int64)
    ready = {stamp: at for at, stamp in rig.chunks}
    added, waited = [], []
    for c in calls:
        took = c['ended'] - c['began']
        if c['newest'] in ready:
            added.append((ready[c['newest']] - c['newest'] - took) / 1e6)
        leaving = sent[np.searchsorted(sent, c['ended'])] if c['ended'] < sent[-1] else None
        if leaving is not None:
            waited.append((leaving - c['newest'] - took) / 1e6)
    ages = [(c['began'] - c['newest']) / 1e6 for c in calls]
    oldest = [(c['began'] - c['oldest']) / 1e6 for c in calls]
    executor = rig.status.get('executor', {})
    expected = (last - first) / 1e9 / DT
    return {
        'inferences': len(calls),
        'inference p50 [ms]': _q([(c['ended'] - c['began']) / 1e6 for c in calls], 0.5),
        'tick error p99 [ms]': _q(ticks, 0.99),
        'tick error max [ms]': _q(ticks, 1.0),
        'setpoints': len(output),
        'missed': max(round(expected) - len(output), 0),
        'step error p99 [%]': _q(100 * np.abs(steps - 1), 0.99),
        'step error max [%]': _q(100 * np.abs(steps - 1), 1.0),
        'sent step error max [%]': _q(100 * np.abs(raw - 1), 1.0),
        'repeats': int((steps < 0.5).sum()),
        'double steps': int((steps > 1.5).sum()),
        'newest frame age p99 [ms]': _q(ages, 0.99),
        'oldest frame age max [ms]': _q(oldest, 1.0),
        'added latency p50 [ms]': _q(added, 0.5),
        'added latency p99 [ms]': _q(added, 0.99),
        'with the wait for the tick p50 [ms]': _q(waited, 0.5),
        'with the wait for the tick p99 [ms]': _q(waited, 0.99),
        'sent setpoints late': executor.get('ticks late'),
        'worst lateness [ms]': executor.get('worst lateness [ms]'),
        'stalls': executor.get('stalls beyond the lead'),
        'held': executor.get('setpoints held'),
        'executor': executor.get('message'),
        'frames received [Hz]': min(
            (float(v['rate [Hz]']) for k, v in rig.status.items() if k.startswith('input cam')),
            default=0.0,
        ),
        'processor seconds per second': rig.load,
        'log': str(folder / 'log'),
    }


def _q(values, quantile: float) -> float:
    return round(float(np.quantile(values, quantile)), 3) if len(values) else float('nan')


COLUMNS = (
    'tick error p99 [ms]', 'tick error max [ms]', 'missed', 'step error max [%]', 'repeats',
    'double steps', 'oldest frame age max [ms]', 'added latency p99 [ms]',
    'with the wait for the tick p99 [ms]', 'worst lateness [ms]',
)  # fmt: skip


def table(results: dict[str, dict]) -> str:
    heads = ('scenario', *COLUMNS)
    rows = [(name, *(str(result[c]) for c in COLUMNS)) for name, result in results.items()]
    lines = ['| ' + ' | '.join(row) + ' |' for row in (heads, ['---'] * len(heads), *rows)]
    return '\n'.join(lines)


def soak(seconds: float, parameters: dict, filtered: bool) -> dict:
    """Run one scenario for long; return growth of memory and drift of the ticks."""
    samples = []

    def note(second, rig, processes):
        if second % 10 == 0:
            samples.append([resident_mib(p.pid) for p in processes])
            out = rig.commands if filtered else rig.setpoints
            samples[-1].append(len(out))
            if second % 60 == 0:
                print(f'{second:6d} s  resident {samples[-1][:-1]} MiB', flush=True)

    result = run(SCENARIOS[1], seconds, parameters, filtered, note)
    settled = [s for i, s in enumerate(samples) if i * 10 >= min(60, seconds / 4)]
    quarter = max(len(settled) // 4, 1)
    before = np.mean([s[:-1] for s in settled[:quarter]], axis=0)
    after = np.mean([s[:-1] for s in settled[-quarter:]], axis=0)
    names = ['safety_filter', 'policy_node'] if filtered else ['policy_node']
    for name, low, high in zip(names, before, after):
        result[f'{name} resident [MiB]'] = round(float(high), 1)
        result[f'{name} growth [%]'] = round(100 * float(high / low - 1), 3)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument('--seconds', type=float, default=60.0, help='measured time of a scenario')
    parser.add_argument('--only', nargs='*', default=None, help='scenarios by name')
    parser.add_argument('--soak', type=float, default=0.0, help='seconds of one long run')
    parser.add_argument('--out', type=Path, default=Path('loop.json'), help='where the JSON goes')
    parser.add_argument(
        '--without-filter', action='store_true', help='measure joint_command_raw instead'
    )
    parser.add_argument(
        '--parameter', action='append', default=[], help='of policy_node, as name=value'
    )
    args = parser.parse_args()
    given = dict(text.split('=', 1) for text in args.parameter)
    parameters = {name: yaml_value(text) for name, text in given.items()}
    filtered = not args.without_filter
    if args.soak:
        results = {'soak': soak(args.soak, parameters, filtered)}
        print(json.dumps(results['soak'], indent=2))
    else:
        results = {}
        for scenario in SCENARIOS:
            if args.only and scenario.name not in args.only:
                continue
            results[scenario.name] = run(scenario, args.seconds, parameters, filtered)
            print(f'{scenario.name}: {json.dumps(results[scenario.name])}', flush=True)
        print(table(results))
    machine = {'cores': os.cpu_count(), 'load': os.getloadavg(), 'python': sys.version.split()[0]}
    args.out.write_text(json.dumps({'machine': machine, 'results': results}, indent=2) + '\n')
    return 0


def yaml_value(text: str):
    try:
        return json.loads(text)
    except ValueError:
        return text


if __name__ == '__main__':
    sys.exit(main())
