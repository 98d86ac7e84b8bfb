# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
A lab around a real ``safety_filter`` process: a robot that follows, and bounded waits.

The robot publishes Interbotix's nine joints an arm at 100 Hz and moves where ``joint_command``
says, after a delay of one message. Everything that the filter published is kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import JointState
from std_srvs.srv import SetBool, Trigger

from pi0_ros.gripper import finger_m_from_joint_rad
from pi0_ros.robot import RobotSpec

ROOT = Path(__file__).resolve().parents[2]
ALOHA = RobotSpec.load('aloha')
NAMES = list(ALOHA.joint_names)
START = np.array(ALOHA.poses['start'])  # command units
PERIOD = 1.0 / ALOHA.control_rate
LATCHED = QoSProfile(
    depth=1, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL
)


def policy_units(command: np.ndarray) -> np.ndarray:
    """Return a command as the policy would say it: grippers as openings."""
    values = np.array(command, dtype=np.float64)
    for index, gripper in ALOHA.grippers.items():
        c = gripper.calibration
        values[index] = (values[index] - c.joint_closed) / (c.joint_open - c.joint_closed)
    return values


def environment(domain: int, base: dict[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a process in a ROS domain, by default on top of this one's."""
    env = dict(base or os.environ, ROS_DOMAIN_ID=str(domain), OMP_NUM_THREADS='1')
    env.pop('_ROS_WHEELS_BOOTSTRAP_COMPLETE', None)  # each Python does its own start-up
    return env


def wait_for(condition, timeout: float = 30.0, what: str = ''):
    """Return what the condition returned as soon as that is true; fail after the timeout."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.005)
    raise AssertionError(f'not within {timeout} s: {what or condition}')


def same(one: np.ndarray, two: np.ndarray) -> bool:
    """Return whether two commands are one, rounding aside."""
    return bool(np.abs(one - two).max() < 1e-9)


class Lab:
    """Robot, operator and observer of one filter; made by :func:`lab`."""

    def __init__(self, domain: int):
        self.domain = domain
        self.context = rclpy.Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.node = rclpy.create_node('lab', context=self.context)
        self.measured = START.copy()
        self.frozen: set[int] = set()  # joints that no longer follow
        self.silent: set[str] = set()  # arms that no longer report
        self.follow = True
        self.velocities: list[float] = []
        self.received: list[tuple[float, np.ndarray]] = []
        self.sent: list[tuple[float, np.ndarray]] = []  # as received, by their stamps where live
        self.statuses: list[DiagnosticStatus] = []
        self.diagnostics: dict[str, DiagnosticStatus] = {}
        self.processes: list[subprocess.Popen] = []
        node = self.node
        self._joints = {
            arm.name: node.create_publisher(JointState, arm.joint_states, 10) for arm in ALOHA.arms
        }
        node.create_subscription(JointState, 'joint_command', self._on_command, 1000)
        node.create_subscription(
            DiagnosticStatus, 'safety_filter/status', self.statuses.append, LATCHED
        )
        node.create_subscription(DiagnosticArray, '/diagnostics', self._on_diagnostics, 10)
        self._enable = node.create_client(SetBool, 'safety_filter/enable')
        self._triggers = {
            name: node.create_client(Trigger, f'safety_filter/{name}')
            for name in ('stop', 'reset')
        }
        self._executor = SingleThreadedExecutor(context=self.context)
        self._executor.add_node(node)
        self._done = threading.Event()
        self._threads = [
            threading.Thread(target=self._spin, daemon=True),
            threading.Thread(target=self._report, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    # -- processes

    def start_filter(self, *, env: dict | None = None, **parameters) -> subprocess.Popen:
        parameters = {'output': 'none', **parameters}
        command = [sys.executable, '-m', 'pi0_ros.nodes.safety_filter', '--ros-args']
        for name, value in parameters.items():
            command += ['-p', f'{name}:={json.dumps(value)}']
        return self._start(command, env)

    def start_script(self, name: str, *arguments: str, env=None) -> subprocess.Popen:
        script = Path(__file__).with_name(name)
        return self._start([sys.executable, str(script), *arguments], env)

    def start_sender(self, *arguments: str) -> subprocess.Popen:
        return self.start_script('setpoint_sender.py', *arguments)

    def _start(self, command, env) -> subprocess.Popen:
        process = subprocess.Popen(command, cwd=ROOT, env=environment(self.domain, env))
        self.processes.append(process)
        return process

    # -- operator

    def enable(self, value: bool = True):
        return self._call(self._enable, SetBool.Request(data=value))

    def stop(self):
        return self._call(self._triggers['stop'], Trigger.Request())

    def reset(self):
        return self._call(self._triggers['reset'], Trigger.Request())

    def _call(self, client, request):
        assert client.wait_for_service(timeout_sec=30.0), 'no filter'
        future = client.call_async(request)
        wait_for(future.done, 30.0, 'an answer of the filter')
        return future.result()

    def wait_for_state(self, *states: str, timeout: float = 40.0) -> DiagnosticStatus:
        return wait_for(
            lambda: self.statuses and self.state in states and self.statuses[-1],
            timeout, f'state {states}, was {self.state!r}',
        )  # fmt: skip

    @property
    def state(self) -> str:
        if not self.statuses:
            return ''
        return {v.key: v.value for v in self.statuses[-1].values}['state']

    @property
    def reason(self) -> str:
        return self.statuses[-1].message

    def ready(self) -> None:
        """Wait until the filter has a steady pose, and enable it."""
        self.wait_for_state('ready', 'holding')
        wait_for(lambda: self.enable().success, 20.0, 'a filter that can be enabled')

    # -- observer

    def commands(self, since: float = -np.inf) -> np.ndarray:
        """Return every command received, float64 [n, 14]."""
        return np.array([c for t, c in list(self.received) if t >= since]).reshape(-1, 14)

    def wait_for_motion(self, distance: float = 0.05, timeout: float = 30.0) -> None:
        wait_for(
            lambda: self.received and np.abs(self.received[-1][1] - START).max() > distance,
            timeout, f'motion; {self.reason if self.statuses else "no status"}',
        )  # fmt: skip

    def wait_for_rest(self, timeout: float = 20.0) -> None:
        """Wait until eleven commands in a row are equal, or a stopped filter has fallen silent."""

        def at_rest():
            last = self.received[-11:]
            if self.state == 'stopped' and last and time.monotonic() - last[-1][0] > 0.3:
                return True
            return len(last) == 11 and all(same(c, last[0][1]) for _, c in last)

        wait_for(at_rest, timeout, 'rest')

    def moving_until(self) -> float:
        """Return when the last command that differs from its predecessor was sent."""
        sent = list(self.sent)
        return max(
            (t for (_, a), (t, b) in zip(sent, sent[1:]) if not same(a, b)), default=-np.inf
        )

    # -- private

    def _on_command(self, message: JointState) -> None:
        assert list(message.name) == NAMES
        command = np.array(message.position)
        now = time.monotonic()
        stamp = message.header.stamp.sec + message.header.stamp.nanosec * 1e-9
        late = time.time() - stamp
        self.received.append((now, command))
        self.sent.append((now - late if 0.0 <= late < 60.0 else now, command))
        if self.follow:
            moving = [i for i in range(14) if i not in self.frozen]
            self.measured[moving] = command[moving]

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        for status in message.status:
            self.diagnostics[status.name] = status

    def _spin(self) -> None:
        with contextlib.suppress(Exception):
            while not self._done.is_set():
                self._executor.spin_once(timeout_sec=0.05)

    def _report(self) -> None:
        names = ['waist', 'shoulder', 'elbow', 'forearm_roll', 'wrist_angle', 'wrist_rotate',
                 'gripper', 'left_finger', 'right_finger']  # fmt: skip
        while not self._done.wait(0.01):
            for arm in ALOHA.arms:
                if arm.name in self.silent:
                    continue
                q = self.measured[list(arm.indices)]
                finger = float(finger_m_from_joint_rad(q[-1], arm.gripper.calibration))
                message = JointState(
                    name=names, position=[*q, finger, -finger], velocity=self.velocities
                )
                message.header.stamp = self.node.get_clock().now().to_msg()
                self._joints[arm.name].publish(message)

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(10.0)
        self._done.set()
        for thread in self._threads:
            thread.join(5.0)
        self._executor.shutdown()
        self.node.destroy_node()
        rclpy.shutdown(context=self.context)


@contextlib.contextmanager
def lab(domain: int):
    """Yield a lab; afterwards every process that it started is gone."""
    room = Lab(domain)
    try:
        yield room
    finally:
        room.close()


def assert_inside_every_limit(commands: np.ndarray) -> None:
    """Check a gapless sequence of commands against the robot's limits, to 1e-9."""
    joints = ALOHA.joints
    first, last = commands[:1], commands[-1:]
    still = np.concatenate([first, first, first, commands, last, last, last])
    assert np.isfinite(commands).all()
    assert (commands >= [j.lower - 1e-9 for j in joints]).all()
    assert (commands <= [j.upper + 1e-9 for j in joints]).all()
    for order, name in ((1, 'velocity'), (2, 'acceleration'), (3, 'jerk')):
        rate = np.abs(np.diff(still, n=order, axis=0)) / PERIOD**order
        if order > 1:
            rate = rate[: len(commands) - 1]  # the end of the record is not an end of motion
        bound = np.array([getattr(j, name) for j in joints]) * (1.0 + 1e-6)
        worst = np.unravel_index((rate / bound).argmax(), rate.shape)
        assert (rate <= bound).all(), (
            f'{NAMES[worst[1]]}: {name} {rate[worst]:.4g} exceeds {bound[worst[1]]:.4g} '
            f'at command {worst[0]}'
        )
