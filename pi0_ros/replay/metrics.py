# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
What replay measures, in bounded memory: errors of chunks, motion, limits, alignment.

Fed by :mod:`pi0_ros.replay.replay` while the bag streams by; NumPy only.
"""

from __future__ import annotations

from collections import Counter, deque

import numpy as np

HORIZONS = (1, 10, 25, 50)
"""Rows of a chunk (counted from 1) at which errors are reported."""

SECOND = 1_000_000_000


class Histogram:
    """Counts values in fixed bins; keeps count, mean, largest, and quantiles to a bin."""

    def __init__(self, step: float, bins: int = 200):
        self.step, self.counts = step, np.zeros(bins + 1, dtype=np.int64)
        self.n, self.total, self.largest = 0, 0.0, 0.0

    def add(self, value: float) -> None:
        self.counts[min(max(int(value / self.step), 0), len(self.counts) - 1)] += 1
        self.n += 1
        self.total += value
        self.largest = max(self.largest, value)

    def quantile(self, q: float) -> float:
        if not self.n:
            return 0.0
        k = int(np.searchsorted(np.cumsum(self.counts), q * self.n))
        return min((k + 1) * self.step, self.largest)

    def as_dict(self, bins: bool = False) -> dict:
        out = {
            'count': self.n,
            'mean': self.total / self.n if self.n else 0.0,
            'p50': self.quantile(0.5),
            'p99': self.quantile(0.99),
            'max': self.largest,
        }
        if bins:
            used = int(np.flatnonzero(self.counts)[-1]) + 1 if self.n else 0
            out['bin'] = self.step
            out['counts'] = self.counts[:used].tolist()
        return out


class Coverage:
    """Messages per stretch of time; stretches double in length so that there are few of them."""

    BINS = 120

    def __init__(self, width: float = 0.5):
        self.width = width  # s
        self.counts: list[int] = []

    def add(self, time_s: float) -> None:
        while time_s >= self.width * self.BINS:
            pairs = [*self.counts, 0] if len(self.counts) % 2 else self.counts
            self.counts = [a + b for a, b in zip(pairs[::2], pairs[1::2])]
            self.width *= 2
        k = max(int(time_s / self.width), 0)
        self.counts += [0] * (k + 1 - len(self.counts))
        self.counts[k] += 1


class Stream:
    """One topic of the bag: how many, how often, how even, how many re-timed."""

    def __init__(self, topic: str, kind: str):
        self.topic, self.kind = topic, kind
        self.count = self.retimed = self.zero_stamps = self.backwards = self.drops = 0
        self.first = self.last = None
        self.previous_stamp: int | None = None
        self.intervals = Histogram(0.001, 2000)
        self._typical = 0.0
        self.coverage = Coverage()
        self.longest_gap, self.gap_at = 0.0, 0.0

    def add(self, received_ns: int, stamp_ns: int, time_s: float) -> None:
        """Count a message that was received ``time_s`` after the bag's start."""
        self.count += 1
        self.coverage.add(time_s)
        if self.first is None:
            self.first = received_ns
        self.zero_stamps += stamp_ns <= 0
        if self.last is not None:
            gap = (received_ns - self.last) / SECOND
            if gap > self.longest_gap:
                self.longest_gap, self.gap_at = gap, (self.last - self.first) / SECOND
        self.last = received_ns
        if stamp_ns > 0:
            if self.previous_stamp is not None:
                interval = (stamp_ns - self.previous_stamp) / SECOND
                if interval < 0:
                    self.backwards += 1
                else:
                    n = self.intervals.n
                    if n in (11, 22, 44) or not n % 100:
                        self._typical = self.intervals.quantile(0.5)
                    if n > 10 and interval > 1.6 * self._typical > 0:
                        self.drops += round(interval / self._typical) - 1
                    self.intervals.add(interval)
            self.previous_stamp = stamp_ns

    def as_dict(self, start_ns: int) -> dict:
        span = (self.last - self.first) / SECOND if self.count > 1 else 0.0
        return {
            'topic': self.topic,
            'type': self.kind,
            'messages': self.count,
            'rate_hz': (self.count - 1) / span if span > 0 else 0.0,
            'start_s': (self.first - start_ns) / SECOND if self.first is not None else None,
            'end_s': (self.last - start_ns) / SECOND if self.last is not None else None,
            'drops': self.drops,
            'longest_gap_s': self.longest_gap,
            'longest_gap_after_s': self.gap_at,
            'zero_stamps': self.zero_stamps,
            'retimed': self.retimed,
            'backwards': self.backwards,
            'coverage': {'bin_s': self.coverage.width, 'counts': self.coverage.counts},
        }


