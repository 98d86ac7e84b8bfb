# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""The safety filter as a process, over real topics, with processes that die, hang and lie."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from safety_lab import (
    ALOHA,
    LATCHED,
    NAMES,
    ROOT,
    START,
    assert_inside_every_limit,
    environment,
    lab,
    policy_units,
    same,
    wait_for,
)
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool, String

from pi0_ros.demo import free_domain
from pi0_ros.safety.supervisor import SETTLED

MOVING = [0, 3, 5, 7, 10, 12]  # joints that the sender swings
REST_BOUND_S = 1.0
"""Timeout (0.1 s) and braking (below 0.1 s) on a machine where every process is late."""


@pytest.fixture(scope='module')
def room():
    """One filter for the tests that leave it alive; each starts from the ready state."""
    with lab(free_domain()) as room:
        room.start_filter()
        room.wait_for_state('ready', timeout=40.0)
        yield room


@pytest.fixture()
def fresh(room):
    """Return the shared lab with the filter ready, the arm at START and nobody sending."""
    for process in room.processes[1:]:
        if process.poll() is None:
            process.kill()
            process.wait(10.0)
    room.frozen.clear()
    room.silent.clear()
    room.follow = False
    room.stop()
    wait_for(lambda: room.state == 'stopped', 20.0, 'stopped')
    room.measured = START.copy()  # moved by hand
    wait_for(lambda: room.reset().success, 20.0, 'a reset')
    room.wait_for_state('ready')
    wait_for(
        lambda: not room.received or time.monotonic() - room.received[-1][0] > 0.1, 20.0, 'silence'
    )
    room.received.clear()
    room.follow = True
    return room


def send(room, position, names=NAMES, publisher=None, lead_ns=40_000_000):
    """Publish one setpoint from the lab's own node."""
    message = JointState(name=list(names), position=[float(v) for v in position])
    stamp = room.node.get_clock().now().nanoseconds + lead_ns
    message.header.stamp.sec, message.header.stamp.nanosec = divmod(stamp, 1_000_000_000)
    publisher.publish(message)


def send_for(room, publisher, positions, until, timeout=20.0, names=NAMES):
    """Publish positions at 50 Hz, the last one over and over, until a condition holds."""
    due = time.monotonic()
    deadline = due + timeout
    positions = iter(positions)
    position = next(positions)
    while time.monotonic() < deadline:
        if until():
            return
        send(room, position, names, publisher)
        position = next(positions, position)
        due += 0.02
        time.sleep(max(0.0, due - time.monotonic()))
    raise AssertionError(f'not within {timeout} s of sending; {room.reason}')


@pytest.fixture()
def raw(fresh):
    publisher = fresh.node.create_publisher(JointState, 'joint_command_raw', 10)
    yield publisher
    fresh.node.destroy_publisher(publisher)


def value_of(status, key: str) -> str:
    return next(v.value for v in status.values if v.key == key)


def start_motion(room) -> subprocess.Popen:
    """Return a sender whose setpoints the filter follows, somewhere in a swing."""
    sender = room.start_sender()
    room.ready()
    room.wait_for_state('active')
    room.wait_for_motion()
    return sender


def test_it_follows_a_feasible_motion_within_a_tick(fresh):
    start_motion(fresh)
    active = len(fresh.received)
    wait_for(lambda: len(fresh.received) > active + 110, 30.0, 'a whole swing of 2 s')

    assert_inside_every_limit(fresh.commands())
    commands = fresh.commands()[active:]
    moving = commands[:, MOVING] - START[MOVING]
    assert moving.max() == pytest.approx(0.4, abs=0.01)
    assert moving.min() == pytest.approx(0.0, abs=0.01)
    assert np.ptp(moving, axis=1).max() < 1e-6  # all joints swing alike: none was held back
    still = np.setdiff1d(np.arange(14), MOVING)
    assert np.abs(commands[:, still] - START[still]).max() < 1e-6


@pytest.mark.parametrize('how', ['SIGKILL', 'SIGSTOP', 'SIGUSR1'])
def test_a_sender_that_vanishes_mid_motion_leaves_the_arm_at_rest(fresh, how):
    """Field report B64: killed, stopped, and with its network cut (it leaves the domain)."""
    sender = start_motion(fresh)

    sender.send_signal(getattr(signal, how))
    gone = time.monotonic()
    fresh.wait_for_rest()

    assert fresh.moving_until() - gone < REST_BOUND_S
    commands = fresh.commands()
    assert_inside_every_limit(commands)
    assert np.abs(commands[-1, MOVING] - START[MOVING]).max() > 0.02  # did not go back
    state = fresh.wait_for_state('holding', 'ready')
    assert state.message


