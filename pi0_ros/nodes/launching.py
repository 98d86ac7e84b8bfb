# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""From ``pi0_ros.bringup``'s data to launch actions; imported by the launch files alone."""

from __future__ import annotations

from launch.actions import DeclareLaunchArgument, ExecuteProcess, Shutdown
from launch_ros.actions import Node


def declare(arguments) -> list[DeclareLaunchArgument]:
    """Return the launch arguments; one without a default must be given."""
    return [
        DeclareLaunchArgument(
            argument.name,
            default_value=argument.default,
            description=argument.description,
            **({'choices': list(argument.choices)} if argument.choices else {}),
        )
        for argument in arguments
    ]


def process_action(process, namespace: str = ''):
    """Return the action that starts one process; the death of a required one ends the launch."""
    # launch cannot take an empty list here
    on_exit = Shutdown(reason=f'{process.name} ended') if process.required else None
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
