# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Troubles of the kinds in the field reports that nobody has reported yet.

Each feeds the parts of the filter what a robot, a driver or a policy might; the same over real
topics is in ``test/nodes/test_safety_filter_unreported.py``.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import yaml
from test_supervisor import PERIOD, POSE, Lab

from pi0_ros.resources import share_path
from pi0_ros.robot import RobotSpec
from pi0_ros.safety import Limits, Playout, SafetyFilter, State
from pi0_ros.safety.inputs import MeasuredPose, SetpointReader, StampAge

ALOHA = RobotSpec.load('aloha')
LEFT, RIGHT = '/follower_left/joint_states', '/follower_right/joint_states'
ARM = ['waist', 'shoulder', 'elbow', 'forearm_roll', 'wrist_angle', 'wrist_rotate', 'gripper']
ENDLESS = Limits(
    ('roll', 'elbow', 'gripper'), [-math.pi] * 3, [math.pi] * 3, [3.0] * 3, [40.0] * 3,
    [4000.0] * 3, continuous=[True, False, False],
)  # fmt: skip


def wrapped(angle):
    return np.remainder(angle + math.pi, 2.0 * math.pi) - math.pi


# --- joints that turn without end ------------------------------------------------------------


@pytest.mark.parametrize('sent', ['wrapped', 'counted on'])
def test_endless_joint_passes_pi_at_an_even_speed(sent):
    lab = Lab(ENDLESS, [3.0, 0.2, 0.1]).active()
    count = len(lab.commands)
    angle = 3.0
    for _ in range(40):
        angle += PERIOD
        lab.target[0] = wrapped(angle) if sent == 'wrapped' else angle
        assert lab.tick().state is State.ACTIVE
    way = np.array(lab.commands)[count:, 0]
    assert np.diff(way)[5:] == pytest.approx(PERIOD, abs=1e-6)
    assert lab.supervisor.counters['setpoints dropped as spikes'] == 0


def test_endless_joint_that_is_measured_on_the_other_side_of_pi_follows_and_is_steady():
    lab = Lab(ENDLESS, [math.pi, 0.2, 0.1])
    for k in range(20):  # encoder noise across the seam
        lab.now += PERIOD
        noisy = [math.pi - 1e-3 if k % 2 else -math.pi + 1e-3, 0.2, 0.1]
        assert lab.supervisor.on_measured(lab.now, noisy) == ''
        output = lab.supervisor.tick(lab.now)
    assert output.state is State.READY
    lab.supervisor.enable(lab.now)
    lab.sending, lab.following = True, False
    lab.pose = np.array([-math.pi + 1e-3, 0.2, 0.1])
    lab.target = np.array([math.pi - 1e-3, 0.2, 0.1])
    assert lab.tick(100).state is State.ACTIVE  # neither far at the start nor astray later
    assert np.abs(np.diff(lab.commands, axis=0)).max() < 0.01


def test_endless_joint_eases_to_a_fault_the_short_way():
    lab = Lab(ENDLESS, [3.0, 0.2, 0.1]).active()
    lab.following = False
    lab.pose = np.array([-3.2 + 2.0 * math.pi - 2.0 * math.pi, 0.2, 0.1])  # 0.083 away
    lab.supervisor.on_measured(lab.now, lab.pose)
    before = len(lab.commands)
    lab.supervisor.motor_error(lab.now, 'roll: overload')
    lab.tick(200)
    moved = np.array(lab.commands)[before - 1 :, 0]
    assert np.ptp(moved) < 0.1
    assert wrapped(moved[-1] - lab.pose[0]) == pytest.approx(0.0, abs=1e-5)


# --- measured poses --------------------------------------------------------------------------


@pytest.mark.parametrize('pose', [[22.9, -34.4, 0.1], [0.4, -34.4, 0.1], [0.4, 3.3, 0.1]])
def test_pose_far_outside_the_limits_is_no_pose_and_names_the_joint(pose):
    """Degrees, ticks, or the arm's calibration lost."""
    lab = Lab(pose=pose)
    output = lab.tick(20)
    assert output.state is State.WAITING
    assert 'far outside its limits -2 to 2' in output.reason
    assert not lab.supervisor.enable(lab.now)[0]


def test_pose_a_little_outside_of_the_limits_is_one():
    """Field report B69."""
    lab = Lab(pose=[2.05, -0.6, 0.1])
    lab.until(State.READY)


def test_driver_restarted_in_motion_with_another_pose_stops_and_names_the_joint():
    lab = Lab(tracking_time=0.2).moving()
    lab.following = False
    lab.pose = lab.pose + [0.0, 1.0, 0.0]
    lab.until(State.STOPPED)
    assert 'elbow does not follow' in lab.tick().reason
    lab.assert_no_step()


