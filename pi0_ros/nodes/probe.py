# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Listens to a live system for a few seconds and says what it heard; for ``pi0_ros check``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import qos_profile_sensor_data
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import CompressedImage, Image, JointState

from pi0_ros.messages import NANOSECONDS, ns_from_time
from pi0_ros.robot import RobotSpec


@dataclass
class Heard:
    """What came on one topic."""

    topic: str
    wanted: str
    offered: tuple[str, ...] = ()
    count: int = 0
    seconds: float = 0.0
    offset: float | None = None  # s, clock minus newest stamp
    zero_stamps: int = 0
    last: object = None

    @property
    def rate(self) -> float:
        return self.count / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Survey:
    """Everything heard, and every topic of the graph."""

    cameras: Mapping[str, Heard]
    joints: Mapping[str, Heard]
    graph: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def camera_topic(camera) -> tuple[str, type]:
    """Return the topic and message class of a camera."""
    if camera.transport == 'compressed':
        topic = camera.topic
        return (topic if topic.endswith('/compressed') else f'{topic}/compressed'), CompressedImage
    return camera.topic, Image


def survey(robot: RobotSpec, seconds: float) -> Survey:
    """
    Listen to the robot's cameras and joint states.

    :param seconds: wall time to listen, after up to the same time for discovery.
    """
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    node = rclpy.create_node('check')
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    try:
        cameras, joints = {}, {}
        for name, camera in robot.cameras.items():
            topic, kind = camera_topic(camera)
            cameras[name] = _listen(node, topic, kind)
        for topic in dict.fromkeys(topic for topic, _ in robot.joint_state_sources):
            joints[topic] = _listen(node, topic, JointState)
        everything = [*cameras.values(), *joints.values()]
        _spin(executor, seconds, lambda: all(heard.count for heard in everything))
        for heard in everything:
            heard.count = 0
        started = time.monotonic()
        _spin(executor, seconds, lambda: False)
        graph = {name: tuple(types) for name, types in node.get_topic_names_and_types()}
        for heard in everything:
            heard.seconds = time.monotonic() - started
            infos = node.get_publishers_info_by_topic(heard.topic)
            heard.offered = tuple(sorted({info.topic_type for info in infos}))
        return Survey(cameras, joints, graph)
    finally:
        executor.shutdown(timeout_sec=1.0)
        node.destroy_node()
        rclpy.shutdown()


def _listen(node, topic: str, kind: type) -> Heard:
    package = kind.__module__.split('.')[0]
    heard = Heard(node.resolve_topic_name(topic), f'{package}/msg/{kind.__name__}')

    def receive(message) -> None:
        stamp = ns_from_time(message.header.stamp)
        heard.count += 1
        heard.last = message
        heard.zero_stamps += stamp == 0
        heard.offset = (node.get_clock().now().nanoseconds - stamp) / NANOSECONDS

    node.create_subscription(kind, topic, receive, qos_profile_sensor_data)
    return heard


def _spin(executor, seconds: float, done) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not done():
        executor.spin_once(timeout_sec=0.05)
