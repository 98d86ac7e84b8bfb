# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Gripper maps on the command side: policy space to command unit, never the inverse of a state map.

The geometry is ``pi0_ros.gripper``'s, which the policy's pipeline shares; the choice of space,
unit, calibration and generation of constants is the robot's (``GripperSpec`` in its YAML). The
state of an ALOHA gripper is normalised from the FINGER position, an action from the MOTOR angle,
and openpi scales the state by 1.082 where it leaves the action unscaled: sending a measured
opening back as a command moves the gripper. Here both directions exist for that reason only.
"""

from __future__ import annotations

from pi0_ros.gripper import (
    PI_ANGLE_CLOSED,
    PI_ANGLE_SPAN,
    GripperCalibration,
    finger_m_from_joint_rad,
    finger_m_from_normalized,
    joint_rad_from_finger_m,
    joint_rad_from_normalized,
    joint_rad_from_pi_action,
    normalized_from_finger_m,
    normalized_from_joint_rad,
    pi_action_from_joint_rad,
)

__all__ = [
    'PI_ANGLE_CLOSED',
    'PI_ANGLE_SPAN',
    'GripperCalibration',
    'finger_m_from_joint_rad',
    'finger_m_from_normalized',
    'joint_rad_from_finger_m',
    'joint_rad_from_normalized',
    'joint_rad_from_pi_action',
    'normalized_from_finger_m',
    'normalized_from_joint_rad',
    'pi_action_from_joint_rad',
]
