# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Fine-tuning a checkpoint on a LeRobot data set: batches, loss, resume, adapters, refusals."""

import argparse
import json
import shutil

import numpy as np
import pytest
import torch
from test_lerobot import episode

from pi0_ros.errors import Pi0RosError
from pi0_ros.observation import Observation
from pi0_ros.policy import Pi0Policy
from pi0_ros.policy.config import Pi0Config
from pi0_ros.policy.make_checkpoint import write_checkpoint
from pi0_ros.policy.model import Pi0Model
from pi0_ros.policy.prompt import build_byte_tokenizer
from pi0_ros.robot import RobotSpec
from pi0_ros.training import augment, finetune, lora
from pi0_ros.training.dataset import ChunkDataset, Sample
from pi0_ros.training.lerobot import write_lerobot

ALOHA = RobotSpec.load('aloha')
DIMS = {
    'vision': {'hidden': 16, 'layers': 1, 'heads': 2, 'mlp': 32, 'patch': 16, 'image': 32},
    'text': {
        'width': 32, 'depth': 2, 'heads': 2, 'kv_heads': 1, 'head_dim': 16, 'mlp': 48,
        'vocab': 272,
    },
    'expert': {'width': 32, 'depth': 2, 'heads': 2, 'kv_heads': 1, 'head_dim': 16, 'mlp': 64},
    'chunk': 8, 'max_state_dim': 16, 'max_action_dim': 16, 'num_steps': 4, 'n_cams': 2,
}  # fmt: skip


def checkpoint(folder, kind='pi0', action_space='absolute', aloha='off', **pipeline):
    still = {'mean': [0.0] * 14, 'std': [1.0] * 14, 'q01': [-1.0] * 14, 'q99': [1.0] * 14}
    pipeline = {
        'action_space': action_space, 'aloha': aloha, 'state_mode': 'zscore',
        'action_mode': 'zscore', 'dialect': 'openpi',
        'cameras': {'cam_high': 'base_0_rgb', 'cam_left_wrist': 'left_wrist_0_rgb'},
        'resize': 'pillow', 'state_dim': 14, 'action_dim': 14, 'prompt_tokens': 200, 'prompt': '',
        **pipeline,
    }  # fmt: skip
    model = Pi0Model.random(Pi0Config.from_dims(DIMS, kind), 0)
    return write_checkpoint(
        folder, model, pipeline, {'state': still, 'actions': still}, build_byte_tokenizer()
    )


def smooth(seed, n=40):
    """Return an episode that can be learned: slow waves that the picture tells."""
    base = episode(seed, n=n, fps=50, size=(32, 32))
    t = np.arange(n) / 50
    waves = np.sin(2 * np.pi * (t[:, None] + np.arange(14) / 14)).astype(np.float32)
    object.__setattr__(base, 'states', waves)
    object.__setattr__(base, 'actions', np.roll(waves, -1, axis=0))
    return base


@pytest.fixture(scope='module')
def robot(tmp_path_factory):
    """Return ALOHA with the two cameras that the made data have."""
    import yaml

    data = yaml.safe_load(open(ALOHA.source, encoding='utf-8'))
    del data['cameras']['cam_right_wrist']
    path = tmp_path_factory.mktemp('robot') / 'two_cameras.yaml'
    path.write_text(yaml.safe_dump(data))
    return path


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp('data') / 'set'
    return write_lerobot(folder, [smooth(0), smooth(1), smooth(2)], ALOHA)


@pytest.fixture(scope='module')
def base(tmp_path_factory):
    return checkpoint(tmp_path_factory.mktemp('base') / 'checkpoint')


@pytest.fixture()
def arguments(base, data, robot, tmp_path):
    def build(*words, out='run', **changes):
        parser = argparse.ArgumentParser()
        finetune.configure(parser)
        args = parser.parse_args([
            '--checkpoint', str(base), '--data', str(data), '--robot', str(robot), '--device',
            'cpu', '--out', str(tmp_path / out), '--batch', '4', '--steps', '4', '--warm-up', '1',
            '--lr', '1e-3', *map(str, words),
        ])  # fmt: skip
        for name, value in changes.items():
            setattr(args, name, value)
        return args

    return build


