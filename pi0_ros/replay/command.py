# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
``pi0_ros replay``: a recorded bag through policy and safety filter.

Exit codes: 0 fit to run, perhaps with warnings (1 with ``--strict``); 1 not fit; 2 the bag or the
options cannot be used; 3 the bag was cut off or the run interrupted, results cover what was read;
130 interrupted before there was anything to keep.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import sys
from pathlib import Path

from pi0_ros.errors import Pi0RosError

RECORDED = 'recorded'
"""Instead of a policy: the recorded motion itself, through the filter."""

EPILOG = __doc__.split('\n\n')[1]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    parser.epilog = EPILOG
    add('bag', help='rosbag2 folder, or one .mcap or .db3 file (zstd or not)')
    add('--checkpoint', default='', help='checkpoint: folder or hub id')
    add('--policy', default='pi0_ros.policy:from_parameters', metavar='MODULE:FACTORY',
        help="as the node takes it; 'recorded' replays the bag's own motion")  # fmt: skip
    add('--robot', default='aloha', help='robot name or YAML file (default: aloha)')
    add('--prompt', default='', help="instruction (default: the bag's prompt messages)")
    add('--stride', type=int, default=10, help='rows between inferences (default: 10)')
    add('--published', action='store_true',
        help="infer at the stamps of the bag's action_chunk messages and compare")  # fmt: skip
    add('--start', type=float, default=0.0, metavar='S', help='seconds from the beginning')
    add('--end', type=float, default=math.inf, metavar='S', help='seconds from the beginning')
    add('--seed', type=int, default=0, help='of the noise (default: 0)')
    add('--device', default='cpu')
    add('--dtype', default='float32')
    add('--map', action='append', default=[], metavar='CAMERA=TOPIC',
        help='topic of a camera in this bag')  # fmt: skip
    add('--namespace', default='', metavar='NS',
        help="namespace below which the robot's topics lie in this bag")  # fmt: skip
    add('--joint-states', action='append', default=[], metavar='TOPIC[:PREFIX]',
        help="joint states in this bag, instead of the robot's")  # fmt: skip
    add('--joint-names', default='', metavar='A,B,C',
        help='names for joint states that were recorded without any')  # fmt: skip
    add('--received-time', action='store_true',
        help='stamp messages with their reception where the header stamp is zero or that input '
             'has another clock than the others')  # fmt: skip
    add('--stitching', default='blend', choices=('switch', 'blend', 'rtc'))
    add('--execution-horizon', type=int, default=25, metavar='ROWS')
    add('--latency', type=float, default=0.0, metavar='S', help='delay of each chunk')
    add('--max-age', type=float, default=0.2, metavar='S')
    add('--max-skew', type=float, default=0.05, metavar='S')
    add('--out', type=Path, help='folder for result.json and report.html')
    add('--format', default='text', choices=('text', 'json'), help='what is printed')
    add('--strict', action='store_true', help='exit with 1 for warnings too')


def run(args) -> int:
    """Replay, print and write the result; return the exit code."""
    from pi0_ros.replay.replay import replay
    from pi0_ros.replay.report import as_text, to_json, write_report
    from pi0_ros.robot import RobotSpec

    robot = RobotSpec.load(args.robot)
    cameras = _pairs(args.map)
    sources = [_source(text) for text in args.joint_states]
    if not Path(args.bag).exists():
        raise Pi0RosError(f'{args.bag}: no such bag')
    _check_bag(args, robot, cameras, sources)
    if args.out:
        _make_folder(args.out, Path(args.bag))
    policy = _load_policy(args)
    with _Progress() as progress:
        result = replay(
            args.bag, policy, robot, prompt=args.prompt, stride=args.stride, start=args.start,
            end=args.end, at='published' if args.published else 'stride', seed=args.seed,
            cameras=cameras, joint_states=sources or None,
            joint_names=[n for n in args.joint_names.split(',') if n],
            use_received_time=args.received_time, stitching=args.stitching,
            execution_horizon=args.execution_horizon, latency=args.latency,
            max_age=args.max_age, max_skew=args.max_skew, namespace=args.namespace,
            progress=progress,
        )  # fmt: skip
    getattr(policy, 'close', lambda: None)()
    result.summary['checkpoint'] = args.checkpoint or args.policy
    if args.out:
        try:
            (args.out / 'result.json').write_text(to_json(result.summary), encoding='utf-8')
            write_report(result, args.out / 'report.html')
        except OSError as error:
            print(as_text(result.summary))
            raise Pi0RosError(
                f'{args.out}: the report cannot be written ({error.strerror or error}); free the '
                'disk or give another --out'
            ) from None
    _print(to_json(result.summary) if args.format == 'json' else as_text(result.summary))
    if args.out:
        print(f'written to {args.out / "report.html"}', file=sys.stderr)
    if args.strict and result.exit_code == 0 and result.verdict != 'yes':
        return 1
    return result.exit_code


