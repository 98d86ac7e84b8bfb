# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Hardware outputs: a command vector as the messages that each arm's driver takes.

Used by ``safety_filter`` alone. One adapter per arm, chosen by ``output.kind`` of the robot's
YAML, picks its joints BY NAME from the command vector and puts them in the driver's order. Every
message of a tick is encoded, and checked, before the first one is published: a command that cannot
be expressed sends nothing, never half of it.

==================  =========================================================================
``interbotix``      ``<namespace>/commands/joint_group`` (interbotix_xs_msgs/JointGroupCommand)
                    and ``<namespace>/commands/joint_single`` (JointSingleCommand, gripper)
``forward_command`` ``topic`` and ``gripper_topic`` (std_msgs/Float64MultiArray), joints in the
                    controller's order; with one topic for both, the gripper comes last
``joint_trajectory``  ``topic`` and ``gripper_topic`` (trajectory_msgs/JointTrajectory), stamped,
                    one point at ``time_from_start``, positions only
``none``            nothing
==================  =========================================================================
"""

from __future__ import annotations

import array
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from std_msgs.msg import Float64MultiArray
from trajectory_msgs.msg import JointTrajectory

from pi0_ros import messages
from pi0_ros.errors import Pi0RosError
from pi0_ros.robot import ArmSpec, RobotSpec

QUEUE_DEPTH = 1
"""A driver wants the newest setpoint; one that it was too slow to take is worthless."""

FINGERS_PER_GRIPPER = 2.0
"""
Interbotix's driver takes a gripper's linear position as the distance between BOTH fingers.

In ``linear_position`` mode it halves the command before it converts it to a motor angle.
"""


class OutputError(Pi0RosError):
    """An output that cannot be set up, or a command that it cannot express."""


class Adapter(Protocol):
    """What one arm's driver takes. ``encode`` publishes nothing."""

    topics: dict[str, type]

    def encode(self, command: np.ndarray, stamp_ns: int) -> list[tuple[str, object]]:
        """
        Return (topic, message) pairs for one tick.

        :param command: float64 [dof] of the whole robot, command units, finite.
        """


class InterbotixAdapter:
    """One JointGroupCommand for the arm and one JointSingleCommand for its gripper."""

    def __init__(self, arm: ArmSpec, lower: np.ndarray, upper: np.ndarray):
        group_type, single_type = _interbotix_messages(arm)
        output = arm.output
        self._arm, self._gripper = _indices(arm)
        self._single_scale = 1.0
        if arm.gripper is not None:
            if arm.gripper.command_unit == 'normalized':
                raise OutputError(
                    f"arm '{arm.name}': output interbotix takes a gripper in rad or m, and "
                    "command_unit is 'normalized'; set command_unit: rad in the robot's YAML"
                )
            if arm.gripper.command_unit == 'm':
                self._single_scale = FINGERS_PER_GRIPPER
        self._group_name, self._single_name = output.group, output.gripper
        self._group = f'{output.namespace}/commands/joint_group'
        self._single = f'{output.namespace}/commands/joint_single'
        self._group_type, self._single_type = group_type, single_type
        self._lower, self._upper = _float32_inside(lower, upper)
        self.topics = {self._group: group_type}
        if self._gripper is not None:
            self.topics[self._single] = single_type

    def encode(self, command: np.ndarray, stamp_ns: int) -> list[tuple[str, object]]:
        # float32 is what the driver takes: a bound must not be passed by its rounding
        values = np.clip(command.astype(np.float32), self._lower, self._upper)
        group = self._group_type(name=self._group_name)
        group.cmd = array.array('f', values[self._arm].tobytes())
        encoded = [(self._group, group)]
        if self._gripper is not None:
            single = self._single_type(name=self._single_name)
            single.cmd = float(values[self._gripper] * np.float32(self._single_scale))
            encoded.append((self._single, single))
        return encoded


class ForwardCommandAdapter:
    """Float64MultiArray for ros2_control's forward_command_controller (position)."""

    def __init__(self, arm: ArmSpec, lower: np.ndarray, upper: np.ndarray):
        self._groups = _controller_groups(arm)
        self.topics = {group.topic: Float64MultiArray for group in self._groups}

    def encode(self, command: np.ndarray, stamp_ns: int) -> list[tuple[str, object]]:
        return [
            (group.topic, messages.float64_array(group.values(command)))
            for group in self._groups
        ]


class JointTrajectoryAdapter:
    """JointTrajectory of one point for ros2_control's joint_trajectory_controller."""

    def __init__(self, arm: ArmSpec, lower: np.ndarray, upper: np.ndarray):
        self._groups = _controller_groups(arm)
        self._time_from_start = arm.output.time_from_start
        self.topics = {group.topic: JointTrajectory for group in self._groups}

    def encode(self, command: np.ndarray, stamp_ns: int) -> list[tuple[str, object]]:
        return [
            (
                group.topic,
                messages.single_point_trajectory(
                    group.names, group.values(command), stamp_ns, self._time_from_start
                ),
            )
            for group in self._groups
        ]