def weights(folder):
    from safetensors.torch import load_file

    return load_file(str(folder / 'checkpoint' / 'model.safetensors'))


@pytest.mark.parametrize('kind, space, aloha', [
    ('pi0', 'absolute', 'off'), ('pi0', 'delta', 'openpi'), ('pi05', 'delta', 'off'),
])  # fmt: skip
def test_a_batch_is_what_the_policy_makes_of_an_observation(tmp_path, kind, space, aloha):
    policy = Pi0Policy.from_pretrained(checkpoint(tmp_path / 'c', kind, space, aloha), robot=ALOHA)
    rng = np.random.default_rng(0)
    samples = []
    for prompt in ('go', 'pick the cube up'):
        images = {n: rng.integers(0, 255, (48, 64, 3), dtype=np.uint8) for n in policy.cameras}
        samples.append(Sample(
            images, rng.uniform(0.1, 0.5, 14).astype(np.float32), prompt,
            rng.uniform(0.1, 0.5, (8, 14)).astype(np.float32), np.zeros(8, bool),
        ))  # fmt: skip
    batch = finetune.Collator(policy)(samples)
    caught = {}

    def sample_actions(images, masks, tokens, token_masks, state, **rest):
        caught.update(images=images, tokens=tokens, state=state)
        return batch['actions'][1:]

    policy.model.sample_actions = sample_actions
    seen = Observation(samples[1].images, samples[1].state, samples[1].prompt)
    back = policy.predict(seen)
    np.testing.assert_allclose(back, samples[1].actions, atol=1e-5)  # there and back again
    assert torch.equal(batch['state'][1:], caught['state'])
    assert torch.equal(batch['tokens'][1, batch['token_masks'][1]], caught['tokens'][0])
    for one, other in zip(batch['images'], caught['images']):
        assert torch.equal(one[1:], other)
    assert not batch['token_masks'][0].all() and batch['actions'][..., 14:].abs().max() == 0


def test_padding_and_unused_dimensions_count_for_nothing(base):
    policy = Pi0Policy.from_pretrained(base, robot=ALOHA)
    ends = ChunkDataset([smooth(0)], 8, 50.0)
    collate = finetune.Collator(policy)
    batch = collate([ends[36], ends[10]])  # three rows of the first are padding
    assert batch['padded'][0].sum() == 4 and batch['padded'][1].sum() == 0
    batch |= {'noise': torch.randn(2, 8, 16), 'time': torch.tensor([0.3, 0.6]), 'rows': 12}
    loss = finetune.masked_loss(policy.model, batch, 14)
    batch['actions'] = batch['actions'].clone()
    batch['actions'][0, 4:] = 99.0
    changed = finetune.masked_loss(policy.model, batch, 14)
    assert changed != loss  # attention sees the rows
    batch['noise'][0, 4:] = batch['actions'][0, 4:]
    whole = policy.model.loss(**{k: batch[k] for k in (
        'images', 'image_masks', 'tokens', 'token_masks', 'state', 'actions', 'noise', 'time')})
    expected = (whole[0, :4, :14].mean(-1).sum() + whole[1, :, :14].mean(-1).sum()) / 12
    torch.testing.assert_close(finetune.masked_loss(policy.model, batch, 14), expected)


@pytest.mark.parametrize('world, accumulate', [(2, 1), (1, 2), (2, 2)])
def test_processes_and_micro_batches_share_the_batch_of_one(base, world, accumulate):
    policy = Pi0Policy.from_pretrained(base, robot=ALOHA)
    data = ChunkDataset([smooth(0)], 8, 50.0)
    collate = finetune.Collator(policy, vary=True)
    whole = finetune.Steps(data, collate, steps=2, batch=8, seed=3)[1]
    parts = []
    for micro in range(accumulate):
        for rank in range(world):
            steps = finetune.Steps(
                data, collate, steps=2, batch=8 // (world * accumulate), accumulate=accumulate,
                seed=3, rank=rank, world=world,
            )  # fmt: skip
            parts.append(steps[accumulate + micro])
    assert {part['rows'] for part in parts} == {whole['rows']}
    for name in ('state', 'actions', 'noise', 'time', 'padded'):
        assert torch.equal(torch.cat([part[name] for part in parts]), whole[name]), name
    for camera, pictures in enumerate(whole['images']):
        assert torch.equal(torch.cat([part['images'][camera] for part in parts]), pictures)


