# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""The fixed-shape path equals the plain model, and is left when it does not."""

from __future__ import annotations

import contextlib
import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from golden import gap, pick, random_inputs, tiny_config
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pi0_ros.errors import Pi0RosError
from pi0_ros.policy import Guidance, Pi0Model, Pi0Policy
from pi0_ros.policy.accelerate import CHECKS, Accelerated, FixedShape
from pi0_ros.policy.config import KINDS
from pi0_ros.policy.make_checkpoint import make_checkpoint


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


class RecordedGraph(TorchDispatchMode):
    """
    Records and replays on the CPU what ``CudaGraphs`` does on a GPU: kernels on fixed memory.

    A replay calls the recorded kernels alone, on the recorded tensors: Python code, inputs that
    were not in the buffers and anything decided from their content are not looked at again.
    """

    def __init__(self):
        super().__init__()
        self.kernels, self.recordings, self.replays, self.working = [], 0, 0, 0

    @contextlib.contextmanager
    def work(self):
        self.working += 1
        yield

    def __torch_dispatch__(self, kernel, types, args=(), kwargs=None):
        result = kernel(*args, **(kwargs or {}))
        self.kernels.append((kernel, args, kwargs or {}, result))
        return result

    def record(self, run):
        self.kernels = []
        with self:
            output = run()
        kernels, self.recordings = self.kernels, self.recordings + 1

        def replay():
            self.replays += 1
            for kernel, args, kwargs, result in kernels:
                if 'empty' in str(kernel):
                    continue  # the recorded tensor is that memory already
                fresh = kernel(*args, **kwargs)
                for old, new in zip(tree_leaves(result), tree_leaves(fresh)):
                    if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)
            return output

        return replay


@pytest.mark.parametrize('kind', KINDS)
def test_replays_follow_their_inputs_in_every_bucket(kind):
    config = tiny_config(kind=kind)
    model = Pi0Model.random(config, seed=4)
    graphs = RecordedGraph()
    fast = Accelerated(model, graphs=graphs)
    assert fast.mode == 'graph'
    for seed, (cameras, valid) in enumerate(((3, 3), (3, 16), (2, 5), (3, 17), (2, 6), (3, 9))):
        data = random_inputs(config, tokens=20)
        data['noise'] = torch.roll(data['noise'], seed, 1)
        data['state'] = data['state'] + seed
        data['images'] = data['images'].roll(seed, -1)
        data['image_masks'] = torch.arange(3)[None] < cameras
        data['token_masks'] = torch.arange(20)[None] < valid
        ours = fast.sample_actions(*pick(data), noise=data['noise'])
        assert gap(ours, model.sample_actions(*pick(data), noise=data['noise'])) < 1e-5
    assert fast.fallbacks == {}
    assert set(fast._ready) == {(3, 16, 4), (2, 16, 4), (3, 32, 4)}
    assert graphs.recordings == 3
    assert graphs.replays == 3 * CHECKS + 6


def test_a_graph_that_goes_wrong_later_than_its_first_call_is_found_out(caplog):
    config = tiny_config()
    model = Pi0Model.random(config, seed=5)

    class Deaf(RecordedGraph):
        """Hears its inputs at the first replay only."""

        def record(self, run):
            replay, first = super().record(run), []

            def deaf():
                first.append(first[0] if first else replay().clone())
                return first[0]

            return deaf

    fast = Accelerated(model, graphs=Deaf())
    data = random_inputs(config)
    with caplog.at_level(logging.WARNING):
        ours = fast.sample_actions(*pick(data), noise=data['noise'])
    assert gap(ours, model.sample_actions(*pick(data), noise=data['noise'])) == 0
    assert 'mode graph is off for 3 cameras' in caplog.text
    assert fast._ready == {}


def test_what_cannot_be_recorded_runs_plainly_and_is_not_tried_again(caplog):
    config = tiny_config()
    model = Pi0Model.random(config, seed=6)

    class Refusing(RecordedGraph):
        def record(self, run):
            self.recordings += 1
            raise RuntimeError('operation not permitted when stream is capturing\nmore')

    graphs = Refusing()
    fast = Accelerated(model, graphs=graphs)
    data = random_inputs(config)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            ours = fast.sample_actions(*pick(data), noise=data['noise'])
            assert gap(ours, model.sample_actions(*pick(data), noise=data['noise'])) == 0
    assert graphs.recordings == 1
    assert 'not permitted when stream is capturing; running plainly' in caplog.text


def test_the_policy_warms_every_number_of_cameras_and_then_only_replays(tmp_path):
    make_checkpoint(tmp_path / 'tiny', size='tiny', robot='aloha')
    policy = Pi0Policy.from_pretrained(tmp_path / 'tiny', robot='aloha', num_steps=2)
    noise = np.random.default_rng(0).standard_normal((policy.chunk_size, policy.action_dim))
    rng = np.random.default_rng(1)
    pictures = {n: rng.integers(0, 255, (48, 64, 3), dtype=np.uint8) for n in policy.cameras}
    seen = SimpleNamespace(images=pictures, state=np.full(14, 0.3), prompt='warm up')
    plain = policy.predict(seen, noise)
    graphs = RecordedGraph()
    policy._sampler = Accelerated(policy.model, graphs=graphs)
    policy.warm_up()
    assert graphs.recordings == len(policy.cameras)
    assert policy._sampler.fallbacks == {}
    replays = graphs.replays
    np.testing.assert_allclose(policy.predict(seen, noise), plain, atol=1e-5)
    seen.images = dict(list(pictures.items())[:1])
    policy.predict(seen, noise)
    assert graphs.recordings == len(policy.cameras)
    assert graphs.replays == replays + 2
