# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Bags and options as people bring them: a result, or one sentence with the remedy."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from bags import (
    ARM,
    IMAGE,
    JOINTS,
    START,
    STORE,
    TRAJECTORY,
    StillPolicy,
    aloha_messages,
    chunk,
    header,
    joints,
    pose,
    stamp,
    string,
    write_bag,
)
from rosbags.typesys import get_types_from_msg

from pi0_ros.cli import main
from pi0_ros.replay import replay
from pi0_ros.robot import RobotSpec

ROBOT = RobotSpec.load('aloha')
POLICY = ['--policy', 'test_command:still']
CAM_HIGH = ROBOT.cameras['cam_high'].topic
COMPRESSED = 'sensor_msgs/msg/CompressedImage'


def broken(parameters):
    class Broken(StillPolicy):
        def predict(self, observation, noise=None):
            raise RuntimeError('out of memory')

    return Broken()


def no_policy(parameters):
    raise RuntimeError('no GPU')


def slow(parameters):
    class Slow(StillPolicy):
        def predict(self, observation, noise=None):
            if len(self.seen) == 2:
                Path(os.environ['PI0_TEST_BEGUN']).touch()
                threading.Event().wait(30.0)
            return super().predict(observation, noise)

    return Slow()


@pytest.fixture(scope='module')
def bag(tmp_path_factory):
    return write_bag(tmp_path_factory.mktemp('bag') / 'bag', aloha_messages(ROBOT, 1.0))


def call(capsys, bag, *arguments, policy=POLICY):
    """Return the exit code, the result (None if refused), and stderr."""
    code = main(['replay', str(bag), *policy, '--format', 'json', *map(str, arguments)])
    done = capsys.readouterr()
    assert 'Traceback' not in done.err
    return code, json.loads(done.out) if done.out else None, done.err


def changed(messages, topic, change):
    """Return messages with those of a topic changed."""
    return [change(*m) if m[0] == topic else m for m in messages]


def shifted(messages, topics, seconds):
    """Return messages with the header stamps of some topics moved."""
    out = []
    for topic, kind, ns, message in messages:
        if topic in topics:
            own = message.header.stamp.sec * 10**9 + message.header.stamp.nanosec
            fields = {f: getattr(message, f) for f in message.__dataclass_fields__}
            fields.pop('__msgtype__', None)
            fields['header'] = header(own + round(seconds * 1e9))
            message = type(message)(**fields)
        out.append((topic, kind, ns, message))
    return out


@pytest.mark.parametrize(
    ('arguments', 'text'),
    [
        (['--start', '100'], 'start 100 s lies behind the end of the bag'),
        (['--start', 'nan'], 'start nan s is not before'),
        (['--end', '-1'], 'is not before end -1'),
        (['--stride', '0'], 'stride is 0'),
        (['--seed', '-1'], 'seed is -1'),
        (['--latency', '-1'], 'latency is -1'),
        (['--latency', 'nan'], 'latency is nan'),
        (['--execution-horizon', '0'], 'execution_horizon is 0'),
        (['--max-age', '0'], 'max_age is 0'),
        (['--map', f'cam_left_wrist={CAM_HIGH}'], 'is the topic of camera cam_high and of camera'),
        (['--map', 'cam_high=/a', '--map', 'cam_high=/b'], 'given twice for camera cam_high'),
        (['--map', 'cam_high=/follower_left/joint_states'], 'not an image'),
        (['--namespace', '/elsewhere'], 'no messages on /elsewhere/'),
        (['--robot', 'wxai'], 'joint states: no messages on /joint_states'),
        (['--published'], 'no action_chunk was recorded'),
        (['--stitching', 'rtc'], "use 'blend'"),
    ],
)
def test_options_that_cannot_be_used_are_named(capsys, bag, arguments, text):
    code, _, error = call(capsys, bag, *arguments)
    assert code == 2
    assert text in error and error.count('\n') == 1


def test_output_that_cannot_be_written_is_refused_before_the_work(capsys, bag, tmp_path):
    (tmp_path / 'file').write_text('')
    (tmp_path / 'taken' / 'result.json').mkdir(parents=True)
    for out in (tmp_path / 'file', tmp_path / 'file' / 'below', tmp_path / 'taken', '/proc/x'):
        code, result, error = call(capsys, bag, '--out', out)
        assert (code, result) == (2, None)
        assert str(out) in error and 'cannot be written' in error
    before = sorted(p.name for p in bag.iterdir())
    assert call(capsys, bag, '--out', bag)[0] == 2
    assert sorted(p.name for p in bag.iterdir()) == before


