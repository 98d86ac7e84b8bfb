# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Parts of policy_node that need no topics: ticks, stamps, messages, the parameter file."""

import threading
import time

import numpy as np
import pytest
import rclpy
import yaml
from rclpy.parameter import Parameter
from rclpy.serialization import serialize_message
from sensor_msgs.msg import CompressedImage, Image

from pi0_ros.control import ActionChunk, ChunkExecutor, Switch
from pi0_ros.messages import chunk_message, stamp_of_serialized
from pi0_ros.nodes.policy_node import PolicyNode, Settings, StampMap, Ticker
from pi0_ros.resources import share_path

BOUND_S = 10.0


class SteppedClock:
    """A clock whose ROS time can be set while its steady time runs on, like a computer's."""

    simulated = False

    def __init__(self):
        self.step_ns = 0

    def seconds(self):
        return time.monotonic()

    def now_ns(self):
        return 1_700_000_000_000_000_000 + time.monotonic_ns() + self.step_ns


def test_b06_b34_ticks_go_on_evenly_without_an_executor_while_system_time_is_set_back():
    clock, sent, arrived = SteppedClock(), [], threading.Event()
    executor = ChunkExecutor(1, 50.0, 50.0, Switch(), lead=1.0)
    stamps = StampMap(clock)

    def send(setpoint):
        sent.append((setpoint.due, stamps.stamp_ns(setpoint.due)))
        if len(sent) == 10:
            clock.step_ns = -5_000_000_000
        if len(sent) == 30:
            arrived.set()

    ticker = Ticker(clock, executor, send)
    try:
        executor.install(ActionChunk.of(np.zeros((60, 1)), 1), clock.seconds())
        ticker.wake()
        assert arrived.wait(BOUND_S)
    finally:
        ticker.stop()
    dues, stamped = np.array(sent[:30]).T
    np.testing.assert_allclose(np.diff(dues), 0.02, atol=1e-9)
    steps = np.diff(stamped) / 1e9
    assert steps[9] == pytest.approx(-5.0 + 0.02, abs=0.01)  # stamps follow ROS time at once
    np.testing.assert_allclose(np.delete(steps, 9), 0.02, atol=1e-3)


def test_nothing_is_sent_after_stop():
    clock, sent = SteppedClock(), []
    executor = ChunkExecutor(1, 1000.0, 1000.0, Switch())
    ticker = Ticker(clock, executor, sent.append)
    executor.install(ActionChunk.of(np.zeros((10000, 1)), 1), clock.seconds())
    ticker.wake()
    ticker.stop()
    count = len(sent)
    assert executor.poll(clock.seconds() + 1.0) is not None
    ticker.wake()
    assert len(sent) == count and not ticker._thread.is_alive()


def test_stamps_follow_a_slow_drift_without_a_leap():
    clock = SteppedClock()
    stamps = StampMap(clock)
    offsets = []
    for _ in range(200):
        clock.step_ns += 5_000  # 250 ppm at 50 Hz
        offsets.append(stamps.stamp_ns(0.0))
    steps = np.diff(offsets)
    assert np.abs(steps).max() <= 20_500  # a fifth of a thousandth of a tick
    assert abs(offsets[-1] - offsets[0] - 199 * 5_000) < 1_000_000


@pytest.mark.parametrize('interrupted', ['before', 'after'])
def test_b06_an_interruption_between_the_two_clocks_is_no_step_of_one(interrupted):
    """The thread loses the processor for 0.3 s while it compares the two clocks."""

    class Interrupted:
        simulated, now, at = False, 100.0, 20

        def seconds(self):
            return self.now

        def now_ns(self):
            self.at -= 1
            if self.at == 0 and interrupted == 'before':
                self.now += 0.3
            read = round((1.7e9 + self.now) * 1e9)
            if self.at == 0 and interrupted == 'after':
                self.now += 0.3
            return read

    clock = Interrupted()
    stamps, got = StampMap(clock), []
    for tick in range(40):
        got.append(stamps.stamp_ns(100.0 + 0.02 * tick))
        clock.now += 0.02
    np.testing.assert_allclose(np.diff(got) / 1e9, 0.02, atol=1e-4)


@pytest.mark.parametrize('kind', [Image, CompressedImage])
@pytest.mark.parametrize('stamp', [(0, 0), (1_700_000_000, 999_999_999), (2**31 - 1, 1)])
def test_the_stamp_is_read_without_deserializing(kind, stamp):
    message = kind()
    message.header.stamp.sec, message.header.stamp.nanosec = stamp
    message.header.frame_id = 'camera'
    assert stamp_of_serialized(serialize_message(message)) == stamp[0] * 10**9 + stamp[1]


def test_chunk_message_times_increase_strictly_from_above_zero():
    chunk = ActionChunk.of(
        np.zeros((3, 2)), 2, stamp_ns=5_000_000_007, sequence=4, seed=9, dt=1 / 30
    )
    message = chunk_message(chunk, ('a', 'b'))
    times = [p.time_from_start.sec * 10**9 + p.time_from_start.nanosec for p in message.points]
    assert times == [33_333_333, 66_666_667, 100_000_000]
    assert (message.header.stamp.sec, message.header.stamp.nanosec) == (5, 7)
    assert message.header.frame_id == 'seq=4;seed=9;obs=5000000007'


@pytest.fixture()
def node():
    rclpy.init(args=[])
    nodes = []

    def make(**parameters):
        nodes.append(
            PolicyNode(
                parameter_overrides=[Parameter(n, value=v) for n, v in parameters.items()]
            )
        )
        return nodes[-1]

    yield make
    for each in nodes:
        each.destroy_node()
    rclpy.shutdown()


def test_the_parameter_file_lists_every_parameter_with_its_default(node):
    """config/policy/policy_node.yaml is what a lab copies and edits."""
    with open(share_path('config/policy/policy_node.yaml'), encoding='utf-8') as file:
        given = yaml.safe_load(file)['/**/policy_node']['ros__parameters']
    made = node()
    names = set(made.list_parameters([], 0).names)
    own = {n for n in names if n not in ('use_sim_time', 'start_type_description_service')}
    assert set(given) == own
    for name, value in given.items():
        assert made.parameter(name) == value, name


def test_every_parameter_says_what_it_means(node):
    made = node()
    for name in Settings.__dataclass_fields__:
        assert len(made.describe_parameter(name).description) > 10, name


def test_rates_and_lead_default_to_the_robots(node):
    made = node(robot='wxai')
    assert made.parameter('control_rate') == made.robot.control_rate
    assert made.parameter('setpoint_lead') == pytest.approx(2.0 / made.robot.control_rate)
