# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
A robot as data: joints, grippers, cameras, topics and rates, read from one YAML file.

Called by every other part; imports neither ROS nor torch. ``config/robots/aloha.yaml`` documents
the format. Whatever is unknown, missing, of the wrong type or out of order is refused with the
file, the key, the value and what was expected.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np
import yaml

from pi0_ros import gripper as gripper_maps
from pi0_ros.errors import Pi0RosError
from pi0_ros.foreign import foreign_format
from pi0_ros.gripper import GripperCalibration
from pi0_ros.resources import share_path

GRIPPER_UNITS = ('rad', 'm', 'normalized')
POLICY_SPACES = ('normalized', 'pi_angle', 'rad', 'm')
OUTPUT_KINDS = ('interbotix', 'forward_command', 'joint_trajectory', 'none')
CAMERA_SLOTS = ('base_0_rgb', 'left_wrist_0_rgb', 'right_wrist_0_rgb')
"""The image slots of pi0 in the order in which it was trained (openpi's names)."""

OPENING_TOLERANCE = 0.2
"""
How far a measured opening may leave [0, 1] before it is a unit or calibration fault.

Backlash and finger pads account for a few per cent; radians read as metres give 29.
"""

LINKAGE_TOLERANCE_M = 1.5e-3
"""Largest disagreement between calibrated end stops and the linkage, about 4 % of the travel."""


class RobotError(Pi0RosError):
    """A robot description that cannot be used; says file, key, value and what was expected."""


@dataclass(frozen=True)
class JointSpec:
    """
    One entry of the policy's joint vector, in COMMAND units.

    ``lower``/``upper`` [unit], ``velocity`` [unit/s], ``acceleration`` [unit/s^2], ``jerk``
    [unit/s^3]; unit is rad for arm joints and the gripper's command unit for grippers.
    """

    name: str
    lower: float
    upper: float
    velocity: float
    acceleration: float
    jerk: float
    continuous: bool = False
    is_gripper: bool = False
    unit: str = 'rad'


@dataclass(frozen=True)
class GripperSpec:
    """
    How one gripper is measured, spoken of by the policy, and commanded.

    ``name`` and ``measured_joint`` carry the arm's prefix.
    """

    name: str
    measured_joint: str
    measured_unit: str
    command_unit: str
    policy_space: str
    constants: str
    calibration: GripperCalibration
    squeeze_limit: float | None = None  # command units; None: off

    def finger_m(self, joint_rad):
        """Return the finger position [m] at a motor angle [rad]; linear without a linkage."""
        c = self.calibration
        if c.horn_radius > 0.0:
            return gripper_maps.finger_m_from_joint_rad(joint_rad, c)
        return gripper_maps.finger_m_from_normalized(
            gripper_maps.normalized_from_joint_rad(joint_rad, c), c
        )

    def joint_rad(self, finger_m):
        """Return the motor angle [rad] at a finger position [m]; linear without a linkage."""
        c = self.calibration
        if c.horn_radius > 0.0:
            return gripper_maps.joint_rad_from_finger_m(finger_m, c)
        return gripper_maps.joint_rad_from_normalized(
            gripper_maps.normalized_from_finger_m(finger_m, c), c
        )

    def opening_from_measured(self, value):
        """Return the normalised opening of a reading in ``measured_unit``, unclipped."""
        if self.measured_unit == 'normalized':
            return np.asarray(value, dtype=np.float64)
        finger = self.finger_m(value) if self.measured_unit == 'rad' else value
        return gripper_maps.normalized_from_finger_m(finger, self.calibration)

    def policy_from_measured(self, value):
        """Return what the policy is told of a reading: opening, or the raw rad or m."""
        if self.policy_space in ('rad', 'm'):
            return self._convert(value, self.measured_unit, self.policy_space)
        return np.clip(self.opening_from_measured(value), 0.0, 1.0)

    def command_from_measured(self, value):
        """Return a reading in ``command_unit``, to compare with commands."""
        return self._convert(value, self.measured_unit, self.command_unit)

    def command_from_policy(self, action):
        """Return the command for an action in ``policy_space``; the pi-Aloha transform."""
        if self.policy_space in ('rad', 'm'):
            return self._convert(action, self.policy_space, self.command_unit)
        if self.policy_space == 'pi_angle':
            theta = gripper_maps.joint_rad_from_pi_action(action, self.constants)
        elif self.command_unit == 'normalized':
            return np.asarray(action, dtype=np.float64)
        else:
            theta = gripper_maps.joint_rad_from_normalized(action, self.calibration)
        return self._convert(theta, 'rad', self.command_unit)

    def _convert(self, value, unit: str, wanted: str):
        value = np.asarray(value, dtype=np.float64)
        if unit == wanted:
            return value
        if unit == 'normalized':  # a measured opening is one of the finger
            value, unit = gripper_maps.finger_m_from_normalized(value, self.calibration), 'm'
            if wanted == 'm':
                return value
        if wanted == 'm':
            return self.finger_m(value)
        theta = value if unit == 'rad' else self.joint_rad(value)
        if wanted == 'rad':
            return theta
        return gripper_maps.normalized_from_joint_rad(theta, self.calibration)


