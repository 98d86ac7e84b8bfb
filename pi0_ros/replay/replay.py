# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
A recorded bag through buffer, policy, stitching and safety filter, as the live nodes do it.

Time is the bag's: messages enter in the order and at the times at which they were recorded, and
nothing depends on how fast this machine reads them. Noise is seeded by (seed, number of the
inference), so the same bag and seed give the same chunks, byte for byte.

Two ways to choose when to infer:

- ``at='stride'``: every ``stride`` rows of the policy's rate from the first usable observation on;
- ``at='published'``: at the recorded ``action_chunk`` messages. Their labels say which pictures
  and joint samples the policy saw, and the seed of its noise; from these the chunk is predicted
  again, bit for bit. Chunks predicted with guidance (real-time chunking) depend on the setpoints
  that were under way at that moment as well, which no message holds exactly: for them the previous
  chunk stands in, and the largest difference is reported.

Without a policy (None) the recorded motion itself goes through the filter, at the control rate and
interpolated between samples; a hole longer than ``max_age`` is not bridged, the filter starts anew
behind it. This needs no camera.

The arm of the recording did not follow this policy (open loop): the rollout starts at its measured
pose and goes on from its own last setpoint.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from pi0_ros.control import (
    ActionChunk,
    ChunkError,
    ChunkExecutor,
    Setpoint,
    make_stitcher,
    noise_for,
    parse_chunk_label,
)
from pi0_ros.control.chunk import at_rows
from pi0_ros.errors import Pi0RosError
from pi0_ros.observation import ObservationBuffer, decode_image
from pi0_ros.policy.images import resize_with_pad
from pi0_ros.replay.bag import Bag, BagError, header_stamp, open_bag
from pi0_ros.replay.inputs import JOINTS, TRAJECTORY, Inputs, decode
from pi0_ros.replay.metrics import (
    HORIZONS,
    SECOND,
    ChunkErrors,
    Histogram,
    Motion,
    Openings,
    Problems,
    Series,
    Stream,
    Trace,
)
from pi0_ros.replay.rollout import Rollout
from pi0_ros.robot import RobotError, RobotSpec
from pi0_ros.safety import Limits, SafetyFilter

TIME_BASE_S = 1.0
"""Stamps this far from the times of reception are another clock (simulated time), not latency."""

PROBE_MESSAGES = 20
"""Messages a topic from which the offset between the two is measured (its median)."""

HELD_S = 2.0
"""Recorded inputs kept before a published chunk's observation, to find those that it names."""

KEPT_CHUNKS = 2000
KEPT_PREVIEWS = 24
PREVIEW_SIZE = 224

MAX_ERRORS = 3
"""Errors of the policy in a row after which replay ends, as the live node deactivates."""

LIMITED_SHARE = 0.05
"""Share of ticks that the filter may touch before the checkpoint is not fit."""

REFUSED_SHARE = 0.2
"""Share of moments without a usable observation before the recording proves nothing."""


@dataclass
class ReplayResult:
    """
    What replay found; ``summary`` is what ``result.json`` holds.

    ``chunks``: the first 2000 of them (:class:`ActionChunk`, actions float32 [H, dof] in the
    policy's space); ``summary['digest']`` covers all. ``commands``: the same in command units,
    each with the time of its observation (seconds of the bag). ``verdict``: 'yes', 'warnings' or
    'no'.
    """

    summary: dict
    chunks: list[ActionChunk] = field(default_factory=list)
    previews: list[tuple[float, dict[str, np.ndarray]]] = field(default_factory=list)
    traces: dict = field(default_factory=dict)
    commands: list[tuple[float, np.ndarray]] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        return self.summary['verdict']

    @property
    def reasons(self) -> list[str]:
        return self.summary['reasons']

    @property
    def exit_code(self) -> int:
        """0: fit, perhaps with warnings; 1: not fit; 3: the bag or the run was cut short."""
        if self.summary['incomplete']:
            return 3
        return 1 if self.verdict == 'no' else 0


