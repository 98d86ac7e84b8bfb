# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
The node graph as data, shared by the launch files and by the demo's supervisor.

Imports neither ROS nor launch: a launch file turns each :class:`Process` into an action, the
supervisor into a command line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from pi0_ros.errors import Pi0RosError
from pi0_ros.resources import share_path
from pi0_ros.robot import RobotSpec
from pi0_ros.sim import top_fovy_of


@dataclass(frozen=True)
class Process:
    """
    One process of the graph.

    ``executable`` is what ``ros2 run <package>`` starts. ``required``: its death ends the run (a
    dead policy does not: the filter brings the arm to rest and goes on guarding it).
    """

    name: str
    executable: str
    parameters: Mapping[str, object] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    package: str = 'pi0_ros'
    required: bool = True
    is_node: bool = True

    def command(self, namespace: str = '') -> list[str]:
        """Return the command line that starts it with this Python, outside of launch."""
        if self.package != 'pi0_ros':
            return [self.executable, *self.arguments]
        if not self.is_node:
            return [sys.executable, '-m', 'pi0_ros.cli', self.executable, *self.arguments]
        command = [sys.executable, '-m', f'pi0_ros.nodes.{self.executable}', *self.arguments]
        command += ['--ros-args', '-r', f'__node:={self.name}']
        if namespace:
            command += ['-r', f'__ns:=/{namespace.strip("/")}']
        for key, value in self.parameters.items():
            # rcl reads the value as YAML, of which JSON is a part
            command += ['-p', f'{key}:={json.dumps(value)}']
        return command


@dataclass(frozen=True)
class Argument:
    """One argument of a launch file."""

    name: str
    default: str | None
    description: str
    choices: tuple[str, ...] = ()


BOOLEAN = ('true', 'false')

ARGUMENTS = (
    Argument('checkpoint', '', 'directory or hub id of the checkpoint'),
    Argument('prompt', '', 'instruction for the policy, such as "pick up the cube"'),
    Argument('robot', 'aloha', 'robot by name (config/robots) or path of its YAML file'),
    Argument('device', 'auto', 'torch device of the model: auto, cuda, cuda:1 or cpu'),
    Argument('dtype', 'bfloat16', 'precision of the weights', ('bfloat16', 'float32')),
    Argument('action_space', '', 'absolute or delta, for checkpoints that do not say'),
    Argument('aloha', '', 'openpi, lerobot_old or off, for checkpoints that do not say'),
    Argument('policy', '', "another policy than pi0, as 'package.module:factory'"),
    Argument('sim', 'false', 'start a simulated ALOHA instead of a real one', BOOLEAN),
    Argument('rviz', 'false', 'start RViz with robot, cameras and predicted paths', BOOLEAN),
    Argument('record', 'false', 'write a bag with everything that replay needs', BOOLEAN),
    Argument('record_path', '', 'folder of that bag; empty: pi0_<date> in the working directory'),
    Argument('use_sim_time', '', 'follow /clock; empty: true exactly when sim is', ('', *BOOLEAN)),
    Argument('auto_enable', 'false', 'enable the arm without being asked to', BOOLEAN),
    Argument('namespace', '', 'namespace of every node and of every relative topic'),
)  # fmt: skip
"""Arguments of ``aloha.launch.py``, in the order in which ``--show-args`` lists them."""


@dataclass(frozen=True)
class Settings:
    """Values of :data:`ARGUMENTS`, typed; ``extra`` adds parameters to a process by its name."""

    checkpoint: str = ''
    prompt: str = ''
    robot: str = 'aloha'
    device: str = 'cpu'
    dtype: str = 'float32'
    action_space: str = ''
    aloha: str = ''
    policy: str = ''
    sim: bool = False
    rviz: bool = False
    record: bool = False
    record_path: str = ''
    use_sim_time: bool | None = None
    auto_enable: bool = False
    namespace: str = ''
    markers: bool = True
    extra: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    @classmethod
    def from_text(cls, values: Mapping[str, str]) -> Settings:
        """
        Build settings from the texts of launch arguments.

        :raises Pi0RosError: for an unknown argument or a value that is not among its choices.
        """
        known = {argument.name: argument for argument in ARGUMENTS}
        kinds = {f.name: f.type for f in fields(cls)}
        typed = {}
        for name, text in values.items():
            if name not in known:
                raise Pi0RosError(f"unknown argument '{name}'; expected {', '.join(known)}")
            choices = known[name].choices
            if choices and text not in choices:
                listed = ', '.join(map(repr, choices))
                raise Pi0RosError(f'{name}:={text!r} is not one of {listed}')
            typed[name] = text if kinds[name] == 'str' else {'': None}.get(text, text == 'true')
        return cls(**typed)


