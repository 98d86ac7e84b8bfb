# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Shows in RViz what the policy is about to do: ``action_chunk`` to markers and paths of the hands.

Namespaces of ``predicted_trajectory``, one set an arm: ``<arm>/path`` (blue now, yellow later; the
executed part faded), ``<arm>/frozen`` (cyan over the path: rows that real-time chunking kept from
the chunk before), ``<arm>/opening`` (the fingers, every few rows), ``<arm>/limits`` (red: a joint
of this row is outside of its position limits, and drawn where the filter will hold it, or moves
faster than its velocity limit), ``<arm>/seam`` (where this chunk took over, and where the one
before would have led at that moment), ``<arm>/raw`` and ``<arm>/sent`` (the last two seconds of
what the policy asked for and of what the filter sent), and ``ghost``: the robot as it would stand
at the end. Everything is in the root frame of the description, carries the observation's stamp and
a lifetime, and is latched: a late RViz sees the last prediction, and nobody takes an old one for a
new one.

Also merges the arms' joint states into ``joint_states`` under the description's names, for
robot_state_publisher.
"""

from __future__ import annotations

import collections
import functools
import sys

import numpy as np
from geometry_msgs.msg import Point, PoseStamped
from nav_msgs.msg import Path
from rclpy.duration import Duration
from rclpy.qos import (
    DurabilityPolicy,
    QoSProfile,
    ReliabilityPolicy,
    qos_profile_sensor_data,
)
from sensor_msgs.msg import JointState
from std_msgs.msg import ColorRGBA
from trajectory_msgs.msg import JointTrajectory
from visualization_msgs.msg import Marker, MarkerArray

from pi0_ros.bringup import urdf_text
from pi0_ros.control import ChunkError, parse_chunk_label
from pi0_ros.errors import Pi0RosError
from pi0_ros.kinematics import ForwardKinematics, GripperPoses
from pi0_ros.messages import NANOSECONDS, ns_from_time
from pi0_ros.nodes.lifecycle import OK, WARN, ManagedNode, Status, run
from pi0_ros.robot import RobotSpec

LATCHED = QoSProfile(
    depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL, reliability=ReliabilityPolicy.RELIABLE
)
CHUNK_QOS = QoSProfile(depth=5)

REDRAW_RATE = 10.0
"""How often the executed part is faded anew [Hz]; enough for an eye."""

OPENING_STRIDE = 5
"""Every so many rows the fingers are drawn."""

TRAIL = 100
"""Commands shown behind the hands: two seconds at 50 Hz."""

NOW, LATER = np.array([0.10, 0.35, 0.95]), np.array([1.0, 0.85, 0.1])
"""Colours of the path's two ends."""
FADED, FULL = 0.15, 1.0
TRAIL_COLOURS = {'raw': (0.9, 0.3, 0.9), 'sent': (0.95, 0.95, 0.95)}
GHOST_ALPHA = 0.25
LINE_WIDTH = 0.006  # m
ROUNDING = 1e-5  # rad or m; a float32 action on a bound is not outside of it
FROZEN_COLOUR = (0.1, 0.85, 0.85, 0.9)