ADAPTERS = {
    'interbotix': InterbotixAdapter,
    'forward_command': ForwardCommandAdapter,
    'joint_trajectory': JointTrajectoryAdapter,
}
"""Adapter by ``output.kind``; ``none`` has none."""


class Outputs:
    """
    Every arm's output of one robot.

    :param robot: its arms say kind, topics and joint order.
    :param lower: bounds [dof] in command units that no message may leave by rounding.
    :param upper: likewise.
    :raises OutputError: when an output cannot be set up; the message says what to change.
    """

    def __init__(self, robot: RobotSpec, lower: Sequence[float], upper: Sequence[float]):
        self._names = robot.joint_names
        turning = [joint.continuous for joint in robot.joints]  # they have no bound to keep
        lower, upper = np.where(turning, -np.inf, lower), np.where(turning, np.inf, upper)
        self._adapters = [
            ADAPTERS[arm.output.kind](arm, lower, upper)
            for arm in robot.arms
            if arm.output.kind != 'none'
        ]
        self.topics: dict[str, type] = {}
        """Message type by topic."""
        self._publishers: dict[str, object] = {}
        for adapter in self._adapters:
            for topic, kind in adapter.topics.items():
                if topic in self.topics:
                    raise OutputError(
                        f"two outputs of robot '{robot.name}' publish on '{topic}'; give each arm "
                        f'its own topics in {robot.source}'
                    )
                self.topics[topic] = kind

    def encode(self, command: np.ndarray, stamp_ns: int) -> list[tuple[str, object]]:
        """
        Return every (topic, message) of one tick.

        :raises OutputError: when a value is not finite; nothing has been sent then.
        """
        command = np.asarray(command, dtype=np.float64)
        if command.shape != (len(self._names),) or not np.isfinite(command).all():
            raise OutputError(
                f'command {command.tolist()} is not {len(self._names)} finite numbers; not sent'
            )
        return [pair for a in self._adapters for pair in a.encode(command, stamp_ns)]

    def open(self, node) -> None:
        """Create the publishers on a node. May be called again after :meth:`close`."""
        if self._publishers:
            raise OutputError('the outputs are open already')
        for topic, kind in self.topics.items():
            self._publishers[topic] = node.create_publisher(kind, topic, QUEUE_DEPTH)

    def publish(self, encoded: list[tuple[str, object]]) -> None:
        """Send what :meth:`encode` returned."""
        for topic, message in encoded:
            self._publishers[topic].publish(message)

    def close(self, node) -> None:
        """Destroy the publishers; accepts outputs that are not open."""
        while self._publishers:
            node.destroy_publisher(self._publishers.popitem()[1])


def _interbotix_messages(arm: ArmSpec):
    try:
        from interbotix_xs_msgs.msg import JointGroupCommand, JointSingleCommand
    except ImportError:
        raise OutputError(
            f"arm '{arm.name}': output interbotix needs the ROS package 'interbotix_xs_msgs', "
            'which is not installed or not sourced; source the Interbotix workspace, '
            'or start with output:=none'
        ) from None
    return JointGroupCommand, JointSingleCommand


def _indices(arm: ArmSpec) -> tuple[list[int], int | None]:
    """Return where the driver's joints, in its order, and the gripper lie in the command."""
    by_name = dict(zip((joint.name for joint in arm.joints), arm.indices))
    arm_indices = [by_name[arm.prefix + name] for name in arm.output.joints]
    return arm_indices, arm.indices[-1] if arm.gripper is not None else None


class _Group(NamedTuple):
    """What one controller takes: names, where their values lie in the command, and their signs."""

    topic: str
    names: list[str]
    indices: list[int]
    signs: np.ndarray

    def values(self, command: np.ndarray) -> np.ndarray:
        return command[self.indices] * self.signs


def _controller_groups(arm: ArmSpec) -> list[_Group]:
    """Return what each controller of an arm takes; one message for each a tick."""
    output = arm.output
    indices, gripper = _indices(arm)
    names, ones = list(output.joints), [1.0] * len(indices)
    if gripper is None:
        return [_Group(output.topic, names, indices, np.array(ones))]
    hand = [output.gripper_joint or arm.gripper.name.removeprefix(arm.prefix)]
    signs = [1.0]
    if output.gripper_mirror:  # a controller refuses a part of its joints
        hand, signs = [*hand, output.gripper_mirror], [1.0, -1.0]
    places = [gripper] * len(hand)
    if output.gripper_topic == output.topic:
        return [
            _Group(output.topic, names + hand, indices + places, np.array(ones + signs))
        ]
    return [
        _Group(output.topic, names, indices, np.array(ones)),
        _Group(output.gripper_topic, hand, places, np.array(signs)),
    ]


def _float32_inside(lower: np.ndarray, upper: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the outermost float32 numbers that lie inside of float64 bounds."""
    low, high = lower.astype(np.float32), upper.astype(np.float32)
    infinity = np.float32(np.inf)
    low = np.where(low.astype(np.float64) < lower, np.nextafter(low, infinity), low)
    high = np.where(high.astype(np.float64) > upper, np.nextafter(high, -infinity), high)
    return low, high
