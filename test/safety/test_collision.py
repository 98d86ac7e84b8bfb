# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""The collision model against pinocchio and coal, which it must never be more optimistic than."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pi0_ros.resources import share_path
from pi0_ros.robot import RobotSpec
from pi0_ros.safety.collision import (
    TOUCH_DEPTH,
    CollisionError,
    CollisionModel,
    bounding_capsule,
    segment_distances,
)

ROOT = Path(__file__).resolve().parents[2]
URDF = share_path('config/urdf/aloha.urdf').read_text(encoding='utf-8')
ALOHA = RobotSpec.load('aloha')
LOWER = np.array([joint.lower for joint in ALOHA.joints])
UPPER = np.array([joint.upper for joint in ALOHA.joints])


@pytest.fixture(scope='module')
def model() -> CollisionModel:
    return CollisionModel(URDF, ALOHA)


def random_poses(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(LOWER, UPPER, (count, 14))


def right_arm_turned_away() -> np.ndarray:
    pose = np.array(ALOHA.poses['sleep'])
    pose[7] = 3.0
    return pose


def without_table() -> RobotSpec:
    return dataclasses.replace(
        ALOHA, collision=dataclasses.replace(ALOHA.collision, table_height=None)
    )


def test_link_poses_agree_with_pinocchio(model):
    from pi0_ros.kinematics import ForwardKinematics

    reference = ForwardKinematics(URDF, ALOHA)
    child = {
        'left/waist': 'left/shoulder_link',
        'left/wrist_rotate': 'left/gripper_link',
        'right/elbow': 'right/upper_forearm_link',
        'right/wrist_rotate': 'right/gripper_link',
    }
    for command in random_poses(20):
        expected = reference.link_poses(command)
        poses = model._chain.poses(command)
        for joint, link in child.items():
            slot = model._chain.slot(ALOHA.joint_names.index(joint))
            assert poses[slot] == pytest.approx(expected[link], abs=1e-12), joint


def test_distance_between_arms_is_never_larger_than_the_exact_one():
    """coal measures the very boxes of the URDF; capsules that enclose them can only be nearer."""
    import coal
    import pinocchio

    model = CollisionModel(URDF, without_table())
    rigid = pinocchio.buildModelFromXML(URDF)
    geometry = pinocchio.buildGeomFromUrdfString(
        rigid, URDF, pinocchio.GeometryType.COLLISION
    )
    parts = {'left': [], 'right': []}
    for shape in geometry.geometryObjects:
        frame = rigid.frames[shape.parentFrame].name
        if frame.split('/')[0] in parts and 'finger' not in frame:
            parts[frame.split('/')[0]].append(shape)
    data = rigid.createData()
    request, close = coal.DistanceRequest(), 0
    for command in random_poses(60, seed=1):
        configuration = pinocchio.neutral(rigid)
        for name, value in zip(ALOHA.joint_names, command):
            configuration[rigid.joints[rigid.getJointId(name)].idx_q] = value
        pinocchio.forwardKinematics(rigid, data, configuration)

        def placed(shape):
            pose = data.oMi[shape.parentJoint] * shape.placement
            return coal.Transform3s(pose.rotation, pose.translation)

        exact = min(
            coal.distance(one.geometry, placed(one), two.geometry, placed(two), request,
                          coal.DistanceResult())
            for one in parts['left'] for two in parts['right']
        )  # fmt: skip
        ours, what = model.distance(command)
        if exact > 0.0:
            assert ours <= exact + 1e-6, what
            close += ours > exact - 0.12
    assert close > 20  # and not uselessly pessimistic either


def test_the_table_counts_and_a_lower_arm_is_nearer_to_it(model):
    reach_down = right_arm_turned_away()
    reach_down[:6] = [0.0, 0.5, 0.8, 0.0, -1.2, 0.0]

    metres, what = model.distance(reach_down)
    lowered, _ = model.distance(reach_down + np.eye(14)[1] * 0.02)

    assert what == 'left/gripper_link to table'
    assert lowered < metres


def lowest_finger(command) -> float:
    """Return the height [m] of the lowest finger corner, over the whole stroke, by pinocchio."""
    import pinocchio

    rigid = pinocchio.buildModelFromXML(URDF)
    geometry = pinocchio.buildGeomFromUrdfString(
        rigid, URDF, pinocchio.GeometryType.COLLISION
    )
    data = rigid.createData()
    configuration = pinocchio.neutral(rigid)
    for name, value in zip(ALOHA.joint_names, command):
        configuration[rigid.joints[rigid.getJointId(name)].idx_q] = value
    signs = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)])
    lowest = np.inf
    for end in ('lowerPositionLimit', 'upperPositionLimit'):
        for name in rigid.names:
            if 'finger' in name:
                place = rigid.joints[rigid.getJointId(name)].idx_q
                configuration[place] = getattr(rigid, end)[place]
        pinocchio.forwardKinematics(rigid, data, configuration)
        for shape in geometry.geometryObjects:
            if 'finger' in rigid.frames[shape.parentFrame].name:
                pose = data.oMi[shape.parentJoint] * shape.placement
                corners = signs * shape.geometry.halfSide @ pose.rotation.T + pose.translation
                lowest = min(lowest, corners[:, 2].min())
    return lowest