def _make_folder(out: Path, bag: Path) -> None:
    """Refuse a folder that cannot be written to before the work is done, not after it."""
    if out.resolve() == bag.resolve():
        raise Pi0RosError(f'--out {out} is the bag itself, which is never written to')
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name in ('result.json', 'report.html'):
            with (out / name).open('ab'):
                pass
    except OSError as error:
        raise Pi0RosError(
            f'--out {out}: cannot be written to ({error.strerror or error}); give a folder that '
            'can'
        ) from None


def _print(text: str) -> None:
    """Print; a reader that has had enough (``| head``) is no error."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _check_bag(args, robot, cameras, sources) -> None:
    """Refuse an unusable bag before the policy is loaded, which can take minutes."""
    from pi0_ros.replay.bag import open_bag
    from pi0_ros.replay.inputs import Inputs

    with open_bag(args.bag) as bag:
        with_cameras = args.policy != RECORDED
        Inputs(
            bag, robot, cameras, sources or None, None, with_cameras=with_cameras,
            namespace=args.namespace,
        )  # fmt: skip


def _pairs(texts) -> dict[str, str]:
    pairs = {}
    for text in texts:
        camera, separator, topic = text.partition('=')
        if not (camera and separator and topic):
            raise Pi0RosError(f"--map '{text}' is not CAMERA=TOPIC")
        if camera in pairs:
            raise Pi0RosError(f'--map is given twice for camera {camera}')
        pairs[camera] = topic
    return pairs


def _source(text: str) -> tuple[str, str]:
    topic, _, prefix = text.partition(':')
    return topic, prefix


def _load_policy(args):
    if args.policy == RECORDED:
        return None
    module_name, _, factory_name = args.policy.partition(':')
    if not factory_name:
        raise Pi0RosError(f"--policy '{args.policy}' is not of the form package.module:factory")
    if args.policy == 'pi0_ros.policy:from_parameters' and not args.checkpoint:
        raise Pi0RosError('give --checkpoint (or --policy MODULE:FACTORY)')
    try:
        factory = getattr(importlib.import_module(module_name), factory_name, None)
    except ModuleNotFoundError as error:
        raise Pi0RosError(f"--policy '{args.policy}': {error}; is it on PYTHONPATH?") from None
    if not callable(factory):
        raise Pi0RosError(f"--policy '{args.policy}': {module_name} has no '{factory_name}'")
    parameters = {
        'checkpoint': args.checkpoint, 'robot': args.robot, 'device': args.device,
        'dtype': args.dtype, 'prompt': args.prompt, 'seed': args.seed,
    }  # fmt: skip
    try:
        return factory(parameters)
    except Pi0RosError:
        raise
    except Exception as error:  # a factory is anybody's code
        text = ' '.join(str(error).split())
        raise Pi0RosError(
            f'the policy {args.policy} cannot be made ({type(error).__name__}: {text})'
        ) from error


class _Progress:
    """A bar with the time left on a terminal, silence elsewhere."""

    def __enter__(self):
        self._bar = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn('{task.description}'), BarColumn(), TimeRemainingColumn(),
                console=Console(stderr=True), transient=True,
            )  # fmt: skip
            self._bar.start()
            self._task = self._bar.add_task('replay', total=1.0)
        return self

    def __exit__(self, *_):
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, share: float, text: str) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=share, description=text)


FORMAT = 1
"""Of ``result.json``; raised when a key that others read changes its meaning."""

NEEDED = (
    'bag', 'robot', 'joints', 'verdict', 'chunks', 'refused', 'against_states', 'against_actions',
    'motion', 'start_gate', 'inference_s', 'chunk_digests',
)  # fmt: skip


def load_result(path) -> dict:
    """
    Return the content of a ``result.json`` (or of the folder that holds it).

    :raises Pi0RosError: when it is none, or of another version; the message says which.
    """
    path = Path(path)
    path = path / 'result.json' if path.is_dir() else path
    try:
        data = json.loads(path.read_text(encoding='utf-8'))
    except OSError as error:
        raise Pi0RosError(
            f'{path}: not a result of `pi0_ros replay` ({error.strerror or error}); give a '
            'result.json that it wrote, or its folder'
        ) from None
    except (ValueError, RecursionError) as error:
        what = 'not text' if isinstance(error, UnicodeDecodeError) else 'no JSON'
        raise Pi0RosError(f'{path}: not a result of `pi0_ros replay` ({what})') from None
    if not isinstance(data, dict) or not {'format', 'motion'} <= set(data):
        keys = f', it holds {", ".join(list(data)[:4])}' if isinstance(data, dict) and data else ''
        raise Pi0RosError(f'{path}: not a result.json of `pi0_ros replay`{keys}')
    if data['format'] != FORMAT:
        raise Pi0RosError(
            f'{path}: result of format {data["format"]!r}, this version reads {FORMAT}; replay '
            'the bag again'
        )
    missing = [key for key in NEEDED if key not in data]
    if missing:
        raise Pi0RosError(f'{path}: the result lacks {", ".join(missing)}; replay the bag again')
    return data
