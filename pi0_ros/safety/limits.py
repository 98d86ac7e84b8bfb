# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Joint limits: position, velocity, acceleration, jerk, checked once, before anything moves."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pi0_ros.errors import Pi0RosError

_RATES = ('velocity', 'acceleration', 'jerk')


class LimitsError(Pi0RosError):
    """Limits that cannot be kept; names joint, bound and value."""


@dataclass(frozen=True, eq=False)
class Limits:
    """
    The limits of a robot's joints, in command units (rad, or m for grippers in metres).

    :param names: one a joint, all different.
    :param lower: float [dof], and ``upper``: positions.
    :param velocity: float [dof] per s; ``acceleration`` per s^2; ``jerk`` per s^3, all above zero.
    :param continuous: bool [dof]: joints that turn without end; their positions are not bounded
        and targets are taken the short way round. None: none of them.
    :raises LimitsError: on the first joint whose limits make no sense.
    """

    names: tuple[str, ...]
    lower: np.ndarray
    upper: np.ndarray
    velocity: np.ndarray
    acceleration: np.ndarray
    jerk: np.ndarray
    continuous: np.ndarray | None = None

    def __post_init__(self):
        names = tuple(self.names)
        if not names or len(set(names)) < len(names):
            raise LimitsError(f'joint names {list(names)} are empty or not all different')
        object.__setattr__(self, 'names', names)
        for bound in ('lower', 'upper', *_RATES):
            values = np.array(getattr(self, bound), dtype=np.float64)
            if values.shape != (len(names),):
                raise LimitsError(
                    f'{bound} has {values.size} values for {len(names)} joints '
                    f'({", ".join(names)}); every joint needs limits'
                )
            for name, value in zip(names, values):
                if not math.isfinite(value):
                    raise LimitsError(f'{name}: {bound} limit is {value}; give a finite number')
                if bound in _RATES and value <= 0.0:
                    raise LimitsError(f'{name}: {bound} limit is {value}; give one above zero')
            values.flags.writeable = False
            object.__setattr__(self, bound, values)
        turning = np.zeros(len(names), bool) if self.continuous is None else self.continuous
        turning = np.array(turning, dtype=bool)
        if turning.shape != (len(names),):
            raise LimitsError(f'continuous has {turning.size} values for {len(names)} joints')
        object.__setattr__(self, 'continuous', turning)
        for name, low, high, free in zip(names, self.lower, self.upper, turning):
            if low >= high and not free:
                raise LimitsError(f'{name}: lower limit {low} is not below upper limit {high}')

    @classmethod
    def from_robot(cls, robot) -> Limits:
        """Return the limits that a ``RobotSpec`` gives, in its order."""
        joints = robot.joints
        columns = {
            bound: [getattr(joint, bound) for joint in joints]
            for bound in ('lower', 'upper', *_RATES, 'continuous')
        }
        return cls(names=robot.joint_names, **columns)

    @property
    def dof(self) -> int:
        return len(self.names)

    def narrowed_by_urdf(self, xml: str, prefixes: Sequence[str] = ('',)) -> Limits:
        """
        Return limits narrowed to a URDF's; what the URDF allows beyond them is not taken.

        :param xml: text of ``robot_description``.
        :param prefixes: of this robot's names, which a URDF of one arm does not have:
            ``left/waist`` is looked for as it is, then as ``waist``.
        :raises LimitsError: when the text is no URDF, it has less than half of our joints, or a
            joint is left with no room.
        """
        bounds = _urdf_limits(xml)
        new = {b: getattr(self, b).copy() for b in ('lower', 'upper', 'velocity')}
        found = 0
        for i, name in enumerate(self.names):
            bare = [name[len(p) :] for p in prefixes if p and name.startswith(p)]
            entry = next((bounds[n] for n in (name, *bare) if n in bounds), None)
            if entry is None:
                continue
            found += 1
            low, high, speed = entry
            new['lower'][i] = max(new['lower'][i], low)
            new['upper'][i] = min(new['upper'][i], high)
            new['velocity'][i] = min(new['velocity'][i], speed)
            if new['lower'][i] >= new['upper'][i]:
                raise LimitsError(
                    f'{name}: robot_description allows {low}..{high}, the robot file '
                    f'{self.lower[i]}..{self.upper[i]}; nothing is left'
                )
        if 2 * found < len(self.names):  # a gripper is called 'gripper' everywhere
            raise LimitsError(
                f'robot_description has {found or "none"} of the joints {", ".join(self.names)} '
                f'(it has {", ".join(bounds) or "no joint with limits"}); give the URDF of this '
                'robot'
            )
        return Limits(
            self.names, **new, acceleration=self.acceleration, jerk=self.jerk,
            continuous=self.continuous,
        )  # fmt: skip


def _urdf_limits(xml: str) -> dict[str, tuple[float, float, float]]:
    """Return (lower, upper, velocity) by joint; infinite where the URDF does not bound."""
    try:
        root = ElementTree.fromstring(xml.strip())
    except ElementTree.ParseError as error:
        raise LimitsError(f'robot_description is not XML ({error})') from None
    if root.tag.startswith('mujoco'):
        raise LimitsError(f'robot_description is MJCF (<{root.tag}>), not a URDF; convert it')
    if root.tag != 'robot':
        raise LimitsError(f'robot_description begins with <{root.tag}>, a URDF with <robot>')
    limits = {}
    for joint in root.iterfind('joint'):
        element = joint.find('limit')
        kind = joint.get('type')
        if kind in (None, 'fixed') or element is None:
            continue
        values = []
        for key, default in (('lower', -math.inf), ('upper', math.inf), ('velocity', math.inf)):
            text = element.get(key)
            try:
                value = default if text is None else float(text)
            except ValueError:
                value = math.nan
            if math.isnan(value):
                raise LimitsError(
                    f"robot_description: joint '{joint.get('name')}': limit {key}='{text}' "
                    'is not a number'
                )
            values.append(value)
        low, high, speed = values
        if kind == 'continuous':
            low, high = -math.inf, math.inf
        name = joint.get('name')
        if low > high or speed < 0.0:
            raise LimitsError(
                f"robot_description: joint '{name}': limits lower={low} upper={high} "
                f'velocity={speed} make no sense; correct the URDF'
            )
        limits[name] = (low, high, speed if speed > 0.0 else math.inf)  # zero: not given
    return limits
