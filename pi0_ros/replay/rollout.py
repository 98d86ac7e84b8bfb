# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
The open-loop rollout under the live supervisor: start gate, approach, states, clearance.

The setpoints go through :class:`pi0_ros.safety.SafetySupervisor` with the node's own defaults and
the lead with which the policy node sends them. The recorded arm did not follow this policy, so
after the start the measured pose is taken to be the last command: what is judged is the stream,
not the arm.
"""

from __future__ import annotations

import math
from collections import Counter, deque

import numpy as np

from pi0_ros.errors import Pi0RosError
from pi0_ros.robot import RobotSpec
from pi0_ros.safety import Limits, SafetySupervisor, State

START_DISTANCE, START_SPEED, TRACKING_ERROR = 0.1, 0.3, 0.3
"""The safety filter's defaults: rad, rad/s, rad."""

STEADY_SAMPLES = 6
CLEARANCE_EVERY = 5
"""Ticks between measurements of the clearance: ten a second; live it is every tick."""

KEPT_EVENTS = 50


class Rollout:
    """
    One supervised stream of setpoints in command units.

    :param robot: limits, control rate and, where it names a URDF, clearances.
    :param lead: seconds that setpoints are handed out ahead of their due time.
    """

    def __init__(self, robot: RobotSpec, lead: float):
        self._period = 1.0 / robot.control_rate
        self._lead = lead
        tracking = [math.inf if j.is_gripper else TRACKING_ERROR for j in robot.joints]
        self._supervisor = SafetySupervisor(
            Limits.from_robot(robot), self._period, tracking_error=tracking,
            start_distance=START_DISTANCE, start_speed=START_SPEED, setpoint_lead=lead,
        )  # fmt: skip
        self._waiting: deque = deque()
        self._command: np.ndarray | None = None
        self._enabled_at: float | None = None
        self._active_at: float | None = None
        self._states: Counter = Counter()
        self._events: list[dict] = []
        self._gate_reason = ''
        self._refused = ''
        self._collision, self.note = _collision_model(robot)
        self._stop_distance = robot.collision.stop_distance if robot.collision else 0.0
        self._nearest, self._near_ticks, self._measured = (math.inf, '', 0.0), 0, 0

    def begin(self, time_s: float, measured) -> None:
        """Enable at a pose in command units, as an operator does with a standing arm."""
        supervisor = self._supervisor
        for k in range(STEADY_SAMPLES, 0, -1):
            self._refused = supervisor.on_measured(time_s - k * self._period, measured)
        self._note(time_s, supervisor.tick(time_s - self._period))
        enabled, text = supervisor.enable(time_s - self._period)
        if not enabled:
            self._refused = self._refused or text
        self._command = np.array(measured, dtype=np.float64)
        self._enabled_at = time_s

    def step(self, now: float, due: float, target: np.ndarray, report):
        """
        Take a setpoint that is handed out now; yield what is played now.

        :param report: what the filter alone says of it; handed through.
        :return: (due [s], target, command, report); ``command`` is None where nothing was sent.
        """
        self._waiting.append((due, target, report))
        self._supervisor.on_setpoint(now, due, target)
        yield from self._tick(now)

    def finish(self):
        """Play what was handed out ahead of time."""
        while self._waiting:
            yield from self._tick(self._waiting[0][0])

    def _tick(self, now: float):
        supervisor = self._supervisor
        supervisor.on_measured(now, self._command)
        output = supervisor.tick(now)
        self._note(now, output)
        self._states[output.state.value] += 1
        if output.command is not None:
            self._command = output.command
        if output.state is State.ACTIVE and self._active_at is None:
            self._active_at = now
        self._measure(now)
        while self._waiting and self._waiting[0][0] <= now + self._period / 2:
            due, target, report = self._waiting.popleft()
            yield due, target, output.command, report

    def _note(self, now: float, output) -> None:
        for text in output.events:
            if 'first target of' in text and not self._gate_reason:
                self._gate_reason = text
            if len(self._events) < KEPT_EVENTS:
                self._events.append({'time_s': now, 'text': text})

    def _measure(self, now: float) -> None:
        self._measured += 1
        if self._collision is None or self._measured % CLEARANCE_EVERY:
            return
        distance, what = self._collision.distance(self._command)
        self._near_ticks += distance < self._stop_distance
        if distance < self._nearest[0]:
            self._nearest = float(distance), what, now

    def gate(self) -> dict:
        """Return what the start gate did: 'open', 'approach', 'refused' or 'unknown'."""
        if self._enabled_at is None:
            return {'verdict': 'unknown', 'limit': START_DISTANCE}
        took = None if self._active_at is None else max(self._active_at - self._enabled_at, 0.0)
        verdict = 'refused' if self._refused else 'approach' if self._gate_reason else 'open'
        return {
            'verdict': verdict, 'limit': START_DISTANCE, 'approach_s': took,
            'reason': self._refused or self._gate_reason,
        }  # fmt: skip

    def as_dict(self) -> dict:
        """Return the rest: ticks in each state, counters, events, the smallest clearance."""
        out = {
            'ticks': dict(self._states),
            'counters': {k: int(v) for k, v in self._supervisor.counters.items()},
            'events': self._events,
            'last_state': self._supervisor.state.value,
        }
        if self._collision is not None and math.isfinite(self._nearest[0]):
            distance, what, at = self._nearest
            out['clearance'] = {
                'smallest': distance, 'between': what, 'time_s': at, 'limit': self._stop_distance,
                'measured': self._measured // CLEARANCE_EVERY, 'below': int(self._near_ticks),
            }  # fmt: skip
        return out


def _collision_model(robot: RobotSpec):
    """Return the filter's own model, or None and why there is none."""
    if robot.collision is None or not robot.urdf:
        return None, ''
    from pi0_ros.safety.collision import CollisionModel

    try:
        text = robot.urdf_path.read_text(encoding='utf-8')
        return CollisionModel(text, robot, robot.urdf), ''
    except (Pi0RosError, OSError) as error:
        return None, f'clearances are not known: {error}'
