# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Chunks in, one setpoint a tick out, each with the time at which it is due.

Times are seconds of the caller's tick clock (steady when live, ``/clock`` when simulated) and are
always passed in; nothing here reads a clock, sleeps or imports ROS.

Rows and time. Setpoints are due ``1 / control_rate`` apart and are handed out ``lead`` ahead. Row
0 of a chunk replaces the first setpoint due after the observation that it was predicted from, so a
chunk starts at the row given by how many rows of the previous motion have been sent with a due
time after that observation. They are counted from what was really sent: standing still, at start
or after running dry, skips nothing. The count may be a fraction of a row, because cameras do not
run in step with the ticks; setpoints in between are then interpolated, as they are when
``policy_rate`` differs from ``control_rate``.

Haste. The first setpoint of a new chunk is handed out at once, up to one tick earlier than usual;
the tick of its slot then finds it sent. There is one setpoint a slot as ever, in the same order.
At most one setpoint in ``HASTE_EVERY`` may do so: the safety filter reads the sender's time from
the earliest arrivals, and leaves that many out of account. In simulated time there is no hurry: a
simulator in lock step waits for one setpoint a tick.

Holding. When a chunk is used up before the next one arrives, the last setpoint is repeated every
tick (the arm stands, the stream lives), and the next chunk starts from there. ``clear`` ends the
stream: nothing is handed out until a new chunk arrives.

Stalls. A caller that comes late by up to ``lead`` gets every setpoint that it missed at once, due
at even times. When it is later than that, rows are neither skipped nor sent in the past: due times
move on to ``now + lead``, and the arm pauses instead of jumping: the last setpoint is repeated
once, as the place where motion begins again.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from dataclasses import dataclass

import numpy as np

from pi0_ros.control.chunk import ActionChunk, at_rows, resample
from pi0_ros.control.stitching import Stitcher
from pi0_ros.errors import Pi0RosError

HISTORY_S = 10.0
"""How far back sent setpoints are remembered; an inference slower than this skips too little."""

HASTE_EVERY = 10
"""Setpoints from one that is handed out early to the next that may be, at least."""

TOLERANCE_S = 1e-6
"""Resolution of times: a float holds seconds since 1970 to a quarter of a microsecond."""


@dataclass(frozen=True)
class Setpoint:
    """
    One row on its way: ``positions`` float64 [dof] in policy units, due at ``due`` [s].

    ``sequence`` and ``row`` say where it comes from; ``holding``: a repetition, the queue is dry.
    """

    due: float
    positions: np.ndarray
    sequence: int
    row: float
    holding: bool = False


@dataclass(frozen=True)
class Status:
    """Counters since construction, and the present state, for diagnostics."""

    state: str  # 'idle' | 'executing' | 'dry'
    sequence: int
    row: float
    setpoints_left: int
    chunk_age: float  # s since the observation of the chunk in execution
    setpoints: int
    holds: int
    dry_runs: int
    chunks: int
    chunks_expired: int
    rows_skipped: float
    last_skip: float
    ticks_late: int
    stalls: int
    worst_late: float  # s


