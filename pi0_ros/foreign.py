# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Recognises other people's files given as a robot's YAML, and says where their content belongs.

Called by ``robot`` for the text of a refusal; nothing is ever taken from such a file. Standard
library only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

FOREIGN_FORMATS = {
    'repo_id': ('a LeRobot data set configuration', 'cameras'),
    'joint_order': ('an Interbotix motor configuration', 'arms[].joints'),
    'groups': ('an Interbotix modes file', 'arms[].gripper.command_unit'),
    'joint_limits': ("MoveIt's joint_limits.yaml", 'arms[].joints'),
    'robot': ("Interbotix ALOHA 2.0's robot configuration", 'arms and cameras'),
    'robot_type': ('a LeRobot or rosetta contract', 'arms and cameras'),
    'embodiment_kind': ('an OpenRAL manifest', 'arms[].joints'),
    'physical_ai_server': ('a ROBOTIS physical_ai_server configuration', 'arms and cameras'),
    'dataset_repo_id': ("LeRobot's policy configuration", "the checkpoint's own config.json"),
    'vision_type': ('a FlashRT model configuration', "the checkpoint's own config.json"),
    'shoulder_pan': ('a LeRobot motor calibration (ticks, not radians)', 'arms[].joints'),
    'norm_stats': ("openpi's statistics", "the checkpoint's folder"),
}
"""Formats that people paste here: the key that gives each away, its name, where that goes."""

CONTROLLERS = {
    'JointTrajectoryController': ('joint_trajectory', 'joint_trajectory'),
    'ForwardCommandController': ('forward_command', 'commands'),
    'JointGroupPositionController': ('forward_command', 'commands'),
}
"""ros2_control's controllers that an output can feed: its ``kind``, the end of its topic."""


def foreign_format(data: Mapping) -> str:
    """Return what a file looks like and where its content goes, '' when it is unknown."""
    controllers = list(_outputs(data))
    if controllers:
        return (
            'a ros2_control controllers file; an output of this robot takes one of its '
            f'controllers that is active: {"; ".join(controllers)}'
        )
    for key, (what, ours) in FOREIGN_FORMATS.items():
        if key in data:
            return f'{what}; what it says belongs under {ours}'
    if any('ros__parameters' in str(value) for value in data.values()):
        return "a ROS 2 parameter file; only topics of its nodes belong here ('topic' of a camera)"
    return ''


def _outputs(data: Mapping, namespace: str = '') -> Iterator[str]:
    """Yield each controller of a controller_manager as the ``output`` that would feed it."""
    for key, value in data.items():
        if not isinstance(value, Mapping):
            continue
        if key != 'controller_manager':
            if 'ros__parameters' not in value:
                yield from _outputs(value, f'{namespace}/{str(key).strip("/")}')
            continue
        for name, settings in value.get('ros__parameters', {}).items():
            kind = str(settings.get('type', '')) if isinstance(settings, Mapping) else ''
            if kind.rpartition('/')[2] in CONTROLLERS:
                ours, end = CONTROLLERS[kind.rpartition('/')[2]]
                yield f'{{kind: {ours}, topic: {namespace}/{name}/{end}}}'
