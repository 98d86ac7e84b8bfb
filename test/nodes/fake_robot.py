# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
A robot of messages for node tests: cameras and joint states on real topics, from a thread.

Publishes what ``config/robots/aloha.yaml`` promises, notes what policy_node sends, and starts
policy_node as a process of its own.
"""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import PIL.Image
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import String
from trajectory_msgs.msg import JointTrajectory

from pi0_ros.messages import image_rgb8, joint_state, ns_from_time, time_from_ns
from pi0_ros.robot import RobotSpec

HERE = Path(__file__).resolve().parent
START_BOUND_S = 20.0
NAMES = ('waist', 'shoulder', 'elbow', 'forearm_roll', 'wrist_angle', 'wrist_rotate', 'gripper',
         'left_finger', 'right_finger')  # fmt: skip


class FakeRobot:
    """
    Cameras and joints; every method may be called from the test's thread.

    :param simulated: stamps and rhythm follow a ``/clock`` that the test advances with ``step``.
    """

    def __init__(self, domain: int, simulated: bool = False, camera_rate: float = 30.0,
                 joint_rate: float = 100.0, sensor_qos: QoSProfile | None = None,
                 compressed: tuple[str, ...] = ()):  # fmt: skip
        self.robot = RobotSpec.load('aloha')
        self.context = Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.node = rclpy.create_node('fake_robot', context=self.context)
        self.simulated = simulated
        self.camera_rate, self.joint_rate = camera_rate, joint_rate
        self.silent: set[str] = set()
        self.lossy: dict[str, float] = {}  # camera -> share of its frames that is lost
        self._random = random.Random(0)
        self.pose = np.zeros(6)
        self.opening = 0.5
        self.setpoints: list[tuple[float, JointState]] = []
        self.chunks: list[tuple[float, JointTrajectory]] = []
        self.status: dict[str, dict] = {}
        self.frames = 0
        self._changed = threading.Condition()
        qos = sensor_qos or QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
        self._images = {
            name: self.node.create_publisher(CompressedImage, f'{camera.topic}/compressed', qos)
            if name in compressed
            else self.node.create_publisher(Image, camera.topic, qos)
            for name, camera in self.robot.cameras.items()
        }
        self._compressed = compressed
        self._joints = [
            self.node.create_publisher(JointState, arm.joint_states, qos)
            for arm in self.robot.arms
        ]
        self._clock = self.node.create_publisher(Clock, '/clock', 10)
        self._prompt = self.node.create_publisher(String, 'prompt', 10)
        self.node.create_subscription(JointState, 'joint_command_raw', self._on_setpoint, 100)
        self.node.create_subscription(JointTrajectory, 'action_chunk', self._on_chunk, 100)
        self.node.create_subscription(DiagnosticArray, '/diagnostics', self._on_status, 100)
        self._executor = SingleThreadedExecutor(context=self.context)
        self._executor.add_node(self.node)
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._spin, daemon=True)]
        if not simulated:
            self._threads.append(threading.Thread(target=self._run, daemon=True))
        for thread in self._threads:
            thread.start()

    def close(self):
        self._stop.set()
        for thread in self._threads:
            thread.join(5.0)
        self._executor.shutdown()
        self.node.destroy_node()
        rclpy.shutdown(context=self.context)

    # -- publishing -------------------------------------------------------------------------------
    def now_ns(self) -> int:
        return self.node.get_clock().now().nanoseconds

    def publish_joints(self, stamp_ns: int) -> None:
        if 'joint_states' in self.silent:
            return
        finger = 0.01844 + self.opening * (0.058 - 0.01844)
        gripper = float(self.robot.arms[0].gripper.joint_rad(finger))
        for publisher in self._joints:
            publisher.publish(
                joint_state(NAMES, [*self.pose, gripper, finger, -finger], stamp_ns)
            )

    def publish_image(self, name: str, stamp_ns: int) -> None:
        if name in self.silent:
            return
        if self._random.random() < self.lossy.get(name, 0.0):
            return
        self.frames += 1
        rgb = np.zeros((48, 64, 3), np.uint8)
        rgb[..., 0] = list(self._images).index(name) + 1
        rgb[..., 1] = self.frames % 256
        rgb[0, 0, 2] = self.frames // 256 % 256
        message = image_rgb8(rgb, stamp_ns, name)
        if name in self._compressed:
            png = io.BytesIO()
            PIL.Image.fromarray(rgb).save(png, 'png')
            message = CompressedImage(header=message.header, format='rgb8; png compressed bgr8')
            message.data = png.getvalue()
        self._images[name].publish(message)

    def publish_images(self, stamp_ns: int) -> None:
        for name in self._images:
            self.publish_image(name, stamp_ns)

    def publish_clock(self, seconds: float) -> None:
        self._clock.publish(Clock(clock=time_from_ns(round(seconds * 1e9))))

    def step(self, seconds: float) -> None:
        """Advance simulated time to ``seconds`` and publish what is due then (10 ms ticks)."""
        tick = round(seconds * 100)
        self.publish_clock(seconds)
        stamp_ns = round(seconds * 1e9)
        self.publish_joints(stamp_ns)
        if tick % 4 == 0:
            self.publish_images(stamp_ns)

    def pause(self, seconds: float) -> None:
        """Pace a loop over simulated time; no test depends on how long this takes."""
        self._stop.wait(seconds)

    def say(self, prompt: str) -> None:
        self._prompt.publish(String(data=prompt))

    def _run(self) -> None:
        began = time.monotonic()
        joints = images = 0
        while not self._stop.is_set():
            elapsed = time.monotonic() - began
            if elapsed >= joints / self.joint_rate:
                joints = int(elapsed * self.joint_rate) + 1
                self.publish_joints(self.now_ns())
            if elapsed >= images / self.camera_rate:
                images = int(elapsed * self.camera_rate) + 1
                self.publish_images(self.now_ns())
            self._stop.wait(0.002)

    # -- receiving --------------------------------------------------------------------------------
    def _spin(self) -> None:
        while not self._stop.is_set():
            self._executor.spin_once(timeout_sec=0.1)

    def _note(self, change) -> None:
        with self._changed:
            change()
            self._changed.notify_all()

    def _on_setpoint(self, message):
        arrived = time.monotonic()
        self._note(lambda: self.setpoints.append((arrived, message)))

    def _on_chunk(self, message):
        arrived = time.monotonic()
        self._note(lambda: self.chunks.append((arrived, message)))

    def _on_status(self, message):
        def change():
            for row in message.status:
                name = row.name.split(': ', 1)[-1]
                values = {pair.key: pair.value for pair in row.values}
                self.status[name] = {'level': row.level, 'message': row.message, **values}

        self._note(change)

    def until(self, condition, bound: float = 30.0, what: str = 'condition') -> None:
        """Wait for a condition on what was received; fail after ``bound`` seconds."""
        deadline = time.monotonic() + bound
        with self._changed:
            while not condition():
                left = deadline - time.monotonic()
                assert left > 0, f'{what} not met within {bound} s; status: {self.status}'
                self._changed.wait(min(left, 0.05))

    def values(self, joint: int = 0) -> np.ndarray:
        with self._changed:
            return np.array([m.position[joint] for _, m in self.setpoints])

    def dues(self) -> np.ndarray:
        """Stamps of the setpoints [s]."""
        with self._changed:
            stamps = [ns_from_time(m.header.stamp) for _, m in self.setpoints]
        return np.array(stamps, dtype=np.float64) / 1e9

    def expect_silence(self) -> None:
        """Fail when a setpoint or chunk comes between two of the node's diagnostics."""
        for _ in range(2):  # what was under way during the first second does not count
            self.forget()
            self.until(lambda: 'policy' in self.status and 'executor' in self.status)
        assert self.setpoints == [] and self.chunks == []

    def forget(self) -> None:
        with self._changed:
            self.setpoints.clear()
            self.chunks.clear()
            self.status.clear()


