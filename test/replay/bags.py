# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Bags as Interbotix drivers and realsense cameras fill them, written with rosbags' own writer."""

from __future__ import annotations

import numpy as np
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore

from pi0_ros.control import ActionChunk, chunk_label, noise_for

TRAJECTORY = 'trajectory_msgs/msg/JointTrajectory'
STORE = get_typestore(Stores.ROS2_JAZZY)
START = 1_700_000_000_000_000_000
IMAGE, JOINTS = 'sensor_msgs/msg/Image', 'sensor_msgs/msg/JointState'
HOME = np.array([0.0, -0.96, 1.16, 0.0, -0.3, 0.0, 0.4])
ARM = ['waist', 'shoulder', 'elbow', 'forearm_roll', 'wrist_angle', 'wrist_rotate', 'gripper']


def stamp(ns):
    kind = STORE.types['builtin_interfaces/msg/Time']
    return kind(sec=ns // 10**9, nanosec=ns % 10**9)


def header(ns, frame=''):
    return STORE.types['std_msgs/msg/Header'](stamp=stamp(ns), frame_id=frame)


def image(ns, seed=0, height=48, width=64):
    data = np.random.default_rng([seed, ns % 2**31]).integers(0, 256, height * width * 3)
    return STORE.types[IMAGE](
        header=header(ns), height=height, width=width, encoding='rgb8', is_bigendian=0,
        step=width * 3, data=data.astype(np.uint8),
    )  # fmt: skip


def joints(ns, names, positions):
    none = np.zeros(0)
    return STORE.types[JOINTS](
        header=header(ns), name=list(names), position=np.asarray(positions, float), velocity=none,
        effort=none,
    )  # fmt: skip


def string(text):
    return STORE.types['std_msgs/msg/String'](data=text)


def chunk(ns, label, names, actions, dt=0.02):
    point = STORE.types['trajectory_msgs/msg/JointTrajectoryPoint']
    duration = STORE.types['builtin_interfaces/msg/Duration']
    none = np.zeros(0)
    points = []
    for i, row in enumerate(actions):
        rest = round((i + 1) * dt * 1e9)
        points.append(
            point(
                positions=np.asarray(row, float), velocities=none, accelerations=none, effort=none,
                time_from_start=duration(sec=rest // 10**9, nanosec=rest % 10**9),
            )
        )  # fmt: skip
    return STORE.types['trajectory_msgs/msg/JointTrajectory'](
        header=header(ns, label), joint_names=list(names), points=points
    )


def published(messages, observations, predict, seed=7, delay=30_000_000, frozen=None):
    """Return the messages with the chunks that a node would have published of observations."""
    out = list(messages)
    for sequence, observation in enumerate(observations):
        actions = predict(observation, noise_for(seed, sequence, (50, 32)))
        made = ActionChunk.of(
            actions, actions.shape[1], stamp_ns=observation.stamp_ns, sequence=sequence, seed=seed,
            image_stamps_ns=observation.image_stamps_ns,
            joint_stamps_ns=observation.joint_stamps_ns,
            frozen_rows=frozen if sequence else None,
        )  # fmt: skip
        names = [f'joint_{i}' for i in range(actions.shape[1])]
        message = chunk(observation.stamp_ns, chunk_label(made), names, made.actions)
        out.append(('/action_chunk', TRAJECTORY, observation.stamp_ns + delay, message))
    return sorted(out, key=lambda m: m[2])


def pose(t):
    """Return [14]: a slow motion of both arms."""
    swing = 0.2 * np.sin(0.8 * t) * np.array([1, 1, 1, 1, 1, 1, 0])
    return np.concatenate([HOME + swing, HOME - swing])


def aloha_messages(robot, seconds=4.0, *, height=48, width=64, camera_delay=None, drop=(),
                   zero_stamp=(), prompt='transfer the cube', rename=None):  # fmt: skip
    """Return [(topic, type, time [ns], message)] in order of time."""
    out = []
    if prompt:
        out.append(('/prompt', 'std_msgs/msg/String', START, string(prompt)))
    for k in range(round(seconds * 50)):
        ns = START + k * 20_000_000
        q = pose(k / 50)
        for arm, part in zip(robot.arms, (q[:7], q[7:])):
            out.append((arm.joint_states, JOINTS, ns + 500_000, joints(ns, ARM, part)))
    for index, camera in enumerate(robot.cameras.values()):
        if camera.name in drop:
            continue
        for k in range(round(seconds * 30)):
            ns = START + round(k / 30 * 1e9) + index * 3_000_000
            if (ns - START) / 1e9 < (camera_delay or {}).get(camera.name, 0.0):
                continue
            own = 0 if camera.name in zero_stamp else ns
            message = image(ns, index, height, width)
            message.header.stamp = stamp(own)
            topic = (rename or {}).get(camera.name, camera.topic)
            out.append((topic, IMAGE, ns + 4_000_000, message))
    return sorted(out, key=lambda m: m[2])


def write_bag(path, messages, storage='mcap', compress=''):
    plugin = StoragePlugin.MCAP if storage == 'mcap' else StoragePlugin.SQLITE3
    writer = Writer(path, version=9, storage_plugin=plugin)
    if compress:
        writer.set_compression(
            {'file': CompressionMode.FILE, 'message': CompressionMode.MESSAGE,
             'storage': CompressionMode.STORAGE}[compress], CompressionFormat.ZSTD,
        )  # fmt: skip
    with writer:
        connections = {}
        for topic, kind, ns, message in messages:
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, kind, typestore=STORE)
            writer.write(connections[topic], ns, STORE.serialize_cdr(message, kind))
    return path


class StillPolicy:
    """Predicts a ramp from the state; noise shows in it, so that seeds can be told apart."""

    chunk_size, action_dim = 50, 32

    def __init__(self, dof=14, speed=0.1):
        self.dof, self.speed, self.seen = dof, speed, []

    def predict(self, observation, noise=None):
        self.seen.append(observation)
        ramp = self.speed * 0.02 * np.arange(1, 51)[:, None] * np.ones(self.dof)
        ramp[:, 6::7] = 0.0
        bright = np.mean([image.mean() for image in observation.images.values()]) * 1e-6
        return (observation.state + ramp + 1e-5 * noise[:, : self.dof] + bright).astype(np.float32)
