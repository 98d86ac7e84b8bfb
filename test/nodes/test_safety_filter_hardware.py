# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""The filter on Interbotix's own message types, against a driver that checks what it gets."""

from __future__ import annotations

import json

import interbotix_messages
import numpy as np
import pytest
from safety_lab import NAMES, PERIOD, START, assert_inside_every_limit, lab, policy_units, wait_for
from sensor_msgs.msg import JointState
from std_msgs.msg import String

from pi0_ros.demo import free_domain

pytestmark = pytest.mark.skipif(
    bool(interbotix_messages.missing_tools()),
    reason='the message package cannot be compiled without ' + interbotix_messages.missing_tools(),
)


@pytest.fixture()
def driven():
    """Return a lab whose robot is the driver stand-in, and its latest report."""
    env = interbotix_messages.environment()
    report = {}
    with lab(free_domain()) as room:
        room.silent = {'left', 'right'}
        room.node.create_subscription(
            String, 'driver_report', lambda m: report.update(json.loads(m.data)), 10
        )
        room.start_script('interbotix_driver.py', env=env)
        room.start_filter(output='', env=env)
        room.wait_for_state('ready', timeout=20.0)
        wait_for(lambda: report, 10.0, 'a report of the driver')
        yield room, report


def test_the_driver_accepts_every_command_of_a_motion(driven):
    room, report = driven
    room.start_sender()
    room.ready()
    room.wait_for_motion()
    wait_for(lambda: len(room.received) > 150, 10.0, '3 s of commands')
    wait_for(lambda: report['left']['commands']['arm'] > 150, 5.0, 'the driver')

    assert_inside_every_limit(room.commands())
    for arm in ('left', 'right'):
        seen = report[arm]
        assert seen['faults'] == []
        assert seen['commands']['gripper'] == pytest.approx(seen['commands']['arm'], abs=2)
        assert seen['interval'] == pytest.approx(PERIOD, rel=0.25)


def test_the_driver_is_where_joint_command_says(driven):
    """Field report B70: what is reported as sent is what was sent."""
    room, report = driven
    room.start_sender()
    room.ready()
    room.wait_for_motion()
    assert room.enable(False).success
    room.wait_for_rest()
    last = room.received[-1][1]
    wait_for(
        lambda: np.allclose(report['left']['position'] + report['right']['position'], last,
                            atol=1e-6),
        5.0, 'the arms where joint_command says',
    )  # fmt: skip
    assert report['left']['faults'] == [] and report['right']['faults'] == []


def test_a_storm_of_nonsense_reaches_no_driver(driven):
    room, report = driven
    publisher = room.node.create_publisher(JointState, 'joint_command_raw', 10)
    room.ready()
    rng = np.random.default_rng(0)
    good = policy_units(START)

    def shout():
        position = good + rng.normal(0.0, 2.0, 14)
        position[rng.integers(14)] = rng.choice([np.nan, np.inf, 1e30, position[0]])
        message = JointState(name=NAMES, position=position.tolist())
        message.header.stamp = room.node.get_clock().now().to_msg()
        publisher.publish(message)
        return len(room.received) > 100

    wait_for(shout, 15.0, 'a hundred commands')
    wait_for(lambda: report['left']['commands']['arm'] > 50, 5.0, 'the driver')
    assert report['left']['faults'] == [] and report['right']['faults'] == []
    assert_inside_every_limit(room.commands())
