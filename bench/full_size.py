# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
The published size (3.24 B parameters) built, saved, loaded and run once, with the peak memory.

    python bench/full_size.py        # bfloat16 on the CPU: 6.5 GB of disk and memory

Each step is a process of its own, so that its peak is its own. No part of the tests.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GIB = 2**30


def peak() -> int:
    """Return the largest resident memory of this process so far, bytes."""
    # Not ru_maxrss: that begins with what the parent had when it forked, and cannot be reset.
    status = Path('/proc/self/status').read_text()
    return 1024 * int(re.search(r'VmHWM:\s+(\d+)', status)[1])


def reset_peak() -> None:
    """Let the peak begin again at what is resident now (Linux, proc(5): clear_refs 5)."""
    Path('/proc/self/clear_refs').write_text('5')


def build(path: Path, size: str, dtype: str) -> dict:
    """Make random weights and save them in the documented layout."""
    from pi0_ros.policy import Pi0Config, Pi0Model

    start = time.perf_counter()
    model = Pi0Model.random(Pi0Config.named(size), 0, 'cpu', dtype)
    built = time.perf_counter()
    model.save(path, dtype)
    return {
        'parameters': sum(p.numel() for p in model.parameters()),
        'build_s': built - start,
        'save_s': time.perf_counter() - built,
        'file_gib': path.stat().st_size / GIB,
        'peak_gib': peak() / GIB,
    }


def load(path: Path, size: str, dtype: str) -> dict:
    """Load the weights, then sample once with three cameras and again with two."""
    import torch
    from inference import make_inputs

    from pi0_ros.policy import Pi0Config, Pi0Model

    torch.zeros(1)
    reset_peak()
    before = peak()
    start = time.perf_counter()
    model = Pi0Model.load(path, Pi0Config.named(size), 'cpu', dtype)
    result = {'load_s': time.perf_counter() - start}
    held = sum(p.numel() * p.element_size() for p in model.parameters())
    result['weights_gib'] = held / GIB
    result['load_peak_over_weights'] = (peak() - before) / held
    for cameras in (3, 2):
        start = time.perf_counter()
        actions = model.sample_actions(**make_inputs(model.config, cameras, 12, 'cpu'))
        result[f'first_call_{cameras}_cameras_s'] = time.perf_counter() - start
        result['shape'] = list(actions.shape)
        result['finite'] = bool(torch.isfinite(actions).all())
    result['peak_gib'] = peak() / GIB
    return result


def main() -> int:
    """Run both steps and print what they measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument('--size', default='full', choices=('tiny', 'small', 'full'))
    parser.add_argument('--dtype', default='bfloat16', choices=('float32', 'bfloat16'))
    parser.add_argument('--folder', type=Path, help='where to keep the file (default: nowhere)')
    parser.add_argument('--step', choices=('build', 'load'), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.step:
        step = {'build': build, 'load': load}[args.step]
        print(json.dumps(step(args.folder / 'model.safetensors', args.size, args.dtype)))
        return 0
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for step in ('build', 'load'):
            command = [sys.executable, __file__, '--step', step, '--folder', folder]
            command += ['--size', args.size, '--dtype', args.dtype]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            print(f'{step}:')
            for name, value in json.loads(done.stdout.splitlines()[-1]).items():
                print(f'  {name:24} {value:.3f}' if isinstance(value, float) else
                      f'  {name:24} {value}')  # fmt: skip
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
