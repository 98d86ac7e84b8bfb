# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""The model gives the peers' numbers at every stage, and its shortcuts change nothing."""

from __future__ import annotations

import json

import pytest
import torch
from golden import (
    ALL,
    PREFIX,
    dims_of,
    gap,
    load_arrays,
    load_model,
    pick,
    random_inputs,
    tiny_config,
)  # fmt: skip

from pi0_ros.errors import Pi0RosError
from pi0_ros.policy import Pi0Config, Pi0Model
from pi0_ros.policy import weights as weight_files
from pi0_ros.policy.model import attend_eager, flow_times, gelu, time_embedding

KINDS = ('pi0_tiny', 'pi05_tiny')


@pytest.fixture(scope='module', params=KINDS)
def golden(request, data_dir):
    folder = data_dir / 'model'
    name = request.param
    model = load_model(folder / f'{name}.safetensors', dims_of(folder / f'{name}.json'))
    return model, load_arrays(folder / f'{name}.npz')


def test_prefix_stages_match_lerobot(golden):
    model, data = golden
    with torch.no_grad():
        prefix = model.embed_prefix(*pick(data, PREFIX))
        cache, output = model.encode_prefix(prefix, output=True)
    compact = {int(full): i for i, full in enumerate(prefix.index[0])}
    both = [(n, compact[int(p)]) for n, p in enumerate(data['sampled']) if int(p) in compact]
    theirs, ours = (list(column) for column in zip(*both))
    assert len(ours) > 10
    assert gap(prefix.embeddings[:, ours], data['prefix_embs'][:, theirs]) < 2e-5
    assert gap(output[:, ours], data['prefix_out'][:, theirs]) < 2e-5
    positions = data['prefix_position_ids'][0, prefix.index[0]]
    assert positions.tolist() == list(range(prefix.embeddings.shape[1]))
    for layer, (keys, values) in enumerate(zip(cache.keys, cache.values)):
        assert gap(keys[:, :, ours], data['prefix_kv_k'][layer][:, :, theirs]) < 5e-5
        assert gap(values[:, :, ours], data['prefix_kv_v'][layer][:, :, theirs]) < 5e-5


def test_velocity_and_suffix_match_lerobot(golden):
    model, data = golden
    with torch.no_grad():
        cache = model.encode_prefix(model.embed_prefix(*pick(data, PREFIX)))
        model.add_state(cache, data['state'])
        half = model.embed_times(torch.tensor([0.5]))
        embedded = model.embed_actions(data['x_t0.5'], half)
        velocity = {
            't1.0': model.velocity(cache, data['noise'], model.embed_times(torch.ones(1))),
            't0.5': model.velocity(cache, data['x_t0.5'], half),
        }
    chunk = model.config.chunk
    assert gap(embedded, data['suffix_embs_t0.5'][:, -chunk:]) < 5e-6
    assert int(cache.lengths[0]) == int(data['suffix_position_ids'][0, 0])
    if model.config.kind == 'pi05':
        assert gap(half.condition, data['adarms_cond_t0.5']) < 5e-6
    for name, v in velocity.items():
        assert gap(v, data[f'v_{name}']) < 1e-5


def test_every_euler_state_matches_lerobot(golden):
    model, data = golden
    trajectory = data['x_trajectory']
    with torch.no_grad():
        cache = model.encode_prefix(model.embed_prefix(*pick(data, PREFIX)))
        model.add_state(cache, data['state'])
        x = data['noise']
        terms = model.embed_times(torch.tensor(flow_times(10, 'lerobot')))
        for i in range(10):
            assert gap(x, trajectory[i]) < 1e-5
            x = x - 0.1 * model.velocity(cache, x, terms.step(i))
    for steps, wanted in (
        (10, trajectory[10]), (4, data['actions_4_steps']), (1, data['actions_1_step']),
    ):  # fmt: skip
        sampled = model.sample_actions(*pick(data), noise=data['noise'], num_steps=steps)
        assert gap(sampled, wanted) < 1e-5


def check_gradients(model, loss, wanted: dict):
    model.zero_grad()
    loss.mean().backward()
    parameters = dict(model.named_parameters())
    slots = {slot.name: slot for slot in weight_files.slots(model.config)}
    checked = 0
    for key, norm in wanted.items():
        name = weight_files.canonical(key)
        if name == weight_files.IGNORED or 'lm_head' in key:
            continue
        slot = slots[name]
        gradient = parameters[slot.parameter].grad
        if not norm:
            ours = 0.0 if gradient is None else gradient[slot.start : slot.stop].norm()
            assert ours < 1e-6, key
            continue
        # The gradient of a vision key bias is zero but for rounding, in any implementation.
        ours = float(gradient[slot.start : slot.stop].norm())
        assert abs(ours - norm) < 1e-3 * norm + 1e-7, key
        checked += 1
    assert checked > 90


