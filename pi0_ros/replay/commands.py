# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
What the recorded arm was told, from whichever topics of a bag say it.

In this order: ``joint_command_raw`` (the policy's own space), ``joint_command`` (command units),
the topics that the robot's YAML names as outputs (command units): Interbotix' joint_group and
joint_single, Float64MultiArray of a forward_command_controller, JointTrajectory.
"""

from __future__ import annotations

from collections.abc import Callable

from pi0_ros.replay.bag import Bag, header_stamp, topic_name
from pi0_ros.robot import ArmSpec, RobotSpec

JOINT_STATE, FLOATS, TRAJECTORY = (
    'sensor_msgs/msg/JointState', 'std_msgs/msg/Float64MultiArray',
    'trajectory_msgs/msg/JointTrajectory',
)  # fmt: skip
GROUP = 'interbotix_xs_msgs/msg/JointGroupCommand'
SINGLE = 'interbotix_xs_msgs/msg/JointSingleCommand'

INTERBOTIX = {GROUP: 'string name\nfloat32[] cmd\n', SINGLE: 'string name\nfloat32 cmd\n'}
"""Definitions of interbotix_xs_msgs, which no distribution brings."""

FINGERS_PER_GRIPPER = 2.0
"""Interbotix' driver takes a gripper's position in m as the distance between both fingers."""

Reader = Callable[[object, bytes], tuple[list[str], list[float], float]]


class RecordedCommands:
    """
    The topics that hold the recorded commands, and how to read them.

    ``unit``: 'policy' (the policy's space) or 'command'; '' when the bag has none. ``topics``:
    their names.
    """

    def __init__(self, bag: Bag, robot: RobotSpec, namespace: str = ''):
        self.unit, self._readers = '', {}
        self._types: dict[str, str] = {}
        for unit, name in (('policy', 'joint_command_raw'), ('command', 'joint_command')):
            topic = find(bag, name, JOINT_STATE)
            if topic:
                self.unit = unit
                self._use(topic, JOINT_STATE, _joint_state)
                return
        for arm in robot.arms:
            for topic, kind, reader in _outputs(arm):
                topic = topic_name(f'{namespace}{topic_name(topic)}')
                known = bag.topics.get(topic)
                if known is not None and known.type == kind and known.count != 0:
                    self.unit = 'command'
                    self._use(topic, kind, reader)

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(self._readers)

    def others(self, bag: Bag) -> list[str]:
        """Return topics that may hold commands as well, but that nothing tells how to read."""
        kinds = (FLOATS, TRAJECTORY, GROUP)
        return sorted(
            t.name for t in bag.topics.values()
            if t.type in kinds and t.count != 0 and not t.name.endswith('/action_chunk')
            and t.name not in self._readers
        )  # fmt: skip

    def _use(self, topic: str, kind: str, reader: Reader) -> None:
        self._readers[topic], self._types[topic] = reader, kind

    def read(self, topic: str, data: bytes, received_ns: int, decode):
        """
        Return (stamp [ns], joint names, positions) of one message; stampless ones: reception.

        :param decode: function of (bytes, type) that gives the message.
        """
        kind = self._types[topic]
        names, positions, delay_s = self._readers[topic](decode(data, kind), data)
        stamp = header_stamp(data) if kind in (JOINT_STATE, TRAJECTORY) else 0
        return (stamp if stamp > 0 else received_ns) + round(delay_s * 1e9), names, positions


def find(bag: Bag, name: str, kind: str) -> str:
    """Return the topic of this type whose name ends so; '' when there is none."""
    found = [t.name for t in bag.topics.values() if t.type == kind and t.count != 0]
    return next((n for n in found if n.split('/')[-1] == name), '')


def _joint_state(message, _):
    return list(message.name), list(message.position), 0.0


def _outputs(arm: ArmSpec):
    """Yield (topic, type, reader) of each topic on which an arm's driver takes commands."""
    out, gripper = arm.output, arm.gripper
    joints = [arm.prefix + name for name in out.joints]
    own = [arm.joints[-1].name] if gripper is not None else []
    if out.kind == 'interbotix':
        scale = FINGERS_PER_GRIPPER if own and gripper.command_unit == 'm' else 1.0
        yield f'{out.namespace}/commands/joint_group', GROUP, _list_of(joints, 'cmd')
        if own:
            yield (
                f'{out.namespace}/commands/joint_single', SINGLE,
                lambda m, _: (own, [m.cmd / scale], 0.0),
            )  # fmt: skip
        return
    groups = {out.topic: list(joints)}
    if own:
        groups.setdefault(out.gripper_topic, []).extend(own)
    for topic, names in groups.items():
        if topic and out.kind == 'forward_command':
            yield topic, FLOATS, _list_of(names, 'data')
        elif topic and out.kind == 'joint_trajectory':
            theirs = dict(zip((n.removeprefix(arm.prefix) for n in names), names))
            if own and out.gripper_joint:
                theirs[out.gripper_joint] = own[0]
            yield topic, TRAJECTORY, _first_point(theirs)


def _list_of(names: list[str], attribute: str) -> Reader:
    def read(message, _):
        values = list(getattr(message, attribute))
        return (names, values, 0.0) if len(values) == len(names) else ([], [], 0.0)

    return read


def _first_point(theirs: dict[str, str]) -> Reader:
    def read(message, _):
        if not message.points:
            return [], [], 0.0
        point = message.points[0]
        delay = point.time_from_start.sec + point.time_from_start.nanosec * 1e-9
        names = [theirs.get(name, name) for name in message.joint_names]
        return names, list(point.positions), delay

    return read
