# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""``pi0_ros <command>``: one table of commands, each a module imported when it is called."""

from __future__ import annotations

import argparse
import importlib
import sys

from pi0_ros import __version__
from pi0_ros.errors import Pi0RosError

COMMANDS = {
    'check': ('pi0_ros.check', 'pre-flight of a live system against a checkpoint'),
    'compare': ('pi0_ros.replay.compare', 'two replay results side by side'),
    'convert': ('pi0_ros.policy.convert', 'any known checkpoint into the one documented format'),
    'dataset': ('pi0_ros.training.command', 'bags as a LeRobot data set; what is in one'),
    'demo': ('pi0_ros.demo', 'a simulated ALOHA under the policy, through the real nodes'),
    'demonstrate': ('pi0_ros.training.demonstrate', 'scripted demonstrations in the simulator'),
    'evaluate': ('pi0_ros.training.evaluate', 'success rate of a checkpoint in the simulator'),
    'finetune': ('pi0_ros.training.finetune', 'train a checkpoint on bags and LeRobot data sets'),
    'inspect': ('pi0_ros.policy.inspect', 'what a checkpoint is and what it needs'),
    'make_checkpoint': ('pi0_ros.policy.make_checkpoint', 'a checkpoint with random weights'),
    'record': ('pi0_ros.record', 'a bag with everything that replay needs'),
    'replay': ('pi0_ros.replay.command', 'a recorded bag through policy and safety filter'),
    'train': ('pi0_ros.training.train', 'a small pi0 from scratch, on demonstrations'),
}

DESCRIPTION = 'Run pi0 policies on physical arms with ROS 2: check, record, replay, train.'

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """
    Run one command and return its exit code.

    A mistake of the user's ends with one sentence on stderr and exit code 2.
    """
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(prog='pi0_ros', description=DESCRIPTION)
    parser.add_argument('--version', action='version', version=f'pi0_ros {__version__}')
    commands = parser.add_subparsers(dest='command', metavar='command')
    chosen = next((word for word in argv if not word.startswith('-')), None)
    module = None
    for name, (path, description) in COMMANDS.items():
        sub = commands.add_parser(name, help=description, description=description)
        if name == chosen:
            module = importlib.import_module(path)
            module.configure(sub)
    args = parser.parse_args(argv)
    if module is None:
        parser.print_help()
        return EXIT_USAGE
    try:
        return int(module.run(args) or 0)
    except Pi0RosError as error:
        print(f'pi0_ros {args.command}: {error}', file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print(f'pi0_ros {args.command}: interrupted', file=sys.stderr)
        return EXIT_INTERRUPTED


def _command(name: str):
    def run() -> int:
        return main([name, *sys.argv[1:]])

    run.__name__ = name
    run.__doc__ = f'Run ``pi0_ros {name}``; what ``ros2 run pi0_ros {name}`` starts.'
    return run


globals().update({name: _command(name) for name in COMMANDS})


if __name__ == '__main__':
    sys.exit(main())
