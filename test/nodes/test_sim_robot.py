# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""The simulated robot as other nodes meet it: a process on real topics."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import qos_profile_sensor_data
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Bool, Float32, Float64MultiArray
from std_srvs.srv import Trigger

from pi0_ros.messages import joint_state, ns_from_time
from pi0_ros.nodes.sim_robot import LockStep
from pi0_ros.robot import RobotSpec

BOUND_S = 20.0


@pytest.fixture(scope='module')
def robot():
    return RobotSpec.load('aloha')


class Listener:
    """Collects what the robot publishes; commands it."""

    def __init__(self, domain: int, robot: RobotSpec):
        self.robot = robot
        self.context = rclpy.Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.node = rclpy.create_node('listener', context=self.context)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.received = {}
        self.on_clock = None
        subscribe = self.node.create_subscription
        topics = {
            '/clock': Clock, 'sim_robot/state': Float64MultiArray, 'sim_robot/reward': Float32,
            'sim_robot/success': Bool, 'sim_robot/strict_success': Bool,
            **{arm.joint_states: JointState for arm in robot.arms},
            **{camera.topic: Image for camera in robot.cameras.values()},
        }  # fmt: skip
        for topic, kind in topics.items():
            self.received[topic] = []
            subscribe(kind, topic, lambda m, t=topic: self._take(t, m), 200)
        self.sensor_images = []
        subscribe(Image, robot.cameras['cam_high'].topic, self.sensor_images.append,
                  qos_profile_sensor_data)  # fmt: skip
        self.command = self.node.create_publisher(JointState, 'joint_command', 10)
        self.reset = self.node.create_client(Trigger, 'sim_robot/reset')

    def _take(self, topic, message):
        self.received[topic].append(message)
        if topic == '/clock' and self.on_clock:
            self.on_clock(ns_from_time(message.clock))

    def wait(self, condition, bound=BOUND_S):
        deadline = time.monotonic() + bound
        while not condition():
            assert time.monotonic() < deadline, 'the condition was not met in time'
            self.executor.spin_once(timeout_sec=0.05)

    def joints(self, arm=0):
        messages = self.received[self.robot.arms[arm].joint_states]
        self.wait(lambda: messages)
        message = messages[-1]
        return dict(zip(message.name, message.position))

    def clear(self):
        for messages in self.received.values():
            messages.clear()

    def close(self):
        self.executor.shutdown(timeout_sec=1.0)
        self.node.destroy_node()
        self.context.try_shutdown()