def test_a_sender_that_wakes_up_again_sends_nothing_old(fresh):
    sender = start_motion(fresh)
    sender.send_signal(signal.SIGSTOP)
    fresh.wait_for_rest()

    sender.send_signal(signal.SIGCONT)
    before = len(fresh.received)
    wait_for(lambda: len(fresh.received) > before + 100, 30.0, '2 s of commands')

    assert_inside_every_limit(fresh.commands())


def test_a_killed_filter_publishes_nothing_and_waits_for_enable_when_restarted():
    with lab(free_domain()) as room:
        process = room.start_filter()
        room.wait_for_state('ready', timeout=30.0)
        start_motion(room)
        process.kill()
        process.wait(10.0)
        wait_for(
            lambda: time.monotonic() - room.received[-1][0] > 0.3, 20.0,
            'the end of what was on its way',
        )  # fmt: skip
        count = len(room.received)

        room.statuses.clear()
        restarted = room.start_filter()
        room.wait_for_state('ready', timeout=30.0)
        wait_for(lambda: 'safety_filter: tick' in room.diagnostics, 30.0)
        room.diagnostics.clear()
        wait_for(lambda: 'safety_filter: tick' in room.diagnostics, 30.0, 'a second of ticks')

        assert restarted.poll() is None
        assert not room.received[count:]  # the sender sends on, nobody enabled
        states = {value_of(status, 'state') for status in room.statuses}
        assert states <= {'waiting', 'ready'}  # waiting again while a measured pose is late
        room.wait_for_state('ready')


def test_emergency_stop_latches_and_needs_reset_and_enable(fresh):
    start_motion(fresh)
    button = fresh.node.create_publisher(Bool, 'emergency_stop', 10)
    wait_for(lambda: button.get_subscription_count() > 0, 20.0)

    button.publish(Bool(data=True))
    pressed = time.monotonic()
    fresh.wait_for_state('stopped')
    fresh.wait_for_rest()

    assert fresh.moving_until() - pressed < REST_BOUND_S
    assert not fresh.enable().success  # without reset
    button.publish(Bool(data=False))  # releasing the button does not start the arm
    assert fresh.state == 'stopped'
    count = len(fresh.received)
    assert fresh.reset().success
    fresh.wait_for_state('ready')
    assert fresh.enable().success
    fresh.wait_for_state('active')
    fresh.wait_for_motion()
    assert_inside_every_limit(fresh.commands())
    assert len(fresh.received) > count
    fresh.node.destroy_publisher(button)


@pytest.mark.parametrize('qos', ['best_effort', 'reliable', 'latched before the start'])
def test_emergency_stop_is_heard_whatever_the_publisher_offers(qos):
    profile = {
        'best_effort': QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT),
        'reliable': QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE),
        'latched before the start': LATCHED,
    }[qos]
    with lab(free_domain()) as room:
        button = room.node.create_publisher(Bool, 'emergency_stop', profile)
        if qos == 'latched before the start':
            button.publish(Bool(data=True))
        room.start_filter()
        wait_for(lambda: button.get_subscription_count() > 0, 20.0)
        wait_for(lambda: room.statuses, 20.0)
        if qos != 'latched before the start':
            button.publish(Bool(data=True))
        room.wait_for_state('stopped')


def test_the_stop_service_is_the_same_latch(fresh):
    start_motion(fresh)
    assert fresh.stop().success
    fresh.wait_for_state('stopped')
    fresh.wait_for_rest()
    assert not fresh.enable().success


def test_disable_ramps_down_and_holds(fresh):
    start_motion(fresh)
    asked = time.monotonic()
    assert fresh.enable(False).success
    fresh.wait_for_rest()
    assert fresh.moving_until() - asked < REST_BOUND_S
    assert_inside_every_limit(fresh.commands())


def test_two_commanders_are_refused_by_name(fresh):
    """Field report B74: no alternation of targets."""
    fresh.start_sender('--name', 'policy')
    fresh.ready()
    fresh.wait_for_state('active')
    fresh.wait_for_motion()

    fresh.start_sender('--name', 'teleop', '--offset', '-0.4')
    wait_for(lambda: '/policy' in fresh.reason and '/teleop' in fresh.reason, 30.0, 'the names')
    fresh.wait_for_rest()

    answer = fresh.enable()
    assert not answer.success and '/policy' in answer.message and '/teleop' in answer.message
    assert_inside_every_limit(fresh.commands())


