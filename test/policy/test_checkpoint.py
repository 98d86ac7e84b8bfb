# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Folders as LeRobot and openpi leave them: what is read from them, what is refused, converted."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from pi0_ros.errors import Pi0RosError
from pi0_ros.observation import Observation
from pi0_ros.policy import Guidance, Pi0Policy
from pi0_ros.policy.checkpoint import looks_relative, read_checkpoint, read_norm_stats
from pi0_ros.policy.convert import convert
from pi0_ros.policy.images import model_input
from pi0_ros.policy.inspect import describe
from pi0_ros.policy.make_checkpoint import make_checkpoint
from pi0_ros.resources import share_path
from pi0_ros.robot import RobotSpec

ALOHA = RobotSpec.load('aloha')
MEAN = np.linspace(-0.5, 0.5, 14).astype(np.float32)
STD = np.full(14, 0.25, np.float32)
FEATURES = {f'observation.images.{name}': {'type': 'VISUAL', 'shape': [3, 48, 64]}
            for name in ('cam_high', 'cam_left_wrist', 'cam_right_wrist')}  # fmt: skip


@pytest.fixture(scope='module')
def made(tmp_path_factory):
    return make_checkpoint(tmp_path_factory.mktemp('made') / 'tiny')


def lerobot_config(made, **changes):
    mapping = {'VISUAL': 'IDENTITY', 'STATE': 'MEAN_STD', 'ACTION': 'MEAN_STD'}
    return {
        'type': 'pi0', 'chunk_size': 50, 'normalization_mapping': mapping,
        'input_features': {**FEATURES, 'observation.state': {'type': 'STATE', 'shape': [14]}},
        'output_features': {'action': {'type': 'ACTION', 'shape': [14]}},
        'dims': json.loads((made / 'config.json').read_text())['model']['dims'], **changes,
    }  # fmt: skip


def write_new(made, folder, pre=MEAN, post=MEAN, rename=None, **changes):
    folder.mkdir()
    shutil.copy(made / 'model.safetensors', folder)
    shutil.copy(made / 'tokenizer.json', folder)
    (folder / 'config.json').write_text(json.dumps(lerobot_config(made, **changes)))
    stats = {'observation.state.mean': pre, 'observation.state.std': STD,
             'action.mean': pre, 'action.std': STD}  # fmt: skip
    save_file(stats, folder / 'seven.safetensors')
    save_file({'action.mean': post, 'action.std': STD}, folder / 'zero.safetensors')
    steps = [
        {'registry_name': 'rename_observations_processor', 'config': {'rename_map': rename or {}}},
        {'registry_name': 'normalizer_processor', 'state_file': 'seven.safetensors'},
    ]
    (folder / 'policy_preprocessor.json').write_text(json.dumps({'steps': steps}))
    steps = [{'registry_name': 'unnormalizer_processor', 'state_file': 'zero.safetensors'}]
    (folder / 'policy_postprocessor.json').write_text(json.dumps({'steps': steps}))
    return folder


def write_old(made, folder, **changes):
    folder.mkdir()
    shutil.copy(made / 'tokenizer.json', folder)
    (folder / 'config.json').write_text(json.dumps(lerobot_config(made, **changes)))
    tensors = load_file(made / 'model.safetensors')
    for prefix in ('normalize_inputs.buffer_observation_state', 'normalize_targets.buffer_action',
                   'unnormalize_outputs.buffer_action'):  # fmt: skip
        tensors[f'{prefix}.mean'], tensors[f'{prefix}.std'] = MEAN.copy(), STD.copy()
    save_file(tensors, folder / 'model.safetensors')
    return folder


def write_openpi(made, folder):
    (folder / 'assets/trossen').mkdir(parents=True)
    shutil.copy(made / 'model.safetensors', folder)
    shutil.copy(made / 'norm_stats.json', folder / 'assets/trossen')
    return folder


def observation():
    images = {name: np.full((48, 64, 3), 90, np.uint8) for name in ALOHA.cameras}
    return Observation(images=images, state=np.full(14, 0.3), prompt='go')


