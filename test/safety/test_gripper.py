# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""The command side of the gripper: space, unit, calibration and generation of constants."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import yaml

from pi0_ros.resources import share_path
from pi0_ros.robot import RobotSpec
from pi0_ros.safety import gripper

DATA = yaml.safe_load(share_path('config/robots/aloha.yaml').read_text())


def aloha(**change) -> RobotSpec:
    data = copy.deepcopy(DATA)
    data.pop('poses')
    for arm in data['arms']:
        arm['gripper'] = {**arm['gripper'], **change}
    return RobotSpec.from_dict(data)


def command(robot: RobotSpec, action: float) -> float:
    return float(robot.policy_to_command(np.full(14, action))[6])


@pytest.mark.parametrize('opening, radians', [(0.0, -0.6213), (1.0, 1.4910), (0.5, 0.43485)])
def test_a_normalised_action_is_an_angle_of_the_motor(opening, radians):
    assert command(aloha(), opening) == pytest.approx(radians, abs=1e-6)


@pytest.mark.parametrize(
    'constants, action, radians',
    [
        ('openpi', 0.0, 0.5476),
        ('openpi', 1.0, 1.5476),
        ('lerobot_old', 0.0, 0.4),
        ('lerobot_old', 1.0, 1.5),
    ],
)
def test_an_angular_action_follows_its_generation_of_constants(constants, action, radians):
    robot = aloha(policy_space='pi_angle', constants=constants)
    assert command(robot, action) == pytest.approx(radians, abs=1e-9)


def test_a_gripper_commanded_in_metres_goes_through_the_linkage():
    robot = aloha(command_unit='m', lower=0.018, upper=0.058)
    c = robot.arms[0].gripper.calibration
    expected = gripper.finger_m_from_joint_rad(0.43485, c)
    assert command(robot, 0.5) == pytest.approx(float(expected), abs=1e-9)
    assert command(robot, 0.0) == pytest.approx(c.finger_closed, abs=1.5e-3)
    assert command(robot, 1.0) == pytest.approx(c.finger_open, abs=1.5e-3)


def test_a_gripper_commanded_normalised_takes_the_action_as_it_is():
    assert command(aloha(command_unit='normalized', lower=0.0, upper=1.0), 0.3) == 0.3


def test_the_command_map_is_not_the_inverse_of_the_state_map():
    """A measured opening sent back as an action moves the gripper: finger against motor."""
    robot = aloha()
    measured = np.zeros(14)
    measured[6] = 0.43485  # rad, half of the motor's travel
    state = robot.measured_to_policy(measured)
    assert abs(robot.policy_to_command(state)[6] - 0.43485) > 0.05


def test_the_measured_motor_angle_is_used_as_it_is():
    """The shortcut: where the robot reports the angle, no linkage is involved, even past pi/2."""
    measured = np.zeros(14)
    measured[6] = 1.62
    assert aloha().measured_to_command(measured)[6] == 1.62


def test_both_measured_joints_give_the_same_command_pose():
    """Field report B15: gripper in rad or left_finger in m."""
    by_angle, by_finger = aloha(), aloha(measured={'joint': 'left_finger', 'unit': 'm'})
    c = by_angle.arms[0].gripper.calibration
    for theta in np.linspace(c.joint_closed, c.joint_open, 9):
        angle, finger = np.zeros(14), np.zeros(14)
        angle[6] = theta
        finger[[6, 13]] = gripper.finger_m_from_joint_rad(theta, c), c.finger_closed
        assert by_finger.measured_to_command(finger)[6] == pytest.approx(theta, abs=1e-9)
        assert by_angle.measured_to_command(angle)[6] == pytest.approx(theta)
