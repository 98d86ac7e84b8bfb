# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Forward kinematics against MuJoCo's, units of grippers, and descriptions that are refused."""

import dataclasses

import numpy as np
import pytest

from pi0_ros.errors import Pi0RosError
from pi0_ros.kinematics import ForwardKinematics, gripper_rad_and_m, parse_urdf
from pi0_ros.resources import share_path
from pi0_ros.robot import RobotSpec

URDF = share_path('config/urdf/aloha.urdf').read_text(encoding='utf-8')
POSES = 1000
MAX_DISTANCE = 1e-3  # m
MAX_ANGLE = np.radians(0.1)


@pytest.fixture(scope='module')
def robot():
    return RobotSpec.load('aloha')


@pytest.fixture(scope='module')
def kinematics(robot):
    return ForwardKinematics(URDF, robot)


def random_commands(robot, rows, seed=0):
    lower = [max(j.lower, -np.pi) for j in robot.joints]
    upper = [min(j.upper, np.pi) for j in robot.joints]
    return np.random.default_rng(seed).uniform(lower, upper, (rows, robot.dof))


def angle_between(a, b):
    """Return the angle [rad] between rotations, exact also where it is tiny."""
    return 2 * np.arcsin(np.linalg.norm(a - b, axis=(-2, -1)) / (2 * np.sqrt(2)))


def with_tips(robot, frame):
    arms = tuple(
        dataclasses.replace(arm, gripper_frame=arm.prefix + frame) for arm in robot.arms
    )
    return dataclasses.replace(robot, arms=arms)


def mujoco_aloha():
    mujoco = pytest.importorskip('mujoco', reason='MuJoCo is not installed')
    gym_aloha = pytest.importorskip('gym_aloha', reason='gym-aloha is not installed')
    path = f'{gym_aloha.__path__[0]}/assets/bimanual_viperx_transfer_cube.xml'
    model = mujoco.MjModel.from_xml_path(path)
    return mujoco, model, mujoco.MjData(model)


@pytest.mark.parametrize('frame', ['gripper_link', 'left_finger_link', 'right_finger_link'])
def test_poses_agree_with_gym_aloha_in_mujoco(robot, frame):
    mujoco, model, data = mujoco_aloha()
    commands = random_commands(robot, POSES)
    ours = ForwardKinematics(URDF, with_tips(robot, frame)).poses(commands)
    theirs_p = np.empty_like(ours.positions)
    theirs_r = np.empty_like(ours.rotations)
    for row, command in enumerate(commands):
        for arm in robot.arms:
            for joint, index in zip(arm.joints, arm.indices):
                name = joint.name.removeprefix(arm.prefix)
                if joint.is_gripper:
                    finger = float(gripper_rad_and_m(arm.gripper, command[index])[1])
                    data.joint(f'vx300s_{arm.name}/left_finger').qpos = finger
                    data.joint(f'vx300s_{arm.name}/right_finger').qpos = -finger
                else:
                    data.joint(f'vx300s_{arm.name}/{name}').qpos = command[index]
        mujoco.mj_kinematics(model, data)
        for column, arm in enumerate(robot.arms):
            body = data.body(f'vx300s_{arm.name}/{frame}')
            theirs_p[row, column] = body.xpos
            theirs_r[row, column] = body.xmat.reshape(3, 3)
    distance = np.linalg.norm(ours.positions - theirs_p, axis=-1).max()
    angle = angle_between(ours.rotations, theirs_r).max()
    assert distance <= MAX_DISTANCE
    assert angle <= MAX_ANGLE
    assert np.ptp(ours.positions, axis=0).min() > 0.3  # the poses really moved the hands


def test_a_batch_equals_its_rows(robot, kinematics):
    commands = random_commands(robot, 7)
    batch = kinematics.poses(commands)
    for row, command in enumerate(commands):
        single = kinematics.poses(command)
        np.testing.assert_array_equal(single.positions[0], batch.positions[row])
        np.testing.assert_array_equal(single.openings[0], batch.openings[row])


