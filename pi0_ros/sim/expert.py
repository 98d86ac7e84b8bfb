# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
A scripted expert for the cube transfer: keyframes of the hands, joints in between.

Used to make demonstrations. The right hand picks the cube up and carries it to the meeting point,
the left hand takes it from below and above, the right hand lets go. Keyframes are solved by
damped least squares on MuJoCo's Jacobian and joined by minimum-jerk motion in joint space.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pi0_ros.sim.aloha_sim import ARM_JOINTS, CONTROL_PERIOD, AlohaSim

MEETING_POINT = np.array([0.0, 0.5, 0.25])
"""Where the hands meet [m, world]; reachable by both arms with the elbows up."""

PICK_PITCH = np.deg2rad(60.0)
"""How far the right hand looks down while it holds the cube [rad]."""

RIGHT_BASE = np.array([0.469, 0.5])
"""The right arm's waist axis [m, world]; the hand turns most of the way towards the cube."""

OPEN, SHUT = 0.95, 0.35
"""
Openings of a hand. The cube stops the fingers at 0.62; shutting further squeezes it.

Keyframes leave the grippers the time that the safety filter's 3.14 rad/s asks for.
"""

FINGERTIP = {'right': 0.004, 'left': 0.004}
"""How far the pinch points stay short of the cube's middle [m]: off the other hand's palm."""

_DAMPING = 0.02
_ITERATIONS = 200
_TOLERANCE = 1e-4  # m and rad


@dataclass(frozen=True)
class Keyframe:
    """The pose of one hand: when [s], pinch point [m, world], axes [3, 3], opening 0..1."""

    time: float
    position: np.ndarray
    rotation: np.ndarray
    opening: float


def minimum_jerk(fraction):
    """Return the minimum-jerk blend of a fraction 0..1 of the way."""
    s = np.clip(fraction, 0.0, 1.0)
    return s**3 * (10.0 - 15.0 * s + 6.0 * s**2)


def _rotation(axis: str, angle: float) -> np.ndarray:
    c, s = np.cos(angle), np.sin(angle)
    if axis == 'x':
        return np.array([[1, 0, 0], [0, c, -s], [0, s, c]])
    if axis == 'y':
        return np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]])
    return np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])


_FACING = {'left': np.eye(3), 'right': _rotation('z', np.pi)}
_SIDES = ('left', 'right')


class HandSolver:
    """
    Inverse kinematics of one arm of the scene.

    :param sim: gives the model; its state is not touched.
    :param side: ``left`` or ``right``.
    """

    def __init__(self, sim: AlohaSim, side: str):
        self._mujoco, self._model = sim._mujoco, sim.model
        self._data = self._mujoco.MjData(sim.model)
        self._data.qpos[:] = sim.data.qpos
        first = 8 * _SIDES.index(side)
        self._joints = np.arange(first, first + len(ARM_JOINTS))
        kinds = self._mujoco.mjtObj
        self._site = self._mujoco.mj_name2id(
            sim.model, kinds.mjOBJ_SITE, f'cali_{side}_site1'
        )
        self._forward = 1.0 if side == 'left' else -1.0  # the arms face each other
        self._mujoco.mj_kinematics(sim.model, self._data)
        self._limits = sim.model.jnt_range[self._joints]

    def solve(self, position, rotation, start) -> np.ndarray:
        """
        Return the six joint angles [rad] that put the hand at a pose.

        :param position: float [3] of the pinch point, world, m.
        :param rotation: float [3, 3], the hand's axes (x: away from the wrist) in the world.
        :param start: float [6], where to search from.
        :raises ValueError: when the pose cannot be reached to a tenth of a millimetre.
        """
        found, errors = [], []
        for seed in self._seeds(position, start):
            joints, error = self._search(position, rotation, seed)
            if np.abs(error).max() < _TOLERANCE:
                found.append(joints)
            errors.append(error)
        if not found:
            raise ValueError(
                f'no joint angles reach {np.round(position, 3)} m '
                f'(left over: {errors[-1].round(4)})'
            )
        # The wrist can turn over: the same pose with forearm and hand half a turn round.
        return min(found, key=lambda joints: np.abs(joints - start).max())

    def _seeds(self, position, start):
        yield np.array(start, dtype=np.float64)
        facing = np.array(start, dtype=np.float64)
        base = self._data.xpos[self._model.jnt_bodyid[self._joints[0]]]
        away = (np.asarray(position) - base)[:2] * self._forward
        facing[0] = np.arctan2(away[1], away[0])
        yield facing
        facing = facing.copy()
        facing[[3, 5]] = 0.0
        yield facing

    def _search(self, position, rotation, joints):
        model, data, mujoco = self._model, self._data, self._mujoco
        jacobian = np.zeros((6, model.nv))
        error = np.ones(6)
        for _ in range(_ITERATIONS):
            data.qpos[self._joints] = joints
            mujoco.mj_kinematics(model, data)
            mujoco.mj_comPos(model, data)
            axes = data.site_xmat[self._site].reshape(3, 3)
            error[:3] = position - data.site_xpos[self._site]
            error[3:] = 0.5 * np.cross(axes.T, rotation.T).sum(axis=0)
            if np.abs(error).max() < _TOLERANCE:
                break
            mujoco.mj_jacSite(model, data, jacobian[:3], jacobian[3:], self._site)
            j = jacobian[:, self._joints]
            step = j.T @ np.linalg.solve(j @ j.T + _DAMPING**2 * np.eye(6), error)
            joints = np.clip(joints + step, *self._limits.T)
        return joints, error


