# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Freezing and LoRA: what learns, adapters alone on disk, merged weights that do the same."""

import re

import numpy as np
import pytest
import torch

from pi0_ros.errors import Pi0RosError
from pi0_ros.policy.config import Pi0Config
from pi0_ros.policy.model import Pi0Model
from pi0_ros.training import lora

SMALL = {
    'vision': {'hidden': 16, 'layers': 1, 'heads': 2, 'mlp': 32, 'patch': 16, 'image': 32},
    'text': {
        'width': 32, 'depth': 2, 'heads': 2, 'kv_heads': 1, 'head_dim': 16, 'mlp': 48,
        'vocab': 64,
    },
    'expert': {'width': 16, 'depth': 2, 'heads': 2, 'kv_heads': 1, 'head_dim': 16, 'mlp': 32},
    'chunk': 6, 'max_state_dim': 8, 'max_action_dim': 8, 'num_steps': 4, 'n_cams': 1,
}  # fmt: skip


def model(kind='pi0', seed=0, dtype='float32'):
    return Pi0Model.random(Pi0Config.from_dims(SMALL, kind), seed, dtype=dtype)


def batch(seed=0, size=2):
    g = torch.Generator().manual_seed(seed)
    return {
        'images': [torch.rand(size, 3, 32, 32, generator=g) * 2 - 1],
        'image_masks': [torch.ones(size, dtype=torch.bool)],
        'tokens': torch.randint(3, 60, (size, 5), generator=g),
        'token_masks': torch.ones(size, 5, dtype=torch.bool),
        'state': torch.randn(size, 8, generator=g),
        'actions': torch.randn(size, 6, 8, generator=g),
        'noise': torch.randn(size, 6, 8, generator=g),
        'time': torch.rand(size, generator=g) * 0.9 + 0.05,
    }


def trained(adapted, steps=8):
    optimizer = torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad], lr=1e-2)
    for step in range(steps):
        optimizer.zero_grad()
        adapted(**batch(step)).mean().backward()
        optimizer.step()
    return adapted.eval()


@pytest.mark.parametrize('kind', ['pi0', 'pi05'])
def test_merged_equals_unmerged_and_differs_from_the_base(kind):
    base = model(kind)
    before = base.loss(**batch(9)).detach()
    adapted = lora.add_lora(base, rank=4, parts=('text', 'expert', 'vision'), seed=1)
    torch.testing.assert_close(adapted(**batch(9)), before, rtol=0, atol=1e-6)  # B starts at zero
    unmerged = trained(adapted)(**batch(9)).detach()
    assert (unmerged - before).abs().max() > 1e-2
    merged = lora.merge(adapted)
    assert type(merged) is Pi0Model
    names = [name for name, _ in model(kind).named_parameters()]
    assert [name for name, _ in merged.named_parameters()] == names
    torch.testing.assert_close(merged.loss(**batch(9)), unmerged, rtol=1e-4, atol=1e-5)
    actions = merged.sample_actions(**{k: v for k, v in batch(9).items() if k in (
        'images', 'image_masks', 'tokens', 'token_masks', 'state', 'noise')})  # fmt: skip
    assert torch.isfinite(actions).all()


def test_every_adapter_learns_also_where_the_model_reads_a_part_of_a_matrix():
    """The last prefix layer and the state token use only keys and values of their matrix."""
    adapted = lora.add_lora(model(), rank=2)
    adapted(**batch()).mean().backward()
    gradients = {
        n: p.grad for n, p in adapted.named_parameters() if p.requires_grad and 'lora_B' in n
    }
    last = [n for n in gradients if 'text.layers.1.qkv' in n]
    assert last and gradients[last[0]].abs().max() > 0
    unused = [n for n, g in gradients.items() if g is None or not g.abs().max() > 0]
    # of the last prefix layer nothing but keys and values is ever read
    assert {n.split('layers.')[1].split('.lora')[0] for n in unused} == {
        '1.out', '1.gate_up', '1.down'
    } and all('text' in n for n in unused)


def test_adapters_alone_are_saved_and_loaded(tmp_path):
    adapted = trained(lora.add_lora(model(), rank=4))
    wanted = adapted(**batch(9)).detach()
    folder = lora.save_adapters(adapted, tmp_path / 'adapters', 'some/base')
    assert sorted(p.name for p in folder.iterdir()) == sorted(lora.ADAPTER_FILES)
    whole = sum(p.numel() * 4 for p in model().parameters())
    size = (folder / 'adapter_model.safetensors').stat().st_size
    assert size < whole / 2  # heads of this tiny model weigh more than its adapters
    again = lora.load_adapters(model(), folder)
    torch.testing.assert_close(again(**batch(9)).detach(), wanted, rtol=0, atol=1e-7)
    assert lora.trainable(again) == 0
    merged = lora.merge(again)
    torch.testing.assert_close(merged.loss(**batch(9)), wanted, rtol=1e-4, atol=1e-5)


