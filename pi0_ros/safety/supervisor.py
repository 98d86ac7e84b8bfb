# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
The states of the safety filter, its start gate and its watchdogs.

    waiting -> ready -> ramping_in -> active <-> (ramping_down -> holding) -> ...
    anything -> stopped (latched) -> waiting, by reset; motion then needs enable once more

waiting       no command; needs a complete, plausible, steady measured pose
ready         no command; such a pose is known; ``enable`` opens the start gate
ramping_in    a first target far from the pose is approached at a slow set speed, or refused
active        setpoints are played through the filter
ramping_down  braking inside every limit, from the last command
holding       standing; the position reached is sent on; says why and what ends it
stopped       latched; brakes (after a fault: eases to the measured pose) and holds there; falls
              silent when the arm is moved away, so that it is not pulled back when power returns

Liveness is judged by arrival on the caller's steady clock. Used by the node and by replay alike.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pi0_ros.errors import Pi0RosError
from pi0_ros.safety.filter import Report, SafetyFilter
from pi0_ros.safety.limits import Limits
from pi0_ros.safety.playout import TURN, Playout

STEADY_SAMPLES = 5
"""Measured poses that must agree before one is believed; drivers begin with uninitialised ones."""

STEADY_DISTANCE = 0.05
"""Largest change (rad or m) between two of them; an arm at rest moves by encoder noise alone."""

STEADY_TIME_S = 0.05
"""Shortest time that they must span: five copies of one reading are one reading."""

PLAUSIBLE_BEYOND = 0.25
"""
Share of its range by which a joint may be measured outside of its limits.

A little is calibration, or an arm that was pushed there; this much is other units, or another arm.
"""

SENTINEL = 0.0
"""A whole arm at exactly this is memory that was never read into, not a pose."""

REJECTED_IN_A_ROW = 5
"""Unusable setpoints after which the source no longer counts as sane, and is braked for."""

SETTLED = 0.02
"""Distance (rad) to its target at which a joint has met it, and ramping in ends for it."""


APPROACH_SPEED = 0.25
"""
Speed (m/s) at which a clearance may shrink where slowing begins; ISO 10218-1's reduced speed.

From there it falls in proportion to what is left, to nothing where the arm is held.
"""


class State(str, enum.Enum):
    """State of the supervisor; the value is what status messages say."""

    WAITING = 'waiting'
    READY = 'ready'
    RAMPING_IN = 'ramping_in'
    ACTIVE = 'active'
    HOLDING = 'holding'
    RAMPING_DOWN = 'ramping_down'
    STOPPED = 'stopped'


_MOVING = (State.RAMPING_IN, State.ACTIVE)


@dataclass(frozen=True)
class Output:
    """What one tick decided; see the package's docstring."""

    command: np.ndarray | None
    state: State
    reason: str
    report: Report | None = None
    events: tuple[str, ...] = ()