def node_graph(settings: Settings) -> list[Process]:
    """
    Return the processes of a run, in the order in which they start.

    :raises Pi0RosError: when the robot cannot be read, or neither checkpoint nor policy is given.
    """
    robot = RobotSpec.load(settings.robot)
    if not settings.checkpoint and not settings.policy:
        raise Pi0RosError(
            'no checkpoint given; add checkpoint:=<directory or hub id> '
            '(pi0_ros make_checkpoint writes a random one to try things with)'
        )
    simulated = settings.sim if settings.use_sim_time is None else settings.use_sim_time
    common = {'robot': settings.robot, 'use_sim_time': simulated}
    policy = {
        'checkpoint': settings.checkpoint,
        'prompt': settings.prompt,
        'device': settings.device,
        'dtype': settings.dtype,
    }
    for name in ('action_space', 'aloha', 'policy'):
        if getattr(settings, name):
            policy[name] = getattr(settings, name)
    filter_parameters = {'auto_enable': settings.auto_enable}
    if settings.sim:
        filter_parameters['output'] = 'none'  # the simulator takes joint_command itself
    graph = []
    if settings.sim:
        view = {'top_fovy_deg': top_fovy_of(settings.checkpoint) or 0.0}
        graph.append(Process('sim_robot', 'sim_robot', {'robot': settings.robot, **view}))
    graph.append(Process('safety_filter', 'safety_filter', {**common, **filter_parameters}))
    graph.append(Process('policy_node', 'policy_node', {**common, **policy}, required=False))
    if settings.markers:
        graph += marker_processes(robot, common)
    if settings.rviz:
        graph += rviz_processes(robot, simulated)
    if settings.record:
        where = ('--out', settings.record_path) if settings.record_path else ()
        arguments = ('--robot', settings.robot, *where)
        if settings.checkpoint:
            arguments += ('--checkpoint', settings.checkpoint)
        graph.append(
            Process('recorder', 'record', arguments=arguments, required=False, is_node=False)
        )
    names = [process.name for process in graph]
    for name in settings.extra:
        if name not in names:
            listed = ', '.join(names)
            raise Pi0RosError(f"no process '{name}' in this run; expected one of {listed}")
    return [
        Process(**{**vars(p), 'parameters': {**p.parameters, **settings.extra.get(p.name, {})}})
        for p in graph
    ]


def marker_processes(robot: RobotSpec, parameters: Mapping[str, object]) -> list[Process]:
    """Return what draws the predicted paths; nothing for a robot without URDF."""
    if not robot.urdf:
        return []
    return [Process('trajectory_markers', 'trajectory_markers', dict(parameters), required=False)]


def rviz_processes(robot: RobotSpec, simulated: bool) -> list[Process]:
    """Return what RViz needs: the robot's description on a topic, and RViz itself."""
    parameters = {'use_sim_time': simulated}
    processes = []
    if robot.urdf:
        processes.append(
            Process(
                'robot_state_publisher',
                'robot_state_publisher',
                {**parameters, 'robot_description': urdf_text(robot)},
                package='robot_state_publisher',
                required=False,
            )
        )
    config = str(share_path('config/rviz/pi0.rviz'))
    processes.append(
        Process('rviz2', 'rviz2', parameters, ('-d', config), package='rviz2', required=False)
    )
    return processes


RVIZ_ARGUMENTS = (
    Argument('robot', 'aloha', 'robot by name (config/robots) or path of its YAML file'),
    Argument('use_sim_time', 'false', 'follow /clock', BOOLEAN),
)
"""Arguments of ``rviz.launch.py``."""


def rviz_graph(values: Mapping[str, str]) -> list[Process]:
    """Return RViz, the robot's description and the predicted paths."""
    simulated = values['use_sim_time'] == 'true'
    common = {'robot': values['robot'], 'use_sim_time': simulated}
    robot = RobotSpec.load(values['robot'])
    return [*marker_processes(robot, common), *rviz_processes(robot, simulated)]


REPLAY_ARGUMENTS = (
    Argument('bag', None, 'rosbag2 folder to play'),
    Argument('rate', '1.0', 'speed of the playback'),
    Argument('robot', 'aloha', 'robot by name (config/robots) or path of its YAML file'),
    Argument('checkpoint', '', 'run this checkpoint on the bag; empty: show the bag only'),
    Argument('prompt', '', 'instruction for the policy'),
    Argument('device', 'auto', 'torch device of the model: auto, cuda, cuda:1 or cpu'),
    Argument('rviz', 'true', 'start RViz', BOOLEAN),
)
"""Arguments of ``replay.launch.py``."""


def replay_graph(values: Mapping[str, str]) -> list[Process]:
    """
    Return the processes that play a bag in simulated time and show what the policy would do.

    No safety filter runs and no hardware topic is played: nothing can move an arm. For numbers
    instead of pictures use ``pi0_ros replay``, which needs no ROS graph.
    """
    robot = RobotSpec.load(values['robot'])
    common = {'robot': values['robot'], 'use_sim_time': True}
    play = ['bag', 'play', values['bag'], '--clock', '100', '--rate', values['rate']]
    play += ['--qos-profile-overrides-path', str(share_path('config/replay_qos.yaml'))]
    topics = [camera.topic for camera in robot.cameras.values()]
    topics += [topic for topic, _ in robot.joint_state_sources]
    recorded = ['/tf', '/tf_static', '/robot_description', '/joint_command']
    if not values['checkpoint']:
        recorded += ['/action_chunk', '/joint_command_raw']
    play += ['--topics', *topics, *recorded]
    graph = [
        Process('bag_player', 'ros2', arguments=tuple(play), package='ros2cli', is_node=False)
    ]
    if values['checkpoint']:
        parameters = {k: values[k] for k in ('checkpoint', 'prompt', 'device')}
        graph.append(Process('policy_node', 'policy_node', {**common, **parameters}))
    graph += marker_processes(robot, common)
    if values['rviz'] == 'true':
        graph += rviz_processes(robot, simulated=True)
    return graph


def urdf_text(robot: RobotSpec) -> str:
    """
    Return the text of the URDF that a robot's YAML names.

    :raises Pi0RosError: when the robot names none or it cannot be found.
    """
    return robot.urdf_path.read_text(encoding='utf-8')
