# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Start pi0 on an arm: policy, safety filter, and on demand simulator, RViz and recorder.

Thin on purpose: the node graph and the arguments are data in ``pi0_ros.bringup``.
"""

from launch import LaunchDescription
from launch.actions import OpaqueFunction
from launch.substitutions import LaunchConfiguration

from pi0_ros.bringup import ARGUMENTS, Settings, node_graph
from pi0_ros.nodes.launching import declare, process_action


def start(context):
    """Return the actions for the arguments given."""
    values = {a.name: LaunchConfiguration(a.name).perform(context) for a in ARGUMENTS}
    settings = Settings.from_text(values)
    return [process_action(p, settings.namespace) for p in node_graph(settings)]


def generate_launch_description():
    """Declare every argument and defer the graph until they are known."""
    return LaunchDescription([*declare(ARGUMENTS), OpaqueFunction(function=start)])
