# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Record topics into a rosbag2 mcap, without rosbag2: raw subscriptions, rosbags' writer.

Used by ``pi0_ros record`` and by the demo. A message is never decoded: the bytes that the
middleware delivered are the bytes in the bag. Type definitions and offered QoS go with them, so
that the bag can be read where the types are not installed and played with the right QoS.

Threads: ROS callbacks stamp and enqueue (any executor thread); one writer thread owns the file.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import rclpy
from rcl_interfaces.msg import ParameterType
from rcl_interfaces.srv import GetParameters, ListParameters
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.clock import Clock, ClockType
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.signals import SignalHandlerOptions
from rosbags.interfaces import (
    Qos,
    QosDurability,
    QosHistory,
    QosLiveliness,
    QosReliability,
    QosTime,
)
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer, WriterError
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from pi0_ros.errors import Pi0RosError

DISCOVERY_PERIOD_S = 0.25
"""How often the graph is searched for topics that are not subscribed to yet."""

QUEUE_LIMIT_BYTES = 256 * 2**20
"""Messages waiting for the disk: about 3 s of three 640x480 cameras at 30 Hz."""

SUBSCRIPTION_DEPTH = 100
"""Messages of a topic that the middleware keeps while the executor is busy."""

IGNORED_TOPICS = ('/rosout', '/parameter_events')
"""Not recorded when everything is; name them to have them."""

WRITER_JOIN_S = 60.0
"""How long ``close`` waits for the disk."""


@dataclass(frozen=True)
class Recording:
    """
    What a bag holds, as ``BagRecorder.close`` returns it.

    ``counts``: messages written, a topic. ``dropped``: messages lost because the disk was too
    slow. ``missing``: topics asked for that nobody offered. ``refused``: topic -> why not.
    """

    path: Path
    counts: Mapping[str, int]
    dropped: Mapping[str, int]
    missing: tuple[str, ...]
    refused: Mapping[str, str]

    @property
    def messages(self) -> int:
        return sum(self.counts.values())


