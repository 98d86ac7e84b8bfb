# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Hardware outputs: what each driver is sent, by name, whole, and inside the limits."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path

import interbotix_messages
import numpy as np
import pytest
import yaml

from pi0_ros.nodes.outputs import OutputError, Outputs
from pi0_ros.resources import share_path
from pi0_ros.robot import RobotSpec

ROOT = Path(__file__).resolve().parents[2]
STAMP = 12_000_000_034


def robot_with(name: str, *outputs: dict, gripper: dict | None = None) -> RobotSpec:
    """Return a packaged robot whose arms have other outputs."""
    data = yaml.safe_load(share_path(f'config/robots/{name}.yaml').read_text())
    data.pop('poses')  # in the units of the packaged gripper
    for arm, output in zip(data['arms'], outputs):
        arm['output'] = output
        if gripper:
            arm['gripper'] = {**copy.deepcopy(arm['gripper']), **gripper}
    return RobotSpec.from_dict(data, f'{name}.yaml')


def outputs_of(robot: RobotSpec) -> Outputs:
    return Outputs(robot, [j.lower for j in robot.joints], [j.upper for j in robot.joints])


def forward(arm: str, **more) -> dict:
    return {'kind': 'forward_command', 'topic': f'/{arm}/arm', 'gripper_topic': f'/{arm}/grip',
            **more}  # fmt: skip


REVERSED = ['wrist_rotate', 'wrist_angle', 'forearm_roll', 'elbow', 'shoulder', 'waist']


def test_forward_command_gets_its_joints_by_name_in_its_own_order():
    """Field reports B72, B73: each controller names its joints; order follows the controller."""
    robot = robot_with('aloha', forward('a', joints=REVERSED), forward('b'))
    command = np.arange(14) / 10.0

    encoded = dict(outputs_of(robot).encode(command, STAMP))

    assert list(encoded) == ['/a/arm', '/a/grip', '/b/arm', '/b/grip']
    assert list(encoded['/a/arm'].data) == pytest.approx([0.5, 0.4, 0.3, 0.2, 0.1, 0.0])
    assert list(encoded['/a/grip'].data) == pytest.approx([0.6])
    assert list(encoded['/b/arm'].data) == pytest.approx([0.7, 0.8, 0.9, 1.0, 1.1, 1.2])
    assert list(encoded['/b/grip'].data) == pytest.approx([1.3])


def test_one_controller_for_arm_and_gripper_gets_one_message():
    robot = robot_with(
        'aloha', forward('a', gripper_topic='/a/arm'), forward('b', gripper_topic='/b/arm')
    )

    encoded = outputs_of(robot).encode(np.arange(14) / 10.0, STAMP)

    assert [topic for topic, _ in encoded] == ['/a/arm', '/b/arm']
    assert list(encoded[0][1].data) == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6])


def test_joint_trajectory_is_stamped_has_time_and_no_effort():
    """Field report B72: names are exactly the controller's, efforts and velocities are empty."""
    robot = RobotSpec.load('wxai')

    encoded = dict(outputs_of(robot).encode([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.02], STAMP))

    arm = encoded['/arm_controller/joint_trajectory']
    assert arm.joint_names == [f'joint_{i}' for i in range(6)]
    assert list(arm.points[0].positions) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    assert arm.header.stamp.sec == 12 and arm.header.stamp.nanosec == 34
    hand = encoded['/gripper_controller/joint_trajectory']
    assert hand.joint_names == ['left_carriage_joint']
    for message in (arm, hand):
        (point,) = message.points
        assert (point.time_from_start.sec, point.time_from_start.nanosec) == (0, 40_000_000)
        assert not point.effort and not point.velocities and not point.accelerations


