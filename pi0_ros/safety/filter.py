# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
The filter: whatever is asked for, what is sent stays inside every limit and can still stop there.

Discrete time. With commands x one period T apart, velocity is (x1 - x0) / T, acceleration and
jerk the further differences: exactly what a driver and a test see. A joint's state is (p, v, a).

Why it is safe, by induction. ``_brake`` is a fixed law that brings any state to rest: it lowers
the acceleration no faster than jerk allows and never below what can be released again in time. A
step is accepted only if (1) its jerk, acceleration and velocity are inside the limits, also while
the acceleration is released, and (2) running ``_brake`` from the state that it leads to stays
inside the position limits. So in every accepted state braking is possible, and the braking step is
itself acceptable: when nothing better is, it is taken.

A target that can be reached within the limits in one step is sent unchanged: no lag, no smoothing.
A target that cannot is approached at the speed from which stopping on it (relative to its own
velocity) is possible. Joints are limited one by one: holding back the whole arm for one joint's
noise would cost lag, and the last command, never the measurement, is the reference.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pi0_ros.errors import Pi0RosError
from pi0_ros.safety.limits import Limits

MARGIN = 1e-9
"""Relative distance kept from every rate limit, for the rounding of third differences."""

REST_VELOCITY = 1e-11
"""Speed below which rounding is all that is left of a motion."""

NOTICEABLE = 1e-6
"""Smallest difference (rad or m) between target and command that is reported."""

_BRAKE_TICKS = 100_000  # a brake that takes longer is no brake: refused in the constructor
_BISECTIONS = 4  # between braking and what is wanted, where the position limit is near


class LimitedJoint(NamedTuple):
    """One joint whose target was not sent: which bound, asked for, sent, and the difference."""

    joint: str
    bound: str  # 'position', 'velocity', 'acceleration', 'jerk' or 'squeeze'
    requested: float
    sent: float

    @property
    def amount(self) -> float:
        return self.requested - self.sent

    def __str__(self) -> str:
        return (
            f'{self.joint}: {self.bound} limit, asked for {self.requested:.4f}, '
            f'sent {self.sent:.4f}'
        )


_limited = functools.partial(tuple.__new__, LimitedJoint)  # three times as fast as the class


@dataclass(frozen=True)
class Report:
    """What one step did to its target; true when the target was not sent as it was."""

    limited: tuple[LimitedJoint, ...] = ()
    rejected: str = ''  # why the whole target was refused

    def __bool__(self) -> bool:
        return bool(self.limited or self.rejected)


_UNTOUCHED = Report()


@dataclass
class _Joint:
    """One joint: its limits, with margin, and its state."""

    name: str
    low: float
    high: float
    v_max: float
    a_max: float
    jerk_step: float  # largest change of the acceleration in one period
    jerk: float
    delay: float  # an upper bound of the time until full deceleration, two periods more
    continuous: bool
    squeeze: float
    v_full: float = math.nan  # speed that is left when full deceleration has to be let go
    p: float = math.nan
    v: float = 0.0
    a: float = 0.0
    low_now: float = 0.0  # the limits, widened to where the joint began outside of them
    high_now: float = 0.0
    widened: bool = False
    target: float = math.nan