@dataclass(frozen=True)
class OutputSpec:
    """
    How one arm's commands reach its driver.

    ``joints`` are the driver's joint names in the driver's order (default: the arm's own).
    """

    kind: str = 'none'
    namespace: str = ''  # interbotix: <namespace>/commands/joint_group and joint_single
    group: str = 'arm'
    gripper: str = 'gripper'
    topic: str = ''  # forward_command, joint_trajectory
    gripper_topic: str = ''
    joints: tuple[str, ...] = ()
    gripper_joint: str = ''
    gripper_mirror: str = ''  # a second joint of the gripper's controller, moved the other way
    time_from_start: float = 0.04  # s, joint_trajectory


@dataclass(frozen=True)
class ArmSpec:
    """One arm: its joints (with prefix), where its state comes from and its commands go to."""

    name: str
    prefix: str
    joint_states: str
    joints: tuple[JointSpec, ...]  # arm joints, then the gripper if there is one
    gripper: GripperSpec | None
    output: OutputSpec
    indices: tuple[int, ...]  # of ``joints`` in the policy's vector
    base_frame: str = ''
    gripper_frame: str = ''


@dataclass(frozen=True)
class CameraSpec:
    """One camera: topic, transport, and the slot of the policy that it fills ('': by name)."""

    name: str
    slot: str
    topic: str
    transport: str = 'raw'
    required: bool = True
    encoding: str | None = None  # overrides the label of the messages


@dataclass(frozen=True)
class CollisionSpec:
    """Distances [m] of the self-collision check: slow below the first, hold at the second."""

    slow_distance: float = 0.08
    stop_distance: float = 0.03
    table_height: float | None = 0.0


