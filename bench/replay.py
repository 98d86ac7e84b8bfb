# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Throughput and memory of replay without the model.

    python bench/replay.py [--seconds 30] [--json FILE]

Writes a bag (three 640x480 rgb8 cameras at 30 Hz, joints of two arms at 100 Hz), replays it with a
policy that returns its state at once, and prints bag seconds per second of wall time and of the
processor's time (which other programs do not change), and the growth of memory between a third of
the bag and its end.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore

from pi0_ros.replay import replay
from pi0_ros.robot import RobotSpec

STORE = get_typestore(Stores.ROS2_JAZZY)
START = 10**18


def write(path: Path, robot: RobotSpec, seconds: float, storage: StoragePlugin) -> int:
    """Write the bag; return its size [bytes]."""
    types = STORE.types
    image_type, joint_type = 'sensor_msgs/msg/Image', 'sensor_msgs/msg/JointState'
    rng = np.random.default_rng(0)
    frames = [rng.integers(0, 256, 640 * 480 * 3, dtype=np.uint8) for _ in range(6)]
    none = np.zeros(0)

    def header(ns):
        stamp = types['builtin_interfaces/msg/Time'](sec=ns // 10**9, nanosec=ns % 10**9)
        return types['std_msgs/msg/Header'](stamp=stamp, frame_id='')

    events = [
        (START + k * 10_000_000, arm) for k in range(int(seconds * 100)) for arm in robot.arms
    ]
    events += [
        (START + round(k / 30 * 1e9) + i * 1_000_000, camera)
        for k in range(int(seconds * 30)) for i, camera in enumerate(robot.cameras.values())
    ]  # fmt: skip
    with Writer(path, version=9, storage_plugin=storage) as writer:
        arms = {
            a.name: writer.add_connection(a.joint_states, joint_type, typestore=STORE)
            for a in robot.arms
        }
        cameras = {
            c.name: writer.add_connection(c.topic, image_type, typestore=STORE)
            for c in robot.cameras.values()
        }
        for k, (ns, source) in enumerate(sorted(events, key=lambda event: event[0])):
            if source.name in arms:
                names = [joint.name[len(source.prefix) :] for joint in source.joints]
                message = types[joint_type](
                    header=header(ns), name=names, position=np.full(7, 0.3), velocity=none,
                    effort=none,
                )  # fmt: skip
                connection, kind = arms[source.name], joint_type
            else:
                message = types[image_type](
                    header=header(ns), height=480, width=640, encoding='rgb8', is_bigendian=0,
                    step=1920, data=frames[k % 6],
                )  # fmt: skip
                connection, kind = cameras[source.name], image_type
            writer.write(connection, ns, STORE.serialize_cdr(message, kind))
    return sum(file.stat().st_size for file in path.iterdir())


class Instant:
    """Returns the state 50 times."""

    def predict(self, observation, noise=None):
        return np.repeat(observation.state[None], 50, axis=0)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument('--seconds', type=float, default=30.0)
    parser.add_argument('--json')
    args = parser.parse_args()
    robot, rows = RobotSpec.load('aloha'), {}
    print(
        f'{"storage":10} {"MB":>6} {"s":>6} {"x real time":>12} {"x processor":>12} '
        f'{"chunks":>7} {"growth MB":>10}'
    )
    for storage in (StoragePlugin.MCAP, StoragePlugin.SQLITE3):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / 'bag'
            size = write(path, robot, args.seconds, storage)
            seen = []

            def progress(share, text, seen=seen):
                seen.append((share, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))

            began, used = time.perf_counter(), time.process_time()
            result = replay(path, Instant(), robot, prompt='x', progress=progress)
            took, used = time.perf_counter() - began, time.process_time() - used
            third = next((m for share, m in seen if share > 1 / 3), seen[-1][1])
            row = rows[storage.value if hasattr(storage, 'value') else str(storage)] = {
                'mb': size / 1e6, 'seconds': took, 'times_real_time': args.seconds / took,
                'times_processor': args.seconds / used,
                'chunks': result.summary['chunks'], 'growth_mb': (seen[-1][1] - third) / 1e3,
            }  # fmt: skip
            print(
                f'{storage.name:10} {row["mb"]:6.0f} {took:6.2f} {row["times_real_time"]:12.1f} '
                f'{row["times_processor"]:12.1f} {row["chunks"]:7d} {row["growth_mb"]:10.1f}'
            )
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1), encoding='utf-8')


if __name__ == '__main__':
    main()