def bad_setpoints():
    good = policy_units(START).tolist()
    yield 'NaN', NAMES, [*good[:3], np.nan, *good[4:]]
    yield 'infinite', NAMES, [np.inf, *good[1:]]
    yield 'empty', [], []
    yield 'short', NAMES, good[:13]
    yield 'no positions', NAMES, []
    yield 'a name twice', [NAMES[0], *NAMES[:13]], good
    yield 'other names', [n.replace('left', 'port') for n in NAMES], good


@pytest.mark.parametrize('what, names, position', bad_setpoints(), ids=lambda v: str(v)[:12])
def test_unusable_setpoints_move_nothing_and_are_counted(fresh, raw, what, names, position):
    """Field reports B61, B71."""
    good = policy_units(START)
    fresh.ready()
    send_for(fresh, raw, [good], lambda: fresh.state == 'active')

    sent = []
    send_for(
        fresh, raw, iter(lambda: sent.append(1) or position, None),
        lambda: len(sent) > 30, names=names,
    )  # fmt: skip

    commands = fresh.commands()
    assert_inside_every_limit(commands)
    assert np.abs(commands - START).max() < 1e-6
    assert fresh.state != 'active'


def test_a_far_first_target_is_approached_slowly(fresh, raw):
    """Field report B62."""
    far = START.copy()
    far[0] += 1.0
    fresh.ready()
    send_for(
        fresh, raw, [policy_units(far)],
        lambda: fresh.received and abs(fresh.received[-1][1][0] - far[0]) < 0.01, timeout=15.0,
    )  # fmt: skip

    commands = fresh.commands()
    assert_inside_every_limit(commands)
    speeds = np.abs(np.diff(commands[:, 0])) * 50.0
    approaching = commands[1:, 0] < far[0] - SETTLED
    assert approaching.sum() > 100
    assert speeds[approaching].max() <= 0.3 * 1.01  # start_speed


def test_a_command_stamped_long_ago_is_dropped(fresh, raw):
    """Field report B64."""
    fresh.ready()
    send_for(fresh, raw, [policy_units(START)], lambda: fresh.state == 'active')
    old = START.copy()
    old[0] += 0.05
    for _ in range(10):
        send(fresh, policy_units(old), publisher=raw, lead_ns=-10_000_000_000)
    fresh.wait_for_rest()
    assert np.abs(fresh.commands() - START).max() < 1e-6


def test_odd_velocities_are_ignored(fresh, raw):
    """Field report B17: positions are used, whatever the optional arrays hold."""
    fresh.velocities = [0.1, 0.2, 0.3]
    fresh.ready()
    send_for(fresh, raw, [policy_units(START)], lambda: fresh.state == 'active')
    fresh.velocities = []


def test_a_frozen_joint_stops_and_is_named(fresh):
    """Field report B75."""
    fresh.frozen.add(3)
    fresh.start_sender('--amplitude', '0.8', '--frequency', '0.3')
    fresh.ready()
    fresh.wait_for_state('stopped')
    assert 'left/forearm_roll' in fresh.reason
    fresh.wait_for_rest()


def test_an_arm_that_falls_silent_makes_the_filter_hold(fresh):
    start_motion(fresh)
    fresh.silent.add('right')
    silent = time.monotonic()
    fresh.wait_for_rest()
    assert fresh.moving_until() - silent < REST_BOUND_S
    assert_inside_every_limit(fresh.commands())
    wait_for(lambda: 'right/waist' in fresh.diagnostics['safety_filter: joint states'].message)


def test_a_motor_error_stops_and_latches(fresh):
    start_motion(fresh)
    publisher = fresh.node.create_publisher(String, 'motor_error', 10)
    wait_for(lambda: publisher.get_subscription_count() > 0, 20.0)
    publisher.publish(String(data='left/elbow: overload'))
    fresh.wait_for_state('stopped')
    assert 'left/elbow: overload' in fresh.reason
    fresh.node.destroy_publisher(publisher)


def test_a_stranger_on_the_output_is_warned_of_by_name(fresh):
    """Field report B74."""
    stranger = fresh.node.create_publisher(JointState, 'joint_command', 10)
    key = 'safety_filter: outputs'
    wait_for(lambda: key in fresh.diagnostics, 20.0, 'a row about outputs')
    assert '/lab' in fresh.diagnostics[key].message
    fresh.node.destroy_publisher(stranger)


QOS = {
    'best_effort': QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT),
    'latched': QoSProfile(
        depth=1, reliability=ReliabilityPolicy.RELIABLE,
        durability=DurabilityPolicy.TRANSIENT_LOCAL,
    ),
}  # fmt: skip