class SafetyFilter:
    """
    Limits a stream of targets, one step a period.

    Not thread-safe; one owner steps it.

    :param limits: of every joint.
    :param period: seconds between steps; a step that comes late is still one period of motion.
    :param squeeze: joint name -> how far its command may be from the measurement (grippers).
    :raises Pi0RosError: for a period that is not above zero, or an unknown joint in ``squeeze``.
    """

    def __init__(self, limits: Limits, period: float, squeeze: Mapping[str, float] | None = None):
        if not (math.isfinite(period) and period > 0.0):
            raise Pi0RosError(f'period is {period}; expected seconds above zero')
        squeeze = dict(squeeze or {})
        for name, distance in squeeze.items():
            if name not in limits.names:
                raise Pi0RosError(f"squeeze limit for unknown joint '{name}'")
            if not distance > 0.0:
                raise Pi0RosError(f'{name}: squeeze limit is {distance}; give one above zero')
        self.limits, self.period = limits, float(period)
        keep = 1.0 - MARGIN
        self._joints = [
            _Joint(
                name=name, low=float(limits.lower[i]), high=float(limits.upper[i]),
                v_max=keep * float(limits.velocity[i]),
                a_max=keep * float(limits.acceleration[i]),
                jerk=keep * float(limits.jerk[i]),
                jerk_step=keep * float(limits.jerk[i]) * self.period,
                delay=2.0 * (float(limits.acceleration[i] / limits.jerk[i]) + self.period),
                continuous=bool(limits.continuous[i]),
                squeeze=float(squeeze.get(name, math.inf)),
            )
            for i, name in enumerate(limits.names)
        ]  # fmt: skip
        self._squeezes = bool(squeeze)
        for joint in self._joints:
            joint.v_full = joint.a_max * self.period + _release(
                joint.a_max, joint.jerk_step, self.period
            )
            ticks = (joint.v_max / joint.a_max + 2.0 * joint.a_max / joint.jerk) / self.period
            if ticks > _BRAKE_TICKS:
                raise Pi0RosError(
                    f'{joint.name}: braking from {joint.v_max:.3g} would take '
                    f'{ticks * self.period:.0f} s; raise its acceleration or jerk limit'
                )

    # -- state --------------------------------------------------------------------------------

    def reset(self, measured: Sequence[float]) -> None:
        """
        Start at rest at a measured pose.

        A joint that is outside of its limits may move back inside, never further out.

        :raises Pi0RosError: for a wrong length or a value that is not finite, naming the joint.
        """
        positions, fault = self._numbers(measured)
        if fault:
            raise Pi0RosError(f'measured pose: {fault}')
        for joint, position in zip(self._joints, positions):
            joint.p = joint.target = position
            joint.v = joint.a = 0.0
            joint.low_now = min(joint.low, position)
            joint.high_now = max(joint.high, position)
            joint.widened = joint.low_now < joint.low or joint.high_now > joint.high

    @property
    def command(self) -> np.ndarray:
        """The last command, float64 [dof]; NaN before the first reset."""
        return np.array([joint.p for joint in self._joints])

    @property
    def velocity(self) -> np.ndarray:
        """The velocity of the last command, float64 [dof]."""
        return np.array([joint.v for joint in self._joints])

    @property
    def at_rest(self) -> bool:
        """Whether the command stands still and may stay so."""
        return all(
            abs(j.v) <= REST_VELOCITY and abs(j.a) <= j.jerk_step for j in self._joints
        )

    @property
    def stop_position(self) -> np.ndarray:
        """Where the joints come to rest when braked from now on, float64 [dof]."""
        return np.array([_stop(j, j.p, j.v, j.a, self.period)[0] for j in self._joints])

    def save(self) -> list[tuple]:
        """Return the state, for :meth:`restore` to go back to it."""
        return [(j.p, j.v, j.a, j.low_now, j.high_now, j.widened, j.target) for j in self._joints]

    def restore(self, state: list[tuple]) -> None:
        """Go back to a saved state, as if the steps since then had not been."""
        for j, values in zip(self._joints, state):
            j.p, j.v, j.a, j.low_now, j.high_now, j.widened, j.target = values

    # -- steps --------------------------------------------------------------------------------

    def step(
        self,
        target: Sequence[float],
        measured: Sequence[float] | None = None,
        velocity: Sequence[float] | None = None,
    ) -> tuple[np.ndarray, Report]:
        """
        Move one period towards a target.

        A target with NaN, infinity or a wrong length is rejected whole, and the last good one
        holds; it is never repaired.

        :param target: float [dof], where to be one period from now.
        :param measured: float [dof], used by squeeze limits alone.
        :param velocity: float [dof] of the target, for one that runs away from the command; None
            (or not all finite): taken from the last two targets.
        :return: the command, float64 [dof], and what was done to the target.
        :raises Pi0RosError: before the first :meth:`reset`.
        """
        joints, period = self._joints, self.period
        if math.isnan(joints[0].p):
            raise Pi0RosError('no measured pose yet; call reset first')
        targets, fault = self._numbers(target)
        velocities = readings = None
        if fault:
            targets, velocities = [joint.target for joint in joints], [0.0] * len(joints)
        elif velocity is not None:
            velocities = self._numbers(velocity)[0]
        if self._squeezes and measured is not None:
            readings = self._numbers(measured)[0]
        command, limited = [], []
        for i, joint in enumerate(joints):
            wanted, before, previous = targets[i], joint.p, joint.target
            if joint.continuous:
                wanted = before + math.remainder(wanted - before, 2.0 * math.pi)
            if velocities is not None:
                speed = velocities[i]
            else:
                speed = (wanted - previous) / period
                if not -joint.v_max <= speed <= joint.v_max:  # a leap, not a motion
                    speed = 0.0
            joint.target = goal = wanted
            bound = ''
            if readings is not None and abs(goal - readings[i]) > joint.squeeze:
                goal = min(max(goal, readings[i] - joint.squeeze), readings[i] + joint.squeeze)
                bound = 'squeeze'
            on_target = -NOTICEABLE <= before - previous <= NOTICEABLE
            bound = _advance(joint, goal, speed, on_target, period) or bound
            sent = joint.p
            command.append(sent)
            if bound and not -NOTICEABLE <= sent - wanted <= NOTICEABLE:
                limited.append(_limited((joint.name, bound, targets[i], sent)))
        if limited or fault:
            return np.array(command), Report(tuple(limited), fault)
        return np.array(command), _UNTOUCHED

    def brake(self) -> tuple[np.ndarray, Report]:
        """Move one period of the shortest stop; at rest this holds the position."""
        for joint in self._joints:
            a = _brake(joint, joint.v, joint.a, self.period)
            _arrive(joint, joint.p + (joint.v + a * self.period) * self.period, self.period)
            joint.target = joint.p
        return self.command, _UNTOUCHED

    def _numbers(self, values) -> tuple[list[float] | None, str]:
        """Return one finite float a joint and '', or None and what is wrong with them."""
        try:
            array = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError):
            return None, 'not an array of numbers'
        if array.shape != (len(self._joints),):
            return None, f'shape {array.shape} for {len(self._joints)} joints'
        numbers = array.tolist()
        if math.isfinite(sum(numbers)):  # a sum is finite only if all of its terms are
            return numbers, ''
        for joint, number in zip(self._joints, numbers):
            if not math.isfinite(number):
                return None, f'{joint.name} is {number}'
        return numbers, ''  # large ones


