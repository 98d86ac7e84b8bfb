# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
How far the arms are from each other and from the table: capsules and corners from the URDF.

Used by ``nodes.safety_filter`` as the ``distance`` of ``SafetySupervisor``. NumPy only. Every
``<collision>`` box, cylinder and sphere of the URDF becomes one capsule that encloses it; between
arms the distances of all pairs of capsules count (so the answer is never too large), towards the
table the corners of the shapes themselves.

Exceptions, without which no task of ALOHA could be done:

- Fingers may touch fingers of the other arm: a hand-over needs it.
- Fingers may come to the other hand until their enclosing capsules touch; they are slowed in the
  last ``TOUCH_DEPTH``.
- Fingers may touch the table, and be commanded ``TOUCH_DEPTH`` into it: people who demonstrate
  grasps press the leader's fingers a little below the table top. They are slowed from the table
  top on, not above it, where they work.

Not covered: an arm against itself (its joint limits do most of that), objects, people, cables.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass

import numpy as np

from pi0_ros.errors import Pi0RosError
from pi0_ros.kinematics import parse_urdf
from pi0_ros.robot import CollisionSpec, RobotSpec

TOUCH_DEPTH = 0.01
"""How far [m] below the table top fingers may be commanded, from slow to stop."""

CIRCLE_POINTS = 12
"""Corners of the prism around a cylinder; its radius is 1 / cos(pi / 12) = 1.035 times larger."""


class CollisionError(Pi0RosError):
    """A URDF that gives no geometry to check; says which link, and what to do."""


@dataclass(frozen=True)
class Capsule:
    """All points within ``radius`` [m] of the segment from ``start`` to ``end`` (float64 [3])."""

    start: np.ndarray
    end: np.ndarray
    radius: float


@dataclass(frozen=True)
class _Shape:
    """One collision shape: corners in the frame of the arm joint that moves it."""

    link: str
    joint: int  # index into the command vector, -1 for what never moves
    corners: np.ndarray  # float64 [n, 3]
    capsule: Capsule
    finger: bool
    hand: bool  # moved by the arm's last joint
    arm: int
    above_table: bool


class CollisionModel:
    """
    Distances of one robot's arms.

    :param urdf_xml: text of a URDF with primitive collision shapes.
    :param robot: names the arm joints; ``robot.collision`` gives table height and distances.
    :param source: named in errors.
    :raises Pi0RosError: when the text is no URDF, a joint is missing, or a link has only meshes.
    """

    def __init__(self, urdf_xml: str, robot: RobotSpec, source: str = 'robot description'):
        self.spec = robot.collision or CollisionSpec()
        self._touch_scale = (self.spec.slow_distance - self.spec.stop_distance) / TOUCH_DEPTH
        tree = parse_urdf(urdf_xml, source)
        self._chain = _Chain(tree, robot, source)
        self._dof = robot.dof
        shapes = _shapes(tree, robot, self._chain, source)
        self.shapes = len(shapes)
        """How many capsules there are."""
        self._links = [shape.link for shape in shapes]
        self._slots = np.array([self._chain.slot(shape.joint) for shape in shapes])
        self._starts = np.array([[*s.capsule.start, 1.0] for s in shapes])[:, :, None]
        self._ends = np.array([[*s.capsule.end, 1.0] for s in shapes])[:, :, None]
        radii = np.array([shape.capsule.radius for shape in shapes])
        pairs = [
            (i, j)
            for i, one in enumerate(shapes)
            for j, other in enumerate(shapes)
            if one.arm < other.arm and not (one.finger and other.finger)
        ]
        self._first = np.array([i for i, _ in pairs], dtype=int)
        self._second = np.array([j for _, j in pairs], dtype=int)
        pair_radii = radii[self._first] + radii[self._second]
        scale, stop = self._touch_scale, self.spec.stop_distance
        hands = np.array(
            [shapes[i].hand and shapes[j].hand and (shapes[i].finger or shapes[j].finger)
             for i, j in pairs], dtype=bool
        )  # fmt: skip
        self._pair_scales = np.where(hands, scale, 1.0)
        self._pair_offsets = np.where(hands, stop, 0.0) - self._pair_scales * pair_radii
        self._set_table(shapes)

    def distance(self, command) -> tuple[float, str]:
        """
        Return the smallest clearance and what it is between.

        :param command: float [dof], command units.
        :return: metres (negative: overlap of the enclosing capsules) and a text such as
            ``'left/gripper_link to right/upper_arm_link'``. Fingers count towards the table as
            ``slow_distance`` at its top and as ``stop_distance`` at their allowed depth, so that
            two bounds serve all; to the other hand as ``stop_distance`` where capsules touch.
        """
        poses = self._chain.poses(np.asarray(command, dtype=np.float64))
        best, what = np.inf, 'nothing to hit'
        if len(self._first):
            placed = poses[self._slots]
            starts = (placed @ self._starts)[:, :3, 0]
            ends = (placed @ self._ends)[:, :3, 0]
            gaps = segment_distances(
                starts[self._first], ends[self._first], starts[self._second], ends[self._second]
            )
            gaps *= self._pair_scales
            gaps += self._pair_offsets
            nearest = int(gaps.argmin())
            best = float(gaps[nearest])
            what = f'{self._links[self._first[nearest]]} to {self._links[self._second[nearest]]}'
        if len(self._table_slots):
            rows = poses[self._table_slots, 2]
            heights = (rows[:, None, :] @ self._table_corners)[:, 0, 0] * self._table_scales
            heights += self._table_offsets
            lowest = int(heights.argmin())
            if heights[lowest] < best:
                best, what = float(heights[lowest]), f'{self._table_links[lowest]} to table'
        return best, what

    def _set_table(self, shapes: list[_Shape]) -> None:
        checked = [s for s in shapes if s.above_table and self.spec.table_height is not None]
        slots, corners, scales, offsets, links = [], [], [], [], []
        for shape in checked:
            scale, at_top = 1.0, 0.0
            if shape.finger:
                scale, at_top = self._touch_scale, self.spec.slow_distance
            for corner in shape.corners:
                slots.append(self._chain.slot(shape.joint))
                corners.append([*corner, 1.0])
                scales.append(scale)
                offsets.append(at_top - scale * self.spec.table_height)
                links.append(shape.link)
        self._table_slots = np.array(slots, dtype=int)
        self._table_corners = np.array(corners).reshape(-1, 4, 1)
        self._table_scales = np.array(scales)
        self._table_offsets = np.array(offsets)
        self._table_links = links


