# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""The demo: its supervisor, its independent check of limits, and whole runs that also go wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from pi0_ros.bringup import Process
from pi0_ros.demo import (
    DEFAULT_PROMPT,
    LAST_DOMAIN,
    RANDOM,
    default_checkpoint,
    free_domain,
    prepare_folder,
)
from pi0_ros.demo_report import limit_violations
from pi0_ros.errors import Pi0RosError
from pi0_ros.policy import Pi0Policy
from pi0_ros.robot import RobotSpec
from pi0_ros.supervisor import STOP_BOUNDS_S, ProcessDied, Supervisor

TESTS = Path(__file__).parent
BOUND_S = 60.0


@dataclass(frozen=True)
class Script(Process):
    """A process of a run that is any Python text."""

    code: str = ''

    def command(self, namespace=''):
        return [sys.executable, '-c', self.code]


def wait_for(condition, bound=BOUND_S):
    deadline = time.monotonic() + bound
    while not (value := condition()):
        assert time.monotonic() < deadline, 'the condition was not met in time'
        time.sleep(0.02)  # polling period of a bounded wait
    return value


def gone(pid: int) -> bool:
    try:
        status = Path(f'/proc/{pid}/status').read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return bool(re.search(r'^State:\s+Z', status, re.MULTILINE))


# -- supervisor --------------------------------------------------------------------------------


def test_stop_ends_even_a_process_that_ignores_polite_signals(tmp_path):
    deaf = (
        'import signal, time\n'
        'for n in (signal.SIGINT, signal.SIGTERM): signal.signal(n, signal.SIG_IGN)\n'
        "print('ready', flush=True)\n"
        'time.sleep(600)'
    )
    bounds = tuple((number, 0.2) for number, _ in STOP_BOUNDS_S)
    with Supervisor(tmp_path, os.environ, bounds) as supervisor:
        supervisor.start([Script('deaf', '', code=deaf)])
        child = supervisor.children['deaf']
        wait_for(lambda: 'ready' in child.log_tail())
        supervisor.stop()
        wait_for(lambda: child.popen.poll() is not None)
    assert child.popen.poll() == -signal.SIGKILL


def test_death_of_a_required_process_is_told_with_its_log(tmp_path):
    code = "print('line one'); print('the reason'); raise SystemExit(3)"
    with Supervisor(tmp_path, os.environ) as supervisor:
        supervisor.start([Script('brittle', '', code=code)])
        wait_for(supervisor.dead)
        with pytest.raises(ProcessDied, match='(?s)the reason.*brittle ended with exit code 3'):
            supervisor.check()


def test_death_of_an_optional_process_is_not_the_end(tmp_path):
    with Supervisor(tmp_path, os.environ) as supervisor:
        supervisor.start([Script('extra', '', required=False, code='pass')])
        assert wait_for(supervisor.dead)[0].ended == 'ended with exit code 0'
        supervisor.check()


