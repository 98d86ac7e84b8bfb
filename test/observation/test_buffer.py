# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Alignment by stamp, naming of faults; TIME, STALE, JOINT entries of the field reports."""

from __future__ import annotations

import dataclasses
import threading
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pi0_ros.errors import Pi0RosError
from pi0_ros.observation import ImageError, Observation, ObservationBuffer
from pi0_ros.robot import RobotSpec

ROBOT = RobotSpec.load('aloha')
CAMERAS = tuple(ROBOT.cameras)
HIGH = CAMERAS[0]
T0 = 1_700_000_000_000_000_000
POSE = 0.1 * np.arange(1, 15)
POSE[[6, 13]] = 0.4  # gripper motors, rad


def ns(seconds):
    return T0 + round(seconds * 1e9)


def picture(value=0):
    image = np.full((12, 16, 3), value % 251, np.uint8)
    image[0, 0] = [1, 2, 3]
    return image


def fill(buffer, seconds=0.0, *, joints=POSE, cameras=CAMERAS, value=0, received=True):
    """Add one picture a camera and one sample of the joints, all of one moment."""
    now = ns(seconds)
    arrival = now if received else None
    if joints is not None:
        buffer.add_joints(now, ROBOT.state_names, joints, received_ns=arrival)
    for camera in cameras:
        buffer.add_image(camera, now, picture(value), received_ns=arrival)


@pytest.fixture()
def buffer():
    return ObservationBuffer(ROBOT)


def test_complete_inputs_give_an_observation(buffer):
    fill(buffer)
    observation, problems = buffer.latest(ns(0.01))
    assert problems == {}
    assert isinstance(observation, Observation)
    assert set(observation.images) == set(CAMERAS)
    assert observation.stamp_ns == ns(0.0)
    np.testing.assert_allclose(observation.state, ROBOT.measured_to_policy(POSE))


def test_nothing_is_ever_filled_in(buffer):
    observation, problems = buffer.latest(ns(0.0))
    assert observation is None
    assert set(problems) == {*CAMERAS, 'joint_states'}
    assert all('never seen' in text for text in problems.values())


def test_parameters_are_checked():
    for name in ('max_age', 'max_skew'):
        for value in (0.0, -1.0, float('nan')):
            with pytest.raises(Pi0RosError, match=name):
                ObservationBuffer(ROBOT, **{name: value})
    with pytest.raises(Pi0RosError, match="no camera 'nose'"):
        ObservationBuffer(ROBOT).add_image('nose', ns(0), picture())


def test_joints_are_interpolated_to_the_newest_picture(buffer):
    fill(buffer, 0.0, joints=POSE)
    buffer.add_joints(ns(0.02), ROBOT.state_names, POSE + 0.02)
    for k, camera in enumerate(CAMERAS):
        buffer.add_image(camera, ns(0.01 + 0.002 * k), picture(1))
    observation, _ = buffer.latest(ns(0.03))
    np.testing.assert_allclose(observation.positions, POSE + 0.014, atol=1e-12)