class ChunkExecutor:
    """
    Owns the queue of setpoints. Every method may be called from any thread and returns at once.

    :param dof: joints.
    :param control_rate: setpoints per second [Hz].
    :param policy_rate: rows of a chunk per second [Hz].
    :param stitcher: joins a new chunk to the old one.
    :param execution_horizon: rows of a chunk, counted from its observation, after which the next
        chunk should be there.
    :param lead: how far ahead of its due time a setpoint is handed out [s].
    :param haste: whether a new chunk's first setpoint is handed out before its tick.
    """

    def __init__(
        self, dof: int, control_rate: float, policy_rate: float, stitcher: Stitcher,
        execution_horizon: int = 25, lead: float | None = None, haste: bool = True,
    ):  # fmt: skip
        if not (control_rate > 0.0 and policy_rate > 0.0):
            raise Pi0RosError(f'rates {control_rate} and {policy_rate} Hz must be positive')
        self.dof = dof
        self.period = 1.0 / control_rate
        self.row_dt = 1.0 / policy_rate
        self.rows_per_tick = self.period / self.row_dt
        self.lead = 2 * self.period if lead is None else lead
        self.execution_horizon = execution_horizon
        self._hurries = haste
        self.stitcher = stitcher
        self._lock = threading.Lock()
        self._sent: deque[Setpoint] = deque(maxlen=math.ceil(HISTORY_S * control_rate))
        self._counts = dict.fromkeys(
            ('setpoints', 'holds', 'dry_runs', 'chunks', 'chunks_expired', 'ticks_late', 'stalls'),
            0,
        )
        self._rows_skipped = self._last_skip = self._worst_late = 0.0
        self._last_sequence = -1
        self._reset()

    def _reset(self) -> None:
        self._plan = np.empty((0, self.dof))
        self._cursor = 0
        self._chunk: ActionChunk | None = None
        self._first_row = 0.0
        self._anchor: float | None = None  # due time of tick 0; None: no stream
        self._tick = 0
        self._haste = False  # the next setpoint is a new chunk's first
        self._since_haste = 0
        self._dry = False  # the last setpoint repeated the one before for want of rows
        self._sent.clear()

    # -- chunks ---------------------------------------------------------------------------------
    def install(self, chunk: ActionChunk, now: float) -> bool:
        """
        Let a chunk take over from the next tick on.

        :return: False when it is older than the present one or all of its rows have passed.
        """
        with self._lock:
            if chunk.sequence <= self._last_sequence:
                return False
            skip = self._rows_since(chunk.observed_at)
            fresh = resample(chunk.actions, skip, self.rows_per_tick)
            if not len(fresh):
                self._counts['chunks_expired'] += 1
                return False
            last = self._sent[-1].positions if self._sent else None
            self._plan = self.stitcher.stitch(
                last, self._plan[self._cursor :], fresh, chunk, skip, self.rows_per_tick
            )
            self._cursor, self._chunk, self._first_row = 0, chunk, skip
            self._last_sequence = chunk.sequence
            self._counts['chunks'] += 1
            self._rows_skipped += skip
            self._last_skip = skip
            if self._anchor is None:
                self._anchor, self._tick = now + self.lead, 0
            else:
                self._haste = self._hurries and self._since_haste >= HASTE_EVERY
            return True

    def clear(self) -> None:
        """End the stream and forget what was sent (a fault, a reset, a jump of the clock)."""
        with self._lock:
            self._reset()

    def wants_chunk(self, expected_inference: float = 0.0) -> bool:
        """
        Return whether the next inference should start now.

        :param expected_inference: how long it will probably take [s].
        """
        with self._lock:
            if self._chunk is None or self._cursor >= len(self._plan):
                return True
            horizon = min(self.execution_horizon, len(self._chunk))
            return self._next_row() + expected_inference / self.row_dt >= horizon - 1e-6

    def upcoming(self, observed_at: float) -> np.ndarray:
        """
        Return the present motion as a new chunk's rows would see it, for real-time chunking.

        :param observed_at: time of the new chunk's observation [s].
        :return: float64 [K, dof], row i is where the motion stands ``i + 1`` rows after the
            observation, pauses left out as they are when rows are skipped; K = 0 without motion.
        """
        with self._lock:
            left = self._plan[self._cursor :]
            if not len(left):
                return np.empty((0, self.dof))
            before = [s for s in self._sent if s.due <= observed_at]
            after = [s for s in list(self._sent)[len(before) :] if not s.holding]
            start = before[-1:] or after[:1]
            base = start[0].positions if start else left[0]
            motion = np.vstack([base[None], *(s.positions[None] for s in after), left])
            # rows since the observation at which each of these is reached
            begun = self._rows_since(observed_at) - len(after) * self.rows_per_tick
            reached = begun + self.rows_per_tick * np.arange(len(motion))
            wanted = np.arange(1, int(np.floor(reached[-1] + 1e-6)) + 1)
            return at_rows(motion, np.interp(wanted, reached, np.arange(len(motion))))

    def delay_rows(self, observed_at: float, expected_inference: float) -> int:
        """Return how many rows will have been sent when an inference begun now is done."""
        with self._lock:
            sent = self._rows_since(observed_at)
        return math.ceil(sent + expected_inference / self.row_dt - 1e-3)

    # -- setpoints ------------------------------------------------------------------------------
    def poll(self, now: float) -> list[Setpoint]:
        """
        Return the setpoints to send now.

        :param now: the time [s].
        :return: those due within ``lead`` and not yet handed out; else the first of a new chunk.
        """
        with self._lock:
            if self._anchor is None:
                return []
            out = []
            late = now - (self._due(self._tick) - self.lead)
            if late > self.period / 2:
                self._counts['ticks_late'] += 1
            self._worst_late = max(self._worst_late, late)
            if late > self.lead + TOLERANCE_S and late > self.period:
                self._counts['stalls'] += 1
                self._anchor, self._tick = now + self.lead, 0
                if self._sent:
                    out.append(self._repeated())
            while self._due(self._tick) - self.lead <= now + TOLERANCE_S:
                out.append(self._next_setpoint())
            if self._haste:
                self._haste = False
                if not out and late > -self.period - TOLERANCE_S:  # its slot is the next one
                    out.append(self._next_setpoint())
                    self._since_haste = 0
            return out

    def next_poll(self) -> float | None:
        """Return when ``poll`` has something to hand out [s]; None: not before a chunk comes."""
        with self._lock:
            return None if self._anchor is None else self._due(self._tick) - self.lead

    def status(self, now: float) -> Status:
        with self._lock:
            chunk = self._chunk
            left = len(self._plan) - self._cursor
            return Status(
                state='idle' if self._anchor is None else 'executing' if left else 'dry',
                sequence=chunk.sequence if chunk else -1,
                row=self._next_row() if chunk else 0.0,
                setpoints_left=left,
                chunk_age=now - chunk.observed_at if chunk else 0.0,
                rows_skipped=self._rows_skipped,
                last_skip=self._last_skip,
                worst_late=self._worst_late,
                **self._counts,
            )

    # -- private, with the lock held --------------------------------------------------------------
    def _due(self, tick: int) -> float:
        return self._anchor + tick * self.period

    def _next_row(self) -> float:
        return self._first_row + self._cursor * self.rows_per_tick

    def _rows_since(self, observed_at: float) -> float:
        rows = 0.0
        for setpoint in reversed(self._sent):
            part = min(setpoint.due - observed_at, self.period)
            if part <= 0.0:
                break
            if not setpoint.holding:
                rows += part / self.row_dt
        return rows

    def _next_setpoint(self) -> Setpoint:
        if self._cursor >= len(self._plan):
            self._counts['dry_runs'] += not self._dry
            self._dry = True
            return self._repeated()
        self._dry = False
        row = self._next_row()
        self._cursor += 1
        return self._put(self._plan[self._cursor - 1], self._chunk.sequence, row)

    def _repeated(self) -> Setpoint:
        last = self._sent[-1]
        self._counts['holds'] += 1
        return self._put(last.positions, last.sequence, last.row, holding=True)

    def _put(self, positions, sequence: int, row: float, holding: bool = False) -> Setpoint:
        setpoint = Setpoint(self._due(self._tick), positions, sequence, row, holding)
        self._tick += 1
        self._counts['setpoints'] += 1
        self._since_haste += 1
        self._sent.append(setpoint)
        return setpoint
