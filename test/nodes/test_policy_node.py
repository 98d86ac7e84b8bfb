# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""policy_node as a process, over real topics, with scripted policies."""

import itertools
import json
import signal
import threading
import time

import numpy as np
import pytest
from fake_robot import RELIABLE_LATCHED, FakeRobot, PolicyProcess
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue
from rcl_interfaces.srv import SetParameters
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image
from std_msgs.msg import String
from std_srvs.srv import Trigger

from pi0_ros.control import parse_chunk_label
from pi0_ros.resources import share_path

DT = 0.02
ERROR = b'\x02'


@pytest.fixture()
def start(ros_domain, tmp_path):
    """Give a function that starts a robot and policy_node; both end with the test."""
    begun = []

    def make(policy='Scripted', robot=None, robot_file=None, **parameters):
        if robot_file is not None:
            parameters['robot'] = robot_file
        robot = FakeRobot(ros_domain, **(robot or {}))
        begun.append(robot.close)
        process = PolicyProcess(ros_domain, tmp_path, policy, **parameters)
        begun.append(process.kill)
        return robot, process

    yield make
    for end in reversed(begun):
        end()


def journal(tmp_path, what='predict'):
    lines = (tmp_path / 'journal').read_text(encoding='utf-8').splitlines()
    return [entry for entry in map(json.loads, lines) if entry['what'] == what]


def call(robot, kind, name, request):
    client = robot.node.create_client(kind, name)
    assert client.wait_for_service(10.0), name
    future = client.call_async(request)
    robot.until(future.done, what=name)
    return future.result()


def transition(robot, number):
    request = ChangeState.Request(transition=Transition(id=number))
    return call(robot, ChangeState, '/policy_node/change_state', request).success


def set_parameter(robot, name, value):
    kind = {
        str: ('string_value', ParameterType.PARAMETER_STRING),
        int: ('integer_value', ParameterType.PARAMETER_INTEGER),
        float: ('double_value', ParameterType.PARAMETER_DOUBLE),
    }[type(value)]
    given = ParameterValue(type=kind[1], **{kind[0]: value})
    request = SetParameters.Request(parameters=[Parameter(name=name, value=given)])
    return call(robot, SetParameters, '/policy_node/set_parameters', request).results[0]


def even(robot):
    """
    Check that setpoints are due at even times; return joint 0 of them.

    A machine may stand still for longer than any lead. Then the node must say so; what it repeats
    once after such a pause is left out.
    """
    values, gaps = robot.values(), np.diff(robot.dues())
    values, gaps = values[: len(gaps) + 1], gaps[: len(values) - 1]
    assert (gaps > DT - 2e-3).all()
    paused = gaps > DT + 2e-3

    def named():
        stalls = robot.status.get('executor', {}).get('stalls beyond the lead', '0')
        return int(stalls) >= paused.sum()

    robot.until(named, what='as many stalls in the diagnostics as pauses')
    return values[np.concatenate([[True], ~paused])]


# -- setpoints ------------------------------------------------------------------------------------


def test_b46_rows_come_one_a_tick_in_order_due_at_even_times_and_ahead(start):
    robot, _ = start(
        'Ramp', stitching='switch', execution_horizon=50, setpoint_lead=0.5, max_age=5.0
    )
    robot.until(lambda: len(robot.setpoints) >= 60 and len(robot.chunks) >= 2, 40.0, 'setpoints')
    values = even(robot)
    seam = int(np.argmax(np.diff(values) < 0.0)) + 1  # chunk 2 is asked for before row 50
    rows = np.minimum(np.arange(seam), 49)  # where it is late after all the last row holds
    assert seam > 1
    np.testing.assert_allclose(values[:seam], 0.001 * rows, atol=1e-7)
    message = robot.setpoints[0][1]
    assert tuple(message.name) == robot.robot.joint_names
    assert len(message.position) == 14


def test_setpoints_are_stamped_with_their_due_time(start):
    robot, _ = start(setpoint_lead=0.5)
    robot.until(lambda: len(robot.setpoints) >= 50, 40.0, 'setpoints')
    offset = time.time() - time.monotonic()
    early = [
        due - (arrived + offset) for due, (arrived, _) in zip(robot.dues(), robot.setpoints)
    ]
    assert 0.3 < np.median(early) < 0.51


