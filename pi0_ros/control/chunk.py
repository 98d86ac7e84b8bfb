# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""What a policy predicts from one observation, checked as a whole before any row can be used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

import numpy as np

from pi0_ros.errors import Pi0RosError

MODEL_WIDTH = 32
"""Width of pi0's actions (openpi's ``action_dim``): a robot's joints first, then padding."""


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
    ``seed``, ``image_stamps_ns`` and ``joint_stamps_ns``: the noise's seed and which pictures and
    joint samples the policy saw (see :func:`chunk_label`).
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
    seed: int = 0
    image_stamps_ns: Mapping[str, int] = field(default_factory=dict)
    joint_stamps_ns: tuple[int, ...] = ()

    def __post_init__(self):
        if not isinstance(self.actions, np.ndarray) or self.actions.dtype != np.float32:
            raise ChunkError('actions must be a float32 array; use ActionChunk.of')
        if not self.dt > 0.0:
            raise ChunkError(f'dt is {self.dt} s; rows must be a positive time apart')

    @classmethod
    def of(cls, actions, dof: int, **kwargs) -> ActionChunk:
        """
        Check a policy's output and freeze a copy of it.

        :param actions: array-like [H >= 1, dof] of finite numbers; or [H, 32], as pi0's network
            gives them: what lies beyond the robot's joints is padding, and dropped (B54).
        :param dof: number of joints.
        :raises ChunkError: when anything is wrong with any row; the chunk is refused as a whole.
        """
        try:
            array = np.asarray(actions)
        except (TypeError, ValueError, RuntimeError) as error:  # ragged lists, tensors on a GPU
            raise ChunkError(
                f'the policy returned a {type(actions).__name__} that is no array: {error}'
            ) from None
        if array.dtype.kind not in 'fiu':
            raise ChunkError(
                f'the policy returned a {type(actions).__name__} of dtype {array.dtype}; expected '
                'an array of real numbers'
            )
        if array.ndim == 2 and array.shape[1] == MODEL_WIDTH > dof:
            array = array[:, :dof]
        if array.ndim != 2 or array.shape[0] < 1 or array.shape[1] != dof:
            raise ChunkError(
                f'the policy returned shape {array.shape}; expected (rows >= 1, {dof})'
            )
        with np.errstate(over='ignore'):  # becomes infinite, and is refused as that
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


def chunk_label(chunk: ActionChunk) -> str:
    """
    Return what repeats a chunk's inference, as text for a message's ``frame_id``.

    ``seq=3;seed=0;obs=1000;joints=990+995;cam_high=1000;cam_low=980``: number of the inference,
    seed of its noise, stamp of its observation, stamp of the newest joint sample used of every
    group of joints that comes in one message (in the order of the joints), stamp of every picture
    used. ``frozen=8``, of chunks predicted with guidance: rows kept from the motion before. Times
    are nanoseconds; names of cameras are percent-encoded where they need it.
    """
    parts = [f'seq={chunk.sequence}', f'seed={chunk.seed}', f'obs={chunk.stamp_ns}']
    if chunk.frozen_rows is not None:
        parts.append(f'frozen={chunk.frozen_rows}')
    if chunk.joint_stamps_ns:
        parts.append('joints=' + '+'.join(str(stamp) for stamp in chunk.joint_stamps_ns))
    parts += [f'{quote(n, safe="")}={stamp}' for n, stamp in chunk.image_stamps_ns.items()]
    return ';'.join(parts)


def parse_chunk_label(text: str) -> dict:
    """
    Return what :func:`chunk_label` wrote.

    :return: ``seq`` and ``seed`` int; where the label has them ``obs`` int [ns], ``frozen`` int
        (rows), ``joints`` tuple of int [ns] and, always, ``cameras``: dict name -> int [ns], which
        is empty in labels of older versions.
    :raises ChunkError: for a text that is no such label.
    """
    out: dict = {'cameras': {}}
    try:
        for part in text.split(';'):
            key, value = part.split('=')
            if key == 'joints' and 'joints' not in out:
                out[key] = tuple(int(stamp) for stamp in value.split('+'))
            elif key in ('seq', 'seed', 'obs', 'frozen') and key not in out:
                out[key] = int(value)
            else:
                out['cameras'][unquote(key)] = int(value)
        if 'seq' not in out or 'seed' not in out:
            raise ValueError('number or seed is missing')
    except ValueError:
        raise ChunkError(
            f"'{text}' does not say which inference a chunk is (seq=<number>;seed=<seed>...); it "
            'was not published by policy_node'
        ) from None
    return out


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
