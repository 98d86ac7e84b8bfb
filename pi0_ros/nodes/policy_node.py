# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
The policy as a lifecycle node: cameras and joints in, one setpoint a tick out.

Threads. The executor's thread only stores messages, undecoded. The inference thread
(:mod:`pi0_ros.control.inference`) decodes the newest ones and owns the policy. The tick thread
sends setpoints and waits for nothing else. What they share is the buffer and the chunk executor
(each with its own lock) and the epoch: everything that makes earlier predictions worthless (a new
prompt, a reset, a hold, a jump of the clock) raises it, and results of an older epoch are dropped.

Holding. Nothing is sent before the first chunk; when the queue runs dry the last setpoint is
repeated. Without a usable observation for ``max_age``, after an error of the policy, or without a
prompt, the stream ends, and the safety filter brings the arm to rest.
"""

from __future__ import annotations

import functools
import gc
import importlib
import inspect
import math
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from rcl_interfaces.msg import SetParametersResult
from rclpy.clock import JumpThreshold
from rclpy.duration import Duration
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import String
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory

from pi0_ros.control import (
    STITCHERS,
    ActionChunk,
    ChunkExecutor,
    Failure,
    InferenceThread,
    Job,
    make_stitcher,
    noise_for,
)
from pi0_ros.control.executor import TOLERANCE_S
from pi0_ros.errors import Pi0RosError
from pi0_ros.messages import (
    NANOSECONDS,
    chunk_message,
    joint_state,
    ns_from_time,
    stamp_of_serialized,
)
from pi0_ros.nodes.clock import NodeClock
from pi0_ros.nodes.lifecycle import (
    ERROR,
    OK,
    WARN,
    EndRequested,
    ManagedNode,
    Status,
    run,
)
from pi0_ros.observation import ObservationBuffer, decode_image
from pi0_ros.robot import CameraSpec, RobotSpec

SENSOR_QOS = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
"""Matches reliable and best-effort publishers alike; the newest frame is the only one wanted."""

JOINT_QOS = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)
"""Enough to interpolate; more would have to be worked off after a stall before the newest."""

WATCH_PERIOD_S = 0.05
"""Inputs are judged this often (wall time): a dead camera is noticed within max_age + 50 ms."""

FIRST_REPORT_S = 1.0
"""Inputs get this long to appear before their absence is announced (required: within 2 s)."""

REPORT_PERIOD_S = 10.0
"""Problems that last are repeated in the log this often."""

FRAME_WAIT_S = 0.05
"""An inference begins when a frame arrives, but does not wait longer than this for it."""

SPREAD_S = 0.002
"""Of the moments at which a frame arrives those count at which all cameras' newest are as close
together as they lately were, up to this: of cameras in step the last one begins the inference."""

SPREADS = 5
"""How many frames of every camera "lately" is."""

RETRY_S = 1.0
"""After an error the policy is asked again this much later; the arm holds meanwhile."""

CLOSE_BOUND_S = 1.5
"""How long the end of the node waits for the policy's present call."""

TRANSPORTS = 'UDPv4?sockets_size=4MB'
"""
How frames reach this process under Fast DDS, unless the user has chosen.

A 640x480 frame has 0.9 MB, the publisher's shared memory segment 0.5 MB and a socket's default
buffer 0.2 MB: with the defaults 3 of 90 best-effort frames a second arrived, with this 90.
"""

SWITCH_INTERVAL_S = 0.0005
"""
How long Python lets one thread compute while another waits (its default: 5 ms).

A policy that holds the interpreter makes the tick thread wait this long, several times a tick.
"""

LIVE = ('prompt', 'execution_horizon', 'stitching', 'blend_ticks', 'max_errors')
"""Parameters that may be changed while the node is configured; others: clean up first."""


@dataclass(frozen=True)
class Settings:
    """The node's parameters, checked together."""

    policy: str
    control_rate: float
    policy_rate: float
    setpoint_lead: float
    execution_horizon: int
    stitching: str
    blend_ticks: int
    max_age: float
    max_skew: float

    def check(self) -> None:
        """
        Refuse what does not fit together, all faults at once.

        :raises Pi0RosError: naming every parameter at fault.
        """
        faults = []
        module, _, factory = self.policy.partition(':')
        if not module or not factory:
            faults.append(f"policy '{self.policy}' is not of the form package.module:factory")
        if self.stitching not in STITCHERS:
            faults.append(f"stitching '{self.stitching}' is not one of {', '.join(STITCHERS)}")
        if self.max_skew > self.max_age:
            faults.append(
                f'max_skew {self.max_skew} s exceeds max_age {self.max_age} s; a pairing that '
                'wide would be stale already'
            )
        if self.setpoint_lead and self.setpoint_lead < 1.0 / self.control_rate:
            faults.append(
                f'setpoint_lead {self.setpoint_lead} s is less than one tick '
                f'({1.0 / self.control_rate:.4f} s); give 0 to send when due, or more'
            )
        if faults:
            raise Pi0RosError('; '.join(faults))