class Series:
    """
    Recorded positions over stamps, a window of the last ``seconds``.

    ``partial``: rows count before every joint is known; NaN stands for those that are not.
    """

    def __init__(self, names, seconds: float, max_gap: float, partial: bool = False):
        self._partial = partial
        self._index = {name: i for i, name in enumerate(names)}
        self._latest = np.full(len(names), np.nan)
        self._window, self._max_gap = seconds * SECOND, max_gap * SECOND
        self.stamps: deque[int] = deque()
        self.values: deque[np.ndarray] = deque()
        self.count = 0

    def add(self, stamp_ns: int, names, positions) -> None:
        if len(names) != len(positions):
            return
        for name, position in zip(names, positions):
            index = self._index.get(name)
            if index is not None:
                self._latest[index] = position
        finite = np.isfinite(self._latest)
        if not (finite.any() if self._partial else finite.all()):
            return
        if self.stamps and stamp_ns < self.stamps[-1] - SECOND:  # the recording began anew
            self.stamps.clear()
            self.values.clear()
        if self.stamps and stamp_ns <= self.stamps[-1]:
            self.values[-1] = self._latest.copy()
            return
        self.count += 1
        self.stamps.append(stamp_ns)
        self.values.append(self._latest.copy())
        while self.stamps[0] < stamp_ns - self._window:
            self.stamps.popleft()
            self.values.popleft()

    @property
    def newest(self) -> int:
        return self.stamps[-1] if self.stamps else -(2**62)

    def at(self, stamps: np.ndarray) -> np.ndarray:
        """Return [len(stamps), dof]; NaN outside and inside of gaps longer than allowed."""
        out = np.full((len(stamps), len(self._latest)), np.nan)
        if not self.stamps:
            return out
        known = np.array(self.stamps, dtype=np.int64)
        values = np.array(self.values)
        after = np.searchsorted(known, stamps, side='left')
        for k, (stamp, right) in enumerate(zip(stamps, after)):
            if right == len(known):
                continue
            if known[right] == stamp:
                out[k] = values[right]
            elif right and known[right] - known[right - 1] <= self._max_gap:
                share = (stamp - known[right - 1]) / (known[right] - known[right - 1])
                out[k] = values[right - 1] + share * (values[right] - values[right - 1])
        return out


class Trace:
    """Rows over time for drawing, thinned evenly so that there are never more than ``kept``."""

    def __init__(self, interval: float = 0.0, kept: int = 4000):
        self.rows: list[tuple] = []
        self._interval, self._kept = interval, kept

    def add(self, time_s: float, *values) -> None:
        if self.rows and 0.0 <= time_s - self.rows[-1][0] < self._interval:
            return
        self.rows.append((time_s, *values))
        if len(self.rows) > self._kept:
            self.rows = self.rows[::2]
            times = [row[0] for row in self.rows]
            self._interval = 0.9 * (times[-1] - times[0]) / (len(times) - 1)


class ChunkErrors:
    """|prediction - recording| by row of the chunk and joint."""

    def __init__(self, dof: int):
        self._dof = dof
        self._sum = np.zeros((0, dof))
        self._max = np.zeros((0, dof))
        self._n = np.zeros((0, dof), dtype=np.int64)

    def add(self, predicted: np.ndarray, recorded: np.ndarray) -> None:
        rows = len(predicted)
        if rows > len(self._sum):
            more = ((0, rows - len(self._sum)), (0, 0))
            self._sum, self._max = np.pad(self._sum, more), np.pad(self._max, more)
            self._n = np.pad(self._n, more)
        error = np.abs(predicted - recorded)
        known = np.isfinite(error)
        error = np.where(known, error, 0.0)
        self._sum[:rows] += error
        self._n[:rows] += known
        self._max[:rows] = np.maximum(self._max[:rows], error)

    def as_dict(self, names) -> dict:
        out = {}
        for horizon in HORIZONS:
            if horizon > len(self._sum) or not self._n[horizon - 1].any():
                continue
            n = np.maximum(self._n[horizon - 1], 1)
            mae = self._sum[horizon - 1] / n
            out[str(horizon)] = {
                'mae': float(mae.mean()),
                'max': float(self._max[horizon - 1].max()),
                'compared': int(self._n[horizon - 1].max()),
                'joints': {
                    name: {'mae': float(m), 'max': float(x)}
                    for name, m, x in zip(names, mae, self._max[horizon - 1])
                },
            }
        return out


