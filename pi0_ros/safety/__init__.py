# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
What stands between a policy and the motors: limits, the filter, playout, the supervisor.

Pure Python and NumPy, no ROS, no torch. Used by ``nodes.safety_filter`` and by ``replay``, which
drive the very same classes. All positions are in COMMAND units (arm joints rad, grippers in the
unit that their driver takes), in the order of ``Limits.names``. All times are seconds as float on
ONE steady clock that the caller supplies as ``now``; nothing in here reads a clock.

In short::

    limits = Limits.from_robot(robot).narrowed_by_urdf(xml, prefixes=('left/', 'right/'))
    limits = Limits(names, lower, upper, velocity, acceleration, jerk, continuous=None)

    filter = SafetyFilter(limits, period=0.02, squeeze=None)   # squeeze: {joint: distance}
    filter.reset(measured)                     # at rest there; raises Pi0RosError if not finite
    command, report = filter.step(target, measured=None, velocity=None)
    command, report = filter.brake()           # shortest stop inside every limit, then hold it
    filter.command, filter.stop_position, filter.at_rest

    supervisor = SafetySupervisor(
        limits, period, command_timeout=0.1, state_timeout=0.2, tracking_error=0.3,
        tracking_time=0.5, start_distance=0.1, start_speed=0.1, start='approach' | 'refuse',
        setpoint_lead=0.04, squeeze=None, distance=None, clearance=0.0)
        # tracking_error: one number or one per joint, math.inf switches a joint's check off
        # distance(command [dof]) -> metres of clearance (or (metres, 'what to what'))
    supervisor.on_measured(now, positions) -> '' or why it was refused
    supervisor.on_setpoint(now, due_s, positions) -> '' or why it was refused
        # due_s: in the SENDER's time (ROS time, s); 0 or None: unstamped, due on arrival
    supervisor.reject_setpoint(now, reason)    # the node found it unusable (names, length)
    supervisor.enable(now) / disable(now) / stop(now, reason) / reset(now) -> (accepted, message)
    supervisor.motor_error(now, text)          # stops and latches
    output = supervisor.tick(now)              # once a period
    output.command                             # float64 [dof] to send now, or None: send nothing
    output.state                               # State.WAITING ... State.STOPPED (a str enum)
    output.reason                              # one sentence: why this state
    output.report                              # the filter's Report, or None
    output.events                              # tuple of sentences, new since the last tick
    supervisor.counters                        # dict name -> int
"""

from __future__ import annotations

from pi0_ros.safety.filter import LimitedJoint, Report, SafetyFilter
from pi0_ros.safety.limits import Limits
from pi0_ros.safety.playout import Playout, Sample
from pi0_ros.safety.supervisor import Output, SafetySupervisor, State

__all__ = [
    'LimitedJoint',
    'Limits',
    'Output',
    'Playout',
    'Report',
    'SafetyFilter',
    'SafetySupervisor',
    'Sample',
    'State',
]
