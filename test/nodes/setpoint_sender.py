# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Stands in for policy_node: sends setpoints that swing smoothly, in a process that can be killed.

usage: setpoint_sender.py [--amplitude 0.4] [--frequency 0.5] [--offset 0.0] [--name sender]

On SIGUSR1 its network is cut: it leaves its ROS domain in the middle of a motion and goes on
sending in another one.
"""

from __future__ import annotations

import argparse
import os
import signal
import time

import numpy as np
import rclpy
from rclpy.signals import SignalHandlerOptions
from safety_lab import NAMES, START, policy_units
from sensor_msgs.msg import JointState

LEAD_NS = 40_000_000
PERIOD = 0.02


def swing(t: float, amplitude: float, frequency: float) -> np.ndarray:
    """Return the setpoint at a time since the start: every joint but the grippers swings."""
    move = amplitude * (1.0 - np.cos(2.0 * np.pi * frequency * t)) / 2.0
    setpoint = START.copy()
    setpoint[[0, 3, 5, 7, 10, 12]] += move  # joints that hit neither table nor each other
    return setpoint


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument('--amplitude', type=float, default=0.4)
    parser.add_argument('--frequency', type=float, default=0.5)
    parser.add_argument('--offset', type=float, default=0.0)
    parser.add_argument('--name', default='sender')
    arguments = parser.parse_args()
    cut = []
    signal.signal(signal.SIGUSR1, lambda *_: cut.append(True))
    node = open_node(arguments.name, int(os.environ['ROS_DOMAIN_ID']))
    publisher = node.create_publisher(JointState, 'joint_command_raw', 10)
    begin = due = time.monotonic()
    while True:
        if cut:
            cut.clear()
            node.destroy_node()
            rclpy.shutdown()
            node = open_node(arguments.name, int(os.environ['ROS_DOMAIN_ID']) + 1)
            publisher = node.create_publisher(JointState, 'joint_command_raw', 10)
        setpoint = swing(due - begin, arguments.amplitude, arguments.frequency)
        setpoint += arguments.offset
        message = JointState(name=NAMES, position=policy_units(setpoint).tolist())
        stamp = node.get_clock().now().nanoseconds + LEAD_NS
        message.header.stamp.sec, message.header.stamp.nanosec = divmod(stamp, 1_000_000_000)
        publisher.publish(message)
        due += PERIOD
        time.sleep(max(0.0, due - time.monotonic()))


def open_node(name: str, domain: int):
    rclpy.init(domain_id=domain, signal_handler_options=SignalHandlerOptions.NO)
    return rclpy.create_node(name)


if __name__ == '__main__':
    main()
