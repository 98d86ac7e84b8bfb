# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Guided sampling gives LeRobot's numbers, and the published method's where asked for."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from golden import dims_of, gap, load_arrays, load_model, pick, random_inputs, tiny_config

from pi0_ros.errors import Pi0RosError
from pi0_ros.policy import Guidance, Pi0Model
from pi0_ros.policy.guidance import ModelGuidance, guidance_weight, prefix_weights


def guidance_of(run: dict, left_over: torch.Tensor, full_jacobian: bool) -> Guidance | None:
    if run['leftover'] == 'none':
        return None
    if run['leftover'] == '4x14':  # the peer fills the other dimensions with zeros
        left_over = left_over[:, :4].clone()
        left_over[:, :, 14:] = 0
    return Guidance(
        left_over, run['inference_delay'], run['execution_horizon'] or 10,
        run['schedule'].lower(), run['max_guidance_weight'], full_jacobian,
    )  # fmt: skip


def check_runs(model, runs: list[dict], data: dict, wanted: dict):
    left_over = wanted['prev_chunk_left_over']
    for run in runs:
        for full, suffix, limit in ((False, 'actions', 5e-5), (True, 'actions_full_vjp', 2e-4)):
            key = f"{run['key']}_{suffix}"
            if key not in wanted:
                continue
            sampled = model.sample_actions(
                *pick(data), noise=wanted['noise'], guidance=guidance_of(run, left_over, full)
            )
            assert gap(sampled, wanted[key]) < limit, (run, full)


def test_guided_sampling_matches_lerobot_and_the_published_method(data_dir):
    folder = data_dir / 'model'
    model = load_model(folder / 'pi0_tiny.safetensors', dims_of(folder / 'pi0_tiny.json'))
    runs = json.loads((folder / 'rtc.json').read_text())['runs']
    assert len(runs) == 11
    check_runs(model, runs, load_arrays(folder / 'pi0_tiny.npz'), load_arrays(folder / 'rtc.npz'))


def test_the_complete_reference_data(shared_dir):
    root = shared_dir / 'golden'
    dims = dims_of(root / 'pi0_tiny' / 'config.json')['dims']
    model = load_model(root / 'pi0_tiny' / 'weights.safetensors', dims)
    runs = json.loads((root / 'rtc' / 'cases.json').read_text())['runs']
    for case in sorted({run['case'] for run in runs}):
        data = load_arrays(root / 'pi0_tiny' / case / 'inputs.npz')
        wanted = load_arrays(root / 'rtc' / f'{case}.npz')
        check_runs(model, [run for run in runs if run['case'] == case], data, wanted)


def test_weights_match_lerobot(data_dir):
    data = json.loads((data_dir / 'model' / 'rtc.json').read_text())
    assert len(data['prefix_weights']) == 28
    for case in data['prefix_weights']:
        ours = prefix_weights(
            case['inference_delay'], case['execution_horizon'], case['chunk'],
            case['schedule'].lower(),
        )  # fmt: skip
        np.testing.assert_allclose(ours, case['weights'], atol=1e-6)
    for case in data['guidance_weights']:
        ours = guidance_weight(case['time'], case['max_guidance_weight'])
        assert ours == pytest.approx(case['guidance_weight'], rel=1e-5)


def test_a_short_rest_pulls_only_the_steps_and_dimensions_that_it_has():
    x = torch.randn(1, 5, 6)
    guidance = Guidance(torch.full((2, 3), 4.0), delay=2, execution_horizon=5, schedule='ones')
    for full in (False, True):
        rtc = ModelGuidance(dataclasses.replace(guidance, full_jacobian=full), 1, 5, 6, 'cpu')
        guided = rtc.velocity(x, 0.5, lambda y: 0.1 * y)
        plain = 0.1 * x
        # Nothing else is pulled towards zero, which in normalised space is the mean action.
        assert gap(guided[:, 2:], plain[:, 2:]) == 0 and gap(guided[..., 3:], plain[..., 3:]) == 0
        moved = (x - 0.5 * guided)[:, :2, :3] - (x - 0.5 * plain)[:, :2, :3]
        assert bool((moved * (4.0 - x[:, :2, :3]) > 0).all())


def test_a_single_row_serves_a_batch_and_no_weight_means_plain_sampling():
    config = tiny_config(kind='pi05')
    model = Pi0Model.random(config, seed=2)
    data = random_inputs(config, batch=2)
    plain = model.sample_actions(*pick(data), noise=data['noise'])
    for full in (False, True):
        none = Guidance(torch.ones(3, 6), 0, 0, full_jacobian=full)
        same = model.sample_actions(*pick(data), noise=data['noise'], guidance=none)
        assert gap(same, plain) < 1e-6


def test_guidance_that_makes_no_sense_is_refused():
    config = tiny_config()
    model = Pi0Model.random(config)
    data = random_inputs(config)
    with pytest.raises(Pi0RosError, match='cubic'):
        Guidance(torch.ones(3, 6), schedule='cubic')
    with pytest.raises(Pi0RosError, match='-1'):
        Guidance(torch.ones(3, 6), delay=-1)
    with pytest.raises(Pi0RosError, match='max_weight'):
        Guidance(torch.ones(3, 6), max_weight=float('nan'))
    with pytest.raises(Pi0RosError, match='NaN'):
        model.sample_actions(*pick(data), guidance=Guidance(torch.full((3, 6), float('nan'))))
    with pytest.raises(Pi0RosError, match='up to 6'):
        model.sample_actions(*pick(data), guidance=Guidance(torch.ones(3, 7)))
