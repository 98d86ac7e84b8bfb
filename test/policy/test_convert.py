# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Conversion from JAX and from every safetensors layout into the documented format."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import tensorstore
import torch
from golden import gap, load_arrays, pick, random_inputs, tiny_config
from safetensors.torch import load_file

from pi0_ros.cli import main
from pi0_ros.errors import Pi0RosError
from pi0_ros.policy import Pi0Config, Pi0Model, Pi0Policy
from pi0_ros.policy.config import KINDS
from pi0_ros.policy.convert import convert, find_jax, infer_config, plain_key
from pi0_ros.policy.weights import slots


def jax_tree(model: Pi0Model) -> dict[str, np.ndarray]:
    """Return the model's weights as openpi's JAX parameters, written out the other way round."""
    config = model.config
    v, d = config.vision, config.text.head_dim
    head = v.hidden // v.heads
    p = {name: tensor.detach().numpy() for name, tensor in model.named_parameters()}
    img, block = 'PaliGemma/img/', 'PaliGemma/img/Transformer/encoderblock/'
    attention = f'{block}MultiHeadDotProductAttention_0/'
    patch = p['vision.patch.weight'].reshape(v.hidden, 3, v.patch, v.patch)

    def stack(pattern, count, change):
        return np.stack([change(p[pattern.format(i)]) for i in range(count)])

    tree = {
        f'{img}embedding/kernel': patch.transpose(2, 3, 1, 0),
        f'{img}embedding/bias': p['vision.patch.bias'],
        f'{img}pos_embedding': p['vision.position'][None],
        f'{img}Transformer/encoder_norm/scale': p['vision.norm.weight'],
        f'{img}Transformer/encoder_norm/bias': p['vision.norm.bias'],
        f'{img}head/kernel': p['vision.projector.weight'].T,
        f'{img}head/bias': p['vision.projector.bias'],
        'PaliGemma/llm/embedder/input_embedding': p['embedding'],
    }
    layer = 'vision.layers.{}.'
    for n in (0, 1):
        for theirs, part in (('scale', 'weight'), ('bias', 'bias')):
            tree[f'{block}LayerNorm_{n}/{theirs}'] = stack(
                f'{layer}norm{n + 1}.{part}', v.layers, np.copy
            )
        ours = f'{layer}{("up", "down")[n]}'
        dense = f'{block}MlpBlock_0/Dense_{n}'
        tree[f'{dense}/kernel'] = stack(f'{ours}.weight', v.layers, np.transpose)
        tree[f'{dense}/bias'] = stack(f'{ours}.bias', v.layers, np.copy)
    for n, name in enumerate(('query', 'key', 'value')):
        rows = slice(n * v.hidden, (n + 1) * v.hidden)
        tree[f'{attention}{name}/kernel'] = stack(
            f'{layer}qkv.weight', v.layers,
            lambda w, rows=rows: w[rows].T.reshape(v.hidden, v.heads, head),
        )  # fmt: skip
        tree[f'{attention}{name}/bias'] = stack(
            f'{layer}qkv.bias', v.layers, lambda b, rows=rows: b[rows].reshape(v.heads, head)
        )
    tree[f'{attention}out/kernel'] = stack(
        f'{layer}out.weight', v.layers, lambda w: w.T.reshape(v.heads, head, v.hidden)
    )
    tree[f'{attention}out/bias'] = stack(f'{layer}out.bias', v.layers, np.copy)
    llm = 'PaliGemma/llm/'
    for suffix, name, size in (('', 'text', config.text), ('_1', 'expert', config.expert)):
        w, q, kv, n = size.width, size.heads * d, size.kv_heads * d, size.depth
        layer, mlp = f'{name}.layers.{{}}.', size.mlp
        tree[f'{llm}layers/attn/q_einsum{suffix}/w'] = stack(
            f'{layer}qkv.weight', n,
            lambda a, q=q, w=w: a[:q].reshape(-1, d, w).transpose(0, 2, 1),
        )  # fmt: skip
        tree[f'{llm}layers/attn/kv_einsum{suffix}/w'] = stack(
            f'{layer}qkv.weight', n,
            lambda a, q=q, kv=kv, w=w: a[q:].reshape(2, kv // d, d, w).transpose(0, 1, 3, 2),
        )  # fmt: skip
        tree[f'{llm}layers/attn/attn_vec_einsum{suffix}/w'] = stack(
            f'{layer}out.weight', n, lambda a, w=w: a.T.reshape(-1, d, w)
        )
        tree[f'{llm}layers/mlp{suffix}/gating_einsum'] = stack(
            f'{layer}gate_up.weight', n, lambda a, m=mlp: np.stack([a[:m].T, a[m:].T])
        )
        tree[f'{llm}layers/mlp{suffix}/linear'] = stack(f'{layer}down.weight', n, np.transpose)
        norms = {
            f'{llm}layers/pre_attention_norm{suffix}': f'{layer}norm1',
            f'{llm}layers/pre_ffw_norm{suffix}': f'{layer}norm2',
            f'{llm}final_norm{suffix}': f'{name}.norm',
        }
        for theirs, ours in norms.items():
            kinds = {'/scale': ('.weight', np.copy)}
            if f'{ours}.dense.weight'.format(0) in p:
                kinds = {
                    '/Dense_0/kernel': ('.dense.weight', np.transpose),
                    '/Dense_0/bias': ('.dense.bias', np.copy),
                }
            for end, (part, change) in kinds.items():
                stacked = stack(f'{ours}{part}', n, change)
                tree[f'{theirs}{end}'] = stacked if '{}' in ours else stacked[0]
    for name in p:
        if name.split('.')[0] in (
            'state_proj', 'action_in_proj', 'action_out_proj', 'action_time_mlp_in',
            'action_time_mlp_out', 'time_mlp_in', 'time_mlp_out',
        ):  # fmt: skip
            module, part = name.split('.')
            array = p[name]
            tree[f'{module}/' + ('kernel' if part == 'weight' else 'bias')] = array.T
    return tree


@pytest.fixture(params=KINDS)
def model(request):
    return Pi0Model.random(tiny_config(kind=request.param), seed=9)


@pytest.mark.parametrize('decorated', [False, True])
def test_jax_parameters_convert_exactly(model, decorated, tmp_path):
    tree = jax_tree(model)
    if decorated:
        tree = {f'params/{key}/value': array for key, array in tree.items()}
    np.savez(tmp_path / 'params.npz', **tree)
    (tmp_path / 'norm_stats.json').write_text('{"norm_stats": {}}')
    config = model.config.replace(kind=None)
    folder = convert(tmp_path / 'params.npz', tmp_path / 'out', config)
    again = Pi0Model.load(folder, config)
    for (name, ours), theirs in zip(again.named_parameters(), model.parameters()):
        assert gap(ours, theirs) == 0, name
    written = json.loads((folder / 'config.json').read_text())
    assert Pi0Config.from_dict(written['model']) == model.config
    assert (folder / 'norm_stats.json').read_text() == '{"norm_stats": {}}'


def test_the_conversion_of_the_reference_data(shared_dir, tmp_path):
    for name in ('jax_convert_pi0', 'jax_convert_pi05'):
        root = shared_dir / 'golden' / name
        folder = convert(root / 'params.npz', tmp_path / name)
        ours, theirs = (
            load_file(p) for p in (folder / 'model.safetensors', root / 'converted.safetensors')
        )
        assert set(theirs) - set(ours) == {'paligemma_with_expert.gemma_expert.lm_head.weight'}
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)
        written = Pi0Config.from_dict(json.loads((folder / 'config.json').read_text())['model'])
        assert written.family == 'openpi'
        for family, file, limit, loss_limit, share in (
            ('openpi', 'outputs_openpi_torch', 1e-5, 2e-5, 1e-5),
            ('lerobot', 'outputs_lerobot', 1e-5, 2e-5, 1e-5),
            ('openpi_jax', 'outputs_jax', 2e-4, 1e-3, 1e-4),
        ):
            again = Pi0Model.load(folder, written.replace(family=family))
            for case in sorted(path.parent for path in root.glob('*/inputs.npz')):
                data, wanted = (load_arrays(case / f'{n}.npz') for n in ('inputs', file))
                sampled = again.sample_actions(*pick(data), noise=data['noise'])
                assert gap(sampled, wanted['actions_10_steps']) < limit
                with torch.no_grad():
                    loss = again.loss(*pick(data), data['actions'], data['noise'], data['time'])
                bound = loss_limit + share * wanted['loss']
                assert bool(((loss - wanted['loss']).abs() < bound).all())


