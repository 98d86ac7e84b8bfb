# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Joint positions over time, merged by name, read off at the time of a picture.

Used by the buffer alone, under its lock. One :class:`JointTrack` holds the joints that arrive
together in one message; a robot with an arm a topic has one track an arm.
"""

from __future__ import annotations

from collections import deque

import numpy as np

TRACK_LENGTH = 256
"""Samples kept of a track: half a second at the 500 Hz of the fastest drivers."""


class JointTrack:
    """
    Samples of a fixed set of joints, in the order of their stamps.

    :param indices: places of its joints in the state.
    :param turning: bool [dof], joints that turn without end; they are interpolated the short way.
    """

    def __init__(self, indices: tuple[int, ...], turning: np.ndarray):
        self.indices = np.array(indices)
        self._turning = turning[self.indices]
        self.stamps: deque[int] = deque(maxlen=TRACK_LENGTH)
        self.positions: deque[np.ndarray] = deque(maxlen=TRACK_LENGTH)

    def add(self, stamp_ns: int, positions: np.ndarray) -> None:
        self.stamps.append(stamp_ns)
        self.positions.append(positions)

    def clear(self) -> None:
        self.stamps.clear()
        self.positions.clear()

    def drop_after(self, stamp_ns: int) -> None:
        """Forget samples later than a stamp."""
        while self.stamps and self.stamps[-1] > stamp_ns:
            self.stamps.pop()
            self.positions.pop()

    @property
    def newest(self) -> int:
        return self.stamps[-1]

    def at(self, stamp_ns: int, max_gap_ns: int) -> tuple[np.ndarray, int, int]:
        """
        Return the positions at a time, how far [ns] the sample used is from it, and a stamp.

        The stamp is that of the newest sample looked at: no later one would change the positions.

        Between two samples the positions are interpolated, unless these are more than
        ``max_gap_ns`` apart: then, and outside of the samples, the nearest one is taken. The
        caller judges the distance.
        """
        after = len(self.stamps)
        while after and self.stamps[after - 1] >= stamp_ns:  # newest first: a few steps
            after -= 1
        if after == len(self.stamps):
            return self.positions[-1], stamp_ns - self.stamps[-1], self.stamps[-1]
        if self.stamps[after] == stamp_ns or after == 0:
            return self.positions[after], self.stamps[after] - stamp_ns, self.stamps[after]
        left, right = self.stamps[after - 1], self.stamps[after]
        if right - left > max_gap_ns:
            nearest = after if right - stamp_ns < stamp_ns - left else after - 1
            return self.positions[nearest], abs(self.stamps[nearest] - stamp_ns), right
        fraction = (stamp_ns - left) / (right - left)
        low, high = self.positions[after - 1], self.positions[after]
        way = high - low
        if self._turning.any():
            short = (way + np.pi) % (2 * np.pi) - np.pi
            way = np.where(self._turning, short, way)
        return low + fraction * way, 0, right
