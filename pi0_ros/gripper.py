# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Gripper geometry of the ViperX 300 S: motor angle, finger position, normalised opening.

Used by ``robot`` (measured state, commands) and by ``policy.aloha`` (pi's angular space). NumPy
only. Every function works on scalars and arrays alike and says direction and unit in its name.

A motor turns a horn of radius r; a rod of length L pushes the finger: with the finger at distance
x from the motor axis, ``L^2 = x^2 + r^2 - 2 x r sin(theta)``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

PI_ANGLE_CLOSED = {'openpi': 0.5476, 'lerobot_old': 0.4}
"""Motor angle [rad] that is 0 in pi's space: openpi since PR #557, LeRobot 0.1-0.3 before it."""

PI_ANGLE_SPAN = {'openpi': 1.0, 'lerobot_old': 1.1}
"""
Radians of motor angle for one unit of an ACTION in pi's space.

openpi divides the state by 1.082 and does not divide the action: the two maps are not inverses.
"""


@dataclass(frozen=True)
class GripperCalibration:
    """
    End stops and linkage of one gripper.

    Defaults are those of tonyzhaozh/aloha constants.py and openpi's aloha_policy.py (follower arm,
    vx300s linkage).
    """

    joint_closed: float = -0.6213  # rad
    joint_open: float = 1.4910  # rad
    finger_closed: float = 0.01844  # m
    finger_open: float = 0.05800  # m
    horn_radius: float = 0.022  # m
    rod_length: float = 0.036  # m


def finger_m_from_joint_rad(theta, calibration: GripperCalibration):
    """Return the finger position [m] at a motor angle [rad]."""
    r, rod = calibration.horn_radius, calibration.rod_length
    theta = np.asarray(theta, dtype=np.float64)
    return r * np.sin(theta) + np.sqrt(rod**2 - (r * np.cos(theta)) ** 2)


def joint_rad_from_finger_m(finger, calibration: GripperCalibration):
    """
    Return the motor angle [rad] at a finger position [m].

    Past pi/2 the linkage folds over, so an angle of 1.62 reads back as 1.52: read the motor angle
    itself where the robot reports it.
    """
    r, rod = calibration.horn_radius, calibration.rod_length
    x = np.asarray(finger, dtype=np.float64)
    return np.arcsin(np.clip((r**2 + x**2 - rod**2) / (2.0 * r * x), -1.0, 1.0))


def normalized_from_finger_m(finger, calibration: GripperCalibration):
    """Return the opening (0 closed, 1 open) as ALOHA data sets measure it: by finger position."""
    span = calibration.finger_open - calibration.finger_closed
    return (np.asarray(finger, dtype=np.float64) - calibration.finger_closed) / span


def finger_m_from_normalized(opening, calibration: GripperCalibration):
    """Return the finger position [m] of a measured opening."""
    span = calibration.finger_open - calibration.finger_closed
    return np.asarray(opening, dtype=np.float64) * span + calibration.finger_closed


def normalized_from_joint_rad(theta, calibration: GripperCalibration):
    """Return the opening (0 closed, 1 open) as ALOHA data sets command it: by motor angle."""
    span = calibration.joint_open - calibration.joint_closed
    return (np.asarray(theta, dtype=np.float64) - calibration.joint_closed) / span


def joint_rad_from_normalized(opening, calibration: GripperCalibration):
    """Return the motor angle [rad] of a commanded opening; not the inverse of the state map."""
    span = calibration.joint_open - calibration.joint_closed
    return np.asarray(opening, dtype=np.float64) * span + calibration.joint_closed


def joint_rad_from_pi_action(action, constants: str):
    """Return the motor angle [rad] that an action in pi's angular space asks for."""
    return np.asarray(action, dtype=np.float64) * PI_ANGLE_SPAN[constants] + (
        PI_ANGLE_CLOSED[constants]
    )


def pi_action_from_joint_rad(theta, constants: str):
    """Return the action in pi's angular space that asks for a motor angle [rad]."""
    return (np.asarray(theta, dtype=np.float64) - PI_ANGLE_CLOSED[constants]) / (
        PI_ANGLE_SPAN[constants]
    )