def test_statistics_come_from_the_files_that_the_processors_name(made, tmp_path):
    info = read_checkpoint(write_new(made, tmp_path / 'new', post=MEAN + 1))
    assert info.layout == 'lerobot' and info.dialect == 'lerobot'
    assert info.statistics_source == 'seven.safetensors'
    assert np.array_equal(info.statistics['state']['mean'], MEAN)
    assert np.array_equal(info.statistics['actions']['mean'], MEAN + 1)  # the postprocessor's


@pytest.mark.parametrize('name', ['seven.safetensors', 'zero.safetensors'])
def test_a_statistics_file_that_is_named_and_absent_is_refused(made, tmp_path, name):
    folder = write_new(made, tmp_path / 'new')
    (folder / name).unlink()
    with pytest.raises(Pi0RosError, match=f'{name}.*missing'):
        Pi0Policy.from_pretrained(folder, robot=ALOHA)


def test_cameras_are_called_as_the_robot_calls_them(made, tmp_path):
    features = {
        'observation.images.base_0_rgb': {'shape': [3, 224, 224]},
        'observation.state': {'shape': [14]},
    }
    rename = {'observation.images.cam_high': 'observation.images.base_0_rgb'}
    folder = write_new(made, tmp_path / 'new', rename=rename, input_features=features)
    assert read_checkpoint(folder).cameras == {'cam_high': 'base_0_rgb'}


def with_cam_low(tmp_path):
    """Return ALOHA with its fourth camera, which has no slot of pi0's own data."""
    text = (share_path('config/robots/aloha.yaml')).read_text()
    line = '  cam_low: {topic: /cam_low/image, required: false}\n  cam_left_wrist:'
    path = tmp_path / 'aloha4.yaml'
    path.write_text(text.replace('  cam_left_wrist:', line))
    return RobotSpec.load(path)


def test_four_cameras_are_all_seen_in_the_order_of_the_config(made, tmp_path, caplog):
    names = ('cam_high', 'cam_low', 'cam_left_wrist', 'cam_right_wrist')
    features = {f'observation.images.{n}': {'type': 'VISUAL', 'shape': [3, 48, 64]} for n in names}
    features['observation.images.empty_camera_0'] = {'type': 'VISUAL', 'shape': [3, 224, 224]}
    features['observation.state'] = {'type': 'STATE', 'shape': [14]}
    folder = write_new(made, tmp_path / 'new', input_features=features)
    four, three = with_cam_low(tmp_path), ALOHA
    assert tuple(read_checkpoint(folder).cameras) == names
    policy = Pi0Policy.from_pretrained(folder, robot=four)
    assert tuple(policy.cameras) == names
    rng = np.random.default_rng(0)
    images = {n: rng.integers(0, 255, (48, 64, 3), np.uint8) for n in names}
    seen = Observation(images=images, state=np.full(14, 0.3), prompt='go')
    noise = np.zeros((50, 32), np.float32)
    whole = policy.predict(seen, noise=noise)
    wanted = policy.model.sample_actions(
        [model_input(images[n], 224, 'torch')[None] for n in names], [torch.ones(1) > 0] * 4,
        *(torch.from_numpy(x)[None] for x in tokens_and_state(policy, seen)),
        noise=torch.from_numpy(noise)[None],
    )[0]  # fmt: skip
    assert np.abs(whole - (wanted[:, :14].numpy() * STD + MEAN)).max() < 1e-5
    with caplog.at_level('WARNING'):
        policy = Pi0Policy.from_pretrained(folder, robot=three)
    assert 'cam_low' in caplog.text and 'cam_low' not in policy.cameras
    del images['cam_low']
    part = policy.predict(seen, noise=noise)
    assert np.isfinite(part).all() and not np.array_equal(part, whole)


def tokens_and_state(policy, seen):
    ids = policy.tokenizer(seen.prompt)
    state = np.zeros(32, np.float32)
    state[:14] = (seen.state - MEAN) / (STD + 1e-8)
    return ids, np.ones(len(ids), bool), state