class Motion:
    """The open-loop rollout: steps inside of chunks and at seams, jerk, what the filter did."""

    KEPT_EVENTS = 500

    def __init__(self, names, period: float):
        self.names, self._period = names, period
        self.ticks = self.limited_ticks = self.holds = self.seams = 0
        self._last: deque[np.ndarray] = deque(maxlen=4)
        self._sequence: int | None = None
        self.inside, self.at_seams = Histogram(0.0005, 2000), Histogram(0.0005, 2000)
        self._jerk_sum = np.zeros(len(names))
        self._jerk_max = np.zeros(len(names))
        self._jerk_n = 0
        self.hits: dict[tuple[str, str], dict] = {}
        self.events: list[dict] = []
        self.trace = Trace()  # s, raw [dof], sent [dof], joints limited

    def add(self, time_s: float, setpoint, target: np.ndarray, report) -> None:
        self.ticks += 1
        self.holds += setpoint.holding
        if self._last:
            step = float(np.abs(target - self._last[-1]).max())
            if self._sequence is not None and setpoint.sequence != self._sequence:
                self.seams += 1
                self.at_seams.add(step)
            else:
                self.inside.add(step)
        self._sequence = setpoint.sequence
        self._last.append(target)
        if len(self._last) == 4:
            jerk = np.abs(np.diff(np.array(self._last), n=3, axis=0)[0]) / self._period**3
            self._jerk_sum += jerk**2
            self._jerk_max = np.maximum(self._jerk_max, jerk)
            self._jerk_n += 1
        if report:
            self.limited_ticks += 1
        for hit in report.limited:
            self._hit(time_s, hit.joint, hit.bound, hit.requested, hit.sent)
        if report.rejected:
            self._hit(time_s, '', 'rejected', float('nan'), float('nan'))

    def _hit(self, time_s, joint, bound, requested, sent) -> None:
        amount = abs(requested - sent)
        entry = self.hits.setdefault(
            (joint, bound), {'ticks': 0, 'first_s': time_s, 'worst': 0.0, 'worst_s': time_s}
        )
        if entry['ticks'] == 0 or time_s - entry.get('last_s', -1.0) > 1.5 * self._period:
            if len(self.events) < self.KEPT_EVENTS:
                self.events.append(
                    {
                        'time_s': time_s, 'joint': joint, 'bound': bound,
                        'requested': requested, 'sent': sent,
                    }
                )  # fmt: skip
        entry['ticks'] += 1
        entry['last_s'] = time_s
        if amount > entry['worst']:
            entry['worst'], entry['worst_s'] = amount, time_s

    def as_dict(self) -> dict:
        rms = np.sqrt(self._jerk_sum / max(self._jerk_n, 1))
        return {
            'setpoints': self.ticks,
            'held': self.holds,
            'limited_ticks': self.limited_ticks,
            'seams': self.seams,
            'step_inside': self.inside.as_dict(),
            'step_at_seams': self.at_seams.as_dict(),
            'jerk': {
                name: {'rms': float(r), 'max': float(m)}
                for name, r, m in zip(self.names, rms, self._jerk_max)
            },
            'limits': [
                {'joint': joint, 'bound': bound, **{k: v for k, v in e.items() if k != 'last_s'}}
                for (joint, bound), e in sorted(self.hits.items(), key=lambda x: -x[1]['ticks'])
            ],
            'events': self.events,
        }


METRES = 0.07
"""No finger of ALOHA's grippers opens further [m]; a fraction of the opening goes to 1 (B50)."""


class Openings:
    """How far the grippers opened, where the policy takes a fraction of the opening (0..1)."""

    def __init__(self, robot):
        self._names = {
            index: robot.joint_names[index]
            for index, gripper in robot.grippers.items()
            if gripper.policy_space == 'normalized'
        }
        self._ranges = dict.fromkeys(self._names, (np.inf, -np.inf))

    def add(self, state) -> None:
        """Take a state [dof] in the policy's space."""
        for index, (low, high) in self._ranges.items():
            value = float(state[index])
            self._ranges[index] = min(low, value), max(high, value)

    def remarks(self) -> list[str]:
        """Return a sentence for each gripper that moved only as if it were told in metres."""
        return [
            f'{self._names[index]}: its opening goes from {low:.3f} to {high:.3f}, of 0 to 1; '
            "if these are metres, say so in the robot's YAML (measured: unit: m)"
            for index, (low, high) in self._ranges.items()
            if 0.0 <= low and high <= METRES and high - low > 0.1 * METRES
        ]


class Problems:
    """Why an observation was refused, or remarked upon: counts and the first sentence."""

    def __init__(self):
        self.counts: Counter[tuple[str, bool]] = Counter()
        self._first: dict[tuple[str, bool], tuple[float, str]] = {}

    def add(self, time_s: float, problems: dict[str, str], blocked: bool) -> None:
        for name, text in problems.items():
            self.counts[name, blocked] += 1
            self._first.setdefault((name, blocked), (time_s, text))

    def as_list(self) -> list[dict]:
        return [
            {
                'input': name,
                'blocked': blocked,
                'count': count,
                'first_s': self._first[name, blocked][0],
                'text': self._first[name, blocked][1],
            }
            for (name, blocked), count in self.counts.most_common()
        ]