def test_killed_supervisor_leaves_no_orphan(tmp_path):
    code = (
        'import os, sys, time\n'
        'sys.path.insert(0, sys.argv[1])\n'
        'from pathlib import Path\n'
        'from test_demo import Script\n'
        'from pi0_ros.supervisor import Supervisor\n'
        'supervisor = Supervisor(Path(sys.argv[2]), os.environ)\n'
        "supervisor.start([Script('child', '', code='import time; time.sleep(600)')])\n"
        "print(supervisor.children['child'].popen.pid, flush=True)\n"
        'time.sleep(600)\n'
    )
    parent = subprocess.Popen(
        [sys.executable, '-c', code, str(TESTS), str(tmp_path)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    child = int(parent.stdout.readline())
    assert not gone(child)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_for(lambda: gone(child))


# -- preparation -------------------------------------------------------------------------------


def test_domain_in_use_is_not_chosen():
    taken = free_domain()
    assert 1 <= taken <= LAST_DOMAIN
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as blocker:
        blocker.bind(('127.0.0.1', 7410 + 250 * taken))
        assert taken not in {free_domain() for _ in range(200)}


def test_earlier_results_are_replaced_but_nothing_else(tmp_path):
    (tmp_path / 'bag').mkdir()
    (tmp_path / 'bag' / 'bag.mcap').write_bytes(b'')
    (tmp_path / 'summary.json').write_text('{}')
    (tmp_path / 'mine.txt').write_text('keep')
    prepare_folder(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ['mine.txt']
    (tmp_path / 'bag').mkdir()
    (tmp_path / 'bag' / 'holiday.jpg').write_bytes(b'')
    with pytest.raises(Pi0RosError, match='in the way and is no bag'):
        prepare_folder(tmp_path)


# -- the independent check of limits -----------------------------------------------------------


@pytest.fixture(scope='module')
def robot():
    return RobotSpec.load('aloha')


@pytest.fixture
def motion(robot):
    """Two seconds of slow motion of every joint, inside every limit: times, commands."""
    times = 1.0 + np.arange(100) / robot.control_rate
    start = np.array(robot.poses['start'])
    commands = start + 0.1 * (1.0 - np.cos(2.0 * (times - 1.0)))[:, None]
    return times, commands


def test_motion_inside_limits_has_no_violation(motion, robot):
    assert limit_violations(*motion, robot) == []
    assert limit_violations(np.array([]), np.empty((0, robot.dof)), robot) == []


def test_position_outside_is_found_by_joint_and_time(motion, robot):
    times, commands = motion
    index = robot.joint_names.index('right/elbow')
    lower, upper = robot.joints[index].lower, robot.joints[index].upper
    commands[:, index] = np.linspace(upper - 0.05, upper + 1e-3, len(times))
    found = limit_violations(times, commands, robot)
    assert found
    assert all(sentence.startswith('right/elbow: position') for sentence in found)
    commands[:, index] = lower - 1e-3
    assert len(limit_violations(times, commands, robot)) == len(times)


@pytest.mark.parametrize('kind', ['velocity', 'acceleration', 'jerk'])
def test_each_rate_above_its_limit_is_found(motion, robot, kind):
    times, commands = motion
    index = robot.joint_names.index('left/waist')
    joint, period = robot.joints[index], 1.0 / robot.control_rate
    order = {'velocity': 1, 'acceleration': 2, 'jerk': 3}[kind]
    profile = np.zeros(len(times))
    profile[50] = 1.02 * getattr(joint, kind) * period**order
    for _ in range(order):  # one tick at 1.02 of the limit, integrated
        profile = np.cumsum(profile)
    commands[:, index] = profile % 3.0 if kind == 'velocity' else profile
    found = limit_violations(times[:52], commands[:52], robot)
    assert any(f'left/waist: {kind}' in sentence for sentence in found)


def test_gap_in_time_is_no_motion(motion, robot):
    times, commands = motion
    keep = np.r_[0:40, 70:100]
    assert limit_violations(times[keep], commands[keep], robot) == []


def test_missing_joint_is_found(motion, robot):
    times, commands = motion
    commands[5, 3] = np.nan
    assert any('not finite' in sentence for sentence in limit_violations(times, commands, robot))


# -- whole runs --------------------------------------------------------------------------------


@pytest.fixture
def demo(tmp_path):
    """Start demos as a user would; end what a failed test leaves."""
    started = []

    def start(*arguments, **variables):
        environment = {**os.environ, 'PYTHONPATH': str(TESTS), 'COLUMNS': '200', **variables}
        out = tmp_path / 'demo_out'
        process = subprocess.Popen(
            [sys.executable, '-m', 'pi0_ros.cli', 'demo', '--out', str(out), *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
        )  # fmt: skip
        started.append(process)
        return process, out

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(15.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        process.stdout.close()


def node_pids(process) -> dict[str, int]:
    """Return the pids of a demo's nodes by module name."""
    pids = {}
    for entry in Path('/proc').glob('[0-9]*'):
        try:
            parent = re.search(r'^PPid:\s+(\d+)', (entry / 'status').read_text(), re.MULTILINE)
            command = (entry / 'cmdline').read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        match = re.search(r'pi0_ros\.nodes\.(\w+)', command)
        if match and int(parent.group(1)) == process.pid:
            pids[match.group(1)] = int(entry.name)
    return pids


def wait_until_running(process) -> list[str]:
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith('running') and ' 0 chunks' not in line:
            return lines
    raise AssertionError('the demo ended early:\n' + ''.join(lines))


SWAY = ('--policy', 'demo_policies:sway')


def test_demo_leaves_every_result_and_no_process(demo):
    process, out = demo('--seconds', '6', '--seed', '2', '--checkpoint', 'random')
    wait_until_running(process)
    pids = node_pids(process)
    assert {'sim_robot', 'safety_filter', 'policy_node'} <= set(pids)
    text, _ = process.communicate(timeout=BOUND_S * 2)
    assert process.returncode == 0, text
    assert all(gone(pid) for pid in pids.values())

    summary = json.loads((out / 'summary.json').read_text())
    command = summary['joint_command']
    assert abs(command['count'] - 300) <= 3
    assert command['outside_limits'] == 0, command['examples']
    assert summary['chunks'] >= 5
    assert summary['messages_lost_to_qos_mismatch'] == 0, summary['qos_mismatches']
    assert summary['latency_ms']['p50'] > 0
    assert {'/clock', '/joint_command', '/joint_command_raw', '/action_chunk', '/diagnostics'} <= {
        topic for topic, count in summary['recorded_messages'].items() if count
    }
    from PIL import Image

    with Image.open(out / 'top.gif') as animation:
        assert animation.n_frames >= 55
    with Image.open(out / 'joints.png') as picture:
        assert picture.width > 1000
    from rosbags.highlevel import AnyReader

    with AnyReader([out / 'bag']) as reader:
        assert reader.topics['/joint_command'].msgcount >= 300
        assert {'/cam_high/camera/color/image_rect_raw', '/sim_robot/state'} <= set(reader.topics)
    assert summary['random_weights']
    assert 'random weights: the arms wander' in text
    assert (out / 'checkpoint_tiny_2' / 'model.safetensors').is_file()


def test_the_pocket_pi0_runs_where_it_was_trained_for():
    assert Pi0Policy.from_pretrained(default_checkpoint('transfer_cube', 'aloha')).prompt == (
        DEFAULT_PROMPT['transfer_cube']
    )
    assert default_checkpoint('insertion', 'aloha') == RANDOM
    assert default_checkpoint('transfer_cube', 'my_robot.yaml') == RANDOM


def test_death_of_the_policy_ends_with_the_filters_reason(demo):
    process, _ = demo(*SWAY, '--seconds', '600')
    wait_until_running(process)
    pids = node_pids(process)
    os.kill(pids['policy_node'], signal.SIGKILL)
    text, _ = process.communicate(timeout=BOUND_S)
    assert process.returncode == 1
    last = text.strip().splitlines()[-1]
    assert last.startswith('policy_node was killed by SIGKILL; safety_filter has brought the arm')
    assert 'to rest and says: holding: no setpoint for' in last
    assert all(gone(pid) for pid in pids.values())


@pytest.mark.parametrize('victim', ['safety_filter', 'sim_robot'])
def test_death_of_a_required_node_ends_the_demo(demo, victim):
    process, _ = demo(*SWAY, '--seconds', '600')
    wait_until_running(process)
    pids = node_pids(process)
    os.kill(pids[victim], signal.SIGKILL)
    text, _ = process.communicate(timeout=BOUND_S)
    assert process.returncode == 1
    assert text.strip().splitlines()[-1] == f'{victim} was killed by SIGKILL'
    assert f'{victim}.log' in text
    assert 'Traceback' not in text
    assert all(gone(pid) for pid in pids.values())


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_interrupted_demo_leaves_no_process(demo, number):
    process, _ = demo(*SWAY, '--seconds', '600')
    wait_until_running(process)
    pids = node_pids(process)
    process.send_signal(number)
    text, _ = process.communicate(timeout=BOUND_S)
    assert process.returncode == 130
    assert 'Traceback' not in text
    assert all(gone(pid) for pid in pids.values())


@pytest.mark.parametrize(
    ('arguments', 'sentence'),
    [
        (('--checkpoint', '/nowhere/at/all'), "checkpoint '/nowhere/at/all' does not exist"),
        (('--robot', 'alhoa'), "robot 'alhoa' is not known"),
        (('--seconds', '0'), '--seconds is 0.0; give a number above 0'),
        (('--policy', 'no_such_module:make'), 'no_such_module'),
    ],
)
def test_mistake_ends_with_a_sentence(demo, arguments, sentence):
    process, _ = demo(*arguments)
    text, _ = process.communicate(timeout=BOUND_S)
    assert process.returncode in (1, 2)
    assert sentence in text
    assert 'Traceback' not in text


def test_missing_graphics_library_ends_with_the_command_that_installs_it(demo):
    nowhere = {'__EGL_VENDOR_LIBRARY_FILENAMES': '/nowhere', '__EGL_VENDOR_LIBRARY_DIRS': '/no'}
    process, _ = demo(*SWAY, **nowhere)
    text, _ = process.communicate(timeout=BOUND_S)
    assert process.returncode == 2
    assert 'apt-get install -y libegl1' in text
    assert len(text.strip().splitlines()) == 1