def test_action_chunk_is_the_whole_prediction_stamped_with_its_observation(start, tmp_path):
    robot, _ = start('Ramp', seed=7, latency=0.1)
    robot.until(lambda: len(robot.chunks) >= 2, 40.0, 'chunks')
    messages = [message for _, message in robot.chunks]
    seen = [entry['stamp_ns'] for entry in journal(tmp_path)]
    assert tuple(messages[0].joint_names) == robot.robot.joint_names
    for message in messages[:2]:
        stamp = message.header.stamp
        label = parse_chunk_label(message.header.frame_id)
        number = label['seq']
        assert stamp.sec * 10**9 + stamp.nanosec == seen[number]
        assert message.header.frame_id.startswith(f'seq={number};seed=7;obs={seen[number]};')
        assert set(label['cameras']) == set(robot.robot.cameras)
        assert max(label['cameras'].values()) == seen[number]
        assert len(label['joints']) == len(robot.robot.joint_state_sources)
        times = [p.time_from_start.sec + p.time_from_start.nanosec / 1e9 for p in message.points]
        np.testing.assert_allclose(times, DT * np.arange(1, 51), atol=1e-9)
        rows = [point.positions[0] for point in message.points]
        np.testing.assert_allclose(rows, 0.001 * np.arange(50), atol=1e-7)


def test_b44_a_late_policy_lets_the_arm_hold_and_says_so(start):
    robot, _ = start('Ramp', latency=1.2, stitching='switch', setpoint_lead=0.5, max_age=5.0)
    robot.until(lambda: robot.status.get('executor', {}).get('message', '').startswith('dry'))
    robot.until(lambda: len(robot.chunks) >= 3, 40.0, 'chunks')
    steps = np.diff(even(robot))  # the stream never breaks
    assert (np.abs(steps) < 1e-9).sum() > 10  # held
    assert int(robot.status['executor']['times run dry']) >= 1


def test_b45_a_motionless_scene_is_still_replanned(start, tmp_path):
    robot, _ = start(execution_horizon=10)
    robot.until(lambda: len(robot.chunks) >= 12, 40.0, 'chunks')
    assert robot.status.get('executor', {}).get('times run dry', '0') == '0'


def test_every_call_of_the_policy_comes_from_one_thread(start, tmp_path):
    robot, process = start('Scripted')
    robot.until(lambda: len(robot.chunks) >= 2, 40.0, 'chunks')
    assert call(robot, Trigger, '/policy_node/reset', Trigger.Request()).success
    robot.forget()
    robot.until(lambda: len(robot.chunks) >= 1, 40.0, 'chunks')
    assert process.end() == 0
    lines = (tmp_path / 'journal').read_text(encoding='utf-8').splitlines()
    entries = [json.loads(line) for line in lines]
    whats = [entry['what'] for entry in entries]
    assert whats[:2] == ['construct', 'warm_up'] and whats[-1] == 'close'
    assert whats.count('reset') >= 2  # at activation, by the service
    assert len({entry['thread'] for entry in entries}) == 1


# -- inputs ---------------------------------------------------------------------------------------


def test_b11_each_inference_sees_the_newest_frames(start, tmp_path):
    robot, _ = start('Scripted', latency=0.5, rows=100)
    robot.until(lambda: len(robot.chunks) >= 5, 40.0, 'chunks')
    for entry in journal(tmp_path):
        assert [p[0] for p in entry['pixels'].values()] == [1, 2, 3]  # camera k shows k (B55)
    ages = robot.status['policy']
    assert float(ages['observation age at start max [ms]']) < 200.0
    received = int(robot.status['input cam_high']['received'])
    assert int(robot.status['policy']['inferences']) < received / 5  # B12: few are decoded
    stamps = np.diff([entry['stamp_ns'] for entry in journal(tmp_path)]) / 1e9
    assert (stamps > 0.4).all()  # no backlog: half a second of frames is passed over each time


def test_an_inference_waits_for_the_last_of_cameras_in_step(start, tmp_path):
    """Pictures of one moment are used together, not the first of them with two older ones."""
    robot, _ = start('Ramp', execution_horizon=5)
    robot.until(lambda: len(robot.chunks) >= 12, 60.0, 'chunks')
    together = [
        len(set(parse_chunk_label(message.header.frame_id)['cameras'].values())) == 1
        for _, message in robot.chunks
    ]
    assert sum(together) > 0.6 * len(together)


@pytest.mark.parametrize('what', ['cam_left_wrist', 'joint_states'])
def test_b10_an_input_that_dies_ends_the_stream_by_name_and_recovers(start, what):
    robot, process = start('Scripted')
    robot.until(lambda: len(robot.setpoints) >= 20, 40.0, 'setpoints')
    robot.silent.add(what)
    robot.until(
        lambda: robot.status.get('policy', {}).get('level') == ERROR
        and what in robot.status['policy']['message'],
        what='the error naming the input',
    )
    robot.expect_silence()
    assert robot.status['executor']['message'] == 'idle'
    assert f'{what}: ' in process.log
    robot.silent.clear()
    robot.until(lambda: len(robot.setpoints) >= 5, what='setpoints again')
    assert f'recovered: {what}' in process.log