def replay(
    bag_path, policy, robot, *, prompt: str = '', stride: int = 10, start: float = 0.0,
    end: float = math.inf, at: str = 'stride', seed: int = 0,
    cameras: Mapping[str, str] | None = None,
    joint_states: Sequence[tuple[str, str]] | None = None,
    joint_names: Sequence[str] | None = None, use_received_time: bool = False,
    stitching: str = 'blend', execution_horizon: int = 25, latency: float = 0.0,
    max_age: float = 0.2, max_skew: float = 0.05, namespace: str = '',
    progress: Callable[[float, str], None] | None = None,
) -> ReplayResult:  # fmt: skip
    """
    Run a policy over a bag.

    :param bag_path: folder or file.
    :param policy: object with ``predict(observation, noise=None) -> [chunk, dof]``; None replays
        the recorded motion.
    :param robot: RobotSpec, or its name or path.
    :param prompt: instruction; '' takes the bag's last ``prompt`` message before each inference,
        before the first one the parameter of the policy_node that was recorded.
    :param stride: rows of the policy's rate between inferences.
    :param start: seconds from the bag's first message, and ``end``.
    :param cameras: camera name -> topic of the bag, where it is not the robot's own.
    :param joint_states: (topic, prefix) pairs instead of the robot's.
    :param joint_names: names for joint states that come without, in the order of their positions.
    :param use_received_time: stamp messages whose header stamp is zero, and inputs whose stamps
        are of another clock than the others', with their reception.
    :param namespace: below which the robot's topics lie in this bag.
    :param latency: seconds by which each chunk comes after its observation was taken.
    :param progress: called with the share done (0..1) and a text, a few times a second.
    :raises BagError: when the bag is unreadable or lacks something that is needed.
    """
    if not isinstance(robot, RobotSpec):
        robot = RobotSpec.load(robot)
    for name, value in (('stride', stride), ('execution_horizon', execution_horizon)):
        if value < 1:
            raise Pi0RosError(f'{name} is {value}; expected rows, 1 or more')
    if at not in ('stride', 'published'):
        raise Pi0RosError(f"at is '{at}'; expected 'stride' or 'published'")
    if seed < 0:
        raise Pi0RosError(f'seed is {seed}; expected a whole number of zero or more')
    if not 0.0 <= latency < math.inf:
        raise Pi0RosError(f'latency is {latency} s; expected a number of zero or more')
    if not start < end:  # also when one of them is not a number
        raise Pi0RosError(f'start {start} s is not before end {end} s')
    with open_bag(bag_path) as bag:
        inputs = Inputs(
            bag, robot, cameras or {}, joint_states, joint_names, with_cameras=policy is not None,
            namespace=namespace,
        )  # fmt: skip
        if bag.start_ns is not None and start > (bag.end_ns - bag.start_ns) / SECOND:
            raise BagError(
                f'{bag.path}: start {start:g} s lies behind the end of the bag '
                f'({(bag.end_ns - bag.start_ns) / SECOND:.1f} s long)'
            )
        options = _Options(
            prompt, stride, start, end, at, seed, use_received_time, stitching, execution_horizon,
            latency, max_age, max_skew, namespace,
        )  # fmt: skip
        run = _Run(bag, inputs, policy, robot, options)
        return run.run(progress or (lambda share, text: None))


def _rgb(data: bytes, kind: str, encoding: str | None) -> np.ndarray:
    return decode_image(decode(data, kind), encoding)


# --- the run -----------------------------------------------------------------------------------


