# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Every key layout loads to the same numbers; everything else is refused with the list."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys

import pytest
import torch
from golden import gap, pick, random_inputs, tiny_config
from safetensors.torch import load_file, save_file

from pi0_ros.errors import Pi0RosError
from pi0_ros.policy import Pi0Config, Pi0Model
from pi0_ros.policy import weights as weight_files
from pi0_ros.policy.config import KINDS

HEAD = 'paligemma_with_expert.paligemma.lm_head.weight'
TOKENS = 'paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight'
EXPERT_HEAD = 'paligemma_with_expert.gemma_expert.lm_head.weight'


@pytest.fixture(scope='module', params=KINDS)
def model(request):
    return Pi0Model.random(tiny_config(kind=request.param), seed=7)


@pytest.fixture(scope='module')
def documented(model, tmp_path_factory):
    path = tmp_path_factory.mktemp('weights') / 'model.safetensors'
    model.save(path)
    return load_file(path)


def renamed(tensors, *rules):
    """Return the tensors with each key sent through the first pattern that it matches."""
    result = {}
    for key, value in tensors.items():
        for pattern, replacement in rules:
            if re.search(pattern, key):
                key = re.sub(pattern, replacement, key)
                break
        result[key] = value
    return result


def lerobot_old(t):
    t = renamed(
        t,
        (r'^(.*paligemma)\.model\.language_model\.', r'model.\1.language_model.model.'),
        (r'^(.*paligemma)\.lm_head', r'model.\1.language_model.lm_head'),
        (r'^(.*paligemma)\.model\.', r'model.\1.'),
        (r'^', 'model.'),
    )
    t['model.' + EXPERT_HEAD] = torch.zeros(40, 16)
    t['normalize_inputs.buffer_observation_state.mean'] = torch.zeros(14)
    t['unnormalize_outputs.buffer_action.std'] = torch.ones(14)
    return t


def lerobot_resaved(t):
    return renamed({**t, EXPERT_HEAD: torch.randn(40, 16)}, ('^', 'model.'))


def lerobot_new_untied(t):
    tokens = t[HEAD]
    return renamed({**t, TOKENS: tokens, HEAD: tokens + 1}, ('^', 'model.'))


def openpi(t):
    return {**t, EXPERT_HEAD: torch.randn(40, 16)}


def embedding_alone(t):
    return renamed(t, (re.escape(HEAD), TOKENS))


def native_in_memory(t):
    return renamed(
        t,
        (re.escape(HEAD), 'model.vlm.language_model.embed_tokens.weight'),
        (r'^paligemma_with_expert\.paligemma\.model\.', 'model.vlm.'),
        (r'^paligemma_with_expert\.gemma_expert\.model\.', 'model.dit.'),
        (r'^(?!action_out)', 'embed_action_time.'),
    ) | {'model.dit.embed_tokens.weight': torch.randn(40, 16)}


def native_without_vision_model(t):
    return renamed(native_in_memory(t), (r'vision_tower\.vision_model\.', 'vision_tower.'))


def native_saved(t):
    return renamed(
        {**t, EXPERT_HEAD: torch.randn(40, 16)},
        (re.escape(HEAD), TOKENS.replace('language_model.', 'language_model.model.')),
        (r'vision_tower\.vision_model\.', 'vision_tower.'),
        (r'paligemma\.model\.language_model\.', 'paligemma.model.language_model.model.'),
    )


LAYOUTS = (
    lerobot_old, lerobot_resaved, lerobot_new_untied, openpi, embedding_alone, native_in_memory,
    native_without_vision_model, native_saved,
)  # fmt: skip


@pytest.mark.parametrize('layout', LAYOUTS, ids=lambda layout: layout.__name__)
def test_every_layout_gives_the_same_actions(model, documented, layout, tmp_path):
    path = tmp_path / 'model.safetensors'
    tensors = layout(documented)
    assert layout in (openpi,) or set(tensors) != set(documented)
    save_file(tensors, path)
    loaded = Pi0Model.load(path, model.config.replace(kind=None))
    assert loaded.config.kind == model.config.kind
    data = random_inputs(model.config)
    ours, theirs = (m.sample_actions(*pick(data), noise=data['noise']) for m in (loaded, model))
    assert gap(ours, theirs) == 0