def test_b08_a_camera_that_nobody_publishes_is_named_with_every_age(start):
    robot, process = start('Scripted')
    robot.silent.add('cam_right_wrist')
    robot.node.destroy_publisher(robot._images['cam_right_wrist'])
    robot.until(lambda: 'cam_right_wrist: never seen' in process.log, 40.0, 'the warning')
    robot.until(lambda: 'inputs: ' in process.log)
    line = next(each for each in process.log.splitlines() if 'cam_right_wrist: never' in each)
    assert 'has no publisher' in line and '/cam_right_wrist/camera/color/image_rect_raw' in line
    ages = next(each for each in process.log.splitlines() if 'inputs: ' in each)
    for name in (*robot.robot.cameras, 'joint_states'):
        assert name in ages
    assert robot.setpoints == []


def test_b16_no_command_without_a_measured_pose(start):
    robot, process = start('Scripted')
    robot.silent.add('joint_states')
    robot.until(lambda: 'joint_states: never seen' in process.log, 40.0, 'the warning')
    assert robot.setpoints == [] and robot.chunks == []


@pytest.mark.parametrize(
    'qos',
    [QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE), RELIABLE_LATCHED],
    ids=['reliable', 'reliable and latched'],  # best effort: every other test
)
def test_b31_publishers_of_every_qos_are_heard(start, qos):
    robot, _ = start('Scripted', robot={'sensor_qos': qos})
    robot.until(lambda: len(robot.chunks) >= 2, 40.0, 'chunks')


def test_b31_an_incompatible_publisher_is_a_named_warning(start):
    robot, process = start('Scripted')
    quiet = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
    publisher = robot.node.create_publisher(String, 'prompt', quiet)
    robot.until(lambda: 'incompatible QoS' in process.log, 40.0, 'the warning')
    line = next(each for each in process.log.splitlines() if 'incompatible QoS' in each)
    assert 'prompt' in line and 'RELIABILITY' in line
    robot.node.destroy_publisher(publisher)


def test_b19_b29_a_robot_in_degrees_with_a_compressed_camera(start, tmp_path):
    """Both are data of the robot's YAML; gripper and other cameras are as before."""
    text = share_path('config/robots/aloha.yaml').read_text(encoding='utf-8')
    text = text.replace('policy_units: rad', 'policy_units: deg')
    text = text.replace('transport: raw', 'transport: compressed', 1)
    path = tmp_path / 'degrees.yaml'
    path.write_text(text, encoding='utf-8')
    robot, _ = start('Scripted', robot={'compressed': ('cam_high',)}, robot_file=str(path))
    robot.pose[:] = 0.5
    robot.until(lambda: len(robot.setpoints) >= 5, 40.0, 'setpoints')
    seen = journal(tmp_path)[-1]
    arm = [i for i in range(14) if i not in robot.robot.gripper_indices]
    np.testing.assert_allclose(np.array(seen['state'])[arm], np.degrees(0.5), atol=1e-6)
    np.testing.assert_allclose(np.array(seen['state'])[[6, 13]], 0.5, atol=1e-6)
    assert [p[0] for p in seen['pixels'].values()] == [1, 2, 3]
    sent = np.array(robot.setpoints[-1][1].position)
    np.testing.assert_allclose(sent[arm], np.degrees(0.5), rtol=1e-6)  # the policy's units


def test_b33_a_lossy_camera_slows_nothing_but_itself(start):
    robot, _ = start('Scripted', max_age=1.0)
    robot.lossy['cam_high'] = 0.7
    robot.until(lambda: len(robot.chunks) >= 6, 40.0, 'chunks')

    def rates():
        rows = [robot.status.get(f'input {n}', {}) for n in ('cam_high', 'cam_left_wrist')]
        return [float(row.get('rate [Hz]', 0.0)) for row in rows]

    robot.until(lambda: rates()[1] > 20.0, what='rates in the diagnostics')
    assert 0.0 < rates()[0] < 0.6 * rates()[1]
    assert robot.status['executor']['times run dry'] == '0'


def test_two_publishers_of_one_camera_are_named(start):
    """Their pictures would alternate under plausible stamps, and nothing else would tell."""
    robot, process = start('Scripted')
    robot.until(lambda: len(robot.chunks) >= 1, 40.0, 'chunks')
    topic = robot.robot.cameras['cam_high'].topic
    second = robot.node.create_publisher(Image, topic, 1)
    robot.until(lambda: 'more than one publisher' in process.log, what='the warning')
    line = next(each for each in process.log.splitlines() if 'more than one publisher' in each)
    assert 'cam_high' in line and 'fake_robot, fake_robot' in line
    robot.node.destroy_publisher(second)
    robot.until(lambda: 'recovered: cam_high' in process.log, what='the recovery')


