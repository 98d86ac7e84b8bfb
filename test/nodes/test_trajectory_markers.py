# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""trajectory_markers over real topics: what RViz gets for a chunk."""

import time

import numpy as np
import pytest
import rclpy
from nav_msgs.msg import Path
from rclpy.executors import SingleThreadedExecutor
from rclpy.parameter import Parameter
from sensor_msgs.msg import JointState
from trajectory_msgs.msg import JointTrajectory
from visualization_msgs.msg import Marker, MarkerArray

from pi0_ros.control import ActionChunk
from pi0_ros.kinematics import ForwardKinematics
from pi0_ros.messages import chunk_message, joint_state
from pi0_ros.nodes.trajectory_markers import (
    LATCHED,
    TrajectoryMarkers,
    quaternion_from_matrix,
)
from pi0_ros.resources import share_path
from pi0_ros.robot import RobotSpec

ROBOT = RobotSpec.load('aloha')
START = np.array([0.0, -0.96, 1.16, 0.0, -0.3, 0.0, 0.3] * 2)


@pytest.fixture()
def lab():
    rclpy.init()
    executor = SingleThreadedExecutor()
    markers = TrajectoryMarkers(parameter_overrides=[Parameter('autostart', value=True)])
    assert markers.start()
    node = rclpy.create_node('lab')
    executor.add_node(markers)
    executor.add_node(node)
    yield markers, node, executor
    markers.tear_down()
    markers.destroy_node()
    node.destroy_node()
    rclpy.shutdown()


def spin_until(executor, condition, timeout=10.0):
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, 'nothing came in time'
        executor.spin_once(timeout_sec=0.05)


def chunk(actions, stamp_ns, sequence=3, frozen=None):
    return ActionChunk(
        actions=np.asarray(actions, dtype=np.float32), stamp_ns=stamp_ns, prompt='x',
        sequence=sequence, dt=0.02, frozen_rows=frozen,
    )  # fmt: skip


def show(lab, message, wanted):
    """Publish a chunk until markers that fulfil ``wanted`` come back."""
    _, node, executor = lab
    publisher = node.create_publisher(JointTrajectory, 'action_chunk', 5)
    got, paths = [], []
    node.create_subscription(MarkerArray, 'predicted_trajectory', got.append, LATCHED)
    node.create_subscription(Path, 'predicted_path/left', paths.append, LATCHED)
    spin_until(executor, lambda: publisher.get_subscription_count() == 1)
    publisher.publish(message)
    spin_until(executor, lambda: paths and got and wanted(got[-1]))
    return got[-1], paths[-1]


def test_paths_are_where_the_hands_will_be(lab):
    markers, node, _ = lab
    actions = START + np.linspace(0, 0.2, 50)[:, None]
    stamp = node.get_clock().now().nanoseconds
    shown, path = show(lab, chunk_message(chunk(actions, stamp), ROBOT.joint_names),
                       lambda m: len(m.markers) > 4)  # fmt: skip

    urdf = share_path('config/urdf/aloha.urdf').read_text()
    expected = ForwardKinematics(urdf, ROBOT).chunk_poses(actions).positions
    by_name = {(m.ns, m.id): m for m in shown.markers}
    for column, arm in enumerate(('left', 'right')):
        line = by_name[f'{arm}/path', 0]
        assert line.type == Marker.LINE_STRIP and len(line.points) == 50
        drawn = np.array([[p.x, p.y, p.z] for p in line.points])
        assert np.allclose(drawn, expected[:, column], atol=1e-6)
        assert line.colors[0].b > line.colors[-1].b and line.colors[0].r < line.colors[-1].r
    last = path.poses[-1].pose.position
    assert np.allclose([last.x, last.y, last.z], expected[-1, 0], atol=1e-6)
    assert path.header.frame_id == 'world'


