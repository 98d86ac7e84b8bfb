# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""The node graph as data: who is started with what."""

import json

import pytest

from pi0_ros.bringup import (
    ARGUMENTS,
    REPLAY_ARGUMENTS,
    RVIZ_ARGUMENTS,
    Settings,
    node_graph,
    replay_graph,
    rviz_graph,
)
from pi0_ros.errors import Pi0RosError
from pi0_ros.resources import share_path


def by_name(processes):
    return {process.name: process for process in processes}


def test_filter_starts_before_the_policy_and_only_the_policy_may_die():
    graph = node_graph(Settings(checkpoint='x', sim=True))
    names = [process.name for process in graph]
    assert names.index('safety_filter') < names.index('policy_node')
    processes = by_name(graph)
    assert processes['safety_filter'].required and processes['sim_robot'].required
    assert not processes['policy_node'].required


def test_simulation_implies_simulated_time_and_no_hardware_output():
    processes = by_name(node_graph(Settings(checkpoint='x', sim=True)))
    assert processes['policy_node'].parameters['use_sim_time'] is True
    assert processes['safety_filter'].parameters['output'] == 'none'
    real = by_name(node_graph(Settings(checkpoint='x')))
    assert real['policy_node'].parameters['use_sim_time'] is False
    assert 'output' not in real['safety_filter'].parameters and 'sim_robot' not in real


def test_an_arm_is_never_enabled_unasked():
    assert by_name(node_graph(Settings(checkpoint='x')))['safety_filter'].parameters[
        'auto_enable'
    ] is False


def test_every_launch_argument_has_a_description_and_a_setting():
    typed = Settings.from_text({a.name: a.default for a in ARGUMENTS})
    for argument in (*ARGUMENTS, *REPLAY_ARGUMENTS, *RVIZ_ARGUMENTS):
        assert argument.description
    assert typed.use_sim_time is None and typed.sim is False and typed.robot == 'aloha'


@pytest.mark.parametrize(
    'values, expected',
    [({'sim': 'maybe'}, "sim:='maybe' is not one of"), ({'chekpoint': 'x'}, 'unknown argument')],
)
def test_wrong_arguments_are_refused_by_name(values, expected):
    with pytest.raises(Pi0RosError, match=expected):
        Settings.from_text(values)


def test_a_run_without_checkpoint_or_policy_says_what_to_add():
    with pytest.raises(Pi0RosError, match='checkpoint:=.*make_checkpoint'):
        node_graph(Settings())
    assert node_graph(Settings(policy='package.module:factory'))


def test_extra_parameters_go_to_a_process_that_exists():
    graph = node_graph(Settings(checkpoint='x', extra={'policy_node': {'stitching': 'rtc'}}))
    assert by_name(graph)['policy_node'].parameters['stitching'] == 'rtc'
    with pytest.raises(Pi0RosError, match="no process 'polcy_node'"):
        node_graph(Settings(checkpoint='x', extra={'polcy_node': {}}))


def test_command_lines_quote_what_yaml_would_misread():
    prompt = 'pick up: the "red" cube, 50% #1'
    command = by_name(node_graph(Settings(checkpoint='x', prompt=prompt)))['policy_node'].command()
    given = next(word for word in command if word.startswith('prompt:='))
    assert json.loads(given.removeprefix('prompt:=')) == prompt


def test_replay_and_rviz_start_nothing_that_could_move_an_arm():
    values = {a.name: a.default for a in REPLAY_ARGUMENTS}
    graph = replay_graph({**values, 'bag': 'b', 'checkpoint': 'x'})
    graph += rviz_graph({a.name: a.default for a in RVIZ_ARGUMENTS})
    assert not {'safety_filter', 'sim_robot'} & {process.name for process in graph}
    play = next(process for process in graph if process.name == 'bag_player')
    assert play.command()[:3] == ['ros2', 'bag', 'play']
    assert not [word for word in play.arguments if 'commands' in word]


def test_paths_are_drawn_only_for_a_robot_with_a_urdf(tmp_path):
    arguments = {a.name: a.default or '' for a in REPLAY_ARGUMENTS}
    lines = share_path('config/robots/aloha.yaml').read_text(encoding='utf-8').splitlines()
    bare = tmp_path / 'bare.yaml'
    bare.write_text('\n'.join(line for line in lines if not line.startswith('urdf:')))
    for robot, drawn in (('aloha', True), (str(bare), False)):
        graphs = (
            node_graph(Settings(checkpoint='x', robot=robot)),
            rviz_graph({'robot': robot, 'use_sim_time': 'false'}),
            replay_graph({**arguments, 'bag': 'b', 'robot': robot}),
        )
        for graph in graphs:
            assert ('trajectory_markers' in by_name(graph)) == drawn