def test_a_gripper_controller_of_two_fingers_gets_both():
    """Field report B72: a trajectory controller refuses a part of its joints."""
    mirrored = {'gripper_joint': 'left_finger', 'gripper_mirror': 'right_finger'}
    outputs = [
        {**forward('a'), **mirrored, 'kind': 'joint_trajectory'},
        {**forward('b', gripper_topic='/b/arm'), **mirrored},
    ]
    command = np.arange(14) / 10.0

    encoded = dict(outputs_of(robot_with('aloha', *outputs)).encode(command, STAMP))

    assert encoded['/a/grip'].joint_names == ['left_finger', 'right_finger']
    assert list(encoded['/a/grip'].points[0].positions) == pytest.approx([0.6, -0.6])
    assert list(encoded['/b/arm'].data)[6:] == pytest.approx([1.3, -1.3])


def controllers(document: dict, found: dict) -> dict:
    """Return controller name -> joints, wherever they stand in a ros2_control file."""
    for key, value in document.items():
        if isinstance(value, dict):
            joints = value.get('ros__parameters', {}).get('joints')
            if joints and 'broadcaster' not in key:
                found[key] = joints
            controllers(value, found)
    return found


@pytest.mark.parametrize('name', [
    'interbotix_vx300s_trajectory_controllers', 'so101_follower_controllers',
    'so_arm_ros2_controllers',
])  # fmt: skip
def test_real_controllers_get_exactly_their_joints(shared_dir, name):
    """Field reports B72, B73, over controller files of others."""
    text = (shared_dir / f'real/configs/{name}.yaml').read_text()
    taken = 0
    for controller, joints in controllers(yaml.safe_load(text), {}).items():
        hand = [j for j in joints if j == 'gripper' or 'finger' in j or j == 'Jaw']
        arm = [j for j in joints if j not in hand]
        data = yaml.safe_load(share_path('config/robots/wxai.yaml').read_text())
        data.pop('poses', None)
        data.pop('urdf', None)
        template = data['arms'][0]['joints'][0]
        names = arm or ['shoulder', 'elbow']
        data['arms'][0]['joints'] = [{**template, 'name': joint} for joint in names[::-1]]
        output = {'kind': 'joint_trajectory', 'topic': '/arm', 'joints': names,
                  'gripper_topic': '/arm' if arm and hand else '/hand'}  # fmt: skip
        output.update(zip(('gripper_joint', 'gripper_mirror'), hand))
        data['arms'][0]['output'] = output
        for key in ('base_frame', 'gripper_frame'):
            data['arms'][0].pop(key, None)
        encoded = dict(outputs_of(RobotSpec.from_dict(data)).encode(
            np.arange(len(names) + 1) / 10.0, STAMP
        ))  # fmt: skip
        topic = '/arm' if arm else '/hand'
        assert encoded[topic].joint_names == joints, controller
        taken += 1
    assert taken >= 1


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('index', [0, 6, 13])
def test_a_value_that_is_not_finite_encodes_no_message_at_all(bad, index):
    robot = robot_with('aloha', forward('a'), forward('b'))
    command = np.zeros(14)
    command[index] = bad

    with pytest.raises(OutputError, match='not 14 finite numbers'):
        outputs_of(robot).encode(command, STAMP)


def test_a_command_of_the_wrong_length_is_refused():
    with pytest.raises(OutputError, match='not 14 finite numbers'):
        outputs_of(robot_with('aloha', forward('a'), forward('b'))).encode(np.zeros(13), STAMP)


def test_two_arms_on_one_topic_are_refused_at_start():
    with pytest.raises(OutputError, match="publish on '/a/arm'"):
        outputs_of(robot_with('aloha', forward('a'), forward('a')))


def test_output_none_has_no_topics():
    outputs = outputs_of(robot_with('aloha', {'kind': 'none'}, {'kind': 'none'}))

    assert outputs.topics == {}
    assert outputs.encode(np.zeros(14), STAMP) == []


needs_compiler = pytest.mark.skipif(
    bool(interbotix_messages.missing_tools()),
    reason='the message package cannot be compiled without ' + interbotix_messages.missing_tools(),
)

