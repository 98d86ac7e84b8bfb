# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
A bystander in a running graph: records it, counts, listens to diagnostics, checks QoS.

Used by the demo's supervisor. It runs rclpy in a thread and a context of its own; every property
may be read from any thread.
"""

from __future__ import annotations

import bisect
import os
import threading
import time
import uuid
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.parameter import Parameter
from rclpy.qos import QoSCompatibility as Compatibility
from rclpy.qos import QoSProfile, ReliabilityPolicy, qos_check_compatible
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool, Float32
from trajectory_msgs.msg import JointTrajectory

from pi0_ros.messages import NANOSECONDS, ns_from_time
from pi0_ros.nodes.recorder import BagRecorder, Recording

CLOCK_MEMORY = 6000
"""Clock messages remembered to date stamps in wall time: a minute at 100 Hz."""

REST_SPEED = 1e-3
"""Largest change of a command per second [rad/s] at which the arm counts as at rest."""

REST_COMMANDS = 10
"""Successive commands that must be at rest: 0.2 s at 50 Hz."""


@dataclass
class Counters:
    """What has been seen so far; times are simulated seconds unless named otherwise."""

    clock: float = 0.0
    chunks: int = 0
    first_chunk: float | None = None
    chunk_wall: float | None = None
    latencies: list[float] = field(default_factory=list)  # wall s, observation to chunk
    commands: int = 0
    first_command: float | None = None
    recent_commands: deque = field(default_factory=lambda: deque(maxlen=200))  # stamps
    still: int = 0  # successive commands without motion
    reward: float = 0.0
    best_reward: float = 0.0
    success: bool = False
    strict_success: bool = False


class Observer:
    """
    Subscribes to what the demo shows and, when asked to, records every topic.

    :param domain: ROS domain to join.
    :param bag: folder of the new bag, or None to record nothing.
    :raises Pi0RosError: when the bag cannot be made.
    """

    def __init__(self, domain: int, bag: Path | None = None, metadata: dict | None = None):
        self._lock = threading.Lock()
        self._counters = Counters()
        self._clock_ns: deque = deque(maxlen=CLOCK_MEMORY)
        self._clock_wall: deque = deque(maxlen=CLOCK_MEMORY)
        self._last_command: tuple[int, np.ndarray] | None = None
        self._diagnostics: dict[str, tuple[int, str, dict[str, str]]] = {}
        self._context = rclpy.Context()
        rclpy.init(context=self._context, domain_id=domain)
        self._node = rclpy.create_node(
            f'demo_observer_{os.getpid()}_{uuid.uuid4().hex[:4]}',
            context=self._context,
            parameter_overrides=[Parameter('use_sim_time', value=True)],
        )
        best_effort = QoSProfile(depth=500, reliability=ReliabilityPolicy.BEST_EFFORT)
        reliable = QoSProfile(depth=500)
        subscribe = self._node.create_subscription
        subscribe(Clock, '/clock', self._on_clock, best_effort)
        subscribe(JointState, 'joint_command', self._on_command, best_effort)
        subscribe(JointTrajectory, 'action_chunk', self._on_chunk, best_effort)
        subscribe(DiagnosticArray, '/diagnostics', self._on_diagnostics, reliable)
        subscribe(Float32, 'sim_robot/reward', self._on_reward, reliable)
        subscribe(Bool, 'sim_robot/success', self._on_success, reliable)
        subscribe(Bool, 'sim_robot/strict_success', self._on_strict, reliable)
        self._recorder = None
        if bag is not None:
            self._recorder = BagRecorder(self._node, bag, metadata=metadata)
            self._recorder.start()
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self._node)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._spin, name='observer', daemon=True)
        self._thread.start()

    # -- any thread ----------------------------------------------------------------------------

    @property
    def counters(self) -> Counters:
        """A copy of the present counts (lists are shared: read only)."""
        with self._lock:
            return Counters(**vars(self._counters))

    @property
    def command_rate(self) -> float:
        """Commands per simulated second over the last 200."""
        with self._lock:
            stamps = self._counters.recent_commands
            if len(stamps) < 2 or stamps[-1] <= stamps[0]:
                return 0.0
            return (len(stamps) - 1) / (stamps[-1] - stamps[0])

    @property
    def at_rest(self) -> bool:
        """True when the last commands did not move, or none arrives any more."""
        return self.counters.still >= REST_COMMANDS

    def diagnostics(self, node: str) -> dict[str, tuple[int, str, dict[str, str]]]:
        """Return a node's latest rows by name: level (0 OK, 1 warn, 2 error), sentence, values."""
        with self._lock:
            return {
                name.split(': ', 1)[1]: row
                for name, row in self._diagnostics.items()
                if name.startswith(f'{node}: ')
            }

    def complaint(self, node: str) -> str:
        """Return the sentence of the worst row of a node that is not OK, or ''."""
        rows = [row for row in self.diagnostics(node).values() if row[0] > 0 and row[1]]
        return max(rows, key=lambda row: row[0])[1] if rows else ''

    def qos_mismatches(self) -> list[str]:
        """Return 'topic: reason' of every publisher and subscription that cannot talk."""
        found = []
        for topic, _ in self._node.get_topic_names_and_types():
            publishers = self._node.get_publishers_info_by_topic(topic)
            for subscription in self._node.get_subscriptions_info_by_topic(topic):
                for publisher in publishers:
                    compatibility, reason = qos_check_compatible(
                        publisher.qos_profile, subscription.qos_profile
                    )
                    if compatibility == Compatibility.ERROR:
                        found.append(
                            f'{topic}: {publisher.node_name} to {subscription.node_name}: {reason}'
                        )
        return found

    def close(self) -> Recording | None:
        """
        Stop; finish the bag.

        :raises Pi0RosError: when the bag could not be written.
        """
        self._stop.set()
        self._executor.wake()
        self._thread.join(5.0)
        try:
            return self._recorder.close() if self._recorder else None
        finally:
            self._executor.shutdown(timeout_sec=1.0)
            self._node.destroy_node()
            self._context.try_shutdown()

    # -- observer's thread ---------------------------------------------------------------------

    def _spin(self) -> None:
        try:
            while not self._stop.is_set():
                self._executor.spin_once(timeout_sec=0.2)
        except ExternalShutdownException:
            pass

    def _on_clock(self, message: Clock) -> None:
        with self._lock:
            self._clock_ns.append(ns_from_time(message.clock))
            self._clock_wall.append(time.monotonic())
            self._counters.clock = self._clock_ns[-1] / NANOSECONDS

    def _on_command(self, message: JointState) -> None:
        stamp = ns_from_time(message.header.stamp)
        position = np.array(message.position)
        with self._lock:
            c = self._counters
            c.commands += 1
            seconds = stamp / NANOSECONDS
            if c.first_command is None:
                c.first_command = seconds
            c.recent_commands.append(seconds)
            if self._last_command is not None:
                last, before = self._last_command
                elapsed = max(stamp - last, 1) / NANOSECONDS
                moved = before.shape != position.shape or (
                    np.abs(position - before).max(initial=0.0) / elapsed > REST_SPEED
                )
                c.still = 0 if moved else c.still + 1
            self._last_command = (stamp, position)

    def _on_chunk(self, message: JointTrajectory) -> None:
        stamp = ns_from_time(message.header.stamp)
        now = time.monotonic()
        with self._lock:
            c = self._counters
            c.chunks += 1
            c.chunk_wall = now
            if c.first_chunk is None:
                c.first_chunk = c.clock
            index = bisect.bisect_left(self._clock_ns, stamp)
            if index < len(self._clock_ns):
                c.latencies.append(now - self._clock_wall[index])

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        with self._lock:
            for status in message.status:
                level = status.level[0] if isinstance(status.level, bytes) else int(status.level)
                values = {pair.key: pair.value for pair in status.values}
                self._diagnostics[status.name] = (level, status.message, values)

    def _on_reward(self, message: Float32) -> None:
        with self._lock:
            self._counters.reward = message.data
            self._counters.best_reward = max(self._counters.best_reward, message.data)

    def _on_success(self, message: Bool) -> None:
        with self._lock:
            self._counters.success = message.data

    def _on_strict(self, message: Bool) -> None:
        with self._lock:
            self._counters.strict_success = message.data
