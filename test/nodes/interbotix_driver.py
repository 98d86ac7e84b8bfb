# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Stands in for two Interbotix drivers (xs_sdk): takes their messages and checks them as it does.

A group command must name the group and be as long as it; values must be finite and inside the
motors' limits. What the real one leaves to the motors is checked as well: speed, and that commands
come one a tick. Publishes joint states at 100 Hz, and on ``driver_report`` (std_msgs/String, JSON)
what it saw. Runs where ``interbotix_xs_msgs`` can be imported.
"""

from __future__ import annotations

import json
import time

import numpy as np
import rclpy
from interbotix_xs_msgs.msg import JointGroupCommand, JointSingleCommand
from safety_lab import ALOHA, PERIOD, START
from sensor_msgs.msg import JointState
from std_msgs.msg import String

from pi0_ros.gripper import finger_m_from_joint_rad

NAMES = ['waist', 'shoulder', 'elbow', 'forearm_roll', 'wrist_angle', 'wrist_rotate', 'gripper',
         'left_finger', 'right_finger']  # fmt: skip


class Driver:
    """One arm."""

    def __init__(self, node, arm):
        self.arm = arm
        self.position = START[list(arm.indices)].copy()
        self.commands = {'arm': 0, 'gripper': 0}
        self.faults: list[str] = []
        self.intervals: list[float] = []
        self._last = {'arm': None, 'gripper': None}
        space = arm.output.namespace
        node.create_subscription(
            JointGroupCommand, f'{space}/commands/joint_group', self.on_group, 10
        )
        node.create_subscription(
            JointSingleCommand, f'{space}/commands/joint_single', self.on_single, 10
        )
        self._states = node.create_publisher(JointState, arm.joint_states, 10)

    def on_group(self, message) -> None:
        if message.name != 'arm' or len(message.cmd) != 6:
            self.faults.append(f'group {message.name!r} of {len(message.cmd)} values')
            return
        self._take('arm', range(6), message.cmd)

    def on_single(self, message) -> None:
        if message.name != 'gripper':
            self.faults.append(f'single {message.name!r}')
            return
        self._take('gripper', [6], [message.cmd])

    def _take(self, what, places, values) -> None:
        self.commands[what] += 1
        now = time.monotonic()
        elapsed = PERIOD if self._last[what] is None else now - self._last[what]
        self._last[what] = now
        if what == 'arm':
            self.intervals.append(elapsed)
        for place, value in zip(places, values):
            joint = self.arm.joints[place]
            if not np.isfinite(value) or not joint.lower <= value <= joint.upper:
                self.faults.append(f'{joint.name} to {value}')
            step = abs(value - self.position[place])
            # a driver that was late gets the newest command only: as far as there was time for
            if step > joint.velocity * (PERIOD + elapsed) * 1.001 + 1e-6:
                self.faults.append(f'{joint.name} steps {step}')
            self.position[place] = value

    def publish(self) -> None:
        finger = float(
            finger_m_from_joint_rad(self.position[6], self.arm.gripper.calibration)
        )
        self._states.publish(
            JointState(name=NAMES, position=[*self.position, finger, -finger])
        )


def main() -> None:
    rclpy.init()
    node = rclpy.create_node('interbotix_drivers')
    drivers = [Driver(node, arm) for arm in ALOHA.arms]
    reports = node.create_publisher(String, 'driver_report', 10)

    def report():
        data = {
            d.arm.name: {
                'commands': d.commands, 'faults': d.faults[:5], 'position': d.position.tolist(),
                'interval': float(np.median(d.intervals)) if d.intervals else None,
            }
            for d in drivers
        }  # fmt: skip
        reports.publish(String(data=json.dumps(data)))

    node.create_timer(0.01, lambda: [d.publish() for d in drivers])
    node.create_timer(0.1, report)
    rclpy.spin(node)


if __name__ == '__main__':
    main()
