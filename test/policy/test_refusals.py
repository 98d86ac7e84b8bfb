# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Checkpoints and prompts as they go wrong in practice: each refused in one clear sentence."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from test_checkpoint import write_new, write_old

from pi0_ros.cli import main
from pi0_ros.errors import Pi0RosError
from pi0_ros.policy import Pi0Policy
from pi0_ros.policy.checkpoint import read_checkpoint
from pi0_ros.policy.images import model_input
from pi0_ros.policy.inspect import describe
from pi0_ros.policy.make_checkpoint import make_checkpoint
from pi0_ros.policy.prompt import (
    BOS,
    PromptError,
    PromptTokenizer,
    build_byte_tokenizer,
    clean_prompt,
)
from pi0_ros.robot import RobotSpec

ALOHA = RobotSpec.load('aloha')


@pytest.fixture(scope='module')
def made(tmp_path_factory):
    return make_checkpoint(tmp_path_factory.mktemp('made') / 'tiny')


@pytest.fixture()
def copy(made, tmp_path):
    return shutil.copytree(made, tmp_path / 'copy')


def refused(folder, *words):
    """Check that loading fails with one line that has the words; return it."""
    with pytest.raises(Pi0RosError) as caught:
        Pi0Policy.from_pretrained(folder, robot=ALOHA)
    text = str(caught.value)
    assert '\n' not in text and len(text) < 1500
    for word in words:
        assert word in text, text
    return text


def edit(folder, change, name='config.json'):
    path = folder / name
    data = json.loads(path.read_text())
    path.write_text(json.dumps(change(data) or data))
    return folder


# --- config.json


@pytest.mark.parametrize('content', [b'', b'{"a": ', b'[1]', b'\xff\xfe\x00', b'3'])
def test_a_config_that_is_no_json_object_is_named(copy, content):
    (copy / 'config.json').write_bytes(content)
    refused(copy, 'config.json')
    with pytest.raises(Pi0RosError, match='config.json'):
        describe(copy)


@pytest.mark.parametrize(
    'key, value',
    [
        ('aloha', 'new'), ('resize', 'cv2'), ('state_mode', 'MEAN_STD'), ('dialect', 'x'),
        ('action_space', 'velocity'), ('cameras', ['cam_high']), ('cameras', {}),
        ('cameras', {'cam_high': None}), ('delta_mask', [True] * 3), ('delta_mask', 'x'),
        ('prompt_tokens', '48'), ('prompt_tokens', 0), ('action_dim', '14'), ('wings', 2),
        ('camera_order', ['cam_low']),
    ],
)  # fmt: skip
def test_pipeline_entries_that_mean_nothing_are_named(copy, key, value):
    edit(copy, lambda d: d['pipeline'].update({key: value}))
    refused(copy, 'config.json', key)


@pytest.mark.parametrize(
    'change, word',
    [
        (lambda m: m['dims']['text'].update(width='64'), "text.width '64'"),
        (lambda m: m['dims']['text'].update(depth=-1), 'text.depth -1'),
        (lambda m: m['dims'].update(chunk=0), 'chunk 0'),
        (lambda m: m['dims'].pop('text'), "'text' is missing"),
        (lambda m: m.update(wings=2), 'unknown fields wings'),
        (lambda m: m.update(kind='pi9'), "kind 'pi9'"),
        (lambda m: m.update(family='x'), "family 'x'"),
    ],
)
def test_sizes_that_make_no_model_are_named(copy, change, word):
    edit(copy, lambda d: change(d['model']) and None)
    refused(copy, word)


