# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Measures the timing from camera frame to setpoint with the real nodes, as docs/timing.md says.

Processes: this one (three cameras 640x480 at 30 Hz, joints at 100 Hz, and the listener),
policy_node with a scripted policy of set latency, safety_filter. The policy turns both wrists at
constant speed, so that every step at the filter's output should be ``v * dt``.

Publishing times are the middleware's source timestamps, so a late listener changes nothing. Prints
a table with a verdict for each scenario; the exit code is 1 when one of them fails.

    python bench/loop.py                       # every scenario, 60 s each: 15 minutes
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

WAISTS = (0, 7)
MARK_RAD = 1e-3
"""
Each call of the policy moves one waist, the two in turn, by this much to and fro.

So the stream of setpoints itself shows which is the first that a chunk has any part in.
"""

PAUSE_S = 0.008
"""An arm farther than this behind the script was stopped; the script goes on from there."""

LEAD_S = 0.04
FRAME_PERIOD_MS = 1e3 / 30
DECODE_MS = 10.0
"""Allowed for bringing a frame through the middleware and decoding three of them."""


@dataclass(frozen=True)
class Scenario:
    """One policy and how long it takes."""

    name: str
    factory: str
    latency: float
    stall: float = 0.0
    simulated: bool = False  # /clock at 1 kHz and joints at 500 Hz (field report B34)

    def limits(self) -> dict[str, float]:
        """Return the largest value that is asked for of each figure."""
        if self.simulated:
            return {'tick error p99 [ms]': 1e3 * DT / 2, 'repeats': 0, 'double steps': 0}
        always = {
            'tick error p99 [ms]': 2.0, 'tick error max [ms]': 10.0, 'missed': 0,
            'double steps': 0,
        }  # fmt: skip
        if self.stall > LEAD_S:  # slows or holds the arm, never makes it jump
            return always
        return {
            **always, 'step error max [%]': 2.0, 'repeats': 0, 'added latency p99 [ms]': 10.0,
            'oldest frame age max [ms]': FRAME_PERIOD_MS + DECODE_MS,
        }  # fmt: skip

    def failures(self, result: dict) -> list[str]:
        """Return what is not as asked."""
        out = [
            f'{name} {result[name]} > {limit:g}'
            for name, limit in self.limits().items()
            if not result[name] <= limit
        ]
        if self.stall > LEAD_S and not int(result['stalls'] or 0):
            out.append('the stalls are not named in the diagnostics')
        return out


SCENARIOS = (
    *(Scenario(f'sleep-{t}', 'Sleeping', t) for t in (0.05, 0.3, 0.8)),
    *(Scenario(f'gil-{t}', 'Computing', t) for t in (0.05, 0.3, 0.8)),
    *(Scenario(f'torch-{t}', 'Multiplying', t) for t in (0.05, 0.3, 0.8)),
    Scenario('stall-0.03', 'Stalling', 0.3, 0.03),
    Scenario('stall-0.2', 'Stalling', 0.3, 0.2),
    Scenario('clock-1khz', 'Sleeping', 0.3, simulated=True),
)


# -- the policies, loaded by policy_node as 'loop:<class>' ----------------------------------------


