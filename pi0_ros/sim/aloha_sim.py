# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
gym-aloha's MuJoCo ALOHA as a robot that speaks a :class:`RobotSpec`'s units.

Used by the ``sim_robot`` node, the demo and the scripted expert; imports no ROS. Only gym-aloha's
scene files are used, not its environment class: that one renders three 640x480 views a step and
keeps the cube's pose in a global that two environments share. The physics is the same
(``test/sim`` compares trajectories, rewards and objects).

Facts of the scene that surprise: the registered action space says +-1 although joints are radians;
actuators clip the fingers to 0.021..0.057 m, narrower than the gripper's calibration, so a closed
gripper reads about -0.41 rad when commanded to -0.62; the cube starts 3 cm above the table and
falls; joints lag commands by 2 to 7 control steps.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import sys
import traceback
import weakref
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pi0_ros import gripper as gripper_maps
from pi0_ros.errors import Pi0RosError
from pi0_ros.robot import GripperSpec, RobotSpec

CONTROL_PERIOD = 0.02
"""Seconds between commands in gym-aloha (its comment says milliseconds; it is seconds)."""

ARM_JOINTS = ('waist', 'shoulder', 'elbow', 'forearm_roll', 'wrist_angle', 'wrist_rotate')
JOINT_STATE_NAMES = (*ARM_JOINTS, 'gripper', 'left_finger', 'right_finger')
"""Entries of joint_states in Interbotix's order: rad, except the fingers (m; the right is -x)."""

GYM_START_POSE = (0.0, -0.96, 1.16, 0.0, -0.3, 0.0)
"""gym-aloha's START_ARM_POSE of one arm [rad], for robots without a pose called ``start``."""
GYM_START_FINGER = 0.02239
"""gym-aloha's initial finger position [m]."""

CAMERAS = {
    'cam_high': 'top',
    'cam_left_wrist': 'left_wrist',
    'cam_right_wrist': 'right_wrist',
    'cam_low': 'angle',
}
"""The robot's camera names and the scene's; scene names are taken as they are."""

WRIST_FOVY_DEG = 45.0
"""
Vertical field of view given to the wrist cameras.

The scene's 20 degrees show the inside of the gripper only; a RealSense D405 has 58.
"""

TABLE_FOVY_DEG = 45.0
"""
A top camera that sees the table: what this package's demonstrations are drawn with.

The scene's own sees 78 degrees, mostly floor, with a cube of 5 pixels in 128. What was trained on
gym-aloha's pictures (openpi's pi0_aloha_sim) needs the scene's, which is the default.
"""

STRICT_HOLD_S = 10 * CONTROL_PERIOD
"""How long the strict success must last; gym-aloha's own counts a single frame of contact."""

FULL_REWARD = 4
"""gym-aloha's reward of a completed task."""

GRIPPER_TIP_M = 0.15
"""Distance from the gripper link to the point between the finger tips (the scene's cali_site)."""

_SIDES = ('left', 'right')


class SimError(Pi0RosError):
    """The simulation cannot run here; says what is missing and how to get it."""


@dataclass(frozen=True)
class JointReading:
    """One arm's joint_states: names, position [rad, m], velocity [rad/s, m/s], effort [Nm, N]."""

    names: tuple[str, ...]
    position: np.ndarray
    velocity: np.ndarray
    effort: np.ndarray


@dataclass(frozen=True)
class _Task:
    scene: str
    objects: tuple[tuple[tuple[float, float], tuple[float, float]], ...]  # (x range, y range) [m]


TASKS = {
    'transfer_cube': _Task('bimanual_viperx_transfer_cube.xml', (((0.0, 0.2), (0.4, 0.6)),)),
    'insertion': _Task(
        'bimanual_viperx_insertion.xml', (((0.1, 0.2), (0.4, 0.6)), ((-0.2, -0.1), (0.4, 0.6)))
    ),
}
"""Scenes and where their objects start; the ranges are gym-aloha's utils.py."""

OBJECT_HEIGHT = 0.05
"""Height at which objects are dropped [m], gym-aloha's utils.py."""


