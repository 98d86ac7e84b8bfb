# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Starts the processes of a run, notices deaths, ends them all: what the demo stands on.

Each process gets a process group of its own, so that a Ctrl-C in the terminal reaches the
supervisor alone, which then stops the others in order; and asks the kernel for a signal when the
supervisor dies, so that even ``kill -9`` leaves no orphan. Imports no ROS.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pi0_ros.bringup import Process
from pi0_ros.errors import Pi0RosError

STOP_BOUNDS_S = ((signal.SIGINT, 5.0), (signal.SIGTERM, 2.0), (signal.SIGKILL, 2.0))
"""Signals in turn, and how long each gets: a node ends within 3 s of its first."""

PR_SET_PDEATHSIG = 1  # linux/prctl.h

QUIET_THREADS = {'OMP_NUM_THREADS': '1', 'OMP_WAIT_POLICY': 'passive', 'GOMP_SPINCOUNT': '0'}
"""Two OpenMP threads that spin on two busy cores were measured 15 times slower than one."""


class ProcessDied(Pi0RosError):
    """A process ended that should not have; the text holds the end of its log."""


@dataclass(frozen=True)
class Child:
    """One running process and where its output goes."""

    process: Process
    popen: subprocess.Popen
    log: Path

    @property
    def ended(self) -> str:
        """How it ended, or '' while it runs."""
        code = self.popen.poll()
        if code is None:
            return ''
        if code < 0:
            return f'was killed by {signal.Signals(-code).name}'
        return f'ended with exit code {code}'

    def log_tail(self, lines: int = 12) -> str:
        """Return the last lines of its output."""
        text = self.log.read_text(encoding='utf-8', errors='replace')
        return '\n'.join(text.splitlines()[-lines:])


class Supervisor:
    """
    Owns child processes; a context manager that leaves none behind.

    :param logs: folder for one log file a process.
    :param environment: of every child.
    :param bounds: signals in turn and the seconds that each gets to end the children.
    """

    def __init__(self, logs: Path, environment: Mapping[str, str], bounds=STOP_BOUNDS_S):
        self._logs, self._bounds = logs, bounds
        self._environment = {**environment, 'PYTHONUNBUFFERED': '1'}
        self.children: dict[str, Child] = {}

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_) -> None:
        self.stop()

    def start(self, processes: Sequence[Process]) -> None:
        """
        Start processes in order; call it from the main thread, before other threads exist.

        :raises Pi0RosError: when one cannot be started at all.
        """
        self._logs.mkdir(parents=True, exist_ok=True)
        guard = _death_guard()
        for process in processes:
            log = self._logs / f'{process.name}.log'
            try:
                with log.open('wb') as output:
                    popen = subprocess.Popen(
                        process.command(),
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        env=self._environment,
                        preexec_fn=guard,
                    )
            except OSError as error:
                raise Pi0RosError(f'{process.name} cannot be started: {error}') from None
            self.children[process.name] = Child(process, popen, log)

    def dead(self) -> list[Child]:
        """Return the children that have ended."""
        return [child for child in self.children.values() if child.popen.poll() is not None]

    def check(self) -> None:
        """
        Raise for the first required process that has ended.

        :raises ProcessDied: with the end of its log and its exit status.
        """
        for child in self.dead():
            if child.process.required:
                raise died(child)

    def stop(self) -> None:
        """End every child, politely first; returns when all are gone."""
        for number, bound in self._bounds:
            running = [c for c in self.children.values() if c.popen.poll() is None]
            for child in running:
                try:
                    os.killpg(child.popen.pid, number)
                except ProcessLookupError:
                    pass
            deadline = time.monotonic() + bound
            for child in running:
                try:
                    child.popen.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    pass


def died(child: Child, why: str = '') -> ProcessDied:
    """Return the error for a process that has ended: the end of its log, then the sentence."""
    tail = ''.join(f'    {line}\n' for line in child.log_tail().splitlines())
    log = f'{child.log} ends with:\n{tail}' if tail else f'{child.log} is empty.\n'
    return ProcessDied(f'{log}{child.process.name} {child.ended}{"; " if why else ""}{why}')


def _death_guard():
    """Return what a child does between fork and exec; nothing is imported there."""
    parent = os.getpid()
    prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == 'linux' else None

    def guard() -> None:
        os.setpgid(0, 0)
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            if os.getppid() != parent:  # it died in between
                os._exit(1)

    return guard
