# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""The network between policy and filter is really cut, in namespaces of the kernel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pi0_ros.demo import free_domain

SCRIPT = Path(__file__).with_name('network_cut.py')


def namespaces_are_permitted() -> bool:
    if not all(shutil.which(tool) for tool in ('unshare', 'nsenter', 'ip')):
        return False
    cable = 'ip link add here type veth peer name there'
    command = ['unshare', '-Urn', 'sh', '-c', cable]
    return subprocess.run(command, capture_output=True, timeout=10).returncode == 0


@pytest.mark.skipif(
    not namespaces_are_permitted(),
    reason='no user and network namespaces here (unshare -Urn, ip, veth)',
)
def test_a_cable_that_is_pulled_mid_motion_leaves_the_arm_at_rest():
    """Field report B64: with the sender alive at the other end, and its messages lost."""
    env = dict(os.environ, ROS_DOMAIN_ID=str(free_domain()))
    env.pop('_ROS_WHEELS_BOOTSTRAP_COMPLETE', None)
    result = subprocess.run(
        ['unshare', '-Urn', sys.executable, str(SCRIPT)],
        cwd=SCRIPT.parents[2], env=env, text=True, capture_output=True, timeout=120,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.strip().endswith('cut')
