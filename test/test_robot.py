# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""RobotSpec: true numbers, conversions, and every refusal."""

import copy
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import yaml

from pi0_ros import gripper
from pi0_ros.resources import share_path
from pi0_ros.robot import RobotError, RobotSpec

ALOHA = share_path('config/robots/aloha.yaml')


@pytest.fixture()
def data():
    return yaml.safe_load(ALOHA.read_text(encoding='utf-8'))


@pytest.fixture(scope='module')
def aloha():
    return RobotSpec.load('aloha')


def refusal(data) -> str:
    with pytest.raises(RobotError) as info:
        RobotSpec.from_dict(data, 'my_robot.yaml')
    assert 'my_robot.yaml' in str(info.value)
    return str(info.value)


def test_aloha_order_is_left_arm_left_gripper_right_arm_right_gripper(aloha):
    names = 'waist shoulder elbow forearm_roll wrist_angle wrist_rotate gripper'.split()
    assert list(aloha.joint_names) == [f'{s}/{n}' for s in ('left', 'right') for n in names]
    assert aloha.dof == 14 and aloha.gripper_indices == (6, 13)


def test_aloha_limits_are_those_of_the_urdf(aloha):
    shoulder, elbow, wrist = (aloha.joints[i] for i in (1, 2, 4))
    assert (shoulder.lower, shoulder.upper) == (-1.85005, 1.25664)
    assert (elbow.lower, elbow.upper) == (-1.76278, 1.60570)
    assert (wrist.lower, wrist.upper) == (-1.86750, 2.23402)
    assert all(j.velocity <= math.pi for j in aloha.joints)


def test_second_robot_is_data_alone():
    robot = RobotSpec.load('wxai')
    assert robot.dof == 7 and len(robot.cameras) == 2
    q = np.array([0.1, 1.0, 1.0, 0.0, 0.0, 0.0, 0.03])
    assert np.allclose(robot.policy_to_command(robot.measured_to_policy(q)), q)


def test_the_example_of_the_docs_is_a_robot(tmp_path):
    text = (Path(__file__).resolve().parents[1] / 'docs/robots.md').read_text(encoding='utf-8')
    path = tmp_path / 'ur5e.yaml'
    path.write_text(text.split('```yaml\n')[1].split('```')[0])
    robot = RobotSpec.load(path)
    assert robot.dof == 7 and robot.gripper_indices == (6,) and robot.policy_rate == 20.0
    closed = robot.policy_to_command(np.zeros(7))
    assert closed[6] == pytest.approx(0.7929) and robot.arms[0].output.kind == 'forward_command'


def test_bare_names_get_the_prefix_and_full_names_stay(aloha):
    assert aloha.resolve_joint('left/', 'waist') == 'left/waist'
    assert aloha.resolve_joint('left/', 'right/waist') == 'right/waist'


def test_b15_gripper_angle_and_finger_position_give_the_same_opening(data, aloha):
    finger = copy.deepcopy(data)
    for arm in finger['arms']:
        arm['gripper'] = {**arm['gripper'], 'measured': {'joint': 'left_finger', 'unit': 'm'}}
    by_finger = RobotSpec.from_dict(finger, 'finger.yaml')
    assert by_finger.state_names[6] == 'left/left_finger'
    for theta in np.linspace(-0.62, 1.49, 9):
        q = np.zeros(14)
        q[[6, 13]] = theta
        p = q.copy()
        p[[6, 13]] = gripper.finger_m_from_joint_rad(theta, gripper.GripperCalibration())
        assert np.allclose(aloha.measured_to_policy(q), by_finger.measured_to_policy(p), atol=1e-9)


def test_openings_of_the_end_stops_are_zero_and_one(aloha):
    q = np.zeros(14)
    q[6], q[13] = -0.6213, 1.4910
    opening = aloha.measured_to_policy(q)[[6, 13]]
    assert np.allclose(opening, [0.0, 1.0], atol=4e-3)  # linkage against rounded constants