def write_orbax(folder, tree, ocdbt=True):
    """Write a tree as orbax does: a zarr array a parameter, and the list of their paths."""
    entries = {}
    for key, array in tree.items():
        parts = key.split('/')
        store = {'driver': 'file', 'path': f'{folder}/{".".join(parts)}/'}
        if ocdbt:
            store = {'driver': 'ocdbt', 'base': f'file://{folder}/', 'path': '.'.join(parts)}
        spec = {'driver': 'zarr', 'kvstore': store, 'create': True}
        tensorstore.open(spec, dtype=array.dtype, shape=array.shape).result()[...] = array
        entries[str(tuple(parts))] = {'key_metadata': [{'key': p, 'key_type': 2} for p in parts]}
    (folder / '_METADATA').write_text(json.dumps({'tree_metadata': entries}))
    return folder


@pytest.mark.parametrize('ocdbt', [True, False])
def test_openpis_orbax_folder_converts_exactly_with_its_assets(model, ocdbt, tmp_path):
    tree = {f'params/{key}/value': array for key, array in jax_tree(model).items()}
    (tmp_path / 'jax/assets/trossen').mkdir(parents=True)
    stats = '{"state": {}, "actions": {}}'
    (tmp_path / 'jax/assets/trossen/norm_stats.json').write_text(stats)
    write_orbax(tmp_path / 'jax/params', tree, ocdbt)
    config = model.config.replace(kind=None)
    folder = convert(tmp_path / 'jax', tmp_path / 'out', config)
    again = Pi0Model.load(folder, config)
    for (name, ours), theirs in zip(again.named_parameters(), model.parameters()):
        assert gap(ours, theirs) == 0, name
    assert (folder / 'assets/trossen/norm_stats.json').is_file()
    with pytest.raises(Pi0RosError, match='JAX parameters; convert them first: pi0_ros convert'):
        Pi0Policy.from_pretrained(tmp_path / 'jax')


