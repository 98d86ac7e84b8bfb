# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Normalisation of states and actions, in openpi's and in LeRobot's arithmetic.

            z-score                      back            quantile, r = q99 - q01
openpi      (x - mean) / (std + 1e-6)    y (std + 1e-6)  2 (x - q01) / (r + 1e-6) - 1
LeRobot     (x - mean) / (std + 1e-8)    y std           2 (x - q01) / r - 1   (r = 0: 1e-8)

Nothing is clipped. Statistics longer than the values are cut, dimensions beyond them pass
unchanged when going back (openpi pads its model's output to 32).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pi0_ros.errors import Pi0RosError

MODES = ('zscore', 'quantile', 'identity')
DIALECTS = ('openpi', 'lerobot')
OPENPI_EPS, LEROBOT_EPS = 1e-6, 1e-8

_log = logging.getLogger(__name__)


class StatisticsError(Pi0RosError):
    """Statistics that are absent, misnamed, or do not fit the robot."""


@dataclass(frozen=True, eq=False)
class Normalizer:
    """
    One quantity's statistics and how they are applied.

    :param mode: ``zscore``, ``quantile`` or ``identity``.
    :param dialect: ``openpi`` or ``lerobot``.
    :param offset: float64 [n]: mean, or q01.
    :param spread: float64 [n]: std, or q99 - q01.
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
        :param statistics: ``mean`` and ``std``, ``q01`` and ``q99``: sequences or None.
        :param width: joints of the robot; statistics may be padded beyond (mean 0, std 0 or 1).
        :raises StatisticsError: when they are missing, of another width, or not finite.
        """
        if mode not in MODES or dialect not in DIALECTS:
            raise StatisticsError(f"normalisation '{mode}' in dialect '{dialect}' is not known")
        if mode == 'identity':
            return cls(mode, dialect, np.zeros(0), np.ones(0))
        keys = ('mean', 'std') if mode == 'zscore' else ('q01', 'q99')
        arrays = []
        for key in keys:
            values = statistics.get(key)
            if values is None:
                have = ', '.join(k for k, v in statistics.items() if v is not None) or 'nothing'
                raise StatisticsError(
                    f"statistics of {name} have no '{key}', which {mode} normalisation needs "
                    f'(they have {have})'
                )
            array = np.asarray(values, dtype=np.float64).reshape(-1)
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
            if len(offset) < width or (len(offset) > width and live > width):
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
        if self.mode == 'zscore':
            return spread + LEROBOT_EPS
        return np.where(spread == 0.0, LEROBOT_EPS, spread)

    def _factor(self, spread):
        if self.dialect == 'lerobot' and self.mode == 'zscore':
            return spread
        return self._divisor(spread)


def live_width(statistics: Mapping) -> int:
    """Return how many dimensions are more than padding (mean 0 with std 0 or 1)."""
    mean, std = statistics.get('mean'), statistics.get('std')
    if mean is None or std is None:
        low = statistics.get('q01')
        return len(low) if low is not None else 0
    mean, std = np.asarray(mean, dtype=float), np.asarray(std, dtype=float)
    padding = (mean == 0.0) & ((std == 0.0) | (std == 1.0))
    live = np.flatnonzero(~padding)
    return int(live[-1]) + 1 if len(live) else 0
