# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""The filter: any input, every limit kept, always able to stop, no lag where none is needed."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pi0_ros.errors import Pi0RosError
from pi0_ros.robot import RobotSpec
from pi0_ros.safety import Limits, SafetyFilter

PERIOD = 0.02
TIGHT = {'velocity': 3.0, 'acceleration': 12.0, 'jerk': 200.0}
LOOSE = {'velocity': 3.14, 'acceleration': 40.0, 'jerk': 4000.0}
TOLERANCE = 1e-9


def limits(dof=1, lower=-2.0, upper=2.0, continuous=None, **rates) -> Limits:
    rates = {**TIGHT, **rates}
    return Limits(
        tuple(f'joint_{i}' for i in range(dof)), [lower] * dof, [upper] * dof,
        **{name: [value] * dof for name, value in rates.items()}, continuous=continuous,
    )  # fmt: skip


def started(pose, period=PERIOD, squeeze=None, **kwargs) -> SafetyFilter:
    pose = np.atleast_1d(np.asarray(pose, dtype=float))
    safety = SafetyFilter(limits(len(pose), **kwargs), period, squeeze)
    safety.reset(pose)
    return safety


def play(safety, targets) -> np.ndarray:
    return np.array([safety.step(np.atleast_1d(target))[0] for target in targets])


def assert_kept(commands, bounds, period=PERIOD, low=None, high=None):
    """Judge commands, which begin with the pose of the reset, by their differences alone."""
    rest = np.repeat(commands[:1], 2, axis=0)
    commands = np.concatenate([rest, commands])
    v = np.diff(commands, axis=0) / period
    a = np.diff(v, axis=0) / period
    j = np.diff(a, axis=0) / period
    assert np.all(commands >= (bounds.lower if low is None else low) - TOLERANCE)
    assert np.all(commands <= (bounds.upper if high is None else high) + TOLERANCE)
    for values, bound in ((v, bounds.velocity), (a, bounds.acceleration), (j, bounds.jerk)):
        assert np.all(np.abs(values) <= bound * (1.0 + TOLERANCE))


rate = st.floats(0.2, 10.0)
odd_limits = st.builds(
    lambda v, a, j, room: limits(
        2, lower=-room, upper=room, velocity=v, acceleration=4.0 * a, jerk=100.0 * j
    ),
    rate, rate, rate, st.floats(0.01, 3.0),
)  # fmt: skip
any_number = st.one_of(
    st.floats(-3.0, 3.0),
    st.sampled_from([math.nan, math.inf, -math.inf, 1e300, -1e300, 0.0, 5e-324]),
)
moves = st.lists(
    st.tuples(st.lists(any_number, min_size=2, max_size=2), st.integers(1, 12)),
    min_size=1, max_size=12,
)  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(odd_limits, moves, st.sampled_from([0.005, 0.02, 0.1]), st.integers(-12, 12))
def test_any_targets_keep_every_limit_and_the_way_to_a_stop(bounds, sequence, period, begin):
    # Given any limits, begun anywhere, even outside of them
    safety = SafetyFilter(bounds, period)
    start = 0.1 * begin * bounds.upper
    safety.reset(start)
    low, high = np.minimum(bounds.lower, start), np.maximum(bounds.upper, start)
    commands = [start]
    # When any targets come, each for some ticks
    for target, ticks in sequence:
        for _ in range(ticks):
            command, _ = safety.step(target)
            commands.append(command)
        # Then it can be braked to rest at any time
        state, way = safety.save(), commands[:]
        for _ in range(20_000):
            if safety.at_rest:
                break
            way.append(safety.brake()[0])
        assert safety.at_rest
        way += [safety.brake()[0], safety.brake()[0]]
        assert way[-1].tolist() == way[-2].tolist()
        safety.restore(state)
        # and everything that was sent, the stop too, is inside every limit
        assert_kept(np.array(way), bounds, period, low, high)


def test_motion_inside_the_limits_is_sent_unchanged():
    targets = 0.9 * (1.0 - np.cos(1.5 * PERIOD * np.arange(1000)))
    assert_kept(targets[:, None], limits())
    commands = play(started(0.0), targets)[:, 0]
    assert np.abs(commands - targets).max() < 1e-9