def test_fingers_at_the_table_top_are_free_and_deeper_ones_are_not(model):
    """
    Picking things up needs fingers at the table.

    Slowing begins at its top, the bound is met at TOUCH_DEPTH below it.
    """
    fingers_down = right_arm_turned_away()
    slow, stop = ALOHA.collision.slow_distance, ALOHA.collision.stop_distance
    heights = []
    for shoulder in np.linspace(-0.5, 0.9, 400):
        fingers_down[:6] = [0.0, shoulder, 0.4, 0.0, 1.57 - shoulder - 0.4, 0.0]
        metres, what = model.distance(fingers_down)
        if what == 'left/left_finger_link to table' or what == 'left/right_finger_link to table':
            heights.append((metres - slow) / (slow - stop) * TOUCH_DEPTH)
            if len(heights) < 6:
                assert heights[-1] == pytest.approx(lowest_finger(fingers_down), abs=1e-9)
    assert max(heights) > -0.5 * TOUCH_DEPTH and min(heights) < -TOUCH_DEPTH
    assert model.distance(fingers_down)[0] < stop


def test_a_hand_over_is_not_held(model):
    """Both hands hold one cube of 4 cm: nothing but the wrist counts, and that is far enough."""
    meeting = np.array([
        0.0, -0.1663, 0.8089, 0.0, -0.6426, 1.5708, -0.6213,
        0.0, -0.0004, -0.0436, 0.0, 1.0913, 0.0, -0.5157,
    ])  # fmt: skip
    metres, what = model.distance(meeting)
    assert metres > 0.07, what
    assert what == 'left/left_finger_link to right/wrist_link'
    # but a hand that is pushed into the other one is
    pushed = meeting + np.eye(14)[8] * 0.25
    assert model.distance(pushed)[0] < ALOHA.collision.stop_distance


def test_arms_that_reach_into_each_other_are_at_no_distance(model):
    metres, what = model.distance(np.zeros(14))

    assert metres < 0.0
    assert what.startswith('left/gripper_link to right/')


def test_start_and_sleep_poses_are_clear_of_the_stop_distance(model):
    for pose in ALOHA.poses.values():
        assert model.distance(pose)[0] > ALOHA.collision.stop_distance


def test_no_table_height_checks_no_table():
    metres, what = CollisionModel(URDF, without_table()).distance(ALOHA.poses['sleep'])

    assert 'table' not in what and metres > 0.2


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31))
def test_capsules_enclose_their_points(seed):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(int(rng.integers(1, 20)), 3)) * rng.uniform(0.0, 0.5, 3)

    capsule = bounding_capsule(points)

    start = np.broadcast_to(capsule.start, points.shape)
    end = np.broadcast_to(capsule.end, points.shape)
    assert (segment_distances(points, points, start, end) <= capsule.radius).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(['any', 'parallel', 'points', 'crossing']))
def test_segment_distance_is_the_minimum_over_both_segments(seed, kind):
    rng = np.random.default_rng(seed)
    p1, q1, p2, q2 = rng.normal(size=(4, 3))
    if kind == 'parallel':
        q2 = p2 + (q1 - p1) * rng.uniform(-2, 2)
    elif kind == 'points':
        q1 = p1
    elif kind == 'crossing':
        p2, q2 = (p1 + q1) / 2 - (q2 - p2), (p1 + q1) / 2 + (q2 - p2)

    found = segment_distances(*(v[None] for v in (p1, q1, p2, q2)))[0]

    s, t = np.meshgrid(np.linspace(0, 1, 101), np.linspace(0, 1, 101))
    gaps = p1 + (q1 - p1) * s[..., None] - p2 - (q2 - p2) * t[..., None]
    sampled = np.linalg.norm(gaps, axis=-1).min()
    assert found <= sampled + 1e-9
    assert found >= sampled - 0.02 * (np.linalg.norm(q1 - p1) + np.linalg.norm(q2 - p2))


def test_meshes_are_refused_with_the_link_named():
    meshes = URDF.replace('<box size="0.097 0.104 0.036"/>', '<mesh filename="package://x.stl"/>')

    with pytest.raises(CollisionError, match='left/upper_forearm_link.*mesh'):
        CollisionModel(meshes, ALOHA)


def test_the_urdf_of_another_robot_is_refused():
    with pytest.raises(CollisionError, match="no joint 'joint_0'"):
        CollisionModel(URDF, RobotSpec.load('wxai'))


def test_the_model_loads_no_heavy_library():
    code = (
        'import sys; import pi0_ros.safety.collision; '
        "assert not {'pinocchio', 'coal', 'torch', 'rclpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, '-c', code], cwd=ROOT, check=True, timeout=60)