def keyframes(cube: np.ndarray) -> dict[str, list]:
    """
    Return the hands' keyframes for a cube at ``cube`` [3] (m, world).

    Nothing about them is random: what the pictures do not show cannot be learned from them.
    """
    carry = _FACING['right'] @ _rotation('y', PICK_PITCH)
    yaw = 0.7 * np.arctan2(RIGHT_BASE[1] - cube[1], RIGHT_BASE[0] - cube[0])
    pick = _rotation('z', yaw) @ carry
    take = _FACING['left'] @ _rotation('x', np.pi / 2)
    grasp = np.array([cube[0], cube[1], 0.014]) - FINGERTIP['right'] * pick[:, 0]
    above = grasp + [0.0, 0.0, 0.09]
    meet = MEETING_POINT - FINGERTIP['right'] * carry[:, 0]
    hold = MEETING_POINT + [0.0, 0.0, 0.004] - FINGERTIP['left'] * take[:, 0]
    beside = hold + [-0.11, 0.0, 0.0]
    right = [
        (1.15, above, pick, OPEN),
        (1.65, grasp, pick, OPEN),
        (2.45, grasp, pick, SHUT),
        (3.4, meet, carry, SHUT),
        (4.8, meet, carry, SHUT),
        (5.4, meet, carry, 0.8),
        (6.1, meet + [0.1, 0.0, 0.06], carry, OPEN),
    ]
    left = [
        (1.15, beside + [-0.08, 0.0, 0.0], take, 0.3),
        (2.4, beside, take, OPEN),
        (3.4, beside, take, OPEN),
        (4.0, hold, take, OPEN),
        (4.8, hold, take, SHUT),
        (5.4, hold, take, SHUT),
        (6.1, hold + [-0.06, 0.0, 0.0], take, SHUT),
    ]
    return {
        'right': [Keyframe(*values) for values in right],
        'left': [Keyframe(*values) for values in left],
    }


def plan(sim: AlohaSim) -> np.ndarray:
    """
    Plan one transfer from the sim's present state.

    :return: float64 [steps, dof] actions in the POLICY's space (arm joints rad, gripper opening),
        one every 0.02 s.
    :raises ValueError: when a keyframe cannot be reached.
    """
    frames = keyframes(sim.data.qpos[16:19].copy())
    start = sim.robot.measured_to_policy(sim.measured())
    steps = int(np.ceil(max(f[-1].time for f in frames.values()) / CONTROL_PERIOD))
    times = CONTROL_PERIOD * np.arange(1, steps + 1)
    actions = np.empty((steps, sim.robot.dof))
    for arm, side in enumerate(_SIDES):
        solver = HandSolver(sim, side)
        columns = slice(7 * arm, 7 * arm + 7)
        knots, when = [start[columns]], [0.0]
        for frame in frames[side]:
            joints = solver.solve(frame.position, frame.rotation, knots[-1][:6])
            knots.append(np.array([*joints, frame.opening]))
            when.append(frame.time)
        index = np.clip(np.searchsorted(when, times, side='left'), 1, len(when) - 1)
        when, knots = np.array(when), np.array(knots)
        fraction = (times - when[index - 1]) / (when[index] - when[index - 1])
        blend = minimum_jerk(fraction)[:, None]
        actions[:, columns] = knots[index - 1] * (1.0 - blend) + knots[index] * blend
    return actions


def correlated_noise(steps: int, dof: int, scale: float, rng, time_constant: float = 0.2):
    """Return first-order noise [steps, dof] with standard deviation ``scale`` [rad]."""
    decay = np.exp(-CONTROL_PERIOD / time_constant)
    white = rng.normal(size=(steps, dof)) * scale * np.sqrt(1.0 - decay**2)
    noise = np.zeros((steps, dof))
    for k in range(1, steps):
        noise[k] = decay * noise[k - 1] + white[k]
    return noise