class Sleeping:
    """
    Waits, as for a GPU or a server. Truth: both wrists turn at constant speed.

    Where the arm was stopped, truth goes on from where it stands, as a real policy's does.
    """

    def __init__(self, parameters):
        self.latency = float(parameters['latency'])
        self.stall = float(parameters.get('stall', 0.0))
        self.rows = int(parameters['rows'])
        self.velocity = float(parameters['velocity'])
        self.journal = open(parameters['journal'], 'a', encoding='utf-8')
        self.origin = None
        self.calls = 0
        self.marks = [MARK_RAD, MARK_RAD]

    def warm_up(self):
        self.work()

    def predict(self, observation, noise=None):
        began = time.time_ns()
        side = self.calls % 2
        self.marks[side] *= -1
        self.calls += 1
        if self.origin is None:
            self.origin = (observation.stamp_ns, np.array(observation.state))
        paused = self.behind(observation)
        if abs(paused) > PAUSE_S:
            self.origin = (self.origin[0] + round(paused * 1e9), self.origin[1])
        self.work()
        stamp, state = self.origin
        ahead = (observation.stamp_ns - stamp) / 1e9 + DT * np.arange(1, self.rows + 1)
        chunk = np.tile(state, (self.rows, 1))
        chunk[:, WRISTS] += (self.velocity * ahead)[:, None]
        chunk[:, WAISTS] += self.marks
        call = {
            'began': began,
            'ended': time.time_ns(),
            'newest': observation.stamp_ns,
            'oldest': min(observation.image_stamps_ns.values()),
            'paused': paused,
            'side': side,
            'mark': self.marks[side],
        }
        self.journal.write(json.dumps(call) + '\n')
        self.journal.flush()
        return chunk

    def behind(self, observation) -> float:
        """Return how long [s] ago the truth was where the arm is."""
        stamp, state = self.origin
        seen = min(observation.stamp_ns, *observation.joint_stamps_ns)  # interpolated up to there
        moved = float(observation.state[WRISTS[0]] - state[WRISTS[0]])
        return (seen - stamp) / 1e9 - moved / self.velocity

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

    def __init__(self, domain: int, width: int = 640, height: int = 480, reliable: bool = False,
                 simulated: bool = False):  # fmt: skip
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
        self.path = [(0, pose), (0, pose)]  # the last two commands and when they were given [ns]
        self.joint_rate = 500 if simulated else 100
        self.commands: list[tuple[int, float]] = []
        self.setpoints: list[tuple[int, float, float, float]] = []
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
        if simulated:
            from rosgraph_msgs.msg import Clock

            self.clock = self.node.create_publisher(Clock, '/clock', 10)
            self.threads.append(threading.Thread(target=self._tell_time, daemon=True))
        for thread in self.threads:
            thread.start()

    def _listen(self, kind, topic, callback):
        from rclpy.qos import QoSProfile

        self.node.create_subscription(kind, topic, callback, QoSProfile(depth=1000))

    def _spin(self):
        while not self.stop.is_set():
            self.executor.spin_once(timeout_sec=0.1)

    def _on_command(self, message, info):
        stamp = message.header.stamp
        now = stamp.sec * 10**9 + stamp.nanosec
        self.path = [self.path[-1], (now, np.array(message.position))]
        self.commands.append((info['source_timestamp'], message.position[WRISTS[0]]))

    def _pose_at(self, now: int) -> np.ndarray:
        """Where the arm is: it goes on at its speed for at most a tick and a half."""
        (before, left), (after, right) = self.path
        if not 0 < after - before < 0.1e9:
            return right
        ahead = min(max(now - after, 0), int(1.5e9 * DT)) / (after - before)
        return right + ahead * (right - left)

    def _on_setpoint(self, message, info):
        values = [message.position[i] for i in (WRISTS[0], *WAISTS)]
        self.setpoints.append((info['source_timestamp'], *values))

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
            if elapsed * self.joint_rate >= samples:
                samples = int(elapsed * self.joint_rate) + 1
                stamp = time.time_ns()
                whole = self._pose_at(stamp)
                for arm, publisher, own in zip(self.robot.arms, self.joints, names):
                    pose = whole[list(arm.indices)]
                    finger = float(arm.gripper.finger_m(pose[-1]))
                    publisher.publish(joint_state(own, [*pose, finger, -finger], stamp))
            for i, (publisher, image) in enumerate(self.cameras):
                if elapsed * 30 - i / 3 >= frames[i]:  # phases a third of a period apart
                    frames[i] = int(elapsed * 30 - i / 3) + 1
                    image.header.stamp = time_from_ns(time.time_ns())
                    publisher.publish(image)
            self.stop.wait(0.001)

    def _tell_time(self):
        """Publish ``/clock`` at 1 kHz; simulated time is the time of day."""
        from rosgraph_msgs.msg import Clock

        from pi0_ros.messages import time_from_ns

        due = time.monotonic()
        while not self.stop.is_set():
            self.clock.publish(Clock(clock=time_from_ns(time.time_ns())))
            due = max(due + 0.001, time.monotonic() - 0.01)
            time.sleep(max(due - time.monotonic(), 0.0))

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
        rig = Rig(domain, simulated=scenario.simulated)
        common = {'use_sim_time': scenario.simulated}
        try:
            if filtered:
                processes.append(
                    node_process(
                        'safety_filter', domain,
                        {'output': 'none', 'auto_enable': True, **common}, log,
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
                **common,
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
    output = np.array([row[:2] for row in out if first <= row[0] <= last], dtype=np.float64)
    gaps = np.diff(output[:, 0]) / 1e6
    ticks = np.abs(gaps - 1e3 * DT)
    steps = np.diff(output[:, 1]) / (velocity * DT)
    raw = np.diff([v for t, v, *_ in rig.setpoints if first <= t <= last]) / (velocity * DT)
    lines = (folder / 'journal').read_text(encoding='utf-8').splitlines()
    calls = [c for c in map(json.loads, lines) if first <= c['began'] and c['ended'] <= last]
    sent = np.array([row[0] for row in rig.setpoints], dtype=np.int64)
    moves = np.diff([row[2:] for row in rig.setpoints], axis=0, prepend=[rig.setpoints[0][2:]])
    added, waited = [], []
    for c in calls:
        shown = (sent >= c['ended']) & (moves[:, c['side']] * np.sign(c['mark']) > 1e-8)
        if shown.any():
            leaving = sent[np.argmax(shown)]
            waited.append((leaving - c['ended']) / 1e6)
            added.append((leaving - c['newest'] - (c['ended'] - c['began'])) / 1e6)
    ages = [(c['began'] - c['newest']) / 1e6 for c in calls]
    oldest = [(c['began'] - c['oldest']) / 1e6 for c in calls]
    executor = rig.status.get('executor', {})
    return {
        'inferences': len(calls),
        'inference p50 [ms]': _q([(c['ended'] - c['began']) / 1e6 for c in calls], 0.5),
        'tick error p99 [ms]': _q(ticks, 0.99),
        'tick error max [ms]': _q(ticks, 1.0),
        'setpoints': len(output),
        'missed': int((np.round(gaps / (1e3 * DT)) - 1).clip(0).sum()),
        'step error p99 [%]': _q(100 * np.abs(steps - 1), 0.99),
        'step error max [%]': _q(100 * np.abs(steps - 1), 1.0),
        'sent step error max [%]': _q(100 * np.abs(raw - 1), 1.0),
        'repeats': int((steps < 0.5).sum()),
        'double steps': int((steps > 1.5).sum()),
        'pauses of the arm': sum(abs(c['paused']) > PAUSE_S for c in calls),
        'lag of the arm p50 [ms]': _q([1e3 * c['paused'] for c in calls], 0.5),
        'newest frame age p50 [ms]': _q(ages, 0.5),
        'newest frame age p99 [ms]': _q(ages, 0.99),
        'oldest frame age max [ms]': _q(oldest, 1.0),
        'finish to setpoint p50 [ms]': _q(waited, 0.5),
        'finish to setpoint p99 [ms]': _q(waited, 0.99),
        'added latency p50 [ms]': _q(added, 0.5),
        'added latency p99 [ms]': _q(added, 0.99),
        'chunks without a setpoint': len(calls) - len(added),
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
        'thirds': [
            [_q(part, 0.99) for part in np.array_split(values, 3)]
            for values in (ticks, np.array(added), np.array(ages))
        ],
        'log': str(folder / 'log'),
    }


def _q(values, quantile: float) -> float:
    return round(float(np.quantile(values, quantile)), 3) if len(values) else float('nan')


COLUMNS = (
    'tick error p99 [ms]', 'tick error max [ms]', 'missed', 'step error max [%]', 'repeats',
    'double steps', 'oldest frame age max [ms]', 'finish to setpoint p99 [ms]',
    'added latency p99 [ms]', 'worst lateness [ms]', 'stalls', 'verdict',
)  # fmt: skip


def table(results: dict[str, dict]) -> str:
    heads = ('scenario', *COLUMNS)
    rows = [(name, *(str(result[c]) for c in COLUMNS)) for name, result in results.items()]
    lines = ['| ' + ' | '.join(row) + ' |' for row in (heads, ['---'] * len(heads), *rows)]
    return '\n'.join(lines)


def soak(seconds: float, parameters: dict, filtered: bool) -> dict:
    """Run one scenario for long; judge growth of memory and drift of the timing."""
    samples = []

    def note(second, rig, processes):
        if second % 10 == 0:
            samples.append([resident_mib(p.pid) for p in processes])
            if second % 60 == 0:
                print(f'{second:6d} s  resident {samples[-1]} MiB', flush=True)

    scenario = SCENARIOS[1]
    result = run(scenario, seconds, parameters, filtered, note)
    settled = np.array(samples[min(6, len(samples) // 4) :])
    quarter = max(len(settled) // 4, 1)
    failures = scenario.failures(result)
    names = ['safety_filter', 'policy_node'] if filtered else ['policy_node']
    for name, low, high in zip(names, settled[:quarter].mean(0), settled[-quarter:].mean(0)):
        result[f'{name} resident [MiB]'] = round(float(high), 1)
        growth = result[f'{name} growth [%]'] = round(100 * float(high / low - 1), 3)
        if not growth < 1.0:
            failures.append(f'{name} grew by {growth} %')
    for name, (early, _, late) in zip(('tick error', 'added latency', 'age'), result['thirds']):
        if not late <= 1.2 * early + 1.0:
            failures.append(f'{name} p99 drifted from {early} to {late} ms')
    result['verdict'] = f'FAIL: {"; ".join(failures)}' if failures else 'PASS'
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
            result = run(scenario, args.seconds, parameters, filtered)
            failures = scenario.failures(result)
            result['verdict'] = f'FAIL: {"; ".join(failures)}' if failures else 'PASS'
            results[scenario.name] = result
            print(f'{scenario.name}: {json.dumps(result)}', flush=True)
    print(table(results))
    machine = {'cores': os.cpu_count(), 'load': os.getloadavg(), 'python': sys.version.split()[0]}
    args.out.write_text(json.dumps({'machine': machine, 'results': results}, indent=2) + '\n')
    return int(any(result['verdict'] != 'PASS' for result in results.values()))


def yaml_value(text: str):
    try:
        return json.loads(text)
    except ValueError:
        return text


if __name__ == '__main__':
    sys.exit(main())