# --- one joint -------------------------------------------------------------------------------


def _release(deceleration: float, step: float, period: float) -> float:
    """Return the velocity that is still gained while an acceleration is let go, jerk-limited."""
    n = int(deceleration / step)
    return period * (n * deceleration - 0.5 * step * n * (n + 1))


def _releasable(velocity: float, step: float, period: float) -> float:
    """
    Return the largest acceleration that ends exactly when a velocity is used up.

    Inverts ``velocity = T a + release(a)``, which is linear between multiples of ``step``.
    """
    if velocity <= 0.0:
        return 0.0
    units = velocity / (period * step)
    n = int(0.5 * (math.sqrt(1.0 + 8.0 * units) - 1.0))
    return (velocity / period + 0.5 * step * n * (n + 1)) / (n + 1)


def _brake(joint: _Joint, v: float, a: float, period: float) -> float:
    """Return the acceleration of the next step of the shortest stop."""
    step = joint.jerk_step
    if -REST_VELOCITY <= v <= REST_VELOCITY:
        wanted = -v / period
    else:
        wanted = _releasable(v if v > 0.0 else -v, step, period)
        if wanted > joint.a_max:
            wanted = joint.a_max
        if v > 0.0:
            wanted = -wanted
    if wanted < a - step:
        return a - step
    return wanted if wanted < a + step else a + step


def _stop(joint: _Joint, p: float, v: float, a: float, period: float):
    """
    Return where braking ends and the lowest and highest position on the way.

    Ticks are played while jerk holds ``_brake`` back; what follows, a plateau of full deceleration
    and its release, is summed in closed form.
    """
    low = high = p
    step, top, full = joint.jerk_step, joint.a_max, joint.v_full
    for _ in range(2 * _BRAKE_TICKS):
        if -REST_VELOCITY <= v <= REST_VELOCITY:
            if -step <= a <= step:
                break
            wanted = -v / period
        else:
            speed = v if v > 0.0 else -v
            wanted = top if speed >= full else _releasable(speed, step, period)
            if v > 0.0:
                wanted = -wanted
            if a - step <= wanted <= a + step:
                way = 0.0
                if speed >= full:
                    ticks = int((speed - full) / (top * period)) + 1
                    way = period * (ticks * speed - 0.5 * top * period * ticks * (ticks + 1))
                    speed -= ticks * top * period
                    wanted = _releasable(speed, step, period)
                n = int(abs(wanted) / step)
                way += period * period * n * (n + 1) * (
                    0.5 * abs(wanted) - step * (2 * n + 1) / 6.0
                )
                p += way if v > 0.0 else -way
                break
        if wanted < a - step:
            a -= step
        else:
            a = wanted if wanted < a + step else a + step
        v += a * period
        p += v * period
        if p < low:
            low = p
        elif p > high:
            high = p
    return p, (low if low < p else p), (high if high > p else p)


def _fits(joint: _Joint, a: float, period: float) -> bool:
    """Tell whether a step's velocity is legal and braking after it stays between the limits."""
    v = joint.v + a * period
    speed = v if v >= 0.0 else -v
    if a * v > 0.0:
        rise = a if a > 0.0 else -a
        if rise >= joint.jerk_step:  # else it is let go at once
            speed += _release(rise, joint.jerk_step, period)
    if speed > joint.v_max:
        return False
    if joint.continuous:
        return True
    p = joint.p + v * period
    low, high = joint.low_now, joint.high_now
    # Most steps are far from the limits: an upper bound of the stopping distance settles them.
    peak = speed + 0.5 * a * a / joint.jerk
    reach = peak * (peak / joint.a_max + joint.delay)
    if low <= p - reach and p + reach <= high:
        return True
    if not low <= p <= high:
        return False
    _, lowest, highest = _stop(joint, p, v, a, period)
    return low <= lowest and highest <= high


