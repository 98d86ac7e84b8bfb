# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Inputs like those that field reports tell of, beyond the reported ones: never silent."""

from __future__ import annotations

import io
from types import SimpleNamespace

import numpy as np
import PIL.Image
import pytest
from test_buffer import CAMERAS, HIGH, POSE, ROBOT, fill, ns, picture

from pi0_ros.observation import ImageError, ObservationBuffer, decode_image
from pi0_ros.observation.joints import JointTrack

NAMES = list(ROBOT.state_names)
ARM = [i for i in range(14) if i not in ROBOT.gripper_indices]


def changed(index, value):
    pose = POSE.copy()
    pose[index] = value
    return pose


def after(names, positions, stamp=0.0):
    buffer = ObservationBuffer(ROBOT)
    fill(buffer, joints=None)
    buffer.add_joints(ns(stamp), names, positions)
    return buffer.latest(ns(0.01))


@pytest.mark.parametrize(
    ('names', 'positions', 'stamp', 'said'),
    [
        (NAMES, [], 0.0, 'without positions (velocities or efforts only)'),
        ([f'vx300s_{n}' for n in NAMES], POSE, 0.0, 'name none of its joints (they name vx300s_'),
        ([f'/{n}' for n in NAMES], POSE, 0.0, 'expected left/waist'),
        ([], POSE, 0.0, 'positions without names'),
        (NAMES[:-1], POSE[:-1], 0.0, 'incomplete: right/gripper'),
        (NAMES, POSE[:-1], 0.0, '14 names and 13 positions'),
        (NAMES, [*POSE, 0.0], 0.0, '14 names and 15 positions'),
        ([*NAMES, NAMES[0]], [*POSE, 0.0], 0.0, 'names a joint twice'),
        (NAMES, changed(9, np.nan), 0.0, 'position of right/elbow is not a number'),
        (NAMES, changed(3, -np.inf), 0.0, 'position of left/forearm_roll is not a number'),
        (NAMES, changed(3, 1e10), 0.0, 'left/forearm_roll 1e+10 is no angle'),
        (NAMES, changed(0, -9999.0), 0.0, 'left/waist -9999 is no angle'),
        (NAMES, np.full(14, -np.pi), 0.0, 'exactly -3.141593'),
        (NAMES, np.zeros(14), 0.0, 'exactly 0'),
        (NAMES, ['a'] * 14, 0.0, 'no list of numbers'),
        (NAMES, [[0.1, 0.2]] * 14, 0.0, 'no list of numbers'),
        (NAMES, POSE, 3600.0, '1 h: stamped with local time instead of UTC?'),
        (NAMES, POSE, -19800.0, '5.5 h: stamped with local time instead of UTC?'),
        (NAMES, POSE, 61.0, '60.990 s in the future'),
        (NAMES, POSE, -1.7e9 - 5.0, 'before 1970 (negative)'),
        (NAMES, POSE, -1.7e9, 'zero (never set by the driver)'),
        (NAMES, POSE, -1.7e9 + 300.0, 'another time base'),
    ],
)  # fmt: skip
def test_joint_messages_that_cannot_be_used_are_refused_by_name(names, positions, stamp, said):
    observation, problems = after(names, positions, stamp)
    assert observation is None
    assert said in problems['joint_states']


def test_foreign_joints_may_come_twice_and_in_any_order():
    order = np.random.default_rng(0).permutation(14)
    names = [*np.array(NAMES)[order], 'lid', 'lid']
    observation, problems = after(names, [*POSE[order], 1.0, 2.0])
    assert problems == {}
    np.testing.assert_allclose(observation.state, ROBOT.measured_to_policy(POSE))


def test_degrees_are_remarked_with_the_limits():
    """No arm is 60 rad from its zero; the reading is used as it is, and said to be wrong."""
    degrees = POSE.copy()
    degrees[ARM] = np.degrees(POSE[ARM]) + 20.0
    observation, problems = after(NAMES, degrees)
    assert observation is not None
    assert 'left/waist 25.73 (limits -3.142 to 3.142)' in problems['joint_states']
    assert 'degrees' in problems['joint_states']


