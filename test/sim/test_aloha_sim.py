# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""The simulation against gym-aloha itself, its units, its judgement of success, its pictures."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

os.environ.setdefault('MUJOCO_GL', 'egl')

from pi0_ros.robot import RobotSpec
from pi0_ros.sim import CONTROL_PERIOD, AlohaSim, SimError
from pi0_ros.sim.aloha_sim import JOINT_STATE_NAMES

GYM_START = [0, -0.96, 1.16, 0, -0.3, 0, 0.02239, -0.02239] * 2


@pytest.fixture(scope='module')
def robot():
    return RobotSpec.load('aloha')


@pytest.fixture
def sim(robot):
    sim = AlohaSim('transfer_cube', robot, seed=3)
    yield sim
    sim.close()


def place_cube(sim, position):
    """Put the cube somewhere and let contacts be found."""
    sim.data.qpos[16:19] = position
    sim.data.qvel[:] = 0.0
    sim._mujoco.mj_forward(sim.model, sim.data)


@pytest.mark.parametrize('task', ['transfer_cube', 'insertion'])
def test_trajectory_rewards_and_objects_equal_gym_aloha(robot, task):
    pytest.importorskip('dm_control', reason='needs labmaze, which has no wheel for Python 3.13')
    from gym_aloha.env import AlohaEnv

    from pi0_ros import gripper as maps

    env = AlohaEnv(task)
    env._env.task.get_observation = lambda physics: {}  # no rendering
    env._format_raw_obs = lambda raw: raw
    env.reset(seed=11)
    sim = AlohaSim(task, robot, seed=11)
    sim.state = np.concatenate([GYM_START, *sim.sample_objects(11)])
    sim.data.ctrl[:] = GYM_START
    sim._mujoco.mj_forward(sim.model, sim.data)
    np.testing.assert_array_equal(sim.state, env._env.physics.data.qpos)
    calibration = robot.arms[0].gripper.calibration
    random = np.random.default_rng(0)
    goal = np.array([0.3, -0.3, 0.9, 0.4, 0.6, -0.4, 0.8] * 2) * random.uniform(0.5, 1.0, 14)
    start = np.array([0, -0.96, 1.16, 0, -0.3, 0, 0.1] * 2)
    for step in range(60):
        action = start + (goal - start) * min(1.0, step / 40)
        command = action.copy()
        for index in robot.gripper_indices:  # gym's opening is linear in the finger position
            finger = maps.finger_m_from_normalized(action[index], calibration)
            command[index] = maps.joint_rad_from_finger_m(finger, calibration)
        _, reward, *_ = env.step(action)
        sim.step(command)
        assert sim.reward == reward
    np.testing.assert_allclose(sim.state, env._env.physics.data.qpos, atol=1e-9)


def test_each_instance_has_its_own_objects(robot):
    first, second = AlohaSim(robot=robot, seed=1), AlohaSim(robot=robot, seed=2)
    before = first.state[16:19]
    second.reset(seed=5)
    assert not np.allclose(first.state[16:19], second.state[16:19])
    np.testing.assert_array_equal(first.state[16:19], before)
    first.reset(seed=5)
    np.testing.assert_array_equal(first.state[16:19], second.state[16:19])


def test_resets_without_seed_differ_and_repeat_from_the_same_seed(robot):
    runs = []
    for _ in range(2):
        sim = AlohaSim(robot=robot, seed=7)
        cubes = []
        for _ in range(3):
            sim.reset()
            cubes.append(sim.state[16:19])
        runs.append(np.array(cubes))
    np.testing.assert_array_equal(runs[0], runs[1])
    assert len(np.unique(runs[0], axis=0)) == 3


def test_reset_puts_the_arm_at_rest_in_the_start_pose(sim, robot):
    sim.step(np.array(robot.poses['sleep']))
    sim.reset(seed=3)
    start = np.array(robot.poses['start'])
    arm = [i for i in range(robot.dof) if i not in robot.gripper_indices]
    np.testing.assert_allclose(sim.measured()[arm], start[arm], atol=1e-12)
    for _ in range(25):
        sim.step()
    np.testing.assert_allclose(sim.measured()[arm], start[arm], atol=0.02)
    assert sim.time == pytest.approx(0.5)


def test_reading_has_interbotix_names_units_and_signs(sim, robot):
    reading = sim.joint_reading(0)
    assert reading.names == JOINT_STATE_NAMES
    assert reading.position.shape == reading.velocity.shape == reading.effort.shape == (9,)
    theta, left, right = reading.position[6:]
    assert 0.0205 < left < 0.0575
    assert right == pytest.approx(-left, abs=1e-6)
    assert robot.arms[0].gripper.finger_m(theta) == pytest.approx(left, abs=1e-9)


def test_gripper_follows_a_command_in_radians(sim, robot):
    command = np.array(robot.poses['start'])
    left = robot.gripper_indices[0]
    command[left] = 0.6  # rad
    speeds = []
    for _ in range(60):
        sim.step(command)
        speeds.append(sim.joint_reading(0).velocity[6])
    assert sim.joint_reading(0).position[6] == pytest.approx(0.6, abs=0.05)
    assert max(speeds) > 0.5  # rad/s, opening is positive
    assert sim.joint_reading(1).position[6] < 0.0