def segment_distances(p1, q1, p2, q2) -> np.ndarray:
    """
    Return the distances between segments p1-q1 and p2-q2.

    :param p1: float64 [n, 3], as the others; segments of length zero are points.
    :return: float64 [n] in m.
    """
    d1, d2, r = q1 - p1, q2 - p2, p1 - p2
    a = np.maximum(np.einsum('ij,ij->i', d1, d1), 1e-18)
    e = np.maximum(np.einsum('ij,ij->i', d2, d2), 1e-18)
    b = np.einsum('ij,ij->i', d1, d2)
    c = np.einsum('ij,ij->i', d1, r)
    f = np.einsum('ij,ij->i', d2, r)
    determinant = a * e - b * b
    skew = determinant > 1e-12 * a * e
    s = np.where(skew, (b * f - c * e) / np.where(skew, determinant, 1.0), 0.0)
    s = np.minimum(np.maximum(s, 0.0), 1.0)
    t = np.minimum(np.maximum((b * s + f) / e, 0.0), 1.0)
    s = np.minimum(np.maximum((b * t - c) / a, 0.0), 1.0)  # the best partner of a clipped t
    gap = r + d1 * s[:, None] - d2 * t[:, None]
    return np.sqrt(np.einsum('ij,ij->i', gap, gap))


def bounding_capsule(points: np.ndarray) -> Capsule:
    """
    Return a small capsule, along x, y or z, that encloses the convex hull of points [n, 3].

    For each direction the radius is searched between that of the bounding cylinder and that of
    the bounding sphere; the capsule of least volume wins.
    """
    best, least = None, np.inf
    centre = (points.min(axis=0) + points.max(axis=0)) / 2.0
    local = points - centre
    sphere = float(np.sqrt((local**2).sum(axis=1).max()))
    for axis in range(3):
        along = local[:, axis]
        across = np.sqrt(np.maximum((local**2).sum(axis=1) - along**2, 0.0))
        for radius in np.linspace(across.max(), sphere, 12):
            reach = np.sqrt(np.maximum(radius**2 - across**2, 0.0))
            low, high = float((along + reach).min()), float((along - reach).max())
            if low > high:
                low = high = (low + high) / 2.0
            volume = np.pi * radius**2 * (high - low + 4.0 / 3.0 * radius)
            if volume < least:
                start, end = centre.copy(), centre.copy()
                start[axis] += low
                end[axis] += high
                best, least = Capsule(start, end, float(radius) + 1e-9), volume
    return best