@dataclass(frozen=True)
class RobotSpec:
    """
    A whole robot in policy order: the first arm's joints and gripper, then the next arm's.

    Make one with :meth:`load` or :meth:`from_dict`.
    """

    name: str
    source: str
    control_rate: float  # Hz, setpoints sent to the arm
    policy_rate: float  # Hz, rows of a chunk
    policy_units: str  # 'rad' or 'deg', arm joints only
    arms: tuple[ArmSpec, ...]
    cameras: Mapping[str, CameraSpec]
    poses: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    urdf: str = ''
    description: str = ''
    collision: CollisionSpec | None = None

    @classmethod
    def load(cls, name_or_path: str | os.PathLike) -> RobotSpec:
        """
        Read a robot by name (``config/robots/<name>.yaml``) or by path.

        :raises RobotError: when the file is missing, is no YAML, or does not fit the format.
        """
        path = _find(name_or_path)
        try:
            text = path.read_text(encoding='utf-8')
            if text.lstrip().startswith('<'):
                what = 'an MJCF' if '<mujoco' in text else 'a URDF'
                raise RobotError(
                    f"{path}: this is XML ({what}?), not a pi0_ros robot; a URDF's path goes to "
                    "the key 'urdf' of one (see config/robots/aloha.yaml)"
                )
            data = yaml.load(text, Loader=_UniqueKeyLoader)
            if data is None:
                raise RobotError(f'{path}: the file is empty; see config/robots/aloha.yaml')
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            what = ' '.join(str(error).split())
            raise RobotError(f'{path}: not a readable YAML file ({what})') from None
        return cls.from_dict(data, str(path))

    @classmethod
    def from_dict(cls, data: Mapping, source: str = 'robot description') -> RobotSpec:
        """
        Build a robot from the mapping that a YAML file holds.

        :param source: named in errors.
        :raises RobotError: on the first fault found.
        """
        return _parse_robot(_Section(data, '', source))

    @property
    def joints(self) -> tuple[JointSpec, ...]:
        return tuple(joint for arm in self.arms for joint in arm.joints)

    @property
    def joint_names(self) -> tuple[str, ...]:
        return tuple(joint.name for joint in self.joints)

    @property
    def dof(self) -> int:
        return len(self.joints)

    @property
    def gripper_indices(self) -> tuple[int, ...]:
        return tuple(i for i, joint in enumerate(self.joints) if joint.is_gripper)

    @property
    def grippers(self) -> Mapping[int, GripperSpec]:
        """Grippers by their index in the policy's vector."""
        return {arm.indices[-1]: arm.gripper for arm in self.arms if arm.gripper}

    @property
    def state_names(self) -> tuple[str, ...]:
        """The joint_states entry that each element of the policy's vector is read from."""
        names = list(self.joint_names)
        for index, gripper in self.grippers.items():
            names[index] = gripper.measured_joint
        return tuple(names)

    @property
    def urdf_path(self) -> Path:
        """
        The URDF's file: beside the robot's YAML, below ``config/``, or by an absolute path.

        :raises RobotError: when the robot names none, or it is in none of these places.
        """
        if not self.urdf:
            raise RobotError(f"{self.source}: robot '{self.name}' has no urdf; add the key 'urdf'")
        beside = Path(self.source).parent / self.urdf
        if beside.is_file():
            return beside
        try:
            return share_path(f'config/{self.urdf}')
        except Pi0RosError:
            raise RobotError(
                f"{self.source}: urdf is '{self.urdf}'; expected a file beside this one, "
                'one below config/ of this package, or an absolute path'
            ) from None

    @property
    def joint_state_sources(self) -> tuple[tuple[str, str], ...]:
        """Distinct (topic, prefix) pairs; arms that share a topic are told apart by prefix."""
        return tuple(dict.fromkeys((arm.joint_states, arm.prefix) for arm in self.arms))

    def resolve_joint(self, prefix: str, name: str) -> str:
        """Return the robot-wide name of a joint_states entry: bare names get the prefix."""
        return name if name in self.state_names or name in self.joint_names else prefix + name

    def measured_to_policy(self, positions) -> np.ndarray:
        """
        Return the policy's state for measured positions.

        :param positions: float [dof] in the order of ``state_names``, rad (gripper: as measured).
        :return: float64 [dof]; arm joints in ``policy_units``, grippers in the policy's space.
        :raises RobotError: when an opening is so far outside [0, 1] that its unit must be wrong.
        """
        state = self._vector(positions)
        for index, gripper in self.grippers.items():
            opening = float(gripper.opening_from_measured(state[index]))
            if not -OPENING_TOLERANCE <= opening <= 1.0 + OPENING_TOLERANCE:
                raise RobotError(
                    f"{gripper.name}: reading {state[index]:.4g} {gripper.measured_unit} of "
                    f"'{gripper.measured_joint}' is an opening of {opening:.2f}, far outside "
                    f'0..1; check the unit and the calibration in {self.source}'
                )
            state[index] = gripper.policy_from_measured(state[index])
        return self._scale_arm_joints(state, np.degrees)

    def measured_to_command(self, positions) -> np.ndarray:
        """Return measured positions [dof] (order of ``state_names``) in command units."""
        command = self._vector(positions)
        for index, gripper in self.grippers.items():
            command[index] = gripper.command_from_measured(command[index])
        return command

    def policy_to_command(self, actions) -> np.ndarray:
        """Return actions [..., dof] in the policy's space as commands in command units."""
        command = self._scale_arm_joints(self._vector(actions), np.radians)
        for index, gripper in self.grippers.items():
            command[..., index] = gripper.command_from_policy(command[..., index])
        return command

    def _vector(self, values) -> np.ndarray:
        vector = np.array(values, dtype=np.float64)
        if vector.ndim == 0 or vector.shape[-1] != self.dof:
            raise RobotError(
                f'{self.name}: {vector.shape} values given for {self.dof} joints '
                f'({", ".join(self.joint_names)})'
            )
        return vector

    def _scale_arm_joints(self, values: np.ndarray, convert) -> np.ndarray:
        if self.policy_units == 'deg':
            arm = [i for i, joint in enumerate(self.joints) if not joint.is_gripper]
            values[..., arm] = convert(values[..., arm])
        return values


