# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Aligns cameras and joint states by stamp; says by name what is wrong with which input.

Fed by the nodes' subscriptions and by replay, read by the inference thread. Pure Python and NumPy.

Rules. A stamp is the header's, never the time of arrival; a stamp of zero is unset and refused.
Everything in an observation is at most ``max_age`` old and lies within ``max_skew`` of the newest
picture in it; joints are interpolated to that picture's time and merged by name, each with its own
time. When a stream goes back in time its past is forgotten. Nothing is ever filled in.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pi0_ros.errors import Pi0RosError
from pi0_ros.observation.joints import JointTrack
from pi0_ros.robot import RobotError, RobotSpec

NANOSECONDS = 1_000_000_000
JOINTS = 'joint_states'
"""The name of the measured joints among the inputs, in problems, ages and counters."""

FRAMES_KEPT = 16
"""Pictures kept of a camera: a quarter of a second at 60 Hz, enough to align a slow camera."""

FAILURE_VALUES = (0.0, -np.pi, np.pi)
"""
What drivers report for joints that they could not read.

Freshly initialised memory, and the angles of tick 0 and of the last tick of a turn (Dynamixel).
"""

NO_ANGLE = 1e3
"""No joint has turned so far [rad]; drivers report such numbers for what they do not know."""

OUTSIDE_RAD = np.pi
"""Positions this far outside a joint's limits are remarked: degrees, or a turn too many."""

SENTINEL_JOINTS = 3
"""Fewest joints in a message that must all show a failure value; one gripper at 0 is no fault."""

SAME_PICTURE_S = 2.0
"""How long a camera may send the same bytes under advancing stamps before it is remarked."""

REPEATS_REMARKED = 2
"""Repetitions of a stamp in a row that are remarked; one happens when a message comes twice."""

EPOCH_S = 1e6
"""Offsets beyond this are no late messages but another clock (uptime against Unix time)."""

Picture = np.ndarray | Callable[[], np.ndarray]


@dataclass(frozen=True)
class Observation:
    """
    What the policy sees at one moment.

    :param images: camera name -> uint8 [H, W, 3] RGB.
    :param state: float [dof] in the policy's space (arm joints rad or deg, gripper opening 0..1).
    :param prompt: the instruction.
    :param stamp_ns: stamp of the newest picture used.
    :param image_stamps_ns: camera name -> stamp of its picture.
    :param positions: float64 [dof], the measured joints as they came (``robot.state_names``).
    :param joint_stamps_ns: of every group of joints that comes in one message, in the order of
        the joints: stamp of the newest sample used.
    """

    images: Mapping[str, np.ndarray]
    state: np.ndarray
    prompt: str = ''
    stamp_ns: int = 0
    image_stamps_ns: Mapping[str, int] = field(default_factory=dict)
    positions: np.ndarray | None = None
    joint_stamps_ns: tuple[int, ...] = ()


@dataclass
class _Frame:
    stamp: int
    picture: Picture
    received: int | None
    decoded: np.ndarray | None = None


class _Input:
    """What is known of one input beside its data; its owner is the buffer, under its lock."""

    def __init__(self):
        self.counts = {'accepted': 0, 'rejected': 0, 'out of order': 0, 'repeated': 0, 'resets': 0}
        self.fault = ''  # why the newest message was refused; '' after a good one
        self.went_back = ''  # the last jump back, until the input is fit again
        self.seen = False
        self.received: int | None = None  # of the newest message
        self.repeats = 0  # messages in a row with the stamp of the one before

    def refuse(self, why: str) -> None:
        self.seen = True
        self.fault = why
        self.counts['rejected'] += 1


class _Camera(_Input):
    def __init__(self):
        super().__init__()
        self.frames: deque[_Frame] = deque(maxlen=FRAMES_KEPT)
        self.last_decoded: np.ndarray | None = None
        self.same_since = 0  # stamp of the first picture with the bytes of the last
        self.same_until = 0


