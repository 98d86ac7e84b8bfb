# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Limits that cannot be kept are refused by name, before anything moves."""

import math

import numpy as np
import pytest

from pi0_ros.errors import Pi0RosError
from pi0_ros.robot import RobotSpec
from pi0_ros.safety import Limits

NAMES = ('left/waist', 'left/finger')
GOOD = {
    'lower': (-1.0, 0.02), 'upper': (2.0, 0.06), 'velocity': (3.0, 1.0),
    'acceleration': (12.0, 4.0), 'jerk': (200.0, 100.0),
}  # fmt: skip


def limits(**changes) -> Limits:
    return Limits(NAMES, **{**GOOD, **changes})


def urdf(*joints: str) -> str:
    return f'<?xml version="1.0"?><robot name="arm">{"".join(joints)}</robot>'


def joint(name, kind='revolute', **limit) -> str:
    bounds = ' '.join(f'{key}="{value}"' for key, value in limit.items())
    return f'<joint name="{name}" type="{kind}"><limit effort="1" {bounds}/></joint>'


@pytest.mark.parametrize('bound', ['lower', 'upper', 'velocity', 'acceleration', 'jerk'])
@pytest.mark.parametrize('value', [math.nan, math.inf, -math.inf])
def test_not_finite_is_refused_with_joint_bound_and_value(bound, value):
    with pytest.raises(Pi0RosError, match=f'left/finger: {bound} limit is {value}'):
        limits(**{bound: (GOOD[bound][0], value)})


@pytest.mark.parametrize('bound', ['velocity', 'acceleration', 'jerk'])
@pytest.mark.parametrize('value', [0.0, -1.0])
def test_rate_not_above_zero_is_refused(bound, value):
    with pytest.raises(Pi0RosError, match=f'left/waist: {bound} limit is {value}'):
        limits(**{bound: (value, GOOD[bound][1])})


def test_lower_above_upper_is_refused():
    with pytest.raises(Pi0RosError, match='left/waist: lower limit 2.5 .* 2.0'):
        limits(lower=(2.5, 0.02))


@pytest.mark.parametrize('bound', list(GOOD))
def test_one_value_too_few_is_refused_and_lists_the_joints(bound):
    """Field report B65."""
    with pytest.raises(Pi0RosError, match=f'{bound} has 1 values for 2 joints .*left/finger'):
        limits(**{bound: GOOD[bound][:1]})


def test_a_name_twice_is_refused():
    with pytest.raises(Pi0RosError, match='not all different'):
        Limits(('a', 'a'), **GOOD)


def test_arrays_are_own_and_read_only():
    lower = np.array(GOOD['lower'])
    made = limits(lower=lower)
    lower[0] = 7.0
    assert made.lower[0] == -1.0
    with pytest.raises(ValueError, match='read-only'):
        made.lower[0] = 0.0


def test_robot_gives_limits_of_every_joint_in_its_order():
    robot = RobotSpec.load('aloha')
    made = Limits.from_robot(robot)
    assert made.names == robot.joint_names and made.dof == 14
    assert made.upper[1] == 1.25664 and made.velocity[0] == 3.14159


def test_urdf_narrows_and_never_widens():
    text = urdf(
        joint('waist', lower=-5.0, upper=1.5, velocity=9.0),
        joint('finger', 'prismatic', lower=0.021, upper=0.057, velocity=0.5),
    )
    made = limits().narrowed_by_urdf(text, prefixes=('left/',))
    assert made.lower.tolist() == [-1.0, 0.021]
    assert made.upper.tolist() == [1.5, 0.057]
    assert made.velocity.tolist() == [3.0, 0.5]
    assert made.acceleration.tolist() == list(GOOD['acceleration'])


def test_urdf_with_prefixed_names_is_matched_by_them():
    text = urdf(joint('left/waist', lower=-0.5, upper=0.5, velocity=1.0))
    assert limits().narrowed_by_urdf(text, prefixes=('left/',)).upper[0] == 0.5


def test_continuous_joint_of_the_urdf_bounds_speed_alone():
    made = limits().narrowed_by_urdf(urdf(joint('left/waist', 'continuous', velocity=1.0)))
    assert (made.lower[0], made.upper[0], made.velocity[0]) == (-1.0, 2.0, 1.0)


