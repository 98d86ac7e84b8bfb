# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Recorded episodes as training samples: pictures, state, instruction, chunk of future actions.

A bag goes through replay, and so through the same buffer, alignment and joint maps as a live run:
what is learned from is what the policy will be shown. Row i of a chunk is the action
``(i + 1) / rate`` seconds after the observation, the same moment at which the executor will play
it. States and actions are in the policy's space. Imports no torch and no ROS.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from pi0_ros import gripper as gripper_maps
from pi0_ros.errors import Pi0RosError
from pi0_ros.replay.bag import BagError, header_stamp, open_bag, topic_name
from pi0_ros.replay.replay import JOINTS, decode, replay
from pi0_ros.robot import RobotSpec

SECOND = 1_000_000_000

SAME_MOMENT_NS = 2_000
"""Stamps this close are one moment: rounding of k / 30 s to nanoseconds is no reason to blend."""

MOST_CHUNKS = 20_000
"""Chunks, evenly spaced, that statistics of relative actions are taken from: 10^6 rows suffice."""

ACTION_TOPICS = ('joint_command', 'joint_command_raw')
"""What the arms were told (robot units), or what the policy had asked for (its own units)."""

_log = logging.getLogger(__name__)


class DatasetError(Pi0RosError):
    """Data that cannot be trained on; says what does not fit and the remedy."""


@dataclass(frozen=True, eq=False)
class Episode:
    """
    One stretch of recording without a gap, in the policy's space.

    :param stamps_ns: int64 [n], increasing: the moments of the observations.
    :param states: float32 [n, dof].
    :param images: camera -> n pictures uint8 [H, W, 3] RGB; any sequence, decoded when indexed.
    :param prompts: n instructions.
    :param action_stamps_ns: int64 [m], increasing.
    :param actions: float32 [m, dof].
    :param rate: of the actions, Hz.
    :param source: where it comes from, for messages.
    :raises DatasetError: when the parts do not fit together or hold NaN.
    """

    stamps_ns: np.ndarray
    states: np.ndarray
    images: Mapping[str, Sequence[np.ndarray]]
    prompts: tuple[str, ...]
    action_stamps_ns: np.ndarray
    actions: np.ndarray
    rate: float
    source: str = ''
    notes: tuple[str, ...] = field(default_factory=tuple)

    def __post_init__(self):
        n, m = len(self.stamps_ns), len(self.action_stamps_ns)
        faults = []
        if not n or not m:
            faults.append(f'{n} observations and {m} actions')
        if self.states.shape[:1] != (n,) or self.actions.shape[:1] != (m,):
            faults.append(
                f'states {self.states.shape} and actions {self.actions.shape} for {n} and {m} '
                'stamps'
            )
        elif self.states.ndim != 2 or self.actions.ndim != 2:
            faults.append(f'states {self.states.shape}, actions {self.actions.shape}')
        if len(self.prompts) != n:
            faults.append(f'{len(self.prompts)} prompts for {n} observations')
        for name, pictures in self.images.items():
            if len(pictures) != n:
                faults.append(f'{len(pictures)} pictures of {name} for {n} observations')
        for name in ('stamps_ns', 'action_stamps_ns'):
            if (np.diff(getattr(self, name)) <= 0).any():
                faults.append(f'{name} do not increase')
        for name in ('states', 'actions'):
            values = getattr(self, name)
            if not np.isfinite(values).all():
                row = int(np.argwhere(~np.isfinite(values))[0][0])
                faults.append(f'{name} are not finite from row {row} on')
        if not self.rate > 0:
            faults.append(f'a rate of {self.rate} Hz')
        if faults:
            raise DatasetError(f'{self.source or "episode"}: {"; ".join(faults)}')

    def __len__(self) -> int:
        return len(self.stamps_ns)

    @property
    def dof(self) -> int:
        """How many joints the actions have; the state may have another number."""
        return self.actions.shape[1]

    def chunk(self, index: int, length: int, rate: float) -> tuple[np.ndarray, np.ndarray]:
        """
        Return the actions that followed an observation.

        :param rate: rows a second; linear in between where the recording has another one.
        :return: float32 [length, dof], past the end the last action again; and bool [length],
            true where it is such padding.
        """
        rows = np.round((np.arange(length) + 1) * (SECOND / rate)).astype(np.int64)
        wanted = self.stamps_ns[index] + rows
        known = self.action_stamps_ns
        padded = wanted > known[-1] + SAME_MOMENT_NS
        after = np.searchsorted(known, wanted - SAME_MOMENT_NS)
        after = np.minimum(after, len(known) - 1)
        before = np.maximum(after - 1, 0)
        span = np.maximum(known[after] - known[before], 1)
        share = np.clip((wanted - known[before]) / span, 0.0, 1.0)
        share[np.abs(known[after] - wanted) <= SAME_MOMENT_NS] = 1.0
        share[after == before] = 1.0
        low, high = self.actions[before].astype(np.float64), self.actions[after]
        return (low + share[:, None] * (high - low)).astype(np.float32), padded


