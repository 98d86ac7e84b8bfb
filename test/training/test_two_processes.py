# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Two processes on the CPU train what one process trains; the configurations are accelerate's."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from test_finetune import arguments, base, data, robot, weights, weights_of  # noqa: F401  fixtures

from pi0_ros.resources import share_path
from pi0_ros.training import finetune

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(('127.0.0.1', 0))
        return listener.getsockname()[1]


def two_processes(args):
    """Run the command as accelerate's launcher starts it, once for each rank."""
    command = [
        sys.executable, '-m', 'pi0_ros.cli', 'finetune', '--checkpoint', args.checkpoint, '--data',
        *args.data, '--robot', str(args.robot), '--device', 'cpu', '--out', str(args.out),
        '--batch', str(args.batch), '--steps', str(args.steps), '--warm-up', '1', '--lr', '1e-3',
    ]  # fmt: skip
    port, running = free_port(), []
    for rank in ('0', '1'):
        env = {
            **os.environ, 'RANK': rank, 'LOCAL_RANK': rank, 'WORLD_SIZE': '2',
            'LOCAL_WORLD_SIZE': '2', 'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': str(port),
            'OMP_NUM_THREADS': '1', 'ACCELERATE_USE_CPU': 'true',
        }  # fmt: skip
        env.pop('_ROS_WHEELS_BOOTSTRAP_COMPLETE', None)
        running.append(
            subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True)
        )  # fmt: skip
    try:
        return [(p.communicate(timeout=240)[0], p.returncode) for p in running]
    finally:
        for process in running:
            process.kill()


@pytest.mark.timeout(300)  # two interpreters that load torch; 10 s on two idle cores
def test_two_processes_equal_one(arguments):  # noqa: F811
    alone = arguments(out='alone', batch=4, steps=3)
    finetune.run(alone)
    together = arguments(out='together', batch=2, steps=3)
    results = two_processes(together)
    assert [code for _, code in results] == [0, 0], results[0][0][-2000:] + results[1][0][-2000:]
    assert 'deploy' in results[0][0] and 'deploy' not in results[1][0]  # one of them tells
    one, two = weights(alone.out), weights(together.out)
    start = weights_of(alone.checkpoint)
    moved = max(float((one[n] - start[n]).abs().max()) for n in one)
    assert moved > 1e-4
    for name, value in one.items():
        if name.endswith('k_proj.bias'):  # softmax undoes it: its gradient is rounding alone
            continue
        torch.testing.assert_close(two[name], value, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize('name', ['ddp', 'ddp_cpu', 'fsdp'])
def test_configurations_are_accelerates_own(name):
    from accelerate.commands.config.config_args import load_config_from_file

    config = load_config_from_file(str(share_path(f'config/training/{name}.yaml')))
    assert config.num_processes == 2