def test_b85_preview_carries_the_observations_stamp_and_a_lifetime(lab):
    _, node, _ = lab
    stamp = node.get_clock().now().nanoseconds
    message = chunk_message(chunk(np.tile(START, (50, 1)), stamp), ROBOT.joint_names)
    shown, _ = show(lab, message, lambda m: m.markers)
    for marker in shown.markers:
        assert marker.header.stamp == message.header.stamp
        assert marker.lifetime.sec + marker.lifetime.nanosec * 1e-9 > 0.0
    ghosts = [m for m in shown.markers if m.ns == 'ghost']
    assert len({m.id for m in ghosts}) == len(ghosts) > 10


def test_executed_part_is_faded_and_rows_outside_limits_are_red(lab):
    _, node, _ = lab
    actions = np.tile(START, (50, 1))
    actions[30:, 2] = 2.5  # the elbow goes to 1.6 only
    stamp = node.get_clock().now().nanoseconds - 400_000_000
    shown, _ = show(lab, chunk_message(chunk(actions, stamp), ROBOT.joint_names),
                    lambda m: any(x.ns == 'left/path' for x in m.markers))  # fmt: skip
    by_ns = {m.ns: m for m in shown.markers}
    alphas = [c.a for c in by_ns['left/path'].colors]
    assert alphas[0] < alphas[-1] and sorted(alphas) == alphas
    assert len(by_ns['left/limits'].points) == 20 and by_ns['left/limits'].colors[0].r == 1.0
    assert by_ns['right/limits'].action == Marker.DELETE


def test_b70_preview_shows_the_limited_pose_as_the_filter_will_send_it(lab):
    _, node, _ = lab
    actions = np.tile(START, (10, 1))
    actions[:, 2] = 2.5
    stamp = node.get_clock().now().nanoseconds
    shown, path = show(lab, chunk_message(chunk(actions, stamp), ROBOT.joint_names),
                       lambda m: any(x.ns == 'left/path' for x in m.markers))  # fmt: skip
    actions[:, 2] = ROBOT.joints[2].upper
    urdf = share_path('config/urdf/aloha.urdf').read_text()
    expected = ForwardKinematics(urdf, ROBOT).chunk_poses(actions).positions[-1, 0]
    line = next(m for m in shown.markers if m.ns == 'left/path').points[-1]
    last = path.poses[-1].pose.position
    assert np.allclose([line.x, line.y, line.z], expected, atol=1e-6)
    assert np.allclose([last.x, last.y, last.z], expected, atol=1e-6)


def test_rows_that_are_too_fast_are_red(lab):
    _, node, _ = lab
    actions = np.tile(START, (50, 1))
    actions[20:, 0] += 0.1  # in 20 ms: 5 rad/s, the waist goes 3.14
    stamp = node.get_clock().now().nanoseconds
    shown, _ = show(lab, chunk_message(chunk(actions, stamp), ROBOT.joint_names),
                    lambda m: any(x.ns == 'left/path' for x in m.markers))  # fmt: skip
    by_ns = {m.ns: m for m in shown.markers}
    line, red = by_ns['left/path'].points, by_ns['left/limits']
    assert [(p.x, p.y, p.z) for p in red.points] == [(line[20].x, line[20].y, line[20].z)]
    assert red.colors[0].r == 1.0 and by_ns['right/limits'].action == Marker.DELETE


def test_rows_kept_by_real_time_chunking_are_marked(lab):
    markers, node, _ = lab
    stamp = node.get_clock().now().nanoseconds
    actions = START + np.linspace(0, 0.2, 50)[:, None]
    shown, _ = show(lab, chunk_message(chunk(actions, stamp, frozen=8), ROBOT.joint_names),
                    lambda m: any(x.ns == 'left/frozen' for x in m.markers))  # fmt: skip
    by_ns = {m.ns: m for m in shown.markers}
    assert by_ns['left/frozen'].points == by_ns['left/path'].points[:8]
    assert by_ns['left/frozen'].header.frame_id == 'world'
    assert markers.diagnostics()[0].values['rows frozen'] == 8
    shown, _ = show(lab, chunk_message(chunk(actions, stamp, 4), ROBOT.joint_names),
                    lambda m: any(x.ns == 'left/frozen' and x.action == Marker.DELETE
                                  for x in m.markers))  # fmt: skip


