# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""The command table: every command has a parser, a one-line mistake, and a script for ros2 run."""

import ast
from pathlib import Path

import pytest

from pi0_ros import cli

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize('command', sorted(cli.COMMANDS))
def test_every_command_explains_itself(command, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main([command, '--help'])
    assert end.value.code == 0
    assert cli.COMMANDS[command][1] in ' '.join(capsys.readouterr().out.split())


def test_without_a_command_the_table_is_shown(capsys):
    assert cli.main([]) == cli.EXIT_USAGE
    out = capsys.readouterr().out
    assert cli.DESCRIPTION in ' '.join(out.split())
    assert all(command in out for command in cli.COMMANDS)


def test_a_mistake_is_one_sentence_and_exit_code_2(capsys, tmp_path):
    missing = tmp_path / 'nothing_here'
    assert cli.main(['inspect', str(missing)]) == cli.EXIT_USAGE
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert err.startswith('pi0_ros inspect: ') and str(missing) in err


def test_ros2_run_has_every_command():
    tree = ast.parse((ROOT / 'setup.py').read_text(encoding='utf-8'))
    (scripts,) = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == 'COMMANDS'
    ]
    assert sorted(scripts) == sorted(cli.COMMANDS)
    assert all(callable(getattr(cli, command)) for command in scripts)