@dataclass(frozen=True, eq=False)
class Sample:
    """
    One training sample, not yet normalised.

    ``images``: camera -> uint8 [H, W, 3] RGB; ``state`` float32 [dof]; ``actions`` float32
    [chunk, dof]; ``padded`` bool [chunk], rows past the episode's end that no loss may count.
    """

    images: Mapping[str, np.ndarray]
    state: np.ndarray
    prompt: str
    actions: np.ndarray
    padded: np.ndarray
    episode: int = 0
    index: int = 0


class ChunkDataset:
    """
    Every observation of some episodes with the chunk that followed; works in torch's DataLoader.

    :param chunk: rows of a chunk.
    :param rate: rows a second: the policy's rate.
    :raises DatasetError: no episodes, or episodes of different robots.
    """

    def __init__(self, episodes: Sequence[Episode], chunk: int, rate: float):
        if not episodes:
            raise DatasetError('no episodes to train on')
        if chunk < 1 or not rate > 0:
            raise DatasetError(f'chunks of {chunk} rows at {rate} Hz; both must be above zero')
        first = episodes[0]
        for episode in episodes[1:]:
            for name, one, other in (
                ('joints', first.dof, episode.dof),
                ('values in the state', first.states.shape[1], episode.states.shape[1]),
                ('cameras', sorted(first.images), sorted(episode.images)),
            ):
                if one != other:
                    raise DatasetError(
                        f'{episode.source} has {other} {name}, {first.source} has {one}; train '
                        'on data of one robot'
                    )
        self.episodes, self.chunk, self.rate = tuple(episodes), chunk, float(rate)
        self._ends = np.cumsum([len(e) for e in self.episodes])

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def cameras(self) -> tuple[str, ...]:
        return tuple(self.episodes[0].images)

    @property
    def dof(self) -> int:
        return self.episodes[0].dof

    def place(self, index: int) -> tuple[int, int]:
        """Return the episode of a sample, and its number in it."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        episode = int(np.searchsorted(self._ends, index, side='right'))
        return episode, index - int(self._ends[episode]) + len(self.episodes[episode])

    def actions(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return a sample's actions and padding without decoding its pictures."""
        episode, k = self.place(index)
        return self.episodes[episode].chunk(k, self.chunk, self.rate)

    def __getitem__(self, index: int) -> Sample:
        number, k = self.place(index)
        episode = self.episodes[number]
        actions, padded = episode.chunk(k, self.chunk, self.rate)
        return Sample(
            images={name: pictures[k] for name, pictures in episode.images.items()},
            state=episode.states[k], prompt=episode.prompts[k], actions=actions, padded=padded,
            episode=number, index=k,
        )  # fmt: skip

    def split(self, share: float, seed: int = 0) -> tuple[ChunkDataset, ChunkDataset | None]:
        """
        Hold out whole episodes, since neighbouring frames are nearly the same sample.

        :param share: of the episodes, 0..1; at least one on either side unless it is 0.
        :return: what to train on, and what was held out (None: nothing).
        :raises DatasetError: when one side would be empty.
        """
        if share == 0.0:
            return self, None
        if not 0.0 < share < 1.0 or len(self.episodes) < 2:
            raise DatasetError(
                f'cannot hold out {share:g} of {len(self.episodes)} episodes; give a share '
                'between 0 and 1 and at least two episodes'
            )
        order = np.random.default_rng(seed).permutation(len(self.episodes))
        count = min(max(round(share * len(order)), 1), len(order) - 1)
        held, rest = sorted(order[:count]), sorted(order[count:])
        return tuple(
            ChunkDataset([self.episodes[i] for i in part], self.chunk, self.rate)
            for part in (rest, held)
        )


