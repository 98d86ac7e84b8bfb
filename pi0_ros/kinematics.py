# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Where the hands will be: forward kinematics of a URDF in the order and units of a robot's commands.

Used by the trajectory markers and by the report's drawings. Imports neither ROS nor torch;
pinocchio does the kinematics.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass

import numpy as np

from pi0_ros.errors import Pi0RosError
from pi0_ros.gripper import joint_rad_from_normalized
from pi0_ros.robot import ArmSpec, GripperSpec, RobotSpec

FOREIGN_ROOTS = {
    'mujoco': 'a MuJoCo model (MJCF)',
    'mujocoinclude': 'an include file of a MuJoCo model (MJCF)',
    'sdf': 'an SDF file',
    'COLLADA': 'a mesh',
    'launch': 'a launch file',
}
"""XML that people give as robot description, by its root element."""

DEFAULT_RGBA = (0.5, 0.5, 0.5, 1.0)


class DescriptionError(Pi0RosError):
    """A robot description that is no URDF or is that of another robot."""


@dataclass(frozen=True)
class Shape:
    """
    One primitive of a link, for drawing.

    ``kind``: box (``size`` = x, y, z), cylinder (radius, length) or sphere (radius,), in m;
    ``pose``: float64 [4, 4] in the link's frame; ``rgba`` each 0..1.
    """

    link: str
    kind: str
    size: tuple[float, ...]
    pose: np.ndarray
    rgba: tuple[float, float, float, float]


@dataclass(frozen=True)
class GripperPoses:
    """
    Poses of every gripper over T rows, in the description's root frame.

    ``positions``: float64 [T, arms, 3] in m; ``rotations``: float64 [T, arms, 3, 3];
    ``openings``: float64 [T, arms], finger position in m, NaN for an arm without a gripper.
    """

    positions: np.ndarray
    rotations: np.ndarray
    openings: np.ndarray


@dataclass(frozen=True)
class _Drive:
    """How one URDF joint follows the command vector: a column, and what is done to it."""

    index: int
    gripper: GripperSpec | None = None
    metres: bool = False
    sign: float = 1.0

    def value(self, commands: np.ndarray) -> np.ndarray:
        command = commands[:, self.index]
        if self.gripper is None:
            return command
        radians, metres = gripper_rad_and_m(self.gripper, command)
        return self.sign * (metres if self.metres else radians)