RELIABLE_LATCHED = QoSProfile(
    depth=1,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.TRANSIENT_LOCAL,
)


class PolicyProcess:
    """policy_node as a process, with a scripted policy; its log is in ``log``."""

    def __init__(self, domain: int, folder: Path, policy: str = 'Scripted', **parameters):
        if ':' not in policy:
            policy = f'scripted_policies:{policy}'
        parameters = {
            'policy': policy, 'prompt': 'test', 'journal': str(folder / 'journal'), **parameters
        }  # fmt: skip
        command = [sys.executable, '-m', 'pi0_ros.nodes.policy_node', '--ros-args']
        for name, value in parameters.items():
            command += ['-p', f'{name}:={json.dumps(value)}']
        path = os.pathsep.join(p for p in (str(HERE), os.environ.get('PYTHONPATH')) if p)
        self.path = folder / 'policy_node.log'
        self._file = open(self.path, 'w', encoding='utf-8')
        self.popen = subprocess.Popen(
            command, stdout=self._file, stderr=subprocess.STDOUT,
            cwd=HERE.parents[1],
            env={**os.environ, 'ROS_DOMAIN_ID': str(domain), 'PYTHONPATH': path},
        )  # fmt: skip

    @property
    def log(self) -> str:
        return self.path.read_text(encoding='utf-8')

    def end(self, number: int = signal.SIGINT, bound: float = 10.0) -> int:
        if self.popen.poll() is None:
            self.popen.send_signal(number)
        try:
            return self.popen.wait(bound)
        finally:
            self.kill()

    def kill(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait(10.0)
        self._file.close()