@pytest.mark.parametrize('prompt', ['pick up\nthe cube\t', 'prendre le cube \u2713', 'a' * 20000])
def test_unusual_prompts_reach_the_policy_whole_and_the_log_in_one_short_line(
    start, tmp_path, prompt
):
    robot, process = start('Scripted')
    robot.until(lambda: len(robot.chunks) >= 1, 40.0, 'chunks')
    robot.say(prompt)
    robot.until(lambda: journal(tmp_path)[-1]['prompt'] == prompt, what='the prompt')
    (line,) = [each for each in process.log.splitlines() if 'prompt is now' in each]
    assert len(line) < 400


# -- prompt ---------------------------------------------------------------------------------------


def test_a_new_prompt_drops_older_results(start, tmp_path):
    robot, _ = start('Numbered', prompt='one', latency=0.4, rows=100)
    robot.until(lambda: len(robot.chunks) >= 2, 40.0, 'chunks')
    robot.until(lambda: len(journal(tmp_path)) > len(robot.chunks), what='a running inference')
    robot.say('another prompt')
    robot.until(lambda: any(e['prompt'] == 'another prompt' for e in journal(tmp_path)))
    said = len(robot.chunks)
    robot.until(lambda: len(robot.chunks) >= said + 3, what='chunks of the new prompt')
    lengths = [message.points[0].positions[1] for _, message in robot.chunks]
    change = lengths.index(len('another prompt'))
    assert set(lengths[:change]) == {len('one')}
    assert set(lengths[change:]) == {len('another prompt')}
    dropped = [e for e in journal(tmp_path) if e['prompt'] == 'one']
    assert len(dropped) > change  # one was running, and its result was never published


def test_b60_without_a_prompt_the_node_holds_and_says_what_is_missing(start):
    robot, process = start('Scripted', prompt='')
    robot.until(lambda: 'no instruction' in robot.status.get('policy', {}).get('message', ''))
    assert robot.setpoints == [] and robot.chunks == []
    robot.say('now go')
    robot.until(lambda: len(robot.setpoints) >= 3, what='setpoints')
    robot.say('   ')
    robot.until(lambda: 'no instruction' in robot.status.get('policy', {}).get('message', ''))
    robot.expect_silence()


# -- errors ---------------------------------------------------------------------------------------


def test_b37_a_raising_policy_holds_deactivates_and_can_be_activated_again(start):
    robot, process = start('Raising', raise_from=3, raise_to=5, max_errors=3)
    robot.until(lambda: 'scripted failure of call 3' in process.log, 40.0, 'the traceback')
    robot.until(lambda: 'deactivated after 3 errors' in process.log, 40.0, 'deactivation')
    assert 'Traceback' in process.log
    failure = 'scripted failure of call 5'
    robot.until(lambda: failure in robot.status.get('lifecycle', {}).get('message', ''))
    robot.expect_silence()
    assert process.popen.poll() is None
    assert transition(robot, Transition.TRANSITION_ACTIVATE)
    robot.until(lambda: len(robot.setpoints) >= 5, what='setpoints again')


def test_b37_the_arm_holds_after_one_error_and_goes_on_after_the_next_success(start):
    robot, process = start('Raising', raise_from=3, raise_to=3)
    robot.until(lambda: 'scripted failure of call 3' in process.log, 40.0, 'the traceback')
    failed = len(robot.setpoints)
    robot.until(lambda: len(robot.setpoints) > failed + 50, what='setpoints again')
    assert np.diff([arrived for arrived, _ in robot.setpoints]).max() > 0.5  # the stream had ended


def test_b47_nothing_of_a_malformed_chunk_reaches_the_arm(start):
    robot, process = start('Malformed', max_errors=2)
    robot.until(lambda: 'deactivated after 2 errors' in process.log, 40.0, 'deactivation')
    assert 'nan at row 30, joint 3' in process.log
    assert len(robot.chunks) == 1  # the good one
    assert np.isfinite(robot.values(3)).all()


