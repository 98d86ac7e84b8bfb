# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""``pi0_ros dataset`` and ``finetune`` as typed: from a bag to a checkpoint; refusals."""

import numpy as np
from test_dataset import ALOHA, bag, commands
from test_finetune import checkpoint
from test_lerobot import EPISODES

from pi0_ros import cli
from pi0_ros.observation import Observation
from pi0_ros.policy import Pi0Policy
from pi0_ros.training.lerobot import LeRobotDataset, write_lerobot


def test_from_a_bag_to_a_checkpoint(tmp_path, capsys):
    path = bag(tmp_path, commands(seconds=2.0), seconds=2.0)
    assert cli.main(['dataset', str(path), '--statistics', str(tmp_path / 'stats')]) == 0
    said = capsys.readouterr().out
    assert "fits robot 'aloha'" in said and 'x "transfer the cube"' in said
    assert (tmp_path / 'stats' / 'norm_stats.json').is_file()
    folder = tmp_path / 'set'
    words = ['dataset', str(path), '--out', str(folder), '--size', '32', '--format', 'v2.1']
    assert cli.main(words) == 0
    data = LeRobotDataset.open(folder)
    assert (data.version, data.fps, len(data.entries)) == ('v2.1', 50.0, 1)
    base = checkpoint(tmp_path / 'base', cameras={
        'cam_high': 'base_0_rgb', 'cam_left_wrist': 'left_wrist_0_rgb',
        'cam_right_wrist': 'right_wrist_0_rgb',
    })  # fmt: skip
    out = tmp_path / 'out'
    words = ['finetune', '--checkpoint', str(base), '--data', str(folder), '--device', 'cpu',
             '--out', str(out), '--steps', '2', '--batch', '2']  # fmt: skip
    assert cli.main(words) == 0
    policy = Pi0Policy.from_pretrained(out / 'checkpoint', robot=ALOHA)
    images = {n: np.zeros((48, 64, 3), np.uint8) for n in ALOHA.cameras}
    actions = policy.predict(Observation(images, np.full(14, 0.3), ''))
    assert actions.shape == (8, 14) and policy.prompt == 'transfer the cube'
    assert cli.main(words) == 2
    assert 'holds a finished training' in capsys.readouterr().err


def test_data_sets_are_written_in_the_other_version(tmp_path):
    old = write_lerobot(tmp_path / 'old', EPISODES, ALOHA, version='v2.1')
    assert cli.main(['dataset', str(old), '--out', str(tmp_path / 'new')]) == 0
    new = LeRobotDataset.open(tmp_path / 'new')
    assert new.version == 'v3.0' and len(new.entries) == 3
    for number, wanted in enumerate(EPISODES):
        got = new.read(number)
        assert np.array_equal(got.actions, wanted.actions)
        assert np.array_equal(got.images['cam_high'][3], wanted.images['cam_high'][3])
        assert got.prompts == wanted.prompts


def test_another_robots_data_set_is_shown_and_judged(shared_dir, capsys):
    path = shared_dir / 'real' / 'stats' / 'lerobot_dataset_v21_g1'
    assert cli.main(['dataset', str(path)]) == 1
    said = ' '.join(capsys.readouterr().out.split())
    assert 'LeRobot v2.1, Unitree_G1_Inspire, 1 episodes, 30 Hz, cameras cam_high' in said
    assert 'missing: 100 videos are missing' in said
    assert '290 x "Pick up the yellow bottle on the table."' in said
    assert 'not fit for training' in said and '26 actions' in said and '14 joints' in said


def test_mistakes_are_one_sentence(tmp_path, capsys):
    (tmp_path / 'empty').mkdir()
    for words in (
        ['dataset', str(tmp_path / 'nothing')],
        ['dataset', str(tmp_path / 'empty')],
        ['finetune', '--checkpoint', str(tmp_path), '--data', 'x', '--out', str(tmp_path / 'o')],
        ['train', '--data', str(tmp_path / 'nothing'), '--out', str(tmp_path / 'o')],
        ['evaluate', '--checkpoint', str(tmp_path / 'nothing')],
        ['demonstrate', '--out', str(tmp_path / 'd'), '--episodes', '0'],
    ):
        assert cli.main(words) == 2, words
        err = capsys.readouterr().err
        assert len(err.splitlines()) == 1 and err.startswith(f'pi0_ros {words[0]}: '), err