def test_policies_that_fail_are_named(capsys, bag):
    code, _, error = call(capsys, bag, policy=['--policy', 'test_odd_bags:broken'])
    assert code == 2 and 'failed 3 times in a row: RuntimeError: out of memory' in error
    code, _, error = call(capsys, bag, policy=['--policy', 'test_odd_bags:no_policy'])
    assert code == 2 and 'no GPU' in error


def test_policy_that_fails_once_is_counted_and_makes_it_unfit(bag):
    class Once(StillPolicy):
        def predict(self, observation, noise=None):
            if len(self.seen) == 1:
                self.seen.append(observation)
                raise RuntimeError('lost the GPU')
            return super().predict(observation, noise)

    result = replay(bag, Once(), ROBOT)
    assert result.verdict == 'no' and result.summary['rejected'] == 1
    assert 'lost the GPU' in result.summary['rejected_chunks'][0]
    assert result.summary['chunks'] == 4


def test_ctrl_c_before_anything_was_done_is_told_by_its_exit_code(capsys, bag):
    class Impatient(StillPolicy):
        def warm_up(self):
            raise KeyboardInterrupt

    import test_odd_bags

    test_odd_bags.impatient = lambda parameters: Impatient()
    assert main(['replay', str(bag), '--policy', 'test_odd_bags:impatient']) == 130
    assert 'interrupted' in capsys.readouterr().err


def test_namespace_is_suggested_and_taken(capsys, tmp_path):
    messages = [(f'/robot1{t}', k, n, m) for t, k, n, m in aloha_messages(ROBOT, 1.0)]
    path = write_bag(tmp_path / 'bag', messages)
    code, _, error = call(capsys, path)
    assert code == 2 and error.rstrip().endswith('give --namespace /robot1')
    for text in ('/robot1', 'robot1', 'robot1/'):
        code, result, _ = call(capsys, path, '--namespace', text)
        assert code == 0 and result['chunks'] == 5


def test_topic_without_messages_and_unknown_type_on_a_needed_topic(capsys, tmp_path):
    from rosbags.rosbag2 import StoragePlugin, Writer

    path = tmp_path / 'bag'
    with Writer(path, version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        writer.add_connection(CAM_HIGH, IMAGE, typestore=STORE)
        connections = {}
        for topic, kind, ns, message in aloha_messages(ROBOT, 1.0, drop=['cam_high']):
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, kind, typestore=STORE)
            writer.write(connections[topic], ns, STORE.serialize_cdr(message, kind))
    code, _, error = call(capsys, path)
    assert code == 2 and f'camera cam_high: no messages on {CAM_HIGH}' in error
    messages = changed(
        aloha_messages(ROBOT, 1.0), CAM_HIGH,
        lambda t, k, n, m: (t, 'std_msgs/msg/String', n, string('x')),
    )  # fmt: skip
    code, _, error = call(capsys, write_bag(tmp_path / 'text', messages))
    assert code == 2 and 'carries std_msgs/msg/String, not an image' in error


@pytest.mark.parametrize(
    ('form', 'data', 'text'),
    [
        ('16UC1; compressedDepth png', bytes(12) + b'\x89PNG', 'depth'),
        ('h264', b'\x00\x00\x00\x01abc', 'neither JPEG nor PNG'),
        ('jpeg', b'', 'empty'),
        ('jpeg', b'\xff\xd8\xff\xe0broken', 'broken'),
    ],
)
def test_pictures_that_are_none_are_named(capsys, tmp_path, form, data, text):
    def compressed(topic, kind, ns, message):
        return topic, COMPRESSED, ns, STORE.types[COMPRESSED](
            header=message.header, format=form, data=np.frombuffer(data, np.uint8)
        )

    path = write_bag(tmp_path / 'bag', changed(aloha_messages(ROBOT, 1.0), CAM_HIGH, compressed))
    code, result, _ = call(capsys, path)
    assert code == 1
    assert 'cam_high' in result['reasons'][0] and text in result['reasons'][0]


