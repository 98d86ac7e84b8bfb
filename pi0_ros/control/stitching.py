# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
How a new chunk takes over from the one that is being executed.

Every stitcher sees setpoints at ticks, not rows: ``leftover`` is what the old chunk would still
have sent, ``fresh`` what the new one offers, both beginning at the next tick. Where the old chunk
ends it is not padded: zero has no meaning here (field report B40).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pi0_ros.control.chunk import ActionChunk
from pi0_ros.errors import Pi0RosError


class Stitcher(Protocol):
    """Joins two chunks at a tick."""

    wants_guidance: bool
    """True: give the policy the leftover rows, so that it can continue them."""

    def stitch(
        self, last: np.ndarray | None, leftover: np.ndarray, fresh: np.ndarray,
        chunk: ActionChunk, first_row: float, rows_per_tick: float,
    ) -> np.ndarray:  # fmt: skip
        """
        Return the setpoints to send from the next tick on.

        :param last: float64 [dof], setpoint of the last tick; None when nothing is being sent.
        :param leftover: float64 [K >= 0, dof] of the old chunk, K = 0 after running dry.
        :param fresh: float64 [T >= 1, dof] of the new chunk.
        :param chunk: the new chunk; ``first_row`` of it is ``fresh[0]``.
        :return: float64 [T, dof].
        """


@dataclass(frozen=True)
class Switch:
    """The new chunk at once. Seams are as large as the two chunks disagree."""

    wants_guidance = False

    def stitch(self, last, leftover, fresh, chunk, first_row, rows_per_tick):
        return fresh


@dataclass(frozen=True)
class Blend:
    """
    The old chunk fades out, the new one fades in, linearly over ``ticks`` ticks.

    Where the leftover is shorter than that, or the queue had run dry and a setpoint is being held,
    the last known disagreement of old and new fades out instead.
    """

    ticks: int = 20
    wants_guidance = False

    def __post_init__(self):
        if self.ticks < 1:
            raise Pi0RosError(f'blend over {self.ticks} ticks; expected at least 1')

    def stitch(self, last, leftover, fresh, chunk, first_row, rows_per_tick):
        if last is None and not len(leftover):
            return fresh
        count = min(self.ticks, len(fresh))
        overlap = min(len(leftover), count)
        gap = np.empty((count, fresh.shape[1]))  # old minus new
        gap[:overlap] = leftover[:overlap] - fresh[:overlap]
        gap[overlap:] = gap[overlap - 1] if overlap else last - fresh[0]
        weight = np.arange(count, 0, -1)[:, None] / (count + 1)
        stitched = fresh.copy()
        stitched[:count] += weight * gap
        return stitched


@dataclass(frozen=True)
class RealTimeChunking:
    """
    The policy itself continues the old chunk (arXiv 2506.07339); the seam adds nothing.

    The rows that the policy was told to keep are played as they were promised; from there on the
    new chunk is played as it is. A chunk predicted without guidance (the first one, and the first
    after running dry) is blended.
    """

    unguided: Blend = Blend()
    wants_guidance = True

    def stitch(self, last, leftover, fresh, chunk, first_row, rows_per_tick):
        if chunk.frozen_rows is None:
            return self.unguided.stitch(last, leftover, fresh, chunk, first_row, rows_per_tick)
        frozen = int(np.ceil((chunk.frozen_rows - first_row) / rows_per_tick - 1e-6))
        count = min(max(frozen, 0), len(leftover), len(fresh))
        stitched = fresh.copy()
        stitched[:count] = leftover[:count]
        return stitched


STITCHERS = ('switch', 'blend', 'rtc')


def make_stitcher(name: str, blend_ticks: int = 20) -> Stitcher:
    """
    Return a stitcher by name: switch, blend or rtc.

    :raises Pi0RosError: for another name.
    """
    if name not in STITCHERS:
        raise Pi0RosError(f"stitching '{name}' is not known; expected {', '.join(STITCHERS)}")
    if name == 'switch':
        return Switch()
    blend = Blend(blend_ticks)
    return blend if name == 'blend' else RealTimeChunking(blend)


class DelayEstimate:
    """
    How long an inference will take: a high quantile over the last ones.

    The window is bounded, so that one slow call is forgotten; the warm-up is never added (field
    report B41). Owned by one thread; reading ``seconds`` from others is safe.
    """

    def __init__(self, window: int = 20, quantile: float = 0.9):
        self._samples = deque(maxlen=window)
        self._quantile = quantile
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """Take one measured duration [s] into account."""
        self._samples.append(seconds)
        self.seconds = float(np.quantile(self._samples, self._quantile, method='higher'))

    def rows(self, dt: float) -> int:
        """Return the estimate in rows of ``dt`` seconds, rounded up to whole rows."""
        return int(np.ceil(self.seconds / dt - 1e-3))
