# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Start RViz with robot, cameras and predicted paths beside a running system."""

from launch import LaunchDescription
from launch.actions import OpaqueFunction
from launch.substitutions import LaunchConfiguration

from pi0_ros.bringup import RVIZ_ARGUMENTS, rviz_graph
from pi0_ros.nodes.launching import declare, process_action


def start(context):
    """Return the actions for the arguments given."""
    values = {a.name: LaunchConfiguration(a.name).perform(context) for a in RVIZ_ARGUMENTS}
    return [process_action(process) for process in rviz_graph(values)]


def generate_launch_description():
    """Declare every argument and defer the graph until they are known."""
    return LaunchDescription([*declare(RVIZ_ARGUMENTS), OpaqueFunction(function=start)])
