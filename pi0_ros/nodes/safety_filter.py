# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
The safety filter as a process: plumbing around ``pi0_ros.safety`` (docs/safety.md).

Threads. The executor's thread takes messages and service calls and does all that may take long
(logging, status, graph queries). Live, a thread of its own ticks on the steady clock, decides and
publishes the command; simulated, the executor's thread ticks with ``/clock``. One lock guards the
supervisor and the inputs; it is held for microseconds and never while anything is published or
logged.
"""

from __future__ import annotations

import array
import collections
import functools
import gc
import math
import os
import sys
import threading
import time
import traceback

import numpy as np
from diagnostic_msgs.msg import DiagnosticStatus, KeyValue
from rclpy.duration import Duration
from rclpy.qos import DurabilityPolicy, LivelinessPolicy, QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool, String
from std_srvs.srv import SetBool, Trigger

from pi0_ros import messages
from pi0_ros.bringup import urdf_text
from pi0_ros.errors import Pi0RosError
from pi0_ros.nodes.clock import NANOSECONDS
from pi0_ros.nodes.lifecycle import ERROR, OK, WARN, ManagedNode, Status, run
from pi0_ros.nodes.outputs import Outputs
from pi0_ros.robot import RobotSpec
from pi0_ros.safety import Limits, SafetySupervisor, State
from pi0_ros.safety.collision import CollisionModel
from pi0_ros.safety.inputs import (
    RIVAL_WINDOW,
    Commanders,
    Heartbeat,
    MeasuredPose,
    SetpointReader,
    StampAge,
)

try:
    from rclpy.event_handler import SubscriptionEventCallbacks
except ImportError:  # Humble
    from rclpy.qos_event import SubscriptionEventCallbacks

CHECKS = ('collision', 'tracking_error')
"""Checks that ``disabled_checks`` may name."""

ANY_PUBLISHER = QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT)
"""Matches publishers of every reliability and durability (field report B31)."""

RELIABLE = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)

LATCHED = QoSProfile(
    depth=1, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL
)

STOPPING_BOUND_S = 2.0
"""
Longest that deactivation waits for the arm to come to rest.