def test_b51_radians_taken_for_metres_are_refused_not_clipped(data):
    for arm in data['arms']:
        arm['gripper'] = {**arm['gripper'], 'measured': {'joint': 'gripper', 'unit': 'm'}}
    robot = RobotSpec.from_dict(data, 'my_robot.yaml')
    q = np.zeros(14)
    q[[6, 13]] = 1.2
    with pytest.raises(RobotError, match=r'left/gripper.*1\.2 m.*29\.87.*unit'):
        robot.measured_to_policy(q)


def test_b50_gripper_range_and_unit_are_parameters(data):
    gripper_data = copy.deepcopy(data['arms'][0]['gripper'])
    gripper_data.update(
        measured={'joint': 'left_finger', 'unit': 'm'}, lower=1.5, upper=2.487,
        calibration={'joint_closed': 1.5, 'joint_open': 2.487, 'finger_closed': 0.0449,
                     'finger_open': 0.058, 'horn_radius': 0.0, 'rod_length': 1.0},
    )  # fmt: skip
    data['arms'] = [{**data['arms'][0], 'gripper': gripper_data}]
    data.pop('poses')
    robot = RobotSpec.from_dict(data, 'my_robot.yaml')
    for opening, finger, angle in ((0.0, 0.0449, 1.5), (1.0, 0.058, 2.487)):
        measured = np.array([0.0] * 6 + [finger])
        assert robot.measured_to_policy(measured)[6] == pytest.approx(opening)
        assert robot.measured_to_command(measured)[6] == pytest.approx(angle)
        assert robot.policy_to_command([0.0] * 6 + [opening])[6] == pytest.approx(angle)


def test_pi_angle_space_is_an_offset_and_no_inverse_of_the_state_map(data):
    for arm in data['arms']:
        arm['gripper'] = {**arm['gripper'], 'policy_space': 'pi_angle'}
    robot = RobotSpec.from_dict(data, 'my_robot.yaml')
    command = robot.policy_to_command(np.full(14, 0.25))
    assert command[6] == pytest.approx(0.25 + 0.5476)
    for arm in data['arms']:
        arm['gripper']['constants'] = 'lerobot_old'
    command = RobotSpec.from_dict(data, 'x').policy_to_command(np.full(14, 0.25))
    assert command[13] == pytest.approx(0.4 + 1.1 * 0.25)


def test_b19_degrees_are_converted_on_both_sides_and_grippers_on_neither(data):
    data['policy_units'] = 'deg'
    robot = RobotSpec.from_dict(data, 'my_robot.yaml')
    q = np.full(14, 0.5)
    state = robot.measured_to_policy(q)
    assert state[0] == pytest.approx(28.6479, abs=1e-4)
    assert 0.0 <= state[6] <= 1.0
    assert np.allclose(robot.policy_to_command(state)[:6], 0.5)


def test_a_gripper_that_closes_with_a_growing_angle_is_linear_between_its_end_stops(data):
    # Robotiq 2F-85: 0 rad open, 0.7929 rad closed
    closing = copy.deepcopy(data['arms'][0]['gripper'])
    closing['calibration'] = {
        'joint_closed': 0.7929, 'joint_open': 0.0, 'finger_closed': 0.0, 'finger_open': 0.0425
    }  # fmt: skip
    closing.update(lower=0.0, upper=0.7929)
    data['arms'] = [{**data['arms'][0], 'gripper': closing}]
    data.pop('poses')
    robot = RobotSpec.from_dict(data, 'my_robot.yaml')
    for opening, angle in ((0.0, 0.7929), (0.25, 0.594675), (1.0, 0.0)):
        assert robot.measured_to_policy([0.0] * 6 + [angle])[6] == pytest.approx(opening)
        assert robot.policy_to_command([0.0] * 6 + [opening])[6] == pytest.approx(angle)