class _Run:
    """One replay; everything that it keeps is bounded whatever the length of the bag."""

    def __init__(self, bag: Bag, inputs: Inputs, policy, robot: RobotSpec, o: _Options):
        self.bag, self.inputs, self.policy, self.robot = bag, inputs, policy, robot
        self.o = o
        self.buffer = ObservationBuffer(robot, o.max_age, o.max_skew)
        self.executor = ChunkExecutor(
            robot.dof, robot.control_rate, robot.policy_rate, make_stitcher(o.stitching),
            o.execution_horizon,
        )  # fmt: skip
        if self.executor.stitcher.wants_guidance and policy is not None and (
            'guidance' not in inspect.signature(policy.predict).parameters
        ):
            raise Pi0RosError(
                f"stitching 'rtc' needs a policy whose predict takes guidance; "
                f"{type(policy).__name__} does not, use 'blend'"
            )
        period = 1.0 / robot.control_rate
        self.filter = SafetyFilter(Limits.from_robot(robot), period)
        self.rollout = Rollout(robot, self.executor.lead)
        self.motion = Motion(robot.joint_names, period)
        self.recorded, self.commanded = Trace(), Trace()
        topics = (*inputs.cameras, *inputs.joints)
        self.streams = {t: Stream(t, bag.topics[t].type) for t in topics}
        self.problems = Problems()
        self.ages, self.skews = Histogram(0.002), Histogram(0.001)
        self.durations = Histogram(0.001, 5000)
        self.moments = self.refused = self.inferences = self.taken = 0
        self.rejected: list[str] = []
        self.rejections = 0
        self.errors = 0  # of the policy, in a row
        self.text: dict | None = None
        self.foreign: set[str] = set()  # topics whose stamps are of another clock
        self.chunks: list[ActionChunk] = []
        self.previews: list[tuple[float, dict[str, np.ndarray]]] = []
        self.preview_every = 1
        self.digest = hashlib.sha256()
        self.digests: list[str] = []
        self.gate: list[dict] = []
        self.openings = Openings(robot)
        self.pending: deque[ActionChunk] = deque()
        self.tail: deque = deque()  # chunks that come later than their observation
        window = 1.0 if policy is None else 6.0  # s; a chunk is compared when it has passed
        self.states = Series(robot.state_names, window, o.max_age)
        self.actions = Series(robot.joint_names, window, o.max_age, partial=True)
        self.state_errors, self.action_errors = ChunkErrors(robot.dof), ChunkErrors(robot.dof)
        self.prompt, self.prompts = o.prompt or recorded_prompt(bag), []
        self.started = False
        self.resolved: dict[tuple, list[str]] = {}
        self.damaged = 0
        self.published = dict.fromkeys(('equal', 'different', 'guided', 'not repeatable'), 0)
        self.guided_apart = 0.0
        self.previous: _Published | None = None
        self.prompted: deque[tuple[int, str]] = deque(maxlen=100)
        self.labelled = LabelledInputs(self)

    # -- main loop --------------------------------------------------------------------------------
    def run(self, progress) -> ReplayResult:
        began = time.monotonic()
        self.offset, self.base = self._time_base()
        warm_up = getattr(self.policy, 'warm_up', None)
        if warm_up:
            warm_up()
        getattr(self.policy, 'reset', lambda: None)()
        interrupted = ''
        last_text = 0.0
        if self.policy is None:
            loop = self._recorded()
        else:
            loop = self._by_stride() if self.o.at == 'stride' else self._as_published()
        try:
            for time_s in loop:
                if time.monotonic() - last_text > 0.2:
                    last_text = time.monotonic()
                    share = self.bag.read_bytes / max(self.bag.total_bytes, 1)
                    progress(share, f'{time_s:.1f} s, {self.inferences} inferences')
        except KeyboardInterrupt:
            interrupted = 'interrupted; what was done until then is kept'
        except _PolicyFailed as error:
            if not self.taken:
                raise Pi0RosError(str(error)) from None
            interrupted = str(error)
        self._finish_chunks(final=True)
        for played in self.rollout.finish():
            self._played(*played)
        progress(1.0, f'{self.inferences} inferences')
        return self._result(interrupted, time.monotonic() - began)

    def _messages(self):
        """Yield (topic, reception [ns], data) of what is needed, inside of start..end."""
        wanted = [
            *self.inputs.cameras, *self.inputs.joints,
            *self.inputs.commands.topics, *filter(None, [self.inputs.prompt]),
        ]  # fmt: skip
        for topic, received, data in self.bag.messages(wanted):
            time_s = (received - self.base) / SECOND
            if time_s > self.o.end:
                return
            if time_s >= self.o.start or topic == self.inputs.prompt:
                yield topic, received, data

    def _time_base(self) -> tuple[int, int]:
        """Return what to add to times of reception to get stamps' time, and the bag's start."""
        offsets: dict[str, list[int]] = {}
        base, wanted = None, {*self.inputs.cameras, *self.inputs.joints}
        counts = dict.fromkeys(wanted, 0)
        for topic, received, data in self.bag.messages(wanted):
            base = received if base is None else base
            counts[topic] += 1
            stamp = header_stamp(data)
            if stamp > 0:
                offsets.setdefault(topic, []).append(stamp - received)
            if min(counts.values()) >= PROBE_MESSAGES or sum(counts.values()) > 1000:
                break
        if base is None:
            raise BagError(f'{self.bag.path}: no message could be read before the file ends')
        if self.bag.start_ns is not None:
            base = self.bag.start_ns
        medians = {topic: float(np.median(values)) for topic, values in offsets.items()}
        offset = float(np.median(list(medians.values()))) if medians else 0.0
        for topic, own in medians.items():
            if abs(own - offset) > TIME_BASE_S * SECOND:
                self.foreign.add(topic)
                self.inputs.notes.append(
                    f'{topic}: header stamps are {(own - offset) / SECOND:+.3f} s from those of '
                    'the other inputs; '
                    + ('its messages are stamped with their reception' if self.o.use_received_time
                       else '--received-time takes the times of reception instead')
                )  # fmt: skip
        if abs(offset) < TIME_BASE_S * SECOND:
            return 0, base
        self.inputs.notes.append(
            f'header stamps are {offset / SECOND:+.3f} s from the times of recording (simulated '
            'time or another clock); ages are judged in the time of the stamps'
        )
        return round(offset), base

    def _feed(self, topic: str, received: int, data: bytes) -> int:
        """Give one message to whom it concerns; return its stamp (0: none)."""
        if topic == self.inputs.prompt:
            try:
                self._take_prompt(received, str(decode(data, 'std_msgs/msg/String').data))
            except Pi0RosError:
                self.damaged += 1
            return 0
        try:
            return self._feed_input(topic, received, data)
        except BagError:
            raise
        except Pi0RosError as error:
            self.damaged += 1
            self.problems.add(self._seconds(received), {topic: str(error)}, False)
            return 0

    def _feed_input(self, topic: str, received: int, data: bytes) -> int:
        stamp, now = header_stamp(data), received + self.offset
        if topic in self.inputs.commands.topics:
            stamp, names, positions = self.inputs.commands.read(topic, data, now, decode)
            self.actions.add(stamp, names, positions)
            if self.actions.stamps:
                self.commanded.add(self._seconds(stamp - self.offset), self.actions.values[-1])
            return stamp
        stream = self.streams[topic]
        stream.add(received, stamp, self._seconds(received))
        if self.o.use_received_time and (stamp <= 0 or topic in self.foreign):
            stamp = now
            stream.retimed += 1
        if topic in self.inputs.cameras:
            name = self.inputs.cameras[topic]
            frame = functools.partial(
                _rgb, data, stream.kind, self.robot.cameras[name].encoding
            )
            self.buffer.add_image(name, stamp, frame, received_ns=now)
            return stamp
        message = decode(data, JOINTS)
        bare = list(message.name)
        if not bare and len(message.position):
            bare = self._names_for(topic, len(message.position))
        for prefix in self.inputs.joints[topic]:
            names = self._resolved(prefix, bare)
            self.buffer.add_joints(stamp, names, message.position, received_ns=now)
            if stamp > 0:
                self.states.add(stamp, names, message.position)
        if self.states.stamps:
            self.recorded.add(self._seconds(stamp - self.offset), self.states.values[-1])
        return stamp

    def _resolved(self, prefix: str, bare: list[str]) -> list[str]:
        key = (prefix, *bare)
        if key not in self.resolved:
            if len(self.resolved) > 64:  # a driver has one or two orders
                self.resolved.clear()
            self.resolved[key] = [self.robot.resolve_joint(prefix, name) for name in bare]
        return self.resolved[key]

    def _names_for(self, topic: str, count: int) -> list[str]:
        names = self.inputs.joint_names
        if not names:
            raise BagError(
                f'{self.bag.path}: joint states on {topic} carry {count} positions and no names; '
                'give them with --joint-names a,b,c in the order of the positions'
            )
        if len(names) != count:
            raise BagError(
                f'{self.bag.path}: {len(names)} joint names given, joint states on {topic} carry '
                f'{count} positions'
            )
        return names

    def _take_prompt(self, received: int, text: str) -> None:
        if not self.o.prompt:
            self.prompted.append((received, text))
            if self.o.at == 'stride':
                self.prompt = text

    def _seconds(self, received: int) -> float:
        return (received - self.base) / SECOND

    def _by_stride(self):
        every = round(self.o.stride / self.robot.policy_rate * SECOND)
        due, sequence = None, 0
        for topic, received, data in self._messages():
            while due is not None and due <= received:
                self._advance(self._seconds(due))
                sequence += self._infer(due + self.offset, due, sequence, self.o.seed)
                due += every
            self._advance(self._seconds(received))
            self._feed(topic, received, data)
            told = self.prompt.strip() or not self.inputs.prompt
            if due is None and told and topic in self.inputs.cameras:
                stamp, problems = self.buffer.judge(received + self.offset)
                if stamp is not None:
                    due = received
                elif problems:
                    self.waited = problems
            self._finish_chunks()
            yield self._seconds(received)
        if due is None and not self.waited:
            self._need_prompt()

    waited: Mapping[str, str] = {}

    def _recorded(self):
        every, due, run = round(SECOND / self.robot.control_rate), None, 0
        fresh = True  # the filter has to start at the measured pose
        for topic, received, data in self._messages():
            self._feed(topic, received, data)
            yield self._seconds(received)
            if not self.states.stamps:
                continue
            if due is None or due > self.states.newest + 10 * SECOND:  # the stamps began anew
                due, fresh, run = self.states.stamps[0], True, run + 1
            while due <= self.states.newest:
                target = self.states.at(np.array([due]))[0]
                if np.isfinite(target).all():
                    self._follow(target, due, run, fresh)
                    fresh = False
                elif not fresh:
                    fresh, run = True, run + 1
                due += every

    def _follow(self, measured, stamp: int, run: int, fresh: bool) -> None:
        time_s = self._seconds(stamp - self.offset)
        try:
            target = self.robot.measured_to_command(measured)
        except RobotError as error:
            self.problems.add(time_s, {'joint_states': str(error)}, False)
            return
        if fresh:
            self.filter.reset(target)
        command, report = self.filter.step(target)
        self.motion.add(time_s, Setpoint(time_s, measured, run, 0.0), target, report)
        self._played(time_s, target, command, report)

    def _played(self, time_s: float, target, command, report) -> None:
        limited = tuple(hit.joint for hit in report.limited)
        sent = np.full_like(target, np.nan) if command is None else command
        self.motion.trace.add(time_s, target, sent, limited)

    def _as_published(self):
        if not self.inputs.chunks:
            raise BagError(f'{self.bag.path}: no action_chunk was recorded; replay by stride')
        held: deque = deque()
        source = self._messages()
        for chunk in self._published_chunks():
            for message in source:
                held.append(message)
                self._feed(*message)
                if message[1] > chunk.received + SECOND:
                    break
            while held and held[0][1] < chunk.stamp - self.offset - HELD_S * SECOND:
                held.popleft()
            time_s = self._seconds(chunk.stamp - self.offset)
            if not self.o.start <= time_s <= self.o.end:
                continue
            for at, text in self.prompted:
                if at <= chunk.received:
                    self.prompt = text
            self._advance(time_s)
            self._repeat(chunk, held, time_s)
            self._finish_chunks()
            yield time_s

    def _repeat(self, chunk: _Published, held, time_s: float) -> None:
        """Predict a published chunk again and compare."""
        self.moments += 1
        best = None
        for observation, problems in self.labelled.observations(chunk.label, held):
            if observation is None:
                self.refused += 1
                self.published['not repeatable'] += 1
                self.problems.add(time_s, problems, True)
                return
            predicted = self._predict(
                observation, time_s, chunk.stamp, chunk.label['seq'], chunk.label['seed'],
                self._motion_before(chunk),
            )  # fmt: skip
            same = predicted[0] is not None and np.array_equal(
                predicted[0].actions.astype(np.float64), chunk.actions
            )
            best = predicted if same or best is None else best
            if same or 'frozen' in chunk.label or predicted[0] is None:
                break
        self.previous = chunk
        if 'frozen' in chunk.label:
            self.published['guided'] += 1
            if predicted[0] is not None and predicted[0].actions.shape == chunk.actions.shape:
                apart = np.abs(predicted[0].actions - chunk.actions).max()
                self.guided_apart = max(self.guided_apart, float(apart))
        else:
            self.published['equal' if same else 'different'] += 1
        if best[0] is not None:
            self._take(*best, time_s)

    def _motion_before(self, chunk: _Published) -> tuple[np.ndarray, int]:
        """Return the chunk before as a new one's rows would see it, and how many are frozen."""
        before, frozen = self.previous, chunk.label.get('frozen')
        if before is None or frozen is None:
            return np.empty((0, self.robot.dof)), 0
        shift = (chunk.stamp - before.stamp) / SECOND / self.executor.row_dt
        rows = np.arange(shift, len(before.actions) - 1 + 1e-6)
        return at_rows(before.actions, np.minimum(rows, len(before.actions) - 1)), frozen

    def _published_chunks(self):
        for _, received, data in self.bag.messages([self.inputs.chunks]):
            message = decode(data, TRAJECTORY)
            try:
                label = parse_chunk_label(str(message.header.frame_id))
            except ChunkError as error:
                raise BagError(f'{self.bag.path}: {self.inputs.chunks}: {error}') from None
            if not label['cameras']:
                raise BagError(
                    f'{self.bag.path}: {self.inputs.chunks} was recorded by an older version: the '
                    f"label '{message.header.frame_id}' does not say which pictures and joint "
                    'samples were used; record again, or replay by stride'
                )
            actions = np.array([p.positions for p in message.points], dtype=np.float64)
            yield _Published(received, header_stamp(data), label, actions)

    # -- inference, motion ------------------------------------------------------------------------
    def _infer(self, now_ns: int, received: int, sequence: int, seed: int) -> int:
        """Infer once if there is an observation; return 1 when it was done."""
        time_s = self._seconds(received)
        self.moments += 1
        observation, problems = self.buffer.latest(now_ns)
        if problems:
            self.problems.add(time_s, problems, observation is None)
        if observation is None:
            self.refused += 1
            return 0
        chunk, observation = self._predict(observation, time_s, now_ns, sequence, seed)
        if chunk is not None:
            self._take(chunk, observation, time_s)
        return 1

    def _predict(
        self, observation, time_s: float, now_ns: int, sequence: int, seed: int, before=None
    ):
        """
        Return (chunk, None if it had to be refused, and the observation with its prompt).

        :param before: for guidance, the motion under way [k, dof] and how many of its rows are
            frozen; None: those of the rollout.
        """
        self._need_prompt()
        observation = replace(observation, prompt=self.prompt)
        if self.prompt not in self.prompts and len(self.prompts) < 20:
            self.prompts.append(self.prompt)
        self.openings.add(observation.state)
        self.ages.add((now_ns - observation.stamp_ns) / SECOND)
        stamps = list(observation.image_stamps_ns.values())
        self.skews.add((max(stamps) - min(stamps)) / SECOND)
        observed_at = time_s - (now_ns - observation.stamp_ns) / SECOND
        arguments, frozen = {}, None
        shape = tuple(getattr(self.policy, n, None) for n in ('chunk_size', 'action_dim'))
        if all(isinstance(n, int) for n in shape):
            arguments['noise'] = noise_for(seed, sequence, shape)
        if before is not None or self.executor.stitcher.wants_guidance:
            if before is None:
                upcoming = self.executor.upcoming(observed_at)
                delay = self.executor.delay_rows(observed_at, self.o.latency)
            else:
                upcoming, delay = before
            if len(upcoming):
                from pi0_ros.policy import Guidance

                frozen = min(delay, len(upcoming))
                arguments['guidance'] = Guidance(
                    previous_actions=upcoming, delay=frozen, execution_horizon=len(upcoming)
                )
        began = time.monotonic()
        try:
            actions = self.policy.predict(observation, **arguments)
        except Exception as error:  # the live node goes on after an error of the policy, too
            self._policy_failed(time_s, error)
            return None, observation
        took = time.monotonic() - began
        self.errors = 0
        if self.text is None:
            self.text = model_text(self.policy, observation)
        self.inferences += 1
        self.durations.add(took)
        try:
            chunk = ActionChunk.of(
                actions, self.robot.dof, stamp_ns=observation.stamp_ns, observed_at=observed_at,
                prompt=self.prompt, sequence=sequence, dt=self.executor.row_dt, inference_s=took,
                frozen_rows=frozen,
            )  # fmt: skip
        except ChunkError as error:
            self._reject(time_s, str(error))
            return None, observation
        return chunk, observation

    def _need_prompt(self) -> None:
        if not self.prompt.strip():
            raise Pi0RosError("no instruction: give --prompt (the bag has no 'prompt' message)")

    def _policy_failed(self, time_s: float, error: Exception) -> None:
        """Count an error of the policy; end the run after a few in a row."""
        text = f'{type(error).__name__}: {" ".join(str(error).split())}'
        self.errors += 1
        self._reject(time_s, f'the policy failed ({text})')
        if self.errors >= MAX_ERRORS:
            raise _PolicyFailed(f'the policy failed {self.errors} times in a row: {text}')

    def _reject(self, time_s: float, why: str) -> None:
        self.rejections += 1
        if len(self.rejected) < 100:
            self.rejected.append(f'{time_s:.2f} s: {why}')

    def _take(self, chunk: ActionChunk, observation, time_s: float) -> None:
        self.taken += 1
        data = chunk.actions.tobytes()
        self.digest.update(data)
        if len(self.digests) < KEPT_CHUNKS:
            self.digests.append(hashlib.sha256(data).hexdigest()[:16])
            self.chunks.append(chunk)
        else:
            self.digests[-1] = hashlib.sha256(data).hexdigest()[:16]
        self.pending.append(chunk)
        self._preview(observation, time_s)
        measured = self.robot.measured_to_command(observation.positions)
        first = self.robot.policy_to_command(chunk.actions[0])
        far = np.abs(first - measured)
        worst = int(far.argmax())
        if len(self.gate) < KEPT_CHUNKS:
            self.gate.append(
                {
                    'time_s': time_s, 'joint': self.robot.joint_names[worst],
                    'distance': float(far[worst]),
                }
            )  # fmt: skip
        if not self.started:
            self.filter.reset(measured)
            self.rollout.begin(time_s, measured)
            self.started = True
        self.tail.append((time_s + self.o.latency, chunk))
        self._advance(time_s)

    def _advance(self, time_s: float) -> None:
        """Hand out setpoints up to a time of the bag, and give chunks to the executor when due."""
        while True:
            tick = self.executor.next_poll()
            ready = self.tail[0][0] if self.tail else None
            if ready is not None and ready <= time_s and (tick is None or ready <= tick):
                self.executor.install(self.tail.popleft()[1], ready)
                continue
            if tick is None or tick > time_s:
                return
            for setpoint in self.executor.poll(tick):
                target = self.robot.policy_to_command(setpoint.positions)
                _, report = self.filter.step(target)
                self.motion.add(setpoint.due, setpoint, target, report)
                for played in self.rollout.step(tick, setpoint.due, target, report):
                    self._played(*played)

    def _preview(self, observation, time_s: float) -> None:
        """Keep pictures evenly over the bag, never more than KEPT_PREVIEWS of them."""
        if (len(self.digests) - 1) % self.preview_every:
            return
        small = {n: resize_with_pad(p, PREVIEW_SIZE) for n, p in observation.images.items()}
        self.previews.append((time_s, small))
        if len(self.previews) > KEPT_PREVIEWS:
            self.previews = self.previews[::2]
            self.preview_every *= 2

    def _finish_chunks(self, final: bool = False) -> None:
        """Compare chunks whose time has passed with what was recorded."""
        while self.pending:
            chunk = self.pending[0]
            last = chunk.stamp_ns + round(len(chunk) * chunk.dt * SECOND)
            if self.states.newest < last and not final and len(self.pending) < 200:
                return
            self.pending.popleft()
            rows = np.arange(1, len(chunk) + 1) * chunk.dt * SECOND
            stamps = chunk.stamp_ns + np.round(rows).astype(np.int64)
            recorded = self.states.at(stamps)
            state = np.full_like(recorded, np.nan)
            known = np.isfinite(recorded).all(axis=1)
            for i in [h - 1 for h in HORIZONS if h <= len(chunk) and known[h - 1]]:
                try:
                    state[i] = self.robot.measured_to_policy(recorded[i])
                except RobotError:
                    continue
            self.state_errors.add(chunk.actions, state)
            if self.actions.count:
                predicted = chunk.actions
                if self.inputs.commands.unit == 'command':
                    predicted = self.robot.policy_to_command(predicted)
                self.action_errors.add(predicted, self.actions.at(stamps))

    # -- the end ----------------------------------------------------------------------------------
    def _result(self, interrupted: str, seconds: float) -> ReplayResult:
        robot, bag = self.robot, self.bag
        if not self.moments and not interrupted and self.policy is not None:
            why = '; '.join(f'{n}: {t}' for n, t in self.waited.items())
            self.problems.add(0.0, dict(self.waited), True)
            self.refused = self.moments = 1
            if not why:
                self.inputs.notes.append('no picture lies inside of the part that was asked for')
        streams = {}
        for topic, stream in self.streams.items():
            name = self.inputs.cameras.get(topic, topic)
            streams[name] = stream.as_dict(self.base)
        starts = [s['start_s'] for s in streams.values() if s['start_s'] is not None]
        ends = [s['end_s'] for s in streams.values() if s['end_s'] is not None]
        recorded = max(ends, default=0.0) - min(starts, default=0.0)
        summary = {
            'format': 1,
            'bag': str(bag.path),
            'robot': robot.name,
            'joints': list(robot.joint_names),
            'mode': 'recorded motion' if self.policy is None else self.o.at,
            'options': {k: (None if v == math.inf else v) for k, v in asdict(self.o).items()},
            'prompts': self.prompts,
            'incomplete': interrupted or bag.incomplete,
            'notes': [*bag.notes, *self.inputs.notes, *self._remarks(streams)],
            'duration_s': recorded,
            'overlap_s': [max(starts, default=0.0), min(ends, default=0.0)],
            'moments': self.moments,
            'refused': self.refused,
            'chunks': self.taken,
            'rejected': self.rejections,
            'rejected_chunks': self.rejected,
            'digest': self.digest.hexdigest(),
            'chunk_digests': self.digests,
            'inference_s': self.durations.as_dict(bins=True),
            'replay_s': seconds,
            'times_real_time': recorded / seconds if seconds > 0 else 0.0,
            'inputs': streams,
            'damaged_messages': self.damaged,
            'problems': self.problems.as_list(),
            'age_s': self.ages.as_dict(bins=True),
            'image_skew_s': self.skews.as_dict(bins=True),
            'against_states': self.state_errors.as_dict(robot.joint_names),
            'against_actions': self.action_errors.as_dict(robot.joint_names),
            'actions': {
                'topics': list(self.inputs.commands.topics), 'unit': self.inputs.commands.unit,
                'samples': self.actions.count,
            },
            'motion': self.motion.as_dict(),
            'start_gate': self._gate(),
            'supervisor': self.rollout.as_dict() if self.started else None,
            'model_input': self.text,
        }
        if self.o.at == 'published':
            summary['published'] = {**self.published, 'guided_apart': self.guided_apart}
        summary['verdict'], summary['reasons'] = judge(summary)
        of_commands = robot.policy_to_command if self.inputs.commands.unit == 'policy' else None
        return ReplayResult(
            summary, self.chunks, self.previews,
            {
                'setpoints': self.motion.trace.rows, 'base_ns': self.base + self.offset,
                'recorded': self._in_commands(self.recorded, self.robot.measured_to_command),
                'commanded': self._in_commands(self.commanded, of_commands),
            },
            [
                (self._seconds(c.stamp_ns - self.offset), robot.policy_to_command(c.actions))
                for c in self.chunks
            ],
        )  # fmt: skip

    @staticmethod
    def _in_commands(trace: Trace, convert) -> tuple[np.ndarray, np.ndarray]:
        """Return times [n] and values [n, dof] of a curve in command units."""
        times, values = [], []
        for time_s, row in trace.rows:
            try:
                values.append(row if convert is None else convert(row))
            except RobotError:
                continue
            times.append(time_s)
        return np.array(times), np.array(values)

    def _remarks(self, streams: dict) -> list[str]:
        notes = []
        for name, s in streams.items():
            if s['zero_stamps'] and s['retimed']:
                notes.append(f'{name}: {s["retimed"]} messages re-timed by their reception')
            elif s['zero_stamps']:
                notes.append(
                    f'{name}: {s["zero_stamps"]} of {s["messages"]} header stamps are zero; '
                    '--received-time takes the time of reception instead'
                )
            if s['backwards']:
                notes.append(f'{name}: stamps went back {s["backwards"]} times (a loop?)')
            if s['longest_gap_s'] > 1.0:
                notes.append(
                    f'{name}: nothing for {s["longest_gap_s"]:.1f} s, '
                    f'{s["longest_gap_after_s"]:.1f} s after its start; not interpolated'
                )
        starts = [s['start_s'] for s in streams.values() if s['start_s'] is not None]
        if starts and max(starts) - min(starts) > 0.5:
            late = [n for n, s in streams.items() if (s['start_s'] or 0) - min(starts) > 0.5]
            notes.append(
                f'{", ".join(late)} begin up to {max(starts) - min(starts):.1f} s after the first '
                'input; replay began when all were there'
            )
        commands = self.inputs.commands
        if not self.actions.count and self.policy is not None:
            others = commands.others(self.bag)
            hint = f"; the 'output' of the robot's YAML does not name {', '.join(others[:4])}"
            notes.append(
                'no commands were recorded on a topic that is known; chunks are compared with '
                f'states only{hint if others else ""}'
            )
        elif commands.unit == 'command' and self.policy is not None:
            notes.append(f'recorded commands: {", ".join(commands.topics)}, in command units')
        if self.rollout.note:
            notes.append(self.rollout.note)
        return [*notes, *self.openings.remarks()]

    def _gate(self) -> dict:
        gate = self.rollout.gate()
        if self.gate:
            gate['first'] = self.gate[0]
            gate['worst'] = max(self.gate, key=lambda g: g['distance'])
        return gate