class _Chain:
    """Poses of the frames behind each arm joint, all arms of a level at once."""

    def __init__(self, tree: ElementTree.Element, robot: RobotSpec, source: str):
        joints = {joint.get('name'): joint for joint in tree.findall('joint')}
        self._above = {joint.find('child').get('link'): joint for joint in joints.values()}
        self.index_of: dict[str, int] = {}
        """URDF joint name -> index of the command vector; arm joints only."""
        for arm in robot.arms:
            for index, joint in zip(arm.indices, arm.joints):
                if joint.is_gripper:
                    continue
                bare = joint.name[len(arm.prefix) :]
                name = next((n for n in (joint.name, bare) if n in joints), None)
                if name is None or name in self.index_of:
                    raise CollisionError(
                        f"{source}: no joint '{joint.name}' for robot '{robot.name}'; "
                        f'it has {", ".join(joints)}; give the URDF of this robot'
                    )
                self.index_of[name] = index
        frames = {}  # command index -> (parent command index, fixed pose before the joint, joint)
        for name, index in self.index_of.items():
            joint = joints[name]
            parent, pose = self.carrier(joint.find('parent').get('link'))
            frames[index] = (parent, pose @ _origin(joint.find('origin')), joint)
        depth = {-1: 0}
        while len(depth) <= len(frames):
            for index, (parent, _, _) in frames.items():
                if parent in depth:
                    depth[index] = depth[parent] + 1
        self._slot = {-1: 0}
        self._levels = []
        for level in range(1, max(depth.values()) + 1):
            members = [i for i in frames if depth[i] == level]
            for index in members:
                self._slot[index] = len(self._slot)
            axes = np.array([_axis(frames[i][2]) for i in members])
            slides = np.array([frames[i][2].get('type') == 'prismatic' for i in members])
            turning = axes * ~slides[:, None]
            cross = np.zeros((len(members), 3, 3))
            cross[:, 0, 1], cross[:, 0, 2], cross[:, 1, 2] = (
                -turning[:, 2], turning[:, 1], -turning[:, 0],
            )  # fmt: skip
            cross -= cross.transpose(0, 2, 1)
            self._levels.append((
                np.array(members),
                np.array([self._slot[frames[i][0]] for i in members]),
                np.array([self._slot[i] for i in members]),
                np.array([frames[i][1] for i in members]),
                cross, cross @ cross, axes * slides[:, None],
            ))  # fmt: skip
        self._poses = np.tile(np.eye(4), (len(self._slot), 1, 1))

    def slot(self, joint: int) -> int:
        """Return the row of :meth:`poses` for the joint at a command index; -1: the world."""
        return self._slot[joint]

    def poses(self, command: np.ndarray) -> np.ndarray:
        """Return the pose [4, 4] behind each arm joint; the array is reused by the next call."""
        poses = self._poses
        for members, parents, slots, fixed, cross, square, slide in self._levels:
            q = command[members][:, None, None]
            motion = np.zeros_like(fixed)
            motion[:, :3, :3] = np.eye(3) + np.sin(q) * cross + (1.0 - np.cos(q)) * square
            motion[:, :3, 3] = slide * q[:, 0]
            motion[:, 3, 3] = 1.0
            poses[slots] = poses[parents] @ fixed @ motion
        return poses

    def carrier(self, link: str) -> tuple[int, np.ndarray]:
        """Return the arm joint that moves a link (-1: none) and the link's pose behind it."""
        pose = np.eye(4)
        while link in self._above:
            joint = self._above[link]
            if joint.get('name') in self.index_of:
                return self.index_of[joint.get('name')], pose
            pose = _origin(joint.find('origin')) @ pose  # other joints stand at zero
            link = joint.find('parent').get('link')
        return -1, pose

    def joints_above(self, link: str) -> list[ElementTree.Element]:
        """Return the URDF joints from a link up to the root, the nearest first."""
        found = []
        while link in self._above:
            found.append(self._above[link])
            link = found[-1].find('parent').get('link')
        return found


