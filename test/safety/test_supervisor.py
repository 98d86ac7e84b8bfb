# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""States, start gate and watchdogs, on a clock that the test owns."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pi0_ros.errors import Pi0RosError
from pi0_ros.safety import Limits, SafetySupervisor, State

PERIOD = 0.02
LIMITS = Limits(
    ('waist', 'elbow', 'gripper'), [-2.0] * 3, [2.0] * 3, [3.0] * 3, [40.0] * 3, [4000.0] * 3
)
POSE = np.array([0.4, -0.6, 0.1])


class Lab:
    """An arm that follows perfectly, a sender, and a supervisor between them."""

    def __init__(self, limits=LIMITS, pose=POSE, **parameters):
        parameters = {'tracking_error': [0.3, 0.3, math.inf], **parameters}
        self.supervisor = SafetySupervisor(limits, PERIOD, **parameters)
        self.now, self.pose = 100.0, np.array(pose)
        self.target = np.array(pose)
        self.sending, self.measuring, self.following = False, True, True
        self.commands: list[np.ndarray] = []
        self.events: list[str] = []

    def tick(self, ticks=1):
        """Let time pass; return the last output."""
        for _ in range(ticks):
            self.now += PERIOD
            if self.measuring:
                self.supervisor.on_measured(self.now, self.pose)
            if self.sending:
                self.supervisor.on_setpoint(self.now, self.now + 0.04, self.target)
            output = self.supervisor.tick(self.now)
            self.events += output.events
            if output.command is not None:
                self.commands.append(output.command)
                if self.following:
                    self.pose = output.command.copy()
        return output

    def until(self, state, ticks=500):
        for _ in range(ticks):
            if self.tick().state is state:
                return
        raise AssertionError(f'never {state}; {self.events}')

    def active(self):
        """Bring it to following the target, at rest."""
        self.until(State.READY)
        assert self.supervisor.enable(self.now)[0]
        self.sending = True
        self.until(State.ACTIVE)
        self.tick(10)
        return self

    def moving(self):
        """Bring it to following a target that moves at 1 rad/s."""
        self.active()
        for _ in range(20):
            self.target = self.target + [PERIOD, 0.0, 0.0]
            self.tick()
        return self

    def assert_no_step(self):
        commands = np.array(self.commands)
        assert np.all(np.abs(np.diff(commands, axis=0)) <= 3.0 * PERIOD + 1e-9)
        assert np.all(np.abs(np.diff(commands, 2, axis=0)) <= 40.0 * PERIOD**2 + 1e-9)


# --- waiting, ready, enable ------------------------------------------------------------------


def test_waits_without_a_command_until_the_pose_is_steady():
    lab = Lab()
    assert lab.tick().state is State.WAITING
    lab.until(State.READY)
    assert not lab.commands


def test_pose_of_zeros_is_no_pose_and_the_leap_to_the_true_one_starts_over():
    lab = Lab()
    lab.pose = np.zeros(3)
    assert lab.tick(10).state is State.WAITING
    lab.pose = np.full(3, 0.8)
    assert lab.tick().state is State.WAITING
    lab.until(State.READY)
    assert not lab.commands


def test_unsteady_pose_keeps_it_waiting():
    lab = Lab()
    for k in range(50):
        lab.pose = POSE + (0.2 if k % 2 else 0.0)
        assert lab.tick().state is State.WAITING


def test_copies_of_one_reading_at_one_moment_are_one_reading():
    lab = Lab(state_timeout=1.0)
    lab.measuring = False
    for _ in range(20):
        lab.supervisor.on_measured(lab.now, POSE)
    assert lab.tick().state is State.WAITING


@pytest.mark.parametrize('bad', [[math.nan, 0.0, 0.0], [0.1, 0.2], [math.inf, 0.0, 0.0]])
def test_unusable_pose_is_refused_and_counted(bad):
    lab = Lab()
    lab.until(State.READY)
    assert lab.supervisor.on_measured(lab.now, bad)
    assert lab.supervisor.counters['poses rejected'] == 1


def test_enable_is_refused_before_a_steady_pose_says_why_and_is_not_remembered():
    lab = Lab()
    accepted, message = lab.supervisor.enable(lab.now)
    assert not accepted and 'pose' in message
    lab.sending = True
    lab.tick(100)
    assert lab.supervisor.state is State.READY and not lab.commands