# --- reading the YAML -----------------------------------------------------------------------

class _UniqueKeyLoader(yaml.SafeLoader):
    """A key given twice is a mistake; PyYAML alone keeps the last one without a word."""


def _construct_unique_mapping(loader, node):
    loader.flatten_mapping(node)
    seen = set()
    for key_node, _ in node.value:
        key = str(key_node.value)
        if key in seen:
            raise yaml.constructor.ConstructorError(
                None, None, f"key '{key}' is given twice", key_node.start_mark
            )
        seen.add(key)
    return yaml.SafeLoader.construct_mapping(loader, node, deep=True)


_UniqueKeyLoader.add_constructor(
    yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _construct_unique_mapping
)


def _find(name_or_path) -> Path:
    text = os.fspath(name_or_path)
    path = Path(text).expanduser()
    if path.is_file():
        return path
    if os.sep not in text and not text.endswith(('.yaml', '.yml')):
        known = sorted(p.stem for p in share_path('config/robots').glob('*.yaml'))
        if text in known:
            return share_path(f'config/robots/{text}.yaml')
        raise RobotError(
            f"robot '{text}' is not known; expected one of {', '.join(known)}, "
            'or the path of a YAML file'
        )
    what = 'is a folder' if path.is_dir() else 'does not exist'
    raise RobotError(f"robot file '{text}' {what}; give a YAML file's path or a known name")


_MISSING = object()


class _Section:
    """One mapping of the file, with the key path to it for error messages."""

    def __init__(self, data, path: str, source: str):
        self.path, self.source = path, source
        if not isinstance(data, Mapping):
            self.fail('', data, 'a mapping of keys to values (see config/robots/aloha.yaml)')
        self.data = data

    def key(self, key: str) -> str:
        return '.'.join(part for part in (self.path, str(key)) if part)

    def fail(self, key: str, value, expected: str):
        shown = repr(value) if len(repr(value)) < 80 else repr(value)[:77] + '...'
        where = self.key(key) or 'the file'
        raise RobotError(f'{self.source}: {where} is {shown}; expected {expected}')

    def allow_only(self, *keys: str) -> None:
        for key in self.data:
            if key in keys:
                continue
            text, hint = str(key), ''
            if '$(' in text:
                hint = '; it is an unresolved launch substitution'
            if not self.path and foreign_format(self.data):
                hint += f'; this looks like {foreign_format(self.data)}'
            elif not hint:
                close = _closest(text, keys)
                hint = f"; did you mean '{close}'?" if close else ''
            raise RobotError(
                f"{self.source}: unknown key '{self.key(text)}'{hint} "
                f'(a pi0_ros robot has here: {", ".join(keys)}; see config/robots/aloha.yaml)'
            )

    def get(self, key: str, default=_MISSING):
        if key in self.data:
            return self.data[key]
        if default is _MISSING:
            have = ', '.join(str(k) for k in self.data) or 'nothing'
            raise RobotError(f"{self.source}: key '{self.key(key)}' is missing (given: {have})")
        return default

    def text(self, key: str, default=_MISSING, choices: tuple[str, ...] = ()) -> str:
        value = self.get(key, default)
        if value is default:
            return value
        if not isinstance(value, str) or (default is _MISSING and not value):
            self.fail(key, value, 'a text')
        if choices and value not in choices:
            self.fail(key, value, 'one of ' + ', '.join(choices))
        if '$(' in value:
            self.fail(key, value, 'a plain value, not an unresolved launch substitution')
        return value

    def number(self, key: str, default=_MISSING, positive: bool = False):
        value = self.get(key, default)
        if value is default:
            return value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.fail(key, value, 'a number')
        if not math.isfinite(value):
            self.fail(key, value, 'a finite number')
        if positive and value <= 0:
            self.fail(key, value, 'a number above zero')
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            self.fail(key, value, 'true or false')
        return value

    def topic(self, key: str, default=_MISSING) -> str:
        value = self.text(key, default)
        if value and (' ' in value or value.endswith('/')):
            self.fail(key, value, 'a ROS topic name')
        return value

    def section(self, key: str) -> _Section:
        return _Section(self.get(key), self.key(key), self.source)

    def sections(self, key: str) -> list[_Section]:
        value = self.get(key)
        if not isinstance(value, list) or not value:
            self.fail(key, value, 'a list with at least one entry')
        return [_Section(v, f'{self.key(key)}[{i}]', self.source) for i, v in enumerate(value)]