def test_gripper_velocity_is_the_derivative_of_its_angle(sim, robot):
    command = np.array(robot.poses['start'])
    command[list(robot.gripper_indices)] = 1.0
    for _ in range(4):
        sim.step(command)
    before = sim.joint_reading(0).position[6]
    sim.step(duration=0.002)
    after = sim.joint_reading(0)
    assert after.velocity[6] == pytest.approx((after.position[6] - before) / 0.002, rel=0.1)


def test_commands_outside_the_actuators_are_clipped(sim, robot):
    setpoint = sim.actuators_from_command(np.full(robot.dof, 10.0))
    assert setpoint[1] == pytest.approx(1.25664)
    assert setpoint[6] == pytest.approx(0.057)
    assert setpoint[7] == pytest.approx(-0.057)


@pytest.mark.parametrize('command', [np.zeros(13), np.full(14, np.nan)])
def test_malformed_command_is_refused(sim, command):
    with pytest.raises(SimError, match='expected 14 numbers'):
        sim.step(command)


@pytest.mark.parametrize('duration', [0.0, 0.001, 0.0205, -0.02])
def test_duration_that_is_no_multiple_of_the_physics_step_is_refused(sim, duration):
    with pytest.raises(SimError, match='multiple of the physics step'):
        sim.step(duration=duration)


def test_half_steps_make_the_same_motion(robot):
    whole, half = AlohaSim(robot=robot, seed=0), AlohaSim(robot=robot, seed=0)
    command = np.array(robot.poses['start']) + 0.05
    for _ in range(20):
        whole.step(command)
        half.step(command, CONTROL_PERIOD / 2)
        half.step(command, CONTROL_PERIOD / 2)
    np.testing.assert_allclose(whole.state, half.state, atol=1e-9)


def test_strict_success_needs_the_left_fingers_alone_for_ten_steps(sim):
    tips = sim.gripper_positions(np.array(sim.robot.poses['start']))[0]

    def hold_between_left_fingers():
        place_cube(sim, tips[0] + [-0.02, 0.0, 0.0])
        sim._judge()

    hold_between_left_fingers()
    assert sim.reward == 4
    assert sim.success
    assert not sim.strict_success
    for _ in range(8):
        hold_between_left_fingers()
    place_cube(sim, [0.0, 0.5, 0.4])  # lost for one frame: counting starts again
    sim._judge()
    for _ in range(9):
        hold_between_left_fingers()
    assert not sim.strict_success
    hold_between_left_fingers()
    assert sim.strict_success
    sim.reset(seed=3)
    assert not sim.success
    assert not sim.strict_success


def test_cameras_show_the_scene_in_rgb(sim):
    place_cube(sim, [0.1, 0.5, 0.02])
    top = sim.render('cam_high', 120, 160)
    assert top.shape == (120, 160, 3)
    assert top.dtype == np.uint8
    column, row = sim.project(np.array([[0.1, 0.5, 0.04]]), 'cam_high', 120, 160)[0]
    red = top[round(row), round(column)].astype(int)
    assert red[0] > 150
    assert red[1] < 60
    assert red[2] < 60
    views = [sim.render(name) for name in ('cam_high', 'cam_left_wrist', 'cam_right_wrist')]
    for view in views:
        assert view.shape == (128, 128, 3)
        assert view.std() > 10
    assert not np.array_equal(views[1], views[0])


def test_projection_of_a_gripper_meets_its_picture(sim):
    """Moving one arm changes the picture where the gripper's point is projected, and not far."""
    command = np.array(sim.robot.poses['start'])
    for _ in range(60):  # arms settle, the cube falls
        sim.step(command)
    still = sim.render('cam_high', 240, 320).astype(int)
    command[0] += 0.5
    for _ in range(40):
        sim.step(command)
    moved = sim.render('cam_high', 240, 320).astype(int)
    tip = sim.gripper_positions(command)[0, 0]
    column, row = sim.project(tip[None], 'cam_high', 240, 320)[0]
    changed = np.abs(moved - still).sum(axis=2) > 40
    rows, columns = np.nonzero(changed)
    assert np.hypot(rows - row, columns - column).min() < 12
    assert columns.max() < 240  # the right arm and the cube stayed


def test_unknown_names_are_refused_by_name(sim, robot):
    with pytest.raises(SimError, match="no camera 'cam_hihg'.*cam_high"):
        sim.render('cam_hihg')
    with pytest.raises(SimError, match="task 'juggle'.*transfer_cube"):
        AlohaSim('juggle', robot)


def test_missing_graphics_driver_gets_one_sentence_with_the_command():
    code = 'from pi0_ros.sim import AlohaSim; AlohaSim().render("cam_high")'
    environment = {
        **os.environ,
        'MUJOCO_GL': 'egl',
        '__EGL_VENDOR_LIBRARY_DIRS': '/nonexistent',
        '__EGL_VENDOR_LIBRARY_FILENAMES': '/nonexistent',
    }
    done = subprocess.run(
        [sys.executable, '-c', code], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    assert 'apt-get install -y libegl1' in done.stderr
    assert 'MUJOCO_GL=egl' in done.stderr