def test_one_batch_is_overfitted(base):
    policy = Pi0Policy.from_pretrained(base, robot=ALOHA)
    data = ChunkDataset([smooth(0)], 8, 50.0)
    batch = finetune.Steps(data, finetune.Collator(policy), steps=1, batch=4)[0]
    model = policy.model
    lora.freeze(model, 'none')
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = finetune.masked_loss(model, batch, policy.dof)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.2 * losses[0]


def test_the_result_is_a_checkpoint_with_the_datas_statistics(arguments, data, capsys):
    args = arguments('--held-out', 0.34)
    before = weights_of(args.checkpoint)
    assert finetune.run(args) == 0
    said = capsys.readouterr().out
    assert '2 episodes' in said and '1 episodes held out' in said and 'row 1: mean error' in said
    assert (args.out / 'loss.png').stat().st_size > 1000
    policy = Pi0Policy.from_pretrained(args.out / 'checkpoint', robot=ALOHA)
    assert policy.prompt == 'lift the cube'
    actions = policy.predict(Observation(
        {n: np.zeros((32, 32, 3), np.uint8) for n in policy.cameras}, np.zeros(14), ''
    ))  # fmt: skip
    assert actions.shape == (8, 14)
    stats = json.loads((args.out / 'checkpoint' / 'norm_stats.json').read_text())['norm_stats']
    assert max(np.abs(stats['actions']['std'])) < 1.0  # not the base's 1.0
    after = weights(args.out)
    changed = {n for n in before if not torch.equal(before[n], after[n])}
    assert any('expert' in n or 'gemma_expert' in n for n in changed)


def weights_of(folder):
    from pathlib import Path

    from safetensors.torch import load_file

    return load_file(str(Path(folder) / 'model.safetensors'))


@pytest.mark.parametrize('extra', [(), ('--lora', 2)])
def test_a_resumed_run_equals_an_uninterrupted_one(arguments, monkeypatch, extra):
    whole = arguments('--save-every', 2, *extra, out='whole')
    finetune.run(whole)
    resumed = arguments('--save-every', 2, *extra, out='resumed')

    class Killed(Exception):
        pass

    original = finetune.save

    def save_and_die(*values):
        original(*values)
        raise Killed

    monkeypatch.setattr(finetune, 'save', save_and_die)
    with pytest.raises(Killed):
        finetune.run(resumed)
    monkeypatch.undo()
    with pytest.raises(Pi0RosError, match='go on with --resume'):
        finetune.run(resumed)
    resumed.resume = True
    finetune.run(resumed)
    one, two = weights(whole.out), weights(resumed.out)
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-5, atol=1e-7)
    resumed.lora, resumed.out = 4, resumed.out.parent / 'other'
    resumed.out.mkdir()
    shutil.copyfile(whole.out.parent / 'resumed' / finetune.STATE_FILE,
                    resumed.out / finetune.STATE_FILE)  # fmt: skip
    with pytest.raises(Pi0RosError, match='other settings'):
        finetune.run(resumed)


def test_adapters_are_saved_alone_and_merged_into_the_checkpoint(arguments):
    args = arguments('--lora', 2, '--accumulate', 2, '--gradient-checkpointing')
    finetune.run(args)
    base = Pi0Policy.from_pretrained(args.checkpoint, robot=ALOHA).model
    merged = lora.merge(lora.load_adapters(base, args.out / 'adapter'))
    deployed = Pi0Policy.from_pretrained(args.out / 'checkpoint', robot=ALOHA).model
    for (name, one), (_, two) in zip(merged.named_parameters(), deployed.named_parameters()):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7, msg=name)