class TrajectoryMarkers(ManagedNode):
    """See the module."""

    def __init__(self, **kwargs):
        super().__init__('trajectory_markers', **kwargs)
        self.declare('robot', 'aloha', 'robot name or path of its YAML file', read_only=True)
        self.declare(
            'robot_description', '', "text of a URDF; empty: the one that the robot's YAML names",
            read_only=True,
        )  # fmt: skip
        self.declare(
            'lifetime', 1.0, 'how long a prediction stays visible after its end [s]',
            minimum=0.0, maximum=60.0,
        )  # fmt: skip
        self.declare('ghost', True, 'draw the robot as it would stand at the end of the chunk')
        self._chunk: _Prediction | None = None
        self._shown = 0
        self._fault = ''

    # -- lifecycle ----------------------------------------------------------------------------

    def configure(self) -> None:
        self._robot = robot = RobotSpec.load(self.parameter('robot'))
        text = self.parameter('robot_description')
        source = 'robot_description' if text else robot.urdf
        if not source:
            raise Pi0RosError(
                f"robot '{robot.name}' names no URDF to draw; give its path as 'urdf' in "
                f'{robot.source}, or its text as the parameter robot_description'
            )
        self._kinematics = ForwardKinematics(text or urdf_text(robot), robot, source)
        self._markers = self.create_publisher(MarkerArray, 'predicted_trajectory', LATCHED)
        self._paths = {
            arm.name: self.create_publisher(Path, f'predicted_path/{arm.name}', LATCHED)
            for arm in robot.arms
        }
        self._subscription = self.create_subscription(
            JointTrajectory, 'action_chunk', self._on_chunk, CHUNK_QOS
        )
        self._timer = self.clock.create_wall_timer(1.0 / REDRAW_RATE, self._redraw)
        self._trails = {
            'raw': collections.deque(maxlen=TRAIL), 'sent': collections.deque(maxlen=TRAIL)
        }  # fmt: skip
        self._others = [
            self.create_subscription(
                JointState, topic, functools.partial(self._on_command, name), CHUNK_QOS
            )
            for name, topic in (('raw', 'joint_command_raw'), ('sent', 'joint_command'))
        ]
        merged = self.resolve_topic_name('joint_states')
        self._joint_states = self.create_publisher(JointState, 'joint_states', 10)
        for topic, prefix in robot.joint_state_sources:
            if self.resolve_topic_name(topic) != merged:
                forward = functools.partial(self._on_joints, prefix)
                self._others.append(
                    self.create_subscription(JointState, topic, forward, qos_profile_sensor_data)
                )

    def cleanup(self) -> None:
        for name, destroy in (
            ('_timer', self.destroy_timer), ('_subscription', self.destroy_subscription),
            ('_markers', self.destroy_publisher),
        ):  # fmt: skip
            entity = getattr(self, name, None)
            if entity is not None:
                destroy(entity)
                setattr(self, name, None)
        for subscription in getattr(self, '_others', []):
            self.destroy_subscription(subscription)
        publishers = [*getattr(self, '_paths', {}).values()]
        if getattr(self, '_joint_states', None) is not None:
            publishers.append(self._joint_states)
        for publisher in publishers:
            self.destroy_publisher(publisher)
        self._paths, self._others, self._chunk, self._joint_states = {}, [], None, None

    def diagnostics(self) -> list[Status]:
        level = WARN if self._fault else OK
        values = {'shown': self._shown}
        if self._chunk is not None:
            values['rows frozen'] = self._chunk.frozen
            values['rows beyond limits'] = self._chunk.rows_beyond
        return [Status('chunks', level, self._fault or 'ok', values)]

    # -- drawing ------------------------------------------------------------------------------

    def _on_chunk(self, message: JointTrajectory) -> None:
        if not self.active:
            return
        try:
            chunk = _Prediction(message, self._robot, self._kinematics)
        except Pi0RosError as error:
            if str(error) != self._fault:
                self.get_logger().warning(f'action_chunk not shown: {error}')
            self._fault = str(error)
            return
        chunk.takes_over(self._chunk, (self.clock.now_ns() - chunk.stamp_ns) / NANOSECONDS)
        self._chunk, self._fault = chunk, ''
        self._shown += 1
        for arm, publisher in self._paths.items():
            publisher.publish(self._chunk.path(arm))
        self._redraw()

    def _on_joints(self, prefix: str, message: JointState) -> None:
        if self.active:
            message.name = [
                name if name.startswith(prefix) else prefix + name for name in message.name
            ]
            self._joint_states.publish(message)

    def _on_command(self, which: str, message: JointState) -> None:
        values = dict(zip(message.name, message.position))
        try:
            row = np.array([values[name] for name in self._robot.joint_names])
        except KeyError:
            return  # the filter says what is wrong with it
        if np.isfinite(row).all():
            row = self._robot.policy_to_command(row) if which == 'raw' else row
            self._trails[which].append(row)

    def _redraw(self) -> None:
        if self.active and self._chunk is not None:
            elapsed = (self.clock.now_ns() - self._chunk.stamp_ns) / NANOSECONDS
            lifetime = self.parameter('lifetime')
            if elapsed <= self._chunk.times[-1] + lifetime:
                ghost = self.parameter('ghost')
                markers = self._chunk.markers(elapsed, lifetime, ghost)
                for which, trail in self._trails.items():
                    if len(trail) > 1:
                        markers.markers += self._chunk.trail(which, np.array(trail))
                self._markers.publish(markers)


