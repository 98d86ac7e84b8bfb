# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""What a policy predicts from one observation, checked as a whole before any row can be used."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pi0_ros.errors import Pi0RosError


class ChunkError(Pi0RosError):
    """A prediction that must not reach the arm, not even in part (field report B47)."""


@dataclass(frozen=True)
class ActionChunk:
    """
    One prediction: ``actions`` float32 [H, dof], read-only, in the robot's action space.

    Row i is due ``(i + 1) * dt`` seconds after the observation: it replaces the first setpoint due
    after the moment that the policy saw. ``stamp_ns`` is the observation's stamp (ROS time),
    ``observed_at`` the same moment on the clock of the ticks [s]. ``frozen_rows``: rows at the
    head that the policy was told to keep from its previous chunk (real-time chunking).
    """

    actions: np.ndarray
    stamp_ns: int = 0
    observed_at: float = 0.0
    prompt: str = ''
    sequence: int = 0
    epoch: int = 0
    dt: float = 0.02
    inference_s: float = 0.0
    frozen_rows: int | None = None

    def __post_init__(self):
        if not isinstance(self.actions, np.ndarray) or self.actions.dtype != np.float32:
            raise ChunkError('actions must be a float32 array; use ActionChunk.of')
        if not self.dt > 0.0:
            raise ChunkError(f'dt is {self.dt} s; rows must be a positive time apart')

    @classmethod
    def of(cls, actions, dof: int, **kwargs) -> ActionChunk:
        """
        Check a policy's output and freeze a copy of it.

        :param actions: array-like [H >= 1, dof] of finite numbers.
        :param dof: number of joints.
        :raises ChunkError: when anything is wrong with any row; the chunk is refused as a whole.
        """
        array = np.asarray(actions)
        if array.dtype.kind not in 'fiu':
            raise ChunkError(f'the policy returned dtype {array.dtype}; expected real numbers')
        if array.ndim != 2 or array.shape[0] < 1 or array.shape[1] != dof:
            raise ChunkError(
                f'the policy returned shape {array.shape}; expected (rows >= 1, {dof})'
            )
        array = np.array(array, dtype=np.float32, order='C')
        bad = np.argwhere(~np.isfinite(array))
        if len(bad):
            row, column = bad[0]
            raise ChunkError(
                f'the policy returned {array[row, column]} at row {row}, joint {column} '
                f'({len(bad)} such values); the chunk is refused as a whole'
            )
        array.flags.writeable = False
        return cls(actions=array, **kwargs)

    def __len__(self) -> int:
        return len(self.actions)

    @property
    def duration(self) -> float:
        """Time [s] from the observation to the last row."""
        return len(self.actions) * self.dt


def resample(actions: np.ndarray, start: float, step: float) -> np.ndarray:
    """
    Return setpoints at rows start, start + step, ... up to the last row, linear in between.

    :param actions: [H, dof].
    :param start: first row, may be fractional; beyond the last row nothing is left.
    :param step: rows per setpoint, policy rate over control rate.
    :return: float64 [T, dof]; with whole ``start`` and ``step`` the rows themselves.
    """
    last = len(actions) - 1
    count = int(np.floor((last - start) / step + 1e-6)) + 1 if start <= last + 1e-6 else 0
    rows = np.minimum(start + step * np.arange(max(count, 0)), last)
    return at_rows(actions, rows)


def at_rows(actions: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return float64 [T, dof]: ``actions`` at fractional ``rows`` in [0, H-1], linear."""
    whole = np.floor(rows + 1e-6).astype(int)
    fraction = rows - whole
    fraction[np.abs(fraction) < 1e-6] = 0.0
    after = np.minimum(whole + 1, len(actions) - 1)
    actions = np.asarray(actions, dtype=np.float64)
    return actions[whole] + fraction[:, None] * (actions[after] - actions[whole])
