# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""``pi0_ros replay`` and ``compare`` as a user and as CI call them; bags made by others."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest
import yaml
from bags import START, StillPolicy, aloha_messages, write_bag

from pi0_ros.cli import main
from pi0_ros.robot import RobotSpec

ROBOT = RobotSpec.load('aloha')
POLICY = ['--policy', 'test_command:still']


def still(parameters):
    return StillPolicy()


def fast(parameters):
    return StillPolicy(speed=10.0)


@pytest.fixture()
def bag(tmp_path):
    return write_bag(tmp_path / 'bag', aloha_messages(ROBOT, 2.0))


def test_writes_report_and_result_and_prints_the_verdict_first(tmp_path, bag, capsys):
    out = tmp_path / 'out'
    assert main(['replay', str(bag), *POLICY, '--out', str(out)]) == 0
    text = capsys.readouterr().out
    assert text.startswith('Fit to run: ')
    assert 'cam_high' in text and 'start gate' in text
    result = json.loads((out / 'result.json').read_text())
    assert result['chunks'] == 10 and result['verdict'] in ('yes', 'warnings')
    page = (out / 'report.html').read_text()
    assert page.index('Fit to run') < page.index('<section>')
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert 'http' not in page.replace('http-equiv', '')
    assert page.count('data:image/jpeg') >= 3


def test_json_format_is_only_json(bag, capsys):
    assert main(['replay', str(bag), *POLICY, '--format', 'json']) == 0
    assert json.loads(capsys.readouterr().out)['robot'] == 'aloha'