@dataclass(frozen=True)
class _Pose:
    positions: np.ndarray
    stamps: tuple[int, ...]


@dataclass(frozen=True)
class _Choice:
    """What was chosen without any problem, good as long as nothing comes or grows too old."""

    version: int
    until: int
    frames: dict[str, _Frame]
    pose: _Pose


class ObservationBuffer:
    """
    The newest usable observation of a robot.

    Every method may be called from any thread; one lock guards all state and is held for
    microseconds, except that :meth:`latest` decodes outside of it. No other lock is taken inside.

    :param robot: names the cameras and joints that are expected.
    :param max_age: seconds between an input's stamp and now.
    :param max_skew: seconds between the stamps inside of one observation.
    :raises Pi0RosError: when one of them is not a positive number.
    """

    def __init__(self, robot: RobotSpec, max_age: float = 0.2, max_skew: float = 0.05):
        for name, value in (('max_age', max_age), ('max_skew', max_skew)):
            if not (np.isfinite(value) and value > 0):
                raise Pi0RosError(f'{name} is {value}; expected seconds above zero')
        self._robot = robot
        self._max_age = round(max_age * NANOSECONDS)
        self._max_skew = round(max_skew * NANOSECONDS)
        self._names = robot.state_names
        self._required = [n for n, c in robot.cameras.items() if c.required]
        self._index = {name: i for i, name in enumerate(self._names)}
        joints = robot.joints
        self._turning = np.array([joint.continuous for joint in joints])
        arm = [not joint.is_gripper and not joint.continuous for joint in joints]
        bounded = [(j.lower, j.upper) if own else (-np.inf, np.inf) for j, own in zip(joints, arm)]
        self._lower, self._upper = np.array(bounded).T
        self._orders: dict[tuple[str, ...], tuple[np.ndarray, tuple[int, ...]]] = {}
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Forget everything, also what was ever seen (a new run, a reset of the clock)."""
        with self._lock:
            self._cameras = {name: _Camera() for name in self._robot.cameras}
            self._joints = _Input()
            self._useless = ''  # why joint messages came that say nothing of ours
            self._tracks: dict[tuple[int, ...], JointTrack] = {}
            self._now = -(2**63)
            self._version = 0  # of the inputs; what was chosen stands until it changes
            self._choice: _Choice | None = None
            self._observation: Observation | None = None

    # -- inputs -----------------------------------------------------------------------------------

    def add_image(
        self, camera: str, stamp_ns: int, rgb_or_callable: Picture,
        received_ns: int | None = None,
    ) -> None:  # fmt: skip
        """
        Take a picture.

        :param camera: one of ``robot.cameras``.
        :param stamp_ns: the header's stamp; 0 means unset, and the picture is refused.
        :param rgb_or_callable: uint8 [H, W, 3], or a callable that returns it when an inference
            needs it.
        :param received_ns: when it arrived, on the same clock as ``now_ns`` of :meth:`latest`;
            used for diagnosis only.
        :raises Pi0RosError: for a camera that the robot does not have.
        """
        stream = self._cameras.get(camera)
        if stream is None:
            known = ', '.join(self._cameras)
            raise Pi0RosError(f"robot '{self._robot.name}' has no camera '{camera}' ({known})")
        with self._lock:
            self._version += 1
            stream.received = received_ns
            if not callable(rgb_or_callable):
                fault = _picture_fault(rgb_or_callable)
                if fault:
                    stream.refuse(fault)
                    return
            newest = stream.frames[-1].stamp if stream.frames else None
            if not self._in_order(stream, stamp_ns, newest):
                return
            if newest is not None and stamp_ns < newest:
                stream.frames.clear()
            stream.frames.append(_Frame(int(stamp_ns), rgb_or_callable, received_ns))

    def add_joints(
        self,
        stamp_ns: int,
        names: Sequence[str],
        positions: Sequence[float],
        received_ns: int | None = None,
    ) -> None:
        """
        Take measured positions of some or all joints.

        Joints that the robot does not have are ignored. A message is taken whole or not at all.

        :param stamp_ns: the header's stamp; 0 means unset, and the message is refused.
        :param names: of the joints, any order.
        :param positions: rad (grippers: as measured), as many as names. None at all is legal (a
            message with velocities only) and changes nothing.
        :param received_ns: as in :meth:`add_image`.
        """
        with self._lock:
            self._version += 1
            inputs = self._joints
            if len(positions) == 0 and len(names):
                self._useless = 'messages come without positions (velocities or efforts only)'
                return
            inputs.received = received_ns
            if not len(names):
                inputs.refuse('a message has no joint names; positions without names mean nothing')
                return
            if len(names) != len(positions):
                inputs.refuse(f'a message has {len(names)} names and {len(positions)} positions')
                return
            order = self._order(tuple(names))
            if order is None:
                inputs.refuse('a message names a joint twice')
                return
            picks, indices = order
            if not indices:
                self._useless = (
                    f'messages come, but name none of its joints (they name {_few(names)}; '
                    f'expected {_few(self._names)})'
                )
                return
            try:
                values = np.array(positions, dtype=np.float64).reshape(len(names))[picks]
            except (TypeError, ValueError):
                inputs.refuse('the positions of a message are no list of numbers')
                return
            fault = self._position_fault(values, indices)
            if fault:
                inputs.refuse(fault)
                return
            track = self._tracks.get(indices)
            if track is None:
                track = self._tracks[indices] = JointTrack(indices, self._turning)
            newest = track.newest if track.stamps else None
            if not self._in_order(inputs, stamp_ns, newest):
                return
            if newest is not None and stamp_ns < newest:
                for other in self._tracks.values():
                    other.drop_after(stamp_ns)
                track.clear()
            track.add(int(stamp_ns), values)

    def _in_order(self, stream: _Input, stamp_ns: int, newest: int | None) -> bool:
        """Judge a stamp against the newest one; count what is refused."""
        if stamp_ns <= 0:
            kind = 'zero (never set by the driver)' if stamp_ns == 0 else 'before 1970 (negative)'
            stream.refuse(f'the header stamp is {kind}')
            return False
        stream.seen = True
        if newest is not None and stamp_ns == newest:
            stream.counts['repeated'] += 1
            stream.repeats += 1
            stream.fault = (
                f'frozen: the same stamp came {stream.repeats + 1} times'
                if isinstance(stream, _Camera) else ''
            )  # fmt: skip
            return False
        if newest is not None and newest - self._max_skew <= stamp_ns < newest:
            stream.counts['out of order'] += 1
            return False
        if newest is not None and stamp_ns < newest:
            stream.counts['resets'] += 1
            back = (newest - stamp_ns) / NANOSECONDS
            stream.went_back = f'stamps went back by {back:.3f} s'
        stream.counts['accepted'] += 1
        stream.fault = ''
        stream.repeats = 0
        return True

    def _order(self, names: tuple[str, ...]) -> tuple[np.ndarray, tuple[int, ...]] | None:
        """Return which positions of such a message are ours, and their places in the state."""
        known = self._orders.get(names)
        if known is None:
            ours = sorted((self._index[n], k) for k, n in enumerate(names) if n in self._index)
            indices = tuple(i for i, _ in ours)
            if len(set(indices)) < len(indices):
                return None
            if len(self._orders) > 64:  # a driver has one or two; never grow without bound
                self._orders.clear()
            known = self._orders[names] = (np.array([k for _, k in ours], dtype=int), indices)
        return known

    def _position_fault(self, values: np.ndarray, indices: tuple[int, ...]) -> str:
        finite = np.isfinite(values)
        if not finite.all():
            bad = [self._names[i] for i in np.array(indices)[~finite]]
            return f'position of {", ".join(bad)} is not a number (NaN or infinite)'
        absurd = np.abs(values) > NO_ANGLE
        if absurd.any():
            bad = [f'{self._names[indices[k]]} {values[k]:g}' for k in np.flatnonzero(absurd)]
            return f'position of {", ".join(bad)} is no angle or opening (sentinel)'
        if len(values) >= SENTINEL_JOINTS:
            for failure in FAILURE_VALUES:
                if np.ptp(values) == 0.0 and abs(values[0] - failure) < 1e-6:
                    return (
                        f'all {len(values)} joints are exactly {values[0]:.7g}, which is what a '
                        'driver reports when it could not read them (sentinel)'
                    )
        return ''

    # -- output -----------------------------------------------------------------------------------

    def latest(self, now_ns: int) -> tuple[Observation | None, dict[str, str]]:
        """
        Return the newest aligned observation, decoded, and what is wrong with which input.

        :param now_ns: the time on the stamps' clock.
        :return: the observation, None when a required input is unfit; and problems, input name ->
            sentence. Problems beside an observation are remarks: an optional camera is missing, a
            picture has not changed for seconds.
        """
        while True:
            with self._lock:
                chosen, pose, problems = self._select(now_ns)
                if chosen is not None and self._observation is not None and not problems:
                    return self._observation, {}
            if chosen is None:
                return None, problems
            broken = False
            for name, frame in chosen.items():
                if frame.decoded is None:
                    broken |= not self._decode(name, frame)
            if not broken:
                break
        try:
            state = self._robot.measured_to_policy(pose.positions)
        except RobotError as error:
            return None, {**problems, JOINTS: str(error)}
        for name, frame in chosen.items():
            remark = self._remark(self._cameras[name], frame)
            if remark:
                problems.setdefault(name, remark)
        outside = self._outside(pose.positions)
        if outside:
            problems.setdefault(JOINTS, outside)
        stamps = {name: frame.stamp for name, frame in chosen.items()}
        for shared in (state, pose.positions):
            shared.flags.writeable = False
        observation = Observation(
            images={name: frame.decoded for name, frame in chosen.items()},
            state=state,
            stamp_ns=max(stamps.values()),
            image_stamps_ns=stamps,
            positions=pose.positions,
            joint_stamps_ns=pose.stamps,
        )
        with self._lock:
            if self._choice is not None and self._choice.frames is chosen and not problems:
                self._observation = observation
        return observation, problems

    def judge(self, now_ns: int) -> tuple[int | None, dict[str, str]]:
        """Return the stamp that :meth:`latest` would have, and its problems, without decoding."""
        with self._lock:
            chosen, _, problems = self._select(now_ns)
        return (max(f.stamp for f in chosen.values()) if chosen else None), problems

    def spread(self) -> float:
        """Return how far apart [s] the newest pictures of the required cameras are."""
        with self._lock:
            kept = [self._cameras[name].frames for name in self._required or self._cameras]
            stamps = [frames[-1].stamp for frames in kept if frames]
        return (max(stamps) - min(stamps)) / NANOSECONDS if stamps else 0.0

    def ages(self, now_ns: int) -> dict[str, float | None]:
        """Return the age [s] of each input's newest stamp; None when never seen."""
        with self._lock:
            newest = {
                name: camera.frames[-1].stamp if camera.frames else None
                for name, camera in self._cameras.items()
            }
            tracks = self._freshest().values()
            newest[JOINTS] = min((track.newest for track in tracks), default=None)
        return {
            name: None if stamp is None else (now_ns - stamp) / NANOSECONDS
            for name, stamp in newest.items()
        }

    def stats(self, now_ns: int) -> dict[str, dict[str, float | int | None]]:
        """
        Return the figures of every input, for diagnostics and reports.

        :return: input -> ``age`` [s] and ``rate`` [Hz, by stamps, over what is kept] (None: never
            seen), ``skew`` [s] from the newest stamp of all inputs, and the counters.
        """
        with self._lock:
            stamps = {n: [f.stamp for f in c.frames] for n, c in self._cameras.items()}
            tracks = self._freshest().values()
            slowest = min(tracks, key=lambda track: track.newest, default=None)
            stamps[JOINTS] = list(slowest.stamps) if slowest else []
            counts = {n: dict(c.counts) for n, c in self._cameras.items()}
            counts[JOINTS] = dict(self._joints.counts)
        newest = max((s[-1] for s in stamps.values() if s), default=0)
        return {
            name: {
                'age': (now_ns - own[-1]) / NANOSECONDS if own else None,
                'rate': (
                    (len(own) - 1) * NANOSECONDS / (own[-1] - own[0]) if len(own) > 1 else None
                ),
                'skew': (newest - own[-1]) / NANOSECONDS if own else None,
                **counts[name],
            }
            for name, own in stamps.items()
        }

    def counters(self, name: str) -> dict[str, int]:
        """Return how many messages of an input were accepted, rejected, repeated and so on."""
        with self._lock:
            stream = self._joints if name == JOINTS else self._cameras.get(name)
            return dict(stream.counts) if stream else {}

    # -- inside (under the lock) ------------------------------------------------------------------

    def _select(self, now_ns: int):
        """Choose frames and positions: ({camera: frame} or None, pose or None, problems)."""
        choice = self._choice
        if choice and choice.version == self._version and self._now <= now_ns <= choice.until:
            return choice.frames, choice.pose, {}
        self._choice = self._observation = None
        if now_ns < self._now - self._max_skew:
            self._forget_future(now_ns)
        self._now = now_ns
        problems: dict[str, str] = {}
        newest: dict[str, _Frame] = {}
        for name, stream in self._cameras.items():
            problem = self._camera_problem(stream, now_ns)
            if problem:
                problems[name] = problem
            else:
                newest[name] = stream.frames[-1]
        required = self._required
        blocked = any(name in problems for name in required) or not newest
        joint_problem = self._joint_problem(now_ns)
        if joint_problem:
            problems[JOINTS] = joint_problem
        if blocked or joint_problem:
            return None, None, problems
        chosen = self._align(newest, required, problems)
        if chosen is None:
            return None, None, problems
        pose = self._pose_at(max(f.stamp for f in chosen.values()), problems)
        if pose is None:
            return None, None, problems
        for name, stream in (*((n, self._cameras[n]) for n in chosen), (JOINTS, self._joints)):
            if stream.went_back:  # fit again; told once more, beside the observation
                problems.setdefault(name, f'{stream.went_back}; its past was forgotten')
                stream.went_back = ''
        if not problems:
            oldest = min(
                *(frame.stamp for frame in chosen.values()),
                *(track.newest for track in self._tracks.values() if track.stamps),
            )
            self._choice = _Choice(self._version, oldest + self._max_age, chosen, pose)
        return chosen, pose, problems

    def _forget_future(self, now_ns: int) -> None:
        """Forget what a clock that jumped back has not reached yet."""
        for stream in self._cameras.values():
            while stream.frames and stream.frames[-1].stamp > now_ns:
                stream.frames.pop()
        for track in self._tracks.values():
            track.drop_after(now_ns)

    def _age_problem(self, stream: _Input, stamp: int, received, now_ns: int) -> str:
        age = (now_ns - stamp) / NANOSECONDS
        back = f' ({stream.went_back})' if stream.went_back else ''
        if abs(age) > EPOCH_S:
            return f'its stamps belong to another time base: {age:+.0f} s from the clock{back}'
        if now_ns - stamp < -self._max_skew:
            return (
                f'its newest stamp is {-age:.3f} s in the future; are the clocks of two machines '
                f'synchronised?{_time_zone(age)}{back}'
            )
        if now_ns - stamp <= self._max_age:
            return ''
        if stream.went_back:
            return f'{stream.went_back} (device clock reset?); its newest is {age:.3f} s old'
        limit = self._max_age / NANOSECONDS
        back = f'{_time_zone(age)}{back}'
        if received is not None and now_ns - received <= self._max_age:
            return (
                f'messages arrive, but their stamps are {age:.3f} s behind the clock (limit '
                f'{limit:g} s): clock offset between machines? synchronise them (chrony){back}'
            )
        return f'stale: its newest stamp is {age:.3f} s old (limit {limit:g} s){back}'

    def _camera_problem(self, stream: _Camera, now_ns: int) -> str:
        if not stream.frames:
            if not stream.seen:
                return 'never seen'
            return stream.fault or f'no picture since {stream.went_back or "the clock was reset"}'
        frame = stream.frames[-1]
        problem = self._age_problem(stream, frame.stamp, frame.received, now_ns)
        if problem and stream.fault:
            return f'{stream.fault}; {problem}'
        return problem

    def _freshest(self) -> dict[int, JointTrack]:
        """Return for each joint seen the messages that its newest sample is in."""
        newest: dict[int, JointTrack] = {}
        for track in self._tracks.values():
            for index in track.indices.tolist() if track.stamps else ():
                known = newest.get(index)
                if known is None or known.newest < track.newest:
                    newest[index] = track
        return newest

    def _joint_problem(self, now_ns: int) -> str:
        newest = self._freshest()
        if not newest:
            if not self._joints.seen:
                return self._useless or 'never seen'
            return self._joints.fault or 'no positions since the clock was reset'
        names = self._names
        missing = [names[i] for i in range(len(names)) if i not in newest]
        if missing:
            reason = f' (last refused: {self._joints.fault})' if self._joints.fault else ''
            return f'incomplete: {", ".join(missing)} never seen{reason}'
        late: dict[str, list[str]] = {}
        judged: dict[int, str] = {}  # by track: its joints came together
        for index, track in newest.items():
            if id(track) not in judged:
                judged[id(track)] = self._age_problem(
                    self._joints, track.newest, self._joints.received, now_ns
                )
            problem = judged[id(track)]
            if problem:
                late.setdefault(problem, []).append(names[index])
        if not late:
            return self._joints.fault
        parts = [
            text if len(joints) == len(names) else f'{", ".join(joints)}: {text}'
            for text, joints in late.items()
        ]
        return '; '.join([self._joints.fault] * bool(self._joints.fault) + parts)

    def _align(self, newest, required, problems):
        """Take the newest frames if they belong together, else those nearest to the slowest."""
        stamps = [frame.stamp for frame in newest.values()]
        if max(stamps) - min(stamps) <= self._max_skew:
            return newest
        slowest = min(newest[name].stamp for name in required or newest)
        chosen = {}
        for name in newest:
            frames = self._cameras[name].frames
            frame = min(frames, key=lambda f: (abs(f.stamp - slowest), -f.stamp))
            chosen[name] = frame
        base = max(chosen[name].stamp for name in required or chosen)
        for name in list(chosen):
            apart = abs(chosen[name].stamp - base)
            if apart > self._max_skew:
                problems[name] = (
                    f'skewed: its nearest picture is {apart / NANOSECONDS:.3f} s from the others '
                    f'(limit {self._max_skew / NANOSECONDS:g} s)'
                )
                if name in required:
                    return None
                del chosen[name]
        return chosen or None

    def _pose_at(self, stamp: int, problems) -> _Pose | None:
        positions = np.full(len(self._names), np.nan)
        distance = np.full(len(self._names), 2**62)
        used = {}
        for track in self._tracks.values():
            if not track.stamps:
                continue
            values, away, until = track.at(stamp, 2 * self._max_skew)
            used[int(track.indices[0])] = until
            nearer = away < distance[track.indices]
            positions[track.indices[nearer]] = values[nearer]
            distance[track.indices[nearer]] = away
        far = distance > self._max_skew
        if far.any():
            names = [self._names[i] for i in np.flatnonzero(far)]
            who = 'all joints' if far.all() else ', '.join(names)
            problems[JOINTS] = (
                f'skewed: the nearest sample of {who} is {distance.max() / NANOSECONDS:.3f} s '
                f'from the picture (limit {self._max_skew / NANOSECONDS:g} s)'
            )
            return None
        return _Pose(positions, tuple(used[first] for first in sorted(used)))

    def _outside(self, positions: np.ndarray) -> str:
        """Tell of positions that no joint of this robot can have."""
        beyond = np.maximum(self._lower - positions, positions - self._upper) > OUTSIDE_RAD
        if not beyond.any():
            return ''
        parts = [
            f'{self._names[i]} {positions[i]:.4g} (limits {self._lower[i]:.4g} to '
            f'{self._upper[i]:.4g})'
            for i in np.flatnonzero(beyond)
        ]
        return f'far outside its limits [rad]: {", ".join(parts)}; degrees, or a turn too many?'

    # -- decoding (without the lock) --------------------------------------------------------------

    def _decode(self, name: str, frame: _Frame) -> bool:
        """Decode a frame once; drop it and remember why when that fails."""
        try:
            picture = frame.picture() if callable(frame.picture) else frame.picture
            fault = _picture_fault(picture)
        except Exception as error:  # a decoder's bug must not end the inference thread
            fault = str(error) or type(error).__name__
        if not fault:
            frame.decoded, frame.picture = picture, picture
            return True
        with self._lock:
            stream = self._cameras[name]
            if frame in stream.frames:
                stream.frames.remove(frame)
            stream.refuse(f'a picture could not be used: {fault}')
            self._version += 1  # what was chosen with it is chosen no more
        return False

    def _remark(self, stream: _Camera, frame: _Frame) -> str:
        """Tell of a camera whose bytes do not change although its stamps do."""
        with self._lock:
            if frame.stamp != stream.same_until:
                if not _same_picture(stream.last_decoded, frame.decoded):
                    stream.same_since = frame.stamp
                stream.last_decoded, stream.same_until = frame.decoded, frame.stamp
            seconds = (stream.same_until - stream.same_since) / NANOSECONDS
            repeats = stream.repeats
        if repeats >= REPEATS_REMARKED:
            return f'frozen? the same stamp came {repeats + 1} times in a row'
        if seconds < SAME_PICTURE_S:
            return ''
        return f'frozen? the picture has been the same for {seconds:.1f} s, to the last byte'


def _few(names: Sequence[str]) -> str:
    return ', '.join(names[:3]) + (', ...' if len(names) > 3 else '')


def _time_zone(age: float) -> str:
    """Remark on offsets of half hours: local time instead of UTC."""
    half_hours = round(age / 1800.0)
    if half_hours == 0 or abs(half_hours) > 28 or abs(age - 1800.0 * half_hours) > 5.0:
        return ''
    return f' ({abs(half_hours) / 2:g} h: stamped with local time instead of UTC?)'


def _picture_fault(picture) -> str:
    if not isinstance(picture, np.ndarray) or picture.dtype != np.uint8:
        return f'a picture is {getattr(picture, "dtype", type(picture).__name__)}, not uint8'
    if picture.ndim != 3 or picture.shape[2] != 3 or 0 in picture.shape:
        return f'a picture has shape {picture.shape}, not [H, W, 3]'
    return ''


def _same_picture(one: np.ndarray | None, other: np.ndarray) -> bool:
    if one is None or one.shape != other.shape:
        return False
    # Noise shows in a few pixels; only suspicious pictures are compared whole.
    few = tuple(slice(None, None, max(side // 8, 1)) for side in one.shape[:2])
    return bool((one[few] == other[few]).all()) and np.array_equal(one, other)