ENCODE = """
import json, sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from test_outputs import STAMP, outputs_of, robot_with
kind = {'kind': 'interbotix', 'group': 'arm', 'gripper': 'gripper'}
gripper = json.loads(sys.argv[3])
robot = robot_with('aloha', {**kind, 'namespace': '/follower_left'},
                   {**kind, 'namespace': '/follower_right'}, gripper=gripper)
out = []
for topic, message in outputs_of(robot).encode(json.loads(sys.argv[2]), STAMP):
    cmd = list(message.cmd) if hasattr(message.cmd, '__len__') else message.cmd
    out.append([topic, type(message).__name__, message.name, cmd])
print(json.dumps(out))
"""


def encode_interbotix(command, gripper: dict | None = None):
    result = subprocess.run(
        [sys.executable, '-c', ENCODE, str(Path(__file__).parent), json.dumps(command),
         json.dumps(gripper)],
        cwd=ROOT, env=interbotix_messages.environment(), text=True, capture_output=True,
        timeout=60,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads(result.stdout)


@needs_compiler
def test_interbotix_gets_a_group_and_a_single_command_per_arm():
    command = [i / 10.0 for i in range(14)]

    encoded = encode_interbotix(command)

    assert [(topic, kind, name) for topic, kind, name, _ in encoded] == [
        ('/follower_left/commands/joint_group', 'JointGroupCommand', 'arm'),
        ('/follower_left/commands/joint_single', 'JointSingleCommand', 'gripper'),
        ('/follower_right/commands/joint_group', 'JointGroupCommand', 'arm'),
        ('/follower_right/commands/joint_single', 'JointSingleCommand', 'gripper'),
    ]
    assert encoded[0][3] == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.5], abs=1e-6)
    assert encoded[1][3] == pytest.approx(0.6)
    assert encoded[2][3] == pytest.approx([0.7, 0.8, 0.9, 1.0, 1.1, 1.2], abs=1e-6)
    assert encoded[3][3] == pytest.approx(1.3)


@needs_compiler
@pytest.mark.parametrize('bound', ['lower', 'upper'])
def test_rounding_to_float32_leaves_no_limit(bound):
    robot = RobotSpec.load('aloha')
    limits = [getattr(joint, bound) for joint in robot.joints]

    encoded = encode_interbotix(limits)

    sent = [*encoded[0][3], encoded[1][3], *encoded[2][3], encoded[3][3]]
    assert sent == pytest.approx(limits, abs=1e-6)
    for joint, value in zip(robot.joints, sent):
        assert joint.lower <= value <= joint.upper, joint.name


@needs_compiler
def test_a_gripper_in_metres_is_sent_as_the_distance_between_both_fingers():
    """The driver halves a linear position before it converts it."""
    gripper = {'command_unit': 'm', 'lower': 0.018, 'upper': 0.058}
    encoded = encode_interbotix([0.0] * 6 + [0.05] + [0.0] * 6 + [0.02], gripper)

    assert encoded[1][3] == pytest.approx(0.10)
    assert encoded[3][3] == pytest.approx(0.04)


def test_interbotix_without_its_messages_names_the_missing_package():
    """The wheels have no interbotix_xs_msgs; a sourced Interbotix workspace would."""
    code = (
        'import sys; sys.modules["interbotix_xs_msgs"] = None\n'
        'from pi0_ros.nodes.outputs import OutputError, Outputs\n'
        'from pi0_ros.robot import RobotSpec\n'
        'robot = RobotSpec.load("aloha")\n'
        'try:\n    Outputs(robot, [-1.0] * 14, [1.0] * 14)\n'
        'except OutputError as error:\n    print(error)\n'
    )
    result = subprocess.run(
        [sys.executable, '-c', code], cwd=ROOT, text=True, capture_output=True, timeout=60
    )
    assert "arm 'left'" in result.stdout and "'interbotix_xs_msgs'" in result.stdout
    assert len(result.stdout.strip().splitlines()) == 1
