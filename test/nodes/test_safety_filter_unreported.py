# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Troubles of the kinds in the field reports that nobody has reported yet, over real topics."""

from __future__ import annotations

import time

import numpy as np
import pytest
from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue
from rcl_interfaces.srv import SetParameters
from safety_lab import NAMES, START, assert_inside_every_limit, lab, policy_units, wait_for
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool, String

from pi0_ros.demo import free_domain


@pytest.fixture(scope='module')
def room():
    with lab(free_domain()) as room:
        room.start_filter()
        room.wait_for_state('ready', timeout=30.0)
        yield room


def send_until(room, publisher, until, *, hours: float = 0.0, **fields) -> None:
    """Publish START at 50 Hz until a condition holds."""
    due, deadline = time.monotonic(), time.monotonic() + 10.0
    while not until():
        assert time.monotonic() < deadline, room.reason
        message = JointState(name=NAMES, position=policy_units(START).tolist(), **fields)
        stamp = room.node.get_clock().now().nanoseconds + 40_000_000 + int(hours * 3.6e12)
        message.header.stamp.sec, message.header.stamp.nanosec = divmod(stamp, 1_000_000_000)
        publisher.publish(message)
        due += 0.02
        time.sleep(max(0.0, due - time.monotonic()))


@pytest.fixture()
def raw(room):
    publisher = room.node.create_publisher(JointState, 'joint_command_raw', 10)
    yield publisher
    room.node.destroy_publisher(publisher)


def test_velocities_and_efforts_of_setpoints_are_not_looked_at(room, raw):
    room.ready()
    rubbish = {'velocity': [float('nan')] * 14, 'effort': [float('inf')] * 3}
    send_until(room, raw, lambda: room.state == 'active', **rubbish)
    count = len(room.received)
    send_until(room, raw, lambda: len(room.received) > count + 20, **rubbish)
    assert np.abs(room.commands() - START).max() < 1e-6


@pytest.mark.parametrize('hours', [6.0, -6.0])
def test_a_policy_whose_clock_is_hours_off_is_played_by_arrival(room, raw, hours):
    wait_for(lambda: room.state in ('holding', 'ready'), 5.0, 'rest')
    room.ready()
    send_until(room, raw, lambda: room.state == 'active', hours=hours)
    assert np.abs(room.commands() - START).max() < 1e-6


def test_an_empty_motor_error_is_none_and_a_stop_pressed_twice_needs_one_reset(room):
    errors = room.node.create_publisher(String, 'motor_error', 10)
    button = room.node.create_publisher(Bool, 'emergency_stop', 10)
    wait_for(
        lambda: errors.get_subscription_count() and button.get_subscription_count(), 5.0
    )
    errors.publish(String(data='  '))
    for _ in range(2):
        button.publish(Bool(data=True))
    room.wait_for_state('stopped')
    assert 'emergency_stop' in room.reason
    wait_for(lambda: room.reset().success, 5.0, 'a reset')
    room.wait_for_state('ready')
    assert_inside_every_limit(room.commands())
    room.node.destroy_publisher(errors)
    room.node.destroy_publisher(button)


def test_limits_cannot_be_changed_while_it_runs(room):
    client = room.node.create_client(SetParameters, '/safety_filter/set_parameters')
    for name, value in (
        ('robot_description', ParameterValue(type=ParameterType.PARAMETER_STRING,
                                             string_value='<robot name="other"/>')),
        ('command_timeout', ParameterValue(type=ParameterType.PARAMETER_DOUBLE,
                                           double_value=2.0)),
        ('disabled_checks', ParameterValue(type=ParameterType.PARAMETER_STRING,
                                           string_value='collision')),
    ):  # fmt: skip
        answer = room._call(
            client, SetParameters.Request(parameters=[Parameter(name=name, value=value)])
        )
        assert not answer.results[0].successful, name


def test_a_second_filter_is_seen_by_the_first(room):
    second = room.start_filter()
    key = 'safety_filter: outputs'
    wait_for(lambda: key in room.diagnostics, 30.0, 'a row about outputs')
    assert 'others publish on /joint_command: /safety_filter' in room.diagnostics[key].message
    second.kill()
    second.wait(10.0)