@pytest.mark.parametrize('qos', QOS)
def test_setpoints_arrive_whatever_the_publisher_offers(fresh, qos):
    """Field report B31."""
    publisher = fresh.node.create_publisher(JointState, 'joint_command_raw', QOS[qos])
    fresh.ready()
    send_for(fresh, publisher, [policy_units(START)], lambda: fresh.state == 'active')
    fresh.node.destroy_publisher(publisher)


def test_a_pose_of_zeros_is_no_pose_and_nothing_is_published():
    """Field report B16: a driver that has read nothing yet."""
    with lab(free_domain()) as room:
        room.measured = np.zeros(14)
        room.start_filter()
        wait_for(lambda: 'safety_filter: joint states' in room.diagnostics, 20.0)
        assert not room.enable().success
        assert room.state == 'waiting'
        assert not room.received


def test_a_required_heartbeat_that_stops_latches_the_stop():
    with lab(free_domain()) as room:
        room.start_filter(require_stop_heartbeat=True, stop_heartbeat_timeout=0.4)
        room.wait_for_state('ready', timeout=40.0)
        answer = room.enable()
        assert not answer.success and 'heartbeat' in answer.message

        code = (
            'import rclpy\nfrom std_msgs.msg import Bool\nrclpy.init()\n'
            "node = rclpy.create_node('button')\n"
            "publisher = node.create_publisher(Bool, 'emergency_stop', 10)\n"
            'node.create_timer(0.05, lambda: publisher.publish(Bool(data=False)))\n'
            'rclpy.spin(node)\n'
        )
        button = subprocess.Popen([sys.executable, '-c', code], env=environment(room.domain))
        room.processes.append(button)
        room.start_sender()
        wait_for(lambda: room.enable().success, 30.0, 'enable beside a heartbeat')
        room.wait_for_state('active')
        room.wait_for_motion()

        button.kill()
        room.wait_for_state('stopped')
        assert 'emergency_stop' in room.reason
        room.wait_for_rest()
        assert not room.reset().success
        assert_inside_every_limit(room.commands())


@pytest.mark.parametrize(
    'signals',
    [
        pytest.param([signal.SIGINT], id='SIGINT'),
        pytest.param([signal.SIGTERM], id='SIGTERM'),
        pytest.param([signal.SIGINT] * 2, id='Ctrl-C under ros2 launch'),
    ],
)
def test_a_signal_mid_motion_brings_the_arm_to_rest_and_ends_cleanly(signals):
    """Field report B38; ros2 launch passes on a SIGINT that the terminal has sent already."""
    with lab(free_domain()) as room:
        process = room.start_filter()
        room.wait_for_state('ready', timeout=40.0)
        start_motion(room)

        for number in signals:
            process.send_signal(number)
            time.sleep(0.02)  # two at once would arrive as one

        assert process.wait(20.0) == 0
        commands = room.commands()
        assert_inside_every_limit(commands)
        assert same(commands[-1], commands[-2])  # at rest before it fell silent


def test_deactivation_comes_to_rest_and_activation_starts_anew():
    with lab(free_domain()) as room:
        room.start_filter()
        room.wait_for_state('ready', timeout=40.0)
        sender = start_motion(room)
        change = room.node.create_client(ChangeState, '/safety_filter/change_state')

        request = ChangeState.Request()
        request.transition.id = Transition.TRANSITION_DEACTIVATE
        assert room._call(change, request).success

        assert same(room.received[-1][1], room.received[-2][1])
        assert_inside_every_limit(room.commands())
        assert not room.enable().success
        sender.kill()
        room.measured = START.copy()  # moved by hand
        room.follow = False
        count = len(room.received)
        request.transition.id = Transition.TRANSITION_ACTIVATE
        assert room._call(change, request).success
        room.statuses.clear()
        room.wait_for_state('ready')
        assert len(room.received) == count  # nothing of before is sent again
        room.ready()
        wait_for(lambda: len(room.received) > count + 5, 20.0)
        assert np.abs(room.commands()[count:] - START).max() < 1e-9

        # a stop outlives it, also one that came while inactive
        request.transition.id = Transition.TRANSITION_DEACTIVATE
        assert room._call(change, request).success
        assert room.stop().success
        request.transition.id = Transition.TRANSITION_ACTIVATE
        assert room._call(change, request).success
        room.wait_for_state('stopped')
        assert not room.enable().success