def test_a_chunk_is_converted_from_the_policys_space(robot, kinematics):
    chunk = np.zeros((2, robot.dof))
    chunk[1, list(robot.gripper_indices)] = 1.0
    openings = kinematics.chunk_poses(chunk).openings
    np.testing.assert_allclose(openings[0], 0.01844, atol=1.5e-3)
    np.testing.assert_allclose(openings[1], 0.05800, atol=1.5e-3)


def test_link_poses_agree_with_gripper_poses(robot, kinematics):
    command = random_commands(robot, 1)[0]
    links = kinematics.link_poses(command)
    poses = kinematics.poses(command)
    for column, frame in enumerate(kinematics.gripper_frames):
        np.testing.assert_allclose(links[frame][:3, 3], poses.positions[0, column], atol=1e-12)
    assert set(links) == set(kinematics.links)
    assert {shape.link for shape in kinematics.shapes} <= set(links)


def test_fingers_never_touch_over_the_whole_stroke(robot, kinematics):
    for closed in (True, False):
        command = np.zeros(robot.dof)
        for index in robot.gripper_indices:
            joint = robot.joints[index]
            command[index] = joint.lower if closed else joint.upper
        links = kinematics.link_poses(command)
        inner = {}
        for shape in kinematics.shapes:
            if shape.link in ('left/left_finger_link', 'left/right_finger_link'):
                y = (links[shape.link] @ shape.pose)[1, 3]
                inner[shape.link] = (y, shape.size[1] / 2)
        (left, half), (right, _) = (inner[f'left/{s}_finger_link'] for s in ('left', 'right'))
        gap = left - right - 2 * half
        assert gap > 0.001
        assert (gap < 0.01) == closed


def test_urdf_names_every_joint_and_limit_of_the_robot(robot):
    joints = {j.get('name'): j for j in parse_urdf(URDF).findall('joint')}
    for joint in robot.joints:
        limit = joints[joint.name].find('limit')
        if not joint.is_gripper:
            assert float(limit.get('lower')) == pytest.approx(joint.lower, abs=1e-4)
            assert float(limit.get('upper')) == pytest.approx(joint.upper, abs=1e-4)
        assert float(limit.get('lower')) <= joint.lower + 1e-4
        assert float(limit.get('upper')) >= joint.upper - 1e-4


@pytest.mark.parametrize('text, words', [
    ('', 'empty'),
    ('/home/me/robot.urdf', 'path'),
    ('<mujoco><worldbody/></mujoco>', 'MJCF'),
    ('<mujocoinclude/>', 'MJCF'),
    ('<sdf version="1.7"/>', 'SDF'),
    ('<robot name="r" xmlns:xacro="http://x"><xacro:include/></robot>', 'xacro'),
    ('<robot name="r"/>', 'no links'),
    ('<robot name="r"><link name="a"/><link name="a"/></robot>', "'a' is defined twice"),
    ('<robot name="r"><link name="a"/><joint name="j"/></robot>', "'j' has no parent"),
    ('<robot name="panda"><link name="a"/></robot>', "'left/waist'"),
    ('<robot name="r"><link name="a">', 'not XML'),
])  # fmt: skip
def test_what_is_no_description_of_this_robot_is_refused_by_name(robot, text, words):
    with pytest.raises(Pi0RosError, match=words):
        ForwardKinematics(text, robot)


def test_a_gripper_frame_that_is_absent_is_refused(robot):
    with pytest.raises(Pi0RosError, match='no link .left/palm.'):
        ForwardKinematics(URDF, with_tips(robot, 'palm'))


def test_a_chunk_of_another_width_is_refused(kinematics):
    with pytest.raises(Pi0RosError, match='14'):
        kinematics.poses(np.zeros((50, 7)))