At the default limits the hardest stop, from 3.14 rad/s, takes 0.09 s; a robot whose limits need
longer than this gets its last command as it is then, still inside its limits.
"""

WARNING_PERIOD_S = 10.0
"""How often a check that is switched off is complained about."""

LATENESS_TICKS = 3000
"""The diagnostics judge how even the ticks are by the last so many: a minute at 50 Hz."""

COLLECT_EVERY = 50
"""Ticks between the garbage collections, which are done in the slack after one."""


class FilterTime:
    """
    The filter's own time: monotonic, whatever the clocks do.

    Live it is the steady clock. Simulated it follows ``/clock`` as long as that moves; when it has
    stood still for ``timeout`` seconds of wall time, time goes on with the wall clock, so that
    watchdogs bite and the arm is brought to rest. A backward jump takes no time. Not thread safe.
    """

    def __init__(self, simulated, timeout: float, wall=time.monotonic):
        self._simulated = simulated  # () -> s, or None when live
        self._timeout = timeout
        self._wall = wall
        self._last = simulated() if simulated else 0.0
        self._moved_at = self._counted_to = wall()
        self._time = 0.0
        self.jumps = 0

    def now(self) -> float:
        """Return the time [s]."""
        wall = self._wall()
        if self._simulated is None:
            return wall
        read = self._simulated()
        step = read - self._last
        if step != 0.0:
            if self._last == 0.0:
                step = 0.0  # /clock begins, at whatever time
            elif step < 0.0:
                step, self.jumps = 0.0, self.jumps + 1
            self._time += step
            self._last = read
            self._moved_at = wall
            self._counted_to = wall + self._timeout
        elif wall > self._counted_to and self.standing:
            self._time += wall - max(self._counted_to, self._moved_at + self._timeout)
            self._counted_to = wall
        return self._time

    @property
    def standing(self) -> bool:
        """Whether simulated time has stood still for the timeout (or never began)."""
        return self._simulated is not None and self._wall() - self._moved_at > self._timeout

    @property
    def begun(self) -> bool:
        return self._simulated is None or self._last > 0.0

    def advance(self, seconds: float) -> None:
        """Let time pass that was waited for elsewhere; no effect when live."""
        self._time += seconds


class SafetyFilterNode(ManagedNode):
    """Lifecycle node; its topics and services are in docs/safety.md."""

    def __init__(self):
        super().__init__('safety_filter')
        self._declare_parameters()
        self._lock = threading.Lock()
        self._owned = []
        self._events = collections.deque(maxlen=200)
        self._wake = self.create_guard_condition(self._report_events)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._tick_timers = []
        self._supervisor: SafetySupervisor | None = None
        self._outputs: Outputs | None = None
        self._complaints: dict[str, tuple[str, float]] = {}

    def _declare_parameters(self) -> None:
        faults = []

        def declare(name, default, description, **bounds):
            try:
                value = self.declare(name, default, description, read_only=True, **bounds)
                if isinstance(value, float) and not math.isfinite(value):
                    faults.append(f"parameter '{name}' is {value}; give a finite number")
            except Pi0RosError as error:
                faults.append(str(error))

        declare('robot', 'aloha', 'robot name or path of its YAML file')
        declare('robot_description', '', 'text of a URDF whose limits narrow those of the robot')
        declare('output', '', "'' = outputs of the robot's YAML, 'none' = joint_command only")
        declare('auto_enable', False, 'enable once, as soon as the measured pose is steady')
        declare(
            'command_timeout', 0.1, 'setpoints older than this ramp down [s]',
            minimum=0.02, maximum=2.0,
        )  # fmt: skip
        declare(
            'state_timeout', 0.2, 'measured poses older than this hold [s]',
            minimum=0.02, maximum=2.0,
        )  # fmt: skip
        declare(
            'setpoint_lead', 0.04, 'how far ahead setpoints are sent [s]',
            minimum=0.0, maximum=0.5,
        )  # fmt: skip
        declare(
            'tracking_error', 0.3, 'largest lag of an arm joint behind its command [rad]',
            minimum=0.01, maximum=3.2,
        )  # fmt: skip
        declare(
            'tracking_time', 0.5, 'how long it may be exceeded before a latched stop [s]',
            minimum=0.02, maximum=5.0,
        )  # fmt: skip
        declare('start', 'approach', "first target far off: 'approach' it slowly, or 'refuse'")
        declare(
            'start_distance', 0.1, 'a first target farther than this is far off [rad]',
            minimum=0.001, maximum=3.2,
        )  # fmt: skip
        declare(
            'start_speed', 0.3, 'speed of that approach [rad/s]', minimum=0.01, maximum=1.0
        )
        declare('require_stop_heartbeat', False, 'a silent stop publisher counts as a stop')
        declare(
            'stop_heartbeat_timeout', 0.5, 'silence of the stop publisher that counts [s]',
            minimum=0.05, maximum=5.0,
        )  # fmt: skip
        declare('motor_error_topic', 'motor_error', 'std_msgs/String; any text but empty stops')
        declare('disabled_checks', '', f'checks to switch off, by name: {", ".join(CHECKS)}')
        declare(
            'clock_timeout', 0.5, 'simulated: /clock standing for this long stops [s, wall time]',
            minimum=0.05, maximum=60.0,
        )  # fmt: skip
        declare(
            'realtime_priority', 20, 'SCHED_FIFO priority of the tick where permitted; 0: none',
            minimum=0, maximum=90,
        )  # fmt: skip
        if not faults:
            if self.parameter('start') not in ('approach', 'refuse'):
                faults.append(
                    f"parameter 'start' is '{self.parameter('start')}'; "
                    "expected 'approach' or 'refuse'"
                )
            if self.parameter('output') not in ('', 'none'):
                faults.append(
                    f"parameter 'output' is '{self.parameter('output')}'; expected '' (as the "
                    "robot's YAML says) or 'none'"
                )
            unknown = sorted(set(self._disabled_checks()) - set(CHECKS))
            if unknown:
                faults.append(
                    f"parameter 'disabled_checks' names {', '.join(unknown)}; "
                    f'expected {" or ".join(CHECKS)}'
                )
            if self.parameter('setpoint_lead') > self.parameter('command_timeout'):
                faults.append(
                    f"parameter 'setpoint_lead' ({self.parameter('setpoint_lead')} s) must not "
                    f"exceed 'command_timeout' ({self.parameter('command_timeout')} s)"
                )
        if faults:
            raise Pi0RosError('; '.join(faults))

    def _disabled_checks(self) -> list[str]:
        return [n.strip() for n in self.parameter('disabled_checks').split(',') if n.strip()]

    # -- lifecycle (executor's thread) ---------------------------------------------------------

    def configure(self) -> None:
        robot = RobotSpec.load(self.parameter('robot'))
        self._robot = robot
        self._period = 1.0 / robot.control_rate
        off = self._disabled_checks()
        limits = Limits.from_robot(robot)
        description = self.parameter('robot_description')
        if description:
            prefixes = tuple(dict.fromkeys(arm.prefix for arm in robot.arms))
            limits = limits.narrowed_by_urdf(description, prefixes=prefixes)
        self._collision = None
        if robot.collision is not None and 'collision' not in off:
            self._collision = CollisionModel(urdf_text(robot), robot, robot.urdf)
        tracking = [
            math.inf if joint.is_gripper or 'tracking_error' in off
            else self.parameter('tracking_error')
            for joint in robot.joints
        ]  # fmt: skip
        squeeze = {
            gripper.name: gripper.squeeze_limit
            for gripper in robot.grippers.values()
            if gripper.squeeze_limit is not None
        }
        self._new_supervisor = functools.partial(
            SafetySupervisor, limits, self._period,
            command_timeout=self.parameter('command_timeout'),
            state_timeout=self.parameter('state_timeout'),
            tracking_error=tracking,
            tracking_time=self.parameter('tracking_time'),
            start_distance=self.parameter('start_distance'),
            start_speed=self.parameter('start_speed'),
            start=self.parameter('start'),
            setpoint_lead=self.parameter('setpoint_lead'),
            squeeze=squeeze or None,
            distance=self._measure_clearance if self._collision else None,
            clearance=robot.collision.stop_distance if self._collision else 0.0,
            slow_clearance=robot.collision.slow_distance if self._collision else 0.0,
        )  # fmt: skip
        self._supervisor = self._new_supervisor()
        self._time = FilterTime(
            self.clock.seconds if self.clock.simulated else None, self.parameter('clock_timeout')
        )
        self._pose = MeasuredPose(robot, self.parameter('state_timeout'))
        self._setpoints = SetpointReader(robot)
        self._stamps = StampAge()
        self._commanders = Commanders()
        self._heartbeat = None
        if self.parameter('require_stop_heartbeat'):
            self._heartbeat = Heartbeat(self.parameter('stop_heartbeat_timeout'))
        self._state: State | None = None
        self._reason = ''
        self._rivals: list[str] = []
        self._auto_enable = self.parameter('auto_enable')
        self._limited: collections.Counter = collections.Counter()
        self._ticks = self._missed_ticks = 0
        self._lateness = np.zeros(LATENESS_TICKS)
        self._jumps = 0
        self._warned_at = -math.inf
        self._clearance = (math.inf, '')
        self._connect(limits)

    def _connect(self, limits: Limits) -> None:
        robot, own = self._robot, self._owned
        self._command = messages.joint_state(robot.joint_names, np.zeros(robot.dof), 0)
        self._command_publisher = self.create_publisher(JointState, 'joint_command', 10)
        self._status_publisher = self.create_publisher(
            DiagnosticStatus, 'safety_filter/status', LATCHED
        )
        own += [(self.destroy_publisher, self._command_publisher)]
        own += [(self.destroy_publisher, self._status_publisher)]
        kind = self.parameter('output')
        if kind != 'none':
            self._outputs = Outputs(robot, limits.lower, limits.upper)
            self._outputs.open(self)
        self._raw_topic = self.resolve_topic_name('joint_command_raw')
        self._subscribe(JointState, 'joint_command_raw', self._on_setpoint)
        for topic in dict.fromkeys(topic for topic, _ in robot.joint_state_sources):
            self._subscribe(
                JointState, topic, lambda message, topic=topic: self._on_joints(topic, message)
            )
        if self.parameter('motor_error_topic'):
            self._subscribe_surely(
                String, self.parameter('motor_error_topic'), self._on_motor_error
            )
        self._connect_stop()
        for kind, name, callback in (
            (SetBool, 'safety_filter/enable', self._on_enable),
            (Trigger, 'safety_filter/stop', self._on_stop),
            (Trigger, 'safety_filter/reset', self._on_reset),
        ):
            own.append((self.destroy_service, self.create_service(kind, name, callback)))

    def _connect_stop(self) -> None:
        """Subscribe to ``emergency_stop``; the same stop may arrive more than once."""
        topic = 'emergency_stop'
        self._subscribe_surely(Bool, topic, self._on_emergency_stop)
        if self._heartbeat is None:
            return
        limit = Duration(nanoseconds=round(self.parameter('stop_heartbeat_timeout') * 1e9))
        for policy, callback in (
            ({'liveliness': LivelinessPolicy.AUTOMATIC, 'liveliness_lease_duration': limit},
             {'liveliness': self._on_liveliness}),
            ({'deadline': limit}, {'deadline': self._on_deadline}),
        ):  # fmt: skip
            self._subscribe(
                Bool, topic, self._on_emergency_stop,
                QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT, **policy),
                SubscriptionEventCallbacks(
                    incompatible_qos=lambda event: None, use_default_callbacks=False, **callback
                ),
            )  # fmt: skip

    def _subscribe_surely(self, kind, topic: str, callback) -> None:
        """
        Subscribe in three ways to what must not be missed and may arrive twice.

        Best effort hears every publisher, reliable is sent again what was lost, transient local
        learns what was latched before this node started.
        """
        quiet = SubscriptionEventCallbacks(
            incompatible_qos=lambda event: None, use_default_callbacks=False
        )
        self._subscribe(kind, topic, callback)
        self._subscribe(kind, topic, callback, RELIABLE, quiet)
        self._subscribe(kind, topic, callback, LATCHED, quiet)

    def _subscribe(self, kind, topic, callback, qos=ANY_PUBLISHER, events=None) -> None:
        subscription = self.create_subscription(kind, topic, callback, qos, event_callbacks=events)
        self._owned.append((self.destroy_subscription, subscription))

    def activate(self) -> None:
        self._stopping.clear()
        with self._lock:
            latched = self._supervisor.state is State.STOPPED
            # anything may have moved the arm meanwhile: only the latch outlives a deactivation
            self._supervisor = self._new_supervisor()
            self._pose.forget()
            if latched:
                self._supervisor.stop(self._time.now(), self._reason or 'stopped while inactive')
        if not gc.isenabled():
            gc.collect()
            gc.freeze()  # what stays is not looked at again: a collection takes 0.2 ms
        self._raise_priority(below=1)
        if self.clock.simulated:
            timer = self.clock.create_timer(self._period, self._tick)
            guard = self.clock.create_wall_timer(self._period, self._tick_while_clock_stands)
            self._tick_timers = [timer, guard]
        else:
            self._tick_timers = []
            self._thread = threading.Thread(target=self._run_ticks, name='tick', daemon=True)
            self._thread.start()

    def deactivate(self) -> None:
        """Bring the arm to rest, then fall silent."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(STOPPING_BOUND_S)
            self._thread = None
        for timer in self._tick_timers:
            self.destroy_timer(timer)
        self._tick_timers = []
        with self._lock:
            now = self._time.now()
            self._supervisor.disable(now)
        previous = None
        for count in range(round(STOPPING_BOUND_S / self._period)):
            command = self._decide_and_publish(now + count * self._period)
            if command is None or (previous is not None and np.array_equal(command, previous)):
                break
            previous = command.copy()
            time.sleep(self._period)
        self._time.advance((count + 1) * self._period)
        self._report_events()

    def cleanup(self) -> None:
        if self._outputs is not None:
            self._outputs.close(self)
            self._outputs = None
        while self._owned:
            destroy, entity = self._owned.pop()
            destroy(entity)
        self._supervisor = None

    # -- inputs (executor's thread) ------------------------------------------------------------

    def _on_joints(self, topic: str, message: JointState) -> None:
        if len(message.velocity) not in (0, len(message.name)):
            self._complain(
                f'velocities of {topic}',
                f'{topic}: {len(message.velocity)} velocities for {len(message.name)} joints; '
                'ignored, positions are used',
            )
        with self._lock:
            now = self._time.now()
            pose, fault = self._pose.add(topic, message.name, message.position, now)
            if pose is not None:
                self._supervisor.on_measured(now, self._robot.measured_to_command(pose))
        if fault:
            self._complain(f'joint states of {topic}', fault)

    def _on_setpoint(self, message: JointState, info: dict) -> None:
        gid = info.get('publisher_gid')  # from Kilted on
        accepted = self._commanders.heard(
            bytes(gid['data']) if gid else None, info.get('publication_sequence_number'),
            time.monotonic(),
        )  # fmt: skip
        rivals = self._rival_commanders()
        stamp = message.header.stamp
        due = stamp.sec + stamp.nanosec / NANOSECONDS
        position, fault = self._setpoints.read(message.name, message.position)
        if rivals:
            fault = f'more than one publisher on joint_command_raw: {", ".join(rivals)}'
        elif not accepted:
            fault = f'another publisher spoke within {RIVAL_WINDOW} s; one at a time'
        clock_now = self.clock.now_ns() / NANOSECONDS
        with self._lock:
            now = self._time.now()
            fault = fault or self._stamps.fault(due, clock_now, now)
            if rivals and not self._rivals:
                self._supervisor.disable(now)
                self._auto_enable = False
                self._wake.trigger()
            self._rivals = rivals
            if fault:
                self._supervisor.reject_setpoint(now, fault)
            else:
                fault = self._supervisor.on_setpoint(now, due or None, position)
        if fault:
            self._complain('setpoints', f'setpoint refused: {fault}')

    def _rival_commanders(self) -> list[str]:
        """Return who else commands (executor's thread, as all that touches ``_commanders``)."""
        now = time.monotonic()
        if not self._commanders.in_doubt(now):
            return []
        endpoints = [
            (_full_name(e), bytes(e.endpoint_gid))
            for e in self.get_publishers_info_by_topic(self._raw_topic)
        ]
        return self._commanders.rivals(endpoints, now)

    def _on_emergency_stop(self, message: Bool) -> None:
        with self._lock:
            if self._heartbeat is not None:
                self._heartbeat.beat(time.monotonic())
            if message.data:
                self._supervisor.stop(self._time.now(), 'emergency_stop was received')

    def _on_liveliness(self, event) -> None:
        with self._lock:
            self._heartbeat.liveliness(event.alive_count)

    def _on_deadline(self, event) -> None:
        with self._lock:
            self._heartbeat.deadline_missed()

    def _on_motor_error(self, message: String) -> None:
        if message.data.strip():
            with self._lock:
                self._supervisor.motor_error(self._time.now(), message.data.strip())

    def _on_enable(self, request, response):
        self._rivals = self._rival_commanders()
        with self._lock:
            now = self._time.now()
            fault = self._why_not_enabled() if request.data else ''
            if fault:
                response.success, response.message = False, fault
            elif request.data:
                response.success, response.message = self._supervisor.enable(now)
            else:
                self._auto_enable = False
                response.success, response.message = self._supervisor.disable(now)
        return response

    def _why_not_enabled(self) -> str:
        if not self.active:
            return 'safety_filter is not active; activate it first'
        if not self._time.begun:
            return 'no /clock yet; start the simulator, or set use_sim_time: false'
        if self._time.standing:
            return '/clock stands still; let the simulator run'
        if self._rivals:
            names = ', '.join(self._rivals)
            return f'more than one publisher on joint_command_raw ({names}); stop all but one'
        if self._heartbeat is not None and self._heartbeat.lost(time.monotonic()):
            return 'no heartbeat on emergency_stop; start the stop publisher'
        return ''

    def _on_stop(self, request, response):
        with self._lock:
            response.success, response.message = self._supervisor.stop(
                self._time.now(), 'the service safety_filter/stop was called'
            )
        return response

    def _on_reset(self, request, response):
        with self._lock:
            if self._heartbeat is not None and self._heartbeat.lost(time.monotonic()):
                response.success = False
                response.message = 'no heartbeat on emergency_stop; start the stop publisher'
            else:
                response.success, response.message = self._supervisor.reset(self._time.now())
        return response

    # -- the tick ------------------------------------------------------------------------------

    def _run_ticks(self) -> None:
        """Tick on the steady clock until told to stop (the tick thread)."""
        self._raise_priority()
        due = time.monotonic() + self._period
        while not self._stopping.is_set():
            delay = due - time.monotonic()
            if delay > 0.0:
                time.sleep(delay)
            late = time.monotonic() - due
            self._lateness[self._ticks % LATENESS_TICKS] = late
            # Played is where the arm should be at the tick, not where a late thread finds it: the
            # steps stay even although the ticks are not.
            self._tick_at(due if late < self._period else None)
            due += self._period
            if late > self._period:  # skipped, never caught up: a burst would be a step
                missed = int(late / self._period)
                self._missed_ticks += missed
                due += missed * self._period

    def _raise_priority(self, below: int = 0) -> None:
        """
        Schedule the calling thread as a real-time one, where permitted.

        The executor's thread, which is light, comes right below the tick's: were it an ordinary
        one, it could be put aside by a greedy neighbour while it holds the interpreter's lock.
        """
        priority = self.parameter('realtime_priority') - below
        if priority > 0 and hasattr(os, 'sched_setscheduler'):
            try:
                os.sched_setscheduler(
                    threading.get_native_id(), os.SCHED_FIFO, os.sched_param(priority)
                )
            except OSError:
                pass  # not permitted: an ordinary user; docs/safety.md says how to permit it

    def _tick_while_clock_stands(self) -> None:
        if self._time.standing:
            self._tick()

    def _tick(self) -> None:
        self._tick_at(None)

    def _tick_at(self, now: float | None) -> None:
        try:
            self._decide_and_publish(now)
        except Exception:
            with self._lock:
                reason = 'the filter failed, see its log'
                self._supervisor.stop(self._time.now(), reason)
            self._events.append(('error', traceback.format_exc()))
            self._wake.trigger()
        if self._ticks % COLLECT_EVERY == 0 and not gc.isenabled():
            gc.collect()

    def _decide_and_publish(self, now: float | None) -> np.ndarray | None:
        """Run one tick at a time (None: now); return the command that was sent."""
        with self._lock:
            if now is None:
                now = self._time.now()
            self._watch(now)
            output = self._supervisor.tick(now)
        self._ticks += 1
        if output.command is not None:
            self._publish(output.command)
        if output.report is not None:
            for limited in output.report.limited:
                self._limited[limited.joint] += 1
        changed = output.state is not self._state or output.reason != self._reason
        self._state, self._reason = output.state, output.reason
        if changed or output.events:
            self._events.extend(('event', text) for text in output.events)
            self._wake.trigger()
        return output.command

    def _watch(self, now: float) -> None:
        """Act on what has no message of its own: time, heartbeat, automatic enabling."""
        if self._time.jumps != self._jumps:
            self._jumps = self._time.jumps
            self._supervisor.disable(now)
            self._pose.forget()
            self._events.append(('event', '/clock jumped back; holding, enable again'))
        if self._heartbeat is not None and self._state not in (None, State.STOPPED):
            enabled = self._state not in (State.WAITING, State.READY)
            if enabled and self._heartbeat.lost(time.monotonic()):
                self._supervisor.stop(now, 'the publisher of emergency_stop is gone')
        if self._auto_enable and self._state is State.READY and not self._why_not_enabled():
            accepted, _ = self._supervisor.enable(now)
            self._auto_enable = not accepted

    def _publish(self, command: np.ndarray) -> None:
        stamp_ns = self.clock.now_ns()
        encoded = self._outputs.encode(command, stamp_ns) if self._outputs is not None else ()
        self._command.header.stamp = messages.time_from_ns(stamp_ns)
        self._command.position = array.array('d', command.tobytes())
        if self._outputs is not None:
            self._outputs.publish(encoded)
        self._command_publisher.publish(self._command)

    def _measure_clearance(self, command: np.ndarray) -> tuple[float, str]:
        self._clearance = self._collision.distance(command)
        return self._clearance

    # -- reporting (executor's thread) ---------------------------------------------------------

    def _complain(self, key: str, text: str) -> None:
        """Log a fault of one input when it is new, once a second at most; counters have all."""
        last, at = self._complaints.get(key, ('', -math.inf))
        if text != last and time.monotonic() - at >= 1.0:
            self._complaints[key] = text, time.monotonic()
            self.get_logger().warning(text)

    def _report_events(self) -> None:
        while self._events:
            kind, text = self._events.popleft()
            if kind == 'error':
                self.get_logger().error(f'tick failed, stopped:\n{text}')
            else:
                self.get_logger().info(text)
        if self._supervisor is not None and self._state is not None:
            self._status_publisher.publish(self._status())

    def _status(self) -> DiagnosticStatus:
        row = self._state_row()
        return DiagnosticStatus(
            name='safety_filter',
            hardware_id=self._robot.name,
            level=row.level,
            message=row.message,
            values=[KeyValue(key=k, value=str(v)) for k, v in row.values.items()],
        )

    def _state_row(self) -> Status:
        state, reason = self._state, self._reason
        if self._rivals:
            reason = f'more than one publisher on joint_command_raw: {", ".join(self._rivals)}'
        level = {State.STOPPED: ERROR, State.ACTIVE: OK, State.READY: OK}.get(state, WARN)
        limited = {f'{joint} limited [ticks]': n for joint, n in self._limited.most_common()}
        with self._lock:
            counters = dict(self._supervisor.counters)
        return Status(
            'state', level, f'{state.value}: {reason}' if reason else state.value,
            {'state': state.value, 'reason': reason, **counters, **limited},
        )

    def diagnostics(self) -> list[Status]:
        if self._supervisor is None or self._state is None:
            return []
        self._rivals = self._rival_commanders()
        self._status_publisher.publish(self._status())
        rows = [self._state_row(), self._tick_row(), self._joints_row()]
        if self.clock.simulated and self._time.standing:
            rows.append(Status('clock', WARN, '/clock stands still, the wall clock goes on'))
        rows += self._clearance_rows() + self._foreign_rows() + self._checks_rows()
        return rows

    def _clearance_rows(self) -> list[Status]:
        metres, what = self._clearance
        if self._collision is None or not what:
            return []
        near = metres < self._robot.collision.slow_distance
        return [
            Status(
                'clearance', WARN if near else OK, f'{what}: {metres:.3f} m',
                {'between': what, 'clearance [m]': f'{metres:.4f}'},
            )
        ]  # fmt: skip

    def _tick_row(self) -> Status:
        recent = np.sort(self._lateness[: min(self._ticks, LATENESS_TICKS)]) * 1e3
        p50, p99, worst = (recent[int(q * (len(recent) - 1))] for q in (0.5, 0.99, 1.0))
        return Status(
            'tick', WARN if worst > self._period * 1e3 else OK,
            f'ticks of the last minute are up to {worst:.2f} ms late',
            {
                'ticks': self._ticks, 'missed ticks': self._missed_ticks,
                'lateness p50 [ms]': f'{p50:.3f}', 'lateness p99 [ms]': f'{p99:.3f}',
                'lateness max [ms]': f'{worst:.3f}',
            },
        )  # fmt: skip

    def _joints_row(self) -> Status:
        with self._lock:
            missing = self._pose.missing(self._time.now())
        if not missing:
            return Status('joint states', OK, 'every joint is read')
        return Status(
            'joint states', WARN, f'not read lately: {", ".join(missing)}',
            {'topics': ', '.join(topic for topic, _ in self._robot.joint_state_sources)},
        )  # fmt: skip

    def _foreign_rows(self) -> list[Status]:
        """Warn of others that publish what only this node may (field report B74)."""
        own = self.get_fully_qualified_name()
        topics = ['joint_command', *(self._outputs.topics if self._outputs is not None else ())]
        rows = []
        for topic in topics:
            resolved = self.resolve_topic_name(topic)
            if self.count_publishers(resolved) < 2:
                continue
            names = [_full_name(e) for e in self.get_publishers_info_by_topic(resolved)]
            if own in names:
                names.remove(own)
            text = f'others publish on {resolved}: {", ".join(sorted(names))}; stop them'
            self._complain(f'publishers of {resolved}', text)
            rows.append(Status('outputs', WARN, text))
        return rows

    def _checks_rows(self) -> list[Status]:
        off = self._disabled_checks()
        if not off:
            return []
        text = f'switched off by disabled_checks: {", ".join(off)}'
        if time.monotonic() - self._warned_at >= WARNING_PERIOD_S:
            self._warned_at = time.monotonic()
            self.get_logger().warning(text)
        return [Status('checks', WARN, text)]


def _full_name(endpoint) -> str:
    return f'{endpoint.node_namespace.rstrip("/")}/{endpoint.node_name}'


def _prepare_process() -> None:
    """
    Make this process tick evenly beside greedy ones.

    Collections of garbage are left to the slack after a tick; a thread that waits for the
    interpreter gets it within half a millisecond; where permitted the process is a little nicer to
    itself than to others.
    """
    sys.setswitchinterval(0.0005)
    gc.disable()
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    except OSError:
        pass


def main(args: list[str] | None = None) -> int:
    _prepare_process()
    return run(SafetyFilterNode, args)


if __name__ == '__main__':
    sys.exit(main())
