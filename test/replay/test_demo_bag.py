# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""What the demo recorded of its own run is what replay predicts again, bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from bags import StillPolicy

from pi0_ros.replay import replay

BOUND_S = 240.0
"""For the demo, which takes 15 s on a quiet machine; a busy one is slower, not wrong."""

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope='module')
def demo_bag(tmp_path_factory):
    pytest.importorskip('rclpy')
    pytest.importorskip('gym_aloha')
    out = tmp_path_factory.mktemp('demo')
    here = Path(__file__).parent
    environment = {
        **os.environ, 'MUJOCO_GL': os.environ.get('MUJOCO_GL', 'egl'),
        'PYTHONPATH': os.pathsep.join([str(here), str(here.parents[1])]),
    }  # fmt: skip
    environment.pop('_ROS_WHEELS_BOOTSTRAP_COMPLETE', None)
    command = [
        sys.executable, '-m', 'pi0_ros.cli', 'demo', '--seconds', '2', '--no-pictures',
        '--policy', 'test_command:still', '--out', str(out / 'run'),
    ]  # fmt: skip
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=BOUND_S
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return out / 'run' / 'bag'


def test_published_chunks_of_a_live_run_are_repeated_bit_for_bit(demo_bag):
    result = replay(demo_bag, StillPolicy(), 'aloha', at='published')
    published = result.summary['published']
    assert published['equal'] >= 3
    assert published['different'] == published['guided'] == 0
    assert published['not repeatable'] < published['equal']  # pictures that the recorder lost
    assert result.summary['prompts'] == ['transfer the cube to the left arm']
    assert result.summary['motion']['setpoints'] > 50


def test_the_same_run_by_stride(demo_bag):
    first = replay(demo_bag, StillPolicy(), 'aloha')
    again = replay(demo_bag, StillPolicy(), 'aloha')
    assert first.summary['digest'] == again.summary['digest']
    assert first.summary['chunks'] >= 5