def test_saving_gives_back_what_was_loaded(model, documented, tmp_path):
    save_file(documented, tmp_path / 'a.safetensors')
    Pi0Model.load(tmp_path / 'a.safetensors', model.config).save(tmp_path / 'b.safetensors')
    again = load_file(tmp_path / 'b.safetensors')
    assert again.keys() == documented.keys()
    assert all(torch.equal(again[key], documented[key]) for key in documented)
    assert list(tmp_path.glob('*.part')) == []


@pytest.mark.parametrize('dtype', ['float16', 'bfloat16', 'float64'])
def test_other_dtypes_are_converted(model, documented, dtype, tmp_path):
    wanted = getattr(torch, dtype)
    path = tmp_path / 'model.safetensors'
    save_file({key: value.to(wanted) for key, value in documented.items()}, path)
    loaded = Pi0Model.load(path, model.config)
    assert gap(loaded.embedding, documented[HEAD].to(wanted)) == 0
    assert loaded.embedding.dtype == torch.float32
    if dtype != 'float64':
        loaded.save(tmp_path / 'small.safetensors', dtype)
        small = load_file(tmp_path / 'small.safetensors')
        assert all(value.dtype == wanted for value in small.values())
        assert torch.equal(small[HEAD], documented[HEAD].to(wanted))


def refused(path, config, *words):
    with pytest.raises(Pi0RosError) as caught:
        Pi0Model.load(path, config)
    for word in words:
        assert word in str(caught.value), str(caught.value)
    assert '\n' not in str(caught.value)


def test_missing_extra_and_misshapen_weights_are_listed_together(model, documented, tmp_path):
    broken = dict(documented)
    del broken['action_out_proj.bias']
    broken['action_in_proj.weight'] = torch.zeros(3, 3)
    broken['wrist_proj.weight'] = torch.zeros(2)
    path = tmp_path / 'model.safetensors'
    save_file(broken, path)
    refused(
        path, model.config, '1 missing: action_out_proj.bias', '1 extra: wrist_proj.weight',
        '1 of the wrong shape: action_in_proj.weight [3, 3] instead of [16, 6]',
    )  # fmt: skip


def test_a_missing_embedding_is_named(model, documented, tmp_path):
    save_file({k: v for k, v in documented.items() if k != HEAD}, tmp_path / 'm.safetensors')
    refused(tmp_path / 'm.safetensors', model.config, '1 missing', HEAD)


def test_another_kind_is_refused(model, documented, tmp_path):
    save_file(documented, tmp_path / 'm.safetensors')
    other = {'pi0': 'pi05', 'pi05': 'pi0'}[model.config.kind]
    refused(tmp_path / 'm.safetensors', model.config.replace(kind=other), model.config.kind, other)


def test_the_same_weight_under_two_names_is_refused(model, documented, tmp_path):
    twice = {**documented, 'model.action_out_proj.bias': documented['action_out_proj.bias'] + 1}
    save_file(twice, tmp_path / 'm.safetensors')
    refused(tmp_path / 'm.safetensors', model.config, "'model.action_out_proj.bias'")


def test_integers_are_refused(model, documented, tmp_path):
    wrong = {**documented, 'action_out_proj.bias': torch.zeros(6, dtype=torch.int8)}
    save_file(wrong, tmp_path / 'm.safetensors')
    refused(tmp_path / 'm.safetensors', model.config, 'dtype', 'action_out_proj.bias (I8)')


