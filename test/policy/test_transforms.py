# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""The steps around the model against numbers from openpi's and LeRobot's own code."""

import json

import numpy as np
import pytest

from pi0_ros.errors import Pi0RosError
from pi0_ros.policy.aloha import (
    AlohaAdapter,
    absolute_from_delta,
    delta_from_absolute,
    make_bool_mask,
)
from pi0_ros.policy.images import model_input, resize_with_pad
from pi0_ros.policy.normalization import Normalizer, StatisticsError, live_width
from pi0_ros.policy.prompt import (
    BOS,
    PromptError,
    PromptTokenizer,
    build_byte_tokenizer,
    build_word_tokenizer,
    clean_prompt,
    load_encoder,
    pi05_text,
    state_bins,
)

PEERS = {'openpi': 'openpi', 'lerobot': 'lerobot_old'}
OPERATIONS = {
    'decode_state': 'pi_state_from_robot',
    'encode_actions': 'robot_actions_from_pi',
    'encode_actions_inv': 'pi_actions_from_robot',
}


def table(data_dir, name):
    return json.loads((data_dir / 'transforms' / f'{name}.json').read_text())


# --- pictures


def check_resize(path):
    data = np.load(path)
    picture = data['image_u8']
    assert np.array_equal(resize_with_pad(picture, 224), data['openpi_client_pil_u8'])
    ours = model_input(picture, 224, 'torch').permute(1, 2, 0).numpy()
    assert np.abs(ours - data['lerobot_model_input_f32']).max() <= 1e-6


def test_resize_is_openpis_to_the_bit_and_lerobots_to_1e_6(data_dir):
    check_resize(data_dir / 'transforms' / 'resize_100x300.npz')


def test_resize_of_every_reference_size(shared_dir):
    for path in sorted((shared_dir / 'golden/resize').glob('*.npz')):
        check_resize(path)


def test_b56_white_picture_has_range_minus_one_to_one_and_black_bars():
    x = model_input(np.full((480, 640, 3), 255, np.uint8), 224).numpy()
    assert x.max() == 1.0 and x.min() == -1.0
    assert (x[:, :28] == -1.0).all() and (x[:, -28:] == -1.0).all()
    assert (x[:, 28:196] == 1.0).all()  # 168 rows, centred


@pytest.mark.parametrize(
    'picture',
    [np.zeros((4, 4, 3), np.float32), np.full((4, 4, 3), 255.0), np.zeros((4, 4), np.uint8)],
)  # fmt: skip
def test_b56_pictures_of_other_kinds_are_refused(picture):
    with pytest.raises(Pi0RosError, match='uint8|shape'):
        model_input(picture, 224)


def test_odd_padding_goes_to_the_bottom_and_right():
    out = resize_with_pad(np.full((101, 224, 3), 9, np.uint8), 224)
    rows = np.flatnonzero(out[:, 0, 0])
    assert rows[0] == 61 and 223 - rows[-1] == 62


# --- ALOHA


def test_aloha_maps_equal_the_peers(data_dir):
    checked = 0
    for case in table(data_dir, 'aloha')['cases']:
        name = OPERATIONS.get(case['op'])
        if name is None or not case['adapt_to_pi']:
            continue
        for peer, constants in PEERS.items():
            if case.get(peer) is not None:
                ours = getattr(AlohaAdapter(constants), name)(case['input'])
                assert np.abs(ours - np.array(case[peer])).max() < 1e-12
                checked += 1
    assert checked > 50


def test_aloha_gripper_tables(data_dir):
    scalars = table(data_dir, 'aloha')['gripper_scalar']
    names = {
        'gripper_to_angular': 'pi_gripper_state_from_opening',
        'gripper_from_angular': 'opening_from_pi_gripper_action',
        'gripper_from_angular_inv': 'pi_gripper_action_from_opening',
    }
    for theirs, ours in names.items():
        for peer, constants in PEERS.items():
            got = getattr(AlohaAdapter(constants), ours)(scalars[theirs]['input'])
            assert np.abs(got - np.array(scalars[theirs][peer])).max() < 1e-12