@dataclass(frozen=True)
class _Published:
    """One recorded action_chunk: when it was received, its observation's stamp, label, rows."""

    received: int
    stamp: int
    label: Mapping
    actions: np.ndarray


class LabelledInputs:
    """Finds the recorded inputs that a chunk's label names, and makes its observation of them."""

    def __init__(self, run: _Run):
        self._run = run
        live = next(
            (p for n, p in run.bag.parameters.items() if n.split('/')[-1] == 'policy_node'), {}
        )
        self._limits = tuple(
            float(live.get(name, own))
            for name, own in (('max_age', run.o.max_age), ('max_skew', run.o.max_skew))
        )

    def observations(self, label: Mapping, held):
        """
        Yield (observation, {}), or (None, problems) where an input is not in the bag.

        First the one that the label names. A joint sample that the recorder got may have been lost
        on its way to the node; so the next ones leave out the sample before the newest, which
        those are interpolated from, of one or of every group of joints.
        """
        groups, pictures = self._sort(label, held)
        absent = [name for name in label['cameras'] if name not in pictures]
        problems = {
            name: f'the picture stamped {label["cameras"][name]} is not in the bag'
            for name in absent
        }
        wanted = label.get('joints', ())
        if len(groups) != len(wanted):
            problems['joint_states'] = (
                f'{len(wanted)} groups of joints were used, the bag has {len(groups)}'
            )
        else:
            lost = [stamp for stamp, group in zip(wanted, groups) if stamp not in group]
            if lost:
                problems['joint_states'] = f'the sample stamped {lost[0]} is not in the bag'
        if problems:
            yield None, problems
            return
        several = range(len(groups)) if len(groups) > 1 else ()
        for without in ((), tuple(range(len(groups))), *((k,) for k in several)):
            yield self._look(label, groups, pictures, without)

    def _sort(self, label: Mapping, held):
        """Return groups of joints, {stamp: (names, positions)} each in order, and pictures."""
        run = self._run
        index = {name: i for i, name in enumerate(run.robot.state_names)}
        groups: dict[int, dict[int, tuple]] = {}
        pictures = {}
        for topic, received, data in held:
            stamp = header_stamp(data)
            if run.o.use_received_time and (stamp <= 0 or topic in run.foreign):
                stamp = received + run.offset
            name = run.inputs.cameras.get(topic)
            if name is not None and label['cameras'].get(name) == stamp:
                pictures[name] = topic, data
            for prefix in run.inputs.joints.get(topic, ()):
                message = decode(data, JOINTS)
                bare = list(message.name) or run._names_for(topic, len(message.position))
                names = run._resolved(prefix, bare)
                own = [index[n] for n in names if n in index]
                if own and len(message.position):
                    groups.setdefault(min(own), {})[stamp] = names, message.position
        return [groups[first] for first in sorted(groups)], pictures

    def _look(self, label, groups, pictures, without):
        run = self._run
        buffer = ObservationBuffer(run.robot, *self._limits)
        for name, (topic, data) in pictures.items():
            frame = functools.partial(
                _rgb, data, run.streams[topic].kind, run.robot.cameras[name].encoding
            )
            buffer.add_image(name, label['cameras'][name], frame)
        for k, (newest, group) in enumerate(zip(label['joints'], groups)):
            stamps = sorted(stamp for stamp in group if stamp <= newest)
            if k in without and len(stamps) > 1:
                del stamps[-2]
            for stamp in stamps:
                buffer.add_joints(stamp, *group[stamp])
        return buffer.latest(max(*label['joints'], *label['cameras'].values()))