class BagRecorder:
    """
    Records topics of a running graph into a new bag.

    :param node: whose subscriptions and clock are used; somebody else spins it.
    :param path: folder of the bag, which must not exist yet.
    :param topics: names to record (relative ones are resolved in the node's namespace);
        None: every topic that is not hidden.
    :param metadata: strings kept as the bag's custom data, beside the nodes' parameters.
    :param compress: zstd inside the mcap; images cost about one core.
    :raises Pi0RosError: when the bag exists or cannot be made.
    """

    def __init__(
        self,
        node: Node,
        path: str | os.PathLike,
        topics: Iterable[str] | None = None,
        *,
        metadata: Mapping[str, str] | None = None,
        compress: bool = False,
    ) -> None:
        self._node = node
        self.path = Path(path)
        self._wanted = None
        if topics is not None:
            self._wanted = tuple(dict.fromkeys(node.resolve_topic_name(t) for t in topics))
        self.metadata: dict[str, str] = dict(metadata or {})
        self._compress = compress
        self._types = MessageTypes()
        self._group = ReentrantCallbackGroup()
        self._subscriptions: dict[str, object] = {}
        self._refused: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._dropped: dict[str, int] = {}
        self._queue: queue.SimpleQueue = queue.SimpleQueue()
        self._waiting_bytes = 0
        self._lock = threading.Lock()  # guards _waiting_bytes, _dropped
        self._file = threading.Lock()  # guards _writer; never taken together with _lock
        self._failure: Exception | None = None
        self._writer: Writer | None = None
        self._thread: threading.Thread | None = None
        self._timer = None
        self._parameters: dict[str, dict] = {}  # by node; {} while its answer is awaited
        self._parameter_clients: dict[str, tuple] = {}

    @property
    def counts(self) -> dict[str, int]:
        """Messages written so far, by topic."""
        return dict(self._counts)

    @property
    def parameters(self) -> dict[str, dict]:
        """Parameters of the nodes that have answered, by node name."""
        return {node: values for node, values in self._parameters.items() if values}

    @property
    def missing(self) -> tuple[str, ...]:
        """Topics asked for that nobody offers yet."""
        if self._wanted is None:
            return ()
        return tuple(
            t for t in self._wanted if t not in self._subscriptions and t not in self._refused
        )

    def start(self) -> None:
        """
        Create the bag, subscribe to what is there, keep looking for the rest.

        :raises Pi0RosError: when the bag exists or cannot be made.
        """
        if self._writer is not None:
            raise Pi0RosError(f'{self.path}: already recording; close it first')
        writer = Writer(
            self.path, version=Writer.VERSION_LATEST, storage_plugin=StoragePlugin.MCAP
        )
        if self._compress:
            writer.set_compression(CompressionMode.STORAGE, CompressionFormat.ZSTD)
        try:
            writer.open()
        except (WriterError, OSError) as error:
            raise Pi0RosError(f'{self.path}: cannot record there ({error})') from None
        self._writer = writer
        self._thread = threading.Thread(target=self._write_all, name='bag writer', daemon=True)
        self._thread.start()
        self._discover()
        self._timer = self._node.create_timer(
            DISCOVERY_PERIOD_S,
            self._discover,
            callback_group=self._group,
            clock=Clock(clock_type=ClockType.STEADY_TIME),
        )

    def close(self) -> Recording:
        """
        Stop subscribing, write what is queued, finish the file; blocks until it is on disk.

        :raises Pi0RosError: when writing failed (disk full); the bag then ends there.
        """
        if self._writer is None or self._thread is None:
            raise Pi0RosError(f'{self.path}: not recording; start it first')
        missing = self.missing
        if self._timer is not None:
            self._node.destroy_timer(self._timer)
            self._timer = None
        for clients in self._parameter_clients.values():
            for client in clients:
                self._node.destroy_client(client)
        self._parameter_clients.clear()
        for subscription in self._subscriptions.values():
            self._node.destroy_subscription(subscription)
        self._subscriptions.clear()
        self._queue.put(None)
        self._thread.join(WRITER_JOIN_S)
        writer, self._writer = self._writer, None
        if self._thread.is_alive():
            raise Pi0RosError(f'{self.path}: the disk did not keep up; the bag is incomplete')
        if self.parameters:
            writer.set_custom_data('parameters', json.dumps(self.parameters, sort_keys=True))
        for key, value in self.metadata.items():
            writer.set_custom_data(key, value)
        if not writer.counts or not any(writer.counts.values()):
            writer.min_timestamp = 0
        if self._failure is None:
            try:
                writer.close()
            except OSError as error:
                self._failure = error
        if self._failure is not None:
            raise Pi0RosError(
                f'{self.path}: writing failed ({self._failure}); free the disk and record again'
            )
        return Recording(
            self.path, dict(self._counts), dict(self._dropped), missing, dict(self._refused)
        )

    # --- any executor thread

    def _discover(self) -> None:
        for topic, types in self._node.get_topic_names_and_types():
            if topic in self._subscriptions or topic in self._refused:
                continue
            if self._wanted is None:
                hidden = any(part.startswith('_') for part in topic.split('/'))
                if hidden or topic in IGNORED_TOPICS:
                    continue
            elif topic not in self._wanted:
                continue
            publishers = self._node.get_publishers_info_by_topic(topic)
            if publishers:
                self._subscribe(topic, types, [p.qos_profile for p in publishers])
        self._ask_for_parameters()

    def _subscribe(self, topic: str, types: list[str], offered: list[QoSProfile]) -> None:
        if len(types) > 1:
            return self._refuse(topic, f'it is offered with several types: {", ".join(types)}')
        try:
            msgtype = self._types.message_class(types[0])
            definition, digest = self._types.definition(types[0])
        except Pi0RosError as error:
            return self._refuse(topic, str(error))
        with self._file:
            connection = self._writer.add_connection(
                topic,
                types[0],
                msgdef=definition,
                rihs01=digest,
                offered_qos_profiles=[bag_qos(qos) for qos in offered],
            )
        self._counts[topic] = 0

        def receive(data: bytes) -> None:
            self._enqueue(topic, connection, data)

        self._subscriptions[topic] = self._node.create_subscription(
            msgtype, topic, receive, matching_qos(offered), callback_group=self._group, raw=True
        )

    def _refuse(self, topic: str, reason: str) -> None:
        self._refused[topic] = reason
        self._node.get_logger().warning(f'{topic} is not recorded: {reason}')

    def _enqueue(self, topic: str, connection, data: bytes) -> None:
        with self._lock:
            if self._waiting_bytes > QUEUE_LIMIT_BYTES:
                first = topic not in self._dropped
                self._dropped[topic] = self._dropped.get(topic, 0) + 1
                if first:
                    self._node.get_logger().warning(f'{topic}: the disk is too slow, dropping')
                return
            self._waiting_bytes += len(data)
        self._queue.put((topic, connection, self._node.get_clock().now().nanoseconds, data))

    def _ask_for_parameters(self) -> None:
        """Ask each node once for all its parameters; nobody waits for the answers."""
        for name, namespace in self._node.get_node_names_and_namespaces():
            full = f'{namespace.rstrip("/")}/{name}'
            if name.startswith('_') or full == self._node.get_fully_qualified_name():
                continue
            if full not in self._parameter_clients:
                self._parameter_clients[full] = tuple(
                    self._node.create_client(srv, f'{full}/{verb}', callback_group=self._group)
                    for srv, verb in (
                        (ListParameters, 'list_parameters'),
                        (GetParameters, 'get_parameters'),
                    )
                )
            clients = self._parameter_clients[full]
            if full not in self._parameters and all(c.service_is_ready() for c in clients):
                self._parameters[full] = {}
                self._list_parameters(full, *clients)

    def _list_parameters(self, full: str, lister, getter) -> None:
        def got_values(names, future) -> None:
            response = future.result()
            if response is not None:
                values = [parameter_value(v) for v in response.values]
                self._parameters[full] = dict(zip(names, values))

        def got_names(future) -> None:
            response = future.result()
            if response is not None and response.result.names:
                names = list(response.result.names)
                request = getter.call_async(GetParameters.Request(names=names))
                request.add_done_callback(lambda f: got_values(names, f))

        lister.call_async(ListParameters.Request()).add_done_callback(got_names)

    # --- writer thread only

    def _write_all(self) -> None:
        held = []  # received before a simulated clock began
        while True:
            item = self._queue.get()
            if item is None:
                break
            topic, connection, stamp, data = item
            with self._lock:
                self._waiting_bytes -= len(data)
            if stamp <= 0:
                held.append(item)
                continue
            for early_topic, early_connection, _, early in held:
                self._write(early_topic, early_connection, stamp, early)
            held.clear()
            self._write(topic, connection, stamp, data)
        for topic, connection, _, data in held:
            self._write(topic, connection, time.time_ns(), data)

    def _write(self, topic: str, connection, stamp: int, data: bytes) -> None:
        if self._failure is not None:
            return
        try:
            with self._file:
                self._writer.write(connection, stamp, data)
            self._counts[topic] += 1
        except OSError as error:
            self._failure = error