def test_only_adapters_and_heads_learn():
    base = model()
    frozen = {n: p.detach().clone() for n, p in base.named_parameters()}
    adapted = lora.add_lora(base, rank=2, parts=('expert',))
    names = [n for n, p in adapted.named_parameters() if p.requires_grad]
    assert all('expert' in n and 'lora_' in n or 'modules_to_save' in n for n in names)
    heads = {h for h in lora.HEADS['pi0'] for n in names if f'.{h}.modules_to_save' in n}
    assert heads == set(lora.HEADS['pi0'])
    merged = lora.merge(trained(adapted))
    changed = {n for n, value in merged.named_parameters() if not torch.equal(value, frozen[n])}
    matrices = {n for n in frozen if re.fullmatch(lora.PARTS['expert'] + r'\.weight', n)}
    assert changed == matrices | {n for n in frozen if n.split('.')[0] in lora.HEADS['pi0']}


def test_heads_stay_in_full_precision_over_a_bfloat16_base():
    adapted = lora.add_lora(model(dtype='bfloat16'), rank=2)
    for name, parameter in adapted.named_parameters():
        if parameter.requires_grad:
            assert parameter.dtype == torch.float32, name
    assert adapted.base_model.model.dtype == torch.bfloat16
    trained(adapted, steps=2)
    assert torch.isfinite(adapted(**batch(9))).all()


@pytest.mark.parametrize('what, learning', [
    ('none', {'vision', 'vision.projector', 'text', 'expert', 'heads', 'embedding'}),
    ('vision', {'vision.projector', 'text', 'expert', 'heads', 'embedding'}),
    ('all_but_expert', {'expert', 'heads'}),
])  # fmt: skip
def test_freezing(what, learning):
    m = model()
    count = lora.freeze(m, what)
    found = set()
    for name, parameter in m.named_parameters():
        if parameter.requires_grad:
            part = name.split('.')[0]
            if part in lora.HEADS['pi0']:
                part = 'heads'
            found.add('vision.projector' if name.startswith('vision.projector') else part)
    assert found == learning
    assert count == sum(p.numel() for p in m.parameters() if p.requires_grad)
    before = {n: p.detach().clone() for n, p in m.named_parameters()}
    optimizer = torch.optim.SGD([p for p in m.parameters() if p.requires_grad], lr=0.1)
    m(**batch()).mean().backward()
    optimizer.step()
    for name, parameter in m.named_parameters():
        if not parameter.requires_grad:
            assert torch.equal(parameter, before[name])


def test_adapters_of_another_model_or_none_are_refused(tmp_path):
    with pytest.raises(Pi0RosError, match='holds no adapters'):
        lora.load_adapters(model(), tmp_path)
    folder = lora.save_adapters(lora.add_lora(model(), rank=2), tmp_path / 'adapters')
    dims = {**SMALL, 'expert': {**SMALL['expert'], 'mlp': 64}}
    other = Pi0Model.random(Pi0Config.from_dims(dims, 'pi0'))
    with pytest.raises(Pi0RosError, match='other sizes.*trained on'):
        lora.load_adapters(other, folder)
    (folder / 'adapter_model.safetensors').write_bytes(b'nothing')
    with pytest.raises(Pi0RosError, match='no readable adapters'):
        lora.load_adapters(model(), folder)


@pytest.mark.parametrize('wrong, said', [
    ({'parts': ('tail',)}, "no part 'tail'"), ({'rank': 0}, 'rank 0'), ({'parts': ()}, 'no part'),
])  # fmt: skip
def test_nonsense_is_refused(wrong, said):
    with pytest.raises(Pi0RosError, match=said):
        lora.add_lora(model(), **wrong)
    with pytest.raises(Pi0RosError, match="cannot freeze 'head'"):
        lora.freeze(model(), 'head')


def test_the_same_seed_gives_the_same_adapters():
    one, two = (lora.add_lora(model(), rank=2, seed=5) for _ in range(2))
    for (name, a), (_, b) in zip(one.named_parameters(), two.named_parameters()):
        np.testing.assert_array_equal(a.detach().numpy(), b.detach().numpy(), err_msg=name)