@pytest.mark.parametrize('unit, low, high', [('m', 0.0, 0.04), ('rad', -0.2, 1.0)])
@pytest.mark.parametrize('space', ['normalized', 'same'])
def test_a_gripper_of_one_unit_needs_no_calibration(data, unit, low, high, space):
    gripper_data = copy.deepcopy(data['arms'][0]['gripper'])
    del gripper_data['calibration']
    gripper_data.update(
        measured={'joint': 'gripper', 'unit': unit}, command_unit=unit, lower=low, upper=high,
        policy_space=unit if space == 'same' else space,
    )  # fmt: skip
    data['arms'] = [{**data['arms'][0], 'gripper': gripper_data}]
    data.pop('poses')
    robot = RobotSpec.from_dict(data, 'my_robot.yaml')
    for share in (0.0, 0.5, 1.0):
        value = low + share * (high - low)
        told = robot.measured_to_policy([0.0] * 6 + [value])[6]
        assert told == pytest.approx(value if space == 'same' else share)
        assert robot.policy_to_command([0.0] * 6 + [told])[6] == pytest.approx(value)


def test_a_gripper_of_two_units_needs_a_calibration(data):
    del data['arms'][0]['gripper']['calibration']
    data['arms'][0]['gripper']['command_unit'] = 'm'
    assert 'gripper.calibration is None; expected end stops' in refusal(data)


def test_cameras_are_a_dict_and_a_robot_can_be_copied_and_pickled(aloha):
    assert type(aloha.cameras) is dict and list(aloha.cameras)[0] == 'cam_high'
    assert copy.deepcopy(aloha) == aloha == pickle.loads(pickle.dumps(aloha))


def test_a_urdf_is_found_beside_the_yaml_below_config_and_by_an_absolute_path(data, tmp_path):
    def load(urdf):
        path = tmp_path / 'mine.yaml'
        path.write_text(yaml.safe_dump({**data, 'urdf': str(urdf)}))
        return RobotSpec.load(path).urdf_path

    mine = tmp_path / 'mine.urdf'
    mine.write_text('<robot name="mine"/>')
    assert load('mine.urdf') == load(mine) == mine
    assert load('urdf/aloha.urdf') == share_path('config/urdf/aloha.urdf')
    with pytest.raises(RobotError, match="mine.yaml: urdf is 'no.urdf'; expected a file beside"):
        load('no.urdf')
    data.pop('urdf')
    with pytest.raises(RobotError, match="no urdf; add the key 'urdf'"):
        load('')


def test_wrong_vector_length_names_the_joints(aloha):
    with pytest.raises(RobotError, match='14 joints.*left/waist'):
        aloha.policy_to_command(np.zeros(13))


@pytest.mark.parametrize(
    'change, expected',
    [
        (lambda d: d.pop('control_rate'), "'control_rate' is missing"),
        (lambda d: d.update(control_rte=1), "unknown key 'control_rte'.*did you mean"),
        (lambda d: d.update(control_rate='fast'), "control_rate is 'fast'; expected a number"),
        (lambda d: d.update(control_rate=0), 'control_rate is 0; expected a number above zero'),
        (lambda d: d.update(control_rate=float('nan')), 'control_rate is nan; expected a finite'),
        (lambda d: d.update(policy_units='grad'), "policy_units is 'grad'; expected one of rad"),
        (lambda d: d.update(arms=[]), r'arms is \[\]; expected a list'),
        (lambda d: d['arms'][1].update(prefix='left/'), "'left/waist' comes twice"),
        (lambda d: d['arms'][1].update(name='left'), 'arm names that differ'),
        (lambda d: d['arms'][0]['joints'][2].update(lower=2.0),
         r'arms\[0\].joints\[2\].lower is 2.0; expected a value below upper'),
        (lambda d: d['arms'][0]['joints'][2].update(upper=float('inf')), 'upper is inf'),
        (lambda d: d['arms'][0]['joints'][2].update(velocity=-1.0), 'velocity is -1.0'),
        (lambda d: d['arms'][0]['joints'][2].pop('jerk'), r"joints\[2\].jerk' is missing"),
        (lambda d: d['arms'][0]['joints'][0].update(name=7), 'name is 7; expected a text'),
        (lambda d: d['arms'][0]['joints'][0].update(continuous=1), 'continuous is 1;'),
        (lambda d: d['arms'][0]['gripper'].update(command_unit='deg'), "command_unit is 'deg'"),
        (lambda d: d['arms'][0]['gripper']['calibration'].update(finger_open=0.09),
         'finger_open is 0.09; expected 0.0579 m, where the linkage'),
        (lambda d: d['arms'][0]['gripper']['calibration'].update(joint_open=-1.0),
         'joint_closed is -0.6213; expected a value below joint_open'),
        (lambda d: d['arms'][0]['output'].update(kind='can'), "kind is 'can'; expected one of"),
        (lambda d: d['arms'][0]['output'].pop('namespace'), "namespace' is missing"),
        (lambda d: d['arms'][0]['output'].update(joints=['waist']), 'the same joints as the arm'),
        (lambda d: d['cameras'].clear(), 'at least one camera'),
        (lambda d: d['cameras']['cam_high'].update(slot='cam_high'), 'expected one of base_0_rgb'),
        (lambda d: d['cameras']['cam_high'].update(topic='a b'), 'expected a ROS topic name'),
        (lambda d: d['cameras']['cam_high'].update(topic='$(var cam)'), 'unresolved launch'),
        (lambda d: d['cameras']['cam_high'].update(slot='left_wrist_0_rgb'), 'a different slot'),
        (lambda d: d['poses']['start'].update(left=[0.0]), 'expected 7 numbers'),
        (lambda d: d['poses']['start']['left'].__setitem__(1, -9.0), 'left/shoulder within'),
        (lambda d: d['collision'].update(stop_distance=1.0), 'expected less than 0.08'),
    ],
)  # fmt: skip
def test_faults_are_refused_by_file_key_value_and_expectation(data, change, expected):
    data = copy.deepcopy(data)
    change(data)
    import re

    assert re.search(expected, refusal(data)), refusal(data)