def test_compressed_pictures_are_found_beside_the_raw_topic(capsys, tmp_path):
    from PIL import Image

    messages = []
    for topic, kind, ns, message in aloha_messages(ROBOT, 1.0):
        if kind == IMAGE:
            sink = io.BytesIO()
            Image.fromarray(message.data.reshape(48, 64, 3)).save(sink, 'JPEG')
            data = np.frombuffer(sink.getvalue(), np.uint8)
            topic, kind = f'{topic}/compressed', COMPRESSED
            message = STORE.types[COMPRESSED](header=message.header, format='jpeg', data=data)
        messages.append((topic, kind, ns, message))
    code, result, _ = call(capsys, write_bag(tmp_path / 'bag', messages))
    assert code == 0 and result['chunks'] == 5


def test_one_input_with_another_clock_is_named_or_stamped_with_its_reception(capsys, tmp_path):
    messages = aloha_messages(ROBOT, 1.0)
    for topics in ([CAM_HIGH], ['/follower_left/joint_states', '/follower_right/joint_states']):
        path = write_bag(tmp_path / f'bag{len(topics)}', shifted(messages, topics, -10800.0))
        code, result, _ = call(capsys, path)
        assert code == 1
        note = next(n for n in result['notes'] if topics[0] in n)
        assert ('-10800.' in note or '-10799.' in note) and '--received-time' in note
        code, result, _ = call(capsys, path, '--received-time')
        assert code == 0 and result['chunks'] == 5


def test_recorded_clock_and_simulated_stamps(capsys, tmp_path):
    messages = aloha_messages(ROBOT, 1.0)
    topics = {m[0] for m in messages if m[1] in (IMAGE, JOINTS)}
    kind = 'rosgraph_msgs/msg/Clock'
    simulated = shifted(messages, topics, 5.0 - START / 1e9)
    clock = [
        ('/clock', kind, START + k * 10**7, STORE.types[kind](clock=stamp(5 * 10**9 + k * 10**7)))
        for k in range(100)
    ]
    path = write_bag(tmp_path / 'bag', sorted(simulated + clock, key=lambda m: m[2]))
    code, result, _ = call(capsys, path)
    assert code == 0 and result['chunks'] == 5
    assert any('another clock' in note for note in result['notes'])


def test_messages_out_of_order_do_not_stop_it(capsys, tmp_path):
    messages = aloha_messages(ROBOT, 2.0)
    rng = np.random.default_rng(0)
    order = np.argsort([m[2] + rng.integers(-4e7, 4e7) for m in messages])
    times = sorted(m[2] for m in messages)
    mixed = [(*messages[i][:2], ns, messages[i][3]) for i, ns in zip(order, times)]
    code, result, _ = call(capsys, write_bag(tmp_path / 'bag', mixed))
    assert code == 0 and result['chunks'] >= 8
    assert any('went back' in note for note in result['notes'])


INTERBOTIX = 'interbotix_xs_msgs/msg/Joint{}Command'
STORE.register(get_types_from_msg('string name\nfloat32[] cmd\n', INTERBOTIX.format('Group')))
STORE.register(get_types_from_msg('string name\nfloat32 cmd\n', INTERBOTIX.format('Single')))
OFFSET = 0.25


def commands(k):
    """Return the command that follows sample k by OFFSET, as numbers of both arms."""
    return ROBOT.measured_to_command(pose(k / 50)) + OFFSET


def interbotix(k, ns):
    values = commands(k).astype(np.float32)
    for arm, part in zip(ROBOT.arms, (values[:7], values[7:])):
        for what, value in (('group', part[:6]), ('single', part[6])):
            kind = INTERBOTIX.format(what.capitalize())
            message = STORE.types[kind](name='arm', cmd=value)
            yield f'{arm.output.namespace}/commands/joint_{what}', kind, ns, message


def filtered(k, ns):
    yield '/joint_command', JOINTS, ns, joints(ns, ROBOT.joint_names, commands(k))