def _closest(text: str, keys) -> str | None:
    return next(iter(difflib.get_close_matches(text, keys, 1, 0.75)), None)


def _parse_robot(s: _Section) -> RobotSpec:
    s.allow_only(
        'name', 'description', 'control_rate', 'policy_rate', 'policy_units', 'urdf', 'arms',
        'cameras', 'poses', 'collision',
    )  # fmt: skip
    control_rate = s.number('control_rate', positive=True)
    arms, start = [], 0
    for section in s.sections('arms'):
        arm = _parse_arm(section, start)
        arms.append(arm)
        start += len(arm.joints)
    names = [joint.name for arm in arms for joint in arm.joints]
    for name in names:
        if names.count(name) > 1:
            s.fail('arms', name, f"joint names that differ; '{name}' comes twice, set a prefix")
    labels = [arm.name for arm in arms]
    if len(set(labels)) < len(labels):
        s.fail('arms', labels, 'arm names that differ')
    return RobotSpec(
        name=s.text('name'),
        source=s.source,
        description=s.text('description', ''),
        control_rate=control_rate,
        policy_rate=s.number('policy_rate', control_rate, positive=True),
        policy_units=s.text('policy_units', 'rad', ('rad', 'deg')),
        urdf=s.text('urdf', ''),
        arms=tuple(arms),
        cameras=_parse_cameras(s.section('cameras')),
        poses=_parse_poses(s, tuple(arms)),
        collision=_parse_collision(s),
    )


def _parse_arm(s: _Section, start: int) -> ArmSpec:
    s.allow_only(
        'name', 'prefix', 'joint_states', 'joints', 'gripper', 'output', 'base_frame',
        'gripper_frame',
    )  # fmt: skip
    prefix = s.text('prefix', '')
    joints = [_parse_joint(section, prefix) for section in s.sections('joints')]
    gripper = None
    if s.get('gripper', None) is not None:
        joint, gripper = _parse_gripper(s.section('gripper'), prefix)
        joints.append(joint)
    output = _parse_output(s.section('output'), prefix, joints) if 'output' in s.data else None
    return ArmSpec(
        name=s.text('name'),
        prefix=prefix,
        joint_states=s.topic('joint_states'),
        joints=tuple(joints),
        gripper=gripper,
        output=output or OutputSpec(),
        indices=tuple(range(start, start + len(joints))),
        base_frame=s.text('base_frame', ''),
        gripper_frame=s.text('gripper_frame', ''),
    )


