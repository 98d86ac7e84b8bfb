# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""The filter under simulated time: a clock that runs, stops, never starts, jumps back."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from rosgraph_msgs.msg import Clock
from safety_lab import NAMES, assert_inside_every_limit, lab, policy_units, wait_for
from sensor_msgs.msg import JointState
from setpoint_sender import swing

from pi0_ros.demo import free_domain
from pi0_ros.nodes.safety_filter import FilterTime


class Simulation:
    """Publishes /clock in steps of 10 ms, and setpoints of a swing in steps of 20 ms."""

    def __init__(self, room, pace: float = 0.008):
        self.time_ns = 50_000_000_000
        self.running = threading.Event()
        self.sending = False
        self._room, self._pace = room, pace
        self._clock = room.node.create_publisher(Clock, '/clock', 10)
        self._raw = room.node.create_publisher(JointState, 'joint_command_raw', 10)
        self._done = threading.Event()
        self._begin = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        count = 0
        while not self._done.wait(self._pace):
            if not self.running.is_set():
                continue
            self.time_ns += 10_000_000
            message = Clock()
            message.clock.sec, message.clock.nanosec = divmod(self.time_ns, 1_000_000_000)
            self._clock.publish(message)
            count += 1
            if self.sending and count % 2 == 0:
                self._send()

    def _send(self) -> None:
        if self._begin is None:
            self._begin = self.time_ns
        setpoint = swing((self.time_ns - self._begin) * 1e-9, 0.4, 0.5)
        message = JointState(name=NAMES, position=policy_units(setpoint).tolist())
        due = divmod(self.time_ns + 40_000_000, 1_000_000_000)
        message.header.stamp.sec, message.header.stamp.nanosec = due
        self._raw.publish(message)

    def close(self) -> None:
        self._done.set()
        self._thread.join(5.0)


@pytest.fixture()
def simulated():
    with lab(free_domain()) as room:
        simulation = Simulation(room)
        room.start_filter(use_sim_time=True)
        wait_for(lambda: room.statuses, 20.0, 'a status')
        yield room, simulation
        simulation.close()


def start_motion(room, simulation) -> None:
    simulation.running.set()
    room.ready()
    simulation.sending = True
    room.wait_for_state('active')
    room.wait_for_motion()


def test_without_a_clock_nothing_moves_and_enable_says_why(simulated):
    room, _ = simulated
    answer = room.enable()
    assert not answer.success and '/clock' in answer.message
    assert not room.received


def test_it_follows_in_simulated_time(simulated):
    room, simulation = simulated
    start_motion(room, simulation)
    wait_for(lambda: len(room.received) > 120, 10.0, 'commands')
    commands = room.commands()
    assert_inside_every_limit(commands)
    assert np.ptp(commands[:, 0]) > 0.3


def test_a_clock_that_stops_brings_the_arm_to_rest_and_is_announced(simulated):
    """Field report B64: /clock frozen under use_sim_time."""
    room, simulation = simulated
    start_motion(room, simulation)

    simulation.running.clear()
    stopped = time.monotonic()
    room.wait_for_rest()

    assert room.moving_until() - stopped < 0.5 + 1.0  # clock_timeout, then braking
    key = 'safety_filter: clock'
    wait_for(lambda: key in room.diagnostics, 5.0, 'a row about the clock')
    assert 'stands still' in room.diagnostics[key].message
    assert not room.enable().success
    assert_inside_every_limit(room.commands())

    count = len(room.received)
    simulation.running.set()
    wait_for(lambda: len(room.received) > count + 100, 10.0, 'two more seconds')
    assert_inside_every_limit(room.commands())  # no jump when it runs again


def test_a_clock_that_jumps_back_holds_until_enabled_again(simulated):
    room, simulation = simulated
    start_motion(room, simulation)

    simulation.sending = False
    simulation.time_ns -= 30_000_000_000
    simulation._begin = None
    room.wait_for_rest()

    held = room.received[-1][1]
    simulation.sending = True
    count = len(room.received)
    wait_for(lambda: len(room.received) > count + 60, 10.0, 'a second of holding')
    assert np.array_equal(room.received[-1][1], held)  # nobody enabled
    room.ready()
    room.wait_for_state('active')
    assert_inside_every_limit(room.commands())


class Clocks:
    """Two clocks turned by hand."""

    def __init__(self, simulated: float):
        self.simulated, self.wall = simulated, 100.0
        self.time = FilterTime(lambda: self.simulated, 0.5, lambda: self.wall)

    def turn(self, simulated: float, wall: float) -> float:
        self.simulated += simulated
        self.wall += wall
        return self.time.now()


def test_filter_time_follows_the_simulated_clock():
    clocks = Clocks(5.0)
    start = clocks.time.now()
    assert clocks.turn(0.02, 0.5) - start == pytest.approx(0.02)
    assert clocks.turn(3.0, 0.001) - start == pytest.approx(3.02)


def test_filter_time_goes_on_with_the_wall_when_the_clock_stands():
    clocks = Clocks(5.0)
    start = clocks.turn(0.02, 0.02)
    assert clocks.turn(0.0, 0.4) == start and not clocks.time.standing
    assert clocks.turn(0.0, 0.2) - start == pytest.approx(0.1)
    assert clocks.time.standing
    assert clocks.turn(0.0, 0.02) - start == pytest.approx(0.12)
    assert clocks.turn(0.02, 0.02) - start == pytest.approx(0.14)
    assert not clocks.time.standing


def test_filter_time_never_goes_back_and_counts_jumps():
    clocks = Clocks(5.0)
    start = clocks.turn(0.02, 0.02)
    assert clocks.turn(-4.0, 0.02) == start
    assert clocks.time.jumps == 1
    assert clocks.turn(0.02, 0.02) - start == pytest.approx(0.02)


def test_the_beginning_of_the_clock_is_no_leap():
    clocks = Clocks(0.0)
    start = clocks.time.now()
    assert not clocks.time.begun
    assert clocks.turn(1.7e9, 0.02) == start
    assert clocks.time.begun