def test_damaged_orbax_folders_are_refused(tmp_path):
    model = Pi0Model.random(tiny_config(kind='pi0'), seed=9)
    folder = write_orbax(tmp_path / 'params', jax_tree(model), ocdbt=False)
    shutil.rmtree(folder / 'action_in_proj.kernel')
    with pytest.raises(Pi0RosError, match="'action_in_proj/kernel' cannot be read"):
        convert(folder, tmp_path / 'out', model.config)
    for text in ('{', '[]', '{"tree_metadata": {"a": 1}}'):
        (folder / '_METADATA').write_text(text)
        with pytest.raises(Pi0RosError, match='_METADATA cannot be read'):
            convert(folder, tmp_path / 'out', model.config)
    assert not (tmp_path / 'out').exists()


def test_parameters_of_pi0_fast_are_named(tmp_path):
    model = Pi0Model.random(tiny_config(kind='pi0'), seed=9)
    fast = {k: v for k, v in jax_tree(model).items() if 'PaliGemma' in k and '_1' not in k}
    np.savez(tmp_path / 'fast.npz', **fast)
    np.savez(tmp_path / 'other.npz', a=np.zeros(2))
    with pytest.raises(Pi0RosError, match='pi0-FAST model: it has no action expert'):
        convert(tmp_path / 'fast.npz', tmp_path / 'out')
    with pytest.raises(Pi0RosError, match='none of its 1 arrays is a parameter of pi0 .a.'):
        convert(tmp_path / 'other.npz', tmp_path / 'out')


def test_the_real_parameters_of_pi0_fast_are_named(shared_dir, tmp_path):
    for path in ('jax_pi0fast/params.npz', 'pi0fast_tiny/weights.safetensors'):
        with pytest.raises(Pi0RosError, match='pi0-FAST model'):
            convert(shared_dir / 'golden' / path, tmp_path / 'out', tiny_config())


def test_incomplete_jax_parameters_are_refused_with_the_list(tmp_path):
    model = Pi0Model.random(tiny_config(kind='pi0'), seed=9)
    tree = jax_tree(model)
    del tree['action_out_proj/bias']
    tree['PaliGemma/llm/strange'] = np.zeros(2)
    np.savez(tmp_path / 'params.npz', **tree)
    with pytest.raises(Pi0RosError, match='action_out_proj.bias is missing.*strange is extra'):
        convert(tmp_path / 'params.npz', tmp_path / 'out', model.config)
    assert not (tmp_path / 'out').exists()


def test_a_converted_folder_converts_again_and_is_never_overwritten(model, tmp_path):
    model.save(tmp_path / 'model.safetensors')
    first = convert(tmp_path, tmp_path / 'half', model.config, dtype='bfloat16')
    assert (tmp_path / 'half' / 'model.safetensors').stat().st_size < 0.6 * (
        tmp_path / 'model.safetensors'
    ).stat().st_size
    second = convert(first, tmp_path / 'again')
    assert Pi0Model.load(second, model.config).config == model.config
    with pytest.raises(Pi0RosError, match='exists already'):
        convert(first, tmp_path / 'again')


def test_the_command_converts_and_refuses_in_one_line(model, tmp_path, capsys):
    model.save(tmp_path / 'model.safetensors')
    data = random_inputs(model.config)
    config = tmp_path / 'sizes.json'
    config.write_text(json.dumps(model.config.dims))
    arguments = [str(tmp_path / 'model.safetensors'), str(tmp_path / 'out')]
    assert main(['convert', *arguments]) == 2
    captured = capsys.readouterr()
    assert 'heads of a vision tower' in captured.err and captured.err.count('\n') == 1
    assert main(['convert', *arguments, '--config', str(config)]) == 0
    again = Pi0Model.load(tmp_path / 'out', model.config)
    ours, theirs = (m.sample_actions(*pick(data), noise=data['noise']) for m in (again, model))
    assert gap(ours, theirs) == 0


@pytest.mark.parametrize('kind', KINDS)
def test_sizes_are_told_by_the_weights(kind):
    config = Pi0Config.named('full', kind)
    shapes = {slot.name: slot.shape for slot in slots(config)}
    assert infer_config(shapes) == config
    with pytest.raises(Pi0RosError, match='not all weights'):
        infer_config({'a': (1,)})


def test_jax_is_told_by_its_files(tmp_path):
    assert plain_key('params/PaliGemma/img/head/bias/value') == 'PaliGemma/img/head/bias'
    assert find_jax(tmp_path) is None
    (tmp_path / 'params').mkdir()
    (tmp_path / 'params' / '_METADATA').write_text('{}')
    assert find_jax(tmp_path) == tmp_path / 'params'