@dataclass(frozen=True)
class _Options:
    prompt: str
    stride: int
    start: float
    end: float
    at: str
    seed: int
    use_received_time: bool
    stitching: str
    execution_horizon: int
    latency: float
    max_age: float
    max_skew: float
    namespace: str


def recorded_prompt(bag: Bag) -> str:
    """Return the prompt parameter of the recorded policy_node; '' when it is unknown."""
    for node, parameters in bag.parameters.items():
        if node.split('/')[-1] == 'policy_node' and isinstance(parameters, dict):
            return str(parameters.get('prompt', ''))
    return ''


class _PolicyFailed(Exception):
    """The policy failed too often in a row."""


def model_text(policy, observation) -> dict | None:
    """
    Return what the model was told beside the pictures, for a :class:`pi0_ros.policy.Pi0Policy`.

    ``text`` as it was tokenised, ``tokens``: their ids, ``limit``: how many the checkpoint takes,
    ``state``: float [dof], normalised. None for other policies.
    """
    tokenizer, inputs = getattr(policy, 'tokenizer', None), getattr(policy, '_inputs', None)
    if tokenizer is None or inputs is None:
        return None
    from pi0_ros.policy.prompt import clean_prompt, pi05_text

    _, state, tokens = inputs(observation)
    text = clean_prompt(observation.prompt, tokenizer.family)
    if policy.config.kind == 'pi05':
        text = pi05_text(observation.prompt, state)
    return {
        'text': text, 'tokens': tokens.tolist(), 'limit': tokenizer.length,
        'state': [round(float(v), 4) for v in state],
    }  # fmt: skip


