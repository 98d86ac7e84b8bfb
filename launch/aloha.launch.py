# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Start pi0 on an arm: policy, safety filter, and on demand simulator, RViz and recorder.

Thin on purpose: the node graph and the arguments are data in ``pi0_ros.bringup``.
"""

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, ExecuteProcess, OpaqueFunction, Shutdown
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from pi0_ros.bringup import ARGUMENTS, Settings, node_graph


def action(process, namespace):
    """Return the launch action of one process."""
    on_exit = [Shutdown(reason=f'{process.name} ended')] if process.required else []
    if not process.is_node:
        return ExecuteProcess(
            cmd=process.command(namespace), name=process.name, output='screen', on_exit=on_exit
        )
    return Node(
        package=process.package,
        executable=process.executable,
        name=process.name,
        namespace=namespace,
        parameters=[dict(process.parameters)] if process.parameters else [],
        arguments=list(process.arguments),
        output='screen',
        on_exit=on_exit,
    )


def start(context):
    """Return the actions for the arguments given."""
    values = {a.name: LaunchConfiguration(a.name).perform(context) for a in ARGUMENTS}
    settings = Settings.from_text(values)
    return [action(process, settings.namespace) for process in node_graph(settings)]


def generate_launch_description():
    """Declare every argument and defer the graph until they are known."""
    declared = [
        DeclareLaunchArgument(
            a.name,
            default_value=a.default,
            description=a.description,
            **({'choices': list(a.choices)} if a.choices else {}),
        )
        for a in ARGUMENTS
    ]
    return LaunchDescription([*declared, OpaqueFunction(function=start)])