def _load_mujoco():
    """Import MuJoCo with an off-screen backend; the choice is made at its first import."""
    if not os.environ.get('MUJOCO_GL'):
        os.environ['MUJOCO_GL'] = 'egl'
    # llvmpipe's worker threads gain nothing on small frames and starve the other processes.
    os.environ.setdefault('LP_NUM_THREADS', '1')
    try:
        import mujoco
    except ModuleNotFoundError as error:
        if error.name != 'mujoco':
            raise _rendering_error(error) from None
        raise SimError(
            "the simulated robot needs MuJoCo; install it with: pip install 'pi0_ros[sim]'"
        ) from None
    except (ImportError, AttributeError, OSError, RuntimeError) as error:
        raise _rendering_error(error) from None
    return mujoco


def _rendering_error(error: BaseException) -> SimError:
    backend = os.environ.get('MUJOCO_GL', 'egl')
    reason = ' '.join(str(error).split())[:160] or type(error).__name__
    return SimError(
        f'MuJoCo cannot render off-screen with MUJOCO_GL={backend} ({reason}); install EGL with: '
        'apt-get install -y libegl1 libgl1 libgl1-mesa-dri'
    )


def _scene_path(task: str) -> Path:
    if task not in TASKS:
        raise SimError(f"task '{task}' is not known; expected one of {', '.join(TASKS)}")
    spec = importlib.util.find_spec('gym_aloha')
    if spec is None or not spec.submodule_search_locations:
        raise SimError(
            "the simulated robot needs gym-aloha's scene; install it with: "
            "pip install 'pi0_ros[sim]', on Python 3.13 also: pip install --no-deps gym-aloha"
        )
    return Path(next(iter(spec.submodule_search_locations))) / 'assets' / TASKS[task].scene


def top_fovy_of(checkpoint) -> float | None:
    """
    Return the top camera's field of view [degrees] that a checkpoint was trained with.

    :param checkpoint: folder; ``simulation.top_fovy_deg`` in its config.json.
    :return: None: the scene's; so for every checkpoint that does not say, and for hub ids.
    """
    try:
        config = json.loads((Path(checkpoint) / 'config.json').read_text(encoding='utf-8'))
        return float(config['simulation']['top_fovy_deg'])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # loading the checkpoint says what is wrong with it


def check_rendering() -> None:
    """
    Make one off-screen context and draw one frame.

    :raises SimError: with the command that installs what is missing.
    """
    sim = AlohaSim()
    sim.render('cam_high', 16, 16)
    sim.close()


