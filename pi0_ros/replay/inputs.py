# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Which topic of a bag plays which part for a robot; refuses by name what is missing."""

from __future__ import annotations

import difflib
import functools

from pi0_ros.errors import Pi0RosError
from pi0_ros.replay.bag import Bag, BagError, topic_name
from pi0_ros.replay.commands import INTERBOTIX, RecordedCommands, find
from pi0_ros.robot import RobotSpec

IMAGE, COMPRESSED, JOINTS = (
    'sensor_msgs/msg/Image', 'sensor_msgs/msg/CompressedImage', 'sensor_msgs/msg/JointState',
)  # fmt: skip
TRAJECTORY = 'trajectory_msgs/msg/JointTrajectory'


@functools.cache
def typestore():
    """Return the message types that replay decodes; the same in every distribution."""
    from rosbags.typesys import Stores, get_types_from_msg, get_typestore

    store = get_typestore(Stores.ROS2_JAZZY)
    for name, definition in INTERBOTIX.items():
        store.register(get_types_from_msg(definition, name))
    return store


def decode(data: bytes, kind: str):
    """
    Return a message of CDR bytes.

    :raises Pi0RosError: when the bytes are damaged.
    """
    try:
        return typestore().deserialize_cdr(data, kind)
    except Exception as error:  # rosbags raises whatever its generated code meets
        raise Pi0RosError(f'a {kind} of {len(data)} bytes is damaged ({error})') from None


class Inputs:
    """The bag's topics by the part that they play; refuses by name what is missing."""

    def __init__(
        self, bag: Bag, robot: RobotSpec, mapping, joint_states, joint_names, with_cameras=True,
        namespace: str = '',
    ):  # fmt: skip
        if bag.count == 0:
            why = f' ({bag.incomplete})' if bag.incomplete else ''
            raise BagError(f'{bag.path}: the bag holds no messages; nothing to replay{why}')
        self._namespace = topic_name(namespace).rstrip('/')
        plain = not (mapping or joint_states or self._namespace)
        below = common_namespace(bag, robot, with_cameras) if plain else ''
        if below:
            raise BagError(
                f"{bag.path}: the topics of robot '{robot.name}' lie below {below} in this bag; "
                f'give --namespace {below}'
            )
        unknown = [name for name in mapping if name not in robot.cameras]
        if unknown:
            raise BagError(
                f"robot '{robot.name}' has no camera {', '.join(unknown)} "
                f'(it has {", ".join(robot.cameras)})'
            )
        self.notes: list[str] = []
        missing: list[str] = []
        self.cameras: dict[str, str] = {}
        for camera in robot.cameras.values() if with_cameras else ():
            names = [mapping[camera.name]] if camera.name in mapping else self._usual(camera)
            names = [topic_name(n) for n in names]
            topic = next((n for n in names if n in bag.topics and bag.topics[n].count != 0), None)
            if topic is None:
                others = {
                    topic_name(n) for c in robot.cameras.values() if c is not camera
                    for n in (*self._usual(c), mapping.get(c.name, '-'))
                }  # fmt: skip
                text = self._missing(
                    bag, f'camera {camera.name}', names[0], (IMAGE, COMPRESSED), others
                )
                if camera.required:
                    missing.append(f'{text}, --map {camera.name}=TOPIC chooses')
                else:
                    self.notes.append(f'{text}; the policy runs without this optional camera')
            elif bag.topics[topic].type not in (IMAGE, COMPRESSED):
                missing.append(
                    f'camera {camera.name}: {topic} carries {bag.topics[topic].type}, not an image'
                )
            elif topic in self.cameras:
                raise BagError(
                    f'{bag.path}: {topic} is the topic of camera {self.cameras[topic]} and of '
                    f'camera {camera.name}; --map {camera.name}=TOPIC gives it one of its own'
                )
            else:
                self.cameras[topic] = camera.name
        self.joints: dict[str, list[str]] = {}
        for topic, prefix in joint_states or robot.joint_state_sources:
            topic = topic_name(topic) if joint_states else self._named(topic)
            if topic not in bag.topics or bag.topics[topic].count == 0:
                text = self._missing(bag, 'joint states', topic, (JOINTS,))
                missing.append(f'{text}, --joint-states TOPIC[:PREFIX] chooses')
            elif bag.topics[topic].type != JOINTS:
                missing.append(f'{topic} carries {bag.topics[topic].type}, not {JOINTS}')
            else:
                self.joints.setdefault(topic, []).append(prefix)
        if missing:
            raise BagError(
                f'{bag.path}: {"; ".join(missing)} (topics of the bag: {_topic_list(bag)})'
            )
        counts = [bag.topics[t].count for t in (*self.cameras, *self.joints)]
        if all(count is not None and count <= 1 for count in counts):
            raise BagError(
                f'{bag.path}: at most 1 message a topic; a single sample is no trajectory, '
                'nothing to replay'
            )
        self.joint_names = list(joint_names or ())
        self.prompt = find(bag, 'prompt', 'std_msgs/msg/String')
        self.commands = RecordedCommands(bag, robot, self._namespace)
        self.chunks = find(bag, 'action_chunk', TRAJECTORY)

    def _named(self, topic: str) -> str:
        return topic_name(f'{self._namespace}{topic_name(topic)}')

    def _usual(self, camera) -> list[str]:
        plain = self._named(camera.topic).removesuffix('/compressed')
        names = [plain, f'{plain}/compressed']
        return names[::-1] if camera.transport == 'compressed' else names

    @staticmethod
    def _missing(bag: Bag, what: str, topic: str, kinds, taken=()) -> str:
        fitting = [t for t in bag.topics.values() if t.type in kinds and t.count != 0]
        fitting = [t.name for t in fitting if t.name not in taken]
        near = difflib.get_close_matches(topic, fitting, n=1, cutoff=0.5)
        text = f'{what}: no messages on {topic}'
        if near:
            text = f'{text}, did you mean {near[0]}'
        if fitting:
            return f'{text} (the bag has {", ".join(fitting[:6])})'
        return f'{text} and no topic of type {" or ".join(kinds)}'


def common_namespace(bag: Bag, robot: RobotSpec, with_cameras: bool) -> str:
    """Return the one namespace below which all that a robot needs lies in a bag; '' if not so."""
    have = {t.name for t in bag.topics.values() if t.count != 0}
    joints = [topic_name(topic) for topic, _ in robot.joint_state_sources]
    cameras = [
        topic_name(camera.topic).removesuffix('/compressed')
        for camera in robot.cameras.values() if camera.required and with_cameras
    ]  # fmt: skip
    if joints[0] in have:
        return ''
    found = [
        prefix
        for prefix in (n[: -len(joints[0])] for n in sorted(have) if n.endswith(joints[0]))
        if all(f'{prefix}{topic}' in have for topic in joints)
        and all({f'{prefix}{c}', f'{prefix}{c}/compressed'} & have for c in cameras)
    ]
    return found[0] if len(found) == 1 else ''


def _topic_list(bag: Bag) -> str:
    names = sorted(bag.topics)
    rest = f' and {len(names) - 12} more' if len(names) > 12 else ''
    return ', '.join(names[:12]) + rest
