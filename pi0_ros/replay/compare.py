# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
``pi0_ros compare A B``: two results of ``pi0_ros replay`` side by side.

Exit codes: 0 compared; 2 one of them is no result, or they are of different robots, or of
different bags or parts of a bag and ``--force`` is not given.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from pi0_ros.errors import Pi0RosError
from pi0_ros.replay.command import load_result


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.epilog = ' '.join(__doc__.split('\n\n')[1].split())
    parser.add_argument('a', help='result.json, or the folder that holds it')
    parser.add_argument('b', help='result.json, or the folder that holds it')
    parser.add_argument('--force', action='store_true', help='compare results of different bags')
    parser.add_argument('--format', default='text', choices=('text', 'json'))


def rows(a: dict, b: dict) -> list[tuple[str, object, object]]:
    """Return (what, value in A, value in B) of two summaries."""
    table = [('verdict', a['verdict'], b['verdict'])]

    def add(name, pick):
        table.append((name, pick(a), pick(b)))

    add('chunks', lambda s: s['chunks'])
    add('moments without observation', lambda s: s['refused'])
    for kind in ('states', 'actions'):
        known = {*a[f'against_{kind}'], *b[f'against_{kind}']}
        for horizon in sorted(known, key=int):
            for what in ('mae', 'max'):
                add(
                    f'{what} against {kind} at row {horizon}',
                    lambda s, k=kind, h=horizon, w=what: s[f'against_{k}'].get(h, {}).get(w),
                )
    add('setpoints limited', lambda s: s['motion']['limited_ticks'])
    add('step inside of chunks p99', lambda s: s['motion']['step_inside']['p99'])
    add('step at seams p99', lambda s: s['motion']['step_at_seams']['p99'])
    add('step at seams max', lambda s: s['motion']['step_at_seams']['max'])
    add('largest jerk', lambda s: max((j['max'] for j in s['motion']['jerk'].values()), default=0))
    add('first target from pose', lambda s: s['start_gate'].get('first', {}).get('distance'))
    add('inference p50 [s]', lambda s: s['inference_s']['p50'])
    add('inference p99 [s]', lambda s: s['inference_s']['p99'])
    same = [x == y for x, y in zip(a['chunk_digests'], b['chunk_digests'])]
    table.append(('identical chunks', f'{sum(same)} of {len(same)}', ''))
    return table


def run(args) -> int:
    """Print the comparison; return the exit code."""
    a, b = load_result(args.a), load_result(args.b)
    if a['joints'] != b['joints']:
        raise Pi0RosError(
            f'{args.a} is of {len(a["joints"])} joints of {a["robot"]}, {args.b} of '
            f'{len(b["joints"])} joints of {b["robot"]}; nothing to compare'
        )
    if Path(a['bag']).name != Path(b['bag']).name and not args.force:
        raise Pi0RosError(
            f'different bags: {a["bag"]} and {b["bag"]}; --force compares all the same'
        )
    for name in ('mode', 'options'):
        x, y = (_part(s.get(name)) for s in (a, b))
        if x != y and not args.force:
            raise Pi0RosError(
                f'not the same moments of the bag: {args.a} has {x}, {args.b} has {y}; --force '
                'compares all the same'
            )
    try:
        table = rows(a, b)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise Pi0RosError(
            f'{args.a} or {args.b} is damaged ({type(error).__name__}: {error}); replay again'
        ) from None
    if args.format == 'json':
        print(json.dumps({name: {'a': x, 'b': y} for name, x, y in table}, indent=1))
        return 0
    names = [s.get('checkpoint', '') for s in (a, b)]
    print(f'A: {args.a} ({names[0]})\nB: {args.b} ({names[1]})')
    for name, x, y in table:
        print(f'{name:34} {_text(x):>14} {_text(y):>14}')
    return 0


def _part(value):
    """Return what of mode and options decides which moments are looked at."""
    if isinstance(value, dict):
        return {k: value.get(k) for k in ('stride', 'start', 'end', 'at', 'seed')}
    return value


def _text(value) -> str:
    if value is None:
        return '-'
    return f'{value:.4g}' if isinstance(value, float) else str(value)