class AlohaSim:
    """
    Two ViperX arms, a table and the objects of one task.

    Not thread-safe; the OpenGL context belongs to the thread of the first :meth:`render`.

    :param task: ``transfer_cube`` or ``insertion``.
    :param top_fovy_deg: vertical field of view of the top camera; None: the scene's.
    :param robot: two arms of six joints and a gripper; default: the one called ``aloha``.
    :param seed: of the object poses; the instance has its own generator.
    :raises SimError: when MuJoCo or the scene is missing or the robot has another shape.
    """

    def __init__(
        self, task: str = 'transfer_cube', robot: RobotSpec | None = None, seed: int = 0,
        top_fovy_deg: float | None = None,
    ):  # fmt: skip
        scene = _scene_path(task)
        self._mujoco = mujoco = _load_mujoco()
        self.task = task
        self.robot = robot or RobotSpec.load('aloha')
        self._check_robot()
        self.model = model = mujoco.MjModel.from_xml_path(str(scene))
        model.vis.quality.offsamples = 0  # a frame takes a fraction without these
        model.vis.quality.shadowsize = 0
        self.data = mujoco.MjData(model)
        self._scratch = mujoco.MjData(model)  # for forward kinematics
        self._renderers: dict[tuple[int, int], object] = {}
        self._substeps = round(CONTROL_PERIOD / model.opt.timestep)
        if abs(self._substeps * model.opt.timestep - CONTROL_PERIOD) > 1e-9:
            raise SimError(
                f'control period {CONTROL_PERIOD} s is no multiple of the physics step '
                f'{model.opt.timestep} s'
            )
        self._geoms = {self._name('GEOM', i): i for i in range(model.ngeom)}
        self._tips = [self._id('SITE', f'cali_{side}_site1') for side in _SIDES]
        for side in _SIDES:
            model.cam_fovy[self._id('CAMERA', f'{side}_wrist')] = WRIST_FOVY_DEG
        if top_fovy_deg:
            model.cam_fovy[self._id('CAMERA', 'top')] = top_fovy_deg
        self._random = np.random.RandomState(seed)
        self.reset(seed)

    # -- state ---------------------------------------------------------------------------------

    def reset(self, seed: int | None = None, pose=None) -> None:
        """
        Put the arms at rest in the start pose and drop the objects at random places.

        :param seed: the same objects as ``gym_aloha`` places for it; None: the next random ones.
        :param pose: float [dof] in command units; default: the robot's pose ``start``.
        """
        if seed is None:
            seed = int(self._random.randint(2**31))
        if pose is None:
            pose = self.robot.poses.get('start')
        if pose is None:
            setpoint = np.concatenate(
                [[*GYM_START_POSE, GYM_START_FINGER, -GYM_START_FINGER]] * 2
            )
        else:
            setpoint = self.actuators_from_command(pose)
        mujoco, model, data = self._mujoco, self.model, self.data
        mujoco.mj_resetData(model, data)
        data.qpos[:16] = setpoint
        data.ctrl[:] = setpoint
        data.qpos[16:] = np.concatenate(self.sample_objects(seed))
        mujoco.mj_forward(model, data)
        self.seed = seed
        self.reward = self._reward()
        self.best_reward = self.reward
        self.success = False
        self.strict_success = False
        self._steps = 0
        self._held_s = 0.0

    def sample_objects(self, seed: int) -> list[np.ndarray]:
        """
        Return the objects' poses for a seed: position [m] and quaternion (w, x, y, z), [7] each.

        One generator draws all objects in turn, as ``gym_aloha.utils`` does.
        """
        random = np.random.RandomState(seed)
        poses = []
        for x_range, y_range in TASKS[self.task].objects:
            lower = np.array([x_range[0], y_range[0], OBJECT_HEIGHT])
            upper = np.array([x_range[1], y_range[1], OBJECT_HEIGHT])
            poses.append(np.concatenate([random.uniform(lower, upper), [1.0, 0.0, 0.0, 0.0]]))
        return poses

    def step(self, command=None, duration: float = CONTROL_PERIOD) -> None:
        """
        Advance the physics, holding one setpoint.

        :param command: float [dof] in the robot's command units; None keeps the last setpoint.
        :param duration: seconds, a multiple of the physics step (0.002).
        :raises SimError: for a command of another length or with NaN, or an odd duration.
        """
        if command is not None:
            self.data.ctrl[:] = self.actuators_from_command(command)
        count = round(duration / self.model.opt.timestep)
        if count < 1 or abs(count * self.model.opt.timestep - duration) > 1e-9:
            raise SimError(
                f'step of {duration} s is no multiple of the physics step '
                f'{self.model.opt.timestep} s'
            )
        # Forces of the new setpoint first, derived quantities of the last position at the end:
        # readings, contacts and images belong to the present.
        mujoco = self._mujoco
        mujoco.mj_step2(self.model, self.data)
        if count > 1:
            mujoco.mj_step(self.model, self.data, count - 1)
        mujoco.mj_step1(self.model, self.data)
        self._steps += count
        if self._steps % self._substeps == 0:
            self._judge()

    @property
    def time(self) -> float:
        """Seconds since the last reset."""
        return self._steps * self.model.opt.timestep

    @property
    def state(self) -> np.ndarray:
        """A copy of the generalised positions: two arms of eight, then the objects."""
        return self.data.qpos.copy()

    @state.setter
    def state(self, qpos) -> None:
        """Show a recorded state; for making pictures, not for going on from it."""
        self.data.qpos[:] = qpos
        self._mujoco.mj_forward(self.model, self.data)

    # -- joints --------------------------------------------------------------------------------

    def joint_reading(self, arm: int) -> JointReading:
        """
        Return what the driver of one arm would report.

        :param arm: 0 left, 1 right.
        :return: nine joints in the order of :data:`JOINT_STATE_NAMES`; the gripper's angle
            follows from the finger position through the linkage.
        """
        joints = slice(8 * arm, 8 * arm + 8)
        qpos, qvel = self.data.qpos[joints], self.data.qvel[joints]
        force = self.data.actuator_force[joints]
        gripper = self.robot.arms[arm].gripper
        finger, speed = float(qpos[6]), float(qvel[6])
        step = 1e-5  # m, for the linkage's derivative
        slope = (gripper.joint_rad(finger + step) - gripper.joint_rad(finger - step)) / (2 * step)
        theta = float(gripper.joint_rad(finger))
        return JointReading(
            JOINT_STATE_NAMES,
            np.array([*qpos[:6], theta, finger, qpos[7]]),
            np.array([*qvel[:6], slope * speed, speed, qvel[7]]),
            np.array([*force[:6], force[6] / slope if slope else 0.0, 0.0, 0.0]),
        )

    def measured(self) -> np.ndarray:
        """Return the measured positions, float64 [dof], in the order of ``robot.state_names``."""
        values = {}
        for index, arm in enumerate(self.robot.arms):
            reading = self.joint_reading(index)
            values.update(
                (self.robot.resolve_joint(arm.prefix, name), value)
                for name, value in zip(reading.names, reading.position)
            )
        return np.array([values[name] for name in self.robot.state_names])

    def actuators_from_command(self, command) -> np.ndarray:
        """
        Return actuator setpoints (six joints, +finger, -finger an arm) of a command.

        :param command: float [dof] in the robot's command units.
        :return: float64 [16], clipped to the actuators' ranges.
        :raises SimError: when a value is missing or not finite.
        """
        command = np.asarray(command, dtype=np.float64)
        if command.shape != (self.robot.dof,) or not np.isfinite(command).all():
            raise SimError(
                f'command has shape {command.shape} or a value that is not finite; '
                f'expected {self.robot.dof} numbers'
            )
        setpoint = []
        for arm in self.robot.arms:
            *joints, grip = command[list(arm.indices)]
            # Past its stop the linkage would fold over and close again.
            grip = np.clip(grip, arm.joints[-1].lower, arm.joints[-1].upper)
            finger = _finger_m_from_command(grip, arm.gripper)
            setpoint += [*joints, finger, -finger]
        low, high = self.model.actuator_ctrlrange.T
        return np.clip(setpoint, low, high)

    def gripper_positions(self, commands) -> np.ndarray:
        """
        Return where commands would put the points between the finger tips.

        :param commands: float [n, dof] in command units.
        :return: float64 [n, 2, 3], world frame, m; left arm first.
        """
        commands = np.atleast_2d(commands)
        points = np.empty((len(commands), 2, 3))
        self._scratch.qpos[:] = self.data.qpos
        for row, command in zip(points, commands):
            self._scratch.qpos[:16] = self.actuators_from_command(command)
            self._mujoco.mj_kinematics(self.model, self._scratch)
            row[:] = self._scratch.site_xpos[self._tips]
        return points

    # -- pictures ------------------------------------------------------------------------------

    def render(self, camera: str, height: int = 128, width: int = 128) -> np.ndarray:
        """
        Draw one camera, without shadows, reflections or multisampling.

        :param camera: a camera of the robot (``cam_high``) or of the scene (``top``).
        :return: uint8 [height, width, 3] RGB.
        :raises SimError: for an unknown camera, or when off-screen rendering is not possible.
        """
        name = self._camera(camera)
        renderer = self._renderers.get((height, width))
        if renderer is None:
            renderer = self._renderers[height, width] = self._make_renderer(height, width)
        renderer.update_scene(self.data, camera=name)
        return renderer.render()

    def project(self, points, camera: str, height: int, width: int) -> np.ndarray:
        """
        Return the pixels at which a camera sees points of the world.

        :param points: float [n, 3], m.
        :return: float64 [n, 2] column and row; NaN for points behind the camera.
        """
        index = self._id('CAMERA', self._camera(camera))
        axes = self.data.cam_xmat[index].reshape(3, 3)
        local = (np.asarray(points, dtype=np.float64) - self.data.cam_xpos[index]) @ axes
        depth = -local[:, 2]  # MuJoCo's cameras look along -z, y up
        depth[depth <= 1e-6] = np.nan
        focal = 0.5 * height / np.tan(0.5 * np.deg2rad(self.model.cam_fovy[index]))
        columns = 0.5 * width + focal * local[:, 0] / depth
        rows = 0.5 * height - focal * local[:, 1] / depth
        return np.stack([columns, rows], axis=1)

    def close(self) -> None:
        """Free the OpenGL contexts; the physics stays usable."""
        while self._renderers:
            self._renderers.popitem()[1].close()

    # -- inside --------------------------------------------------------------------------------

    def _make_renderer(self, height: int, width: int):
        mujoco = self._mujoco
        self.model.vis.global_.offwidth = width  # the size of the frame buffer to be made
        self.model.vis.global_.offheight = height
        try:
            renderer = mujoco.Renderer(self.model, height, width)
        except Exception as error:  # the backends raise their own, undocumented ones
            failure = _rendering_error(error)
            _forget(error)
            raise failure from None
        # After the backend's own exit handler is registered, so that it runs before that one.
        atexit.register(_close_at_exit, weakref.ref(self))
        for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            renderer.scene.flags[flag] = 0
        return renderer

    def _camera(self, name: str) -> str:
        scene = CAMERAS.get(name, name)
        if self._mujoco.mj_name2id(self.model, self._mujoco.mjtObj.mjOBJ_CAMERA, scene) < 0:
            known = [self._name('CAMERA', i) for i in range(self.model.ncam)]
            raise SimError(
                f"the simulated scene has no camera '{name}'; expected one of "
                f'{", ".join([*CAMERAS, *known])}'
            )
        return scene

    def _id(self, kind: str, name: str) -> int:
        return self._mujoco.mj_name2id(
            self.model, getattr(self._mujoco.mjtObj, f'mjOBJ_{kind}'), name
        )

    def _name(self, kind: str, index: int) -> str:
        return self._mujoco.mj_id2name(
            self.model, getattr(self._mujoco.mjtObj, f'mjOBJ_{kind}'), index
        )

    def _check_robot(self) -> None:
        arms = self.robot.arms
        if len(arms) != 2 or any(len(arm.joints) != 7 or arm.gripper is None for arm in arms):
            shape = ' and '.join(f'{len(arm.joints)}' for arm in arms)
            raise SimError(
                f"robot '{self.robot.name}' has arms of {shape} joints; the simulated ALOHA needs "
                'two arms of six joints and a gripper'
            )

    def _contacts(self) -> set[frozenset[int]]:
        contact = self.data.contact
        return {frozenset(pair) for pair in contact.geom[: self.data.ncon].tolist()}

    def _touching(self):
        pairs = self._contacts()
        geoms = self._geoms

        def touch(one: str, other: str) -> bool:
            return frozenset((geoms[one], geoms[other])) in pairs

        return touch

    def _reward(self) -> int:
        """Return gym-aloha's reward of the present state, 0 to 4."""
        touch = self._touching()
        left = 'vx300s_left/10_left_gripper_finger'
        if self.task == 'transfer_cube':
            lifted = not touch('red_box', 'table')
            if touch('red_box', left):
                return 4 if lifted else 3
            right = touch('red_box', 'vx300s_right/10_right_gripper_finger')
            return (2 if lifted else 1) if right else 0
        sockets = [f'socket-{i}' for i in range(1, 5)]
        lifted = not touch('red_peg', 'table') and not any(touch(s, 'table') for s in sockets)
        if touch('red_peg', 'pin'):
            return 4
        if lifted and any(touch('red_peg', s) for s in sockets):
            return 3
        grasped = touch('red_peg', 'vx300s_right/10_right_gripper_finger') and any(
            touch(s, left) for s in sockets
        )
        return (2 if lifted else 1) if grasped else 0

    def _held_strictly(self) -> bool:
        """
        Tell whether the end state of the task holds without help, at this instant.

        Cube: full reward and no finger of the right arm on it. Insertion: full reward with peg
        and socket off the table.
        """
        if self.reward != FULL_REWARD:
            return False
        touch = self._touching()
        if self.task == 'transfer_cube':
            fingers = (f'vx300s_right/10_{side}_gripper_finger' for side in _SIDES)
            return not any(touch('red_box', finger) for finger in fingers)
        parts = ('red_peg', *(f'socket-{i}' for i in range(1, 5)))
        return not any(touch(part, 'table') for part in parts)

    def _judge(self) -> None:
        self.reward = self._reward()
        self.best_reward = max(self.best_reward, self.reward)
        self.success = self.success or self.reward == FULL_REWARD
        self._held_s = self._held_s + CONTROL_PERIOD if self._held_strictly() else 0.0
        self.strict_success = self.strict_success or self._held_s >= STRICT_HOLD_S - 1e-9


def _finger_m_from_command(value: float, gripper: GripperSpec) -> float:
    if gripper.command_unit == 'm':
        return float(value)
    if gripper.command_unit == 'normalized':
        value = gripper_maps.joint_rad_from_normalized(value, gripper.calibration)
    return float(gripper.finger_m(value))


def _close_at_exit(reference: weakref.ref) -> None:
    sim = reference()
    if sim is not None:
        sim.close()


def _forget(error: BaseException) -> None:
    """Free what a failed call holds; MuJoCo's half-built contexts complain aloud at that."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        traceback.clear_frames(error.__traceback__)
    finally:
        sys.unraisablehook = hook
