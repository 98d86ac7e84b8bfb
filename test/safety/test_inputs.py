# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Inputs of the safety filter: merged by name, whole or refused, and by whom."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import yaml

from pi0_ros.resources import share_path
from pi0_ros.robot import RobotSpec
from pi0_ros.safety.inputs import (
    CACHED_ORDERS,
    RIVAL_WINDOW,
    Commanders,
    Heartbeat,
    MeasuredPose,
    SetpointReader,
    StampAge,
)

ALOHA = RobotSpec.load('aloha')
LEFT, RIGHT = (arm.joint_states for arm in ALOHA.arms)
ARM = ['waist', 'shoulder', 'elbow', 'forearm_roll', 'wrist_angle', 'wrist_rotate', 'gripper']
NINE = [*ARM, 'left_finger', 'right_finger']
VALUES = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.03, -0.03]


def aloha_data() -> dict:
    data = yaml.safe_load(share_path('config/robots/aloha.yaml').read_text())
    data.pop('poses')
    return data


@pytest.fixture()
def pose() -> MeasuredPose:
    return MeasuredPose(ALOHA, max_age=0.2)


def test_both_arms_make_a_pose_by_name(pose):
    """Field report B15: the configured gripper joint is used, the fingers are not."""
    assert pose.add(LEFT, NINE, VALUES, 1.0) == (None, '')
    merged, fault = pose.add(RIGHT, NINE, [-v for v in VALUES], 1.01)

    assert fault == ''
    assert merged == pytest.approx([*VALUES[:7], *(-v for v in VALUES[:7])])


def test_order_may_change_and_strangers_are_ignored(pose):
    """Field report B13."""
    rng = np.random.default_rng(0)
    for _ in range(40):
        names, values = [*NINE, 'tool'], [*VALUES, np.nan]
        order = rng.permutation(len(names))
        pose.add(LEFT, [names[i] for i in order], [values[i] for i in order], 1.0)
        merged, _ = pose.add(RIGHT, NINE, VALUES, 1.0)
        assert merged == pytest.approx(VALUES[:7] * 2)


def test_a_gripper_on_the_shared_topic_is_not_the_whole_arm(pose):
    """Field report B14: joints merge, and the pose is complete when every one is fresh."""
    pose.add(RIGHT, NINE, VALUES, 1.0)
    assert pose.add(LEFT, ARM[:6], VALUES[:6], 1.0)[0] is None
    assert pose.add(LEFT, ARM[:6], VALUES[:6], 1.05)[0] is None
    merged, _ = pose.add(LEFT, ['gripper'], [0.7], 1.1)

    assert merged == pytest.approx(VALUES[:7] * 2)


def test_a_silent_arm_makes_no_pose(pose):
    pose.add(RIGHT, NINE, VALUES, 1.0)
    pose.add(LEFT, NINE, VALUES, 1.0)
    for step in range(100):
        assert pose.add(LEFT, NINE, VALUES, 1.01 + step / 100)[0] is None
    assert pose.missing(2.0) == [f'right/{name}' for name in ARM]


def test_a_pose_is_not_made_of_old_halves(pose):
    pose.add(RIGHT, NINE, VALUES, 1.0)
    assert pose.add(LEFT, NINE, VALUES, 5.0)[0] is None
    assert pose.add(RIGHT, NINE, VALUES, 5.01)[0] is not None


@pytest.mark.parametrize(
    'names, positions, reason',
    [
        (NINE, VALUES[:8], '9 names and 8 positions'),
        ([], VALUES, '0 names and 9 positions'),
        ([], [], 'without joint names'),
        (NINE, [np.nan, *VALUES[1:]], 'left/waist is nan'),
        (NINE, [np.inf, *VALUES[1:]], 'left/waist is inf'),
        (NINE, [0.0] * 9, 'exactly 0.0'),
        (['waist', *NINE[:8]], VALUES, 'left/waist comes twice'),
    ],
)
def test_unusable_joint_states_are_refused_whole(pose, names, positions, reason):
    """Field reports B16, B18: no zip, no default pose."""
    merged, fault = pose.add(LEFT, names, positions, 1.0)

    assert merged is None and reason in fault
    assert len(pose.missing(1.0)) == 14


def test_a_velocity_only_message_is_legal_and_changes_nothing(pose):
    """Field report B18."""
    assert pose.add(LEFT, NINE, [], 1.0) == (None, '')
    assert len(pose.missing(1.0)) == 14


def test_arms_that_share_a_topic_are_told_apart_by_prefix():
    data = aloha_data()
    for arm in data['arms']:
        arm['joint_states'] = '/joint_states'
    pose = MeasuredPose(RobotSpec.from_dict(data), 0.2)
    names = [f'{side}/{name}' for side in ('left', 'right') for name in ARM]

    assert pose.add('/joint_states', ARM, VALUES[:7], 1.0) == (None, '')  # whose waist?
    merged, _ = pose.add('/joint_states', names, list(range(1, 15)), 1.0)
    assert merged == pytest.approx(range(1, 15))