def _bounds(s: _Section) -> dict[str, float]:
    lower, upper = s.number('lower'), s.number('upper')
    if lower >= upper:
        s.fail('lower', lower, f'a value below upper ({upper})')
    rates = {k: s.number(k, positive=True) for k in ('velocity', 'acceleration', 'jerk')}
    return {'lower': lower, 'upper': upper, **rates}


def _parse_joint(s: _Section, prefix: str) -> JointSpec:
    s.allow_only('name', 'lower', 'upper', 'velocity', 'acceleration', 'jerk', 'continuous')
    return JointSpec(
        prefix + s.text('name'), continuous=s.flag('continuous', False), **_bounds(s)
    )


def _parse_gripper(s: _Section, prefix: str) -> tuple[JointSpec, GripperSpec]:
    s.allow_only(
        'name', 'measured', 'command_unit', 'policy_space', 'constants', 'calibration',
        'squeeze_limit', 'lower', 'upper', 'velocity', 'acceleration', 'jerk',
    )  # fmt: skip
    measured = s.section('measured')
    measured.allow_only('joint', 'unit')
    unit = s.text('command_unit', choices=GRIPPER_UNITS)
    name = prefix + s.text('name')
    bounds = _bounds(s)
    spec = GripperSpec(
        name=name,
        measured_joint=prefix + measured.text('joint'),
        measured_unit=measured.text('unit', choices=GRIPPER_UNITS),
        command_unit=unit,
        policy_space=s.text('policy_space', 'normalized', POLICY_SPACES),
        constants=s.text('constants', 'openpi', tuple(gripper_maps.PI_ANGLE_CLOSED)),
        calibration=_parse_calibration(s, bounds),
        squeeze_limit=s.number('squeeze_limit', None, positive=True),
    )
    return JointSpec(name, is_gripper=True, unit=unit, **bounds), spec


def _parse_calibration(s: _Section, bounds: Mapping[str, float]) -> GripperCalibration:
    if 'calibration' not in s.data:
        return _calibration_by_limits(s, bounds)
    c = s.section('calibration')
    names = [f.name for f in fields(GripperCalibration)]
    c.allow_only(*names)
    linear = {'horn_radius': 0.0, 'rod_length': 1.0}  # without a linkage its lengths mean nothing
    values = {n: c.number(n, linear.get(n, _MISSING)) for n in names}
    calibration = GripperCalibration(**values)
    for end in ('joint', 'finger'):
        closed, opened = getattr(calibration, f'{end}_closed'), getattr(calibration, f'{end}_open')
        if closed == opened or (closed > opened and calibration.horn_radius > 0.0):
            c.fail(
                f'{end}_closed', closed,
                f'a value below {end}_open (or, with horn_radius: 0, any other than it)',
            )  # fmt: skip
    if calibration.horn_radius < 0 or calibration.rod_length <= calibration.horn_radius:
        c.fail('rod_length', calibration.rod_length, 'a length above horn_radius (0: no linkage)')
    if calibration.horn_radius > 0:
        for end in ('closed', 'open'):
            theta = getattr(calibration, f'joint_{end}')
            finger = getattr(calibration, f'finger_{end}')
            by_linkage = float(gripper_maps.finger_m_from_joint_rad(theta, calibration))
            if abs(by_linkage - finger) > LINKAGE_TOLERANCE_M:
                c.fail(
                    f'finger_{end}', finger,
                    f'{by_linkage:.4f} m, where the linkage puts joint_{end} = {theta} rad '
                    '(horn_radius: 0 for a gripper without this linkage)',
                )  # fmt: skip
    return calibration


def _calibration_by_limits(s: _Section, bounds: Mapping[str, float]) -> GripperCalibration:
    """Return a linear calibration: closed at the lower limit, open at the upper one."""
    unit = s.data['command_unit']
    if s.data['measured']['unit'] != unit or s.data.get('policy_space', '') == 'pi_angle':
        s.fail(
            'calibration', None,
            'end stops (joint_closed, joint_open [rad], finger_closed, finger_open [m]): only a '
            'gripper that is measured and commanded in one unit can do without',
        )  # fmt: skip
    closed, opened = bounds['lower'], bounds['upper']
    return GripperCalibration(closed, opened, closed, opened, horn_radius=0.0, rod_length=1.0)


