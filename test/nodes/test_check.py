# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""`pi0_ros check` on live topics: fit, and each fault named with its remedy."""

import subprocess
import sys

import pytest
from fake_robot import FakeRobot

from pi0_ros.check import FAIL, PASS, robot_rows
from pi0_ros.nodes.probe import survey
from pi0_ros.robot import RobotSpec

ROBOT = RobotSpec.load('aloha')


@pytest.fixture()
def fake_robot(ros_domain):
    robot = FakeRobot(ros_domain)
    yield robot
    robot.close()


def rows_of():
    return {row.what: row for row in robot_rows(survey(ROBOT, 3.0), ROBOT, 0.5, 0.2)}


def test_a_robot_that_publishes_all_is_fit(fake_robot):
    rows = rows_of()
    assert [row.what for row in rows.values() if row.verdict == FAIL] == []
    for camera in ROBOT.cameras:
        assert 'Hz' in rows[f'camera {camera}'].found
        assert '64x48 rgb8' in rows[f'picture {camera}'].found
    assert rows['joint names'].verdict == PASS


def test_a_silent_camera_fails_by_name_with_a_remedy(fake_robot):
    fake_robot.silent.add('cam_left_wrist')
    rows = rows_of()
    row = rows['camera cam_left_wrist']
    assert row.verdict == FAIL and 'silent' in row.found and row.remedy
    assert rows['camera cam_high'].verdict != FAIL
    assert rows['alignment'].verdict == FAIL and 'cam_left_wrist' in rows['alignment'].found


def test_joints_that_are_silent_fail_by_name(fake_robot):
    fake_robot.silent.add('joint_states')
    rows = rows_of()
    assert rows['joint names'].verdict == FAIL and 'left/waist' in rows['joint names'].found


def test_an_empty_system_is_not_fit_and_says_why(ros_domain):
    done = subprocess.run(
        [sys.executable, '-m', 'pi0_ros.cli', 'check', '--seconds', '0.5'],
        capture_output=True, text=True, timeout=60, env=None,
    )  # fmt: skip
    assert done.returncode == 1
    assert 'not fit to run' in done.stdout and 'has no publisher' in done.stdout
    assert 'Traceback' not in done.stderr


def test_nothing_to_check_is_a_mistake():
    done = subprocess.run(
        [sys.executable, '-m', 'pi0_ros.cli', 'check', '--offline'],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert 'nothing to check' in done.stderr
