# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Draw what trajectory_markers publishes, without RViz: ``python bench/draw_markers.py OUT.png``.

Takes the markers of a real node over real topics, for a chunk in which both hands move down and
towards each other while the left elbow is asked to pass its limit; its first rows are frozen.
"""

from __future__ import annotations

import sys
import time

import matplotlib
import numpy as np
import rclpy
from rclpy.executors import SingleThreadedExecutor
from trajectory_msgs.msg import JointTrajectory
from visualization_msgs.msg import Marker, MarkerArray

from pi0_ros.bringup import urdf_text
from pi0_ros.control import ActionChunk
from pi0_ros.kinematics import ForwardKinematics
from pi0_ros.messages import chunk_message
from pi0_ros.nodes.trajectory_markers import LATCHED, TrajectoryMarkers
from pi0_ros.robot import RobotSpec

BOUND_S = 10.0
EXECUTED_S = 0.3  # of the chunk's 1 s
FROZEN = 20  # rows that real-time chunking kept


def example(robot: RobotSpec) -> np.ndarray:
    """Return a chunk [50, 14] in the policy's space."""
    along = np.linspace(0.0, 1.0, 50)[:, None]
    start = np.array([0.0, -0.96, 1.16, 0.0, -0.3, 0.0, 0.9] * 2)
    end = np.array([0.5, -0.55, 1.75, 0.4, -0.2, 0.5, 0.1, -0.4, -0.2, 0.7, 0.0, 0.4, -0.6, 0.2])
    return start + (end - start) * (1.0 - np.cos(np.pi * along)) / 2.0


def markers_of(actions: np.ndarray, robot: RobotSpec) -> list:
    """Return the markers that the node publishes for a chunk that began ``EXECUTED_S`` ago."""
    rclpy.init()
    executor = SingleThreadedExecutor()
    markers, node = TrajectoryMarkers(), rclpy.create_node('drawing')
    executor.add_node(markers)
    executor.add_node(node)
    try:
        if not markers.start():
            raise SystemExit(markers.failure)
        got = []
        publisher = node.create_publisher(JointTrajectory, 'action_chunk', 5)
        node.create_subscription(MarkerArray, 'predicted_trajectory', got.append, LATCHED)
        end = time.monotonic() + BOUND_S
        sent = False
        while time.monotonic() < end and not (got and len(got[-1].markers) > 10):
            if not sent and publisher.get_subscription_count():
                stamp = node.get_clock().now().nanoseconds - int(EXECUTED_S * 1e9)
                chunk = ActionChunk.of(actions, robot.dof, stamp_ns=stamp, frozen_rows=FROZEN)
                publisher.publish(chunk_message(chunk, robot.joint_names))
                sent = True
            executor.spin_once(timeout_sec=0.05)
        return got[0].markers
    finally:
        markers.tear_down()
        markers.destroy_node()
        node.destroy_node()
        rclpy.shutdown()


def faces(pose: np.ndarray, kind: str, size) -> np.ndarray:
    """Return the faces [n, 4, 3] of a box or a cylinder (12 sides)."""
    if kind == 'box':
        ring = ((-1, -1), (1, -1), (1, 1), (-1, 1))
        corners = np.array([[x, y, z] for z in (-1, 1) for x, y in ring]) * np.array(size) / 2
        sides = 4
    else:
        angle = np.linspace(0, 2 * np.pi, 12, endpoint=False)
        ring = np.stack([size[0] * np.cos(angle), size[0] * np.sin(angle)], axis=1)
        corners = np.concatenate(
            [np.column_stack([ring, np.full(12, z)]) for z in (-size[1] / 2, size[1] / 2)]
        )
        sides = 12
    corners = corners @ pose[:3, :3].T + pose[:3, 3]
    around = [[i, (i + 1) % sides, (i + 1) % sides + sides, i + sides] for i in range(sides)]
    if sides == 4:
        around += [[0, 1, 2, 3], [4, 5, 6, 7]]
    return corners[around]


