# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""The rules of the house: who may import whom, what a light process may weigh."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / 'pi0_ros'
ROS_PACKAGES = {
    'rclpy', 'builtin_interfaces', 'diagnostic_msgs', 'geometry_msgs', 'interbotix_xs_msgs',
    'lifecycle_msgs', 'nav_msgs', 'rcl_interfaces', 'rosgraph_msgs', 'sensor_msgs', 'std_msgs',
    'std_srvs', 'trajectory_msgs', 'visualization_msgs',
}  # fmt: skip
MODEL_PACKAGES = {'torch', 'transformers', 'safetensors', 'tokenizers', 'sentencepiece'}


def imports(path: Path) -> set[str]:
    """Return every module that a file imports, at its top or inside of a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f'{node.module}.{alias.name}' for alias in node.names}
    return found


def sources(*parts: str) -> list[Path]:
    files = []
    for part in parts:
        path = PACKAGE / part
        files += sorted(path.rglob('*.py')) if path.is_dir() else [path]
    assert files
    return files


def test_only_nodes_and_messages_import_ros():
    allowed = {PACKAGE / 'messages.py', *sources('nodes')}
    for path in sorted(set(PACKAGE.rglob('*.py')) - allowed):
        ros = {name for name in imports(path) if name.split('.')[0] in ROS_PACKAGES}
        assert not ros, f'{path.relative_to(ROOT)} imports {sorted(ros)}'


def test_safety_imports_no_model_and_no_upper_layer():
    forbidden = ('pi0_ros.policy', 'pi0_ros.control', 'pi0_ros.observation', 'pi0_ros.replay')
    for path in sources('safety', 'robot.py', 'gripper.py', 'kinematics.py'):
        names = imports(path)
        assert not {n for n in names if n.split('.')[0] in MODEL_PACKAGES}, path
        assert not {n for n in names if n.startswith(forbidden)}, path


def test_policy_knows_no_topics_clocks_or_upper_layers():
    forbidden = ('pi0_ros.control', 'pi0_ros.safety', 'pi0_ros.replay', 'pi0_ros.nodes',
                 'pi0_ros.messages', 'pi0_ros.sim', 'pi0_ros.bringup')  # fmt: skip
    for path in sources('policy', 'observation'):
        assert not {n for n in imports(path) if n.startswith(forbidden)}, path


def test_control_imports_neither_nodes_nor_safety():
    forbidden = ('pi0_ros.nodes', 'pi0_ros.messages', 'pi0_ros.safety', 'pi0_ros.replay')
    for path in sources('control'):
        assert not {n for n in imports(path) if n.startswith(forbidden)}, path


def test_nothing_unpickles():
    for path in PACKAGE.rglob('*.py'):
        names = imports(path)
        assert not {'pickle', 'dill', 'joblib', 'cloudpickle'} & names, path
        assert 'torch.load(' not in path.read_text(encoding='utf-8'), path


def test_the_packages_import_without_a_circle():
    """Each module must import alone, in a fresh interpreter where order cannot hide a circle."""
    modules = [
        '.'.join(path.relative_to(ROOT).with_suffix('').parts).removesuffix('.__init__')
        for path in sources('robot.py', 'safety', 'observation', 'control', 'kinematics.py',
                            'bringup.py', 'cli.py')
    ]  # fmt: skip
    for module in modules:
        result = subprocess.run(
            [sys.executable, '-c', f'import {module}'], cwd=ROOT, capture_output=True, text=True
        )
        assert result.returncode == 0, f'{module}: {result.stderr[-400:]}'


@pytest.mark.parametrize('module', ['pi0_ros.safety', 'pi0_ros.robot', 'pi0_ros.observation'])
def test_light_modules_load_no_torch(module):
    code = f"import sys, {module}; assert not {{'torch', 'rclpy'}} & set(sys.modules)"
    subprocess.run([sys.executable, '-c', code], cwd=ROOT, check=True)


def test_the_safety_process_fits_its_memory():
    """The filter with collision model and ROS stays below 150 MB of resident memory."""
    code = (
        'import pi0_ros.nodes.safety_filter;'
        'from pi0_ros.robot import RobotSpec; from pi0_ros.safety.collision import CollisionModel;'
        "robot = RobotSpec.load('aloha'); text = robot.urdf_path.read_text();"
        'model = CollisionModel(text, robot, robot.urdf);'
        "print([l for l in open('/proc/self/status') if l.startswith('VmRSS')][0].split()[1])"
    )
    out = subprocess.run(
        [sys.executable, '-c', code], cwd=ROOT, check=True, capture_output=True, text=True,
        env={**os.environ, 'OMP_NUM_THREADS': '1'},
    )  # fmt: skip
    assert int(out.stdout) < 150 * 1024


def test_package_manifest_lists_every_ros_package_imported():
    manifest = (ROOT / 'package.xml').read_text(encoding='utf-8')
    used = {name.split('.')[0] for path in PACKAGE.rglob('*.py') for name in imports(path)}
    for package in (used & ROS_PACKAGES) - {'interbotix_xs_msgs'}:
        assert f'<exec_depend>{package}</exec_depend>' in manifest, package


def test_every_page_of_the_docs_is_linked_from_the_readme_and_every_link_leads_somewhere():
    readme = (ROOT / 'README.md').read_text(encoding='utf-8')
    pages = {path.name for path in (ROOT / 'docs').glob('*.md')}
    assert pages <= set(re.findall(r'\(docs/(\w+\.md)\)', readme))
    for path in [ROOT / 'README.md', *(ROOT / 'docs').glob('*.md')]:
        for link in re.findall(r'\]\(([^)#:]+)(?:#[^)]*)?\)', path.read_text(encoding='utf-8')):
            assert (path.parent / link).exists(), f'{path.name}: {link}'