def test_setpoints_without_enable_move_nothing():
    lab = Lab()
    lab.sending = True
    lab.tick(100)
    assert lab.supervisor.state is State.READY and not lab.commands


def test_stale_pose_takes_ready_back():
    lab = Lab()
    lab.until(State.READY)
    lab.measuring = False
    lab.until(State.WAITING)
    assert not lab.supervisor.enable(lab.now)[0]


# --- the start gate --------------------------------------------------------------------------


def test_far_first_target_is_approached_at_the_set_speed_from_the_measured_pose():
    lab = Lab(start_speed=0.2)
    lab.until(State.READY)
    lab.supervisor.enable(lab.now)
    lab.sending, lab.target = True, POSE + [0.5, 0.0, 0.0]
    lab.until(State.ACTIVE)
    commands = np.array(lab.commands)
    assert np.abs(commands[0] - POSE).max() <= 0.2 * PERIOD + 1e-9
    assert np.abs(np.diff(commands[:-1], axis=0)).max() <= 0.2 * PERIOD + 1e-9
    assert any('waist is 0.500' in event for event in lab.events)


def ramping_in_to(target) -> Lab:
    """Open the gate for a first target, float [3]."""
    lab = Lab()
    lab.until(State.READY)
    lab.supervisor.enable(lab.now)
    lab.sending, lab.target = True, np.array(target)
    for _ in range(20):
        if any('approaching' in event for event in lab.tick().events):
            return lab
    raise AssertionError('no approach began')


@pytest.mark.parametrize('jitter', [0.025, 0.045])
def test_approach_of_jittering_targets_ends(jitter):
    goal = POSE + [0.2, -0.3, 0.0]
    lab = ramping_in_to(goal)
    for k in range(250):  # one is near when the other is far: never both at once
        side = jitter if k % 2 else -jitter
        lab.target = goal + [side, side, 0.0]
        if lab.tick().state is State.ACTIVE:
            break
    assert lab.supervisor.state is State.ACTIVE
    lab.assert_no_step()


def test_joint_that_met_its_target_is_released_while_another_still_approaches():
    lab = ramping_in_to(POSE + [0.0, -0.4, 0.0])
    lab.tick(10)
    for _ in range(30):
        lab.target = lab.target + [0.5 * PERIOD, 0.0, 0.0]
        assert lab.tick().state is State.RAMPING_IN
    waist, elbow, _ = np.diff(lab.commands[-20:], axis=0).T / PERIOD
    np.testing.assert_allclose(waist[5:], 0.5, atol=0.01)
    np.testing.assert_allclose(elbow, -0.1, atol=1e-6)


def test_joint_whose_target_passed_its_command_by_is_released():
    lab = ramping_in_to(POSE + [0.05, -0.4, 0.0])
    lab.target = POSE + [-0.05, -0.4, 0.0]
    lab.tick(10)
    assert lab.supervisor.state is State.RAMPING_IN
    np.testing.assert_allclose(lab.commands[-1][0], lab.target[0], atol=1e-6)


def test_leap_across_the_command_does_not_release_a_joint():
    lab = ramping_in_to(POSE + [0.5, 0.0, 0.0])
    lab.tick(10)
    lab.target = POSE - [0.5, 0.0, 0.0]
    for _ in range(50):
        assert lab.tick().state is State.RAMPING_IN
    assert np.abs(np.diff(lab.commands, axis=0)).max() <= 0.1 * PERIOD + 1e-9


def test_far_first_target_is_refused_where_so_configured():
    lab = Lab(start='refuse')
    lab.until(State.READY)
    lab.supervisor.enable(lab.now)
    lab.sending, lab.target = True, POSE + [0.5, 0.0, 0.0]
    lab.until(State.HOLDING)
    output = lab.tick(50)
    assert output.state is State.HOLDING and 'waist' in output.reason
    assert np.abs(np.array(lab.commands) - POSE).max() < 1e-9


