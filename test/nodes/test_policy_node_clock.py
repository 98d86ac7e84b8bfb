# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""policy_node under simulated time: ticks follow /clock, jumps start anew, silence is named."""

import itertools

import numpy as np
import pytest
from fake_robot import FakeRobot, PolicyProcess


@pytest.fixture()
def node(ros_domain, tmp_path):
    robot = FakeRobot(ros_domain, simulated=True)
    process = PolicyProcess(
        ros_domain, tmp_path, 'Numbered', use_sim_time=True, setpoint_lead=0.1, stitching='switch'
    )
    yield robot, process
    process.kill()
    robot.close()


def play(robot, seconds, until=lambda: False):
    """Advance from the first to the last time in 10 ms ticks; real time paces itself."""
    for tick in range(round(seconds[0] * 100), round(seconds[1] * 100)):
        if until():
            return tick / 100
        robot.step(tick / 100)
        robot.pause(0.004)
    return seconds[1]


def loop(robot):
    """Play four simulated seconds; return what came of them."""
    for _ in range(2):  # what is still on its way belongs to what was before
        robot.forget()
        robot.until(lambda: 'policy' in robot.status, what='diagnostics')
    robot.forget()
    play(robot, (1.0, 5.0))
    return len(robot.chunks), robot.values(), robot.dues()


def test_b05_without_a_clock_the_node_says_what_it_waits_for(node):
    robot, process = node
    robot.until(lambda: 'waiting for /clock' in process.log, 40.0, 'the warning')
    robot.until(lambda: 'waiting for /clock' in robot.status.get('policy', {}).get('message', ''))
    robot.publish_joints(10**9)
    robot.publish_images(10**9)
    robot.expect_silence()


def test_b04_b07_b81_every_loop_of_a_bag_starts_anew(node):
    robot, process = node
    # B07: the clock runs ahead without data, then goes back with the first message
    ticks = itertools.count(10000)

    def clock_seen():
        robot.publish_clock(next(ticks) / 100)
        return 'never seen' in robot.status.get('policy', {}).get('message', '')

    robot.until(clock_seen, 30.0, 'the clock')
    first = loop(robot)
    second = loop(robot)
    assert process.log.count('/clock jumped back') >= 2
    assert abs(first[0] - second[0]) <= 4 and min(first[0], second[0]) >= 4
    assert second[1].min() > first[1].max()  # chunks are numbered: none of the first loop again
    for _, values, dues in (first, second):
        assert dues[0] < 2.0 and dues[-1] > 4.5
        assert abs(len(values) - round((dues[-1] - dues[0]) / 0.02)) <= 1
        np.testing.assert_allclose(np.diff(dues), 0.02, atol=1e-6)


def test_a_clock_that_stands_stands_the_setpoints(node):
    robot, process = node
    robot.until(lambda: 'policy ready' in process.log, 40.0, 'the node')
    now = play(robot, (1.0, 20.0), lambda: len(robot.setpoints) > 10)
    robot.expect_silence()
    play(robot, (now, now + 3.0), lambda: len(robot.setpoints) > 10)
    assert len(robot.setpoints) > 10