def test_a_refused_message_changes_nothing_of_what_was_known():
    buffer = ObservationBuffer(ROBOT)
    fill(buffer)
    buffer.add_joints(ns(0.005), NAMES, changed(2, np.nan))
    observation, problems = buffer.latest(ns(0.01))
    assert observation is None and 'left/elbow' in problems['joint_states']
    buffer.add_joints(ns(0.01), NAMES, POSE)
    observation, problems = buffer.latest(ns(0.01))
    assert observation is not None and problems == {}


def test_a_gripper_that_speaks_alone_and_later_never_completes_the_arm():
    buffer = ObservationBuffer(ROBOT)
    fill(buffer, joints=None)
    for k in range(50):
        buffer.add_joints(ns(0.001 * k), NAMES[6:7], POSE[6:7])
    observation, problems = buffer.latest(ns(0.05))
    assert observation is None and 'incomplete: left/waist' in problems['joint_states']


def test_b20_a_joint_that_turns_without_end_is_interpolated_the_short_way():
    """From 3.13 to -3.13 rad a continuous joint passes pi; a bounded one cannot."""
    for turning, expected in ((True, np.pi), (False, 0.0)):
        track = JointTrack((0,), np.array([turning]))
        track.add(0, np.array([np.pi - 0.01]))
        track.add(10, np.array([-np.pi + 0.01]))
        positions, away, until = track.at(5, 20)
        assert abs(positions[0]) == pytest.approx(expected) and (away, until) == (0, 10)


def test_b37_a_converter_that_raises_ends_no_thread():
    buffer = ObservationBuffer(ROBOT)

    def converter():
        raise RuntimeError('converter failed')

    fill(buffer, cameras=CAMERAS[1:])
    buffer.add_image(HIGH, ns(0), converter)
    observation, problems = buffer.latest(ns(0.01))
    assert observation is None and 'converter failed' in problems[HIGH]
    buffer.add_image(HIGH, ns(0.01), picture())
    assert buffer.latest(ns(0.02))[0] is not None


def test_what_policies_get_cannot_be_changed_by_them():
    buffer = ObservationBuffer(ROBOT)
    fill(buffer)
    observation, _ = buffer.latest(ns(0.01))
    for shared in (observation.state, observation.positions):
        with pytest.raises(ValueError, match='read-only'):
            shared[0] = 9.0


def test_two_sources_on_one_camera_an_hour_apart_never_pass_as_one_stream():
    buffer = ObservationBuffer(ROBOT)
    for k in range(20):
        fill(buffer, 0.03 * k)
        buffer.add_image(HIGH, ns(0.03 * k + 0.015 - 3600.0), picture(k))
        observation, problems = buffer.latest(ns(0.03 * k + 0.02))
        assert observation is None and 'went back' in problems[HIGH]
    assert buffer.counters(HIGH)['resets'] == 20


def test_system_time_that_is_set_back_or_forward_is_survived():
    buffer = ObservationBuffer(ROBOT)
    for now in (100.0, 95.0, 3695.0, 94.0):  # NTP, then summer time there and back
        fill(buffer, now)
        buffer.latest(ns(now + 0.01))
        fill(buffer, now + 0.02, value=round(now))
        observation, _ = buffer.latest(ns(now + 0.03))
        assert observation.stamp_ns == ns(now + 0.02)


def test_a_camera_at_1_hz_is_used_while_fresh_and_named_stale_otherwise():
    buffer, used, said = ObservationBuffer(ROBOT), 0, set()
    for k in range(300):
        now = 0.01 * k
        fill(buffer, now, cameras=CAMERAS[1:] if k % 3 == 0 else (), value=k)
        if k % 100 == 0:
            buffer.add_image(HIGH, ns(now), picture(k))
        observation, problems = buffer.latest(ns(now))
        used += observation is not None
        said |= set(problems) if observation is None else set()
        if observation is not None:
            assert now - (observation.image_stamps_ns[HIGH] - ns(0)) / 1e9 <= 0.2001
    assert 30 < used < 90 and said == {HIGH}


# -- pictures -------------------------------------------------------------------------------------


def raw(encoding='rgb8', width=4, height=2, step=None, data=None, is_bigendian=0):
    step = 3 * width if step is None else step
    data = bytes(range(step * height)) if data is None else data
    return SimpleNamespace(
        encoding=encoding, width=width, height=height, step=step, data=data,
        is_bigendian=is_bigendian,
    )  # fmt: skip