def draw(markers: list, kinematics: ForwardKinematics, measured: np.ndarray, out: str) -> None:
    """Draw the robot at ``measured`` [dof, command units] and the markers, from two sides."""
    matplotlib.use('Agg')
    from matplotlib import pyplot
    from mpl_toolkits.mplot3d.art3d import Line3DCollection, Poly3DCollection

    figure = pyplot.figure(figsize=(13, 5.6))
    links = kinematics.link_poses(measured)
    for number, (title, elevation, azimuth) in enumerate(
        (('from the operator, above', 28, -72), ('from the side, above', 50, -100))
    ):
        axes = figure.add_subplot(1, 2, number + 1, projection='3d', computed_zorder=False)
        for shape in kinematics.shapes:
            table = shape.link == 'table'
            axes.add_collection3d(Poly3DCollection(
                faces(links[shape.link] @ shape.pose, shape.kind, shape.size),
                facecolor=(*shape.rgba[:3], 0.25 if table else 0.9),
                edgecolor='none' if table else (0, 0, 0, 0.25), linewidth=0.3,
                zorder=1 if table else 2,
            ))  # fmt: skip
        for marker in markers:
            draw_marker(axes, marker, Line3DCollection, Poly3DCollection)
        axes.set(xlim=(-0.62, 0.62), ylim=(0.25, 0.85), zlim=(0, 0.5), title=title)
        axes.set(xlabel='x [m]', ylabel='y [m]', zlabel='z [m]')
        axes.set_box_aspect((1.24, 0.6, 0.5), zoom=1.1)
        axes.view_init(elevation, azimuth)
    figure.suptitle(
        'predicted_trajectory: blue now, yellow later, faded executed, cyan frozen, red outside '
        'a limit, ghost at the end'
    )
    figure.subplots_adjust(0.0, 0.0, 1.0, 0.9, 0.0)
    figure.savefig(out, dpi=90)


def draw_marker(axes, marker, lines, polygons) -> None:
    """Draw one marker, if it is one to draw."""
    if marker.action != Marker.ADD:
        return
    points = np.array([[p.x, p.y, p.z] for p in marker.points])
    colours = [(c.r, c.g, c.b, c.a) for c in marker.colors]
    if marker.type == Marker.LINE_STRIP and len(points) > 1:
        pieces = np.stack([points[:-1], points[1:]], axis=1)
        c = marker.color
        wide, over = (4, 9) if colours else (7, 8)
        colours = colours[:-1] or [(c.r, c.g, c.b, c.a)] * len(pieces)
        axes.add_collection3d(lines(pieces, colors=colours, linewidths=wide, zorder=over))
    elif marker.type == Marker.LINE_LIST:
        pieces = points.reshape(-1, 2, 3)
        axes.add_collection3d(lines(pieces, colors=colours[::2], linewidths=1, zorder=8))
    elif marker.type == Marker.SPHERE_LIST:
        axes.scatter(*points.T, c=colours, s=22, linewidths=0, zorder=10)
    elif marker.type in (Marker.CUBE, Marker.CYLINDER):
        q, p, s = marker.pose.orientation, marker.pose.position, marker.scale
        u = np.array([q.x, q.y, q.z])
        pose = np.eye(4)
        pose[:3, :3] = [v + 2 * q.w * np.cross(u, v) + 2 * np.cross(u, np.cross(u, v))
                        for v in np.eye(3)]  # fmt: skip
        pose[:3, :3] = pose[:3, :3].T
        pose[:3, 3] = (p.x, p.y, p.z)
        cube = marker.type == Marker.CUBE
        size = (s.x, s.y, s.z) if cube else (s.x / 2, s.z)
        c = marker.color
        axes.add_collection3d(polygons(
            faces(pose, 'box' if cube else 'cylinder', size),
            facecolor=(c.r, c.g, c.b, c.a / 2), zorder=3,
        ))  # fmt: skip


def main(out: str) -> None:
    robot = RobotSpec.load('aloha')
    actions = example(robot)
    kinematics = ForwardKinematics(urdf_text(robot), robot)
    row = int(EXECUTED_S * robot.policy_rate)
    measured = robot.policy_to_command(actions)[row]
    draw(markers_of(actions, robot), kinematics, measured, out)


if __name__ == '__main__':
    main(sys.argv[1] if len(sys.argv) > 1 else 'predicted_trajectory.png')
