# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Play a bag in simulated time and look at what the policy would do; moves no arm."""

from launch import LaunchDescription
from launch.actions import OpaqueFunction
from launch.substitutions import LaunchConfiguration

from pi0_ros.bringup import REPLAY_ARGUMENTS, replay_graph
from pi0_ros.nodes.launching import declare, process_action


def start(context):
    """Return the actions for the arguments given."""
    values = {a.name: LaunchConfiguration(a.name).perform(context) for a in REPLAY_ARGUMENTS}
    return [process_action(process) for process in replay_graph(values)]


def generate_launch_description():
    """Declare every argument and defer the graph until they are known."""
    return LaunchDescription([*declare(REPLAY_ARGUMENTS), OpaqueFunction(function=start)])