@contextmanager
def running(domain, spec, tmp_path, **parameters):
    """Start the node as a process; yield (process, listener, log)."""
    log = tmp_path / 'sim_robot.log'
    arguments = [f for k, v in parameters.items() for f in ('-p', f'{k}:={v}')]
    with log.open('wb') as output:
        process = subprocess.Popen(
            [sys.executable, '-m', 'pi0_ros.nodes.sim_robot', '--ros-args', *arguments],
            stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    listener = Listener(domain, spec)
    try:
        yield process, listener, log
    finally:
        listener.close()
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(10.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def test_publishes_what_the_real_drivers_publish(ros_domain, robot, tmp_path):
    parameters = {'real_time_factor': 0.0, 'camera_rate': 20.0}
    with running(ros_domain, robot, tmp_path, **parameters) as (_, it, _):
        topics = list(it.received)
        it.wait(lambda: all(len(it.received[t]) > 4 for t in topics))
        it.wait(lambda: len(it.received['/clock']) > 100)

        clock = np.array([ns_from_time(m.clock) for m in it.received['/clock']])
        assert set(np.diff(clock)) == {10_000_000}
        for arm in robot.arms:
            messages = it.received[arm.joint_states]
            stamps = np.array([ns_from_time(m.header.stamp) for m in messages])
            assert set(np.diff(stamps)) == {10_000_000}
            assert list(messages[0].name) == [
                'waist', 'shoulder', 'elbow', 'forearm_roll', 'wrist_angle', 'wrist_rotate',
                'gripper', 'left_finger', 'right_finger',
            ]  # fmt: skip
            assert len(messages[0].velocity) == len(messages[0].effort) == 9
        for camera in robot.cameras.values():
            images = it.received[camera.topic]
            stamps = np.array([ns_from_time(m.header.stamp) for m in images])
            assert set(np.diff(stamps)) == {50_000_000}
            image = images[-1]
            assert (image.height, image.width, image.encoding, image.step) == (
                128, 128, 'rgb8', 384,
            )  # fmt: skip
            assert np.frombuffer(image.data, np.uint8).std() > 5
        assert it.sensor_images  # best effort subscribers are served too
        assert it.received['sim_robot/success'][-1].data is False


def test_holds_the_start_pose_until_commanded_then_follows(ros_domain, robot, tmp_path):
    parameters = {'real_time_factor': 0.0, 'camera_rate': 0.0}
    with running(ros_domain, robot, tmp_path, **parameters) as (_, it, _):
        start = np.array(robot.poses['start'])
        it.wait(lambda: len(it.received['/clock']) > 100)
        assert it.joints()['waist'] == pytest.approx(start[0], abs=0.02)
        assert it.joints()['elbow'] == pytest.approx(start[2], abs=0.02)

        target = start.copy()
        target[0], target[robot.gripper_indices[0]] = 0.3, 0.8
        it.on_clock = lambda ns: it.command.publish(joint_state(robot.joint_names, target, ns))
        it.wait(lambda: abs(it.joints()['waist'] - 0.3) < 0.02)
        it.wait(lambda: abs(it.joints()['gripper'] - 0.8) < 0.06)
        assert it.joints(1)['waist'] == pytest.approx(0.0, abs=0.02)

        it.on_clock = None  # silence: the last setpoint is held and time goes on
        it.clear()
        it.wait(lambda: len(it.received['/clock']) > 50)
        assert it.joints()['waist'] == pytest.approx(0.3, abs=0.02)


def test_command_with_unknown_joint_or_nan_is_refused_and_named(ros_domain, robot, tmp_path):
    parameters = {'real_time_factor': 0.0, 'camera_rate': 0.0}
    with running(ros_domain, robot, tmp_path, **parameters) as (_, it, log):
        start = np.array(robot.poses['start']) + 0.2
        names = list(robot.joint_names)
        wrong = [*names[:-1], 'right/claw']
        it.on_clock = lambda ns: it.command.publish(joint_state(wrong, start, ns))
        it.wait(lambda: "names 'right/claw'" in log.read_text())
        nan = start.copy()
        nan[3] = np.nan
        it.on_clock = lambda ns: it.command.publish(joint_state(names, nan, ns))
        it.wait(lambda: "no finite position for 'left/forearm_roll'" in log.read_text())
        it.clear()
        it.wait(lambda: len(it.received['/clock']) > 20)
        assert it.joints()['waist'] == pytest.approx(0.0, abs=0.02)


def test_simulated_time_never_runs_ahead_of_a_talking_controller(ros_domain, robot, tmp_path):
    parameters = {'real_time_factor': 0.0, 'camera_rate': 0.0, 'lockstep_timeout': 5.0}
    with running(ros_domain, robot, tmp_path, **parameters) as (_, it, _):
        start = np.array(robot.poses['start'])
        seen = []

        def answer_even_ticks(ns):
            seen.append(ns)
            if ns % 20_000_000 == 0:
                it.command.publish(joint_state(robot.joint_names, start, ns))

        it.on_clock = answer_even_ticks
        it.wait(lambda: len(seen) > 40)  # two-way discovery is over and the step is locked

        def withhold(ns):
            seen.append(ns)

        it.on_clock = withhold
        seen.clear()
        quiet_until = time.monotonic() + 1.5
        it.wait(lambda: time.monotonic() > quiet_until)
        assert len(seen) <= 3  # at most the rest of one control period and one begun
        it.on_clock = answer_even_ticks
        it.command.publish(joint_state(robot.joint_names, start, 0))
        it.wait(lambda: len(seen) > 40)


def test_reset_makes_a_new_episode_and_time_goes_on(ros_domain, robot, tmp_path):
    with running(ros_domain, robot, tmp_path, real_time_factor=0.0) as (_, it, _):
        it.wait(lambda: it.received['sim_robot/state'] and it.reset.service_is_ready())
        target = np.array(robot.poses['start'])
        target[0] = 0.4
        it.command.publish(joint_state(robot.joint_names, target, 0))
        it.wait(lambda: it.joints()['waist'] > 0.3)
        cube = list(it.received['sim_robot/state'][-1].data[16:18])
        before = ns_from_time(it.received['/clock'][-1].clock)
        future = it.reset.call_async(Trigger.Request())
        it.wait(future.done)
        assert future.result().success
        it.clear()
        it.wait(lambda: len(it.received['sim_robot/state']) > 2)
        assert abs(it.joints()['waist']) < 0.02
        assert not np.allclose(it.received['sim_robot/state'][-1].data[16:18], cube, atol=1e-3)
        assert ns_from_time(it.received['/clock'][0].clock) > before


def test_same_seed_same_objects(ros_domain, robot, tmp_path):
    cubes = []
    for seed in (4, 4, 5):
        parameters = {'real_time_factor': 0.0, 'seed': seed}
        with running(ros_domain, robot, tmp_path, **parameters) as (_, it, _):
            it.wait(lambda it=it: it.received['sim_robot/state'])
            cubes.append(it.received['sim_robot/state'][0].data[16:18])
    np.testing.assert_allclose(cubes[0], cubes[1], atol=1e-4)
    assert not np.allclose(cubes[0], cubes[2], atol=1e-3)


def test_ends_by_itself_after_the_duration(ros_domain, robot, tmp_path):
    parameters = {'real_time_factor': 0.0, 'camera_rate': 0.0, 'duration': 0.5}
    with running(ros_domain, robot, tmp_path, **parameters) as (process, _, log):
        assert process.wait(BOUND_S) == 0
    assert '0.50 s are simulated' in log.read_text()


@pytest.mark.parametrize(
    ('parameter', 'value', 'sentence'),
    [
        ('task', 'juggle', "task 'juggle' is not known; expected one of transfer_cube"),
        ('robot', 'alhoa', "robot 'alhoa' is not known"),
    ],
)
def test_wrong_parameter_ends_the_process_with_one_sentence(
    ros_domain, robot, tmp_path, parameter, value, sentence
):
    with running(ros_domain, robot, tmp_path, **{parameter: value}) as (process, _, log):
        assert process.wait(BOUND_S) == 2
    text = log.read_text()
    assert sentence in text
    assert 'Traceback' not in text


def test_lock_step_waits_for_every_talking_peer_only():
    step = LockStep(['filter', 'policy'])
    step.wait(60.0)  # nobody talks yet: returns at once
    step.heard('filter')
    step.heard('stranger')
    step.wait(60.0)
    threading.Timer(0.05, step.heard, ['filter']).start()
    step.wait(60.0)  # ended by the filter alone: the policy has never spoken
    step.wait(0.05)  # nothing: given up once
    step.wait(60.0)  # and no longer waited for
    assert step.timeouts == {'filter': 1, 'policy': 0}
    step.heard('filter')
    step.wait(60.0)
    step.wait(0.01)
    assert step.timeouts == {'filter': 2, 'policy': 0}
