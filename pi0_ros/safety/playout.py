# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Plays setpoints when they are due, on the filter's own clock, as a media player does.

Setpoints come a little ahead of time and unevenly. Their spacing is taken from the differences of
their due times, their place in time from the earliest arrivals of the last seconds: so two
machines' clocks may differ, and a late message does not delay the others.

Rules. A setpoint that arrives after it was due is not replayed; it only serves as the left
neighbour of the next. Of two with the same due time the first counts. One that is earlier than the
last received is put in its place while that is still ahead, else dropped. A sender whose time
leaps by more than ``LEAP_S`` begins anew; what was queued is dropped. Between neighbours farther
apart than ``max_gap`` nothing is interpolated: the earlier one holds until the later is due. One
that a joint could not go to and come back from in time, while its neighbours agree, is a spike: it
is dropped as soon as its successor shows that.
"""

from __future__ import annotations

import bisect
import math
from collections import deque
from dataclasses import dataclass

import numpy as np

LEAP_S = 0.5
"""A due time this far from where it belongs is another clock, not a late message."""

ANCHOR_WINDOW_S = 2.0
"""How long an early arrival sets the anchor; clocks of two machines drift apart slowly."""

HASTY_SHARE = 8
"""One message in so many may come early (a new chunk's first does) without moving the anchor."""

SLEW = 0.01
"""Largest share by which the anchor may bend time; steps stay within one per cent of even."""

TURN = 2.0 * math.pi

QUEUE_LENGTH = 256
"""Setpoints kept: five seconds at 50 Hz; a lead is two ticks."""


@dataclass(frozen=True)
class Sample:
    """Where to be: position and velocity [dof], and whether a setpoint lies ahead of now."""

    position: np.ndarray
    velocity: np.ndarray
    ahead: bool


class Playout:
    """
    One stream of setpoints.

    Not thread-safe. ``now`` is seconds on the owner's clock, in every call.

    :param lead: seconds that setpoints are sent ahead of their due time.
    :param max_gap: seconds between neighbours beyond which nothing is interpolated.
    :param fastest: float [dof], speed limits, by which spikes are told from motion.
    :param continuous: bool [dof]: joints whose setpoints are an angle, whatever the turn.
    """

    def __init__(
        self,
        lead: float,
        max_gap: float,
        fastest: np.ndarray | float = math.inf,
        continuous: np.ndarray | None = None,
    ):
        self._lead, self._max_gap, self._fastest = float(lead), float(max_gap), fastest
        self._turning = continuous if continuous is not None and continuous.any() else None
        self.counters = {
            'late': 0, 'duplicate': 0, 'out of order': 0, 'after a time leap': 0,
            'dropped as spikes': 0,
        }  # fmt: skip
        self.flush()

    def flush(self) -> None:
        """Forget every setpoint and the anchor."""
        self._dues: deque[float] = deque(maxlen=QUEUE_LENGTH)
        self._positions: deque[np.ndarray] = deque(maxlen=QUEUE_LENGTH)
        self._offsets: deque[tuple[float, float]] = deque(maxlen=QUEUE_LENGTH)
        self._offset = math.nan  # own time of playing minus due time
        self._moved = math.nan  # when the offset was last moved

    def add(self, now: float, due: float | None, position: np.ndarray) -> bool:
        """
        Queue a setpoint.

        :param due: when it is due, in the SENDER's seconds; None: unstamped, due on arrival.
        :return: whether it is newer than all before it.
        """
        if due is None:
            # As if sent with the usual lead: an unstamped sender is played at its own pace.
            due = now + self._lead - (self._offset if self._dues else 0.0)
            if not self._dues:
                self._offset, self._moved = 0.0, now
        arrival = now - due + self._lead  # the anchor that this message alone would give
        if not self._dues or math.isnan(self._offset):
            self._offset, self._moved = arrival, now
        elif abs(arrival - self._offset) > LEAP_S:
            self.counters['after a time leap'] += 1
            self.flush()
            self._offset, self._moved = arrival, now
        self._offsets.append((now, arrival))
        if self._turning is not None and self._positions:
            turns = np.round((self._positions[-1] - position)[self._turning] / TURN)
            position = position.copy()
            position[self._turning] += TURN * turns
        if self._dues and due <= self._dues[-1]:
            if due in self._dues:
                self.counters['duplicate'] += 1
                return False
            self.counters['out of order'] += 1
            if due + self._offset <= now:
                return False
            place = bisect.bisect_left(self._dues, due)
            dues, positions = list(self._dues), list(self._positions)
            dues.insert(place, due)
            positions.insert(place, position)
            self._dues = deque(dues, maxlen=QUEUE_LENGTH)
            self._positions = deque(positions, maxlen=QUEUE_LENGTH)
            return False
        if due + self._offset < now:
            self.counters['late'] += 1
        self._dues.append(due)
        self._positions.append(position)
        if len(self._dues) > 2 and self._last_but_one_is_a_spike():
            self.counters['dropped as spikes'] += 1
            del self._dues[-2], self._positions[-2]
        return True

    def sample(self, now: float) -> Sample | None:
        """Return where to be at ``now``; None before the first setpoint is due."""
        if not self._dues:
            return None
        self._move_anchor(now)
        at = now - self._offset  # now, in the sender's time
        while len(self._dues) > 1 and self._dues[1] <= at:
            self._dues.popleft()
            self._positions.popleft()
        if self._dues[0] > at + 1e-9:
            return None
        left = self._positions[0]
        if len(self._dues) == 1:
            return Sample(left, np.zeros_like(left), ahead=False)
        span = self._dues[1] - self._dues[0]
        if span > self._max_gap:
            return Sample(left, np.zeros_like(left), ahead=True)
        velocity = (self._positions[1] - left) / span
        return Sample(left + velocity * max(at - self._dues[0], 0.0), velocity, ahead=True)

    def _last_but_one_is_a_spike(self) -> bool:
        (a, b, c), (t_a, t_b, t_c) = (
            [queue[i] for i in (-3, -2, -1)] for queue in (self._positions, self._dues)
        )
        there = np.abs(b - a) > self._fastest * (t_b - t_a)
        back = np.abs(c - b) > self._fastest * (t_c - t_b)
        if not (there & back).any():
            return False
        return bool((np.abs(c - a) <= self._fastest * (t_c - t_a)).all())

    def _move_anchor(self, now: float) -> None:
        """Bend the anchor towards the earliest arrival of the window, a little each tick."""
        while len(self._offsets) > 1 and now - self._offsets[0][0] > ANCHOR_WINDOW_S:
            self._offsets.popleft()
        offsets = sorted(offset for _, offset in self._offsets)
        wanted = offsets[len(offsets) // HASTY_SHARE]
        room = SLEW * max(now - self._moved, 0.0)
        self._offset += min(max(wanted - self._offset, -room), room)
        self._moved = now