class Ticker:
    """
    The thread that sends setpoints; it waits for the next one and for nothing else.

    Live it sleeps on the steady clock (``select``: a ``threading`` timeout follows the system
    clock on Python 3.10, field report B06). Simulated it wakes when ``/clock`` moves.
    """

    def __init__(
        self, clock: NodeClock, executor: ChunkExecutor, send: Callable, priority: int = 0
    ):
        self._clock, self._executor, self._send = clock, executor, send
        self._priority = priority
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name='ticks', daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Look again now: a chunk came, the clock moved, or the thread shall end."""
        try:
            os.write(self._writer, b'.')
        except (BlockingIOError, OSError):  # a wake-up is pending already, or it has ended
            pass

    def clock_moved(self) -> None:
        """Look again if simulated time has reached the next setpoint; ``/clock`` may be fast."""
        due = self._executor.next_poll()
        if due is not None and self._clock.seconds() >= due - TOLERANCE_S:
            self.wake()

    def stop(self) -> None:
        """End the thread; nothing is sent afterwards. Not to be called from the thread itself."""
        self._stopping = True
        self.wake()
        self._thread.join()
        os.close(self._reader)
        os.close(self._writer)

    def _run(self) -> None:
        if self._priority:
            try:  # of this thread alone
                os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(self._priority))
            except (OSError, AttributeError):  # not permitted here, or not Linux
                pass
        while not self._stopping:
            for setpoint in self._executor.poll(self._clock.seconds()):
                self._send(setpoint)
            pause = 0.2
            due = self._executor.next_poll()
            if due is not None and not self._clock.simulated:
                pause = min(max(due - self._clock.seconds(), 0.0), pause)
            if select.select([self._reader], [], [], pause)[0]:
                try:
                    os.read(self._reader, 4096)
                except BlockingIOError:
                    pass


class StampMap:
    """
    Turns times of the tick clock into ROS stamps.

    Both clocks are read once a tick, and a thread can be interrupted in between: such a reading is
    worth nothing. The offset follows the others slowly, and at once only when the system clock was
    set.
    """

    def __init__(self, clock: NodeClock, follow_s: float = 20e-6, step_s: float = 0.05):
        self._clock, self._follow, self._step = clock, follow_s, step_s
        self._offset: float | None = None

    def stamp_ns(self, due: float) -> int:
        if self._clock.simulated:
            return round(due * NANOSECONDS)
        before = self._clock.seconds()
        measured = self._clock.now_ns() / NANOSECONDS
        took = self._clock.seconds() - before
        measured -= before + took / 2
        if self._offset is None:
            self._offset = measured
        elif took < self._step / 4:
            if abs(measured - self._offset) > self._step:
                self._offset = measured
            self._offset += min(max(measured - self._offset, -self._follow), self._follow)
        return round((due + self._offset) * NANOSECONDS)


class Meter:
    """Counts arrivals of one input; rate over the last two seconds of wall time."""

    def __init__(self):
        self._times: deque[float] = deque(maxlen=1000)
        self.count = 0
        self.refused = 0

    def add(self) -> None:
        self.count += 1
        self._times.append(time.monotonic())

    def rate(self) -> float:
        since = time.monotonic() - 2.0
        return sum(t > since for t in list(self._times)) / 2.0


class PolicyNode(ManagedNode):
    """See the module's text; parameters describe themselves (``ros2 param describe``)."""

    def __init__(self, **kwargs):
        super().__init__('policy_node', **kwargs)
        fixed = {'read_only': True}
        name = self.declare('robot', 'aloha', 'robot name or path of its YAML file', **fixed)
        self.robot = RobotSpec.load(name)
        rate = self.robot.control_rate
        self.declare('checkpoint', '', 'directory or hub id of the checkpoint')
        self.declare('prompt', '', 'instruction; the topic prompt changes it')
        self.declare('device', 'cpu', 'torch device of the model: cpu, cuda, cuda:1 or auto')
        self.declare('dtype', 'float32', 'precision of the weights: float32 or bfloat16')
        for name, description in (
            ('action_space', 'what actions mean where the checkpoint is silent: absolute, delta'),
            ('aloha', "pi's ALOHA space where it is silent: openpi, lerobot_old, off"),
            ('normalization', 'zscore, quantile or identity instead of what the checkpoint says'),
            ('statistics', 'path of another norm_stats.json'),
            ('asset_id', "which of the checkpoint's assets/<id>/norm_stats.json"),
            ('tokenizer', "folder, file or hub id instead of the checkpoint's tokenizer"),
        ):
            self.declare(name, '', f'{description}; empty: as the checkpoint has it')
        self.declare('no_normalization', False, 'run a checkpoint that has no statistics')
        self.declare(
            'num_steps', 0, "flow steps an inference; 0: the checkpoint's", minimum=0, maximum=100
        )
        self.declare(
            'policy', 'pi0_ros.policy:from_parameters',
            "factory of the policy as 'package.module:factory'; it gets a dict of all parameters",
        )  # fmt: skip
        self.declare(
            'policy_threads', 0,
            'OpenMP threads of the policy; 0: half of the cores, at least one',
            minimum=0, maximum=1024,
        )  # fmt: skip
        self.declare('seed', 0, "seed of the policy's noise; row numbers add to it", minimum=0)
        self.declare('control_rate', rate, 'setpoints per second [Hz]', minimum=1.0, maximum=1e3)
        self.declare(
            'policy_rate', self.robot.policy_rate, 'rows of a chunk per second [Hz]',
            minimum=0.1, maximum=1e3,
        )  # fmt: skip
        self.declare(
            'setpoint_lead', 2.0 / rate, 'setpoints are sent this long before they are due [s]',
            minimum=0.0, maximum=1.0,
        )  # fmt: skip
        self.declare(
            'execution_horizon', 25,
            'rows of a chunk, from its observation on, after which the next chunk should be there',
            minimum=1, maximum=10000,
        )  # fmt: skip
        self.declare('stitching', 'blend', f'how chunks are joined: {", ".join(STITCHERS)}')
        self.declare(
            'blend_ticks', 20, 'ticks over which the old chunk fades out', minimum=1, maximum=1000
        )
        self.declare(
            'max_age', 0.2, 'oldest input that is acted on [s]', minimum=0.001, maximum=10.0
        )
        self.declare(
            'max_skew', 0.05, 'largest difference of the stamps of one observation [s]',
            minimum=0.0, maximum=10.0,
        )  # fmt: skip
        self.declare(
            'max_errors', 3, 'errors of the policy in a row after which the node deactivates',
            minimum=1, maximum=1000,
        )  # fmt: skip
        self.declare(
            'realtime_priority', 10,
            'SCHED_FIFO priority of the tick thread where permitted; 0: none',
            minimum=0, maximum=90,
        )  # fmt: skip
        self.add_on_set_parameters_callback(self._on_parameters)
        self._prompt = self.parameter('prompt')
        self._lock = threading.RLock()  # epoch, hold and publishing; taken before other locks
        self._open = False  # True from activate to deactivate: whether anything may be published
        self._owned = []
        self._inference: InferenceThread | None = None
        self._executor: ChunkExecutor | None = None
        self._ticker: Ticker | None = None
        self._buffer: ObservationBuffer | None = None
        self._guidable = False
        self._clear_state()

    def _clear_state(self) -> None:
        self._problems: dict[str, str] = {}
        self._reported: dict[str, str] = {}
        self._reported_at = 0.0
        self._hold: str | None = None
        self._last_failure: Failure | None = None
        self._usable_at = -float('inf')
        self._wanted_since: float | None = None
        self._retry_at = 0.0
        self._activated_at = self._watched_at = time.monotonic()
        self._excused = False
        self._published_chunks = 0
        self._crowded: dict[str, str] = {}
        self._frame_ages: deque[float] = deque(maxlen=200)

    # -- lifecycle (executor's thread) ------------------------------------------------------------
    def configure(self) -> None:
        settings = self._settings()
        settings.check()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._given = self._all_parameters()
        self._stamps = StampMap(self.clock)
        self._executor = ChunkExecutor(
            self.robot.dof, settings.control_rate, settings.policy_rate,
            make_stitcher(settings.stitching, settings.blend_ticks),
            settings.execution_horizon, settings.setpoint_lead, haste=not self.clock.simulated,
        )  # fmt: skip
        self._buffer = ObservationBuffer(self.robot, settings.max_age, settings.max_skew)
        self._spreads = deque(maxlen=SPREADS * max(len(self.robot.cameras), 1))
        self._meters = {name: Meter() for name in [*self.robot.cameras, 'joint_states']}
        burst = math.ceil(settings.setpoint_lead * settings.control_rate)  # after a stall
        self._pub_setpoint = self._own(
            self.create_publisher(JointState, 'joint_command_raw', 10 + burst),
            self.destroy_publisher,
        )
        self._pub_chunk = self._own(
            self.create_publisher(JointTrajectory, 'action_chunk', 10), self.destroy_publisher
        )
        self._topics: dict[str, list[str]] = {}
        for camera in self.robot.cameras.values():
            self._subscribe_camera(camera)
        for topic, prefix in self.robot.joint_state_sources:
            self._subscribe(
                'joint_states', JointState, topic, JOINT_QOS,
                functools.partial(self._on_joints, prefix),
            )  # fmt: skip
        self._subscribe('prompt', String, 'prompt', QoSProfile(depth=1), self._on_prompt)
        self._own(
            self.create_service(Trigger, '~/reset', self._on_reset), self.destroy_service
        )
        self._own(
            self.clock.create_wall_timer(WATCH_PERIOD_S, self._watch), self.destroy_timer
        )
        self._follow_clock()
        self._inference = InferenceThread(
            self._make_policy, self._observe, self._on_outcome, self.robot.dof
        )
        self.get_logger().info(f'loading the policy {settings.policy}')
        while not self._inference.wait_ready(0.1):
            if self.ending.is_set():
                raise EndRequested
        if self._inference.failure is not None:
            failure = self._inference.failure
            self.get_logger().debug(failure.traceback)
            raise Pi0RosError(f'the policy cannot be loaded: {failure.message}')
        gc.collect()
        gc.freeze()  # what the model brought is never garbage; searching it stalls the ticks
        self.get_logger().info('policy ready')

    def activate(self) -> None:
        self.failure = None
        self._clear_state()
        with self._lock:
            self._inference.invalidate(reset=True)
            self._executor.clear()
            self._open = True
            self._ticker = Ticker(
                self.clock, self._executor, self._send, self.parameter('realtime_priority')
            )

    def deactivate(self) -> None:
        with self._lock:
            self._open = False
            ticker, self._ticker = self._ticker, None
            if self._inference is not None:
                self._inference.invalidate()
            if self._executor is not None:
                self._executor.clear()
        if ticker is not None:
            ticker.stop()

    def cleanup(self) -> None:
        inference, self._inference = self._inference, None
        if inference is not None and inference.state == 'loading':
            inference.close(0.0)  # it may take minutes; there is nothing to bring to rest yet
        elif inference is not None and not inference.close(CLOSE_BOUND_S):
            self.get_logger().warning(
                f'the policy did not return within {CLOSE_BOUND_S} s; it is left to itself'
            )
        while self._owned:
            entity, destroy = self._owned.pop()
            destroy(entity)
        self._buffer = None

    def _own(self, entity, destroy):
        self._owned.append((entity, destroy))
        return entity

    def _settings(self) -> Settings:
        return Settings(**{name: self.parameter(name) for name in Settings.__dataclass_fields__})

    def _all_parameters(self) -> dict:
        """Return every parameter, also those that only the policy's factory knows."""
        overrides = getattr(self, '_parameter_overrides', {})
        return {
            **{name: parameter.value for name, parameter in overrides.items()},
            **{name: parameter.value for name, parameter in self._parameters_by_name().items()},
        }

    def _parameters_by_name(self) -> dict:
        names = self.list_parameters([], 0).names
        return {parameter.name: parameter for parameter in self.get_parameters(names)}

    # -- inputs (executor's thread) ---------------------------------------------------------------
    def _subscribe(self, name, kind, topic, qos, callback, raw=False) -> None:
        events = _event_callbacks(
            lambda info: self.get_logger().warning(
                f"{name}: a publisher of '{topic}' offers an incompatible QoS "
                f'({_policy_name(info.last_policy_kind)}); its messages do not arrive'
            )
        )
        subscription = self.create_subscription(
            kind, topic, callback, qos, raw=raw, event_callbacks=events
        )
        self._topics.setdefault(name, []).append(subscription.topic_name)
        self._own(subscription, self.destroy_subscription)

    def _subscribe_camera(self, camera: CameraSpec) -> None:
        kind, topic = Image, camera.topic
        if camera.transport == 'compressed':
            kind = CompressedImage
            topic = topic if topic.endswith('/compressed') else f'{topic}/compressed'
        self._subscribe(
            camera.name, kind, topic, SENSOR_QOS,
            functools.partial(self._on_image, camera, kind), raw=True,
        )  # fmt: skip
        self.get_logger().info(f'{camera.name}: {topic} ({camera.transport}) -> {camera.slot}')

    def _on_image(self, camera: CameraSpec, kind, data: bytes) -> None:
        self._meters[camera.name].add()
        if not self.clock.seen:
            return
        self._buffer.add_image(
            camera.name,
            stamp_of_serialized(data),
            functools.partial(_decode, kind, data, camera.encoding),
            received_ns=self.clock.now_ns(),
        )
        spread = self._buffer.spread()
        self._spreads.append(spread)
        self._begin_inference(complete=spread <= min(self._spreads) + SPREAD_S)

    def _on_joints(self, prefix: str, message: JointState) -> None:
        self._meters['joint_states'].add()
        if not self.clock.seen:
            return
        self._buffer.add_joints(
            ns_from_time(message.header.stamp),
            [self.robot.resolve_joint(prefix, name) for name in message.name],
            message.position,
            received_ns=self.clock.now_ns(),
        )

    def _on_prompt(self, message: String) -> None:
        self._set_prompt(message.data)

    def _set_prompt(self, prompt: str) -> None:
        with self._lock:
            if prompt == self._prompt:
                return
            self._prompt = prompt
            if self._inference is not None:
                self._inference.invalidate()
                self._wanted_since = None
        shown = prompt if len(prompt) <= 200 else f'{prompt[:200]}... ({len(prompt)} characters)'
        self.get_logger().info(f'prompt is now {shown!r}')

    def _on_reset(self, _, response: Trigger.Response) -> Trigger.Response:
        with self._lock:
            self._drop_motion(reset=True)
        response.success, response.message = True, 'predictions dropped, policy reset'
        return response

    def _on_parameters(self, parameters) -> SetParametersResult:
        changed = {parameter.name: parameter.value for parameter in parameters}
        fixed = [n for n in changed if n not in LIVE and n in Settings.__dataclass_fields__]
        fixed += [n for n in changed if n in ('checkpoint', 'device', 'dtype', 'policy_threads')]
        if fixed and self._configured:
            return SetParametersResult(
                successful=False,
                reason=f'{", ".join(fixed)} cannot change while configured; clean up first',
            )
        known = {n: v for n, v in changed.items() if n in Settings.__dataclass_fields__}
        try:
            if known and hasattr(self, '_executor'):
                settings = replace(self._settings(), **known)
                settings.check()
                if self._executor is not None:
                    stitcher = make_stitcher(settings.stitching, settings.blend_ticks)
                    if stitcher.wants_guidance:
                        self._need_guidable()
                    self._executor.stitcher = stitcher
                    self._executor.execution_horizon = settings.execution_horizon
        except Pi0RosError as error:
            return SetParametersResult(successful=False, reason=str(error))
        if 'prompt' in changed and hasattr(self, '_prompt'):
            self._set_prompt(changed['prompt'])
        return SetParametersResult(successful=True)

    def _follow_clock(self) -> None:
        """Wake the ticks when simulated time moves on, start anew when it jumps back."""
        if not self.clock.simulated:
            return
        forward = JumpThreshold(
            min_forward=Duration(nanoseconds=1), min_backward=None, on_clock_change=False
        )
        self._own(
            self.get_clock().create_jump_callback(forward, post_callback=self._on_advance),
            lambda handle: handle.unregister(),
        )
        back = JumpThreshold(
            min_forward=None, min_backward=Duration(nanoseconds=-1), on_clock_change=False
        )
        self._own(
            self.get_clock().create_jump_callback(back, post_callback=self._on_jump_back),
            lambda handle: handle.unregister(),
        )

    def _on_advance(self, _) -> None:
        ticker = self._ticker
        if ticker is not None:
            ticker.clock_moved()

    def _on_jump_back(self, jump) -> None:
        with self._lock:
            self._buffer.clear()
            self._drop_motion(reset=True)
            self._usable_at = -float('inf')
        self.get_logger().warning(
            f'/clock jumped back by {-jump.delta.nanoseconds / NANOSECONDS:.3f} s; '
            'observations and predictions dropped'
        )

    def _drop_motion(self, reset: bool = False) -> None:
        """End the stream and make running inferences worthless; with the lock held."""
        if self._inference is not None:
            self._inference.invalidate(reset)
        if self._executor is not None:
            self._executor.clear()
        self._wanted_since = None

    # -- when to infer ----------------------------------------------------------------------------
    def _begin_inference(self, complete: bool = False) -> None:
        """
        Ask for an inference when a chunk is wanted.

        :param complete: a frame has just arrived, and the others are of the same moment. Without
            one the inference begins after ``FRAME_WAIT_S``.
        """
        if not self._open or time.monotonic() < self._retry_at or not self._prompt.strip():
            return
        if self._inference.state == 'busy':
            return
        if not self._executor.wants_chunk(FRAME_WAIT_S + self._inference.delay.seconds):
            self._wanted_since = None
            return
        now = time.monotonic()
        if self._wanted_since is None:
            self._wanted_since = now
        if complete or now - self._wanted_since > FRAME_WAIT_S:
            self._wanted_since = None
            self._inference.request()

    def _watch(self) -> None:
        """Judge the inputs, hold or go on, report; every WATCH_PERIOD_S of wall time."""
        if not self._open:
            return
        wall = time.monotonic()
        failure = self._last_failure
        if failure is not None and failure.in_a_row >= self.parameter('max_errors'):
            self.trigger_deactivate()
            self.failure = (
                f'deactivated after {failure.in_a_row} errors of the policy in a row: '
                f'{failure.message}'
            )
            self.get_logger().error(f'{self.failure}; activate the node to try again')
            return
        stalled = wall - self._watched_at > 2 * WATCH_PERIOD_S
        self._watched_at = wall
        if stalled and not self._excused:
            # This process stood still, not its inputs: let what has come meanwhile in first.
            self._excused = True
            return
        self._excused = False
        problems = self._judge_inputs()
        with self._lock:
            self._problems = problems
            usable = self.clock.seconds() - self._usable_at <= self.parameter('max_age')
            hold = None
            if problems and not usable:
                hold = '; '.join(f'{name}: {text}' for name, text in problems.items())
            if hold and self._hold is None:
                self._drop_motion()
            self._hold = hold
        waiting = wall - self._activated_at < FIRST_REPORT_S
        if not (waiting and problems):
            self._announce(problems, wall)
        self._begin_inference()

    def _judge_inputs(self) -> dict[str, str]:
        if not self.clock.seen:
            return {'/clock': 'waiting for /clock (use_sim_time is set and nobody publishes it)'}
        now_ns, now = self.clock.now_ns(), self.clock.seconds()
        observed_ns, problems = self._buffer.judge(now_ns)
        if observed_ns is not None:
            self._usable_at = max(now - (now_ns - observed_ns) / NANOSECONDS, self._usable_at)
        for name, sources in self._crowded.items():
            problems.setdefault(name, f'more than one publisher of its topic: {sources}')
        if not self._prompt.strip():
            missing = "no instruction; set the parameter or publish 'prompt'"
            problems = {'prompt': missing, **problems}
            self._usable_at = -float('inf')
        return problems

    def _announce(self, problems: dict[str, str], wall: float) -> None:
        """Log what is new, what has gone, and now and then what lasts."""
        new = {n: t for n, t in problems.items() if n not in self._reported}
        if new or (problems and wall - self._reported_at > REPORT_PERIOD_S):
            for name, text in problems.items():
                self.get_logger().warning(f'{name}: {text}{self._whereabouts(name)}')
            self.get_logger().warning('inputs: ' + ', '.join(self._ages()))
            self._reported_at = wall
        gone = [name for name in self._reported if name not in problems]
        if gone:
            self.get_logger().info(f'recovered: {", ".join(gone)}')
        self._reported = problems

    def _whereabouts(self, name: str) -> str:
        """Say who publishes the topics of an input from which nothing came."""
        meter = self._meters.get(name)
        if meter is None or meter.count:
            return ''
        parts = []
        for topic in self._topics.get(name, []):
            kinds = sorted({i.topic_type for i in self.get_publishers_info_by_topic(topic)})
            found = f'carries {", ".join(kinds)}' if kinds else 'has no publisher'
            parts.append(f"'{topic}' {found}")
        return f' ({"; ".join(parts)})' if parts else ''

    def _find_crowded(self) -> dict[str, str]:
        """Return the cameras whose pictures come from several publishers, and from which."""
        out = {}
        for name in self.robot.cameras:
            for topic in self._topics.get(name, []):
                sources = [i.node_name for i in self.get_publishers_info_by_topic(topic)]
                if len(sources) > 1:
                    out[name] = ', '.join(sorted(sources))
        return out

    def _ages(self) -> list[str]:
        ages = self._buffer.ages(self.clock.now_ns())
        return [
            f'{name} ' + ('never seen' if ages.get(name) is None else f'{ages[name]:.2f} s old')
            for name in self._meters
        ]

    # -- inference thread -------------------------------------------------------------------------
    def _make_policy(self):
        threads = self._given['policy_threads'] or max((os.cpu_count() or 2) // 2, 1)
        if 'torch' in sys.modules:
            sys.modules['torch'].set_num_threads(threads)
        else:
            os.environ['OMP_NUM_THREADS'] = str(threads)
        text = self._given['policy']
        module_name, _, factory_name = text.partition(':')
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            raise Pi0RosError(f"policy '{text}': {error}; is it on PYTHONPATH?") from error
        factory = module
        for part in factory_name.split('.'):
            factory = getattr(factory, part, None)
        if not callable(factory):
            raise Pi0RosError(f"policy '{text}': {module_name} has no factory '{factory_name}'")
        policy = factory(dict(self._given))
        predict = getattr(policy, 'predict', None)
        self._guidable = callable(predict) and 'guidance' in inspect.signature(predict).parameters
        if self._executor.stitcher.wants_guidance:
            self._need_guidable()
        return policy

    def _need_guidable(self) -> None:
        if not self._guidable:
            raise Pi0RosError(
                "stitching 'rtc' needs a policy whose predict takes guidance, which "
                f"{self._given['policy']} does not; use 'blend'"
            )

    def _observe(self, sequence: int, policy) -> Job | None:
        """Take the newest observation; runs when an inference begins, in its thread."""
        buffer, prompt = self._buffer, self._prompt
        now_ns, now = self.clock.now_ns(), self.clock.seconds()
        if buffer is None or not self.clock.seen or not prompt.strip():
            return None
        observation, problems = buffer.latest(now_ns)
        if observation is None:
            return None
        observation = replace(observation, prompt=prompt)
        age = (now_ns - observation.stamp_ns) / NANOSECONDS
        observed_at = now - age
        self._frame_ages.append(age)
        self._usable_at = max(self._usable_at, observed_at)
        dt = self._executor.row_dt
        arguments, frozen = {}, None
        shape = (getattr(policy, 'chunk_size', None), getattr(policy, 'action_dim', None))
        if all(isinstance(n, int) for n in shape):
            arguments['noise'] = noise_for(self._given['seed'], sequence, shape)
        if self._executor.stitcher.wants_guidance:
            upcoming = self._executor.upcoming(observed_at)
            if len(upcoming):
                from pi0_ros.policy import Guidance

                delay = self._executor.delay_rows(observed_at, self._inference.delay.seconds)
                frozen = min(delay, len(upcoming))
                arguments['guidance'] = Guidance(
                    previous_actions=upcoming, delay=frozen, execution_horizon=len(upcoming)
                )
        about = {
            'seed': self._given['seed'],
            'image_stamps_ns': observation.image_stamps_ns,
            'joint_stamps_ns': observation.joint_stamps_ns,
        }
        return Job(
            observation, observation.stamp_ns, observed_at, prompt, dt, frozen, arguments, about
        )

    def _on_outcome(self, outcome: ActionChunk | Failure) -> None:
        if isinstance(outcome, Failure):
            self.get_logger().error(
                f'the policy failed ({outcome.in_a_row} in a row), holding:\n{outcome.traceback}'
            )
            with self._lock:
                self._last_failure = outcome
                self._retry_at = time.monotonic() + RETRY_S
                self._executor.clear()
            return
        with self._lock:
            if not self._open or outcome.epoch != self._inference.epoch:
                return
            self._last_failure = None
            installed = self._executor.install(outcome, self.clock.seconds())
            ticker = self._ticker
            if ticker is not None:
                ticker.wake()
            self._pub_chunk.publish(chunk_message(outcome, self.robot.joint_names))
            self._published_chunks += 1
        if not installed:
            self.get_logger().warning(
                f'chunk {outcome.sequence} came {outcome.inference_s:.2f} s after it was asked '
                'for; every row of it had passed'
            )
        self._begin_inference()

    # -- tick thread ------------------------------------------------------------------------------
    def _send(self, setpoint) -> None:
        if not self._open:
            return
        self._pub_setpoint.publish(
            joint_state(
                self.robot.joint_names, setpoint.positions, self._stamps.stamp_ns(setpoint.due)
            )
        )
        self._begin_inference()

    # -- diagnostics ------------------------------------------------------------------------------
    def diagnostics(self) -> list[Status]:
        if self._inference is None or self._buffer is None:
            return []
        self._crowded = self._find_crowded()
        return [self._policy_status(), self._executor_status(), *self._input_status()]

    def _policy_status(self) -> Status:
        numbers, failure = self._inference.statistics(), self._last_failure
        level, text = OK, f'{numbers.state}'
        if failure is not None:
            level = ERROR
            text = f'error, holding ({failure.in_a_row} in a row): {failure.message}'
        elif self._hold is not None:
            level, text = ERROR, f'holding: {self._hold}'
        ages = sorted(self._frame_ages)
        return Status(
            'policy', level, text,
            {
                'policy': self._given['policy'],
                'prompt': self._prompt,
                'inferences': numbers.inferences,
                'inference p50 [ms]': f'{1e3 * numbers.p50:.1f}',
                'inference p99 [ms]': f'{1e3 * numbers.p99:.1f}',
                'inference running for [s]': f'{numbers.busy_for:.2f}',
                'inference delay estimate [rows]': self._inference.delay.rows(
                    self._executor.row_dt
                ),
                'observation age at start p50 [ms]': (
                    f'{1e3 * ages[len(ages) // 2]:.1f}' if ages else ''
                ),
                'observation age at start max [ms]': f'{1e3 * ages[-1]:.1f}' if ages else '',
                'results dropped': numbers.dropped,
                'errors': numbers.errors,
                'errors in a row': numbers.errors_in_a_row,
                'chunks published': self._published_chunks,
            },
        )  # fmt: skip

    def _executor_status(self) -> Status:
        now = self.clock.seconds()
        s = self._executor.status(now)
        level, text = OK, s.state
        if s.state == 'dry':
            level, text = WARN, 'dry: the next chunk is late, the last setpoint is held'
        elif s.stalls:
            level, text = WARN, f'{s.state}; the process stalled beyond the lead {s.stalls} times'
        return Status(
            'executor', level, text,
            {
                'chunk': s.sequence,
                'chunk age [s]': f'{s.chunk_age:.3f}',
                'row': f'{s.row:.2f}',
                'setpoints left': s.setpoints_left,
                'setpoints sent': s.setpoints,
                'setpoints held': s.holds,
                'times run dry': s.dry_runs,
                'chunks used': s.chunks,
                'chunks expired': s.chunks_expired,
                'rows skipped': f'{s.rows_skipped:.1f}',
                'rows skipped by the last chunk': f'{s.last_skip:.2f}',
                'ticks late': s.ticks_late,
                'stalls beyond the lead': s.stalls,
                'worst lateness [ms]': f'{1e3 * s.worst_late:.1f}',
            },
        )  # fmt: skip

    def _input_status(self) -> list[Status]:
        ages = self._buffer.ages(self.clock.now_ns()) if self.clock.seen else {}
        rows = []
        for name, meter in self._meters.items():
            own = [t for n, t in self._problems.items() if n == name]
            age = ages.get(name)
            rows.append(
                Status(
                    f'input {name}', WARN if own else OK, '; '.join(own) or 'ok',
                    {
                        'topic': ', '.join(self._topics.get(name, [])),
                        'age [s]': 'never seen' if age is None else f'{age:.3f}',
                        'rate [Hz]': f'{meter.rate():.1f}',
                        'received': meter.count,
                        **self._buffer.counters(name),
                    },
                )
            )  # fmt: skip
        known = set(self._meters)
        for name, text in self._problems.items():
            if name not in known:
                rows.append(Status(f'input {name}', WARN, text))
        return rows


def _decode(kind, data: bytes, encoding: str | None):
    """Return the RGB array of a serialized message; called when an inference needs it."""
    return decode_image(deserialize_message(data, kind), encoding)


def _event_callbacks(incompatible_qos):
    try:
        from rclpy.event_handler import SubscriptionEventCallbacks
    except ImportError:  # Humble
        from rclpy.qos_event import SubscriptionEventCallbacks
    return SubscriptionEventCallbacks(incompatible_qos=incompatible_qos)


def _policy_name(kind) -> str:
    from rclpy.qos import qos_policy_name_from_kind

    return qos_policy_name_from_kind(kind)


def main(args=None) -> int:
    """
    Run the node.

    :return: 0, or 2 when it could not start.
    """
    os.environ.setdefault('OMP_WAIT_POLICY', 'passive')  # before anything imports torch
    os.environ.setdefault('GOMP_SPINCOUNT', '0')
    os.environ.setdefault('FASTDDS_BUILTIN_TRANSPORTS', TRANSPORTS)
    code = run(PolicyNode, args)
    if any(thread.name == 'inference' for thread in threading.enumerate()):
        # A policy that is still inside its call would crash in the interpreter's teardown.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


if __name__ == '__main__':
    sys.exit(main())
