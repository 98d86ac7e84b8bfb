# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Normalisation of states and actions, in openpi's and in LeRobot's arithmetic.

            z-score                      back            range r (q99 - q01, max - min, ...)
openpi      (x - mean) / (std + 1e-6)    y (std + 1e-6)  2 (x - low) / (r + 1e-6) - 1
LeRobot     (x - mean) / (std + 1e-8)    y std           2 (x - low) / r - 1   (r = 0: 1e-8)
0.1 to 0.3  the same                     the same        2 (x - low) / (r + 1e-8) - 1, back by r

Nothing is clipped. Statistics longer than the values are cut, dimensions beyond them pass
unchanged when going back (openpi pads its model's output to 32). Statistics of data are made
here too: openpi's of a stream, LeRobot's of episodes that have been summed up one by one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from pi0_ros.errors import Pi0RosError

NEEDS = {
    'zscore': ('mean', 'std'), 'quantile': ('q01', 'q99'), 'min_max': ('min', 'max'),
    'quantile10': ('q10', 'q90'), 'identity': (),
}  # fmt: skip
"""Mode -> the statistics that it uses; all but z-score map a range to [-1, 1]."""
MODES = tuple(NEEDS)
DIALECTS = ('openpi', 'lerobot', 'lerobot_old')
OPENPI_EPS, LEROBOT_EPS = 1e-6, 1e-8

_log = logging.getLogger(__name__)


class StatisticsError(Pi0RosError):
    """Statistics that are absent, misnamed, or do not fit the robot."""


@dataclass(frozen=True, eq=False)
class Normalizer:
    """
    One quantity's statistics and how they are applied.

    :param mode: one of :data:`MODES`.
    :param dialect: ``openpi``, ``lerobot`` (0.4 and later) or ``lerobot_old`` (0.1 to 0.3).
    :param offset: float64 [n]: mean, or the low end of the range.
    :param spread: float64 [n]: std, or the length of the range.
    """

    mode: str
    dialect: str
    offset: np.ndarray
    spread: np.ndarray

    @classmethod
    def from_statistics(
        cls, name: str, statistics: Mapping, mode: str, dialect: str, width: int | None = None
    ) -> Normalizer:
        """
        Check statistics and pick what a mode needs.

        :param name: ``state`` or ``actions``, for messages.
        :param statistics: ``mean`` and ``std``, ``q01`` and ``q99``, ...: sequences or None.
        :param width: joints of the robot; statistics may be padded beyond (mean 0, std 0 or 1).
        :raises StatisticsError: when they are missing, of another width, or not finite.
        """
        if mode not in MODES or dialect not in DIALECTS:
            raise StatisticsError(f"normalisation '{mode}' in dialect '{dialect}' is not known")
        if mode == 'identity':
            return cls(mode, dialect, np.zeros(0), np.ones(0))
        keys, arrays = NEEDS[mode], []
        for key in keys:
            values = statistics.get(key)
            if values is None:
                have = ', '.join(k for k, v in statistics.items() if v is not None) or 'nothing'
                raise StatisticsError(
                    f"statistics of {name} have no '{key}', which {mode} normalisation needs "
                    f'(they have {have})'
                )
            array = _vector(values, f'statistics of {name}: {key}')
            if not np.isfinite(array).all():
                bad = int(np.flatnonzero(~np.isfinite(array))[0])
                raise StatisticsError(f'statistics of {name}: {key}[{bad}] is {array[bad]}')
            arrays.append(array)
        if len(arrays[0]) != len(arrays[1]):
            raise StatisticsError(
                f'statistics of {name}: {keys[0]} has {len(arrays[0])} values, '
                f'{keys[1]} {len(arrays[1])}'
            )
        offset = arrays[0]
        spread = arrays[1] if mode == 'zscore' else arrays[1] - arrays[0]
        if (spread < 0).any():
            bad = int(np.flatnonzero(spread < 0)[0])
            raise StatisticsError(f'statistics of {name}: spread of dimension {bad} is negative')
        if width is not None:
            live = live_width(statistics)
            if len(offset) < width or (len(offset) > width and live != width):
                raise StatisticsError(
                    f'statistics of {name} have {live} dimensions, the robot has {width} joints; '
                    'they belong to another robot'
                )
            offset, spread = offset[:width], spread[:width]
        still = np.flatnonzero(spread == 0.0)
        if len(still):
            _log.warning(
                'statistics of %s: no spread in dimension %s; divided by %g alone there',
                name, ', '.join(map(str, still)),
                OPENPI_EPS if dialect == 'openpi' else LEROBOT_EPS,
            )  # fmt: skip
        return cls(mode, dialect, offset, spread)

    def normalize(self, values) -> np.ndarray:
        """
        Return normalised values [..., n], float64.

        :raises StatisticsError: when there are more values than statistics.
        """
        values = np.asarray(values, dtype=np.float64)
        if self.mode == 'identity':
            return values.copy()
        n = values.shape[-1]
        if n > len(self.offset):
            raise StatisticsError(
                f'{n} values to normalise, statistics have {len(self.offset)} dimensions'
            )
        scaled = (values - self.offset[:n]) / self._divisor(self.spread[:n])
        return scaled if self.mode == 'zscore' else 2.0 * scaled - 1.0

    def unnormalize(self, values) -> np.ndarray:
        """Return values [..., n] in their units, float64; dimensions without statistics pass."""
        values = np.array(values, dtype=np.float64)
        if self.mode == 'identity':
            return values
        n = min(values.shape[-1], len(self.offset))
        spread, offset = self.spread[:n], self.offset[:n]
        scaled = values[..., :n] if self.mode == 'zscore' else (values[..., :n] + 1.0) / 2.0
        values[..., :n] = scaled * self._factor(spread) + offset
        if self.mode == 'zscore' and self.dialect == 'openpi':
            values[..., n:] *= 1.0 + OPENPI_EPS  # openpi pads with mean 0, std 1
        return values

    def _divisor(self, spread):
        if self.dialect == 'openpi':
            return spread + OPENPI_EPS
        if self.mode == 'zscore' or self.dialect == 'lerobot_old':
            return spread + LEROBOT_EPS
        return np.where(spread == 0.0, LEROBOT_EPS, spread)

    def _factor(self, spread):
        if self.dialect == 'lerobot_old' or (self.dialect == 'lerobot' and self.mode == 'zscore'):
            return spread
        return self._divisor(spread)


def live_width(statistics: Mapping) -> int:
    """Return how many dimensions are more than padding (mean 0 with std 0 or 1)."""
    mean, std = statistics.get('mean'), statistics.get('std')
    if mean is None or std is None:
        sizes = [np.size(values) for values in statistics.values() if values is not None]
        return max(sizes, default=0)
    mean, std = _vector(mean, 'mean'), _vector(std, 'std')
    if len(mean) != len(std):
        return max(len(mean), len(std))
    padding = (mean == 0.0) & ((std == 0.0) | (std == 1.0))
    live = np.flatnonzero(~padding)
    return int(live[-1]) + 1 if len(live) else 0


def _vector(values, what: str) -> np.ndarray:
    try:
        return np.asarray(values, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError):
        raise StatisticsError(f'{what} is no list of numbers') from None


# --- making statistics -----------------------------------------------------------------------


class RunningStatistics:
    """
    Mean, std, q01 and q99 of a stream of vectors, as openpi computes its ``norm_stats.json``.

    The quantiles come from a histogram of each dimension (:attr:`BINS` bins, the left edge of the
    bin that reaches the quantile), re-binned whenever the range grows, so they depend on how the
    stream is cut into batches and are up to a bin off.
    """

    BINS = 5000  # openpi's RunningStats
    MARGIN = 1e-10  # on both sides of the first batch's range; openpi's

    def __init__(self):
        self._count = 0

    def update(self, batch) -> None:
        """
        Take in a batch.

        :param batch: float [..., n].
        :raises StatisticsError: for another n than before, an empty batch, or values that are not
            finite.
        """
        batch = np.asarray(batch, dtype=np.float64)
        batch = batch.reshape(-1, batch.shape[-1]) if batch.ndim else batch.reshape(1, 1)
        if not batch.size or not np.isfinite(batch).all():
            raise StatisticsError('a batch for statistics is empty or has values not finite')
        low, high = batch.min(axis=0), batch.max(axis=0)
        mean, square = batch.mean(axis=0), (batch**2).mean(axis=0)
        if self._count == 0:
            self._mean, self._square, self._low, self._high = mean, square, low, high
            self._edges = self._grid(low - self.MARGIN, high + self.MARGIN)
            self._bins = np.zeros((len(low), self.BINS))
        elif batch.shape[1] != len(self._mean):
            raise StatisticsError(
                f'a batch of width {batch.shape[1]} after batches of width {len(self._mean)}'
            )
        elif (low < self._low).any() or (high > self._high).any():
            self._low, self._high = np.minimum(low, self._low), np.maximum(high, self._high)
            edges = self._grid(self._low, self._high)
            for i, (old, new) in enumerate(zip(self._edges, edges)):
                self._bins[i] = np.histogram(old[:-1], bins=new, weights=self._bins[i])[0]
            self._edges = edges
        self._count += len(batch)
        share = len(batch) / self._count
        self._mean = self._mean + (mean - self._mean) * share
        self._square = self._square + (square - self._square) * share
        for i, edges in enumerate(self._edges):
            self._bins[i] += np.histogram(batch[:, i], bins=edges)[0]

    def result(self) -> dict[str, np.ndarray]:
        """
        Return ``mean``, ``std``, ``q01`` and ``q99``, float64 [n] each.

        :raises StatisticsError: with fewer than two vectors.
        """
        if self._count < 2:
            raise StatisticsError(f'statistics of {self._count} vectors; at least 2 are needed')
        std = np.sqrt(np.maximum(0.0, self._square - self._mean**2))
        found = {'mean': self._mean.copy(), 'std': std}
        sums = np.cumsum(self._bins, axis=1)
        for key, quantile in (('q01', 0.01), ('q99', 0.99)):
            target = quantile * self._count
            found[key] = np.array([
                edges[np.searchsorted(total, target)] for total, edges in zip(sums, self._edges)
            ])  # fmt: skip
        return found

    def _grid(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        return np.stack([np.linspace(a, b, self.BINS + 1) for a, b in zip(low, high)])


def aggregate_episode_stats(rows: Iterable[Mapping]) -> dict[str, dict[str, np.ndarray]]:
    """
    Return the statistics of a data set from those of its episodes, as LeRobot aggregates them.

    Means are weighted by the number of frames, variances pooled (within and between episodes),
    minima and maxima taken over all, quantiles weighted like means (LeRobot's approximation).

    :param rows: of ``episodes_stats.jsonl``: ``{"episode_index": i, "stats": {feature: {"mean",
        "std", "min", "max", "count", "q01", ...}}}``, or those ``stats`` alone.
    :return: feature -> statistic -> float64 array; ``count`` int64 [1].
    :raises StatisticsError: no rows, a statistic missing, other shapes than in other rows.
    """
    by_feature: dict[str, list[tuple[str, Mapping]]] = {}
    for number, row in enumerate(rows):
        stats = row.get('stats', row) if isinstance(row, Mapping) else None
        if not isinstance(stats, Mapping):
            raise StatisticsError(f'row {number} of the episodes holds no statistics')
        where = f'episode {row.get("episode_index", number)}'
        for feature, values in stats.items():
            if isinstance(values, Mapping):
                by_feature.setdefault(feature, []).append((where, values))
    if not by_feature:
        raise StatisticsError('there are no statistics of episodes to aggregate')
    return {feature: _pooled(feature, found) for feature, found in by_feature.items()}


def _pooled(feature: str, found: list[tuple[str, Mapping]]) -> dict[str, np.ndarray]:
    def stacked(key: str) -> np.ndarray:
        arrays = []
        for where, values in found:
            if values.get(key) is None:
                have = ', '.join(values) or 'nothing'
                raise StatisticsError(
                    f"{where}: statistics of '{feature}' have no '{key}' (they have {have})"
                )
            try:
                arrays.append(np.asarray(values[key], dtype=np.float64))
            except (TypeError, ValueError):
                raise StatisticsError(f'{where}: {key} of {feature} holds no numbers') from None
            if arrays[-1].shape != arrays[0].shape:
                raise StatisticsError(
                    f"{where}: {key} of '{feature}' has shape {arrays[-1].shape}, before it was "
                    f'{arrays[0].shape}'
                )
            if not np.isfinite(arrays[-1]).all():
                raise StatisticsError(f"{where}: {key} of '{feature}' is not finite")
        return np.stack(arrays)

    mean, std = stacked('mean'), stacked('std')
    count = stacked('count').reshape(len(found), -1)[:, 0]
    if (count <= 0).any():
        raise StatisticsError(f"{found[int(np.argmin(count))][0]} has no frames of '{feature}'")
    share = (count / count.sum()).reshape(-1, *[1] * (mean.ndim - 1))
    total = (mean * share).sum(axis=0)
    pooled = {
        'mean': total, 'std': np.sqrt(((std**2 + (mean - total) ** 2) * share).sum(axis=0)),
        'count': np.array([int(count.sum())]),
    }  # fmt: skip
    for key, reduce in (('min', np.min), ('max', np.max)):
        if all(values.get(key) is not None for _, values in found):
            pooled[key] = reduce(stacked(key), axis=0)
    for key in found[0][1]:
        if key[:1] == 'q' and key[1:].isdigit() and all(key in values for _, values in found):
            pooled[key] = (stacked(key) * share).sum(axis=0)
    return pooled