def compressed(mode, kind, label, change=lambda data: data, **kwargs):
    file = io.BytesIO()
    PIL.Image.new(mode, (16, 16), kwargs.pop('color', 0)).save(file, kind, **kwargs)
    return SimpleNamespace(format=label, data=change(file.getvalue()))


@pytest.mark.parametrize(
    ('message', 'said'),
    [
        (raw('rgb8 '), "did you mean 'rgb8'"),
        (raw('BGR8'), "did you mean 'bgr8'"),
        (raw('jpeg'), "'jpeg' is unknown"),
        (raw('yuv420'), "'yuv420' is unknown"),
        (raw('8UC4'), 'does not say which colours'),
        (raw('32FC3'), "'32FC3' is unknown"),
        (raw('32FC1'), 'is depth'),
        (raw(step=8, data=bytes(16)), 'step 8 is less than one row of 12'),  # 16-bit depth as rgb8
        (raw(step=0, data=bytes(24)), 'step 0 is less'),  # drivers that never fill it
        (raw(width=0), 'empty rgb8 image: 0x2'),
        (raw(height=0, data=b''), 'empty rgb8 image: 4x0'),
        (raw(width=2**32 - 1, height=2**32 - 1, step=2**32 - 1, data=b'x'), 'beyond any camera'),
        (raw('yuyv', width=3, step=6, data=bytes(12)), 'even width'),
        (raw('nv12', width=4, height=3, step=4, data=bytes(16)), 'even height'),
        (raw('bayer_rggb8', width=1, height=1, step=1, data=b'x'), 'smaller than one 2x2 cell'),
        (SimpleNamespace(height=480, width=640, k=[0.0] * 9), 'check the topic of this camera'),
        (compressed('RGB', 'jpeg', 'jpeg', lambda d: d[:-10]), 'is broken'),
        (compressed('RGB', 'jpeg', 'jpeg', lambda d: b'\0\0' + d), 'neither JPEG nor PNG'),
        (compressed('RGB', 'webp', 'webp'), 'neither JPEG nor PNG'),
        (compressed('RGB', 'tiff', 'tiff'), 'neither JPEG nor PNG'),
        (SimpleNamespace(format='h264', data=b'\0\0\0\1\x67' + bytes(90)), 'neither JPEG nor PNG'),
        (compressed('I;16', 'png', 'mono16; png compressed '), 'depth, not colour'),
        (SimpleNamespace(format='16UC1; compressedDepth rvl', data=b'1' * 50), 'is depth'),
        (SimpleNamespace(format='rgb8; jpeg compressed bgr8', data=b''), 'empty compressed'),
    ],
)  # fmt: skip
def test_pictures_that_cannot_be_used_are_refused_with_the_reason(message, said):
    with pytest.raises(ImageError) as refused:
        decode_image(message)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ('message', 'colour'),
    [
        (compressed('RGB', 'jpeg', '', color=(200, 30, 60)), (200, 30, 60)),
        (compressed('RGB', 'jpeg', 'bgr8; jpeg compressed bgr8', color=(200, 30, 60)),
         (200, 30, 60)),
        (compressed('RGB', 'jpeg', 'rgb8; jpeg compressed bgr8', lambda d: d + bytes(40),
                    color=(200, 30, 60)), (200, 30, 60)),
        (compressed('RGB', 'jpeg', 'jpeg', progressive=True, color=(9, 90, 200)), (9, 90, 200)),
        (compressed('L', 'jpeg', 'mono8; jpeg compressed mono8', color=77), (77, 77, 77)),
        (compressed('RGBA', 'png', 'png', color=(7, 8, 9, 0)), (7, 8, 9)),
        (compressed('LA', 'png', 'png', color=(9, 0)), (9, 9, 9)),
        (raw('mono16', width=2, step=4, data=bytes([0x80, 0] * 4), is_bigendian=1),
         (128, 128, 128)),
        (raw('mono16', width=2, step=5, data=bytes([0, 0x80, 0, 0x80, 0xFF] * 2)),
         (128, 128, 128)),
    ],
)  # fmt: skip
def test_unusual_but_whole_pictures_become_rgb(message, colour):
    picture = decode_image(message)
    assert picture.dtype == np.uint8 and picture.shape[2] == 3
    np.testing.assert_allclose(picture[0, 0], colour, atol=4)