def test_policy_like_input_passes_the_robots_default_limits_without_lag_or_overshoot():
    bounds = Limits.from_robot(RobotSpec.load('aloha'))
    rng = np.random.default_rng(1)
    t = PERIOD * np.arange(1500)[:, None]
    wide = 0.4 * np.minimum(bounds.upper, -bounds.lower)
    smooth = wide * np.sin(np.linspace(0.5, 1.5, 14) * t)
    targets = smooth + 1e-3 * rng.standard_normal(smooth.shape)
    safety = SafetyFilter(bounds, PERIOD)
    safety.reset(targets[0])
    settled = slice(100, None)  # it starts from rest, the motion does not
    commands, targets = play(safety, targets)[settled], targets[settled]
    moved = np.abs(np.diff(smooth, axis=0)).max(0)
    assert np.all(np.abs(commands - targets).max(0) <= moved)
    assert np.all(commands.max(0) <= targets.max(0) + 1e-9)
    assert np.all(commands.min(0) >= targets.min(0) - 1e-9)


def test_noise_at_rest_passes_the_robots_default_limits():
    bounds = Limits.from_robot(RobotSpec.load('aloha'))
    safety = SafetyFilter(bounds, PERIOD)
    safety.reset(np.zeros(14))
    targets = 1e-3 * np.random.default_rng(2).standard_normal((2000, 14))
    assert np.abs(play(safety, targets) - targets).max() < 1e-9


@pytest.mark.parametrize('rates', [TIGHT, LOOSE])
def test_lasting_step_is_slewed_at_the_limit_without_overshoot(rates):
    commands = play(started(0.0, **rates), [0.5] * 200)[:, 0]
    assert commands.max() <= 0.5 + 1e-6
    assert commands[-1] == pytest.approx(0.5, abs=1e-9)
    assert np.all(np.diff(commands) >= -1e-9)
    # not much slower than speed and acceleration allow
    ideal = 0.5 / rates['velocity'] + rates['velocity'] / rates['acceleration']
    assert np.flatnonzero(np.abs(commands - 0.5) > 1e-3).max() * PERIOD < 2.0 * ideal + 0.1


def test_spike_leaves_no_more_than_one_limited_step():
    """Field report B66."""
    t = PERIOD * np.arange(200)
    clean = 0.3 * t
    spiked = clean.copy()
    spiked[100] += 2.0
    commands = play(started(0.0, **LOOSE), spiked)[:, 0]
    assert np.abs(commands - clean)[100:].max() <= LOOSE['acceleration'] * PERIOD**2 * 2.0
    assert np.abs(commands - clean)[110:].max() < 1e-6


def test_target_beyond_a_limit_gives_a_constant_command_at_the_limit():
    """Field reports B69, B70."""
    safety = started(0.0)
    commands = []
    for k in range(300):
        measured = [1.999 if k % 2 else 2.001]
        command, report = safety.step([2.5], measured)
        commands.append(command[0])
    assert np.ptp(commands[200:]) == 0.0
    assert commands[-1] == pytest.approx(2.0, abs=1e-6) and max(commands) <= 2.0
    limited = report.limited[0]
    assert (limited.joint, limited.bound, limited.requested) == ('joint_0', 'position', 2.5)
    assert limited.amount == pytest.approx(0.5, abs=1e-6)
    assert 'joint_0: position' in str(limited)


def test_begun_outside_moves_back_in_only():
    """Field report B69."""
    outwards = play(started(2.05), [2.5] * 50)[:, 0]
    assert outwards.max() <= 2.05
    inwards = play(started(2.05), [1.0] * 200)[:, 0]
    assert np.all(np.diff(np.concatenate([[2.05], inwards])) <= 1e-12)
    assert inwards[-1] == pytest.approx(1.0, abs=1e-9)
    # once inside it does not come out again
    safety = started(2.05)
    play(safety, [1.0] * 100)
    assert play(safety, [2.05] * 200).max() <= 2.0


def test_lagging_measurement_does_not_throttle():
    """Field report B67."""
    safety = started(0.0)
    targets = 0.9 * (1.0 - np.cos(1.5 * PERIOD * np.arange(1000)))
    commands = [safety.step([target], [target - 0.05])[0][0] for target in targets]
    assert np.abs(np.array(commands) - targets).max() < 1e-9


@pytest.mark.parametrize(
    'bad',
    [
        [math.nan, 0.0], [0.0, math.inf], [-math.inf, 0.0], [0.0], [0.0, 0.0, 0.0], [], None,
        'text', [[0.0, 0.0]], [None, 0.0], ['a', 'b'], 0.0,
    ],
)  # fmt: skip
def test_unusable_target_is_rejected_whole_and_the_last_good_one_holds(bad):
    safety = started([0.0, 0.0])
    for _ in range(200):
        before, _ = safety.step([0.4, -0.4])
    command, report = safety.step(bad)
    assert report and report.rejected
    assert command.tolist() == before.tolist() and np.isfinite(command).all()
    # and nothing of it is left
    command, report = safety.step([0.4, -0.4])
    assert not report and command.tolist() == before.tolist()


