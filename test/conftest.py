# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Fixtures of every test: a ROS domain of the run's own, the optional reference data."""

import os
from pathlib import Path

import pytest

from pi0_ros.demo import free_domain

# Before anything imports rclpy: two runs on one machine must not hear each other.
os.environ.setdefault('ROS_DOMAIN_ID', str(free_domain()))
os.environ.setdefault('ROS_AUTOMATIC_DISCOVERY_RANGE', 'LOCALHOST')
if os.environ.get('ROS_DISTRO') == 'humble':  # knows only the older variable
    os.environ.setdefault('ROS_LOCALHOST_ONLY', '1')
os.environ.setdefault('MUJOCO_GL', 'egl')
os.environ.setdefault('OMP_NUM_THREADS', '1')

DATA = Path(__file__).parent / 'data'


@pytest.fixture(scope='session')
def data_dir() -> Path:
    """Return the folder of small reference files kept in the repository."""
    return DATA


@pytest.fixture(scope='session')
def shared_dir() -> Path:
    """Return the folder of reference data and real files, which a user's clone does not have."""
    given = os.environ.get('PI0_ROS_REFERENCE_DATA')
    folder = Path(given) if given else Path(__file__).resolve().parents[2] / 'shared'
    if not folder.is_dir():
        pytest.skip('reference data not present (PI0_ROS_REFERENCE_DATA says where they are)')
    return folder


@pytest.fixture()
def ros_domain(monkeypatch) -> int:
    """Give the test's processes a ROS domain of their own."""
    domain = free_domain()
    monkeypatch.setenv('ROS_DOMAIN_ID', str(domain))
    return domain