@pytest.mark.parametrize('way', ['pause', 'disable', 'reset'])
def test_start_gate_is_closed_again_after(way):
    lab = Lab().active()
    # Given an arm that came to rest in one of the three ways
    if way == 'pause':
        lab.sending = False
        lab.until(State.HOLDING)
    elif way == 'disable':
        lab.supervisor.disable(lab.now)
        lab.until(State.HOLDING)
        lab.supervisor.enable(lab.now)
    else:
        lab.supervisor.stop(lab.now)
        lab.tick(50)
        assert lab.supervisor.reset(lab.now)[0]
        lab.until(State.READY)
        lab.supervisor.enable(lab.now)
    rest, lab.commands = lab.pose.copy(), [lab.pose.copy()]
    # When a far target comes
    lab.sending, lab.target = True, rest + [1.0, 0.0, 0.0]
    lab.tick(60)
    # Then it is approached slowly
    assert lab.supervisor.state is State.RAMPING_IN
    assert np.abs(np.diff(np.array(lab.commands), axis=0)).max() <= 0.1 * PERIOD + 1e-9


# --- watchdogs -------------------------------------------------------------------------------


def test_silence_ramps_down_and_holds_what_was_reached():
    lab = Lab().moving()
    lab.sending = False
    silent = lab.now
    lab.until(State.HOLDING)
    assert any('active -> ramping_down' in event for event in lab.events)
    assert lab.now - silent <= 0.1 + 3.0 / 40.0 + 2 * PERIOD
    output = lab.tick(20)
    assert 'no setpoint' in output.reason
    assert np.ptp(np.array(lab.commands[-15:]), axis=0).max() == 0.0
    lab.assert_no_step()


def test_the_same_setpoint_again_and_again_is_silence():
    lab = Lab().moving()
    lab.sending = False
    due = lab.now + 0.04
    for _ in range(20):
        lab.supervisor.on_setpoint(lab.now, due, lab.target)
        lab.tick()
    assert lab.supervisor.state in (State.RAMPING_DOWN, State.HOLDING)


def test_unusable_setpoints_are_no_sign_of_life():
    lab = Lab().moving()
    lab.sending = False
    for _ in range(20):
        assert lab.supervisor.on_setpoint(lab.now, lab.now + 0.04, [math.nan, 0.0, 0.0])
        lab.tick()
    assert lab.supervisor.state in (State.RAMPING_DOWN, State.HOLDING)
    assert lab.supervisor.counters['setpoints rejected'] == 20
    lab.assert_no_step()


def test_setpoints_that_come_back_go_through_the_start_gate():
    lab = Lab().moving()
    lab.sending = False
    lab.until(State.HOLDING)
    lab.sending = True
    states = [lab.tick().state for _ in range(5)]
    assert State.RAMPING_IN in states
    lab.until(State.ACTIVE)
    lab.assert_no_step()


def test_no_measured_pose_holds():
    lab = Lab().moving()
    lab.measuring = False
    lab.until(State.HOLDING)
    assert 'measured pose' in lab.tick(20).reason
    lab.assert_no_step()


def test_joint_that_does_not_follow_stops_and_latches_with_its_name():
    """Field reports B63, B75: a fault ends at the measured pose, without a step."""
    lab = Lab(tracking_time=0.2).active()
    lab.following = False
    frozen = lab.pose.copy()
    for _ in range(60):
        lab.target = np.minimum(lab.target + [PERIOD, 0.0, 0.0], 1.9)
        output = lab.tick()
    assert output.state is State.STOPPED and 'waist does not follow' in output.reason
    # and lets go of what blocks it: back to where the arm really is, inside every limit
    lab.tick(200)
    assert lab.commands[-1] == pytest.approx(frozen, abs=1e-5)
    lab.assert_no_step()


def test_short_tracking_error_is_forgiven():
    lab = Lab(tracking_time=0.5).active()
    lab.pose = lab.pose + [0.4, 0.0, 0.0]
    lab.following = False
    lab.tick(10)
    lab.following = True
    assert lab.tick(50).state is State.ACTIVE


def test_gripper_on_an_object_is_no_tracking_error():
    lab = Lab(tracking_time=0.1).active()
    lab.following = False
    lab.target = lab.target - [0.0, 0.0, 1.0]
    assert lab.tick(100).state is State.ACTIVE


def test_motor_error_stops_and_latches():
    lab = Lab().moving()
    lab.supervisor.motor_error(lab.now, 'elbow: overload')
    output = lab.tick(50)
    assert output.state is State.STOPPED and 'elbow: overload' in output.reason
    lab.assert_no_step()


