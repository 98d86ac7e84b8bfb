# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""From a recorded bag to a verdict, without a ROS graph and without a robot; imports no ROS."""

from pi0_ros.replay.bag import BagError, open_bag
from pi0_ros.replay.replay import ReplayResult, replay

__all__ = ['BagError', 'ReplayResult', 'open_bag', 'replay']