def test_a_key_given_twice_is_refused(tmp_path):
    path = tmp_path / 'twice.yaml'
    path.write_text('name: a\nname: b\n')
    with pytest.raises(RobotError, match="twice.yaml.*'name' is given twice"):
        RobotSpec.load(path)


@pytest.mark.parametrize('text', ['', '- 1\n', 'just words', 'a: [', '<robot name="x"/>'])
def test_files_that_hold_no_robot_are_refused_by_name(tmp_path, text):
    path = tmp_path / 'other.yaml'
    path.write_text(text)
    with pytest.raises(RobotError, match='other.yaml'):
        RobotSpec.load(path)


def test_missing_robots_name_the_known_ones():
    with pytest.raises(RobotError, match='aloha.*wxai'):
        RobotSpec.load('alhoa')
    with pytest.raises(RobotError, match='does not exist'):
        RobotSpec.load('no/such.yaml')


@pytest.mark.parametrize(
    'key, what',
    [('joint_order', 'Interbotix motor'), ('joint_limits', 'MoveIt'), ('robot', 'ALOHA 2.0'),
     ('robot_type', 'rosetta'), ('vision_type', 'FlashRT'), ('shoulder_pan', 'ticks')],
)  # fmt: skip
def test_pasted_foreign_formats_are_named(key, what):
    message = refusal({key: {}})
    assert key in message and what in message


def test_controllers_are_told_as_the_outputs_that_would_feed_them():
    controllers = {
        'forward': {'type': 'position_controllers/JointGroupPositionController'},
        'arm': {'type': 'joint_trajectory_controller/JointTrajectoryController'},
        'states': {'type': 'joint_state_broadcaster/JointStateBroadcaster'},
        'update_rate': 100,
    }
    manager = {'controller_manager': {'ros__parameters': controllers}}
    for data, namespace in ((manager, ''), ({'/left': manager}, '/left')):
        message = refusal(data)
        assert f'{{kind: forward_command, topic: {namespace}/forward/commands}}' in message
        assert f'{{kind: joint_trajectory, topic: {namespace}/arm/joint_trajectory}}' in message
        assert 'states' not in message
    assert 'unresolved launch substitution' in refusal({'$(var robot)': manager})


def test_real_files_of_other_formats_are_refused_with_the_key(shared_dir):
    files = sorted(Path(shared_dir / 'real/configs').glob('*.yaml'))
    files += sorted(Path(shared_dir / 'real/robots').glob('*.urdf'))
    assert files
    for path in files:
        with pytest.raises(RobotError, match=path.name):
            RobotSpec.load(path)
