# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Between an ALOHA's joints and the space in which pi0's ALOHA data were recorded.

Physical Intelligence's arms turn four joints the other way and speak of the gripper's motor angle.
Constants in two generations: openpi since PR #557 (July 2025), and LeRobot 0.1-0.3 (the older
openpi). The state map and the action map are NOT inverses of each other: the state is divided by
the range of the angle, the action is not. The checkpoints were trained so: do not mend it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pi0_ros.errors import Pi0RosError
from pi0_ros.gripper import (
    PI_ANGLE_CLOSED,
    GripperCalibration,
    finger_m_from_normalized,
    joint_rad_from_finger_m,
    joint_rad_from_normalized,
    joint_rad_from_pi_action,
    normalized_from_joint_rad,
    pi_action_from_joint_rad,
)

FLIPPED = (1, 2, 8, 9)
"""Shoulder and elbow of both arms (openpi's ``_joint_flip_mask``)."""

GRIPPERS = (6, 13)

PI_STATE_RANGE = {'openpi': (0.5476, 1.6296), 'lerobot_old': (0.4, 1.5)}
"""
Motor angles [rad] that are 0 and 1 of pi's state.

openpi derives the upper end from encoder counts, which give 1.6291, and writes 1.6296: kept.
"""


@dataclass(frozen=True)
class AlohaAdapter:
    """
    The maps of one generation of constants.

    :param constants: ``openpi`` or ``lerobot_old``.
    :param calibration: of the normalised gripper that goes in and comes out.
    """

    constants: str = 'openpi'
    calibration: GripperCalibration = GripperCalibration()

    def __post_init__(self):
        if self.constants not in PI_ANGLE_CLOSED:
            raise Pi0RosError(
                f"ALOHA constants '{self.constants}' are not known; expected one of "
                f"{', '.join(PI_ANGLE_CLOSED)}, or 'off' for a policy"
            )

    def pi_state_from_robot(self, state) -> np.ndarray:
        """Return pi's state of a robot state [..., 14] (rad, gripper opening): decode_state."""
        return self._map(state, self.pi_gripper_state_from_opening)

    def robot_actions_from_pi(self, actions) -> np.ndarray:
        """Return robot actions [..., 14] (rad, opening) of pi's: encode_actions."""
        return self._map(actions, self.opening_from_pi_gripper_action)

    def pi_actions_from_robot(self, actions) -> np.ndarray:
        """Return pi's actions of robot actions [..., 14]: openpi's encode_actions_inv."""
        return self._map(actions, self.pi_gripper_action_from_opening)

    def pi_gripper_state_from_opening(self, opening):
        """Return pi's gripper state of an opening, by way of finger position and motor angle."""
        finger = finger_m_from_normalized(opening, self.calibration)
        low, high = PI_STATE_RANGE[self.constants]
        return (joint_rad_from_finger_m(finger, self.calibration) - low) / (high - low)

    def opening_from_pi_gripper_action(self, action):
        """Return the opening that a gripper action asks for; may leave 0..1."""
        theta = joint_rad_from_pi_action(action, self.constants)
        return normalized_from_joint_rad(theta, self.calibration)

    def pi_gripper_action_from_opening(self, opening):
        """Return the gripper action that asks for an opening."""
        theta = joint_rad_from_normalized(opening, self.calibration)
        return pi_action_from_joint_rad(theta, self.constants)

    def _map(self, vectors, gripper) -> np.ndarray:
        vectors = np.array(vectors, dtype=np.float64)
        if vectors.shape[-1] != 14:
            raise Pi0RosError(
                f'the ALOHA adaptation takes 14 joints, given {vectors.shape[-1]}; '
                'switch it off for this robot'
            )
        vectors[..., list(FLIPPED)] *= -1.0
        grippers = list(GRIPPERS)
        vectors[..., grippers] = gripper(vectors[..., grippers])
        return vectors


def make_bool_mask(*dims: int) -> tuple[bool, ...]:
    """Return openpi's mask notation: 6, -1 means six True and one False."""
    return tuple(value for n in dims for value in [n > 0] * abs(n))


def delta_from_absolute(actions, state, mask) -> np.ndarray:
    """
    Return actions [..., dof] relative to a state where the mask is true.

    :param state: float [dof], of the observation that the chunk comes from, for every row.
    :param mask: bool, as long as actions or shorter; None: nothing is relative.
    """
    return _shift(actions, state, mask, -1.0)


def absolute_from_delta(actions, state, mask) -> np.ndarray:
    """Return the absolute actions of relative ones; see :func:`delta_from_absolute`."""
    return _shift(actions, state, mask, 1.0)


def _shift(actions, state, mask, sign: float) -> np.ndarray:
    actions = np.array(actions, dtype=np.float64)
    if mask is None:
        return actions
    n = len(mask)
    base = np.where(np.asarray(mask, dtype=bool), np.asarray(state, dtype=np.float64)[..., :n], 0)
    actions[..., :n] += sign * (base[..., None, :] if base.ndim > 1 else base)
    return actions