class MessageTypes:
    """Message classes and definitions by type name; what rosbags does not know is looked up."""

    def __init__(self) -> None:
        distro = f'ROS2_{os.environ.get("ROS_DISTRO", "").upper()}'
        self._store = get_typestore(getattr(Stores, distro, Stores.LATEST))

    def message_class(self, name: str) -> type:
        """
        Return the Python class of a type such as ``sensor_msgs/msg/Image``.

        :raises Pi0RosError: when its package is not installed.
        """
        package, _, short = name.partition('/msg/')
        try:
            return getattr(importlib.import_module(f'{package}.msg'), short)
        except (ImportError, AttributeError):
            raise Pi0RosError(
                f"message type '{name}' is not installed; install or source package {package}"
            ) from None

    def definition(self, name: str) -> tuple[str, str]:
        """
        Return the definition text, with everything it refers to, and its RIHS01 hash.

        :raises Pi0RosError: when neither rosbags nor an installed package defines it.
        """
        self._learn(name)
        text, _ = self._store.generate_msgdef(name, ros_version=2)
        return text, self._store.hash_rihs01(name)

    def _learn(self, name: str) -> None:
        if name in self._store.fielddefs:
            return
        package, kind, short = name.split('/')
        prefixes = [p for p in os.environ.get('AMENT_PREFIX_PATH', '').split(os.pathsep) if p]
        for prefix in [*prefixes, sys.prefix]:
            path = Path(prefix) / 'share' / package / kind / f'{short}.msg'
            if path.is_file():
                found = get_types_from_msg(path.read_text(encoding='utf-8'), name)
                for _, fields in found.values():
                    for _, description in fields:
                        self._learn_field(description)
                self._store.register(found)
                return
        raise Pi0RosError(f"no definition of message type '{name}' is installed")

    def _learn_field(self, description) -> None:
        _, detail = description
        if isinstance(detail, str):
            self._learn(detail)
        elif isinstance(detail[0], tuple):
            self._learn_field(detail[0])


