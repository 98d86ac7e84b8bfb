# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""The RViz config against what the nodes really publish: topics, types, durability, frame."""

from __future__ import annotations

import pytest
import rclpy
import yaml
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy

from pi0_ros.nodes.trajectory_markers import TrajectoryMarkers
from pi0_ros.resources import share_path
from pi0_ros.robot import RobotSpec

ROBOT = RobotSpec.load('aloha')
TYPES = {
    'rviz_default_plugins/MarkerArray': 'visualization_msgs/msg/MarkerArray',
    'rviz_default_plugins/Path': 'nav_msgs/msg/Path',
    'rviz_default_plugins/Image': 'sensor_msgs/msg/Image',
    'rviz_default_plugins/RobotModel': 'std_msgs/msg/String',
}


def displays(text):
    return yaml.safe_load(text)['Visualization Manager']['Displays']


def topic_of(display):
    return display.get('Topic') or display.get('Description Topic')


@pytest.fixture(scope='module')
def config():
    return share_path('config/rviz/pi0.rviz').read_text()


@pytest.fixture(scope='module')
def published():
    """Return {topic: (type, transient local)} of everything that ends up in RViz."""
    rclpy.init()
    markers = TrajectoryMarkers(parameter_overrides=[Parameter('autostart', value=True)])
    try:
        assert markers.start()
        topics = {
            p.topic.lstrip('/'): (
                f'{p.msg_type.__module__.split(".")[0]}/msg/{p.msg_type.__name__}',
                p.qos_profile.durability == DurabilityPolicy.TRANSIENT_LOCAL,
            )
            for p in markers.publishers
        }
    finally:
        markers.tear_down()
        markers.destroy_node()
        rclpy.shutdown()
    for camera in ROBOT.cameras.values():
        topics[camera.topic.lstrip('/')] = 'sensor_msgs/msg/Image', False
    topics['robot_description'] = 'std_msgs/msg/String', True  # robot_state_publisher
    return topics


def test_every_display_shows_a_topic_of_that_type_with_a_matching_durability(config, published):
    shown = set()
    for display in displays(config):
        topic = topic_of(display)
        if topic is None:
            assert display['Class'].rsplit('/', 1)[1] in ('Grid', 'TF')
            continue
        name = topic['Value'].lstrip('/')
        kind, latched = published[name]
        assert TYPES[display['Class']] == kind, name
        assert (topic['Durability Policy'] == 'Transient Local') <= latched, name
        if kind == 'sensor_msgs/msg/Image':
            assert topic['Reliability Policy'] == 'Best Effort'
        shown.add(name)
    wanted = {'predicted_trajectory', 'robot_description'}
    wanted |= {f'predicted_path/{arm.name}' for arm in ROBOT.arms}
    wanted |= {camera.topic.lstrip('/') for camera in ROBOT.cameras.values()}
    assert shown == wanted


def test_topics_are_relative_so_that_a_namespace_moves_all_of_them(config):
    own = [
        topic_of(d)['Value'] for d in displays(config)
        if topic_of(d) and not d['Class'].endswith('/Image')
    ]  # fmt: skip
    assert own and not any(value.startswith('/') for value in own)


def test_the_fixed_frame_is_the_root_of_the_description(config):
    from pi0_ros.kinematics import ForwardKinematics

    text = share_path('config/urdf/aloha.urdf').read_text()
    options = yaml.safe_load(config)['Visualization Manager']['Global Options']
    assert options['Fixed Frame'] == ForwardKinematics(text, ROBOT).root_frame


def keys(value, path=()):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key)
            yield from keys(inner, (*path, key))


@pytest.mark.parametrize('name', ['nav2_default_view', 'aloha', 'so101_teleop'])
def test_displays_are_written_as_in_configs_of_others(shared_dir, config, name):
    text = (shared_dir / 'real' / 'rviz' / f'{name}.rviz').read_text()
    theirs = {}
    for display in displays(text):
        theirs.setdefault(display['Class'], set()).update(keys(display))
    common = [d for d in displays(config) if d['Class'] in theirs and topic_of(d)]
    assert common
    for display in common:
        blocks = {p for p in keys(display) if p[0] in ('Topic', 'Description Topic')}
        assert blocks <= theirs[display['Class']], display['Name']