def test_loss_and_gradients_match_lerobot(golden):
    model, data = golden
    loss = model.loss(*pick(data), data['actions'], data['noise'], data['time'])
    assert loss.shape == data['loss'].shape
    assert bool(((loss - data['loss']).abs() < 2e-5 + 1e-5 * data['loss']).all())
    check_gradients(model, loss, dict(zip(data['grad_names'], data['grad_norms'].tolist())))


def test_gradient_checkpointing_changes_no_gradient(golden):
    model, data = golden
    arguments = (*pick(data), data['actions'], data['noise'], data['time'])
    gradients = []
    for remember in (False, True):
        model.gradient_checkpointing = remember
        model.zero_grad()
        model.loss(*arguments).mean().backward()
        gradients.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    model.gradient_checkpointing = False
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        assert gap(gradients[1][name], gradient) <= 1e-6 + 1e-5 * float(gradient.abs().max()), name


def test_bfloat16_stays_near_and_keeps_what_must_be_float32(golden, data_dir):
    model, data = golden
    name = 'pi05_tiny' if model.config.kind == 'pi05' else 'pi0_tiny'
    low = Pi0Model.load(data_dir / 'model' / f'{name}.safetensors', model.config, dtype='bfloat16')
    kept = {n for n, p in low.named_parameters() if p.dtype == torch.float32}
    assert 'vision.patch.weight' in kept and 'vision.position' in kept
    assert 'text.layers.0.norm1.weight' in kept and 'action_out_proj.weight' in kept
    assert 'text.layers.0.qkv.weight' not in kept and 'embedding' not in kept
    sampled = low.sample_actions(*pick(data), noise=data['noise'])
    assert sampled.dtype == torch.float32
    assert 0 < gap(sampled, data['x_trajectory'][10]) < 6e-2


@pytest.mark.parametrize('folder', ['pi0_tiny', 'pi0_tiny_8h', 'pi05_tiny', 'pi05_tiny_8h'])
def test_the_complete_reference_data(shared_dir, folder):
    root = shared_dir / 'golden' / folder
    dims = dims_of(root / 'config.json')['dims']
    cases = sorted(path.parent for path in root.glob('*/inputs.npz'))
    assert cases
    for family, file in (('lerobot', 'outputs'), ('openpi', 'outputs_openpi_torch')):
        model = load_model(root / 'weights.safetensors', dims, family)
        for case in cases:
            data, wanted = load_arrays(case / 'inputs.npz'), load_arrays(case / f'{file}.npz')
            for steps, key in ((10, 'actions_10_steps'), (4, 'actions_4_steps')):
                sampled = model.sample_actions(*pick(data), noise=data['noise'], num_steps=steps)
                assert gap(sampled, wanted[key]) < 1e-5
            loss = model.loss(*pick(data), data['actions'], data['noise'], data['time'])
            assert bool(((loss - wanted['loss']).abs() < 2e-5 + 1e-5 * wanted['loss']).all())
            if family == 'lerobot':
                norms = json.loads((case / 'grad_norms.json').read_text())
                check_gradients(model, loss, norms)
                check_masks(model, data, wanted)


def check_masks(model, data, wanted):
    """Hold masks, positions and stages of every row to the padded originals."""
    with torch.no_grad():
        prefix = model.embed_prefix(*pick(data, PREFIX))
        output = model.encode_prefix(prefix, output=True)[1]
    for row, length in enumerate(prefix.lengths.tolist()):
        where = prefix.index[row, :length]
        assert where.tolist() == wanted['prefix_pad_masks'][row].nonzero()[:, 0].tolist()
        assert wanted['prefix_position_ids'][row, where].tolist() == list(range(length))
        assert bool(wanted['prefix_att_2d_masks'][row][where][:, where].all())
        assert gap(prefix.embeddings[row, :length], wanted['prefix_embs'][row, where]) < 2e-5
        if 'prefix_out' in wanted:
            assert gap(output[row, :length], wanted['prefix_out'][row, where]) < 2e-5
        offset = wanted['suffix_position_ids'][row, 0]
        assert int(offset) == length