@pytest.mark.parametrize(
    'constants, states, actions',
    [('lerobot_old', (-0.9280, -0.0036, 1.0644), (0.4835, 0.7439)),
     ('openpi', (-1.0799, -0.1401, 0.9457), (0.5534, 0.7901))],
)  # fmt: skip
def test_b49_both_generations_of_gripper_constants(constants, states, actions):
    adapter = AlohaAdapter(constants)
    state = adapter.pi_gripper_state_from_opening(np.array([0.0, 0.5, 1.0]))
    action = adapter.opening_from_pi_gripper_action(np.array([0.0, 0.5]))
    assert np.allclose(state, states, atol=1e-4) and np.allclose(action, actions, atol=1e-4)
    there = adapter.pi_gripper_state_from_opening(adapter.opening_from_pi_gripper_action(action))
    assert not np.allclose(there, action, atol=0.01)  # the maps are not inverses


def test_b48_flips_negate_shoulders_and_elbows_and_undo_themselves():
    pose = 0.1 * np.arange(1, 15)
    adapter = AlohaAdapter()
    seen = adapter.pi_state_from_robot(pose)
    arm = [i for i in range(14) if i not in (6, 13)]
    signs = np.where(np.isin(arm, (1, 2, 8, 9)), -1.0, 1.0)
    assert np.allclose(seen[arm], signs * pose[arm])
    assert np.allclose(adapter.robot_actions_from_pi(seen)[arm], pose[arm])


def test_aloha_adaptation_refuses_other_widths_and_constants():
    with pytest.raises(Pi0RosError, match='14 joints'):
        AlohaAdapter().pi_state_from_robot(np.zeros(7))
    with pytest.raises(Pi0RosError, match="'new' are not known"):
        AlohaAdapter('new')


def test_delta_actions_equal_the_peers(data_dir):
    data = table(data_dir, 'delta_actions')
    for case in data['cases']:
        actions, state = np.array(case['actions']), np.array(case['state'])
        for name, function in (('openpi_delta', delta_from_absolute),
                               ('openpi_absolute', absolute_from_delta)):  # fmt: skip
            ours = function(actions, state, case['mask'])
            assert np.abs(ours - np.array(case[name])).max() < 1e-12, case['name']
    for case in data['make_bool_mask']:
        assert list(make_bool_mask(*case['dims'])) == case['openpi']


# --- normalisation


@pytest.mark.parametrize('dialect', ['openpi', 'lerobot'])
@pytest.mark.parametrize('mode', ['zscore', 'quantile'])
def test_normalisation_equals_the_peers(data_dir, mode, dialect):
    checked = 0
    for case in table(data_dir, 'normalize')['cases']:
        normalizer = Normalizer.from_statistics('state', case, mode, dialect)
        for operation in ('normalize', 'unnormalize'):
            wanted = case.get(f'{dialect}_{mode}_{operation}')
            if wanted is not None:
                ours = getattr(normalizer, operation)(np.array(case['x']))
                assert np.allclose(ours, wanted, rtol=1e-9, atol=1e-12), case['name']
                checked += 1
    assert checked > 10


STATS = {'mean': [0.0, 1.0, 2.0], 'std': [1.0, 0.0, 2.0], 'q01': None, 'q99': None}


@pytest.mark.parametrize(
    'stats, mode, width, expected',
    [
        ({**STATS, 'mean': [0.0, np.nan, 2.0]}, 'zscore', 3, r'mean\[1\] is nan'),
        (STATS, 'quantile', 3, "no 'q01'"),
        (STATS, 'zscore', 14, 'have 3 dimensions, the robot has 14'),
        (STATS, 'zscore', 2, 'have 3 dimensions, the robot has 2'),
        ({**STATS, 'std': [1.0]}, 'zscore', None, 'mean has 3 values, std 1'),
        ({**STATS, 'std': [1.0, -1.0, 1.0]}, 'zscore', 3, 'dimension 1 is negative'),
        (STATS, 'minmax', 3, "'minmax'"),
    ],
)
def test_b53_statistics_that_do_not_fit_are_refused(stats, mode, width, expected):
    with pytest.raises(StatisticsError, match=expected):
        Normalizer.from_statistics('state', stats, mode, 'openpi', width)