def _shapes(tree, robot: RobotSpec, chain: _Chain, source: str) -> list[_Shape]:
    arm_of = {i: number for number, arm in enumerate(robot.arms) for i in arm.indices}
    base_arm = {}
    first = [arm.indices[0] for arm in robot.arms]
    last = [
        [i for i, joint in zip(arm.indices, arm.joints) if not joint.is_gripper][-1]
        for arm in robot.arms
    ]
    for name, index in chain.index_of.items():
        if index in first:
            joint = next(j for j in tree.findall('joint') if j.get('name') == name)
            base_arm[joint.find('parent').get('link')] = arm_of[index]
    shapes = []
    for link in tree.findall('link'):
        name = link.get('name')
        index, pose = chain.carrier(name)
        if index < 0 and name not in base_arm:
            continue  # the table, a frame: not part of an arm
        arm = arm_of[index] if index >= 0 else base_arm[name]
        slide = _finger_slide(chain, name, index)
        # what stands on the table, and what only turns about an upright axis, cannot hit it
        above_table = index >= 0 and index not in first
        for element in link.findall('collision'):
            corners = _corners(element, name, source)
            if slide is not None:
                corners = np.concatenate([corners + slide[0], corners + slide[1]])
            capsule = bounding_capsule(corners)
            placed = Capsule(
                _transform(pose, capsule.start), _transform(pose, capsule.end), capsule.radius
            )
            shapes.append(
                _Shape(
                    name, index, corners @ pose[:3, :3].T + pose[:3, 3], placed,
                    slide is not None, index in last, arm, above_table,
                )
            )  # fmt: skip
    for number, arm in enumerate(robot.arms):
        if not any(shape.arm == number and shape.joint >= 0 for shape in shapes):
            raise CollisionError(
                f"{source}: no collision shapes on the links of arm '{arm.name}'; give a URDF "
                "with boxes, cylinders or spheres, or switch the check off by disabled_checks: "
                "collision"
            )
    return shapes


def _finger_slide(chain: _Chain, link: str, carrier: int) -> tuple | None:
    """Return both ends [m] of a finger's stroke in its link's frame, None for other links."""
    for joint in chain.joints_above(link):
        if joint.get('name') in chain.index_of:
            return None
        if joint.get('type') == 'prismatic' and carrier >= 0:
            limit, axis = joint.find('limit'), _axis(joint)
            return float(limit.get('lower', 0)) * axis, float(limit.get('upper', 0)) * axis
    return None


def _corners(element: ElementTree.Element, link: str, source: str) -> np.ndarray:
    pose = _origin(element.find('origin'))
    geometry = element.find('geometry')
    shape = geometry[0] if geometry is not None and len(geometry) else None
    kind = shape.tag if shape is not None else 'nothing'
    signs = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], dtype=float)
    if kind == 'box':
        points = signs * np.array([float(v) for v in shape.get('size').split()]) / 2.0
    elif kind == 'sphere':
        points = signs * float(shape.get('radius'))
    elif kind == 'cylinder':
        angles = np.arange(CIRCLE_POINTS) * 2.0 * np.pi / CIRCLE_POINTS
        radius = float(shape.get('radius')) / np.cos(np.pi / CIRCLE_POINTS)
        ring = np.stack([np.cos(angles) * radius, np.sin(angles) * radius], axis=1)
        half = float(shape.get('length')) / 2.0
        points = np.concatenate([
            np.column_stack([ring, np.full(CIRCLE_POINTS, z)]) for z in (-half, half)
        ])  # fmt: skip
    else:
        raise CollisionError(
            f"{source}: collision shape of link '{link}' is a {kind}; the check needs boxes, "
            'cylinders or spheres (config/urdf/aloha.urdf has them); give such a URDF, or switch '
            'the check off by disabled_checks: collision'
        )
    return points @ pose[:3, :3].T + pose[:3, 3]


def _transform(pose: np.ndarray, point: np.ndarray) -> np.ndarray:
    return pose[:3, :3] @ point + pose[:3, 3]


def _axis(joint: ElementTree.Element) -> np.ndarray:
    element = joint.find('axis')
    axis = np.array([float(v) for v in (
        element.get('xyz') if element is not None else '1 0 0').split()])  # fmt: skip
    return axis / np.linalg.norm(axis)


def _origin(element: ElementTree.Element | None) -> np.ndarray:
    pose = np.eye(4)
    if element is None:
        return pose
    r, p, y = (float(v) for v in element.get('rpy', '0 0 0').split())
    cr, sr, cp, sp, cy, sy = np.cos(r), np.sin(r), np.cos(p), np.sin(p), np.cos(y), np.sin(y)
    pose[:3, :3] = [
        [cy * cp, cy * sp * sr - sy * cr, cy * sp * cr + sy * sr],
        [sy * cp, sy * sp * sr + cy * cr, sy * sp * cr - cy * sr],
        [-sp, cp * sr, cp * cr],
    ]
    pose[:3, 3] = [float(v) for v in element.get('xyz', '0 0 0').split()]
    return pose