@pytest.mark.parametrize(
    ('policy', 'said'),
    [
        ('scripted_policies:exploding', 'MemoryError: no room for the weights'),
        ('scripted_policies:not_a_policy', 'has no predict'),
        ('scripted_policies:missing', "has no factory 'missing'"),
        ('no_such_module:make', "No module named 'no_such_module'"),
        (':make', 'package.module:factory'),
    ],
)
def test_a_policy_that_cannot_be_loaded_ends_the_node_with_one_sentence(
    ros_domain, tmp_path, policy, said
):
    process = PolicyProcess(ros_domain, tmp_path, policy)
    assert process.popen.wait(40.0) == 2
    process.kill()
    assert said in process.log and 'Traceback' not in process.log


def test_parameters_are_checked_together(ros_domain, tmp_path):
    process = PolicyProcess(
        ros_domain, tmp_path, stitching='glue', max_age=0.1, max_skew=0.5, setpoint_lead=0.001
    )
    assert process.popen.wait(40.0) == 2
    process.kill()
    for said in ("stitching 'glue'", 'max_skew 0.5', 'setpoint_lead 0.001'):
        assert said in process.log
    assert 'Traceback' not in process.log


@pytest.mark.parametrize(
    ('name', 'value'), [('execution_horizon', 0), ('setpoint_lead', -1.0), ('robot', 'alhoa')]
)
def test_a_parameter_out_of_range_ends_the_node_with_one_sentence(
    ros_domain, tmp_path, name, value
):
    process = PolicyProcess(ros_domain, tmp_path, **{name: value})
    assert process.popen.wait(40.0) == 2
    process.kill()
    assert name in process.log and 'Traceback' not in process.log


def test_parameters_change_at_run_time_where_that_makes_sense(start):
    robot, process = start('Numbered', latency=0.05)
    robot.until(lambda: len(robot.chunks) >= 1, 40.0, 'chunks')
    assert set_parameter(robot, 'execution_horizon', 10).successful
    assert set_parameter(robot, 'stitching', 'switch').successful
    result = set_parameter(robot, 'stitching', 'glue')
    assert not result.successful and 'glue' in result.reason
    result = set_parameter(robot, 'stitching', 'rtc')
    assert not result.successful and 'takes guidance' in result.reason
    result = set_parameter(robot, 'policy_rate', 25.0)
    assert not result.successful and 'clean up first' in result.reason
    assert set_parameter(robot, 'prompt', 'from a parameter').successful
    robot.forget()
    length = len('from a parameter')
    robot.until(
        lambda: any(m.points[0].positions[1] == length for _, m in robot.chunks), what='prompt'
    )


# -- the end --------------------------------------------------------------------------------------


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_b38_the_process_ends_cleanly_in_the_middle_of_a_call(start, tmp_path, number):
    robot, process = start('Ramp', latency=4.0, slow_from=2, rows=1000)
    robot.until(lambda: len(robot.setpoints) >= 10, 40.0, 'setpoints')
    robot.until(lambda: len(journal(tmp_path)) >= 2, what='a second call')
    assert process.end(number, bound=3.0) == 0
    assert 'Traceback' not in process.log and 'rror' not in process.log


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_b38_the_process_ends_while_the_policy_is_loading(ros_domain, tmp_path, number):
    """A checkpoint of gigabytes takes minutes; Ctrl-C does not wait for it, and is no error."""
    process = PolicyProcess(ros_domain, tmp_path, 'Loading')
    deadline = time.monotonic() + 40.0
    while not (tmp_path / 'journal').exists():
        assert time.monotonic() < deadline and process.popen.poll() is None, process.log
        threading.Event().wait(0.05)
    assert process.end(number, bound=2.5) == 0  # the guard that ends a hung process takes 3 s
    assert 'Traceback' not in process.log and 'rror' not in process.log


def test_b38_the_process_ends_with_a_clock_that_stands(start):
    robot, process = start('Ramp', robot={'simulated': True}, use_sim_time=True)
    ticks = itertools.count(100)

    def running():
        robot.step(next(ticks) / 100)
        return bool(robot.setpoints)

    robot.until(running, 40.0, 'setpoints')
    assert process.end(signal.SIGTERM, bound=3.0) == 0
    assert 'Traceback' not in process.log


def test_deactivate_and_cleanup_undo_activate_and_configure(start, tmp_path):
    robot, process = start('Scripted')
    for round_number in (1, 2):
        robot.until(lambda: len(robot.setpoints) >= 5, 40.0, 'setpoints')
        assert transition(robot, Transition.TRANSITION_DEACTIVATE)
        robot.expect_silence()
        assert transition(robot, Transition.TRANSITION_CLEANUP)
        assert len(journal(tmp_path, 'close')) == round_number
        assert transition(robot, Transition.TRANSITION_CONFIGURE)
        assert transition(robot, Transition.TRANSITION_ACTIVATE)
    assert process.popen.poll() is None