@pytest.mark.parametrize(
    'text, said',
    [
        ('<mujoco model="x"/>', 'MJCF'),
        ('<mujocoinclude/>', 'MJCF'),
        ('<html/>', 'begins with <html>'),
        ('', 'not XML'),
        ('not xml at all', 'not XML'),
        (urdf(joint('tail', lower=0, upper=1, velocity=1)), 'none of the joints .*it has tail'),
        (urdf(joint('left/waist', lower='nan', upper=1, velocity=1)), "lower='nan'"),
        (urdf(joint('left/waist', lower=3.0, upper=4.0, velocity=1)), 'left/waist: .*nothing'),
        (urdf(joint('left/waist', lower=1.0, upper=-1.0, velocity=1)), 'left/waist.*no sense'),
        (urdf(joint('left/waist', lower=-1.0, upper=1.0, velocity=-2)), 'velocity=-2.0.*no sense'),
        (urdf(joint('left/waist', lower=-1.0, upper=1.0, velocity='3,1')), "velocity='3,1'"),
    ],
)
def test_what_is_no_usable_urdf_is_refused_by_what_it_is(text, said):
    with pytest.raises(Pi0RosError, match=said):
        limits().narrowed_by_urdf(text)


def test_real_urdf_narrows_the_aloha_arms(shared_dir):
    text = (shared_dir / 'real/robots/vx300s.urdf').read_text()
    robot = Limits.from_robot(RobotSpec.load('aloha'))
    made = robot.narrowed_by_urdf(text, prefixes=('left/', 'right/'))
    assert np.all(made.lower >= robot.lower) and np.all(made.upper <= robot.upper)
    assert made.upper[1] == pytest.approx(1.25664, abs=1e-4)


def test_urdf_with_mimic_fixed_and_limitless_joints_narrows_what_it_can():
    text = urdf(
        joint('finger', 'prismatic', lower=0.021, upper=0.057, velocity=0.0),  # 0: not given
        '<joint name="right_finger" type="prismatic"><limit lower="-0.057" upper="-0.021"/>'
        '<mimic joint="left/finger" multiplier="-1"/></joint>',
        '<joint name="left/waist" type="revolute"><axis xyz="0 0 1"/></joint>',
        '<joint name="base" type="fixed"/>',
    )
    made = limits().narrowed_by_urdf(text, prefixes=('left/',))
    assert (made.lower[0], made.upper[0]) == (-1.0, 2.0)
    assert (made.lower[1], made.upper[1], made.velocity[1]) == (0.021, 0.057, 1.0)


def test_urdf_of_another_robot_that_has_a_gripper_too_is_refused():
    text = urdf(
        joint('shoulder_pan', lower=-1.9, upper=1.9, velocity=1),
        joint('gripper', lower=-0.17, upper=1.75, velocity=1),
    )
    with pytest.raises(Pi0RosError, match='has 2 of the joints .*it has shoulder_pan, gripper'):
        Limits.from_robot(RobotSpec.load('aloha')).narrowed_by_urdf(text, ('left/', 'right/'))


@pytest.mark.parametrize(
    'name', ['so100_follower', 'so101_follower', 'panda', 'ur5e', 'trossen_wxai_follower']
)
def test_real_urdfs_of_other_robots_are_refused_for_aloha(shared_dir, name):
    text = (shared_dir / f'real/robots/{name}.urdf').read_text()
    with pytest.raises(Pi0RosError, match='of the joints left/waist'):
        Limits.from_robot(RobotSpec.load('aloha')).narrowed_by_urdf(text, ('left/', 'right/'))


def test_real_urdf_of_the_trossen_arm_leaves_its_limits(shared_dir):
    text = (shared_dir / 'real/robots/trossen_wxai_follower.urdf').read_text()
    robot = Limits.from_robot(RobotSpec.load('wxai'))
    made = robot.narrowed_by_urdf(text)
    assert made.lower.tolist() == robot.lower.tolist()
    assert made.upper.tolist() == robot.upper.tolist()


@pytest.mark.parametrize('name', ['bimanual_viperx_transfer_cube.xml', 'vx300s_left.xml'])
def test_real_mujoco_files_are_named_as_such(shared_dir, name):
    text = (shared_dir / 'real/robots/gym_aloha' / name).read_text()
    with pytest.raises(Pi0RosError, match='MJCF'):
        Limits.from_robot(RobotSpec.load('aloha')).narrowed_by_urdf(text)