# One-arm robots over the descriptions of others, when the reference data are there.

FOREIGN = {
    'vx300s.urdf': ('waist', 'shoulder', 'elbow', 'forearm_roll', 'wrist_angle', 'wrist_rotate'),
    'panda.urdf': tuple(f'joint{i}' for i in range(1, 8)),
    'ur5e.urdf': ('shoulder_pan_joint', 'shoulder_lift_joint', 'elbow_joint', 'wrist_1_joint',
                  'wrist_2_joint', 'wrist_3_joint'),
    'so100_follower.urdf': ('shoulder_pan', 'shoulder_lift', 'elbow_flex', 'wrist_flex',
                            'wrist_roll'),
    'so101_follower.urdf': ('shoulder_pan', 'shoulder_lift', 'elbow_flex', 'wrist_flex',
                            'wrist_roll'),
    'trossen_wxai_follower.urdf': tuple(f'joint_{i}' for i in range(6)),
}  # fmt: skip


def one_arm(names):
    bounds = {'lower': -3.0, 'upper': 3.0, 'velocity': 1.0, 'acceleration': 1.0, 'jerk': 1.0}
    return RobotSpec.from_dict({
        'name': 'other', 'control_rate': 50.0, 'policy_rate': 50.0, 'policy_units': 'rad',
        'arms': [{'name': 'arm', 'prefix': '', 'joint_states': '/joint_states',
                  'joints': [{'name': n, **bounds} for n in names]}],
        'cameras': {'cam': {'slot': 'base_0_rgb', 'topic': '/cam'}},
    })  # fmt: skip


@pytest.mark.parametrize('name', FOREIGN)
def test_real_descriptions_of_other_arms_work_for_their_own_robot_only(shared_dir, robot, name):
    text = (shared_dir / 'real' / 'robots' / name).read_text(encoding='utf-8')
    other = one_arm(FOREIGN[name])
    kinematics = ForwardKinematics(text, other, name)
    poses = kinematics.poses(random_commands(other, 20))
    assert np.isfinite(poses.positions).all()
    assert np.ptp(poses.positions[:, 0], axis=0).max() > 0.05
    with pytest.raises(Pi0RosError, match=name):
        ForwardKinematics(text, robot, name)


def test_real_mjcf_files_are_refused_as_mjcf(shared_dir, robot):
    files = sorted((shared_dir / 'real' / 'robots' / 'gym_aloha').glob('*.xml'))
    assert len(files) == 3
    for path in files:
        with pytest.raises(Pi0RosError, match='MJCF'):
            ForwardKinematics(path.read_text(encoding='utf-8'), robot, path.name)


def test_widowx_ai_reaches_as_far_as_its_origins_add_up():
    robot = RobotSpec.load('wxai')
    kinematics = ForwardKinematics(robot.urdf_path.read_text(encoding='utf-8'), robot)
    poses = kinematics.poses(np.zeros(robot.dof))
    forward = 0.02 - 0.264 + 0.245 + 0.06775 + 0.02895 + 0.156062
    upward = 0.05725 + 0.04625 + 0.06
    assert np.allclose(poses.positions[0, 0], [forward, 0.0, upward], atol=1e-9)
    assert kinematics.root_frame == 'base_link' and len(kinematics.shapes) > 10


def test_widowx_ai_agrees_with_the_manufacturers_description(shared_dir):
    robot = RobotSpec.load('wxai')
    theirs = (shared_dir / 'real' / 'robots' / 'trossen_wxai_follower.urdf').read_text()
    commands = random_commands(robot, POSES)
    ours = ForwardKinematics(robot.urdf_path.read_text(), robot).poses(commands)
    expected = ForwardKinematics(theirs, robot).poses(commands)
    assert np.abs(ours.positions - expected.positions).max() < 1e-6
    assert angle_between(ours.rotations, expected.rotations).max() < 1e-6
    assert np.allclose(ours.openings, expected.openings)