def judge(summary: Mapping) -> tuple[str, list[str]]:
    """
    Return 'yes', 'warnings' or 'no', and why, worst first.

    No: nothing predicted, a chunk that had to be refused, more than 20 % of the moments without a
    usable observation, more than 5 % of the setpoints limited, or published chunks not repeated.
    Warnings: anything else that a person should look at before a robot moves.
    """
    no, warnings = [], []
    motion = summary['motion']
    if summary['rejected_chunks']:
        no.append(
            f'{summary["rejected"]} predictions had to be refused as a whole: '
            f'{summary["rejected_chunks"][0]}'
        )
    blocked = [p for p in summary['problems'] if p['blocked']]
    why = '; '.join(f'{p["input"]}: {p["text"]}' for p in blocked[:3])
    if summary['mode'] == 'recorded motion':
        if not motion['setpoints']:
            no.append(f'no motion could be replayed{": " + why if why else ""}')
    elif not summary['chunks']:
        no.append(f'nothing was predicted{": " + why if why else ""}')
    elif summary['refused']:
        text = (
            f'{summary["refused"]} of {summary["moments"]} moments had no usable observation '
            f'({why})'
        )
        (no if summary['refused'] > REFUSED_SHARE * summary['moments'] else warnings).append(text)
    if motion['limited_ticks']:
        worst = motion['limits'][0]
        text = (
            f'the filter would have changed {motion["limited_ticks"]} of {motion["setpoints"]} '
            f'setpoints; most often {worst["joint"]} ({worst["bound"]}, by up to '
            f'{worst["worst"]:.3f})'
        )
        share = motion['limited_ticks'] / max(motion['setpoints'], 1)
        (no if share > LIMITED_SHARE else warnings).append(text)
    published = summary.get('published')
    if published and published['different']:
        no.append(f'{published["different"]} chunks differ from those that were published')
    if published and published['guided']:
        warnings.append(
            f'{published["guided"]} chunks were predicted with guidance and are repeated from the '
            f'chunk before them only, to within {published["guided_apart"]:.4f}'
        )
    gate = summary['start_gate']
    if gate['verdict'] == 'refused':
        no.append(f'the start gate stayed closed: {gate["reason"]}')
    elif gate['verdict'] == 'approach' and gate['approach_s'] is None:
        no.append(f'the arm never caught up with the policy from its start: {gate["reason"]}')
    elif gate['verdict'] == 'approach':
        warnings.append(f'{gate["reason"]}, for {gate["approach_s"]:.1f} s')
    clearance = (summary['supervisor'] or {}).get('clearance')
    if clearance and clearance['smallest'] < clearance['limit']:
        no.append(
            f'{clearance["between"]} come to {clearance["smallest"]:.3f} m at '
            f'{clearance["time_s"]:.2f} s (limit {clearance["limit"]:g} m): the filter would hold'
        )
    inside, seams = motion['step_inside'], motion['step_at_seams']
    if seams['count'] > 2 and seams['p99'] > 3 * max(inside['p99'], 0.002):
        warnings.append(
            f'steps at seams reach {seams["p99"]:.3f} (p99), inside of chunks {inside["p99"]:.3f}'
        )
    if motion['held']:
        warnings.append(f'{motion["held"]} setpoints were held because no new chunk was there')
    if summary['damaged_messages']:
        warnings.append(f'{summary["damaged_messages"]} messages are damaged')
    if summary['incomplete']:
        warnings.append(summary['incomplete'])
    for p in summary['problems']:
        if not p['blocked']:
            warnings.append(f'{p["input"]}: {p["text"]} ({p["count"]} times)')
    for name, s in summary['inputs'].items():
        if s['drops'] > 0.05 * s['messages']:
            warnings.append(f'{name}: about {s["drops"]} messages lost of {s["messages"]}')
    return ('no' if no else 'warnings' if warnings else 'yes'), [*no, *warnings]
