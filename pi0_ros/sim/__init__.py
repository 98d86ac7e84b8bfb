# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""The simulated ALOHA: MuJoCo behind the units and names of a :class:`RobotSpec`; no ROS."""

from pi0_ros.sim.aloha_sim import (
    CONTROL_PERIOD,
    TABLE_FOVY_DEG,
    AlohaSim,
    JointReading,
    SimError,
    top_fovy_of,
)

__all__ = [
    'CONTROL_PERIOD', 'TABLE_FOVY_DEG', 'AlohaSim', 'JointReading', 'SimError', 'top_fovy_of',
]  # fmt: skip