def test_rejection_names_the_joint():
    _, report = started([0.0, 0.0]).step([0.0, math.nan])
    assert 'joint_1' in report.rejected and not report.limited


@pytest.mark.parametrize('bad', [[math.nan, 0.0], [0.0], None])
def test_reset_refuses_a_pose_that_is_none(bad):
    safety = SafetyFilter(limits(2), PERIOD)
    with pytest.raises(Pi0RosError, match='measured pose'):
        safety.reset(bad)


def test_step_before_reset_is_refused():
    with pytest.raises(Pi0RosError, match='reset'):
        SafetyFilter(limits(2), PERIOD).step([0.0, 0.0])


@pytest.mark.parametrize('period', [0.0, -0.02, math.nan, math.inf])
def test_period_must_be_above_zero(period):
    with pytest.raises(Pi0RosError, match='period'):
        SafetyFilter(limits(2), period)


def test_continuous_joint_goes_the_short_way_and_a_bounded_one_never_through_its_stop():
    """Field report B20."""
    turning = started(-3.1414, lower=-math.pi, upper=math.pi, continuous=[True])
    command, report = turning.step([3.1420])
    assert command[0] == pytest.approx(-3.1414 + (3.1420 + 3.1414 - 2.0 * math.pi), abs=1e-9)
    assert not report
    bounded = started(-3.1414, lower=-3.15, upper=3.15)
    commands = play(bounded, [3.1420] * 300)[:, 0]
    assert np.all(np.diff(commands) >= -1e-9)
    assert np.diff(commands).max() <= TIGHT['velocity'] * PERIOD + 1e-12
    assert commands[-1] == pytest.approx(3.1420, abs=1e-6)


def test_joints_are_limited_one_by_one():
    """Field report B68: per joint, as docs/safety.md says; each is on its target the soonest."""
    step = play(started([0.0, 0.0], jerk=1e9, acceleration=1e6, velocity=2.5), [[0.10, 0.01]])
    assert step[0] == pytest.approx([0.05, 0.01], abs=1e-6)
    alone = play(started(0.0), [0.5] * 50)[:, 0]
    both = play(started([0.0, 0.0]), [[0.5, 1e-4]] * 50)
    assert both[:, 0].tolist() == alone.tolist()
    assert np.all(both[:, 1] == 1e-4)


def test_squeeze_limit_keeps_a_gripper_near_its_measured_opening():
    """Field report B76: sixty seconds closed on an object."""
    safety = started([0.4, 0.0], squeeze={'joint_0': 0.1})
    for _ in range(3000):
        command, report = safety.step([-1.0, 0.0], [0.4, 0.0])
        assert command[0] >= 0.3 - 1e-9
    assert command[0] == pytest.approx(0.3, abs=1e-6)
    assert [(x.joint, x.bound) for x in report.limited] == [('joint_0', 'squeeze')]


@pytest.mark.parametrize('squeeze', [{'tail': 0.1}, {'joint_0': 0.0}, {'joint_0': math.nan}])
def test_squeeze_limit_of_no_joint_or_no_size_is_refused(squeeze):
    with pytest.raises(Pi0RosError, match='squeeze'):
        SafetyFilter(limits(1), PERIOD, squeeze)


def test_brake_holds_what_it_reached_and_says_beforehand_where():
    safety = started(0.0)
    play(safety, [1.5] * 15)
    expected = safety.stop_position
    before = safety.command
    while not safety.at_rest:
        command, _ = safety.brake()
        assert command[0] >= before[0] - 1e-9
        before = command
    assert command == pytest.approx(expected, abs=1e-9)
    assert safety.brake()[0].tolist() == command.tolist()


def test_reset_forgets_the_motion():
    safety = started(0.0)
    play(safety, [1.5] * 15)
    safety.reset([0.3])
    assert safety.at_rest
    assert safety.step([0.3])[0].tolist() == [0.3]


def test_target_velocity_removes_the_lag_of_catching_up():
    t = PERIOD * np.arange(400)
    targets = 0.3 + 1.0 * t
    safety = started(0.0, upper=20.0, jerk=2000.0)
    commands = np.array([safety.step([x], velocity=[1.0])[0][0] for x in targets])
    assert np.abs(commands - targets)[200:].max() < 1e-6
