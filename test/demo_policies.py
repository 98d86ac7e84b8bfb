# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Scripted policies for runs of the whole graph, loaded by name: ``demo_policies:sway``."""

import numpy as np

from pi0_ros.robot import RobotSpec


class Sway:
    """Chunks of one second that swing every arm joint slowly about where it is."""

    def __init__(self, parameters):
        self.robot = RobotSpec.load(parameters.get('robot') or 'aloha')
        self.calls = 0

    def predict(self, observation, noise=None):
        self.calls += 1
        steps = np.arange(1, 51) / self.robot.policy_rate
        chunk = np.repeat(np.asarray(observation.state, dtype=np.float32)[None], 50, axis=0)
        arm = [i for i in range(self.robot.dof) if i not in self.robot.gripper_indices]
        sign = 1.0 if self.calls % 2 else -1.0
        chunk[:, arm] += sign * 0.05 * np.sin(np.pi * steps)[:, None]
        return chunk.astype(np.float32)


def sway(parameters):
    return Sway(parameters)