def matching_qos(offered: list[QoSProfile]) -> QoSProfile:
    """Return a QoS that every one of these publishers can serve, as strong as that allows."""
    reliable = all(q.reliability == ReliabilityPolicy.RELIABLE for q in offered)
    latched = all(q.durability == DurabilityPolicy.TRANSIENT_LOCAL for q in offered)
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST,
        depth=SUBSCRIPTION_DEPTH,
        reliability=ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
        durability=(
            DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE
        ),
    )


def bag_qos(qos: QoSProfile) -> Qos:
    """Return an offered QoS as rosbags writes it; history is not told over the wire."""

    def seconds(duration) -> QosTime:
        return QosTime(*divmod(duration.nanoseconds, 10**9))

    return Qos(
        history=QosHistory(int(qos.history)),
        depth=qos.depth,
        reliability=QosReliability(int(qos.reliability)),
        durability=QosDurability(int(qos.durability)),
        deadline=seconds(qos.deadline),
        lifespan=seconds(qos.lifespan),
        liveliness=QosLiveliness(int(qos.liveliness)),
        liveliness_lease_duration=seconds(qos.liveliness_lease_duration),
        avoid_ros_namespace_conventions=qos.avoid_ros_namespace_conventions,
    )


def parameter_value(value):
    """Return a rcl_interfaces ParameterValue as what JSON can hold."""
    kinds = {
        ParameterType.PARAMETER_BOOL: 'bool_value',
        ParameterType.PARAMETER_INTEGER: 'integer_value',
        ParameterType.PARAMETER_DOUBLE: 'double_value',
        ParameterType.PARAMETER_STRING: 'string_value',
        ParameterType.PARAMETER_BYTE_ARRAY: 'byte_array_value',
        ParameterType.PARAMETER_BOOL_ARRAY: 'bool_array_value',
        ParameterType.PARAMETER_INTEGER_ARRAY: 'integer_array_value',
        ParameterType.PARAMETER_DOUBLE_ARRAY: 'double_array_value',
        ParameterType.PARAMETER_STRING_ARRAY: 'string_array_value',
    }
    if value.type not in kinds:
        return None
    content = getattr(value, kinds[value.type])
    if isinstance(content, (bool, int, float, str)):
        return content
    return [int.from_bytes(v, 'little') if isinstance(v, bytes) else v for v in list(content)]


def record(
    path, topics: Iterable[str] | None, metadata: Mapping[str, str], seconds: float | None = None,
    compress: bool = False,
) -> Recording:  # fmt: skip
    """
    Record until SIGINT, SIGTERM or so many seconds of wall time have passed; then close the bag.

    :raises Pi0RosError: as :meth:`BagRecorder.start` and :meth:`BagRecorder.close`.
    """
    stop = threading.Event()
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    previous = {
        number: signal.signal(number, lambda *_: stop.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    node = rclpy.create_node('recorder')
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    recorder = BagRecorder(node, path, topics, metadata=metadata, compress=compress)
    try:
        recorder.start()
        end = math.inf if seconds is None else time.monotonic() + seconds
        while not stop.is_set() and time.monotonic() < end:
            executor.spin_once(timeout_sec=0.1)
        return recorder.close()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        executor.shutdown(timeout_sec=1.0)
        node.destroy_node()
        rclpy.shutdown()