class ForwardKinematics:
    """
    Forward kinematics of one URDF for one robot.

    :param urdf_xml: text of the URDF (not a path).
    :param robot: names the joints (with or without the arm's prefix in the URDF) and the grippers.
    :param source: named in errors.
    :raises DescriptionError: when the text is no URDF, or lacks a joint or frame of the robot.
    """

    def __init__(
        self, urdf_xml: str, robot: RobotSpec, source: str = 'robot description'
    ) -> None:
        self.robot = robot
        tree = parse_urdf(urdf_xml, source)
        pinocchio = _pinocchio()
        try:
            self._model = pinocchio.buildModelFromXML(urdf_xml)
        except (ValueError, RuntimeError) as error:
            reason = ' '.join(str(error).split())
            raise DescriptionError(f'{source}: not a usable URDF ({reason})') from None
        self._data = self._model.createData()
        self._pinocchio = pinocchio
        self._source = source
        self.name = tree.get('name', '')
        joints = {joint.get('name'): joint for joint in tree.findall('joint')}
        children = {joint.find('child').get('link') for joint in joints.values()}
        links = [link.get('name') for link in tree.findall('link')]
        self.root_frame = next(link for link in links if link not in children)
        """Name of the URDF's root link: the frame of every pose."""
        self.links = tuple(links)
        self.shapes = _shapes(tree)
        """What the URDF's visuals consist of; meshes are left out."""
        self._drives = self._connect(joints)
        self._mimics = [
            (name, mimic.get('joint'), float(mimic.get('multiplier', 1)),
             float(mimic.get('offset', 0)))
            for name, joint in joints.items()
            if (mimic := joint.find('mimic')) is not None and name not in self._drives
        ]  # fmt: skip
        self.gripper_frames = tuple(self._gripper_frame(arm, joints) for arm in robot.arms)
        """The frame whose path is drawn, an arm."""
        self._gripper_ids = [self._frame(frame) for frame in self.gripper_frames]

    def poses(self, commands) -> GripperPoses:
        """
        Return the poses of every gripper.

        :param commands: float [T, dof] or [dof] in command units (``robot.policy_to_command``
            makes them of a chunk; one row gives T = 1).
        :raises DescriptionError: when the width is not the robot's.
        """
        commands = self._commands(commands)
        configurations = self._configurations(commands)
        arms = len(self._gripper_ids)
        positions = np.empty((len(commands), arms, 3))
        rotations = np.empty((len(commands), arms, 3, 3))
        for row, configuration in enumerate(configurations):
            self._pinocchio.forwardKinematics(self._model, self._data, configuration)
            for arm, frame in enumerate(self._gripper_ids):
                pose = self._pinocchio.updateFramePlacement(self._model, self._data, frame)
                positions[row, arm] = pose.translation
                rotations[row, arm] = pose.rotation
        return GripperPoses(positions, rotations, self._openings(commands))

    def chunk_poses(self, actions) -> GripperPoses:
        """Return the poses of every gripper over a chunk [T, dof] in the policy's space."""
        return self.poses(self.robot.policy_to_command(actions))

    def link_poses(self, command) -> dict[str, np.ndarray]:
        """
        Return the pose [4, 4] of every link for one command [dof], in the root frame.

        :raises DescriptionError: when the width is not the robot's.
        """
        configuration = self._configurations(self._commands(command))[0]
        self._pinocchio.framesForwardKinematics(self._model, self._data, configuration)
        return {
            link: self._data.oMf[self._frame(link)].homogeneous.copy()
            for link in self.links
        }

    # --- building

    def _frame(self, link: str) -> int:
        """Return the id of a link's frame; a joint may have the same name."""
        return self._model.getFrameId(link, self._pinocchio.FrameType.BODY)

    def _connect(self, joints: dict) -> dict[str, _Drive]:
        """Return what drives each URDF joint; refuse a description of another robot."""
        movable = {n: j for n, j in joints.items() if j.get('type') not in ('fixed', 'floating')}
        drives: dict[str, _Drive] = {}
        absent = []
        for arm in self.robot.arms:
            for index, joint in zip(arm.indices, arm.joints):
                if joint.is_gripper:
                    continue
                name = _present(joint.name, arm.prefix, movable)
                if name is None or name in drives:
                    absent.append(joint.name)
                else:
                    drives[name] = _Drive(index)
        if absent:
            have = ', '.join(list(movable)[:20]) or 'none'
            raise DescriptionError(
                f"{self._source}: robot '{self.name}' has no joint "
                f'{", ".join(map(repr, absent))} that {self.robot.source} names; its movable '
                f'joints are {have}; give the URDF of this robot'
            )
        for arm in self.robot.arms:
            if arm.gripper is not None:
                self._connect_gripper(arm, movable, joints, drives)
        return drives

    def _connect_gripper(self, arm: ArmSpec, movable, joints, drives) -> None:
        spec, index = arm.gripper, arm.indices[-1]
        own = _present(spec.name, arm.prefix, movable)
        below = _joints_below(self._last_link(arm, joints), joints)
        for name in [own, *below] if own else below:
            if name in drives or name not in movable:
                continue
            joint = movable[name]
            prismatic = joint.get('type') == 'prismatic'
            if name != own and (not prismatic or joint.find('mimic') is not None):
                continue
            limit = joint.find('limit')
            upper = float(limit.get('upper', 1)) if limit is not None else 1.0
            drives[name] = _Drive(index, spec, prismatic, -1.0 if upper <= 0 else 1.0)

    def _last_link(self, arm: ArmSpec, joints) -> str:
        last = [joint for joint in arm.joints if not joint.is_gripper][-1]
        name = _present(last.name, arm.prefix, joints)
        return joints[name].find('child').get('link')

    def _gripper_frame(self, arm: ArmSpec, joints) -> str:
        if not arm.gripper_frame:
            return self._last_link(arm, joints)
        frame = _present(arm.gripper_frame, arm.prefix, self.links)
        if frame is None:
            raise DescriptionError(
                f"{self._source}: no link '{arm.gripper_frame}', the gripper_frame of arm "
                f"'{arm.name}' in {self.robot.source}; it has {', '.join(self.links)}"
            )
        return frame

    # --- evaluating

    def _commands(self, commands) -> np.ndarray:
        commands = np.atleast_2d(np.asarray(commands, dtype=np.float64))
        if commands.ndim != 2 or commands.shape[1] != self.robot.dof:
            raise DescriptionError(
                f'commands of shape {commands.shape} for {self.robot.dof} joints of '
                f"'{self.robot.name}'; expected [T, {self.robot.dof}]"
            )
        return commands

    def _configurations(self, commands: np.ndarray) -> np.ndarray:
        values = {name: drive.value(commands) for name, drive in self._drives.items()}
        for name, source, multiplier, offset in self._mimics:
            values[name] = multiplier * values.get(source, 0.0) + offset
        configurations = np.tile(self._pinocchio.neutral(self._model), (len(commands), 1))
        for name, value in values.items():
            joint = self._model.getJointId(name)
            column = self._model.idx_qs[joint]
            if self._model.nqs[joint] == 2:  # continuous: kept as cosine and sine
                configurations[:, column] = np.cos(value)
                configurations[:, column + 1] = np.sin(value)
            else:
                configurations[:, column] = value
        return configurations

    def _openings(self, commands: np.ndarray) -> np.ndarray:
        openings = np.full((len(commands), len(self.robot.arms)), np.nan)
        for column, arm in enumerate(self.robot.arms):
            if arm.gripper is not None:
                command = commands[:, arm.indices[-1]]
                openings[:, column] = gripper_rad_and_m(arm.gripper, command)[1]
        return openings