def sharded(tensors, folder, count=3):
    names = [f'model-{i:05d}-of-{count:05d}.safetensors' for i in range(count)]
    places = {key: names[i % count] for i, key in enumerate(sorted(tensors))}
    for name in names:
        save_file({k: tensors[k] for k, place in places.items() if place == name}, folder / name)
    index = folder / 'model.safetensors.index.json'
    index.write_text(json.dumps({'metadata': {}, 'weight_map': places}))
    return index, names


def test_shards_load_from_index_and_folder_and_missing_ones_are_named(model, documented, tmp_path):
    index, names = sharded(documented, tmp_path)
    for path in (index, tmp_path):
        loaded = Pi0Model.load(path, model.config)
        assert gap(loaded.embedding, model.embedding) == 0
    (tmp_path / names[0]).unlink()
    (tmp_path / names[2]).unlink()
    refused(index, model.config, '2 of 3 shards are missing', names[0], names[2])


def test_files_that_are_no_weights_are_refused(model, documented, tmp_path):
    config = model.config
    whole = tmp_path / 'whole.safetensors'
    save_file(documented, whole)
    cut = tmp_path / 'cut.safetensors'
    cut.write_bytes(whole.read_bytes()[:-100])
    refused(cut, config, 'cut short')
    pickled = tmp_path / 'model.bin'
    torch.save(documented, pickled)
    refused(pickled, config, 'no safetensors file', 'no pickles')
    pointer = tmp_path / 'pointer.safetensors'
    pointer.write_text('version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 14\n')
    refused(pointer, config, 'Git LFS pointer', 'git lfs pull')
    garbage = tmp_path / 'garbage.safetensors'
    garbage.write_bytes(struct.pack('<Q', 8) + b'{"a": 1}' + b'0' * 8)
    refused(garbage, config, 'damaged')
    refused(tmp_path / 'absent.safetensors', config, 'does not exist')
    folder = tmp_path / 'folder'
    folder.mkdir()
    (folder / 'pytorch_model.bin').write_bytes(b'')
    refused(folder, config, 'pytorch_model.bin', 'model.safetensors')


def test_an_index_cannot_reach_outside_its_folder(model, tmp_path):
    index = tmp_path / 'model.safetensors.index.json'
    index.write_text(json.dumps({'weight_map': {'a': '../other.safetensors'}}))
    refused(index, model.config, '../other.safetensors')


def test_foreign_keys_are_unknown_and_known_ones_are_not():
    assert weight_files.canonical('model.backbone.conv1.weight') is None
    assert weight_files.canonical('normalize_inputs.buffer_observation_state.std') == ''
    for kind in KINDS:
        for slot in weight_files.slots(tiny_config(kind=kind)):
            assert weight_files.canonical(slot.name) == slot.name


def test_a_legacy_index_without_shards_names_them(shared_dir):
    path = shared_dir / 'real' / 'stats' / 'lerobot_pi0_legacy'
    if (path / 'pi0').is_dir():
        path = path / 'pi0'
    refused(path, tiny_config(), 'shards are missing', '.safetensors')


MEASURE_LOADING = """
import re, sys, torch
from pi0_ros.policy import Pi0Config, Pi0Model
def peak():
    # not ru_maxrss: that begins with what the parent had when it forked
    return 1024 * int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])
config = Pi0Config.named('small', None)
with torch.device('meta'):
    Pi0Model(config)
before = peak()
model = Pi0Model.load(sys.argv[1], config, dtype=sys.argv[2])
weights = sum(p.numel() * p.element_size() for p in model.parameters())
print((peak() - before) / weights)
"""


@pytest.mark.skipif(sys.platform != 'linux', reason='reads the peak memory as Linux reports it')
@pytest.mark.parametrize('stored', ['float32', 'bfloat16'])
def test_loading_needs_little_more_memory_than_the_weights(stored, tmp_path):
    path = tmp_path / 'model.safetensors'
    Pi0Model.empty(Pi0Config.named('small')).save(path, stored)
    command = [sys.executable, '-c', MEASURE_LOADING, str(path), 'float32']
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert 0.5 < float(done.stdout) < 1.15