@pytest.mark.parametrize('source', [interbotix, filtered])
def test_commands_of_drivers_and_of_the_filter_are_compared_in_command_units(tmp_path, source):
    messages = aloha_messages(ROBOT, 2.0)
    for k in range(100):
        messages += source(k, START + k * 20_000_000)
    path = write_bag(tmp_path / 'bag', sorted(messages, key=lambda m: m[2]))
    result = replay(path, StillPolicy(speed=0.0), ROBOT)
    assert result.summary['actions']['unit'] == 'command'
    joint_errors = result.summary['against_actions']['1']['joints']
    for name in ('left/waist', 'right/wrist_rotate'):
        assert joint_errors[name]['mae'] == pytest.approx(OFFSET, abs=0.02)
    assert result.summary['against_actions']['1']['mae'] == pytest.approx(OFFSET, abs=0.1)


def controller_robot(tmp_path, kind):
    """Return ALOHA with ros2_control outputs, as a YAML file."""
    import yaml

    from pi0_ros.resources import share_path

    data = yaml.safe_load(share_path('config/robots/aloha.yaml').read_text())
    for arm in data['arms']:
        side = arm['name']
        arm['output'] = {
            'kind': kind, 'topic': f'/{side}/commands', 'gripper_topic': f'/{side}/gripper',
        }  # fmt: skip
    path = tmp_path / 'aloha.yaml'
    path.write_text(yaml.safe_dump(data))
    return path


@pytest.mark.parametrize('kind', ['forward_command', 'joint_trajectory'])
def test_commands_of_controllers_are_read_as_the_robots_yaml_says(tmp_path, kind):
    robot = RobotSpec.load(controller_robot(tmp_path, kind))
    floats = 'std_msgs/msg/Float64MultiArray'
    messages = aloha_messages(ROBOT, 2.0)
    for k in range(100):
        ns, values = START + k * 20_000_000, commands(k)
        for arm, part in zip(('left', 'right'), (values[:7], values[7:])):
            for topic, names, row in (
                (f'/{arm}/commands', ARM[:6], part[:6]), (f'/{arm}/gripper', ARM[6:], part[6:]),
            ):  # fmt: skip
                if kind == 'forward_command':
                    layout = STORE.types['std_msgs/msg/MultiArrayLayout'](dim=[], data_offset=0)
                    message = STORE.types[floats](layout=layout, data=row)
                    messages.append((topic, floats, ns, message))
                else:
                    message = chunk(ns, '', names, [row])
                    messages.append((topic, TRAJECTORY, ns, message))
    path = write_bag(tmp_path / 'bag', sorted(messages, key=lambda m: m[2]))
    result = replay(path, StillPolicy(speed=0.0), robot)
    assert len(result.summary['actions']['topics']) == 4
    error = result.summary['against_actions']['1']['joints']['left/waist']['mae']
    assert error == pytest.approx(OFFSET, abs=0.02)
    plain = replay(path, StillPolicy(), ROBOT)  # whose YAML names other topics
    assert not plain.summary['against_actions']
    assert any('/left/commands' in note and 'output' in note for note in plain.summary['notes'])


def test_start_far_from_the_pose_is_approached_and_told(tmp_path, bag):
    class Far(StillPolicy):
        target = -0.96 + 0.3

        def predict(self, observation, noise=None):
            rows = np.repeat(observation.state[None], 50, axis=0)
            rows[:, 1] = self.target
            return rows

    path = write_bag(tmp_path / 'bag', aloha_messages(ROBOT, 3.0))
    gate = replay(path, Far(), ROBOT).summary['start_gate']
    assert gate['verdict'] == 'approach' and 'left/shoulder' in gate['reason']
    assert gate['approach_s'] == pytest.approx(0.3 / 0.3, abs=0.3)
    assert replay(bag, StillPolicy(), ROBOT).summary['start_gate']['verdict'] == 'open'
    Far.target = -0.96 + 0.9  # one second is too short for it
    never = replay(bag, Far(), ROBOT)
    assert never.summary['start_gate']['approach_s'] is None and never.verdict == 'no'


def test_arms_that_would_touch_the_table_make_it_unfit(tmp_path):
    class Down(StillPolicy):
        def predict(self, observation, noise=None):
            rows = np.repeat(observation.state[None], 50, axis=0)
            rows[:, 1] += np.linspace(0.0, 1.3, 50)
            return rows

    path = write_bag(tmp_path / 'bag', aloha_messages(ROBOT, 2.0))
    result = replay(path, Down(), ROBOT, stride=100)
    clearance = result.summary['supervisor']['clearance']
    assert clearance['smallest'] < clearance['limit'] and clearance['below'] > 0
    assert any('the filter would hold' in reason for reason in result.reasons)
    assert result.verdict == 'no'