def test_cameras_named_by_slot_keep_the_order_of_the_config(made, tmp_path):
    slots = ('base_0_rgb', 'right_wrist_0_rgb', 'left_wrist_0_rgb')
    features = {f'observation.images.{n}': {'type': 'VISUAL', 'shape': [3, 48, 64]} for n in slots}
    features['observation.state'] = {'type': 'STATE', 'shape': [14]}
    folder = write_new(made, tmp_path / 'new', input_features=features)
    expected = ('cam_high', 'cam_right_wrist', 'cam_left_wrist')
    assert tuple(Pi0Policy.from_pretrained(folder, robot=ALOHA).cameras) == expected


def test_no_camera_stands_in_for_one_that_is_known_by_name(made, tmp_path):
    features = {f'observation.images.{n}': {'type': 'VISUAL', 'shape': [3, 48, 64]}
                for n in ('cam_high', 'cam_low')}  # fmt: skip
    features['observation.state'] = {'type': 'STATE', 'shape': [14]}
    folder = write_new(made, tmp_path / 'new', input_features=features)
    assert Pi0Policy.from_pretrained(folder, robot=ALOHA).cameras == {'cam_high': 'base_0_rgb'}
    assert any('cam_low (will be masked)' in m for m in describe(folder, ALOHA)[1])


def test_cameras_of_unknown_names_take_the_slots_in_turn(made, tmp_path):
    features = {f'observation.images.{n}': {'type': 'VISUAL', 'shape': [3, 48, 64]}
                for n in ('front', 'left', 'right')}  # fmt: skip
    features['observation.state'] = {'type': 'STATE', 'shape': [14]}
    folder = write_new(made, tmp_path / 'new', input_features=features)
    expected = ['cam_high', 'cam_left_wrist', 'cam_right_wrist']
    assert list(Pi0Policy.from_pretrained(folder, robot=ALOHA).cameras) == expected


def test_a_camera_without_the_usual_prefix_is_a_camera(made, tmp_path):
    features = {'observation.image': {'type': 'VISUAL', 'shape': [3, 48, 64]},
                'observation.state': {'type': 'STATE', 'shape': [14]}}  # fmt: skip
    folder = write_new(made, tmp_path / 'new', input_features=features)
    assert read_checkpoint(folder).cameras == {'image': 'base_0_rgb'}


@pytest.mark.parametrize(
    'changes, expected',
    [({}, [12, 13]), ({'relative_exclude_joints': []}, []),
     ({'relative_exclude_joints': ['waist']}, [0]), ({'action_feature_names': None}, [])],
)  # fmt: skip
def test_relative_actions_leave_out_what_lerobot_leaves_out(made, tmp_path, changes, expected):
    names = ['Waist', *(f'joint_{i}' for i in range(11)), 'Left_Gripper', 'right_gripper.pos']
    said = {'use_relative_actions': True, 'action_feature_names': names, **changes}
    mask = read_checkpoint(write_new(made, tmp_path / 'new', **said)).delta_mask
    absolute = [i for i, relative in enumerate(mask) if not relative]
    assert len(mask) == 14 and absolute == expected


def test_old_lerobot_keeps_its_statistics_among_the_weights(made, tmp_path):
    info = read_checkpoint(write_old(made, tmp_path / 'old', adapt_to_pi_aloha=True))
    assert info.layout == info.aloha == 'lerobot_old' and info.action_space == 'absolute'
    assert np.array_equal(info.statistics['actions']['std'], STD)


def test_the_flag_of_deltas_that_old_lerobot_never_had_must_be_explained(made, tmp_path):
    folder = write_old(made, tmp_path / 'old', use_delta_joint_actions_aloha=True)
    with pytest.raises(Pi0RosError, match="say action_space='absolute' or 'delta'"):
        Pi0Policy.from_pretrained(folder, robot=ALOHA)
    assert Pi0Policy.from_pretrained(folder, robot=ALOHA, action_space='delta')


def test_a_converted_checkpoint_of_old_lerobot_acts_as_before(made, tmp_path):
    old = write_old(made, tmp_path / 'old', adapt_to_pi_aloha=True)
    before = Pi0Policy.from_pretrained(old, robot=ALOHA)
    after = Pi0Policy.from_pretrained(convert(old, tmp_path / 'ours'), robot=ALOHA)
    assert after.aloha_constants == before.aloha_constants == 'lerobot_old'
    noise = np.zeros((50, 32), np.float32)
    one, two = (p.predict(observation(), noise=noise) for p in (before, after))
    assert np.array_equal(one, two)