# --- stop, reset, disable --------------------------------------------------------------------


def test_stop_brakes_from_the_last_command_and_latches():
    """Field report B63: an ordinary stop holds what was commanded, not what was measured."""
    lab = Lab().moving()
    last = lab.commands[-1]
    lab.supervisor.stop(lab.now, 'pressed')
    lab.tick()
    assert lab.commands[-1][0] >= last[0]  # no step back to the measured pose
    output = lab.tick(50)
    assert output.state is State.STOPPED and 'pressed' in output.reason
    assert lab.commands[-1][0] - last[0] <= 1.0 / (2 * 40.0) + 0.02
    lab.assert_no_step()
    # neither setpoints nor enable get it out
    rest = lab.commands[-1]
    assert not lab.supervisor.enable(lab.now)[0]
    lab.target = lab.target + 1.0
    assert lab.tick(50).state is State.STOPPED
    assert lab.commands[-1].tolist() == rest.tolist()


def test_reset_is_refused_while_it_brakes_and_needs_enable_afterwards():
    lab = Lab().moving()
    lab.supervisor.stop(lab.now)
    lab.tick()
    assert not lab.supervisor.reset(lab.now)[0]
    lab.tick(50)
    assert lab.supervisor.reset(lab.now)[0]
    sent = len(lab.commands)
    lab.tick(100)
    assert lab.supervisor.state is State.READY and len(lab.commands) == sent
    # the pose measured NOW is where it starts: the arm was moved by hand meanwhile
    lab.sending = False
    lab.pose = lab.pose - [0.5, 0.3, 0.0]
    lab.tick(20)
    lab.commands.clear()
    moved = lab.pose.copy()
    assert lab.supervisor.enable(lab.now)[0]
    lab.tick(5)
    assert np.abs(np.array(lab.commands) - moved).max() < 1e-9


def test_enable_right_after_reset_is_granted_to_an_arm_that_stood_still():
    lab = Lab().active()
    lab.supervisor.stop(lab.now)
    lab.tick(50)
    assert lab.supervisor.reset(lab.now)[0]
    assert lab.supervisor.enable(lab.now)[0]


def test_nothing_queued_before_a_stop_is_played_after_it():
    lab = Lab().active()
    for k in range(20):
        lab.supervisor.on_setpoint(lab.now, lab.now + 0.05 + k * PERIOD, POSE + 1.0)
    lab.supervisor.stop(lab.now)
    lab.sending = False
    lab.tick(20)
    lab.supervisor.reset(lab.now)
    lab.until(State.READY)
    before = lab.pose.copy()
    lab.supervisor.enable(lab.now)
    lab.tick(30)
    assert np.abs(lab.pose - before).max() < 1e-9


def test_stop_before_anything_moved_latches_without_a_command():
    lab = Lab()
    lab.supervisor.stop(lab.now)
    assert lab.tick(50).state is State.STOPPED and not lab.commands
    assert lab.supervisor.reset(lab.now)[0]
    lab.until(State.READY)


def test_reset_without_a_stop_is_refused():
    lab = Lab().active()
    assert not lab.supervisor.reset(lab.now)[0]
    assert lab.tick().state is State.ACTIVE


def test_disable_ramps_down_and_holds_until_enabled():
    lab = Lab().moving()
    lab.supervisor.disable(lab.now)
    lab.until(State.HOLDING)
    assert lab.tick(50).state is State.HOLDING
    assert lab.supervisor.enable(lab.now)[0]
    lab.until(State.ACTIVE)
    lab.assert_no_step()


# --- the end of a stream, and what does not belong to it -------------------------------------


@pytest.mark.parametrize('speed', [0.5, 1.0, 1.5, 2.5])
def test_queue_that_runs_dry_in_motion_ends_without_going_back(speed):
    lab = Lab(start_distance=2.0).active()
    reached = 0.0
    for _ in range(40):
        reached = min(reached + 0.1, speed)
        lab.target = lab.target + [0.0, 0.0, reached * PERIOD]
        lab.tick()
        if lab.target[2] > 1.6:
            break
    lab.sending = False
    lab.tick(20)
    way = np.array(lab.commands)[:, 2]
    assert np.diff(way).min() > -1e-9
    # a joint that can be stopped at the last setpoint is; another one needs its braking distance
    past = way[-1] - lab.target[2]
    assert -1e-6 <= past <= speed**2 / (2 * 40.0) + speed * PERIOD
    if speed <= 0.8:
        assert past < 1e-6
    lab.assert_no_step()