def test_bfloat16_trains_weights_of_full_precision(arguments):
    args = arguments('--precision', 'bfloat16', '--ema', 0)
    finetune.run(args)
    assert {v.dtype for v in weights(args.out).values()} == {torch.float32}


def test_the_bases_arithmetic_is_kept(arguments, tmp_path):
    how = {
        'state_mode': 'min_max', 'action_mode': 'quantile', 'dialect': 'lerobot',
        'resize': 'torch', 'action_space': 'delta',
        'delta_mask': [True] * 6 + [False] + [True] * 7,
    }  # fmt: skip
    base = checkpoint(tmp_path / 'odd', 'pi05', **how)
    args = arguments(checkpoint=str(base), steps=1)
    finetune.run(args)
    written = json.loads((args.out / 'checkpoint' / 'config.json').read_text())
    assert {key: written['pipeline'][key] for key in how} == how
    assert written['type'] == 'pi05'
    policy = Pi0Policy.from_pretrained(args.out / 'checkpoint', robot=ALOHA)
    assert (policy._state.mode, policy._actions.mode) == ('min_max', 'quantile')


def test_the_average_follows_and_is_what_is_deployed():
    parameter = torch.nn.Parameter(torch.zeros(3))
    ema = finetune.Ema({'p': parameter}, 0.5)
    for step in range(3):
        with torch.no_grad():
            parameter.add_(1.0)
        ema.update({'p': parameter}, step)
    value = 0.0
    for step, target in enumerate((1.0, 2.0, 3.0)):
        decay = min(0.5, (1 + step) / (10 + step))
        value = decay * value + (1 - decay) * target
    assert torch.allclose(ema.values['p'], torch.full((3,), value))
    ema.copy_to({'p': parameter})
    assert torch.allclose(parameter.detach(), torch.full((3,), value))


def test_pictures_are_varied_but_never_mirrored():
    rng = np.random.default_rng(0)
    picture = np.zeros((40, 60, 3), np.uint8)
    picture[:, :20, 0] = 200  # red on the left
    for _ in range(50):
        varied = augment.augment(picture, rng)
        assert varied.shape == picture.shape and varied.dtype == np.uint8
        red = varied.astype(float)[..., 0]
        assert red[:, :15].mean() > red[:, 45:].mean() + 30
    still = augment.augment(picture, np.random.default_rng(1), crop=False)
    edge = np.abs(np.diff(still[20, :, 0].astype(int))).argmax()
    assert edge == 19  # a wrist camera's view is not shifted


@pytest.mark.parametrize('words, said', [
    (('--steps', 0), '--steps is 0'), (('--lr', 0), '--lr is 0'), (('--ema', 1), '--ema is 1'),
    (('--lora', 2, '--freeze', 'vision'), 'leave --freeze out'),
    (('--resume',), 'no saved training'), (('--held-out', 2), 'between 0 and 1'),
])  # fmt: skip
def test_settings_that_cannot_be_meant_are_refused(arguments, words, said):
    with pytest.raises(Pi0RosError, match=said):
        finetune.run(arguments(*words))


def test_data_that_fit_neither_robot_nor_checkpoint_are_refused(arguments, data, tmp_path):
    slow = write_lerobot(tmp_path / 'slow', [episode(0, n=10, fps=25)], ALOHA)
    with pytest.raises(Pi0RosError, match='25 actions a second.*policy_rate of 50 Hz'):
        finetune.run(arguments(data=[str(slow)]))
    seven = write_lerobot(tmp_path / 'seven', [episode(0, n=10, fps=50, dof=7)])
    with pytest.raises(Pi0RosError, match='7 actions.*robot has 14 joints'):
        finetune.run(arguments(data=[str(seven)]))
    with pytest.raises(Pi0RosError, match='cameras cam_right_wrist are missing'):
        finetune.run(arguments(robot='aloha'))
    with pytest.raises(Pi0RosError, match='no such bag'):
        finetune.run(arguments(data=[str(tmp_path / 'nothing')]))
    other = checkpoint(tmp_path / 'other', cameras={'nose': 'right_wrist_0_rgb'})
    with pytest.raises(Pi0RosError, match='nose'):
        finetune.run(arguments(checkpoint=str(other)))