def test_driver_restarted_while_holding_does_not_pull_the_arm_back():
    lab = Lab().active()
    lab.supervisor.disable(lab.now)
    lab.until(State.HOLDING)
    lab.following = False
    lab.pose = lab.pose + [0.0, 0.5, 0.0]  # torque off, moved, torque on
    lab.until(State.STOPPED)
    lab.tick(300)
    assert lab.commands[-1] == pytest.approx(lab.pose, abs=1e-5)
    lab.assert_no_step()


def test_pose_that_drifts_before_enable_is_taken_where_it_is_then():
    lab = Lab()
    lab.until(State.READY)
    for _ in range(100):  # an arm that sinks, 0.1 rad/s
        lab.pose = lab.pose - [0.0, 0.002, 0.0]
        lab.tick()
    lab.supervisor.enable(lab.now)
    assert lab.tick().command == pytest.approx(lab.pose, abs=1e-12)


def test_joint_states_once_a_second_never_make_it_ready():
    lab = Lab()
    lab.measuring = False
    for k in range(300):
        if k % 50 == 0:
            lab.supervisor.on_measured(lab.now, POSE)
        assert lab.tick().state is State.WAITING


def test_two_readings_at_one_moment_are_no_speed():
    lab = Lab().active()
    for _ in range(10):
        lab.supervisor.on_measured(lab.now, lab.pose)
        lab.supervisor.on_measured(lab.now, lab.pose)
        assert lab.tick().state is State.ACTIVE


def test_states_of_the_wrong_arm_are_not_taken_for_this_one():
    pose = MeasuredPose(ALOHA, 0.2)
    pose.add(LEFT, ARM, [0.1] * 7, 1.0)
    merged, fault = pose.add(RIGHT, [f'left/{name}' for name in ARM], [0.9] * 7, 1.0)
    assert merged is None and fault == ''
    assert pose.missing(1.0) == [f'right/{name}' for name in ARM]


def test_a_gripper_that_is_plugged_in_later_completes_the_pose():
    pose = MeasuredPose(ALOHA, 0.2)
    for step in range(20):
        now = 1.0 + step * 0.01
        pose.add(LEFT, ARM, [0.1] * 7, now)
        assert pose.add(RIGHT, ARM[:6], [0.1] * 6, now)[0] is None
    assert pose.missing(now) == ['right/gripper']
    pose.add(LEFT, ARM, [0.1] * 7, now)
    assert pose.add(RIGHT, ['gripper'], [0.2], now)[0][13] == 0.2


@pytest.mark.parametrize('positions', [[1e300] * 7, [-0.0] * 7, [5e-324] * 7])
def test_numbers_that_are_finite_but_no_pose(positions):
    pose = MeasuredPose(ALOHA, 0.2)
    pose.add(LEFT, ARM, positions, 1.0)
    merged, _ = pose.add(RIGHT, ARM, positions, 1.0)
    if merged is not None:
        lab = Lab(Limits.from_robot(ALOHA), merged, tracking_error=0.3)
        assert lab.tick(20).state in (State.WAITING, State.READY)
        if positions[0] == 1e300:
            assert lab.supervisor.state is State.WAITING


# --- setpoints -------------------------------------------------------------------------------


def read(names, positions):
    return SetpointReader(ALOHA).read(names, positions)


@pytest.mark.parametrize(
    'names',
    [
        [n.replace('left', 'puppet_left').replace('right', 'puppet_right')
         for n in ALOHA.joint_names],
        [f'/{n}' for n in ALOHA.joint_names],
        [f'{n} ' for n in ALOHA.joint_names],
        [n.upper() for n in ALOHA.joint_names],
        [*ALOHA.joint_names[:7], *ALOHA.joint_names[:7]],
        [''] * 14,
    ],
)  # fmt: skip
def test_names_that_are_almost_right_are_refused(names):
    command, fault = read(names, [0.1] * 14)
    assert command is None and ('missing:' in fault or 'twice' in fault)


def test_arms_in_the_other_order_go_by_name():
    names = [*ALOHA.joint_names[7:], *ALOHA.joint_names[:7]]
    command, _ = read(names, [0.2] * 7 + [0.3] * 7)
    assert command[:6] == pytest.approx(0.3) and command[7:13] == pytest.approx(0.2)


@pytest.mark.parametrize('opening', [-0.5, 1.7, 1e6])
def test_gripper_command_outside_its_range_ends_at_the_limit_and_is_reported(opening):
    values = np.full(14, 0.1)
    values[6] = opening
    command, _ = read(ALOHA.joint_names, values)
    limits = Limits.from_robot(ALOHA)
    safety = SafetyFilter(limits, PERIOD)
    safety.reset(np.full(14, 0.1))
    for _ in range(150):
        sent, report = safety.step(command)
    end = limits.lower[6] if opening < 0.0 else limits.upper[6]
    assert sent[6] == pytest.approx(end, abs=1e-6)
    assert [(x.joint, x.bound) for x in report.limited] == [('left/gripper', 'position')]