def test_converting_keeps_the_family(made, tmp_path):
    openpi = write_openpi(made, tmp_path / 'openpi')
    (openpi / 'config.json').write_text(json.dumps({'dims': lerobot_config(made)['dims']}))
    ours = convert(openpi, tmp_path / 'ours')
    assert read_checkpoint(openpi).family == read_checkpoint(ours).family == 'openpi'
    new = convert(write_new(made, tmp_path / 'new'), tmp_path / 'ours_too')
    assert read_checkpoint(new).family == 'lerobot'


def test_deltas_of_a_robot_without_known_grippers_are_refused(tmp_path):
    folder = make_checkpoint(tmp_path / 'wxai', robot='wxai')
    with pytest.raises(Pi0RosError, match='which of 7 are grippers'):
        Pi0Policy.from_pretrained(folder, action_space='delta')
    assert Pi0Policy.from_pretrained(folder, robot='wxai', action_space='delta')


def test_statistics_of_deltas_are_recognised():
    state = {'mean': [1.0, -2.0, 0.5], 'std': [1.0] * 3}
    deltas = {'mean': [0.01, -0.02, 0.0], 'std': [0.05] * 3}
    assert looks_relative({'state': state, 'actions': deltas})
    assert not looks_relative({'state': state, 'actions': state})


def test_real_statistics_of_deltas_are_recognised(shared_dir):
    for name in ('kinova', 'robomme'):
        path = shared_dir / f'real/stats/openpi_{name}_norm_stats.json'
        assert looks_relative(read_norm_stats(path))


def test_the_real_legacy_folder_is_explained_in_full(shared_dir):
    with pytest.raises(Pi0RosError, match='pixels.*IDENTITY.*model-00001-of-00003.safetensors'):
        read_checkpoint(shared_dir / 'real/stats/lerobot_pi0_legacy')
    with pytest.raises(Pi0RosError, match='LeRobot data set .v2.1., no pi0 checkpoint'):
        read_checkpoint(shared_dir / 'real/stats/lerobot_dataset_v21_g1')


def test_inspect_knows_the_kind_before_it_names_the_normalisation(tmp_path):
    from pi0_ros.policy.config import Pi0Config
    from pi0_ros.policy.make_checkpoint import write_checkpoint
    from pi0_ros.policy.model import Pi0Model
    from pi0_ros.policy.prompt import build_byte_tokenizer

    model = Pi0Model.random(Pi0Config.named('tiny', 'pi05', 'openpi'), 0)
    stats = {'q01': [-1.0] * 14, 'q99': [1.0] * 14, 'mean': None, 'std': None}
    folder = write_checkpoint(
        tmp_path / 'x', model, {}, {'state': stats, 'actions': stats}, build_byte_tokenizer()
    )
    data = json.loads((folder / 'config.json').read_text())
    (folder / 'config.json').write_text(json.dumps({'dims': data['model']['dims']}))
    rows, missing = describe(folder, ALOHA)
    assert not [sentence for sentence in missing if sentence.startswith('weights')]
    assert 'quantile' in dict(rows)['normalisation']


@pytest.mark.parametrize('shape', [(50, 14), (49, 32), (2, 50, 32), (25, 64)])
def test_noise_of_another_shape_is_refused(made, shape):
    policy = Pi0Policy.from_pretrained(made, robot=ALOHA)
    with pytest.raises(Pi0RosError, match='noise has shape'):
        policy.predict(observation(), noise=np.zeros(shape, np.float32))


def test_guidance_of_another_width_and_a_closed_policy_are_refused(made):
    policy = Pi0Policy.from_pretrained(made, robot=ALOHA)
    with pytest.raises(Pi0RosError, match='7 values a row, the policy takes 14'):
        policy.predict(observation(), guidance=Guidance(np.zeros((9, 7)), 1, 5))
    policy.close()
    with pytest.raises(Pi0RosError, match='closed'):
        policy.predict(observation())
