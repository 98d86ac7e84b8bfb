# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Speed of the observation buffer and of image decoding.

    python bench/observation.py [--json FILE]

Three 640x480 cameras at 30 Hz, joints at 100 Hz (two messages); ``latest`` is asked again and
again, as fast as it goes, with the messages of the recording coming in between.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from types import SimpleNamespace

import numpy as np

from pi0_ros.observation import ENCODINGS, ObservationBuffer, decode_image
from pi0_ros.robot import RobotSpec

HEIGHT, WIDTH = 480, 640


def latest_per_second(new_frame_every: int, calls: int = 20_000) -> dict:
    """Return calls a second; a new frame of every camera comes every so many calls."""
    robot = RobotSpec.load('aloha')
    buffer = ObservationBuffer(robot)
    rng = np.random.default_rng(0)
    frames = [rng.integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8) for _ in range(8)]
    names = robot.state_names
    pose = np.full(14, 0.3)
    now, took = 10**18, np.empty(calls)
    for k in range(calls):
        if k % new_frame_every == 0:
            now += 33_333_333
            for step in range(4):
                stamp = now - 30_000_000 + step * 10_000_000
                buffer.add_joints(stamp, names[:7], pose[:7])
                buffer.add_joints(stamp, names[7:], pose[7:])
            for i, camera in enumerate(robot.cameras):
                buffer.add_image(camera, now - i * 3_000_000, frames[(k + i) % 8])
        began = time.perf_counter()
        observation, problems = buffer.latest(now + 1000 + k)
        took[k] = time.perf_counter() - began
        assert observation is not None and not problems
    return {
        'calls_per_s': calls / took.sum(),
        'p50_us': 1e6 * float(np.quantile(took, 0.5)),
        'p99_us': 1e6 * float(np.quantile(took, 0.99)),
    }


def decode_ms(message, repeats: int = 20) -> float:
    """Return the median time of one decoding [ms]."""
    took = []
    for _ in range(repeats):
        began = time.perf_counter()
        decode_image(message)
        took.append(time.perf_counter() - began)
    return 1e3 * float(np.median(took))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument('--json')
    args = parser.parse_args()
    out = {'latest': {}, 'decode_ms': {}}
    print(f'{"latest()":32} {"calls/s":>10} {"p50 us":>8} {"p99 us":>8}')
    for name, every in (('new frames before each call', 1), ('new frames every 10 calls', 10)):
        row = out['latest'][name] = latest_per_second(every)
        print(f'{name:32} {row["calls_per_s"]:10.0f} {row["p50_us"]:8.1f} {row["p99_us"]:8.1f}')
    print(f'\n{"decode 640x480":32} {"ms":>10}')
    rng = np.random.default_rng(0)
    for name, layout in ENCODINGS.items():
        step = WIDTH * layout.samples * np.dtype(layout.dtype).itemsize
        data = rng.integers(0, 256, step * int(HEIGHT * layout.rows), dtype=np.uint8)
        message = SimpleNamespace(
            height=HEIGHT, width=WIDTH, step=step, encoding=name, is_bigendian=0, data=data
        )
        out['decode_ms'][name] = decode_ms(message)
        print(f'{name:32} {out["decode_ms"][name]:10.2f}')
    from PIL import Image

    y, x = np.mgrid[:HEIGHT, :WIDTH]
    smooth = np.stack([x % 256, y % 256, (x + y) % 256], -1).astype(np.uint8)
    for kind in ('JPEG', 'PNG'):
        sink = io.BytesIO()
        Image.fromarray(smooth).save(sink, kind)
        message = SimpleNamespace(format=kind.lower(), data=sink.getvalue())
        out['decode_ms'][kind] = decode_ms(message)
        print(f'{kind:32} {out["decode_ms"][kind]:10.2f}')
    if args.json:
        with open(args.json, 'w', encoding='utf-8') as file:
            json.dump(out, file, indent=1)


if __name__ == '__main__':
    main()