def refused(*parameters: str, files=()) -> str:
    """Return what a filter says that refuses to start."""
    command = [sys.executable, '-m', 'pi0_ros.nodes.safety_filter', '--ros-args']
    for parameter in parameters:
        command += ['-p', parameter]
    for path in files:
        command += ['--params-file', str(path)]
    result = subprocess.run(
        command, cwd=ROOT, env=environment(free_domain()), text=True, capture_output=True,
        timeout=30,
    )  # fmt: skip
    assert result.returncode == 2, result.stderr
    assert 'Traceback' not in result.stderr
    return result.stderr


@pytest.mark.parametrize('value', ['0.0', '-1.0', '.nan', '.inf', 'soon'])
def test_a_bad_timeout_is_refused_at_start(value):
    """Field report B64."""
    assert 'command_timeout' in refused('output:=none', f'command_timeout:={value}')


def test_all_faults_are_told_at_once():
    text = refused(
        'command_timeout:=0.0', 'state_timeout:=.nan', 'start_speed:=9.0', 'output:=none'
    )
    assert all(name in text for name in ('command_timeout', 'state_timeout', 'start_speed'))
    assert 'disabled_checks' in refused('disabled_checks:=limits', 'output:=none')
    assert "'start'" in refused('start:=jump', 'output:=none')


def test_an_output_without_its_messages_is_refused_at_start():
    """The wheels hold no interbotix_xs_msgs."""
    env = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
    assert 'interbotix' not in env.get('AMENT_PREFIX_PATH', '')
    assert "'interbotix_xs_msgs'" in refused('robot:=aloha')


def test_an_unknown_robot_is_refused_at_start():
    assert "robot 'alhoa' is not known" in refused('robot:=alhoa')


def test_it_fits_its_memory(room):
    status = (ROOT / f'/proc/{room.processes[0].pid}/status').read_text()
    resident = next(line for line in status.splitlines() if line.startswith('VmRSS'))
    assert int(resident.split()[1]) < 150 * 1024


def test_arms_are_held_before_they_meet(fresh, raw):
    """Both wrists reach for the middle of the table; ALOHA's own limits would let them collide."""
    reach = START.copy()
    reach[[1, 8]] = 0.2
    reach[[2, 9]] = 0.2
    path = START + np.linspace(0.0, 1.0, 150)[:, None] * (reach - START)
    fresh.ready()
    send_for(
        fresh, raw, [policy_units(p) for p in path],
        lambda: 'to right/' in fresh.reason or 'to table' in fresh.reason, timeout=10.0,
    )  # fmt: skip
    fresh.wait_for_rest()

    from pi0_ros.resources import share_path
    from pi0_ros.safety.collision import CollisionModel

    model = CollisionModel(share_path('config/urdf/aloha.urdf').read_text(), ALOHA)
    distances = [model.distance(c)[0] for c in fresh.commands()]
    assert min(distances) >= ALOHA.collision.stop_distance - 1e-9
    assert_inside_every_limit(fresh.commands())


def test_a_check_that_is_switched_off_is_complained_about():
    with lab(free_domain()) as room:
        room.start_filter(disabled_checks='collision')
        key = 'safety_filter: checks'
        wait_for(lambda: key in room.diagnostics, 20.0, 'the warning')
        assert 'collision' in room.diagnostics[key].message
        room.diagnostics.clear()
        wait_for(lambda: key in room.diagnostics, 20.0, 'the warning again')


def test_the_parameter_file_holds_the_defaults(room):
    """config/safety/safety_filter.yaml is the list that users copy; it must be true."""
    import yaml
    from rcl_interfaces.srv import GetParameters, ListParameters

    from pi0_ros.resources import share_path

    text = share_path('config/safety/safety_filter.yaml').read_text(encoding='utf-8')
    told = yaml.safe_load(text)['safety_filter']['ros__parameters']
    told['output'] = 'none'  # as the lab starts it
    names = room.node.create_client(ListParameters, '/safety_filter/list_parameters')
    foreign = {'use_sim_time', 'autostart', 'start_type_description_service'}
    listed = set(room._call(names, ListParameters.Request()).result.names) - foreign
    assert {n for n in listed if not n.startswith('qos_')} == set(told)
    values = room.node.create_client(GetParameters, '/safety_filter/get_parameters')
    answer = room._call(values, GetParameters.Request(names=list(told)))
    fields = {1: 'bool_value', 2: 'integer_value', 3: 'double_value', 4: 'string_value'}
    assert {
        name: getattr(value, fields[value.type]) for name, value in zip(told, answer.values)
    } == told


def test_a_parameter_file_is_taken():
    path = ROOT / 'config' / 'safety' / 'safety_filter.yaml'
    assert "'interbotix_xs_msgs'" in refused(files=[path])
