# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Pi0Policy from a folder: what comes out, what is refused, real files of other makers."""

import json
import shutil

import numpy as np
import pytest

from pi0_ros.errors import Pi0RosError
from pi0_ros.observation import Observation
from pi0_ros.policy import Guidance, Pi0Policy, from_parameters
from pi0_ros.policy.checkpoint import read_norm_stats
from pi0_ros.policy.inspect import describe
from pi0_ros.policy.make_checkpoint import make_checkpoint
from pi0_ros.policy.normalization import Normalizer
from pi0_ros.robot import RobotSpec

ALOHA = RobotSpec.load('aloha')


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    return make_checkpoint(tmp_path_factory.mktemp('made') / 'tiny')


@pytest.fixture(scope='module')
def policy(folder):
    return Pi0Policy.from_pretrained(folder, robot=ALOHA)


def observation(**changes):
    rng = np.random.default_rng(0)
    images = {n: rng.integers(0, 255, (48, 64, 3), dtype=np.uint8) for n in ALOHA.cameras}
    return Observation(**{'images': images, 'state': np.full(14, 0.3), 'prompt': 'go', **changes})


@pytest.fixture()
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / 'copy')


def edit(folder, change):
    path = folder / 'config.json'
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def test_a_chunk_has_the_robots_joints_and_repeats_with_its_noise(policy):
    noise = np.random.default_rng(1).standard_normal((50, 32)).astype(np.float32)
    one, two = (policy.predict(observation(), noise=noise) for _ in range(2))
    assert one.shape == (50, 14) and one.dtype == np.float32
    assert np.array_equal(one, two)
    policy.reset()
    first = policy.predict(observation())
    assert not np.array_equal(first, policy.predict(observation()))
    policy.reset()
    assert np.array_equal(first, policy.predict(observation()))


def test_an_absent_camera_is_masked_and_none_is_refused(policy):
    noise = np.zeros((50, 32), np.float32)
    images = dict(observation().images)
    whole = policy.predict(observation(), noise=noise)
    images.pop('cam_left_wrist')
    part = policy.predict(observation(images=images), noise=noise)
    assert np.isfinite(part).all() and not np.array_equal(whole, part)
    with pytest.raises(Pi0RosError, match='no camera of the policy'):
        policy.predict(observation(images={}))


@pytest.mark.parametrize(
    'changes, expected',
    [({'state': np.zeros(7)}, '7 values, the policy takes 14'),
     ({'state': np.full(14, np.nan)}, 'not finite'), ({'prompt': ' '}, 'empty')],
)  # fmt: skip
def test_observations_that_do_not_fit_are_refused(policy, changes, expected):
    with pytest.raises(Pi0RosError, match=expected):
        policy.predict(observation(**changes))


def test_guidance_keeps_the_frozen_rows_of_the_previous_chunk(policy):
    before = policy.predict(observation())
    guided = policy.predict(observation(), guidance=Guidance(before[5:], 3, 20))
    free = policy.predict(observation())
    assert np.abs(guided[:3] - before[5:8]).max() < 0.1 * np.abs(free[:3] - before[5:8]).max()


def test_b52_delta_actions_add_the_state_and_leave_grippers_absolute(copy):
    edit(copy, lambda d: d['pipeline'].update(action_space='delta'))
    noise = np.zeros((50, 32), np.float32)
    delta = Pi0Policy.from_pretrained(copy, robot=ALOHA)
    one = delta.predict(observation(), noise=noise)
    arm = [i for i in range(14) if i not in (6, 13)]
    absolute = Pi0Policy.from_pretrained(copy, robot=ALOHA, action_space='absolute')
    two = absolute.predict(observation(), noise=noise)
    assert np.allclose(one[:, arm] - two[:, arm], 0.3, atol=1e-5)
    assert np.allclose(one[:, [6, 13]], two[:, [6, 13]], atol=1e-6)


def test_b52_a_missing_or_unknown_action_space_is_refused(copy):
    edit(copy, lambda d: d['pipeline'].pop('action_space'))
    with pytest.raises(Pi0RosError, match="say action_space='absolute' or 'delta'"):
        Pi0Policy.from_pretrained(copy, robot=ALOHA)
    with pytest.raises(Pi0RosError, match="'velocity' is not supported"):
        Pi0Policy.from_pretrained(copy, robot=ALOHA, action_space='velocity')


def test_missing_statistics_are_refused_unless_one_says_so(copy):
    (copy / 'norm_stats.json').unlink()
    with pytest.raises(Pi0RosError, match='no statistics.*no_normalization'):
        Pi0Policy.from_pretrained(copy, robot=ALOHA)
    assert Pi0Policy.from_pretrained(copy, robot=ALOHA, no_normalization=True)