def test_stream_that_pauses_for_less_than_the_timeout_goes_on_without_a_step():
    lab = Lab().moving()
    lab.sending = False
    lab.tick(4)
    lab.sending = True
    lab.target = lab.target + [4 * PERIOD, 0.0, 0.0]
    for _ in range(25):
        lab.target = lab.target + [PERIOD, 0.0, 0.0]
        assert lab.tick().state is State.ACTIVE
    assert np.diff(np.array(lab.commands)[-10:, 0]) == pytest.approx(PERIOD, abs=1e-6)
    lab.assert_no_step()


@pytest.mark.parametrize('size', [2.0, -2.0, 0.3])
def test_one_sample_spike_of_a_stream_moves_nothing(size):
    """Field report B66."""
    lab = Lab().moving()
    smooth = lab.target
    for k in range(30):
        smooth = smooth + [PERIOD, 0.0, 0.0]
        lab.target = smooth + ([0.0, size, size] if k == 10 else 0.0)
        lab.tick()
    way = np.array(lab.commands)[-30:]
    assert np.diff(way[:, 0]) == pytest.approx(PERIOD, abs=1e-6)
    assert np.abs(way[:, 1:] - POSE[1:]).max() < 1e-6
    assert lab.supervisor.counters['setpoints dropped as spikes'] == 1


def test_lasting_step_of_a_stream_is_no_spike():
    """Field report B66: it is slewed at the limits."""
    lab = Lab().active()
    lab.target = POSE + [0.5, 0.0, 0.0]
    lab.tick(40)
    assert lab.commands[-1] == pytest.approx(lab.target, abs=1e-6)
    assert lab.supervisor.counters['setpoints dropped as spikes'] == 0
    lab.assert_no_step()


# --- clearance -------------------------------------------------------------------------------


def test_stops_before_the_clearance_is_gone_and_may_move_away():
    wall = 0.9
    lab = Lab(distance=lambda q: (wall - q[0], 'waist and wall'), clearance=0.1).active()
    lab.target = lab.target + [1.0, 0.0, 0.0]
    output = lab.tick(100)
    assert 0.75 < max(c[0] for c in lab.commands) <= 0.8 + 1e-9
    assert 'waist and wall' in output.reason
    lab.assert_no_step()
    lab.target = POSE.copy()
    lab.tick(100)
    assert lab.commands[-1] == pytest.approx(POSE, abs=1e-3)
    lab.assert_no_step()


def test_approach_is_slowed_before_it_is_held():
    wall, slow, stop = 1.4, 0.4, 0.1
    lab = Lab(
        distance=lambda q: (wall - q[0], 'waist and wall'), clearance=stop, slow_clearance=slow
    ).active()
    for _ in range(400):
        lab.target = np.minimum(lab.target + [PERIOD, 0.0, 0.0], [1.35, 1.0, 1.0])
        output = lab.tick()
    way = np.array(lab.commands)[:, 0]
    left, speed = wall - way[:-1], np.diff(way) / PERIOD
    assert speed[left > slow + 0.1].max() >= 1.0 - 1e-6  # far away nothing
    inside = (left < slow - 0.05) & (np.arange(len(left)) > 20)
    assert speed[inside].max() < 0.25
    share = (left[inside] - stop) / (slow - stop)
    assert (speed[inside] <= 0.25 * share + 1e-3).all()
    assert wall - way.max() >= stop - 1e-9
    assert np.diff(speed[inside]).max() < 1e-3  # ever slower, without chatter
    assert 'waist and wall near' in output.reason
    lab.assert_no_step()
    # and away from it at any speed
    for _ in range(40):
        lab.target = np.maximum(lab.target - [PERIOD, 0.0, 0.0], [0.4, -1.0, -1.0])
        output = lab.tick()
    assert np.diff(np.array(lab.commands)[-5:, 0]).min() < -0.9 * PERIOD
    assert output.reason == ''
    lab.assert_no_step()