def test_time_embedding_matches_the_peers(shared_dir):
    data = load_arrays(shared_dir / 'golden' / 'time_embedding' / 'cases.npz')
    config = tiny_config()
    for width in (8, 32, 256, 1024):
        ours = time_embedding(data['times'], width, config)
        assert gap(ours, data[f'torch_as_used_float32_d{width}']) < 1e-6
        ours = time_embedding(data['times'], width, config.replace(family='openpi_jax'))
        assert gap(ours, data[f'jax_float32_d{width}']) < 2e-4
    for steps in (4, 5, 10, 20):
        for family in ('openpi', 'lerobot'):
            times = torch.tensor(flow_times(steps, family))
            assert gap(times, data[f'{family}_loop_times_n{steps}'].float()) == 0, (family, steps)


# ---- shortcuts that must change nothing


@pytest.mark.parametrize('kind', ['pi0', 'pi05'])
def test_a_masked_camera_equals_an_absent_one_whatever_it_shows(kind):
    config = tiny_config(kind=kind)
    model = Pi0Model.random(config, seed=1)
    data = random_inputs(config)
    for absent in range(3):
        masked = {**data, 'image_masks': data['image_masks'].clone()}
        masked['image_masks'][:, absent] = False
        masked['images'] = data['images'].clone()
        masked['images'][:, absent] = float('nan')
        rest = [c for c in range(3) if c != absent]
        dropped = {**data, 'images': data['images'][:, rest]}
        dropped['image_masks'] = data['image_masks'][:, rest]
        one, other = (
            model.sample_actions(*pick(d), noise=data['noise']) for d in (masked, dropped)
        )
        assert gap(one, other) == 0
        assert gap(one, model.sample_actions(*pick(data), noise=data['noise'])) > 1e-4


@pytest.mark.parametrize('kind', ['pi0', 'pi05'])
def test_rows_of_a_ragged_batch_equal_single_calls(kind):
    config = tiny_config(kind=kind)
    model = Pi0Model.random(config, seed=2)
    data = random_inputs(config, batch=3)
    data['image_masks'] = torch.tensor(
        [[True, False, True], [True, True, True], [False, True, False]]
    )
    data['token_masks'] = torch.arange(6)[None] < torch.tensor([4, 6, 1])[:, None]
    together = model.sample_actions(*pick(data), noise=data['noise'])
    losses = model.loss(*pick(data), data['actions'], data['noise'], data['time'])
    for row in range(3):
        single = {name: array[row : row + 1] for name, array in data.items()}
        alone = model.sample_actions(*pick(single), noise=single['noise'])
        assert gap(together[row], alone[0]) < 1e-5
        loss = model.loss(*pick(single), single['actions'], single['noise'], single['time'])
        assert gap(losses[row], loss[0]) < 1e-4


@pytest.mark.parametrize('kind', ['pi0', 'pi05'])
@pytest.mark.parametrize('groups', [1, 2])
def test_fused_attention_equals_the_written_out_one(kind, groups):
    dims = tiny_config().dims
    dims['text']['kv_heads'] = dims['expert']['kv_heads'] = groups
    config = tiny_config(kind=kind, dims=dims)
    model = Pi0Model.random(config, seed=3)
    data = random_inputs(config, batch=2)
    data['token_masks'][0, 3:] = False
    fused = model.sample_actions(*pick(data), noise=data['noise'])
    model.attention = attend_eager
    assert gap(fused, model.sample_actions(*pick(data), noise=data['noise'])) < 1e-5


def test_inputs_and_prefix_are_left_as_they_were():
    model = Pi0Model.random(tiny_config(), seed=3)
    data = random_inputs(model.config)
    before = {name: array.clone() for name, array in data.items()}
    with torch.no_grad():
        prefix = model.embed_prefix(*pick(data, PREFIX))
        held = prefix.embeddings.clone()
        cache = model.encode_prefix(prefix)
        model.add_state(cache, data['state'])
        kept = [part.clone() for part in (*cache.keys, *cache.values)]
        length = cache.length
        once, again = (model.flow(cache, data['noise'], 4) for _ in range(2))
    assert torch.equal(once, again) and torch.equal(prefix.embeddings, held)
    for part, copy in zip((*cache.keys, *cache.values), kept):
        assert torch.equal(part[:, :, :length], copy[:, :, :length])
    assert all(torch.equal(data[name], array) for name, array in before.items())


def test_sampling_equals_the_training_pass():
    config = tiny_config(kind='pi0')
    model = Pi0Model.random(config, seed=4)
    data = random_inputs(config)
    loss = model.loss(*pick(data), data['actions'], data['noise'], torch.ones(1))
    sampled = model.sample_actions(*pick(data), noise=data['noise'], num_steps=1)
    velocity = data['noise'] - sampled
    assert gap((velocity - (data['noise'] - data['actions'])) ** 2, loss) < 1e-4