def _arrive(joint: _Joint, p: float, period: float) -> None:
    """Take a new position; velocity and acceleration are those of the numbers really sent."""
    if not joint.continuous:  # rounding alone
        if p < joint.low_now:
            p = joint.low_now
        elif p > joint.high_now:
            p = joint.high_now
    v = (p - joint.p) / period
    joint.a = (v - joint.v) / period
    joint.p, joint.v = p, v
    # Begun outside: the way back in closes behind the joint, but for what a stop from here needs.
    if joint.widened:
        _, low, high = _stop(joint, p, v, joint.a, period)
        joint.low_now = min(joint.low, max(joint.low_now, low))
        joint.high_now = max(joint.high, min(joint.high_now, high))
        joint.widened = joint.low_now < joint.low or joint.high_now > joint.high


def _advance(joint: _Joint, target: float, speed: float, on_target: bool, period: float) -> str:
    """Move one joint one period towards a target; return the bound that held it back, or ''."""
    bound = ''
    if not joint.low_now <= target <= joint.high_now and not joint.continuous:
        target = joint.low_now if target < joint.low_now else joint.high_now
        speed, bound = 0.0, 'position'
    v = (target - joint.p) / period
    a = (v - joint.v) / period
    step, top, fastest = joint.jerk_step, joint.a_max, joint.v_max
    if -top <= a <= top and -step <= a - joint.a <= step:
        # A target that was caught up with must also be one to stay on, else it is overshot.
        stay = (speed - v) / period
        if on_target or (-top <= stay <= top and -step <= stay - a <= step):
            if _fits(joint, a, period):
                _arrive(joint, target, period)
                return bound
    # Out of reach in one step: close in at a speed from which stopping on it is possible, as seen
    # from the target, which was ``speed * period`` short of here when the command was at ``p``.
    if not -fastest <= speed <= fastest:
        speed = fastest if speed > 0.0 else -fastest
    gap = target - speed * period - joint.p
    lead = period + 0.5 * top / joint.jerk
    closing = top * (math.sqrt(lead * lead + 2.0 * abs(gap) / top) - lead)
    v = speed + (closing if gap >= 0.0 else -closing)
    reason = ''
    if not -fastest <= v <= fastest:
        v, reason = (fastest if v > 0.0 else -fastest), 'velocity'
    a = (v - joint.v) / period
    lowest, highest = joint.a - step, joint.a + step
    lowest, highest = (lowest if lowest > -top else -top), (highest if highest < top else top)
    if not lowest <= a <= highest:
        a = lowest if a < lowest else highest
        reason = 'jerk' if -top < a < top else 'acceleration'
    # never accelerate past the point from which the velocity limit can still be kept
    if a > 0.0:
        room = fastest - joint.v
        if a * period > room or a >= step:
            most = _releasable(room, step, period)
            if a > most:
                a, reason = (most if most > lowest else lowest), 'velocity'
    elif a < 0.0:
        room = fastest + joint.v
        if -a * period > room or -a >= step:
            most = -_releasable(room, step, period)
            if a < most:
                a, reason = (most if most < highest else highest), 'velocity'
    if step < 2.0 * top:  # with less jerk than that, deceleration has to begin earlier
        a = _without_overshoot(joint, a, gap, speed, period)
    if not _fits(joint, a, period):
        a, reason = _nearest_fit(joint, a, period), 'position'
    _arrive(joint, joint.p + (joint.v + a * period) * period, period)
    return bound or reason or 'acceleration'


def _nearest_fit(joint: _Joint, wanted: float, period: float) -> float:
    """Return an acceleration near what is wanted that fits; braking always does."""
    safe = _brake(joint, joint.v, joint.a, period)
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        if _fits(joint, safe + middle * (wanted - safe), period):
            low = middle
        else:
            high = middle
    return safe + low * (wanted - safe)


def _without_overshoot(joint: _Joint, wanted: float, gap: float, speed: float, period: float):
    """Return an acceleration near what is wanted after which braking ends before the target."""
    ahead = 1.0 if gap >= 0.0 else -1.0
    relative = joint.v - speed

    def passes(a: float) -> bool:
        v = relative + a * period
        _, low, high = _stop(joint, v * period - gap, v, a, period)
        return (high if ahead > 0.0 else -low) > NOTICEABLE

    safe = _brake(joint, relative, joint.a, period)
    if (wanted - safe) * ahead <= 0.0:  # braking harder than to a stop would turn back
        return safe
    if not passes(wanted):
        return wanted
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        if passes(safe + middle * (wanted - safe)):
            high = middle
        else:
            low = middle
    return safe + low * (wanted - safe)
