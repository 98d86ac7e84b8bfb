# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Expert, demonstrations and the small trainer, on a few episodes and steps."""

import argparse
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import pi0_ros
from pi0_ros.errors import Pi0RosError
from pi0_ros.policy import Pi0Policy
from pi0_ros.policy.config import Pi0Config
from pi0_ros.policy.model import Pi0Model
from pi0_ros.sim import AlohaSim, expert, top_fovy_of
from pi0_ros.training import demonstrate, evaluate, train

POCKET = Path(pi0_ros.__file__).parent / 'checkpoints' / 'pocket'
SHOWN = (1, 11)  # cubes near and far; 100 seeds are in its card


def arguments(module, *words):
    parser = argparse.ArgumentParser()
    module.configure(parser)
    return parser.parse_args([str(word) for word in words])


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp('demonstrations')
    demonstrate.run(arguments(demonstrate, '--out', folder, '--episodes', 2, '--disturbed', 0,
                              '--stride', 25))  # fmt: skip
    return folder


def trained(data, out, *words):
    train.run(arguments(train, '--data', data, '--out', out, '--batch', 4, '--warm-up', 2, *words))
    return load_file(str(out / 'training.safetensors'))


def test_expert_hands_the_cube_over():
    sim = AlohaSim()
    for seed in range(5):
        sim.reset(seed)
        sim.step(duration=0.5)
        for action in expert.plan(sim):
            sim.step(sim.robot.policy_to_command(action))
        assert sim.strict_success, f'seed {seed}'


def test_expert_says_what_cannot_be_reached():
    sim = AlohaSim()
    with pytest.raises(ValueError, match='no joint angles reach'):
        expert.HandSolver(sim, 'left').solve(np.array([3.0, 0.0, 0.0]), np.eye(3), np.zeros(6))


def test_demonstrations_repeat_the_last_action_at_an_episodes_end(data):
    loaded = train.Demonstrations.load(data)
    assert len(loaded.ends) == 2 and loaded.images.shape[1:] == (128, 128, 3)
    frame = int(np.searchsorted(loaded.steps, loaded.ends[0])) - 1  # the first episode's last
    chunk = loaded.chunks(np.array([frame]), 50)[0]
    left = loaded.ends[0] - loaded.steps[frame]
    assert np.array_equal(chunk[:left], loaded.actions[loaded.steps[frame] : loaded.ends[0]])
    assert (chunk[left:] == loaded.actions[loaded.ends[0] - 1]).all()


def test_a_resumed_training_equals_an_uninterrupted_one(data, tmp_path):
    whole = trained(data, tmp_path / 'whole', '--steps', 6, '--save-every', 3)
    resumed = tmp_path / 'resumed'
    settings = arguments(train, '--data', data, '--out', resumed, '--batch', 4, '--warm-up', 2,
                         '--steps', 6, '--save-every', 3)  # fmt: skip
    run_until_first_save(settings)
    settings.resume = True
    train.run(settings)
    again = load_file(str(resumed / 'training.safetensors'))
    for name, value in whole.items():
        np.testing.assert_allclose(again[name], value, rtol=1e-6, atol=1e-7, err_msg=name)


def run_until_first_save(settings):
    class Killed(Exception):
        pass

    original = train.save

    def save_and_die(*values):
        original(*values)
        raise Killed

    train.save = save_and_die
    try:
        with pytest.raises(Killed):
            train.run(settings)
    finally:
        train.save = original


def test_the_result_can_be_deployed(data, tmp_path):
    trained(data, tmp_path / 'run', '--steps', 2)
    sim = AlohaSim()
    policy = Pi0Policy.from_pretrained(tmp_path / 'run' / 'checkpoint', robot=sim.robot)
    assert list(policy.cameras) == ['cam_high']
    episode = evaluate.run_episode(
        policy, sim, 3, prompt=policy.prompt, horizon=25, max_steps=30, image_size=128
    )
    assert episode.seed == 3 and not episode.strict_success
    sim.close()


def test_several_draws_of_one_picture_cost_no_second_prefix_and_change_no_loss():
    config = Pi0Config.from_dims(train.POCKET, 'pi0')
    model = Pi0Model.random(config, 0)
    dims = config.max_action_dim
    torch.manual_seed(0)
    images = torch.rand(2, 3, config.vision.image, config.vision.image) * 2 - 1
    tokens, masks = train.prompt_tokens('transfer the cube', config, 2)
    state, time = torch.randn(6, config.max_state_dim), torch.rand(6)
    actions, noise = torch.randn(2, 6, config.chunk, dims).unbind(0)
    together = train.flow_loss(model, [images], tokens, masks, state, actions, noise, time)
    rows = [0, 0, 0, 1, 1, 1]
    alone = model.loss(
        [images[rows]], [torch.ones(6, dtype=torch.bool)], tokens[rows], masks[rows],
        state, actions, noise, time,
    )  # fmt: skip
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_nothing_to_learn_from_or_to_resume_is_said(data, tmp_path):
    with pytest.raises(Pi0RosError, match="holds no demonstrations .'images.npy'"):
        trained(tmp_path, tmp_path / 'x', '--steps', 1)
    with pytest.raises(Pi0RosError, match='no saved training to resume'):
        trained(data, tmp_path / 'y', '--steps', 1, '--resume')
    small = shutil.copytree(data, tmp_path / 'small')
    np.save(small / 'images.npy', np.load(small / 'images.npy')[:, ::2, ::2])
    with pytest.raises(Pi0RosError, match='the model sees 128x128'):
        trained(small, tmp_path / 'z', '--steps', 1)


@pytest.mark.parametrize('successes, low, high', [(92, 0.850, 0.959), (0, 0.0, 0.037)])
def test_wilson_interval(successes, low, high):
    assert evaluate.wilson_interval(successes, 100) == pytest.approx((low, high), abs=5e-4)


def test_the_pocket_checkpoint_does_the_task():
    sim = AlohaSim(top_fovy_deg=top_fovy_of(POCKET))
    policy = Pi0Policy.from_pretrained(POCKET, robot=sim.robot)
    episodes = [
        evaluate.run_episode(
            policy, sim, seed, prompt=policy.prompt, horizon=25, max_steps=400, image_size=128
        )
        for seed in SHOWN
    ]
    assert [e.strict_success for e in episodes] == [True] * len(SHOWN)
    assert sum(f.stat().st_size for f in POCKET.iterdir()) < 12e6
    sim.close()