def test_readers_remember_a_bounded_number_of_orders(pose):
    rng = np.random.default_rng(1)
    reader = SetpointReader(ALOHA)
    for _ in range(100):
        pose.add(LEFT, list(rng.permutation(NINE)), VALUES, 1.0)
        reader.read(list(rng.permutation(ALOHA.joint_names)), np.zeros(14))
    assert len(pose._orders) <= CACHED_ORDERS and len(reader._orders) <= CACHED_ORDERS


def test_a_setpoint_is_read_by_name_and_its_grippers_become_motor_angles():
    names = list(ALOHA.joint_names)
    values = np.arange(14) / 20.0
    values[[6, 13]] = 0.0, 1.0
    order = np.random.default_rng(2).permutation(14)

    command, fault = SetpointReader(ALOHA).read([names[i] for i in order], values[order])

    assert fault == ''
    assert command[[6, 13]] == pytest.approx([-0.6213, 1.4910])
    arm = [i for i in range(14) if i not in (6, 13)]
    assert command[arm] == pytest.approx(values[arm])


def test_degrees_are_converted_for_the_arm_and_not_for_the_gripper():
    """Field report B19."""
    robot = RobotSpec.from_dict({**aloha_data(), 'policy_units': 'deg'})
    values = np.full(14, 28.64788975654116)
    values[[6, 13]] = 0.5

    command, _ = SetpointReader(robot).read(robot.joint_names, values)

    assert command[:6] == pytest.approx(0.5)
    assert command[6] == pytest.approx((1.4910 - 0.6213) / 2)


@pytest.mark.parametrize(
    'change, reason',
    [
        (lambda n, p: ([], []), '0 names and 0 positions'),
        (lambda n, p: (n, p[:13]), '14 names and 13 positions'),
        (lambda n, p: (n, []), '14 names and 0 positions'),
        (lambda n, p: ([], p), '0 names and 14 positions'),
        (lambda n, p: (n[:13], p[:13]), 'missing: right/gripper'),
        (lambda n, p: ([*n, 'hat'], [*p, 0.0]), 'unknown: hat'),
        (lambda n, p: ([n[0], *n[:13]], p), 'given twice: left/waist'),
        (lambda n, p: ([x.split('/')[1] for x in n], p), 'missing: left/waist'),
        (lambda n, p: (n, [*p[:3], np.nan, *p[4:]]), 'left/forearm_roll is nan'),
        (lambda n, p: (n, [np.inf, *p[1:]]), 'left/waist is inf'),
        (lambda n, p: (n, [*p[:13], np.nan]), 'right/gripper is nan'),
    ],
)
def test_unusable_setpoints_are_refused_whole(change, reason):
    """Field reports B61, B65, B71: never in parts, never repaired."""
    names, positions = change(list(ALOHA.joint_names), [0.1] * 14)

    command, fault = SetpointReader(ALOHA).read(names, positions)

    assert command is None and reason in fault


ENDPOINTS = [('/policy_node', b'a'), ('/teleop', b'b')]


def test_two_talking_publishers_are_rivals_until_one_is_silent():
    """Field report B74: no alternation of targets, not even once."""
    commanders = Commanders()
    assert commanders.heard(b'a', None, 1.0)
    assert not commanders.heard(b'b', None, 1.01)
    assert commanders.rivals(ENDPOINTS, 1.01) == []
    assert not commanders.heard(b'a', None, 1.02)
    assert commanders.rivals(ENDPOINTS, 1.02) == ['/policy_node', '/teleop']
    assert not commanders.heard(b'b', None, 1.03)
    later = 1.04 + RIVAL_WINDOW
    assert commanders.heard(b'a', None, later)
    assert commanders.rivals(ENDPOINTS, later) == []


def test_a_successor_takes_over_after_a_silence():
    """A policy that is started again commands, although the dead one is in the graph for long."""
    commanders = Commanders()
    assert commanders.heard(b'b', None, 1.0)
    assert not commanders.heard(b'a', None, 1.1)
    assert not commanders.heard(b'a', None, 1.0 + RIVAL_WINDOW)
    assert commanders.heard(b'a', None, 1.1 + RIVAL_WINDOW)
    assert commanders.rivals(ENDPOINTS, 1.1 + RIVAL_WINDOW) == []