class SafetySupervisor:
    """
    Owns filter, playout and state; the package's docstring lists the interface.

    Not thread-safe: the caller guards it with one lock. No call blocks.

    :param limits: of every joint.
    :param period: seconds between ticks.
    :param command_timeout: seconds without a setpoint after which it ramps down.
    :param state_timeout: seconds without a measured pose after which it holds.
    :param tracking_error: largest |command - measured|, one number or one a joint; infinite
        switches a joint's check off, and with it its part in the start gate (grippers).
    :param tracking_time: seconds that it may be exceeded before the latched stop.
    :param start_distance: a first target farther than this from the pose is far.
    :param start_speed: speed at which a far one is approached.
    :param start: ``approach`` it, or ``refuse``.
    :param setpoint_lead: seconds that setpoints are sent ahead.
    :param squeeze: as in :class:`SafetyFilter`.
    :param distance: returns the clearance [m] of a command, or (clearance, between what).
    :param clearance: metres that must be kept where the arms would come to rest.
    :param slow_clearance: metres below which they approach each other slowly; not above
        ``clearance``: nowhere.
    :raises Pi0RosError: naming every parameter that makes no sense.
    """

    def __init__(
        self,
        limits: Limits,
        period: float,
        *,
        command_timeout: float = 0.1,
        state_timeout: float = 0.2,
        tracking_error: float | Sequence[float] = 0.3,
        tracking_time: float = 0.5,
        start_distance: float = 0.1,
        start_speed: float = 0.1,
        start: str = 'approach',
        setpoint_lead: float = 0.04,
        squeeze: Mapping[str, float] | None = None,
        distance: Callable | None = None,
        clearance: float = 0.0,
        slow_clearance: float = 0.0,
    ):
        positive = {
            'command_timeout': command_timeout, 'state_timeout': state_timeout,
            'tracking_time': tracking_time, 'start_distance': start_distance,
            'start_speed': start_speed,
        }  # fmt: skip
        faults = [
            f'{name} is {value}; expected a finite number above zero'
            for name, value in positive.items()
            if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0)
        ]
        for name, value in (
            ('setpoint_lead', setpoint_lead), ('clearance', clearance),
            ('slow_clearance', slow_clearance),
        ):  # fmt: skip
            if not (math.isfinite(value) and value >= 0):
                faults.append(f'{name} is {value}; expected a number of zero or more')
        bounds = np.array(tracking_error, dtype=np.float64)
        if bounds.ndim == 0:
            bounds = np.full(limits.dof, float(bounds))
        if bounds.shape != (limits.dof,) or not (bounds > 0).all():
            faults.append(f'tracking_error is {tracking_error}; expected numbers above zero')
        if start not in ('approach', 'refuse'):
            faults.append(f"start is '{start}'; expected 'approach' or 'refuse'")
        if faults:
            raise Pi0RosError('; '.join(faults))
        self.limits = limits
        self._filter = SafetyFilter(limits, period, squeeze)
        self._playout = Playout(
            setpoint_lead, command_timeout, limits.velocity, limits.continuous
        )
        beyond = PLAUSIBLE_BEYOND * np.where(
            limits.continuous, np.inf, limits.upper - limits.lower
        )
        self._plausible = limits.lower - beyond, limits.upper + beyond
        self._turning = limits.continuous if limits.continuous.any() else None
        self._period = period
        self._command_timeout, self._state_timeout = command_timeout, state_timeout
        self._tracking_error, self._tracking_time = bounds, tracking_time
        self._gated = np.isfinite(bounds)
        self._start_distance, self._start_speed, self._start = start_distance, start_speed, start
        self._distance, self._clearance = distance, clearance
        self._slow_clearance = max(slow_clearance, clearance)
        self.counters: Counter = Counter()
        self.state = State.WAITING
        self._reason = 'no measured pose yet'
        self._events: list[str] = []
        self._pose: np.ndarray | None = None
        self._pose_fault = ''
        self._pose_at = -math.inf
        self._commanded = False
        self._setpoint_at = -math.inf
        self._rejected = 0
        self._after_brake = State.HOLDING
        self._resume = False  # whether a hold ends by itself when its cause has gone
        self._refused_start = False
        self._ease_to: np.ndarray | None = None
        self._last_setpoint: np.ndarray | None = None  # that no other follows, and where to end
        self._end: np.ndarray | None = None
        self._restart_steadiness()

    # -- inputs -------------------------------------------------------------------------------

    def on_measured(self, now: float, positions) -> str:
        """Take a measured pose, float [dof] in command units; return why it was refused, or ''."""
        pose = np.array(positions, dtype=np.float64)
        if pose.shape != (self.limits.dof,) or not np.isfinite(pose).all():
            return self._refuse_pose('the measured pose has a wrong length or is not finite')
        if (pose[self._gated] == SENTINEL).all() and self._gated.any():
            return self._refuse_pose(
                f'every arm joint is measured at exactly {SENTINEL}: not read yet (sentinel)'
            )
        lowest, highest = self._plausible
        outside = (pose < lowest) | (pose > highest)
        if outside.any():
            i = int(outside.argmax())
            return self._refuse_pose(
                f'{self.limits.names[i]} is measured at {pose[i]:.3f}, far outside its limits '
                f'{self.limits.lower[i]:g} to {self.limits.upper[i]:g}: check its units'
            )
        if self._pose is not None and (
            now - self._pose_at > self._state_timeout
            or np.abs(self._way(pose, self._pose))[self._gated].max(initial=0.0) > STEADY_DISTANCE
        ):
            self._restart_steadiness()
        self._pose, self._pose_at = pose, now
        if self._steady_since is None:
            self._steady_since = now
        self._steady_count += 1
        return ''

    def on_setpoint(self, now: float, due_s, positions) -> str:
        """
        Take a setpoint, float [dof] in command units; return why it was refused, or ''.

        :param due_s: when it is due in the sender's seconds; 0 or None: unstamped.
        """
        position = np.array(positions, dtype=np.float64)
        if position.shape != (self.limits.dof,) or not np.isfinite(position).all():
            fault = 'a value is missing or not finite'
            self.reject_setpoint(now, fault)
            return fault
        self._rejected = 0
        self.counters['setpoints'] += 1
        if self._playout.add(now, due_s or None, position):
            self._setpoint_at = now  # one sent again is no sign of life
        for what, count in self._playout.counters.items():
            if count:
                self.counters[f'setpoints {what}'] = count
        return ''

    def reject_setpoint(self, now: float, reason: str) -> None:
        """Count a setpoint that could not be used; it is as if it had never come."""
        self.counters['setpoints rejected'] += 1
        self._rejected += 1
        if self._rejected == REJECTED_IN_A_ROW:
            self._say(f'{self._rejected} unusable setpoints in a row: {reason}')
            if self.state in _MOVING:
                self._ramp_down(f'setpoints are unusable: {reason}', resume=True)

    # -- requests -----------------------------------------------------------------------------

    def enable(self, now: float) -> tuple[bool, str]:
        """Open the start gate from the pose measured now; refused unless ready or holding."""
        if self.state in _MOVING:
            return True, f'already {self.state.value}'
        if self.state is State.STOPPED:
            return False, f'stopped ({self._reason}); call reset first'
        if self.state is State.RAMPING_DOWN:
            return False, 'still ramping down; try again when it holds'
        why = self._why_not_ready(now)
        if why:
            return False, f'not enabled: {why}'
        self._open_gate(now, 'enabled')
        return True, 'enabled; waiting for the first setpoint'

    def disable(self, now: float) -> tuple[bool, str]:
        """Ramp down and hold; going on needs :meth:`enable`."""
        if self.state in _MOVING:
            self._ramp_down('disabled', resume=False)
        elif self.state in (State.HOLDING, State.RAMPING_DOWN):
            self._resume, self._reason = False, 'disabled'
        self._playout.flush()
        return True, f'disabled; {self.state.value}'

    def stop(self, now: float, reason: str = 'stop was called') -> tuple[bool, str]:
        """Latch the stop; leaving it needs :meth:`reset` and :meth:`enable`."""
        return self._stop(reason, self._ease_to)

    def motor_error(self, now: float, text: str) -> None:
        """Stop and latch, for an error that the driver reports."""
        self.counters['motor errors'] += 1
        self._stop(f'motor error: {text}', self._pose)

    def reset(self, now: float) -> tuple[bool, str]:
        """Clear a latched stop, once the command stands; :meth:`enable` opens the gate anew."""
        if self.state is not State.STOPPED:
            return False, f'nothing to reset: {self.state.value}'
        if self._commanded and not self._filter.at_rest:
            return False, 'still braking; try again'
        self._commanded = False
        self._ease_to = None
        self._playout.flush()
        self._go(State.WAITING, 'reset; waiting for a steady measured pose')
        return True, 'reset; enable to move'

    # -- the tick -----------------------------------------------------------------------------

    def tick(self, now: float) -> Output:
        """Decide one period; call once a period."""
        command, report = None, None
        if self.state in (State.WAITING, State.READY):
            why = self._why_not_ready(now)
            if why and self.state is State.READY:
                self._go(State.WAITING, why)
            elif why:
                self._reason = why
            elif self.state is State.WAITING:
                self._go(State.READY, 'the measured pose is steady; enable to move')
        if self.state in _MOVING:
            self._watch(now)
        if self.state in _MOVING:
            command, report = self._follow(now)
        elif self.state is State.RAMPING_DOWN:
            command, report = self._brake()
        elif self.state is State.HOLDING:
            command, report = self._filter.brake() if self._commanded else (None, None)
            self._watch_tracking(now)
            if self.state is State.HOLDING and self._resume and self._may_resume(now):
                self._open_gate(now, 'setpoints are back')
        elif self.state is State.STOPPED and self._commanded:
            command, report = self._come_to_rest()
        events, self._events = tuple(self._events), []
        reason = (self._near if self.state in _MOVING else '') or self._reason
        return Output(command, self.state, reason, report, events)

    def _watch(self, now: float) -> None:
        self._watch_tracking(now)
        if self.state not in _MOVING:
            return
        if now - self._pose_at > self._state_timeout:
            self.counters['state timeouts'] += 1
            age = now - self._pose_at
            self._ramp_down(f'no measured pose for {age:.2f} s', resume=True)
        elif self._setpoint_at > -math.inf and self._silent(now):
            self.counters['command timeouts'] += 1
            silence = now - self._setpoint_at
            self._ramp_down(f'no setpoint for {silence:.2f} s', resume=True)

    def _silent(self, now: float) -> bool:
        return now - self._setpoint_at > self._command_timeout

    def _watch_tracking(self, now: float) -> None:
        """Stop when the arm does not follow: a jam, a dead motor, a person in the way."""
        if self._pose is None or not self._commanded or now - self._pose_at > self._state_timeout:
            self._astray_since = None
            return
        error = np.abs(self._way(self._filter.command, self._pose))
        worst = int(np.argmax(error / self._tracking_error))
        if error[worst] <= self._tracking_error[worst]:
            self._astray_since = None
            return
        if self._astray_since is None:
            self._astray_since = now
        if now - self._astray_since >= self._tracking_time:
            self.counters['tracking errors'] += 1
            self._stop(
                f'{self.limits.names[worst]} does not follow: {error[worst]:.3f} from its '
                f'command for {now - self._astray_since:.2f} s '
                f'(limit {self._tracking_error[worst]:g})',
                self._pose,
            )

    def _follow(self, now: float) -> tuple[np.ndarray, Report | None]:
        sample = self._playout.sample(now)
        if sample is None:
            return self._filter.brake()  # enabled, and nothing due yet: stay
        target, velocity = sample.position, sample.velocity
        if self.state is State.RAMPING_IN:
            gap = self._way(target, self._filter.command)
            away = np.abs(gap)[self._gated]
            farthest = float(away.max(initial=0.0))
            if not self._approaching and farthest > self._start_distance:
                joint = np.array(self.limits.names)[self._gated][int(np.argmax(away))]
                far = f'the first target of {joint} is {farthest:.3f} from where it is'
                if self._start == 'refuse':
                    self._ramp_down(f'start refused: {far}', resume=False)
                    return self._filter.brake()
                self._approaching = True
                self._reason = f'{far}; approaching at {self._start_speed:g} per s'
                self._say(self._reason)
            if not self._approaching or self._all_met(gap):
                self._go(State.ACTIVE, '')
        if self.state is State.RAMPING_IN:
            step = self._start_speed * self._period
            here = self._filter.command
            slow = np.clip(gap, -step, step)
            target = np.where(self._met, target, here + slow)
            velocity = np.where(self._met, velocity, slow / self._period)
        elif not sample.ahead:
            target = self._end_at(target)
        return self._step_clear_of_obstacles(target, velocity)

    def _end_at(self, last: np.ndarray) -> np.ndarray:
        """
        Return where to end when no setpoint follows the last one: there, if it can be stopped at.

        A joint too fast for that comes to rest behind it, and stays: going back would be a motion
        that nobody asked for, and the wrong one if the stream goes on.
        """
        if self._last_setpoint is not last:
            self._last_setpoint = last
            stop, velocity = self._filter.stop_position, self._filter.velocity
            self._end = np.where(self._way(stop, last) * velocity > 0.0, stop, last)
        return self._end

    def _all_met(self, gap: np.ndarray) -> bool:
        """
        Release the joints whose command has met its target; return whether all have.

        Met: near it, or on its other side since the last tick, for targets that jitter. A leap to
        far on the other side is no meeting: it would be followed at full speed.
        """
        crossed = (gap * self._gap < 0.0) & (np.abs(gap) <= self._start_distance)
        self._met = self._met | crossed | (np.abs(gap) <= SETTLED)
        self._gap = gap
        return bool(self._met.all())

    def _step_clear_of_obstacles(self, target, velocity):
        """Step towards the target, unless the arms would then come to rest too near."""
        if self._distance is None:
            return self._filter.step(target, self._pose, velocity)
        here, before = self._filter.command, self._filter.save()
        if self._kept is None:
            self._kept, _ = self._measure(self._filter.stop_position)
        command, report = self._filter.step(target, self._pose, velocity)
        left, what = self._measure(self._filter.stop_position)
        near = ''
        if left < self._slow_clearance and self._kept - left > self._approach_room():
            near = f'{what} near, slowed'
            self.counters['ticks slowed for clearance'] += 1
            part = self._approach_room() / (self._kept - left) * (command - here)
            self._filter.restore(before)
            command, report = self._filter.step(here + part, self._pose, part / self._period)
            left, what = self._measure(self._filter.stop_position)
        if left < self._clearance and left <= self._kept:  # and not moving apart
            self._filter.restore(before)
            if not self._blocked:
                self._blocked = True
                self.counters['near collisions'] += 1
                self._say(
                    f'{what} would come to {left:.3f} m (limit {self._clearance:g} m); braking'
                )
            self._near = f'{what} too near, holding until the target leads away'
            return self._filter.brake()
        self._kept, self._near = left, near
        self._blocked = self._blocked and left < self._clearance
        return command, report

    def _approach_room(self) -> float:
        """Return by how many metres the clearance may shrink in this tick."""
        zone = self._slow_clearance - self._clearance
        share = (self._kept - self._clearance) / zone if zone > 0.0 else 1.0
        return APPROACH_SPEED * self._period * min(max(share, 0.0), 1.0)

    def _measure(self, command) -> tuple[float, str]:
        result = self._distance(command)
        if isinstance(result, tuple):
            return float(result[0]), str(result[1])
        return float(result), 'the arms'

    def _brake(self):
        command, report = self._filter.brake()
        if self._filter.at_rest:
            self._go(self._after_brake, self._reason)
        return command, report

    def _come_to_rest(self):
        """Brake; after a fault ease to where the arm really is; hold while it stays there."""
        if self._ease_to is not None:
            target = np.where(self._gated, self._ease_to, self._filter.command)
            command, report = self._filter.step(target, self._pose, np.zeros(self.limits.dof))
            if np.abs(self._way(command, target)).max() < 1e-6 and self._filter.at_rest:
                self._ease_to = None
            return command, report
        command, report = self._filter.brake()
        if self._filter.at_rest and self._pose is not None:
            away = np.abs(self._way(command, self._pose)) > self._tracking_error
            self._commanded = not away.any()
        return command, report

    # -- helpers ------------------------------------------------------------------------------

    def _way(self, to: np.ndarray, start: np.ndarray) -> np.ndarray:
        """Return ``to - start``, the short way round where a joint turns without end."""
        way = to - start
        if self._turning is not None:
            way[self._turning] -= TURN * np.round(way[self._turning] / TURN)
        return way

    def _restart_steadiness(self) -> None:
        self._steady_count = 0
        self._steady_since: float | None = None
        self._astray_since: float | None = None
        self._close_gate()

    def _close_gate(self) -> None:
        self._approaching = False
        self._blocked = False
        self._near = ''  # what the arms are slowed or held for
        self._kept: float | None = None  # clearance where the last command would come to rest
        # Joints that are let through; grippers have no part in the gate, their own limits hold.
        self._met = ~self._gated
        self._gap = np.zeros(self.limits.dof)  # from command to target, one tick ago

    def _refuse_pose(self, reason: str) -> str:
        self.counters['poses rejected'] += 1
        if self.state in (State.WAITING, State.READY):
            self._restart_steadiness()
            self._pose = None
        self._pose_fault = reason
        return reason

    def _why_not_ready(self, now: float) -> str:
        if self._pose is None:
            return self._pose_fault or 'no measured pose yet'
        age = now - self._pose_at
        if age > self._state_timeout:
            return f'the measured pose is {age:.2f} s old'
        spanned = self._pose_at - (self._steady_since if self._steady_since is not None else now)
        if self._steady_count < STEADY_SAMPLES or spanned < STEADY_TIME_S:
            return 'the measured pose is not steady yet'
        return ''

    def _open_gate(self, now: float, reason: str) -> None:
        """Begin from the last command where the arm still stands there, else from the pose."""
        here = self._filter.command
        near = self._commanded and self._filter.at_rest and (
            np.abs(self._way(here, self._pose))
            <= np.minimum(self._tracking_error, 2.0 * STEADY_DISTANCE)
        )[self._gated].all()
        if not near:
            self._filter.reset(self._pose)
        self._commanded = True
        self._close_gate()
        self._astray_since = None
        self._playout.flush()
        self._setpoint_at = -math.inf
        self._go(State.RAMPING_IN, reason)

    def _may_resume(self, now: float) -> bool:
        return (
            not self._silent(now)
            and now - self._pose_at <= self._state_timeout
            and self._rejected < REJECTED_IN_A_ROW
        )

    def _ramp_down(self, reason: str, resume: bool) -> None:
        self._resume = resume
        self._after_brake = State.HOLDING
        self._playout.flush()
        self._go(State.RAMPING_DOWN, reason)

    def _stop(self, reason: str, ease_to) -> tuple[bool, str]:
        if self.state is State.STOPPED:
            return True, f'already stopped: {self._reason}'
        self.counters['stops'] += 1
        self._ease_to = None if ease_to is None else np.array(ease_to)
        self._resume = False
        self._playout.flush()
        self._go(State.STOPPED, reason)
        return True, 'stopped; reset and enable to go on'

    def _go(self, state: State, reason: str) -> None:
        if state is not self.state:
            self._say(f'{self.state.value} -> {state.value}' + (f': {reason}' if reason else ''))
        self.state, self._reason = state, reason

    def _say(self, text: str) -> None:
        if len(self._events) < 32:
            self._events.append(text)
