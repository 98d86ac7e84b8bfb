# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Listens to a live system for a few seconds and says what it heard; for ``pi0_ros check``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import rclpy
from diagnostic_msgs.msg import DiagnosticStatus
from rcl_interfaces.srv import GetParameters
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import (
    DurabilityPolicy,
    QoSCompatibility,
    QoSProfile,
    qos_check_compatible,
    qos_profile_sensor_data,
)
from rclpy.signals import SignalHandlerOptions
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CompressedImage, Image, JointState

from pi0_ros.messages import NANOSECONDS, ns_from_time
from pi0_ros.robot import RobotSpec

OWN_TOPICS = (
    'joint_command_raw', 'joint_command', 'action_chunk', 'prompt', 'emergency_stop', '/clock',
)  # fmt: skip
"""Topics of the nodes whose publishers and subscribers are looked at."""

OWN_NODES = ('policy_node', 'safety_filter', 'sim_robot', 'trajectory_markers')

OUTPUT_TYPES = {
    'forward_command': 'std_msgs/msg/Float64MultiArray',
    'joint_trajectory': 'trajectory_msgs/msg/JointTrajectory',
}
UNNAMED = '_NODE_NAME_UNKNOWN_'
"""What rclpy calls the node of an endpoint before it has discovered it."""

NAMES_BOUND_S = 3.0
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)


@dataclass(frozen=True)
class Ends:
    """
    Who is at the two ends of a topic: node names.

    ``types``: what they take it for. ``incompatible``: 'publisher -> subscriber: why', where their
    qualities of service keep them from hearing each other.
    """

    topic: str
    publishers: tuple[str, ...] = ()
    subscribers: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    incompatible: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return self.publishers + self.subscribers


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
    stamp: int = 0  # ns, of the newest message
    sim_offset: float | None = None  # s, /clock minus newest stamp

    @property
    def rate(self) -> float:
        return self.count / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Survey:
    """Everything heard, and every topic of the graph."""

    cameras: Mapping[str, Heard]
    joints: Mapping[str, Heard]
    graph: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ends: Mapping[str, Ends] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    clock_ns: int | None = None  # newest /clock; None: nobody publishes it
    sim_time: Mapping[str, bool] = field(default_factory=dict)  # own nodes that answered
    filter: DiagnosticStatus | None = None  # newest safety_filter/status


def output_topics(robot: RobotSpec) -> dict[str, tuple[str, str]]:
    """Return topic -> (kind, message type) of everything that a robot's arms are commanded on."""
    topics = {}
    for arm in robot.arms:
        out = arm.output
        if out.kind == 'interbotix':
            group = f'{out.namespace}/commands/joint_group'
            topics[group] = out.kind, 'interbotix_xs_msgs/msg/JointGroupCommand'
            if arm.gripper is not None:
                single = f'{out.namespace}/commands/joint_single'
                topics[single] = out.kind, 'interbotix_xs_msgs/msg/JointSingleCommand'
        elif out.kind in OUTPUT_TYPES:
            for topic in filter(None, (out.topic, out.gripper_topic)):
                topics[topic] = out.kind, OUTPUT_TYPES[out.kind]
    return topics


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
        news = {}
        node.create_subscription(
            DiagnosticStatus, 'safety_filter/status', lambda m: news.update(filter=m), LATCHED
        )
        node.create_subscription(
            Clock, '/clock', lambda m: _on_clock(news, everything, ns_from_time(m.clock)),
            qos_profile_sensor_data,
        )  # fmt: skip
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
        watched = [*(h.topic for h in everything), *OWN_TOPICS, *output_topics(robot)]
        end = time.monotonic() + NAMES_BOUND_S
        while True:  # endpoints are discovered before the nodes that they belong to
            ends = {topic: _ends(node, topic) for topic in dict.fromkeys(watched)}
            named = not any(UNNAMED in n for e in ends.values() for n in e.names)
            if named or time.monotonic() > end:
                break
            _spin(executor, 0.2, lambda: False)
        names = [
            f'{namespace.rstrip("/")}/{name}'
            for name, namespace in node.get_node_names_and_namespaces()
            if not name.startswith('_')
        ]
        return Survey(
            cameras, joints, graph, ends, tuple(sorted(names)), news.get('clock'),
            _sim_time(node, executor, names), news.get('filter'),
        )  # fmt: skip
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
        heard.stamp = stamp
        heard.offset = (node.get_clock().now().nanoseconds - stamp) / NANOSECONDS

    node.create_subscription(kind, topic, receive, qos_profile_sensor_data)
    return heard


def _on_clock(news: dict, everything, now_ns: int) -> None:
    news['clock'] = now_ns
    for heard in everything:
        if heard.count:
            heard.sim_offset = (now_ns - heard.stamp) / NANOSECONDS


def _ends(node, topic: str) -> Ends:
    """Return who publishes and subscribes, this node left out."""
    own, full = node.get_name(), node.resolve_topic_name(topic)
    sides = [
        [i for i in infos if i.node_name != own]
        for infos in (
            node.get_publishers_info_by_topic(full), node.get_subscriptions_info_by_topic(full),
        )
    ]  # fmt: skip
    names = [
        tuple(f'{i.node_namespace.rstrip("/")}/{i.node_name}' for i in side) for side in sides
    ]
    apart = []
    for publisher, left in zip(sides[0], names[0]):
        for subscriber, right in zip(sides[1], names[1]):
            result, why = qos_check_compatible(publisher.qos_profile, subscriber.qos_profile)
            if result == QoSCompatibility.ERROR:
                apart.append(f'{left} -> {right}: {" ".join(why.split())}')
    types = tuple(sorted({i.topic_type for side in sides for i in side}))
    return Ends(full, *names, types, tuple(apart))


def _sim_time(node, executor, names) -> dict[str, bool]:
    """Ask the own nodes whether they follow /clock; those that do not answer are left out."""
    futures = {}
    for name in names:
        if name.rsplit('/', 1)[-1] in OWN_NODES:
            client = node.create_client(GetParameters, f'{name}/get_parameters')
            if client.wait_for_service(timeout_sec=1.0):
                request = GetParameters.Request(names=['use_sim_time'])
                futures[name] = client.call_async(request)
    _spin(executor, 1.0, lambda: all(future.done() for future in futures.values()))
    return {
        name: future.result().values[0].bool_value
        for name, future in futures.items()
        if future.done() and future.result() is not None and future.result().values
    }


def _spin(executor, seconds: float, done) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not done():
        executor.spin_once(timeout_sec=0.05)
