# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
The one place that knows whether time is live or simulated.

Live: ticks and ages run on the steady clock, ROS time appears in stamps only, so that a step of
the system clock changes no tick. Simulated (``use_sim_time``): ticks and ages follow ``/clock``.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from rclpy.clock import Clock, ClockType, JumpThreshold
from rclpy.duration import Duration

NANOSECONDS = 1_000_000_000


class NodeClock:
    """Time of one node. Every method may be called from any thread and returns at once."""

    def __init__(self, node):
        self._node = node
        self._steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._jump_handles = []
        self.simulated = bool(node.get_parameter('use_sim_time').value)

    @property
    def seen(self) -> bool:
        """False as long as simulated time has not started (no ``/clock`` yet)."""
        return not self.simulated or self.now_ns() > 0

    def now_ns(self) -> int:
        """Return ROS time [ns], for stamps."""
        return self._node.get_clock().now().nanoseconds

    def seconds(self) -> float:
        """Return the time [s] for ticks and ages: steady when live, ``/clock`` when simulated."""
        return self.now_ns() / NANOSECONDS if self.simulated else time.monotonic()

    @staticmethod
    def wall() -> float:
        """Return the steady wall time [s], for guards against a ``/clock`` that stands still."""
        return time.monotonic()

    def create_timer(self, period: float, callback: Callable[[], None], group=None):
        """Call back every ``period`` seconds of this clock."""
        clock = self._node.get_clock() if self.simulated else self._steady
        return self._node.create_timer(period, callback, callback_group=group, clock=clock)

    def create_wall_timer(self, period: float, callback: Callable[[], None], group=None):
        """Call back every ``period`` seconds of wall time, whatever ``/clock`` does."""
        return self._node.create_timer(
            period, callback, callback_group=group, clock=self._steady
        )

    def on_jump_back(self, callback: Callable[[float], None]) -> None:
        """Call back with the size [s, negative] of every backward jump of simulated time."""
        if not self.simulated:
            return
        threshold = JumpThreshold(
            min_forward=None, min_backward=Duration(nanoseconds=-1), on_clock_change=False
        )
        self._jump_handles.append(
            self._node.get_clock().create_jump_callback(
                threshold,
                post_callback=lambda jump: callback(jump.delta.nanoseconds / NANOSECONDS),
            )
        )