def test_motion_along_an_obstacle_is_not_slowed():
    lab = Lab(
        distance=lambda q: (1.0 - q[1], 'elbow and wall'), clearance=0.1, slow_clearance=2.0
    ).active()
    way = []
    for _ in range(40):
        lab.target = lab.target + [PERIOD, 0.0, 0.0]
        way.append(lab.tick().command[0])
    assert np.diff(way[10:]) == pytest.approx(PERIOD, abs=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.floats(-2.5, 2.5), min_size=3, max_size=3), min_size=1, max_size=8))
def test_clearance_is_kept_whatever_is_asked_for(targets):
    def clearance(q):
        return min(1.2 - q[0] - 0.3 * q[1], 1.5 + q[1])

    lab = Lab(distance=clearance, clearance=0.1, slow_clearance=0.3).active()
    for target in targets:
        lab.target = np.array(target)
        lab.tick(25)
    assert min(clearance(c) for c in lab.commands) >= 0.1 - 1e-9
    lab.assert_no_step()


# --- parameters ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    'name', ['command_timeout', 'state_timeout', 'tracking_time', 'start_speed', 'start_distance']
)
@pytest.mark.parametrize('value', [0, -1, math.nan, math.inf])
def test_timeouts_and_speeds_that_switch_a_guard_off_are_refused(name, value):
    with pytest.raises(Pi0RosError, match=f'{name} is {value}'):
        SafetySupervisor(LIMITS, PERIOD, **{name: value})


@pytest.mark.parametrize(
    'parameters, said',
    [
        ({'tracking_error': 0.0}, 'tracking_error'),
        ({'tracking_error': [0.1, 0.1]}, 'tracking_error'),
        ({'tracking_error': math.nan}, 'tracking_error'),
        ({'start': 'jump'}, "start is 'jump'"),
        ({'setpoint_lead': -0.1}, 'setpoint_lead'),
        ({'clearance': math.nan}, 'clearance'),
        ({'command_timeout': 0, 'state_timeout': 0}, 'command_timeout.*state_timeout'),
    ],
)
def test_senseless_parameters_are_refused_all_at_once(parameters, said):
    with pytest.raises(Pi0RosError, match=said):
        SafetySupervisor(LIMITS, PERIOD, **parameters)


# --- anything at all -------------------------------------------------------------------------

acts = st.sampled_from(
    ['tick', 'tick', 'tick', 'send', 'mute', 'freeze', 'follow', 'blind', 'see', 'enable',
     'disable', 'stop', 'reset', 'nan', 'far', 'home', 'motor']
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(acts, st.integers(1, 20)), max_size=40))
def test_whatever_happens_no_step_is_sent_and_a_stop_stays(script):
    lab = Lab(tracking_time=0.2)
    lab.until(State.READY)
    stopped = False
    for act, ticks in script:
        supervisor = lab.supervisor
        if act == 'enable':
            supervisor.enable(lab.now)
        elif act == 'disable':
            supervisor.disable(lab.now)
        elif act == 'stop':
            supervisor.stop(lab.now)
        elif act == 'motor':
            supervisor.motor_error(lab.now, 'x')
        elif act == 'reset':
            stopped = stopped and not supervisor.reset(lab.now)[0]
        elif act == 'nan':
            supervisor.on_setpoint(lab.now, lab.now, [math.nan] * 3)
        elif act == 'far':
            lab.target = np.array([1.9, -1.9, 5.0])
        elif act == 'home':
            lab.target = POSE.copy()
        elif act in ('send', 'mute'):
            lab.sending = act == 'send'
        elif act in ('follow', 'freeze'):
            lab.following = act == 'follow'
        elif act in ('see', 'blind'):
            lab.measuring = act == 'see'
        for _ in range(ticks):
            before, pose = (lab.commands[-1] if lab.commands else None), lab.pose.copy()
            sent = len(lab.commands)
            output = lab.tick()
            if stopped:
                assert output.state is State.STOPPED
            stopped = output.state is State.STOPPED
            if len(lab.commands) > sent:
                assert np.isfinite(output.command).all()
                assert np.all((output.command >= -2.0) & (output.command <= 2.0))
                from_last = math.inf if before is None else np.abs(output.command - before).max()
                from_pose = np.abs(output.command - pose).max()
                assert min(from_last, from_pose) <= 3.0 * PERIOD + 1e-9
