# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""`pi0_ros check` on live topics: fit, and each fault named with its remedy."""

import subprocess
import sys
import threading
import time

import pytest
import rclpy
import yaml
from diagnostic_msgs.msg import DiagnosticStatus, KeyValue
from fake_robot import FakeRobot
from rclpy.context import Context
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray, String
from trajectory_msgs.msg import JointTrajectory

from pi0_ros.check import FAIL, PASS, WARN, robot_rows, system_rows
from pi0_ros.nodes.probe import survey
from pi0_ros.resources import share_path
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


ARM_TOPIC = '/left/forward_position_controller/commands'


@pytest.fixture(scope='module')
def controller_robot(tmp_path_factory):
    """Return ALOHA under ros2_control, whose messages are installed everywhere."""
    data = yaml.safe_load(share_path('config/robots/aloha.yaml').read_text())
    for arm in data['arms']:
        topic = f'/{arm["name"]}/forward_position_controller/commands'
        arm['output'] = {'kind': 'forward_command', 'topic': topic, 'gripper_topic': topic}
    path = tmp_path_factory.mktemp('robot') / 'aloha.yaml'
    path.write_text(yaml.safe_dump(data))
    return RobotSpec.load(path)


def system(robot, wanted=lambda rows: True, bound=20.0):
    """Return the rows by name, surveyed until ``wanted``: discovery takes its time."""
    end = time.monotonic() + bound
    while True:
        rows = {row.what: row for row in system_rows(survey(robot, 1.0), robot)}
        if wanted(rows) or time.monotonic() > end:
            return rows


def test_controllers_are_heard_missed_or_of_another_type(
    fake_robot, controller_robot, ros_domain
):
    rows = system(controller_robot)
    row = rows[f'controller {ARM_TOPIC}']
    assert row.verdict == WARN and 'ros2 control list_controllers' in row.remedy
    node = fake_robot.node
    heard = node.create_subscription(Float64MultiArray, ARM_TOPIC, lambda m: None, 1)
    rows = system(controller_robot, lambda r: r[f'controller {ARM_TOPIC}'].verdict == PASS)
    assert 'fake_robot' in rows[f'controller {ARM_TOPIC}'].found
    node.destroy_subscription(heard)
    context = Context()  # one participant has one type a topic
    rclpy.init(context=context, domain_id=ros_domain)
    other = rclpy.create_node('trajectory_controller', context=context)
    try:
        other.create_subscription(JointTrajectory, ARM_TOPIC, lambda m: None, 1)
        rows = system(controller_robot, lambda r: r[f'controller {ARM_TOPIC}'].verdict == FAIL)
        assert 'JointTrajectory' in rows[f'controller {ARM_TOPIC}'].found
    finally:
        other.destroy_node()
        rclpy.shutdown(context=context)


def test_rival_commanders_fail_by_name(fake_robot, controller_robot):
    for _ in range(2):
        fake_robot.node.create_publisher(JointState, 'joint_command_raw', 10)
    fake_robot.node.create_publisher(Float64MultiArray, ARM_TOPIC, 1)
    rows = system(controller_robot, lambda r: 'publishers joint_command_raw' in r
                  and f'commands {ARM_TOPIC}' in r)  # fmt: skip
    for name in ('publishers joint_command_raw', f'commands {ARM_TOPIC}'):
        assert rows[name].verdict == FAIL and 'fake_robot' in rows[name].found
        assert 'stop' in rows[name].remedy


def test_incompatible_qos_is_named(fake_robot, controller_robot):
    best_effort = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
    fake_robot.node.create_publisher(String, 'prompt', best_effort)
    fake_robot.node.create_subscription(String, 'prompt', lambda m: None, 1)
    rows = system(controller_robot, lambda r: 'QoS /prompt' in r)
    assert rows['QoS /prompt'].verdict == FAIL
    assert 'eliab' in rows['QoS /prompt'].found


def test_state_of_the_safety_filter_is_told(fake_robot, controller_robot):
    assert system(controller_robot)['safety filter'].verdict == WARN
    publisher = fake_robot.node.create_publisher(
        DiagnosticStatus, 'safety_filter/status',
        QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL),
    )  # fmt: skip
    for state, verdict in (('stopped', FAIL), ('ready', PASS)):
        message = DiagnosticStatus(message=f'{state}: because')
        message.values = [KeyValue(key='state', value=state)]
        publisher.publish(message)
        rows = system(controller_robot, lambda r, s=state: s in r['safety filter'].found)
        assert rows['safety filter'].verdict == verdict
        assert bool(rows['safety filter'].remedy) == (verdict == FAIL)


def test_inputs_stamped_by_another_clock_than_the_nodes_use_fail(ros_domain, controller_robot):
    robot = FakeRobot(ros_domain, simulated=True)
    stop = threading.Event()

    def go():
        k = 0
        while not stop.is_set():
            robot.step(100.0 + k / 100)
            k += 1
            robot.pause(0.01)

    thread = threading.Thread(target=go, daemon=True)
    thread.start()
    node = rclpy.create_node('policy_node', context=robot.context)
    robot.node.executor.add_node(node)
    try:
        rows = system(controller_robot, lambda r: 'time' in r and r['time'].verdict == FAIL)
        assert 'policy_node' in rows['time'].found and 'use_sim_time' in rows['time'].remedy
        heard = robot_rows(survey(controller_robot, 2.0), controller_robot, 0.5, 0.2)
        cameras = [row for row in heard if row.what.startswith('camera')]
        assert cameras and all('/clock' in row.found for row in cameras)
        assert not [row for row in cameras if row.verdict == FAIL]
    finally:
        stop.set()
        thread.join(5.0)
        node.destroy_node()
        robot.close()


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