def gripper_rad_and_m(gripper: GripperSpec, command) -> tuple[np.ndarray, np.ndarray]:
    """Return motor angle [rad] and finger position [m] of a command in its command unit."""
    command = np.asarray(command, dtype=np.float64)
    if gripper.command_unit == 'm':
        return gripper.joint_rad(command), command
    if gripper.command_unit == 'normalized':
        command = joint_rad_from_normalized(command, gripper.calibration)
    return command, gripper.finger_m(command)


def parse_urdf(text: str, source: str = 'robot description') -> ElementTree.Element:
    """
    Return the ``<robot>`` element of a URDF.

    :raises DescriptionError: when the text is something else; the message says what.
    """
    if not text or not text.strip():
        raise DescriptionError(f'{source}: empty; give the text of a URDF')
    try:
        tree = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        hint = ''
        if text.lstrip()[:1] != '<':
            hint = '; it looks like a path or plain text, give the text of the URDF itself'
        raise DescriptionError(f'{source}: not XML ({error}){hint}') from None
    if tree.tag != 'robot':
        what = FOREIGN_ROOTS.get(tree.tag, f'<{tree.tag}>')
        raise DescriptionError(f'{source}: {what}, not a URDF; give a file whose root is <robot>')
    if any(str(element.tag).startswith('{') for element in tree.iter()):  # a namespace: xacro
        raise DescriptionError(f'{source}: unexpanded xacro; run it through xacro first')
    named = [(kind, e.get('name')) for kind in ('link', 'joint') for e in tree.findall(kind)]
    for kind, name in named:
        if named.count((kind, name)) > 1:
            raise DescriptionError(f"{source}: {kind} '{name}' is defined twice")
    if not tree.findall('link'):
        raise DescriptionError(f"{source}: robot '{tree.get('name')}' has no links")
    links = {link.get('name') for link in tree.findall('link')}
    for joint in tree.findall('joint'):
        for role in ('parent', 'child'):
            end = joint.find(role)
            if end is None or end.get('link') not in links:
                raise DescriptionError(
                    f"{source}: joint '{joint.get('name')}' has no {role} link that exists"
                )
    return tree


def _present(name: str, prefix: str, names) -> str | None:
    bare = name[len(prefix) :] if prefix and name.startswith(prefix) else name
    return next((n for n in (name, bare) if n in names), None)


def _joints_below(link: str, joints: dict) -> list[str]:
    found = []
    for name, joint in joints.items():
        if joint.find('parent').get('link') == link:
            found += [name, *_joints_below(joint.find('child').get('link'), joints)]
    return found


def _shapes(tree: ElementTree.Element) -> tuple[Shape, ...]:
    colours = {
        m.get('name'): _numbers(m.find('color').get('rgba'))
        for m in tree.findall('material')
        if m.find('color') is not None
    }
    shapes = []
    for link in tree.findall('link'):
        for visual in link.findall('visual'):
            geometry = visual.find('geometry')
            material = visual.find('material')
            rgba = DEFAULT_RGBA
            if material is not None:
                own = material.find('color')
                rgba = colours.get(material.get('name'), DEFAULT_RGBA)
                rgba = _numbers(own.get('rgba')) if own is not None else rgba
            for shape in geometry if geometry is not None else ():
                if shape.tag == 'box':
                    size = _numbers(shape.get('size'))
                elif shape.tag == 'cylinder':
                    size = (float(shape.get('radius')), float(shape.get('length')))
                elif shape.tag == 'sphere':
                    size = (float(shape.get('radius')),)
                else:
                    continue
                pose = _origin(visual.find('origin'))
                shapes.append(Shape(link.get('name'), shape.tag, size, pose, rgba))
    return tuple(shapes)


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(number) for number in text.split())


def _origin(element) -> np.ndarray:
    pose = np.eye(4)
    if element is not None:
        roll, pitch, yaw = _numbers(element.get('rpy', '0 0 0'))
        cr, sr, cp, sp = np.cos(roll), np.sin(roll), np.cos(pitch), np.sin(pitch)
        cy, sy = np.cos(yaw), np.sin(yaw)
        pose[:3, :3] = [
            [cy * cp, cy * sp * sr - sy * cr, cy * sp * cr + sy * sr],
            [sy * cp, sy * sp * sr + cy * cr, sy * sp * cr - cy * sr],
            [-sp, cp * sr, cp * cr],
        ]
        pose[:3, 3] = _numbers(element.get('xyz', '0 0 0'))
    return pose


def _pinocchio():
    try:
        import pinocchio
    except ImportError:
        raise DescriptionError(
            "kinematics needs pinocchio; install it with 'pip install pin' or ROS's pinocchio"
        ) from None
    if not hasattr(pinocchio, 'buildModelFromXML'):
        raise DescriptionError(
            f"the installed 'pinocchio' ({pinocchio.__file__}) is not the kinematics library but "
            "a test plugin of that name; 'pip uninstall pinocchio', then 'pip install pin'"
        )
    return pinocchio