@pytest.mark.parametrize('seed', range(8))
def test_the_stamps_of_an_observation_repeat_it_to_the_last_bit(seed):
    """Two arms and three cameras out of step; later messages are held back by the stamps."""
    rng = np.random.default_rng(seed)
    names = ROBOT.state_names
    events = [(ns(0.02 * k), 'left', rng.normal(0.3, 0.1, 7)) for k in range(20)]
    events += [(ns(0.013 * k + 0.004), 'right', rng.normal(0.3, 0.1, 7)) for k in range(30)]
    events += [(ns(0.033 * k + 0.01 * i), c, k) for k in range(12) for i, c in enumerate(CAMERAS)]
    events.sort(key=lambda event: event[0] + rng.integers(0, 15_000_000))

    def feed(buffer, event):
        stamp, name, what = event
        if name in CAMERAS:
            buffer.add_image(name, stamp, picture(what))
        else:
            buffer.add_joints(stamp, names[:7] if name == 'left' else names[7:], what)

    live, seen = ObservationBuffer(ROBOT), []
    for event in events:
        feed(live, event)
        now = event[0] + 20_000_000
        observation, _ = live.latest(now)
        if observation is not None:
            seen.append((now, observation))
    assert len(seen) > 20
    for now, observation in seen[:: max(len(seen) // 6, 1)]:
        again = ObservationBuffer(ROBOT)
        limits = dict(zip(('left', 'right'), observation.joint_stamps_ns))
        limits.update(observation.image_stamps_ns)
        for event in events:  # also those that had not come yet
            if event[0] <= limits[event[1]]:
                feed(again, event)
        repeated, _ = again.latest(now)
        np.testing.assert_array_equal(repeated.state, observation.state)
        assert repeated.image_stamps_ns == observation.image_stamps_ns
        assert repeated.joint_stamps_ns == observation.joint_stamps_ns
        for name, image in observation.images.items():
            np.testing.assert_array_equal(repeated.images[name], image)


def test_no_interpolation_across_a_hole(buffer):
    fill(buffer, 0.0)
    buffer.add_joints(ns(0.19), ROBOT.state_names, POSE + 1.0)
    for camera in CAMERAS:
        buffer.add_image(camera, ns(0.1), picture(1))
    observation, problems = buffer.latest(ns(0.19))
    assert observation is None
    assert 'skewed' in problems['joint_states']


# --- TIME ------------------------------------------------------------------------------------


def test_b01_stamp_zero_is_named_never_an_age(buffer):
    fill(buffer, 0.0, joints=None)
    buffer.add_joints(0, ROBOT.state_names, POSE, received_ns=ns(0.0))
    observation, problems = buffer.latest(ns(0.01))
    assert observation is None
    assert 'zero' in problems['joint_states'] and '17000' not in problems['joint_states']
    fill(buffer, 0.02, cameras=CAMERAS[1:])
    buffer.clear()
    fill(buffer, 0.02, cameras=CAMERAS[1:])
    buffer.add_image(HIGH, 0, picture(), received_ns=ns(0.02))
    observation, problems = buffer.latest(ns(0.03))
    assert observation is None and 'zero' in problems[HIGH]


def test_b03_wrapped_device_clock_is_flushed_and_recovers(buffer):
    fill(buffer, 0.0)
    wrapped = ns(0.033 - 4294.967)
    fill(buffer, 0.033, cameras=CAMERAS[1:])
    buffer.add_image(HIGH, wrapped, picture(1), received_ns=ns(0.033))
    observation, problems = buffer.latest(ns(0.04))
    assert observation is None
    assert 'back by 4294.934 s' in problems[HIGH]
    assert buffer.counters(HIGH)['resets'] == 1
    fill(buffer, 0.066)
    observation, _ = buffer.latest(ns(0.07))
    assert observation is not None and observation.stamp_ns == ns(0.066)
    fill(buffer, 0.1)
    assert buffer.latest(ns(0.11))[1] == {}


@pytest.mark.parametrize('announced', [True, False])
def test_b04_second_loop_yields_as_many_observations_as_the_first(buffer, announced):
    def loop():
        stamps = []
        for k in range(60):
            fill(buffer, k / 30, value=k)
            observation, _ = buffer.latest(ns(k / 30 + 0.001))
            stamps.append(observation.stamp_ns if observation else None)
        return stamps

    first = loop()
    if announced:
        buffer.clear()
    assert loop() == first and None not in first


def test_b07_clock_that_restarts_before_the_data_is_no_fault(buffer):
    for k in range(10):
        assert buffer.latest(ns(k))[0] is None
    fill(buffer, 0.0)
    observation, problems = buffer.latest(ns(0.01))
    assert observation is not None and problems == {}


def test_b08_phase_shifted_cameras_align_at_frame_rate(buffer):
    stamps = set()
    events = [(k / 30 + 0.011 * i, c) for k in range(30) for i, c in enumerate(CAMERAS)]
    events += [(k / 50, None) for k in range(50)]
    for seconds, camera in sorted(events, key=lambda event: event[0]):
        if camera is None:
            buffer.add_joints(ns(seconds), ROBOT.state_names, POSE)
        else:
            buffer.add_image(camera, ns(seconds), picture(len(stamps)))
        observation, _ = buffer.latest(ns(seconds))
        if observation:
            stamps.add(observation.stamp_ns)
    assert len(stamps) >= 29


def test_b08_missing_camera_is_named_and_ages_of_all_are_known(buffer):
    fill(buffer, 0.0, cameras=CAMERAS[:2])
    observation, problems = buffer.latest(ns(0.1))
    assert observation is None
    assert list(problems) == [CAMERAS[2]] and 'never seen' in problems[CAMERAS[2]]
    ages = buffer.ages(ns(0.1))
    assert ages[CAMERAS[2]] is None
    assert ages[HIGH] == ages['joint_states'] == pytest.approx(0.1)


@pytest.mark.parametrize('received', [True, False])
def test_b09_constant_offset_is_measured_not_paired(buffer, received):
    for k in range(100):
        fill(buffer, k / 30, joints=None)
        arrival = ns(k / 30) if received else None
        buffer.add_joints(ns(k / 30 - 1.3), ROBOT.state_names, POSE, received_ns=arrival)
        observation, problems = buffer.latest(ns(k / 30))
        assert observation is None
    assert '1.300 s' in problems['joint_states']
    if received:
        assert 'synchronise' in problems['joint_states']


def test_other_epoch_is_another_time_base(buffer):
    fill(buffer, 0.0, joints=None)
    buffer.add_joints(5_000_000_000, ROBOT.state_names, POSE, received_ns=ns(0.0))
    assert 'time base' in buffer.latest(ns(0.0))[1]['joint_states']


def test_stamps_from_the_future_are_named(buffer):
    fill(buffer, 0.0, cameras=CAMERAS[1:])
    buffer.add_image(HIGH, ns(0.5), picture())
    observation, problems = buffer.latest(ns(0.0))
    assert observation is None and '0.500 s in the future' in problems[HIGH]


def test_step_back_within_the_age_limit_is_remarked(buffer):
    fill(buffer, 0.0)
    fill(buffer, 0.1, cameras=CAMERAS[1:])
    buffer.add_image(HIGH, ns(0.1), picture(1))
    buffer.add_image(HIGH, ns(0.02), picture(2))
    fill(buffer, 0.02, cameras=())
    _, problems = buffer.latest(ns(0.1))
    assert 'back by 0.080 s' in problems[HIGH]


# --- STALE -------------------------------------------------------------------------------------


def test_b10_stopped_camera_ends_observations_by_name(buffer):
    for k in range(60):
        now = k / 30
        fill(buffer, now, cameras=CAMERAS if now < 1.0 else CAMERAS[1:], value=k)
        observation, problems = buffer.latest(ns(now))
        if now < 1.0:
            assert observation is not None
        elif now > 1.25:
            assert observation is None
            assert list(problems) == [HIGH] and 'stale' in problems[HIGH]


def test_b11_newest_frame_is_used_and_memory_is_bounded(buffer):
    for k in range(3000):
        fill(buffer, k / 30, value=k)
        if k % 15 == 14:
            observation, _ = buffer.latest(ns(k / 30))
            assert observation.stamp_ns == ns(k / 30)
            assert observation.images[HIGH][5, 5, 0] == k % 251
    assert all(len(camera.frames) <= 16 for camera in buffer._cameras.values())
    assert all(len(track.stamps) <= 256 for track in buffer._tracks.values())


def test_b33_lossy_camera_still_aligns(buffer):
    rng = np.random.default_rng(0)
    used = 0
    for k in range(300):
        lost = rng.random() < 0.7
        fill(buffer, k / 30, cameras=CAMERAS[1:] if lost and k else CAMERAS, value=k)
        observation, problems = buffer.latest(ns(k / 30))
        if observation is None:
            assert list(problems) == [HIGH]
            continue
        used += 1
        stamps = observation.image_stamps_ns.values()
        assert max(stamps) - min(stamps) <= 50_000_000
        assert ns(k / 30) - min(stamps) <= 250_000_000
    assert used > 200
    assert buffer.stats(ns(10))[HIGH]['rate'] < 15 < buffer.stats(ns(10))[CAMERAS[1]]['rate']


def test_frozen_stamp_is_named(buffer):
    fill(buffer, 0.0)
    for k in range(1, 20):
        fill(buffer, k / 30, cameras=CAMERAS[1:])
        buffer.add_image(HIGH, ns(0.0), picture(k), received_ns=ns(k / 30))
        observation, problems = buffer.latest(ns(k / 30))
        if k == 4:
            assert observation is not None and 'frozen' in problems[HIGH]
    assert observation is None
    assert 'frozen' in problems[HIGH] and '20 times' in problems[HIGH]


def test_b45_motionless_scene_is_remarked_but_never_blocks(buffer):
    for k in range(300):
        fill(buffer, k / 30, value=7)
        observation, problems = buffer.latest(ns(k / 30))
        assert observation is not None
    assert 'frozen?' in problems[HIGH] and 'last byte' in problems[HIGH]
    fill(buffer, 10.0, value=8)
    assert buffer.latest(ns(10.0))[1] == {}


def test_b30_bad_frames_are_dropped_and_the_last_good_one_keeps_its_age(buffer):
    def broken():
        raise ImageError('JPEG of 100 bytes is broken')

    fill(buffer, 0.0)
    for k in range(1, 12):
        fill(buffer, k / 30, cameras=CAMERAS[1:])
        buffer.add_image(HIGH, ns(k / 30), broken)
        observation, problems = buffer.latest(ns(k / 30))
        if observation is not None:
            assert observation.image_stamps_ns[HIGH] == ns(0.0)
    assert observation is None
    assert 'JPEG of 100 bytes is broken' in problems[HIGH]
    assert buffer.counters(HIGH)['rejected'] == 11
    fill(buffer, 0.5)
    assert buffer.latest(ns(0.5))[0] is not None


def test_frames_are_decoded_when_needed_and_once(buffer):
    calls = []

    def decode():
        calls.append(threading.get_ident())
        return picture()

    fill(buffer, 0.0, cameras=CAMERAS[1:])
    buffer.add_image(HIGH, ns(0.0), decode)
    assert calls == []
    for _ in range(5):
        assert buffer.latest(ns(0.01))[0] is not None
    assert len(calls) == 1


@pytest.mark.parametrize(
    'bad', [np.zeros((4, 4, 3)), np.zeros((4, 4), np.uint8), np.zeros((0, 4, 3), np.uint8), 'x']
)
def test_pictures_of_another_kind_are_refused(buffer, bad):
    fill(buffer, 0.0, cameras=CAMERAS[1:])
    buffer.add_image(HIGH, ns(0.0), bad)
    observation, problems = buffer.latest(ns(0.0))
    assert observation is None and HIGH in problems


# --- JOINT -----------------------------------------------------------------------------------


def test_b13_order_and_extra_joints_do_not_matter(buffer):
    rng = np.random.default_rng(1)
    for k in range(5):
        order = rng.permutation(14)
        names = [ROBOT.state_names[i] for i in order] + ['left/extra']
        fill(buffer, k / 30, joints=None, value=k)
        buffer.add_joints(ns(k / 30), names, [*POSE[order], 9.0])
        observation, problems = buffer.latest(ns(k / 30))
        assert problems == {}
        np.testing.assert_allclose(observation.positions, POSE)


def test_b14_partial_messages_are_merged_each_with_its_own_time(buffer):
    names = ROBOT.state_names
    for camera in CAMERAS:
        buffer.add_image(camera, ns(0.0), picture())
    buffer.add_joints(ns(0.0), names[:6], POSE[:6])
    observation, problems = buffer.latest(ns(0.0))
    assert observation is None
    assert 'left/gripper' in problems['joint_states'] and 'incomplete' in problems['joint_states']
    buffer.add_joints(ns(0.001), [names[6]], [POSE[6]])
    buffer.add_joints(ns(0.002), names[7:], POSE[7:])
    np.testing.assert_allclose(buffer.latest(ns(0.002))[0].positions, POSE)
    for k in range(1, 15):  # the gripper falls silent
        for camera in CAMERAS:
            buffer.add_image(camera, ns(k / 30), picture(k))
        buffer.add_joints(ns(k / 30), names[:6], POSE[:6])
        buffer.add_joints(ns(k / 30), names[7:], POSE[7:])
    observation, problems = buffer.latest(ns(14 / 30))
    assert observation is None and 'left/gripper' in problems['joint_states']
    assert 'waist' not in problems['joint_states']


def test_b14_the_age_is_that_of_the_oldest_joint_not_of_messages_that_no_longer_come(buffer):
    names = ROBOT.state_names
    buffer.add_joints(ns(0.0), names[:6], POSE[:6])
    buffer.add_joints(ns(0.0), names[6:], POSE[6:])
    buffer.add_joints(ns(5.0), names, POSE)
    assert buffer.ages(ns(5.1))['joint_states'] == pytest.approx(0.1)
    assert buffer.stats(ns(5.1))['joint_states']['age'] == pytest.approx(0.1)
    buffer.add_joints(ns(6.0), names[:6], POSE[:6])
    assert buffer.ages(ns(6.0))['joint_states'] == pytest.approx(1.0)


def test_b15_both_gripper_entries_give_the_same_opening():
    radian = ROBOT
    arms = tuple(
        dataclasses.replace(
            arm,
            gripper=dataclasses.replace(
                arm.gripper, measured_joint=f'{arm.prefix}left_finger', measured_unit='m'
            ),
        )
        for arm in ROBOT.arms
    )
    metre = dataclasses.replace(ROBOT, arms=arms)
    states = []
    for robot in (radian, metre):
        buffer = ObservationBuffer(robot)
        for camera in CAMERAS:
            buffer.add_image(camera, ns(0), picture())
        for arm, part in zip(ROBOT.arms, (POSE[:7], POSE[7:])):
            finger = float(arm.gripper.finger_m(part[6]))
            names = [j.name for j in arm.joints] + [
                f'{arm.prefix}left_finger', f'{arm.prefix}right_finger'
            ]  # fmt: skip
            buffer.add_joints(ns(0), names, [*part, finger, -finger])
        states.append(buffer.latest(ns(0))[0].state)
    np.testing.assert_allclose(states[0], states[1], atol=1e-9)


def test_b16_failure_value_is_no_pose(buffer):
    for k in range(10):
        fill(buffer, k / 50, joints=np.zeros(14), value=k)
        observation, problems = buffer.latest(ns(k / 50))
        assert observation is None
        assert 'sentinel' in problems['joint_states']
    fill(buffer, 0.2, joints=POSE)
    np.testing.assert_allclose(buffer.latest(ns(0.2))[0].positions, POSE)


def test_b17_b18_messages_of_odd_lengths(buffer):
    fill(buffer, 0.0)
    names = ROBOT.state_names
    buffer.add_joints(ns(0.01), names, [])  # velocities only: legal, changes nothing
    assert buffer.latest(ns(0.01))[1] == {}
    assert buffer.ages(ns(0.01))['joint_states'] == pytest.approx(0.01)
    buffer.add_joints(ns(0.02), names, POSE[:5])
    observation, problems = buffer.latest(ns(0.02))
    assert observation is None and '14 names and 5 positions' in problems['joint_states']
    assert buffer.counters('joint_states')['rejected'] == 1
    buffer.add_joints(ns(0.03), [], POSE)
    assert buffer.latest(ns(0.03))[0] is None
    fill(buffer, 0.04)
    assert buffer.latest(ns(0.04))[1] == {}


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
def test_positions_that_are_no_numbers_are_named(buffer, bad):
    fill(buffer, 0.0)
    pose = POSE.copy()
    pose[2] = bad
    buffer.add_joints(ns(0.01), ROBOT.state_names, pose)
    observation, problems = buffer.latest(ns(0.01))
    assert observation is None and ROBOT.state_names[2] in problems['joint_states']


def test_b19_degrees_for_the_policy(buffer):
    robot = dataclasses.replace(ROBOT, policy_units='deg')
    buffer = ObservationBuffer(robot)
    pose = np.full(14, 0.5)
    fill(buffer, 0.0, joints=pose)
    state = buffer.latest(ns(0.0))[0].state
    np.testing.assert_allclose(np.delete(state, [6, 13]), 28.6479, atol=1e-3)
    assert (0 <= state[[6, 13]]).all() and (state[[6, 13]] <= 1).all()


def test_b51_gripper_in_another_unit_is_a_fault_not_a_full_opening(buffer):
    pose = POSE.copy()
    pose[6] = 100.0
    robot = dataclasses.replace(
        ROBOT,
        arms=tuple(
            dataclasses.replace(
                arm, gripper=dataclasses.replace(arm.gripper, measured_unit='normalized')
            )
            for arm in ROBOT.arms
        ),
    )
    buffer = ObservationBuffer(robot)
    fill(buffer, 0.0, joints=pose)
    observation, problems = buffer.latest(ns(0.0))
    assert observation is None and 'left/gripper' in problems['joint_states']


# --- optional cameras, skew, threads ---------------------------------------------------------


def optional(name):
    cameras = {
        n: dataclasses.replace(c, required=n != name) for n, c in ROBOT.cameras.items()
    }
    return dataclasses.replace(ROBOT, cameras=MappingProxyType(cameras))


def test_optional_camera_is_left_out_with_a_remark():
    buffer = ObservationBuffer(optional(CAMERAS[2]))
    fill(buffer, 0.0, cameras=CAMERAS[:2])
    observation, problems = buffer.latest(ns(0.0))
    assert set(observation.images) == set(CAMERAS[:2])
    assert 'never seen' in problems[CAMERAS[2]]


def test_skewed_camera_is_named(buffer):
    buffer.add_joints(ns(0.0), ROBOT.state_names, POSE)
    buffer.add_joints(ns(0.1), ROBOT.state_names, POSE)
    for camera in CAMERAS[1:]:
        buffer.add_image(camera, ns(0.1), picture())
    buffer.add_image(HIGH, ns(0.0), picture())
    observation, problems = buffer.latest(ns(0.1))
    assert observation is None
    assert any('skewed' in text for text in problems.values())


def test_the_spread_is_that_of_the_newest_pictures(buffer):
    assert buffer.spread() == 0.0
    for k, camera in enumerate(CAMERAS):
        buffer.add_image(camera, ns(0.01 * k), picture())
    assert buffer.spread() == pytest.approx(0.02)
    buffer.add_image(HIGH, ns(0.033), picture())
    assert buffer.spread() == pytest.approx(0.023)


def test_clear_forgets_everything(buffer):
    fill(buffer, 0.0)
    buffer.clear()
    observation, problems = buffer.latest(ns(0.0))
    assert observation is None and len(problems) == 4


def test_threads_may_add_and_read_at_once(buffer):
    errors, stop = [], threading.Event()

    def add(k):
        try:
            for i in range(400):
                fill(buffer, (i * 3 + k) / 300, value=i)
        except BaseException as error:
            errors.append(error)

    def read():
        try:
            while not stop.is_set():
                observation, _ = buffer.latest(ns(4.0))
                assert observation is None or observation.state.shape == (14,)
        except BaseException as error:
            errors.append(error)

    writers = [threading.Thread(target=add, args=(k,)) for k in range(3)]
    reader = threading.Thread(target=read)
    for thread in (*writers, reader):
        thread.start()
    for thread in writers:
        thread.join(30.0)
    stop.set()
    reader.join(30.0)
    assert not errors and not reader.is_alive()


# --- properties ------------------------------------------------------------------------------

EVENT = st.tuples(
    st.sampled_from([*CAMERAS, 'left', 'right', 'all', 'ask']),
    st.integers(-200, 2000),  # stamp, ms
    st.sampled_from([None, None, None, 'nan', 'zero', 'short', 'broken']),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(EVENT, max_size=60))
def test_an_observation_is_always_recent_aligned_finite_and_complete(events):
    buffer = ObservationBuffer(ROBOT)
    now = 0
    for what, stamp, fault in events:
        now = max(now, stamp)
        names = ROBOT.state_names
        part = {'left': slice(0, 7), 'right': slice(7, 14)}.get(what, slice(0, 14))
        if what in CAMERAS:
            image = np.zeros(3) if fault == 'broken' else picture(stamp)
            buffer.add_image(what, 0 if fault == 'zero' else ns(stamp / 1e3), image)
        elif what != 'ask':
            values = POSE[part] + stamp * 1e-4
            values = np.full_like(values, np.nan) if fault == 'nan' else values
            values = np.zeros_like(values) if fault == 'zero' else values
            values = values[:3] if fault == 'short' else values
            buffer.add_joints(ns(stamp / 1e3), names[part], values)
        observation, problems = buffer.latest(ns(now / 1e3))
        if observation is None:
            assert problems and all(isinstance(t, str) and t for t in problems.values())
            continue
        stamps = observation.image_stamps_ns
        assert set(observation.images) == set(stamps) == set(CAMERAS)
        assert max(stamps.values()) == observation.stamp_ns
        assert max(stamps.values()) - min(stamps.values()) <= 100_000_000
        assert ns(now / 1e3) - min(stamps.values()) <= 250_000_000
        assert np.isfinite(observation.state).all() and observation.state.shape == (14,)
        moved = observation.positions - POSE  # each joint says when it was measured
        assert np.abs(moved * 1e4 * 1e6 + T0 - observation.stamp_ns).max() < 50_000_000 + 1e4
        for name, image in observation.images.items():
            value = round((stamps[name] - T0) / 1e6) % 251
            assert image[5, 5, 0] == value