class _Prediction:
    """
    One chunk, ready to be drawn.

    :raises Pi0RosError: when the message's joints are not the robot's, or it holds no rows.
    """

    def __init__(self, message: JointTrajectory, robot: RobotSpec, kinematics: ForwardKinematics):
        index = {name: i for i, name in enumerate(message.joint_names)}
        missing = [name for name in robot.joint_names if name not in index]
        if missing or not message.points:
            raise Pi0RosError(
                f"a chunk with {len(message.points)} rows lacks joints {', '.join(missing) or '-'}"
                f" of robot '{robot.name}'"
            )
        rows = np.array([point.positions for point in message.points], dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != len(index) or not np.isfinite(rows).all():
            raise Pi0RosError(f'a chunk has rows of shape {rows.shape} or with NaN')
        rows = rows[:, [index[name] for name in robot.joint_names]]
        self.stamp = message.header.stamp
        self.stamp_ns = ns_from_time(message.header.stamp)
        self.times = np.array(
            [p.time_from_start.sec + p.time_from_start.nanosec / NANOSECONDS
             for p in message.points]
        )  # fmt: skip
        self._robot, self._kinematics = robot, kinematics
        asked = robot.policy_to_command(rows)
        lower = [-np.inf if joint.continuous else joint.lower for joint in robot.joints]
        upper = [np.inf if joint.continuous else joint.upper for joint in robot.joints]
        self._commands = np.clip(asked, lower, upper)  # what the filter will let through
        self._outside = np.abs(asked - self._commands) > ROUNDING
        fastest = [np.inf if joint.is_gripper else joint.velocity for joint in robot.joints]
        steps = np.diff(self.times)[:, None]
        if (steps > 0.0).all():
            speed = np.abs(np.diff(asked, axis=0)) / np.maximum(steps, 1e-9)
            self._outside[1:] |= speed > np.array(fastest) * (1.0 + ROUNDING)
        self.rows_beyond = int(self._outside.any(axis=1).sum())
        self.frozen = _frozen_rows(message.header.frame_id, len(rows))
        self._seam, self._seam_before = 0, None
        self._poses: GripperPoses = kinematics.poses(self._commands)

    def takes_over(self, before: _Prediction | None, elapsed: float) -> None:
        """Remember where this chunk took over, and where the one before led at that moment."""
        self._seam = int(np.searchsorted(self.times[:-1], elapsed))
        if before is None:
            return
        at = (self.stamp_ns - before.stamp_ns) / NANOSECONDS + self.times[self._seam]
        if before.times[0] <= at <= before.times[-1]:
            row = int(np.abs(before.times - at).argmin())
            self._seam_before = before._poses.positions[row]

    def path(self, arm_name: str) -> Path:
        """Return one hand's path."""
        column = [arm.name for arm in self._robot.arms].index(arm_name)
        message = Path()
        message.header.frame_id = self._kinematics.root_frame
        message.header.stamp = self.stamp
        for position, rotation in zip(
            self._poses.positions[:, column], self._poses.rotations[:, column]
        ):
            pose = PoseStamped(header=message.header)
            pose.pose.position = _point(position)
            x, y, z, w = quaternion_from_matrix(rotation)
            orientation = pose.pose.orientation
            orientation.x, orientation.y, orientation.z, orientation.w = x, y, z, w
            message.poses.append(pose)
        return message

    def markers(self, elapsed: float, lifetime: float, ghost: bool) -> MarkerArray:
        """Return everything, with the part before ``elapsed`` seconds faded."""
        left = max(float(self.times[-1]) - elapsed, 0.0) + lifetime
        self._lifetime = Duration(seconds=left).to_msg()
        alpha = np.where(self.times <= elapsed, FADED, FULL)
        share = np.linspace(0.0, 1.0, len(self.times))[:, None]
        colours = [
            _colour(*rgb, a) for rgb, a in zip(NOW + share * (LATER - NOW), alpha)
        ]
        result = MarkerArray()
        for column, arm in enumerate(self._robot.arms):
            points = [_point(p) for p in self._poses.positions[:, column]]
            path = self._marker(f'{arm.name}/path', Marker.LINE_STRIP, LINE_WIDTH)
            path.points, path.colors = points, colours
            seam = self._marker(f'{arm.name}/seam', Marker.SPHERE_LIST, 0.015)
            seam.points, seam.colors = [points[self._seam]], [_colour(1.0, 1.0, 1.0, 0.9)]
            if self._seam_before is not None:
                seam.points.append(_point(self._seam_before[column]))
                seam.colors.append(_colour(0.6, 0.6, 0.6, 0.7))
            frozen = self._marker(f'{arm.name}/frozen', Marker.LINE_STRIP, 2 * LINE_WIDTH)
            frozen.points, frozen.color = points[: self.frozen], _colour(*FROZEN_COLOUR)
            if len(frozen.points) < 2:
                frozen.points, frozen.action = [], Marker.DELETE
            result.markers += [path, frozen, seam, self._openings(arm.name, column, colours)]
            result.markers.append(self._limits(arm, points))
        if ghost:
            result.markers += self._ghost()
        return result

    def trail(self, which: str, commands: np.ndarray) -> list[Marker]:
        """Return where commands [n, dof] led the hands; call after :meth:`markers`."""
        positions = self._kinematics.poses(commands).positions
        markers = []
        for column, arm in enumerate(self._robot.arms):
            marker = self._marker(f'{arm.name}/{which}', Marker.LINE_STRIP, LINE_WIDTH / 3)
            marker.color = _colour(*TRAIL_COLOURS[which], 0.8)
            marker.points = [_point(p) for p in positions[:, column]]
            markers.append(marker)
        return markers

    def _openings(self, name: str, column: int, colours) -> Marker:
        marker = self._marker(f'{name}/opening', Marker.LINE_LIST, LINE_WIDTH / 2)
        for row in range(0, len(self.times), OPENING_STRIDE):
            opening = self._poses.openings[row, column]
            if not np.isfinite(opening):
                continue
            centre = self._poses.positions[row, column]
            across = self._poses.rotations[row, column][:, 1] * opening
            marker.points += [_point(centre - across), _point(centre + across)]
            marker.colors += [colours[row]] * 2
        if not marker.points:
            marker.action = Marker.DELETE
        return marker

    def _limits(self, arm, points) -> Marker:
        marker = self._marker(f'{arm.name}/limits', Marker.SPHERE_LIST, 0.018)
        rows = np.flatnonzero(self._outside[:, list(arm.indices)].any(axis=1))
        marker.points = [points[row] for row in rows]
        marker.colors = [_colour(1.0, 0.1, 0.1, 0.9)] * len(rows)
        if not len(rows):
            marker.action = Marker.DELETE
        return marker

    def _ghost(self) -> list[Marker]:
        poses = self._kinematics.link_poses(self._commands[-1])
        kinds = {'box': Marker.CUBE, 'cylinder': Marker.CYLINDER, 'sphere': Marker.SPHERE}
        markers = []
        moving = {arm.prefix for arm in self._robot.arms}
        for number, shape in enumerate(self._kinematics.shapes):
            if not shape.link.startswith(tuple(moving)) or 'base_link' in shape.link:
                continue  # what never moves needs no ghost
            pose = poses[shape.link] @ shape.pose
            marker = self._marker('ghost', kinds[shape.kind], 1.0)
            marker.id = number
            size = shape.size
            if shape.kind == 'cylinder':
                size = (2 * size[0], 2 * size[0], size[1])
            elif shape.kind == 'sphere':
                size = (2 * size[0],) * 3
            marker.scale.x, marker.scale.y, marker.scale.z = map(float, size)
            marker.pose.position = _point(pose[:3, 3])
            x, y, z, w = quaternion_from_matrix(pose[:3, :3])
            orientation = marker.pose.orientation
            orientation.x, orientation.y, orientation.z, orientation.w = x, y, z, w
            marker.color = _colour(*LATER, GHOST_ALPHA)
            markers.append(marker)
        return markers

    def _marker(self, namespace: str, kind: int, size: float) -> Marker:
        marker = Marker(ns=namespace, type=kind, action=Marker.ADD, lifetime=self._lifetime)
        marker.header.frame_id = self._kinematics.root_frame
        marker.header.stamp = self.stamp
        marker.scale.x = marker.scale.y = marker.scale.z = float(size)
        marker.pose.orientation.w = 1.0
        marker.color = _colour(1.0, 1.0, 1.0, 1.0)
        return marker


def _frozen_rows(label: str, rows: int) -> int:
    """Return how many rows a chunk's label says were kept from the one before; 0 if none."""
    try:
        return min(max(parse_chunk_label(label).get('frozen', 0), 0), rows)
    except ChunkError:  # of another publisher
        return 0


def quaternion_from_matrix(rotation: np.ndarray) -> tuple[float, float, float, float]:
    """Return x, y, z, w of a rotation matrix, by the largest of the four (Shepperd's method)."""
    m = rotation
    squares = np.array([
        1 + m[0, 0] - m[1, 1] - m[2, 2], 1 - m[0, 0] + m[1, 1] - m[2, 2],
        1 - m[0, 0] - m[1, 1] + m[2, 2], 1 + m[0, 0] + m[1, 1] + m[2, 2],
    ])  # fmt: skip
    products = np.array([
        [squares[0], m[0, 1] + m[1, 0], m[0, 2] + m[2, 0], m[2, 1] - m[1, 2]],
        [m[0, 1] + m[1, 0], squares[1], m[1, 2] + m[2, 1], m[0, 2] - m[2, 0]],
        [m[0, 2] + m[2, 0], m[1, 2] + m[2, 1], squares[2], m[1, 0] - m[0, 1]],
        [m[2, 1] - m[1, 2], m[0, 2] - m[2, 0], m[1, 0] - m[0, 1], squares[3]],
    ])  # fmt: skip
    row = products[int(np.argmax(squares))]
    x, y, z, w = (row / np.linalg.norm(row)).tolist()
    return x, y, z, w


def _point(xyz) -> Point:
    x, y, z = map(float, xyz)
    return Point(x=x, y=y, z=z)


def _colour(r, g, b, a) -> ColorRGBA:
    return ColorRGBA(r=float(r), g=float(g), b=float(b), a=float(a))


def main(args: list[str] | None = None) -> int:
    """Run the node."""
    return run(TrajectoryMarkers, args)


if __name__ == '__main__':
    sys.exit(main())