@pytest.mark.parametrize('hours', [-5.0, -0.01, 0.01, 5.0])
def test_setpoint_due_hours_off_is_refused_or_played_as_if_on_time(hours):
    """The past is refused for a second; ahead is a clock that differs. Never a step."""
    lab, stamps = Lab().moving(), StampAge()
    for k in range(100):
        lab.target = np.minimum(lab.target + [PERIOD / 4, 0.0, 0.0], 1.9)
        off = 3600.0 * hours if k % 10 == 3 else 0.0
        due = lab.now + 0.04 + off
        fault = stamps.fault(due, lab.now, lab.now)
        assert bool(fault) == (off < -1.0)
        lab.sending = False
        if fault:
            lab.supervisor.reject_setpoint(lab.now, fault)
        else:
            lab.supervisor.on_setpoint(lab.now, due, lab.target)
        lab.tick()
    lab.assert_no_step()
    assert np.diff(np.array(lab.commands)[:, 0]).min() > -1e-9


@pytest.mark.parametrize('due', [-5.0, 1e-9, 1.0, float(2**31)])
def test_stamps_that_no_clock_gives_move_nothing_by_a_step(due):
    lab = Lab().active()
    lab.sending = False
    for _ in range(30):
        lab.supervisor.on_setpoint(lab.now, due, POSE + [0.3, 0.0, 0.0])
        lab.tick()
    lab.assert_no_step()
    assert lab.supervisor.state in (State.HOLDING, State.RAMPING_DOWN, State.RAMPING_IN)


@pytest.mark.parametrize('rate', [20.0, 200.0, 1000.0])
def test_senders_of_other_rates_are_followed_evenly(rate):
    playout = Playout(0.04, 0.1)
    sent, out = 0, []
    for tick in range(200):
        now = tick * PERIOD
        while sent / rate <= now:
            playout.add(sent / rate, 5.0 + sent / rate + 0.04, np.array([sent / rate]))
            sent += 1
        sample = playout.sample(now)
        if sample is not None and sample.ahead:
            out.append(sample.position[0])
    assert len(out) > 150 - (60 if rate < 50 else 0)
    if rate > 50:
        assert np.diff(out) == pytest.approx(PERIOD, abs=1e-3)
    assert np.diff(out).min() > -1e-9


def test_sender_whose_clock_runs_at_double_speed_neither_grows_a_queue_nor_steps():
    lab = Lab().active()
    lab.sending = False
    for k in range(200):
        lab.target = POSE + [0.3 * math.sin(0.02 * k), 0.0, 0.0]
        lab.supervisor.on_setpoint(lab.now, 5.0 + 2.0 * k * PERIOD, lab.target)
        lab.tick()
    lab.assert_no_step()
    assert len(lab.supervisor._playout._dues) < 60


def test_a_burst_after_a_stall_is_not_replayed_in_fast_motion():
    lab = Lab().moving()
    missed = [lab.target + [k * PERIOD, 0.0, 0.0] for k in range(1, 5)]
    lab.sending = False
    dues = [lab.now + 0.04 + k * PERIOD for k in range(1, 5)]
    lab.tick(4)
    for due, target in zip(dues, missed):
        lab.supervisor.on_setpoint(lab.now, due, target)
    lab.target, lab.sending = missed[-1], True
    for _ in range(20):
        lab.target = lab.target + [PERIOD, 0.0, 0.0]
        lab.tick()
    speeds = np.diff(np.array(lab.commands)[:, 0]) / PERIOD
    assert speeds.max() <= 3.0 + 1e-9 and speeds.min() > -1e-6
    assert speeds[-5:] == pytest.approx(1.0, abs=1e-3)
    lab.assert_no_step()


@pytest.mark.parametrize('values', [
    [True, False, True], ['0.4', '-0.6', '0.1'], [0.4 + 1j, 0.0, 0.0], [[0.4], [0.1], [0.2]],
])  # fmt: skip
def test_positions_of_other_types_never_raise_in_a_tick(values):
    lab = Lab().active()
    lab.sending = False
    try:
        lab.supervisor.on_setpoint(lab.now, lab.now + 0.04, values)
    except (TypeError, ValueError):
        pass  # the caller's fault; the state is as before
    lab.tick(20)
    lab.assert_no_step()
    assert np.isfinite(lab.commands).all()


# --- stops and requests ----------------------------------------------------------------------


