# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""The fixed-shape path equals the plain model, and is left when it does not."""

from __future__ import annotations

import logging

import pytest
import torch
from golden import gap, pick, random_inputs, tiny_config

from pi0_ros.errors import Pi0RosError
from pi0_ros.policy import Guidance, Pi0Model
from pi0_ros.policy.accelerate import Accelerated, FixedShape
from pi0_ros.policy.config import KINDS


def fixed_only(model) -> Accelerated:
    """Return the accelerated model with its fixed-shape functions but no compiler and no graph."""
    fast = Accelerated(model, 'eager')
    fast.mode = 'compile'
    return fast


@pytest.mark.parametrize('kind', KINDS)
def test_fixed_shapes_give_the_plain_result_for_any_prompt_and_camera(kind):
    config = tiny_config(kind=kind)
    model = Pi0Model.random(config, seed=1)
    fast = fixed_only(model)
    data = random_inputs(config, tokens=20)
    for cameras, valid in ((3, 3), (3, 16), (2, 5), (0, 17), (3, 12), (1, 20)):
        data['image_masks'] = torch.arange(3)[None] < cameras
        data['token_masks'] = torch.arange(20)[None] < valid
        ours = fast.sample_actions(*pick(data), noise=data['noise'])
        assert gap(ours, model.sample_actions(*pick(data), noise=data['noise'])) < 1e-5
    assert fast.fallbacks == {}
    assert set(fast._ready) == {(3, 16, 4), (2, 16, 4), (0, 32, 4), (1, 32, 4)}


def test_a_wrong_result_is_noticed_and_said(caplog, monkeypatch):
    config = tiny_config()
    model = Pi0Model.random(config, seed=2)
    fast = fixed_only(model)
    stale = {}

    def run_once(self, run=FixedShape.run):
        return stale.setdefault('first', run(self))

    monkeypatch.setattr(FixedShape, 'run', run_once)  # a graph that does not see new inputs
    data = random_inputs(config)
    with caplog.at_level(logging.WARNING):
        ours = fast.sample_actions(*pick(data), noise=data['noise'])
    assert gap(ours, model.sample_actions(*pick(data), noise=data['noise'])) == 0
    assert 'differs from the plain model' in caplog.text and 'running plainly' in caplog.text
    assert list(fast.fallbacks) == [(3, 16, 4)]


def test_guided_and_batched_calls_run_plainly():
    config = tiny_config()
    model = Pi0Model.random(config, seed=3)
    fast = fixed_only(model)
    data = random_inputs(config, batch=2)
    ours = fast.sample_actions(*pick(data), noise=data['noise'])
    assert gap(ours, model.sample_actions(*pick(data), noise=data['noise'])) == 0
    data = random_inputs(config)
    guidance = Guidance(torch.ones(2, 6), 1, 2)
    ours = fast.sample_actions(*pick(data), noise=data['noise'], guidance=guidance)
    theirs = model.sample_actions(*pick(data), noise=data['noise'], guidance=guidance)
    assert gap(ours, theirs) == 0
    assert fast._ready == {}


def test_modes_are_checked():
    model = Pi0Model.random(tiny_config())
    assert Accelerated(model).mode == 'eager'
    with pytest.raises(Pi0RosError, match='turbo'):
        Accelerated(model, 'turbo')
    with pytest.raises(Pi0RosError, match='CUDA'):
        Accelerated(model, 'graph')