# --- statistics ------------------------------------------------------------------------------


def spread(values) -> dict[str, list[float]]:
    """
    Return each column's mean, std, 1 and 99 per cent quantiles, and what other modes need.

    :param values: float [n, dof].
    """
    values = np.asarray(values, dtype=np.float64)
    rows = {'mean': values.mean(0), 'std': values.std(0)}
    shares = {'q01': 0.01, 'q99': 0.99, 'min': 0.0, 'max': 1.0, 'q10': 0.1, 'q90': 0.9}
    rows |= dict(zip(shares, np.quantile(values, list(shares.values()), axis=0)))
    return {key: row.tolist() for key, row in rows.items()}


def statistics(data: ChunkDataset, adapter=None, delta_mask=None) -> dict[str, dict]:
    """
    Return the statistics that a checkpoint trained on this data needs.

    Relative actions are counted row by row of every chunk (padding left out), as they are
    learned; absolute ones are the recorded actions themselves.

    :param adapter: an ``AlohaAdapter`` where the model lives in pi's space.
    :param delta_mask: bool [dof]: which actions are relative to the state; None: none.
    :return: ``state`` and ``actions``, each with mean, std, q01, q99, min, max, q10 and q90.
    """
    from pi0_ros.policy.aloha import delta_from_absolute

    def state_of(values):
        return values if adapter is None else adapter.pi_state_from_robot(values)

    def actions_of(values):
        return values if adapter is None else adapter.pi_actions_from_robot(values)

    states = np.concatenate([e.states for e in data.episodes])
    if delta_mask is None:
        actions = actions_of(np.concatenate([e.actions for e in data.episodes]))
    else:
        rows = []
        for index in range(0, len(data), -(-len(data) // MOST_CHUNKS)):
            episode, k = data.place(index)
            chunk, padded = data.actions(index)
            base = state_of(data.episodes[episode].states[k])
            rows.append(delta_from_absolute(actions_of(chunk), base, delta_mask)[~padded])
        actions = np.concatenate(rows)
    return {'state': spread(state_of(states)), 'actions': spread(actions)}


def write_statistics(folder, values: Mapping[str, Mapping]) -> Path:
    """Write ``norm_stats.json`` in openpi's layout, which a checkpoint's folder is read with."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / 'norm_stats.json'
    path.write_text(json.dumps({'norm_stats': values}) + '\n', encoding='utf-8')
    return path


# --- does it fit? ----------------------------------------------------------------------------


def check_robot(data: ChunkDataset, robot: RobotSpec) -> None:
    """
    Refuse data that another robot gave.

    :raises DatasetError: naming numbers of joints, cameras or rates, all faults at once.
    """
    faults = []
    first = data.episodes[0]
    if (first.dof, first.states.shape[1]) != (robot.dof, robot.dof):
        faults.append(f'{_widths(first)}, the robot has {robot.dof} joints')
    missing = [n for n, c in robot.cameras.items() if c.required and n not in data.cameras]
    if missing:
        have = ', '.join(data.cameras) or 'none'
        faults.append(f'cameras {", ".join(missing)} are missing (it has {have})')
    if not np.isclose(data.rate, robot.policy_rate):
        faults.append(
            f'chunks are cut at {data.rate:g} Hz, the robot plays them at its policy_rate of '
            f'{robot.policy_rate:g} Hz'
        )
    if faults:
        why = '; '.join(faults)
        raise DatasetError(f"{first.source} does not fit robot '{robot.name}': {why}")


def check_policy(data: ChunkDataset, policy) -> None:
    """
    Refuse data that a checkpoint cannot learn from.

    :param policy: a ``Pi0Policy``.
    :raises DatasetError: joints, cameras or chunk that do not fit, all faults at once.
    """
    first, faults = data.episodes[0], []
    if (first.dof, first.states.shape[1]) != (policy.dof, policy.dof):
        faults.append(f'{_widths(first)}, the checkpoint is for {policy.dof} joints')
    if not set(policy.cameras) & set(data.cameras):
        faults.append(
            f'it has pictures of {", ".join(data.cameras) or "no camera"}, the checkpoint looks '
            f'at {", ".join(policy.cameras)}'
        )
    if data.chunk != policy.chunk_size:
        faults.append(f'chunks have {data.chunk} rows, the checkpoint gives {policy.chunk_size}')
    if faults:
        raise DatasetError(f'{first.source} does not fit the checkpoint: {"; ".join(faults)}')


def _widths(episode: Episode) -> str:
    return f'it has {episode.dof} actions and {episode.states.shape[1]} values of state'


# --- bags ------------------------------------------------------------------------------------


class _Watcher:
    """Stands in for a policy in replay and keeps what it is shown."""

    def __init__(self, image_size: int | None):
        self.seen: list = []
        self._size = image_size
        self._small: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def predict(self, observation) -> np.ndarray:
        if not self.seen or observation.stamp_ns != self.seen[-1].stamp_ns:
            images = {n: self._shrunk(n, p) for n, p in observation.images.items()}
            self.seen.append(replace(observation, images=images))
        return np.asarray(observation.state, dtype=np.float32)[None]

    def _shrunk(self, name: str, picture: np.ndarray) -> np.ndarray:
        if self._size is None:
            return picture
        from pi0_ros.policy.images import resize_with_pad

        known = self._small.get(name)
        if known is None or known[0] is not picture:
            known = self._small[name] = picture, resize_with_pad(picture, self._size)
        return known[1]


def read_bag(
    path, robot: RobotSpec | str, *, prompt: str = '', actions: str = 'joint_command',
    leader: Sequence[tuple[str, str]] = (), leader_gripper: tuple[float, float] | None = None,
    image_size: int | None = None, max_age: float = 0.2, max_skew: float = 0.05,
    use_received_time: bool = False, cameras: Mapping[str, str] | None = None,
    joint_states: Sequence[tuple[str, str]] | None = None,
    joint_names: Sequence[str] | None = None,
) -> list[Episode]:  # fmt: skip
    """
    Return the episodes of a bag; one, unless the actions pause for longer than ``max_age``.

    :param path: rosbag2 folder or file (mcap, sqlite3).
    :param prompt: the instruction; '' takes the recorded one.
    :param actions: topic of what was done: ``joint_command`` (robot units), or
        ``joint_command_raw`` (the policy's units).
    :param leader: (topic, prefix) of leader arms' joint states instead: teleoperation, where the
        leader's pose is the action.
    :param leader_gripper: motor angle [rad] of the leader's gripper closed and open; None: the
        follower's own calibration.
    :param image_size: shrink pictures to this square while reading (as the model's input is, with
        black borders); None keeps them whole, a gigabyte a minute for three cameras.
    :param max_age: s, as in :class:`ObservationBuffer`; also the longest pause within an episode.
    :return: episodes whose observations are the buffer's, each stamp once; an observation before
        the first or after the last action is left out.
    :raises BagError: the bag is unreadable, or a topic is missing, damaged or without names.
    :raises DatasetError: no observation and action belong together.
    """
    robot = RobotSpec.load(robot) if isinstance(robot, str) else robot
    watcher = _Watcher(image_size)
    result = replay(
        path, watcher, robot, prompt=prompt, stride=1, cameras=cameras,
        joint_states=joint_states, joint_names=joint_names, max_age=max_age, max_skew=max_skew,
        use_received_time=use_received_time,
    )  # fmt: skip
    seen = watcher.seen
    if not seen:
        why = '; '.join(result.summary['reasons']) or 'no picture'
        raise DatasetError(f'{path}: no usable observation in this bag ({why})')
    stamps = np.array([o.stamp_ns for o in seen], dtype=np.int64)
    if (np.diff(stamps) <= 0).any():
        raise DatasetError(
            f'{path}: stamps of the cameras go back; a bag with a loop or two runs in it cannot '
            'be told apart into episodes: cut it with `ros2 bag convert`'
        )
    if leader:
        action_stamps, values = _leader_actions(path, robot, leader, leader_gripper)
    else:
        action_stamps, values = _recorded_actions(path, robot, actions, use_received_time)
    period = round(SECOND / robot.policy_rate)
    breaks = np.flatnonzero(np.diff(action_stamps) > max_age * SECOND) + 1
    episodes = []
    for rows in np.split(np.arange(len(action_stamps)), breaks):
        first, last = action_stamps[rows[0]], action_stamps[rows[-1]]
        slack = SAME_MOMENT_NS
        fits = (stamps + period >= first - slack) & (stamps + period <= last + slack)
        kept = [o for o, take in zip(seen, fits) if take]
        if not kept:
            continue
        names = sorted(set.intersection(*(set(o.images) for o in kept)))
        episodes.append(
            Episode(
                stamps_ns=stamps[fits],
                states=np.array([o.state for o in kept], dtype=np.float32),
                images={
                    n: [o.images[n] for o in kept] for n in robot.cameras if n in names
                },
                prompts=tuple(o.prompt for o in kept),
                action_stamps_ns=action_stamps[rows], actions=values[rows],
                rate=robot.policy_rate, source=str(path),
                notes=tuple(result.summary['notes']),
            )
        )  # fmt: skip
    if not episodes:
        raise DatasetError(
            f'{path}: {len(seen)} observations and {len(values)} actions, none at the same time '
            f'(observations {_span(stamps)}, actions {_span(action_stamps)}); are their stamps of '
            'one clock?'
        )
    refused, moments = result.summary['refused'], result.summary['moments']
    used = sum(len(e) for e in episodes)
    _log.info('%s: %d episodes, %d samples of %d observations, %d of %d moments without one',
              path, len(episodes), used, len(seen), refused, moments)  # fmt: skip
    return episodes


def policy_from_command(robot: RobotSpec, commands) -> np.ndarray:
    """
    Return commands [..., dof] in robot units as actions in the policy's space.

    The inverse of ``robot.policy_to_command``; grippers by the motor's angle, as ALOHA's data
    sets have their actions.
    """
    values = np.array(commands, dtype=np.float64)
    if robot.policy_units == 'deg':
        arm = [i for i, joint in enumerate(robot.joints) if not joint.is_gripper]
        values[..., arm] = np.degrees(values[..., arm])
    for index, gripper in robot.grippers.items():
        value, unit = values[..., index], gripper.command_unit
        if unit == gripper.policy_space:
            continue
        if unit == 'm':
            theta = gripper.joint_rad(value)
        elif unit == 'normalized':
            theta = gripper_maps.joint_rad_from_normalized(value, gripper.calibration)
        else:
            theta = value
        values[..., index] = _gripper_action(gripper, theta)
    return values


def _gripper_action(gripper, theta):
    """Return the policy's action for a motor angle [rad] of the follower's gripper."""
    if gripper.policy_space == 'rad':
        return theta
    if gripper.policy_space == 'm':
        return gripper.finger_m(theta)
    if gripper.policy_space == 'pi_angle':
        return gripper_maps.pi_action_from_joint_rad(theta, gripper.constants)
    return gripper_maps.normalized_from_joint_rad(theta, gripper.calibration)


def _recorded_actions(path, robot: RobotSpec, name: str, use_received_time: bool):
    """Return stamps int64 [m] and actions float32 [m, dof] of a topic of whole commands."""
    with open_bag(path) as bag:
        topic = _topic(bag, name)
        index, stamps, rows = None, [], []
        for _, received, data in bag.messages([topic]):
            message, stamp = decode(data, JOINTS), header_stamp(data)
            if stamp <= 0:
                if not use_received_time:
                    raise BagError(
                        f'{path}: stamps on {topic} are zero; take the time of reception '
                        '(--received-time)'
                    )
                stamp = received
            names = tuple(message.name)
            if index is None or names != index[0]:
                lost = [n for n in robot.joint_names if n not in names]
                if lost or len(names) != len(message.position):
                    raise BagError(
                        f'{path}: {topic} does not name {", ".join(lost) or "every position"} '
                        f'(it names {", ".join(names) or "nothing"})'
                    )
                index = names, [names.index(n) for n in robot.joint_names]
            stamps.append(stamp)
            rows.append(np.asarray(message.position, dtype=np.float64)[index[1]])
    stamps, values = _in_order(path, topic, stamps, rows)
    if name.split('/')[-1] == 'joint_command_raw':
        return stamps, values.astype(np.float32)
    return stamps, policy_from_command(robot, values).astype(np.float32)


def _leader_actions(path, robot: RobotSpec, sources, gripper_range):
    """Return stamps and actions of leader arms, each interpolated to the first one's stamps."""
    parts = []
    with open_bag(path) as bag:
        for topic, prefix in sources:
            topic, found, stamps, rows = _topic(bag, topic), None, [], []
            for _, _, data in bag.messages([topic]):
                message = decode(data, JOINTS)
                names = [robot.resolve_joint(prefix, n) for n in message.name]
                found = found or [n for n in robot.joint_names if n in names]
                if len(names) != len(message.position) or any(n not in names for n in found):
                    continue  # a message with velocities or of other joints only
                stamps.append(header_stamp(data))
                rows.append([message.position[names.index(n)] for n in found])
            if not found:
                raise BagError(
                    f"{path}: {topic} names no joint of robot '{robot.name}' "
                    f'(with prefix {prefix!r})'
                )
            parts.append((topic, found, *_in_order(path, topic, stamps, rows)))
    given = [n for _, found, _, _ in parts for n in found]
    lost = [n for n in robot.joint_names if n not in given]
    if lost:
        raise BagError(f'{path}: no leader moves {", ".join(lost)}; name its topic as a leader')
    begin, end = max(p[2][0] for p in parts), min(p[2][-1] for p in parts)
    stamps = parts[0][2]
    stamps = stamps[(stamps >= begin) & (stamps <= end)]
    if not len(stamps):
        raise BagError(f'{path}: the leaders were never recorded at the same time')
    values = np.empty((len(stamps), robot.dof))
    for _, found, own, rows in parts:
        for column, name in enumerate(found):
            known = (own - own[0]) / SECOND
            values[:, robot.joint_names.index(name)] = np.interp(
                (stamps - own[0]) / SECOND, known, rows[:, column]
            )
    return stamps, _actions_of_leader(robot, values, gripper_range).astype(np.float32)


def _actions_of_leader(robot: RobotSpec, values: np.ndarray, gripper_range) -> np.ndarray:
    if robot.policy_units == 'deg':
        arm = [i for i, joint in enumerate(robot.joints) if not joint.is_gripper]
        values[:, arm] = np.degrees(values[:, arm])
    for index, gripper in robot.grippers.items():
        own = gripper.calibration
        closed, opened = gripper_range or (own.joint_closed, own.joint_open)
        if closed == opened:
            raise DatasetError(f'the leader gripper is {closed} rad both closed and open')
        opening = (values[:, index] - closed) / (opened - closed)
        theta = gripper_maps.joint_rad_from_normalized(opening, own)
        values[:, index] = _gripper_action(gripper, theta)
    return values


def _topic(bag, name: str) -> str:
    """Return the bag's topic for a name: itself, or the only one that ends with it."""
    joints = [t.name for t in bag.topics.values() if t.type == JOINTS and t.count != 0]
    if topic_name(name) in joints:
        return topic_name(name)
    found = [t for t in joints if t.endswith(topic_name(name))]
    if len(found) == 1:
        return found[0]
    have = ', '.join(joints) or 'none'
    raise BagError(
        f"{bag.path}: no actions on '{name}' (topics of JointState: {have}); name what the arms "
        'were told with --actions, or the leader arms with --leader'
    )


def _in_order(path, topic: str, stamps: list, rows: list) -> tuple[np.ndarray, np.ndarray]:
    """Return stamps and rows; of a repeated stamp the last one."""
    if not stamps:
        raise BagError(f'{path}: no message on {topic} could be used')
    stamps, rows = np.array(stamps, dtype=np.int64), np.array(rows, dtype=np.float64)
    if (np.diff(stamps) < 0).any():
        raise BagError(f'{path}: stamps on {topic} go back; cut the bag into one run each')
    last = np.append(np.diff(stamps) > 0, True)
    return stamps[last], rows[last]


def _span(stamps: np.ndarray) -> str:
    return f'{stamps[0] / SECOND:.2f}..{stamps[-1] / SECOND:.2f} s'
