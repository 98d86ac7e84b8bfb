# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
A policy on another computer, whose cable is pulled in the middle of a motion, and put back.

Started by ``test_safety_filter_network.py`` in a network namespace of its own (``unshare -Urn``);
the sender gets a second one, and a pair of virtual Ethernet interfaces is the cable. Prints 'cut'
when everything was as it must be.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from safety_lab import PERIOD, assert_inside_every_limit, lab, wait_for


def run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=10)


def start_remote(*command: str) -> tuple[subprocess.Popen, list[str]]:
    """Return a process behind the cable, and the prefix of commands that run beside it."""
    run('ip', 'link', 'set', 'lo', 'up')
    run('ip', 'link', 'add', 'here', 'type', 'veth', 'peer', 'name', 'there')
    process = subprocess.Popen(
        ['unshare', '-n', 'sh', '-c', 'read go; exec "$@"', 'sh', *command],
        stdin=subprocess.PIPE, text=True,
    )  # fmt: skip
    own, theirs = '/proc/self/ns/net', f'/proc/{process.pid}/ns/net'
    wait_for(lambda: os.readlink(theirs) != os.readlink(own), 10.0, 'a namespace')
    run('ip', 'link', 'set', 'there', 'netns', str(process.pid))
    inside = ['nsenter', '-t', str(process.pid), '-n']
    run('ip', 'addr', 'add', '10.99.0.1/24', 'dev', 'here')
    run('ip', 'link', 'set', 'here', 'up')
    run(*inside, 'ip', 'link', 'set', 'lo', 'up')
    run(*inside, 'ip', 'addr', 'add', '10.99.0.2/24', 'dev', 'there')
    run(*inside, 'ip', 'link', 'set', 'there', 'up')
    process.stdin.write('\n')
    process.stdin.flush()
    return process, inside


def speed(room) -> float:
    """Return that of the last five commands [rad/s]."""
    last = room.commands()[-5:]
    return float(np.abs(last[-1] - last[0]).max() / (4 * PERIOD)) if len(last) == 5 else 0.0


def main() -> None:
    os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'SUBNET'
    os.environ.pop('ROS_LOCALHOST_ONLY', None)
    domain = int(os.environ['ROS_DOMAIN_ID'])
    sender, inside = start_remote(
        sys.executable, str(Path(__file__).with_name('setpoint_sender.py')),
        '--amplitude', '0.8', '--frequency', '0.25',
    )  # fmt: skip
    try:
        with lab(domain) as room:
            room.start_filter()
            room.wait_for_state('ready', timeout=30.0)
            wait_for(lambda: room.enable().success, 10.0, 'enable')
            room.wait_for_state('active', timeout=20.0)
            wait_for(lambda: speed(room) > 0.2, 20.0, 'motion')

            run(*inside, 'ip', 'link', 'set', 'there', 'down')
            there = room.commands()[-1]
            room.wait_for_rest()
            held = room.commands()[-1]
            assert np.abs(held - there).max() < 0.5  # neither went on nor back
            assert 'no setpoint' in room.wait_for_state('holding').message
            assert_inside_every_limit(room.commands())

            run(*inside, 'ip', 'link', 'set', 'there', 'up')
            room.wait_for_state('active', timeout=30.0)  # through the start gate
            count = len(room.received)
            wait_for(lambda: len(room.received) > count + 100, 10.0, 'two seconds more')
            assert_inside_every_limit(room.commands())
        print('cut')
    finally:
        sender.kill()
        sender.wait(10.0)


if __name__ == '__main__':
    main()