@pytest.mark.parametrize(
    'config, words',
    [
        ({'type': 'pi0_fast'}, 'pi0-FAST'), ({'type': 'pi0fast'}, 'pi0-FAST'),
        ({'type': 'act'}, "policy 'act', not of pi0"),
        ({'model_type': 'paligemma'}, "type 'paligemma', not pi0"),
        ({'model_type': 'pi0_fast'}, 'pi0-FAST'),
    ],
)  # fmt: skip
def test_other_policies_are_called_by_their_name(tmp_path, config, words, capsys):
    (tmp_path / 'config.json').write_text(json.dumps(config))
    refused(tmp_path, words)
    assert main(['inspect', str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert words in captured.err and captured.err.count('\n') == 1


def test_folders_that_hold_something_else_are_refused(tmp_path):
    refused(tmp_path, 'no pi0 checkpoint', 'model.safetensors')
    torch.save({}, tmp_path / 'pytorch_model.bin')
    refused(tmp_path, 'pickles are refused: pytorch_model.bin')
    (tmp_path / 'adapter_config.json').write_text('{}')
    refused(tmp_path, 'LoRA adapter')
    for path in ('', '  '):
        refused(path, 'is empty')


# --- weights


def save_openpi(made, folder, tensors):
    folder.mkdir()
    shutil.copy(made / 'tokenizer.json', folder)
    shutil.copy(made / 'norm_stats.json', folder)
    dims = json.loads((made / 'config.json').read_text())['model']['dims']
    (folder / 'config.json').write_text(json.dumps({'dims': dims}))
    save_file(tensors, folder / 'model.safetensors')
    return folder


@pytest.mark.parametrize(
    'change, words',
    [
        (lambda t: {'module.' + k: v for k, v in t.items()}, ['none of its', 'module.action_in']),
        (lambda t: {k: v for k, v in t.items() if 'paligemma.' in k}, ['pi0-FAST', 'no action']),
        (lambda t: {k: v for k, v in t.items() if 'state_proj' not in k},
         ['2 missing', 'state_proj.weight', 'state_proj.bias']),
        (lambda t: {**t, 'wings': torch.zeros(1)}, ['1 extra: wings']),
    ],
)  # fmt: skip
def test_weights_under_other_names_are_named(made, tmp_path, change, words):
    folder = save_openpi(made, tmp_path / 'x', change(load_file(made / 'model.safetensors')))
    with pytest.raises(Pi0RosError) as caught:
        Pi0Policy.from_pretrained(folder, robot=ALOHA, action_space='delta', aloha='openpi')
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize('index', ['{', '{"weight_map": {}}', '{"weight_map": {"a": 3}}', '[]'])
def test_an_index_that_is_none_is_refused(copy, index):
    (copy / 'model.safetensors').unlink()
    (copy / 'model.safetensors.index.json').write_text(index)
    refused(copy, str(copy))


# --- LeRobot's processors


def normalizer(d):
    return next(s for s in d['steps'] if s['registry_name'] == 'normalizer_processor')


@pytest.mark.parametrize(
    'change, words',
    [
        (lambda d: {'steps': {}}, "'steps' is no list"),
        (lambda d: normalizer(d).update(registry_name='mine'), 'has no statistics'),
        (lambda d: normalizer(d).pop('state_file') and None, 'has no statistics'),
        (lambda d: normalizer(d).update(state_file='../x.safetensors'), 'outside'),
        (lambda d: normalizer(d).update(config={'eps': 1e-6}), 'eps 1e-06'),
        (lambda d: normalizer(d).update(config={'norm_map': {'STATE': 'MIN_MAX'}}), "no 'min'"),
        (lambda d: normalizer(d).update(config={'norm_map': {'STATE': 'LOG'}}), 'LOG of STATE'),
        (lambda d: normalizer(d).update(config={'norm_map': {'VISUAL': 'MEAN_STD'}}), 'pictures'),
        (lambda d: d['steps'][0].update(config={'rename_map': [1]}), 'rename_map'),
    ],
)
def test_processors_that_cannot_be_followed_are_named(made, tmp_path, change, words):
    folder = edit(write_new(made, tmp_path / 'new'), change, 'policy_preprocessor.json')
    refused(folder, words)


def test_steps_are_found_by_class_and_strange_ones_are_told(made, tmp_path, caplog):
    def by_class(d):
        step = normalizer(d)
        del step['registry_name']
        step['class'] = 'lerobot.processor.normalize_processor.NormalizerProcessorStep'
        d['steps'].append({'registry_name': 'image_crop_resize_processor', 'config': {}})

    folder = edit(write_new(made, tmp_path / 'new'), by_class, 'policy_preprocessor.json')
    with caplog.at_level('WARNING'):
        policy = Pi0Policy.from_pretrained(folder, robot=ALOHA)
    assert policy.info.statistics_source == 'seven.safetensors'
    assert 'image_crop_resize_processor' in caplog.text
    assert 'image_crop_resize_processor' in dict(describe(folder, ALOHA)[0])['note']


def test_what_the_steps_say_goes_before_the_config(made, tmp_path):
    def relative(d):
        names = [f'joint_{i}' for i in range(13)] + ['right_gripper']
        said = {'enabled': True, 'exclude_joints': ['gripper'], 'action_names': names}
        tokens = {'max_length': 9, 'tokenizer_name': 'some/where', 'truncation': True}
        d['steps'] += [{'registry_name': 'relative_actions_processor', 'config': said},
                       {'registry_name': 'tokenizer_processor', 'config': tokens}]  # fmt: skip

    folder = edit(write_new(made, tmp_path / 'new'), relative, 'policy_preprocessor.json')
    info = read_checkpoint(folder)
    assert info.action_space == 'delta' and info.delta_mask == (True,) * 13 + (False,)
    assert info.prompt_tokens == 9 and info.tokenizer == 'some/where'


def test_a_width_of_32_is_padding_and_another_robots_is_refused(made, tmp_path):
    padded = {'action': {'type': 'ACTION', 'shape': [32]}}
    folder = write_new(made, tmp_path / 'padded', output_features=padded)
    assert read_checkpoint(folder).action_dim is None
    assert Pi0Policy.from_pretrained(folder, robot=ALOHA).dof == 14
    state = {'observation.state': {'type': 'STATE', 'shape': [8]}}
    folder = write_new(made, tmp_path / 'eight', input_features=state)
    refused(folder, '8 values of state', '14 joints')


def test_old_statistics_that_were_never_given_are_absent(made, tmp_path):
    folder = write_old(made, tmp_path / 'old')
    tensors = load_file(folder / 'model.safetensors')
    never = {k: torch.full_like(v, torch.inf) if 'buffer' in k else v for k, v in tensors.items()}
    save_file(never, folder / 'model.safetensors')
    refused(folder, 'no statistics', 'no_normalization')
    half = {k: v for k, v in tensors.items() if not k.startswith('unnormalize_outputs')}
    save_file(half, folder / 'model.safetensors')
    refused(folder, 'unnormalize_outputs.buffer_action', 'missing')
    small = {k: v.bfloat16() for k, v in tensors.items()}
    save_file(small, folder / 'model.safetensors')
    assert Pi0Policy.from_pretrained(folder, robot=ALOHA).info.statistics


@pytest.mark.parametrize(
    'name, content, words',
    [
        ('config.json', '{', 'config.json'),
        ('config.json', '{"type": "pi0_fast"}', 'pi0-FAST'),
        ('policy_preprocessor.json', '{', 'policy_preprocessor.json'),
        ('policy_preprocessor.json', '{"steps": ["a"]}', "'steps' is no list"),
        ('policy_preprocessor.json', '{"steps": [{"state_file": 3}]}', 'state_file 3'),
        ('policy_preprocessor.json', '{"steps": [{"state_file": "../*"}]}', "'../*'"),
    ],
)
def test_nothing_is_converted_of_what_is_refused(made, tmp_path, name, content, words, capsys):
    folder = write_new(made, tmp_path / 'new')
    (folder / name).write_text(content)
    assert main(['convert', str(folder), str(tmp_path / 'out')]) == 2
    captured = capsys.readouterr()
    assert words in captured.err and captured.err.count('\n') == 1
    assert not (tmp_path / 'out').exists()


def test_a_broken_npz_is_refused(tmp_path, capsys):
    for content in (b'PK', b'', b'PK\x03\x04' + b'0' * 60):
        (tmp_path / 'params.npz').write_bytes(content)
        assert main(['convert', str(tmp_path / 'params.npz'), str(tmp_path / 'out')]) == 2
        assert 'no .npz of openpi parameters' in capsys.readouterr().err


# --- native PI0 of transformers


def test_native_pi0_takes_statistics_and_pictures_as_its_processor(made, tmp_path):
    folder = save_openpi(made, tmp_path / 'native', load_file(made / 'model.safetensors'))
    edit(folder, lambda d: d.update(model_type='pi0'))
    info = read_checkpoint(folder)  # with openpi's statistics it is openpi's
    assert (info.layout, info.resize, info.dialect) == ('transformers', 'pillow', 'openpi')
    (folder / 'norm_stats.json').unlink()
    processor = {f'{name}_{key}': [0.5] * 14 for name in ('state', 'actions')
                 for key in ('mean', 'std')}  # fmt: skip
    (folder / 'processor_config.json').write_text(json.dumps(processor))
    policy = Pi0Policy.from_pretrained(folder, robot=ALOHA, action_space='absolute', aloha='off')
    info = policy.info
    assert (info.resize, info.dialect, info.family) == ('transformers', 'lerobot', 'transformers')
    assert info.statistics['actions']['std'] == [0.5] * 14
    edit(folder, lambda d: d.pop('state_std') and None, 'processor_config.json')
    refused(folder, 'state_mean and state_std')


def test_transformers_pads_with_grey_at_the_right_and_bottom():
    x = model_input(np.full((480, 640, 3), 255, np.uint8), 224, 'transformers').numpy()
    assert (x[:, :168] == 1.0).all() and (x[:, 168:] == 0.0).all()
    x = model_input(np.zeros((640, 480, 3), np.uint8), 224, 'transformers').numpy()
    assert (x[:, :, :168] == -1.0).all() and (x[:, :, 168:] == 0.0).all()
    same = np.random.default_rng(0).integers(0, 256, (224, 224, 3), np.uint8)
    x = model_input(same, 224, 'transformers').permute(1, 2, 0).numpy()
    assert np.array_equal(np.rint((x + 1) * 127.5), same)


def test_transformers_resize_is_pillows_bicubic_to_a_level():
    from PIL import Image

    picture = np.random.default_rng(1).integers(0, 256, (300, 500, 3), np.uint8)
    wanted = Image.fromarray(picture).resize((224, 134), Image.Resampling.BICUBIC)
    x = model_input(picture, 224, 'transformers').permute(1, 2, 0).numpy()
    assert np.abs(np.rint((x[:134] + 1) * 127.5) - np.asarray(wanted, float)).max() <= 1


# --- instructions


ODD = [
    '  pick_up\nthe_cube.  ', 'pick up\r\nthe cube', 'tab\there', 'Fass die T\u00fcr \U0001f916!',
    'a\u00a0b', 'trailing\n', '\nleading', 'ends with_', 'x' * 500, '<bos> <eos> <pad>',
]  # fmt: skip


@pytest.mark.parametrize('prompt', ODD)
def test_odd_instructions_are_cleaned_as_the_family_cleans(prompt):
    openpi = clean_prompt(prompt, 'openpi')
    assert openpi == prompt.strip().replace('_', ' ').replace('\n', ' ') + '\n'
    assert openpi.count('\n') == 1 and '_' not in openpi
    assert clean_prompt(prompt, 'lerobot') == prompt.rstrip('\n') + '\n'
    assert clean_prompt(prompt, 'transformers') == prompt + '\n'


def encoder():
    tokenizer = build_byte_tokenizer()
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize('prompt', ODD)
@pytest.mark.parametrize('family', ['openpi', 'lerobot', 'transformers'])
def test_odd_instructions_make_tokens_of_the_right_length(prompt, family, caplog):
    whole = PromptTokenizer(encoder(), family, 1000)(prompt)
    assert whole[0] == BOS and whole[-1] == encoder()('\n')[0] and len(whole) > 2
    with caplog.at_level('WARNING'):
        cut = PromptTokenizer(encoder(), family, 48)(prompt)
        kept = PromptTokenizer(encoder(), family, 48, truncate=False)(prompt)
    assert np.array_equal(cut, whole[:48]) and np.array_equal(kept, whole)
    assert ('cut off' in caplog.text) == ("kept, as its trainer's" in caplog.text) == (
        len(whole) > 48
    )  # fmt: skip


@pytest.mark.parametrize('prompt', ['', ' \n\t ', '___', '_ _', None, 7])
@pytest.mark.parametrize('family', ['openpi', 'lerobot', 'transformers'])
def test_nothing_to_do_is_refused(prompt, family):
    with pytest.raises(PromptError, match='empty|no text'):
        PromptTokenizer(encoder(), family)(prompt)


def test_another_models_tokenizer_is_refused():
    tokens = PromptTokenizer(lambda text: [5, 900], 'openpi', vocab=512)
    with pytest.raises(PromptError, match='id 900, the model has 512 tokens'):
        tokens('go')


def test_a_missing_tokenizer_names_where_to_get_it(copy, tmp_path):
    (copy / 'tokenizer.json').unlink()
    script = (
        'import sys; from pi0_ros.policy import Pi0Policy\n'
        'try: Pi0Policy.from_pretrained(sys.argv[1], robot="aloha")\n'
        'except ValueError as error: print(error)'
    )
    quiet = {**os.environ, 'HF_HUB_OFFLINE': '1', 'HF_HOME': str(tmp_path / 'hub')}
    command = [sys.executable, '-c', script, str(copy)]

    def said():
        done = subprocess.run(command, env=quiet, capture_output=True, text=True, timeout=120)
        return done.stdout

    assert "tokenizer 'google/paligemma-3b-pt-224' cannot be loaded" in said()
    snapshot = tmp_path / 'hub/hub/models--google--paligemma-3b-pt-224/snapshots/abc'
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / 'refs').mkdir()
    (snapshot.parents[1] / 'refs/main').write_text('abc')
    build_byte_tokenizer().save(str(snapshot / 'tokenizer.json'))
    assert said() == ''  # it was in the hub's cache
