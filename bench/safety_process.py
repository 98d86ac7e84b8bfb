# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Start-up, memory and evenness of the safety filter's process, idle and beside greedy neighbours.

usage: python bench/safety_process.py [--seconds 20] [--json out.json]

Prints a table. A robot and an operator run in this process, the setpoints come from a third one,
all over real topics; then once more with two busy processes per core, and at last without the
collision model. The processor time up to the first status is what a start costs, whatever else
runs on the machine.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / 'test' / 'nodes'))
os.environ.setdefault('OMP_NUM_THREADS', '1')


def hog() -> None:
    while True:
        sum(i * i for i in range(100_000))


def processor_time(pid: int) -> float:
    fields = Path(f'/proc/{pid}/stat').read_text().rsplit(')')[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')


def measure(seconds: float, hogs: int, **parameters) -> dict:
    from safety_lab import lab, wait_for

    with lab(random.SystemRandom().randrange(100, 200)) as room:
        begin = time.monotonic()
        process = room.start_filter(**parameters)
        wait_for(lambda: room.statuses, 30.0, 'the first status')
        started, worked = time.monotonic() - begin, processor_time(process.pid)
        room.start_sender()
        room.ready()
        room.wait_for_motion()
        neighbours = [multiprocessing.Process(target=hog, daemon=True) for _ in range(hogs)]
        for neighbour in neighbours:
            neighbour.start()
        key, first = 'safety_filter: tick', len(room.received)
        before = time.monotonic()
        wait_for(lambda: time.monotonic() - before > seconds, seconds + 5.0)
        values = {v.key: v.value for v in room.diagnostics[key].values}
        for neighbour in neighbours:
            neighbour.kill()
        memory = {
            line.split(':')[0]: int(line.split()[1]) / 1024
            for line in Path(f'/proc/{process.pid}/status').read_text().splitlines()
            if line.startswith(('VmRSS', 'VmHWM'))
        }
        cpu, lived = processor_time(process.pid) - worked, time.monotonic() - begin - started
        return {
            'busy neighbours': hogs,
            'collision model': float('disabled_checks' not in parameters),
            'start to first status [s]': started,
            'processor time of it [s]': worked,
            'memory [MB]': memory['VmRSS'],
            'largest memory [MB]': memory['VmHWM'],
            'commands [Hz]': (len(room.received) - first) / (time.monotonic() - before),
            'lateness p50 [ms]': float(values['lateness p50 [ms]']),
            'lateness p99 [ms]': float(values['lateness p99 [ms]']),
            'lateness max [ms]': float(values['lateness max [ms]']),
            'missed ticks': int(values['missed ticks']),
            'share of a core then': cpu / lived,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument('--seconds', type=float, default=20.0)
    parser.add_argument('--json', default='')
    arguments = parser.parse_args()
    print(f'{platform.processor() or platform.machine()}, {os.cpu_count()} cores, '
          f'Python {platform.python_version()}')  # fmt: skip
    rows = [measure(arguments.seconds, hogs) for hogs in (0, 2 * os.cpu_count())]
    rows.append(measure(arguments.seconds, 0, disabled_checks='collision'))
    for key in rows[0]:
        print(f'{key:28s}' + ''.join(f'{row[key]:12.3f}' for row in rows))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=2) + '\n')


if __name__ == '__main__':
    main()