@pytest.mark.parametrize('state', list(State))
def test_stop_latches_from_every_state_and_a_second_one_changes_nothing(state):
    lab = Lab()
    if state is State.READY:
        lab.until(State.READY)
    elif state is State.RAMPING_IN:
        lab.until(State.READY)
        lab.supervisor.enable(lab.now)
        lab.sending, lab.target = True, POSE + [1.0, 0.0, 0.0]
        lab.tick(10)
    elif state is State.ACTIVE:
        lab.moving()
    elif state in (State.RAMPING_DOWN, State.HOLDING):
        lab.moving()
        lab.supervisor.disable(lab.now)
        if state is State.HOLDING:
            lab.until(State.HOLDING)
    elif state is State.STOPPED:
        lab.moving().supervisor.stop(lab.now, 'pressed')
        lab.tick()
    assert lab.supervisor.state is state

    assert lab.supervisor.stop(lab.now, 'pressed')[0]
    accepted, text = lab.supervisor.stop(lab.now, 'pressed again')
    assert accepted and 'already' in text

    output = lab.tick(60)
    assert output.state is State.STOPPED and 'pressed' in output.reason
    assert lab.supervisor.counters['stops'] == 1
    assert lab.supervisor.reset(lab.now)[0]  # one reset is enough
    lab.until(State.READY)
    lab.assert_no_step() if lab.commands else None


def test_enable_twice_opens_one_gate():
    lab = Lab().moving()
    before = len(lab.commands)
    assert lab.supervisor.enable(lab.now)[0]
    lab.target = lab.target + [PERIOD, 0.0, 0.0]
    assert lab.tick().state is State.ACTIVE
    assert np.diff(np.array(lab.commands)[before - 2 :, 0]) == pytest.approx(PERIOD, abs=1e-6)


def test_enable_and_disable_before_anything_is_known():
    lab = Lab()
    lab.measuring = False
    assert not lab.supervisor.enable(lab.now)[0]
    assert lab.supervisor.disable(lab.now)[0]
    assert not lab.supervisor.reset(lab.now)[0]
    assert lab.tick(10).state is State.WAITING and not lab.commands


def test_reset_without_enable_moves_nothing_whatever_is_sent():
    lab = Lab().moving()
    lab.supervisor.stop(lab.now)
    lab.tick(50)
    assert lab.supervisor.reset(lab.now)[0]
    sent = len(lab.commands)
    lab.target = lab.target + [0.3, 0.0, 0.0]
    lab.tick(200)
    assert len(lab.commands) == sent


def test_motor_error_again_and_again_is_one_stop_and_reset_does_not_hide_the_next():
    lab = Lab().active()
    for _ in range(5):
        lab.supervisor.motor_error(lab.now, 'elbow: hot')
        lab.tick()
    assert lab.supervisor.counters['stops'] == 1
    lab.tick(30)
    assert lab.supervisor.reset(lab.now)[0]
    lab.supervisor.motor_error(lab.now, 'elbow: hot')
    assert lab.tick().state is State.STOPPED


def test_arm_moved_between_enable_and_the_first_setpoint_is_not_pulled_back_for_long():
    lab = Lab(tracking_time=0.2)
    lab.until(State.READY)
    lab.supervisor.enable(lab.now)
    lab.following = False
    lab.pose = lab.pose + [0.0, 0.6, 0.0]
    lab.until(State.STOPPED)
    assert 'elbow does not follow' in lab.tick().reason


def test_time_that_stands_still_moves_no_more_than_a_period_a_tick():
    lab = Lab().moving()
    for _ in range(30):
        output = lab.supervisor.tick(lab.now)
        lab.commands.append(output.command)
    lab.assert_no_step()


# --- robots ----------------------------------------------------------------------------------


@pytest.mark.parametrize('bad', [
    {'lower': 1.0, 'upper': -1.0}, {'velocity': 0.0}, {'jerk': -5.0}, {'acceleration': math.nan},
    {'upper': math.inf}, {'velocity': None}, {'velocity': '3 rad/s'},
])  # fmt: skip
def test_robot_file_with_a_limit_that_is_none_is_refused_by_name(bad):
    data = yaml.safe_load(share_path('config/robots/wxai.yaml').read_text())
    data['arms'][0]['joints'][2].update(bad)
    with pytest.raises(ValueError, match=f'joint_2|{next(iter(bad))}'):
        Limits.from_robot(RobotSpec.from_dict(data))


def test_robot_file_without_a_limit_is_refused_by_name():
    data = yaml.safe_load(share_path('config/robots/wxai.yaml').read_text())
    del data['arms'][0]['joints'][2]['jerk']
    with pytest.raises(ValueError, match='jerk'):
        RobotSpec.from_dict(data)