def test_exit_codes(tmp_path, bag, capsys):
    assert main(['replay', str(bag), '--policy', 'test_command:fast']) == 1
    assert main(['replay', str(tmp_path / 'none'), *POLICY]) == 2
    assert main(['replay', str(bag)]) == 2
    assert 'give --checkpoint' in capsys.readouterr().err
    assert main(['replay', str(bag), *POLICY, '--map', 'cam_high']) == 2
    assert main(['replay', str(bag), '--policy', 'no_such_module:x']) == 2
    file = next(bag.glob('*.mcap'))
    file.write_bytes(file.read_bytes()[: file.stat().st_size * 6 // 10])
    assert main(['replay', str(file), *POLICY]) == 3


def test_strict_turns_warnings_into_failure(tmp_path):
    messages = aloha_messages(ROBOT, 3.0, camera_delay={'cam_high': 0.5})
    gap = [
        m for m in messages
        if m[0] != ROBOT.cameras['cam_high'].topic or not 1.0 < (m[2] - START) / 1e9 < 1.4
    ]  # fmt: skip
    path = str(write_bag(tmp_path / 'bag', gap))
    assert main(['replay', path, *POLICY]) == 0
    assert main(['replay', path, *POLICY, '--strict']) == 1


def test_compare(tmp_path, bag, capsys):
    for name, factory in (('a', 'still'), ('b', 'fast')):
        main(['replay', str(bag), '--policy', f'test_command:{factory}', '--out',
              str(tmp_path / name)])  # fmt: skip
    capsys.readouterr()
    assert main(['compare', str(tmp_path / 'a'), str(tmp_path / 'b' / 'result.json')]) == 0
    text = capsys.readouterr().out
    assert 'mae against states at row 25' in text and 'setpoints limited' in text
    assert main(['compare', str(tmp_path / 'a'), str(bag)]) == 2
    assert 'not a result' in capsys.readouterr().err
    other = tmp_path / 'other.json'
    data = json.loads((tmp_path / 'a' / 'result.json').read_text())
    other.write_text(json.dumps({**data, 'bag': 'elsewhere'}))
    assert main(['compare', str(tmp_path / 'a'), str(other)]) == 2
    assert 'different bags' in capsys.readouterr().err
    assert main(['compare', str(tmp_path / 'a'), str(other), '--force', '--format', 'json']) == 0


REFUSED = {  # with the ALOHA description: what the one line on stderr must say
    'ats_flight_v9': 'camera cam_high',
    'ats_servo_serial_log': 'camera cam_high',
    'ats_static_inverror': 'camera cam_high',
    'file_compression': 'no topic of type sensor_msgs/msg/JointState',
    'geocamxyz_all_types_sqlite3': '/test/sensor_msgs/image',
    'inorbit_metadata_only': 'rosbag_demo.db3',
    'interbotix_duck_dunk_ros1': 'rosbags-convert',
    'jinbeizame_array_msgs': '/one_shot/joint_state',
    'klintan_bare_db3': '/image',
    'lfs_pointer_demo': 'git lfs pull',
    'nav2_mcap_zstd_v9': 'no topic of type sensor_msgs/msg/JointState',
    'rosbag2_cdr_test_sqlite3_v7': 'camera cam_high',
    'rosbag2_empty_bag': 'holds no messages',
    'rosbag2_no_metadata_sqlite3_split': 'camera cam_high',
    'rosbag2_perf_malformed_types': 'nothing to replay',
    'rosbag2_seek_mcap_v6': 'camera cam_high',
    'rosbag2_service_events_sqlite3_v8': 'camera cam_high',
    'rosbag2_wbag_mcap_split': 'camera cam_high',
    'rosbag2_wrong_serialization_sqlite3': 'only cdr is supported',
    'wx200_waist_converted': '/wx200/joint_states',
}


@pytest.mark.parametrize('name', REFUSED)
def test_bags_of_others_are_refused_in_one_line(shared_dir, name, capsys):
    assert main(['replay', str(shared_dir / 'real' / 'bags' / name), *POLICY]) == 2
    error = capsys.readouterr().err
    assert REFUSED[name] in error
    assert error.count('\n') == 1 and 'Traceback' not in error


def robot_file(tmp_path, topic, names, lower=-7.0, upper=7.0):
    joint = {'lower': lower, 'upper': upper, 'velocity': 6.0, 'acceleration': 400.0, 'jerk': 1e6}
    data = {
        'name': 'arm', 'control_rate': 50.0,
        'arms': [
            {'name': 'arm', 'joint_states': topic, 'joints': [{'name': n, **joint} for n in names]}
        ],
        'cameras': {'cam': {'slot': 'base_0_rgb', 'topic': '/cam', 'required': True}},
    }  # fmt: skip
    path = tmp_path / 'arm.yaml'
    path.write_text(yaml.safe_dump(data))
    return str(path)


def recorded(shared_dir, tmp_path, name, topic, names, *options):
    robot = robot_file(tmp_path, topic, names)
    return main(
        ['replay', str(shared_dir / 'real' / 'bags' / name), '--robot', robot, '--policy',
         'recorded', '--format', 'json', *options]
    )  # fmt: skip


def test_real_arm_motion_goes_through_the_filter(shared_dir, tmp_path, capsys):
    names = ['waist', 'shoulder', 'elbow', 'wrist_angle', 'wrist_rotate']
    code = recorded(shared_dir, tmp_path, 'wx200_waist_converted', '/wx200/joint_states', names)
    result = json.loads(capsys.readouterr().out)
    assert code in (0, 1)
    assert result['inputs']['/wx200/joint_states']['messages'] == 10598
    assert result['motion']['setpoints'] == pytest.approx(106 * 50, rel=0.02)


@pytest.mark.parametrize('name', ['ats_servo_serial_log', 'ats_static_inverror'])
def test_nameless_arm_is_refused_or_mapped_by_index(shared_dir, tmp_path, name, capsys):
    topic, names = '/servo/out/state', ['q0', 'q1', 'q2']
    assert recorded(shared_dir, tmp_path, name, topic, names) == 2
    assert topic in capsys.readouterr().err
    code = recorded(
        shared_dir, tmp_path, name, topic, names, '--joint-names', 'q0,q1,q2', '--received-time'
    )
    result = json.loads(capsys.readouterr().out)
    assert code in (0, 1)
    assert result['motion']['setpoints'] > 100


def test_one_of_three_joint_topics_is_chosen(shared_dir, tmp_path, capsys):
    robot = robot_file(tmp_path, '/joint_states', ['q0', 'q1', 'q2'])
    bag = str(shared_dir / 'real' / 'bags' / 'ats_flight_v9')
    arguments = ['replay', bag, '--robot', robot, '--policy', 'recorded', '--format', 'json']
    assert main(arguments) == 2
    error = capsys.readouterr().err
    for topic in ('/servo/out/state', '/servo/in/state', '/controller/out/servo_positions'):
        assert topic in error
    code = main([*arguments, '--joint-states', '/servo/out/state', '--joint-names', 'q0,q1,q2'])
    assert code in (0, 1)
    assert json.loads(capsys.readouterr().out)['inputs']['/servo/out/state']['messages'] == 124


def test_single_sample_is_no_trajectory(shared_dir, tmp_path, capsys):
    names = ['a', 'b', 'c']
    topic = '/one_shot/joint_state'
    assert recorded(shared_dir, tmp_path, 'jinbeizame_array_msgs', topic, names) == 2
    assert '1 message' in capsys.readouterr().err


BROWSERS = ('chromium', 'chromium-browser', 'google-chrome')
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), '')


@pytest.mark.skipif(not BROWSER, reason='no Chromium installed')
def test_report_works_in_a_browser_without_network(tmp_path, bag):
    out = tmp_path / 'out'
    main(['replay', str(bag), *POLICY, '--out', str(out)])
    page = subprocess.run(
        [BROWSER, '--headless', '--no-sandbox', '--disable-gpu', f'--user-data-dir={tmp_path}/p',
         '--dump-dom', (out / 'report.html').as_uri()],
        capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip
    assert re.search(r'<output id="moment">[\d.]+ s, chunk \d+</output>', page)
    shown = page.split('id="chunk"')[1].split('</section>')[0]
    assert shown.count('<figcaption>') == ROBOT.dof
    assert len(re.findall(r'<path class="chunks" d="M[\dML., -]+"', shown)) == ROBOT.dof
    assert len(re.findall(r'<path class="state" d="M[\dML., -]+"', shown)) == ROBOT.dof
    assert len(re.findall(r'<polyline class="now" points="[\d., -]+"', shown)) == ROBOT.dof