def test_b53_no_spread_is_warned_of_and_stays_finite(caplog):
    with caplog.at_level('WARNING'):
        normalizer = Normalizer.from_statistics('state', STATS, 'zscore', 'openpi', 3)
    assert 'no spread in dimension 1' in caplog.text
    assert np.isfinite(normalizer.normalize([0.0, 1.0, 2.0])).all()


def test_padded_statistics_are_not_taken_for_joints():
    padded = {'mean': [0.5, -1.0, 0.0, 0.0], 'std': [1.0, 2.0, 1.0, 0.0]}
    assert live_width(padded) == 2
    assert len(Normalizer.from_statistics('actions', padded, 'zscore', 'openpi', 2).offset) == 2


# --- prompt


def test_prompts_equal_the_peers(data_dir):
    for case in table(data_dir, 'prompts')['cases']:
        state = np.array(case['state'])
        assert state_bins(state).tolist() == case['openpi_bins']
        if not case['prompt'].strip():
            continue
        text = clean_prompt(case['prompt'], 'openpi')
        assert text[:-1] == case['openpi_pi0_encode_calls'][0]['text'] and text[-1] == '\n'
        assert clean_prompt(case['prompt'], 'lerobot') == case['lerobot_pi0_task']
        assert pi05_text(case['prompt'], state) == case['openpi_pi05_encode_calls'][0]['text']


@pytest.mark.parametrize('prompt', ['', '   ', '\n'])
def test_b60_an_empty_prompt_is_refused(prompt):
    for family in ('openpi', 'lerobot'):
        with pytest.raises(PromptError, match='empty'):
            clean_prompt(prompt, family)
    with pytest.raises(PromptError, match='empty'):
        pi05_text(prompt, np.zeros(2))


def test_b60_a_long_prompt_is_cut_with_the_token_count(caplog, tmp_path):
    path = tmp_path / 'tokenizer.json'
    build_byte_tokenizer().save(str(path))
    tokens = PromptTokenizer(load_encoder(path), 'openpi', 48)
    with caplog.at_level('WARNING'):
        ids = tokens('x' * 60)
    assert len(ids) == 48 and '62 tokens' in caplog.text
    short = tokens('go')
    assert short[0] == BOS and len(short) == 4 and tokens('go') is short


def test_families_tokenise_the_newline_in_their_own_way(tmp_path):
    path = tmp_path / 'tokenizer.json'
    build_word_tokenizer(['pick up the cube']).save(str(path))
    encode = load_encoder(tmp_path)
    openpi = PromptTokenizer(encode, 'openpi')(' pick_up the cube ')
    lerobot = PromptTokenizer(encode, 'lerobot')('pick up the cube')
    assert openpi.tolist() == lerobot.tolist() and openpi[-1] == 4


def test_sentencepiece_models_are_read_too(tmp_path):
    import sentencepiece

    text = tmp_path / 'text.txt'
    text.write_text('pick up the red cube\nput it down again\n' * 50)
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(tmp_path / 'tokenizer'), vocab_size=22, pad_id=0,
        eos_id=1, bos_id=2, unk_id=3, minloglevel=2,
    )  # fmt: skip
    ids = PromptTokenizer(load_encoder(tmp_path), 'openpi')('pick up')
    assert ids[0] == BOS and len(ids) > 2


def test_missing_and_broken_tokenizers_are_named(tmp_path):
    with pytest.raises(PromptError, match='no tokenizer.json'):
        load_encoder(tmp_path)
    (tmp_path / 'tokenizer.json').write_text('{')
    with pytest.raises(PromptError, match='no readable tokenizer'):
        load_encoder(tmp_path)