def test_seam_shows_where_the_chunk_before_would_have_led(lab):
    _, node, executor = lab
    start = node.get_clock().now().nanoseconds
    before = np.tile(START, (50, 1))
    show(lab, chunk_message(chunk(before, start, 1), ROBOT.joint_names), lambda m: m.markers)
    after = before.copy()
    after[:, 1] += 0.2
    shown, _ = show(
        lab, chunk_message(chunk(after, start + 100_000_000, 2), ROBOT.joint_names),
        lambda m: any(x.ns == 'left/seam' and len(x.points) == 2 for x in m.markers),
    )  # fmt: skip
    seam = next(m for m in shown.markers if m.ns == 'left/seam')
    urdf = share_path('config/urdf/aloha.urdf').read_text()
    poses = ForwardKinematics(urdf, ROBOT).chunk_poses(np.array([after[0], before[0]])).positions
    drawn = np.array([[p.x, p.y, p.z] for p in seam.points])
    assert np.allclose(drawn, poses[:, 0], atol=1e-6)


def test_a_robot_without_a_description_says_what_to_give(tmp_path):
    import yaml

    data = yaml.safe_load(share_path('config/robots/aloha.yaml').read_text())
    del data['urdf'], data['collision']
    (tmp_path / 'arm.yaml').write_text(yaml.safe_dump(data))
    rclpy.init()
    markers = TrajectoryMarkers(
        parameter_overrides=[Parameter('robot', value=str(tmp_path / 'arm.yaml'))]
    )
    try:
        assert not markers.start()
        assert 'names no URDF' in markers.failure and 'robot_description' in markers.failure
    finally:
        markers.tear_down()
        markers.destroy_node()
        rclpy.shutdown()


def test_a_gripper_commanded_to_its_end_stop_is_no_limit_hit(lab):
    _, node, _ = lab
    actions = np.tile(START, (10, 1))
    actions[:5, 6], actions[5:, 6] = 0.0, 1.0
    stamp = node.get_clock().now().nanoseconds
    shown, _ = show(lab, chunk_message(chunk(actions, stamp), ROBOT.joint_names),
                    lambda m: any(x.ns == 'left/path' for x in m.markers))  # fmt: skip
    limits = next(m for m in shown.markers if m.ns == 'left/limits')
    assert limits.action == Marker.DELETE and not limits.points


def test_a_chunk_of_another_robot_is_named_and_not_drawn(lab):
    markers, node, executor = lab
    publisher = node.create_publisher(JointTrajectory, 'action_chunk', 5)
    spin_until(executor, lambda: publisher.get_subscription_count() == 1)
    publisher.publish(chunk_message(chunk(np.zeros((5, 3)), 1), ['a', 'b', 'c']))
    spin_until(executor, lambda: 'left/waist' in markers.diagnostics()[0].message)


def test_joint_states_of_both_arms_are_merged_under_the_descriptions_names(lab):
    _, node, executor = lab
    got = []
    node.create_subscription(JointState, 'joint_states', got.append, 10)
    publisher = node.create_publisher(JointState, '/follower_right/joint_states', 10)
    spin_until(executor, lambda: publisher.get_subscription_count() == 1)
    publisher.publish(joint_state(['waist', 'left_finger'], [0.1, 0.03], 7))
    spin_until(executor, lambda: got)
    assert list(got[0].name) == ['right/waist', 'right/left_finger']


def test_quaternions_turn_vectors_as_their_matrices_do():
    rng = np.random.default_rng(0)
    for _ in range(200):
        matrix, _ = np.linalg.qr(rng.normal(size=(3, 3)))
        if np.linalg.det(matrix) < 0:
            matrix[:, 0] *= -1
        x, y, z, w = quaternion_from_matrix(matrix)
        v = rng.normal(size=3)
        u = np.array([x, y, z])
        turned = v + 2 * w * np.cross(u, v) + 2 * np.cross(u, np.cross(u, v))
        assert np.allclose(turned, matrix @ v, atol=1e-9)