def test_what_is_left_of_a_fight_disturbs_no_successor():
    commanders = Commanders()
    for step in range(5):
        commanders.heard(b'b', None, 1.0 + step * 0.02)
        commanders.heard(b'c', None, 1.01 + step * 0.02)
    for step in range(10):  # begins when one of both is just forgotten
        now = 1.081 + RIVAL_WINDOW + step * 0.02
        assert commanders.heard(b'a', None, now)
        assert commanders.rivals(ENDPOINTS, now) == []


def test_without_senders_every_publisher_of_the_graph_counts():
    """An older rclpy does not say who sent a message."""
    commanders = Commanders()
    assert commanders.heard(None, None, 1.0)
    assert commanders.in_doubt(1.0)
    assert commanders.rivals(ENDPOINTS, 1.0) == ['/policy_node', '/teleop']
    assert commanders.rivals(ENDPOINTS[:1], 1.0) == []
    assert commanders.rivals(ENDPOINTS, 1.1 + RIVAL_WINDOW) == []


@pytest.mark.parametrize('start', [1, 480, 499, 500, 501, 502, 520, 10_000])
def test_without_senders_two_publishers_are_told_apart_by_their_counts(start):
    commanders, now = Commanders(), 1.0
    for sequence in range(400, 500):  # one, which loses a message now and then
        if sequence % 7:
            assert commanders.heard(None, sequence, now)
            now += 0.02
    for step in range(50):
        for first in (500, start):
            accepted = commanders.heard(None, first + step, now)
        if step > 1:
            assert not accepted
            assert commanders.rivals(ENDPOINTS, now) == ['/policy_node', '/teleop']
        now += 0.02
    now += RIVAL_WINDOW
    # one is killed and started again, while the dead one still is in the graph
    assert commanders.heard(None, 1, now)
    assert commanders.rivals(ENDPOINTS, now) == []


@pytest.mark.parametrize('last', [3, 5, 20, 400])
def test_a_successor_that_counts_past_its_predecessor_is_no_rival(last):
    commanders = Commanders()
    for sequence in range(1, last + 1):
        commanders.heard(None, sequence, 1.0 + sequence * 0.02)
    begin = 1.0 + last * 0.02 + 0.15
    for sequence in range(1, 100):
        now = begin + sequence * 0.02
        accepted = commanders.heard(None, sequence, now)
        assert commanders.rivals(ENDPOINTS, now) == []
    assert accepted


def test_a_command_of_ten_seconds_ago_is_refused():
    """Field report B64."""
    stamps = StampAge()
    assert stamps.fault(1000.0, 1000.0, 0.0) == ''
    for step in range(200):  # the same one over and over
        assert 'stamped 10' in stamps.fault(1000.0, 1010.0 + step * 0.001, step * 0.001)
    assert stamps.fault(1010.3, 1010.2, 0.3) == ''
    assert stamps.fault(0.0, 1010.2, 0.3) == ''  # never stamped


def test_the_clock_of_another_machine_is_believed_when_it_is_steady():
    stamps = StampAge()
    for step in range(200):
        now = step * 0.02
        fault = stamps.fault(500.0 + now, 4100.0 + now, now)
        assert bool(fault) == (now < 1.0 - 1e-9), now
    assert 'stamped' in stamps.fault(490.0 + now, 4100.0 + now, now)


def test_a_heartbeat_that_never_came_is_lost():
    assert Heartbeat(0.5).lost(0.0)


def test_a_periodic_heartbeat_is_lost_after_the_timeout_whatever_liveliness_says():
    heart = Heartbeat(0.5)
    heart.liveliness(1)
    for step in range(10):
        heart.beat(step * 0.1)
    assert not heart.lost(1.39)
    assert heart.lost(1.41)
    heart.beat(1.5)
    assert not heart.lost(1.6)


def test_a_button_that_speaks_once_lives_by_its_liveliness():
    heart = Heartbeat(0.5)
    heart.beat(0.0)
    heart.liveliness(1)
    assert not heart.lost(100.0)
    heart.liveliness(0)
    assert heart.lost(100.0)


def test_a_missed_deadline_is_a_lost_heartbeat_until_the_next_beat():
    heart = Heartbeat(0.5)
    heart.beat(0.0)
    heart.deadline_missed()
    assert heart.lost(0.01)
    heart.beat(0.02)
    assert not heart.lost(0.03)


def test_a_robot_read_by_its_fingers_needs_the_finger_joint():
    data = copy.deepcopy(aloha_data())
    for arm in data['arms']:
        arm['gripper'] = {**arm['gripper'], 'measured': {'joint': 'left_finger', 'unit': 'm'}}
    pose = MeasuredPose(RobotSpec.from_dict(data), 0.2)
    pose.add(LEFT, NINE, VALUES, 1.0)
    merged, _ = pose.add(RIGHT, NINE, VALUES, 1.0)
    assert merged[[6, 13]] == pytest.approx([0.03, 0.03])