def test_split_bag_without_metadata_and_with_a_hole_is_incomplete(capsys, tmp_path):
    messages = aloha_messages(ROBOT, 2.0)
    path = tmp_path / 'split'
    path.mkdir()
    for k, part in ((0, messages[: len(messages) // 2]), (2, messages[len(messages) // 2 :])):
        made = write_bag(tmp_path / f'part{k}', part)
        shutil.copy(next(made.glob('*.mcap')), path / f'split_{k}.mcap')
    code, result, _ = call(capsys, path)
    assert code == 3 and 'split_1' in result['incomplete']


@pytest.fixture(scope='module')
def result(bag, tmp_path_factory):
    out = tmp_path_factory.mktemp('result')
    assert main(['replay', str(bag), *POLICY, '--out', str(out)]) == 0
    return out / 'result.json'


@pytest.mark.parametrize(
    ('content', 'text'),
    [
        (b'', 'no JSON'),
        (b'\xff\xfe\x00', 'not text'),
        (b'[' * 100_000, 'no JSON'),
        (b'[1, 2]', 'not a result.json'),
        (b'{"name": "turtlesim", "version": 2}', 'it holds name, version'),
        (b'{"format": 9, "motion": {}}', 'format 9, this version reads 1'),
        (b'{"format": 1, "motion": {}}', 'lacks bag, robot'),
        (b'{"format": 1, "motion": null}', 'lacks bag, robot'),
    ],
)
def test_compare_refuses_files_that_are_no_results_by_name(
    capsys, tmp_path, result, content, text
):
    other = tmp_path / 'foreign.json'
    other.write_bytes(content)
    assert main(['compare', str(result), str(other)]) == 2
    error = capsys.readouterr().err
    assert 'foreign.json' in error and text in error and error.count('\n') == 1


def test_compare_refuses_what_cannot_be_compared(capsys, tmp_path, result, bag):
    data = json.loads(result.read_text())
    for change, text in (
        ({'joints': ['a'], 'robot': 'wxai'}, '1 joints of wxai'),
        ({'bag': '/elsewhere/other'}, 'different bags'),
        ({'options': {**data['options'], 'stride': 25}}, 'not the same moments'),
        ({'motion': {}}, 'damaged'),
        ({'against_states': []}, 'damaged'),
    ):
        (tmp_path / 'b.json').write_text(json.dumps({**data, **change}))
        assert main(['compare', str(result), str(tmp_path / 'b.json')]) == 2
        assert text in capsys.readouterr().err
    assert main(['compare', str(result), str(tmp_path / 'nothing')]) == 2
    assert 'No such file' in capsys.readouterr().err
    assert main(['compare', str(result.parent), str(result)]) == 0
    assert '5 of 5' in capsys.readouterr().out


def test_full_disk_keeps_the_text_and_says_so(capsys, tmp_path, bag):
    (tmp_path / 'result.json').symlink_to('/dev/full')
    assert main(['replay', str(bag), *POLICY, '--out', str(tmp_path)]) == 2
    done = capsys.readouterr()
    assert done.out.startswith('Fit to run')
    assert 'No space left' in done.err and done.err.count('\n') == 1


def test_interrupted_process_keeps_what_is_done_and_says_so(tmp_path):
    """Ctrl-C as a terminal sends it, once the first chunk has been predicted."""
    path = write_bag(tmp_path / 'bag', aloha_messages(ROBOT, 4.0))
    begun = tmp_path / 'begun'
    environment = {
        **os.environ, 'PI0_TEST_BEGUN': str(begun),
        'PYTHONPATH': os.pathsep.join([str(Path(__file__).parent), *sys.path]),
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, '-m', 'pi0_ros.cli', 'replay', str(path), '--policy',
         'test_odd_bags:slow', '--out', str(tmp_path / 'out')],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    end = time.monotonic() + 60.0
    while not begun.exists() and time.monotonic() < end and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=60.0)
    assert process.returncode == 3, error
    assert 'interrupted' in out and 'Traceback' not in error
    kept = json.loads((tmp_path / 'out' / 'result.json').read_text())
    assert kept['chunks'] >= 1 and 'interrupted' in kept['incomplete']