def _parse_output(s: _Section, prefix: str, joints: list[JointSpec]) -> OutputSpec:
    s.allow_only(*(f.name for f in fields(OutputSpec)))
    kind = s.text('kind', choices=OUTPUT_KINDS)
    own = [j.name[len(prefix) :] for j in joints if not j.is_gripper]
    names = s.get('joints', None)
    if names is not None and sorted(map(str, names)) != sorted(own):
        s.fail('joints', names, f'the same joints as the arm has, in any order: {own}')
    if kind == 'interbotix':
        s.topic('namespace')
    elif kind != 'none':
        s.topic('topic')
        if any(j.is_gripper for j in joints):
            s.topic('gripper_topic')
    return OutputSpec(
        kind=kind,
        namespace=s.topic('namespace', ''),
        group=s.text('group', 'arm'),
        gripper=s.text('gripper', 'gripper'),
        topic=s.topic('topic', ''),
        gripper_topic=s.topic('gripper_topic', ''),
        joints=tuple(names or own),
        gripper_joint=s.text('gripper_joint', ''),
        gripper_mirror=s.text('gripper_mirror', ''),
        time_from_start=s.number('time_from_start', OutputSpec.time_from_start, positive=True),
    )


def _parse_cameras(s: _Section) -> dict[str, CameraSpec]:
    if not s.data:
        s.fail('', s.data, 'at least one camera')
    cameras = {}
    for name in s.data:
        c = s.section(name)
        c.allow_only('slot', 'topic', 'transport', 'required', 'encoding')
        cameras[str(name)] = CameraSpec(
            name=str(name),
            slot=c.text('slot', '', CAMERA_SLOTS),
            topic=c.topic('topic'),
            transport=c.text('transport', 'raw', ('raw', 'compressed')),
            required=c.flag('required', True),
            encoding=c.text('encoding', None),
        )
    for what in ('slot', 'topic'):
        values = [getattr(camera, what) for camera in cameras.values()]
        for value in values:
            if value and values.count(value) > 1:
                s.fail('', list(cameras), f'a different {what} for each camera ({value!r} twice)')
    return cameras


def _parse_poses(s: _Section, arms: tuple[ArmSpec, ...]) -> dict[str, tuple[float, ...]]:
    if 'poses' not in s.data:
        return {}
    poses = {}
    for name in s.section('poses').data:
        p = s.section('poses').section(name)
        p.allow_only(*(arm.name for arm in arms))
        pose = []
        for arm in arms:
            values = p.get(arm.name)
            if not isinstance(values, list) or len(values) != len(arm.joints):
                p.fail(arm.name, values, f'{len(arm.joints)} numbers')
            for joint, value in zip(arm.joints, values):
                if isinstance(value, bool) or not isinstance(value, (int, float)):
                    p.fail(arm.name, values, 'numbers')
                if not joint.lower <= value <= joint.upper:
                    p.fail(
                        arm.name, value,
                        f'a value for {joint.name} within {joint.lower}..{joint.upper}',
                    )  # fmt: skip
            pose += [float(v) for v in values]
        poses[str(name)] = tuple(pose)
    return poses


def _parse_collision(s: _Section) -> CollisionSpec | None:
    if s.get('collision', None) is None:
        return None
    c = s.section('collision')
    c.allow_only(*(f.name for f in fields(CollisionSpec)))
    spec = CollisionSpec(
        slow_distance=c.number('slow_distance', CollisionSpec.slow_distance, positive=True),
        stop_distance=c.number('stop_distance', CollisionSpec.stop_distance, positive=True),
        table_height=c.number('table_height', None),
    )
    if spec.stop_distance >= spec.slow_distance:
        c.fail('stop_distance', spec.stop_distance, f'less than {spec.slow_distance}')
    return spec
