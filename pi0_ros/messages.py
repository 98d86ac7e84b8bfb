# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Arrays to ROS messages and back: the only module beside ``nodes/`` that knows messages."""

from __future__ import annotations

import array

import numpy as np
from builtin_interfaces.msg import Duration as DurationMsg
from builtin_interfaces.msg import Time
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Float64MultiArray
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from pi0_ros.control.chunk import chunk_label

NANOSECONDS = 1_000_000_000


def time_from_ns(nanoseconds: int) -> Time:
    """Return a stamp; negative times, which a stamp cannot hold, become zero."""
    seconds, rest = divmod(max(int(nanoseconds), 0), NANOSECONDS)
    return Time(sec=seconds, nanosec=rest)


def ns_from_time(stamp) -> int:
    """Return a stamp in nanoseconds; 0 means that it was never set."""
    return stamp.sec * NANOSECONDS + stamp.nanosec


def joint_state(names, positions, stamp_ns: int) -> JointState:
    """Return a JointState with positions only."""
    message = JointState(name=list(names))
    message.header.stamp = time_from_ns(stamp_ns)
    message.position = array.array('d', np.asarray(positions, dtype=np.float64).tobytes())
    return message


def image_rgb8(rgb: np.ndarray, stamp_ns: int, frame_id: str = '') -> Image:
    """
    Return an rgb8 Image of a uint8 [H, W, 3] array.

    The data are handed over as an ``array.array``: rclpy checks lists and bytes one by one, which
    takes a second for a large frame (field report B12).
    """
    height, width, channels = rgb.shape
    message = Image(height=height, width=width, encoding='rgb8', is_bigendian=0)
    message.step = width * channels
    message.header.frame_id = frame_id
    message.header.stamp = time_from_ns(stamp_ns)
    message.data = array.array('B', np.ascontiguousarray(rgb, dtype=np.uint8).tobytes())
    return message


def float64_array(values) -> Float64MultiArray:
    """Return a Float64MultiArray without layout, as forward_command_controller takes it."""
    message = Float64MultiArray()
    message.data = array.array('d', np.asarray(values, dtype=np.float64).tobytes())
    return message


def single_point_trajectory(names, positions, stamp_ns: int, delay_s: float) -> JointTrajectory:
    """
    Return a trajectory of one point that is reached ``delay_s`` after its stamp.

    Positions only: joint_trajectory_controller refuses efforts, and velocities at the last point.
    """
    message = JointTrajectory(joint_names=list(names))
    message.header.stamp = time_from_ns(stamp_ns)
    point = JointTrajectoryPoint()
    point.positions = array.array('d', np.asarray(positions, dtype=np.float64).tobytes())
    seconds, rest = divmod(round(delay_s * NANOSECONDS), NANOSECONDS)
    point.time_from_start.sec, point.time_from_start.nanosec = seconds, rest
    message.points = [point]
    return message


def stamp_of_serialized(data: bytes) -> int:
    """
    Return the header stamp [ns] of a serialized message that begins with a header.

    Reads the first field of the CDR encoding (OMG DDSI-RTPS 10.2: 4 bytes of encapsulation, then
    the members in order), so that images need not be deserialized when they arrive.
    """
    order = 'little' if data[1] & 1 else 'big'
    seconds = int.from_bytes(data[4:8], order, signed=True)
    return seconds * NANOSECONDS + int.from_bytes(data[8:12], order)


def chunk_message(chunk, names) -> JointTrajectory:
    """
    Return an ActionChunk as the message of ``action_chunk``.

    Stamped with its observation; row i at ``(i + 1) * dt``. ``frame_id`` says
    which inference it is (:func:`pi0_ros.control.chunk.chunk_label`), so that replay repeats it.
    """
    message = JointTrajectory(joint_names=list(names))
    message.header.stamp = time_from_ns(chunk.stamp_ns)
    message.header.frame_id = chunk_label(chunk)
    for i, row in enumerate(np.asarray(chunk.actions, dtype=np.float64)):
        seconds, rest = divmod(round((i + 1) * chunk.dt * NANOSECONDS), NANOSECONDS)
        point = JointTrajectoryPoint(time_from_start=DurationMsg(sec=seconds, nanosec=rest))
        point.positions = array.array('d', row.tobytes())
        message.points.append(point)
    return message
