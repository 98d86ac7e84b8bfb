# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""`pi0_ros record` beside live publishers: what is in the bag, and what it says of the run."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from fake_robot import FakeRobot
from rosbags.highlevel import AnyReader
from rosbags.interfaces import QosReliability

from pi0_ros.messages import joint_state
from pi0_ros.record import checkpoint_hash, topics_of
from pi0_ros.robot import RobotSpec

ROBOT = RobotSpec.load('aloha')
JOINTS = [topic for topic, _ in ROBOT.joint_state_sources]
CAMERAS = [camera.topic for camera in ROBOT.cameras.values()]


def command(*arguments):
    return [sys.executable, '-m', 'pi0_ros.cli', 'record', *map(str, arguments)]


@pytest.fixture()
def fake_robot(ros_domain):
    robot = FakeRobot(ros_domain)
    yield robot
    robot.close()


def wait_until(condition, timeout=30.0):
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, 'it did not happen in time'
        time.sleep(0.05)  # a bounded wait on the condition


def test_a_bag_holds_the_bytes_the_qos_the_parameters_and_the_checkpoints_hash(
    fake_robot, tmp_path
):
    checkpoint = tmp_path / 'checkpoint'
    checkpoint.mkdir()
    (checkpoint / 'config.json').write_text('{}')
    fake_robot.node.declare_parameter('horizon', 25)
    bag = tmp_path / 'bag'
    done = subprocess.run(
        command('--out', bag, '--checkpoint', checkpoint, '--seconds', 4),
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with AnyReader([bag]) as reader:
        counts = {c.topic: c.msgcount for c in reader.connections}
        for topic in [*JOINTS, *CAMERAS]:
            assert counts[topic] > 0, topic
        connection = next(c for c in reader.connections if c.topic == JOINTS[0])
        assert {q.reliability for q in connection.ext.offered_qos_profiles} == {
            QosReliability.BEST_EFFORT
        }
        _, stamp, raw = next(iter(reader.messages([connection])))
        message = reader.deserialize(raw, connection.msgtype)
        header = message.header.stamp
        assert list(message.name[:2]) == ['waist', 'shoulder']
        assert abs(stamp - (header.sec * 10**9 + header.nanosec)) < 5 * 10**9
    information = yaml.safe_load((bag / 'metadata.yaml').read_text())
    kept = information['rosbag2_bagfile_information']['custom_data']
    assert kept['robot'] == 'aloha'
    assert kept['checkpoint_sha256'] == checkpoint_hash(checkpoint)
    assert json.loads(kept['parameters'])['/fake_robot']['horizon'] == 25


def test_ctrl_c_leaves_a_whole_bag(fake_robot, tmp_path):
    bag = tmp_path / 'bag'
    process = subprocess.Popen(
        command('--out', bag), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_until(lambda: any(p.stat().st_size > 2**21 for p in Path(bag).glob('*.mcap')))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert 'Traceback' not in err
    assert f'{JOINTS[0]}\n' in out
    assert 'action_chunk (nobody published it)' in out
    with AnyReader([bag]) as reader:
        assert sum(c.msgcount for c in reader.connections) == reader.message_count > 0


def test_a_topic_that_appears_later_is_recorded_from_then_on(fake_robot, tmp_path):
    bag = tmp_path / 'bag'
    process = subprocess.Popen(
        command('--out', bag), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_until(lambda: any(p.stat().st_size > 2**20 for p in Path(bag).glob('*.mcap')))
        late = fake_robot.node.create_publisher(type(joint_state([], [], 0)), 'joint_command', 10)
        wait_until(lambda: late.get_subscription_count() > 0)
        for value in range(5):
            late.publish(joint_state(['left/waist'], [float(value)], fake_robot.now_ns()))
        assert late.wait_for_all_acked()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0, err
    with AnyReader([bag]) as reader:
        found = [c for c in reader.connections if c.topic == '/joint_command']
        values = [
            reader.deserialize(raw, c.msgtype).position[0] for c, _, raw in reader.messages(found)
        ]
    assert values == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_an_existing_folder_is_not_touched(tmp_path):
    (tmp_path / 'bag').mkdir()
    done = subprocess.run(
        command('--out', tmp_path / 'bag'), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert 'exists already' in done.stderr and 'Traceback' not in done.stderr


def test_topics_cover_what_replay_reads():
    topics = topics_of(ROBOT)
    assert {*JOINTS, *CAMERAS, 'action_chunk', 'joint_command_raw', 'prompt'} <= set(topics)
    assert topics_of(RobotSpec.load('wxai')).count('/joint_states') == 1