def test_damaged_weights_never_make_a_policy(copy):
    weights = copy / 'model.safetensors'
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(Pi0RosError, match='model.safetensors'):
        Pi0Policy.from_pretrained(copy, robot=ALOHA)


@pytest.mark.parametrize(
    'path, expected',
    [('/no/such/folder', 'does not exist'), ('no_such', 'does not exist')],
)
def test_a_wrong_path_is_one_sentence(path, expected):
    with pytest.raises(Pi0RosError, match=expected):
        Pi0Policy.from_pretrained(path)
    with pytest.raises(Pi0RosError, match="'checkpoint' is empty"):
        from_parameters({})


def test_a_checkpoint_for_another_robot_is_refused_with_both_numbers(folder):
    with pytest.raises(Pi0RosError, match='14 actions.*7 joints'):
        Pi0Policy.from_pretrained(folder, robot='wxai')


def test_other_policies_are_named(copy):
    edit(copy, lambda d: (d.pop('format'), d.update(type='smolvla')))
    with pytest.raises(Pi0RosError, match="policy 'smolvla', not of pi0"):
        Pi0Policy.from_pretrained(copy, robot=ALOHA)


def test_inspect_says_what_is_missing_for_a_robot(folder):
    rows, missing = describe(folder, ALOHA)
    assert not missing and dict(rows)['layout'] == 'pi0_ros'
    _, missing = describe(folder, RobotSpec.load('wxai'))
    assert any('14' in m and '7' in m for m in missing)


def test_inspect_compares_the_actions_of_training_with_the_robots_limits(copy):
    path = copy / 'norm_stats.json'
    data = json.loads(path.read_text())
    actions = data['norm_stats']['actions']
    actions['q01'][1], actions['q99'][1] = 2.8, 3.2
    path.write_text(json.dumps(data))

    _, missing = describe(copy, ALOHA)

    assert len(missing) == 1
    assert 'left/shoulder: actions of training lie from 2.8 to 3.2' in missing[0]
    assert '1.26 rad' in missing[0]


@pytest.mark.parametrize('device', ['tpu', 'cuda:97'])
def test_a_device_that_is_not_there_is_refused_by_name(folder, device):
    with pytest.raises(Pi0RosError, match=f"device '{device}' cannot be used here"):
        Pi0Policy.from_pretrained(folder, device=device)


def test_b55_missing_and_unused_cameras_are_said_once(folder, caplog):
    policy = Pi0Policy.from_pretrained(folder)
    caplog.clear()
    given = dict(observation().images)
    given['cam_low'] = given.pop('cam_high')
    for _ in range(3):
        policy.predict(observation(images=given))
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert 'no picture of cam_high' in said[0] and 'cam_low' in said[1]


@pytest.mark.parametrize('robot', ['wxai', 'aloha'])
def test_made_checkpoints_run_on_their_robot(tmp_path, robot):
    robot = RobotSpec.load(robot)
    made = Pi0Policy.from_pretrained(make_checkpoint(tmp_path / 'x', robot=robot), robot=robot)
    made.warm_up()
    assert made.dof == robot.dof


def test_real_statistics_of_other_robots(shared_dir):
    stats = shared_dir / 'real/stats'
    franka = read_norm_stats(stats / 'openpi_robomme_norm_stats.json')
    with pytest.raises(Pi0RosError, match='8 dimensions, the robot has 14'):
        Normalizer.from_statistics('actions', franka['actions'], 'zscore', 'openpi', 14)
    humanoid = read_norm_stats(stats / 'openpi_humanoid_norm_stats.json')
    state = Normalizer.from_statistics('state', humanoid['state'], 'quantile', 'openpi')
    assert np.isfinite(state.normalize(np.array(humanoid['state']['mean']))).all()
    kinova = read_norm_stats(stats / 'openpi_kinova_norm_stats.json')
    assert len(Normalizer.from_statistics('s', kinova['state'], 'zscore', 'openpi', 8).offset) == 8


@pytest.mark.parametrize(
    'name, expected',
    [('lerobot_pi0_legacy', 'pixels'), ('lerobot_smolvla_franka', 'SmolVLA'),
     ('lerobot_dataset_v21_g1', 'no pi0 checkpoint')],
)  # fmt: skip
def test_real_folders_that_cannot_run_are_refused_by_name(shared_dir, name, expected):
    with pytest.raises(Pi0RosError, match=expected):
        describe(shared_dir / 'real/stats' / name)
