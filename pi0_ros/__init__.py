# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""pi0 vision-language-action policies on physical arms with ROS 2."""

__version__ = '0.1.0'