def test_lists_and_stacks_of_cameras_are_the_same():
    config = tiny_config()
    model = Pi0Model.random(config, seed=5)
    data = random_inputs(config)
    lists = [list(data['images'].unbind(1)), list(data['image_masks'].unbind(1))]
    listed = model.sample_actions(*lists, *pick(data)[2:], noise=data['noise'])
    assert gap(listed, model.sample_actions(*pick(data), noise=data['noise'])) == 0
    arrays = [array.numpy() for array in pick(data)]
    assert gap(listed, model.sample_actions(*arrays, noise=data['noise'].numpy())) == 0


def test_the_fast_gelu_is_gelu():
    x = torch.cat([torch.linspace(-30, 30, 4001), torch.tensor([-1e4, 1e4, 0.0, -0.0])])
    x = x.expand(300, -1)
    exact = torch.nn.functional.gelu(x.double(), approximate='tanh')
    with torch.no_grad():
        assert gap(gelu(x), exact) < 2e-6
        assert gap(gelu(x, 2 * x), exact * 2 * x) < 2e-4
        assert bool(torch.isnan(gelu(torch.tensor([[float('nan')]]))).all())


def test_families_have_their_own_times():
    assert flow_times(10, 'lerobot')[3] == pytest.approx(0.7, abs=1e-7)
    assert len(flow_times(10, 'openpi')) == 10
    assert flow_times(10, 'openpi') != flow_times(10, 'lerobot')
    pairs = zip(flow_times(10, 'openpi'), flow_times(10, 'lerobot'))
    assert max(abs(a - b) for a, b in pairs) < 1e-6


# ---- refusals


@pytest.mark.parametrize(
    ('change', 'words'),
    [
        ({'state': torch.zeros(1, 6)}, 'state has shape'),
        ({'noise': torch.zeros(1, 5, 7)}, 'noise has shape'),
        ({'images': torch.zeros(1, 3, 3, 8, 12)}, 'image 0'),
        ({'images': torch.zeros(1, 3, 3, 8, 8, dtype=torch.uint8)}, 'uint8'),
        ({'image_masks': torch.ones(1, 2, dtype=torch.bool)}, '3 images'),
        ({'tokens': torch.full((1, 6), 40)}, 'vocabulary of 40'),
        ({'token_masks': torch.ones(1, 5, dtype=torch.bool)}, 'tokens (1, 6)'),
    ],
)
def test_wrong_inputs_are_refused_by_name(change, words):
    config = tiny_config()
    model = Pi0Model.random(config)
    data = {**random_inputs(config), **change}
    with pytest.raises(Pi0RosError, match=words.replace('(', r'\(').replace(')', r'\)')):
        model.sample_actions(*pick(data, ALL), noise=data['noise'])


def test_an_empty_prefix_is_refused():
    config = tiny_config()
    data = random_inputs(config)
    data['image_masks'][:] = False
    data['token_masks'][:] = False
    with pytest.raises(Pi0RosError, match='neither a camera nor a prompt'):
        Pi0Model.random(config).sample_actions(*pick(data))


def test_configs_that_are_no_model_are_refused():
    dims = tiny_config().dims
    with pytest.raises(Pi0RosError, match='head_dim'):
        Pi0Config.from_dims({**dims, 'expert': {**dims['expert'], 'head_dim': 4}})
    with pytest.raises(Pi0RosError, match='patch'):
        Pi0Config.from_dims({**dims, 'vision': {**dims['vision'], 'image': 9}})
    with pytest.raises(Pi0RosError, match='proj_width'):
        Pi0Config.from_dims({**dims, 'proj_width': 4})
    with pytest.raises(Pi0RosError, match="'text'"):
        Pi0Config.from_dims({k: v for k, v in dims.items() if k != 'text'})
    with pytest.raises(Pi0RosError, match='pi1'):
        Pi0Config.from_dims(dims, kind='pi1')
    with pytest.raises(Pi0RosError, match='huge'):
        Pi0Config.named('huge')
    assert Pi0Config.from_dict(tiny_config(kind='pi05').to_dict()) == tiny_config(kind='pi05')


def test_the_published_size_has_the_published_number_of_parameters():
    with torch.device('meta'):
        model = Pi0Model(Pi0Config.named('full'))
    assert sum(p.numel() for p in model.parameters()) == 3_238_048_528
