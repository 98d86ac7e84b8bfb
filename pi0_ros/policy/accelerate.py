# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
The model as one CUDA graph per situation, checked against the plain model before it is trusted.

A graph needs fixed shapes: it is made for the cameras present, the prompt length rounded up to a
bucket, and the number of steps. A new situation is captured and checked when it first occurs (at
warm-up, if the caller warms up), and runs plainly for ever after if the check fails.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from pi0_ros.errors import Pi0RosError
from pi0_ros.policy.model import GemmaLayer, Pi0Model, Prefix, VisionLayer

MODES = ('auto', 'eager', 'graph', 'compile')
PROMPT_BUCKET = 16  # tokens; a pi0 prompt of up to 48 falls into one of three
CHECKS = 3  # successive calls with different inputs
# Largest difference from the plain model, on actions of scale 1: other kernels, other roundings.
CHECK_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}

log = logging.getLogger(__name__)


class FixedShape:
    """The whole of sampling as a function of buffers that stay where they are; batch 1."""

    def __init__(self, model: Pi0Model, cameras: int, bucket: int, steps: int):
        """Lay out the buffers, in pinned memory too where the model is on a GPU."""
        config, device = model.config, model.device
        size = config.vision.image
        self.model, self.steps, self.device = model, steps, device
        prefix = cameras * config.vision.tokens + bucket
        self.images_end = cameras * config.vision.tokens
        shapes = {
            'images': ((cameras, 3, size, size), torch.float32),
            'tokens': ((1, bucket), torch.int64),
            'state': ((1, config.max_state_dim), torch.float32),
            'noise': ((1, config.chunk, config.max_action_dim), torch.float32),
            'lengths': ((1,), torch.int64),
            'mask': ((1, prefix), torch.bool),
        }
        pinned = device.type == 'cuda'
        self.host = {k: torch.zeros(s, dtype=d, pin_memory=pinned) for k, (s, d) in shapes.items()}
        self.held = {k: torch.zeros(s, dtype=d, device=device) for k, (s, d) in shapes.items()}
        self.held['lengths'].fill_(prefix)
        self.held['mask'].fill_(True)
        self.terms = model.step_terms(steps)

    def fill(self, images: list[Tensor], tokens: Tensor, state: Tensor | None, noise: Tensor):
        """Put the inputs of one call into the buffers: images [1, 3, H, W], tokens [1, L]."""
        valid = self.images_end + tokens.shape[1]
        self._set('noise', noise)
        if state is not None:
            self._set('state', state)
        for i, image in enumerate(images):
            self._set('images', image, slice(i, i + 1))
        self._set('tokens', tokens, (slice(None), slice(0, tokens.shape[1])))
        self.host['mask'][0] = torch.arange(self.host['mask'].shape[1]) < valid
        self.held['mask'].copy_(self.host['mask'], non_blocking=True)
        self.host['lengths'].fill_(valid)
        self.held['lengths'].copy_(self.host['lengths'], non_blocking=True)

    def _set(self, name: str, value: Tensor, where=slice(None)):
        target = self.held[name][where]
        if value.device.type == 'cpu':
            staged = self.host[name][where]
            staged.copy_(value)
            value = staged
        target.copy_(value, non_blocking=True)

    def run(self) -> Tensor:
        """Sample from the buffers; no shape and no branch depends on their content."""
        model, held = self.model, self.held
        parts = [model.embed_tokens(held['tokens'])]
        if self.images_end:
            features = model.embed_images(held['images'])
            parts.insert(0, features.reshape(1, self.images_end, -1))
        prefix = Prefix(torch.cat(parts, dim=1), held['lengths'], held['mask'], held['lengths'])
        cache = model.encode_prefix(prefix)
        model.add_state(cache, held['state'])
        return model.flow(cache, held['noise'], self.steps, None, self.terms)


class CudaGraphs:
    """
    Records and replays work on a GPU, all of it on one stream of its own.

    Anything with ``work`` and ``record`` can stand in its place.
    """

    def __init__(self, device: torch.device):
        """Make the stream."""
        self.stream = torch.cuda.Stream(device)

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        """Order what happens inside after the caller's work, and wait for it at the end."""
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        with torch.cuda.stream(self.stream):
            yield
        self.stream.synchronize()

    def record(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Return what replays ``run`` on the buffers that it used, into the same output."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            output = run()

        def replay() -> Tensor:
            graph.replay()
            return output

        return replay


class Accelerated:
    """
    ``Pi0Model.sample_actions`` through CUDA graphs; one thread and one stream of its own.

    ``mode``: 'eager' is the plain model; 'graph' captures it; 'compile' compiles the layers' own
    parts first (torch.compile) and captures those where there is a GPU; 'auto' is 'graph' on a GPU
    and 'eager' elsewhere. ``fallbacks`` tells which situations run plainly, and why.
    """

    def __init__(self, model: Pi0Model, mode: str = 'auto', graphs: CudaGraphs | None = None):
        """
        Prepare; nothing is captured yet.

        :param graphs: what records and replays; None: ``CudaGraphs`` where the model is on a GPU
        :raises Pi0RosError: there is no such mode, or 'graph' with nothing to record on
        """
        if mode not in MODES:
            raise Pi0RosError(f"mode '{mode}' is not one of {', '.join(MODES)}")
        if graphs is None and mode != 'eager' and model.device.type == 'cuda':
            graphs = CudaGraphs(model.device)
        if mode == 'graph' and graphs is None:
            raise Pi0RosError(f'mode graph needs a CUDA device, not {model.device}; use eager')
        self.model = model
        self.mode = ('eager' if graphs is None else 'graph') if mode == 'auto' else mode
        self.graphs = graphs
        self.fallbacks: dict[tuple, str] = {}
        self._ready: dict[tuple, tuple[FixedShape, Callable[[], Tensor]]] = {}
        if self.mode == 'compile':
            compile_layers(model)

    @torch.no_grad()
    def sample_actions(
        self, images, image_masks, tokens, token_masks, state, noise=None, num_steps=None,
        guidance=None,
    ) -> Tensor:  # fmt: skip
        """Do as ``Pi0Model.sample_actions``; guided and batched calls run plainly."""
        model = self.model
        plain = (images, image_masks, tokens, token_masks, state, noise, num_steps, guidance)
        if self.mode == 'eager':
            return model.sample_actions(
                images, image_masks, tokens, token_masks, state, noise=noise,
                num_steps=num_steps, guidance=guidance,
            )  # fmt: skip
        if guidance is not None or len(tokens) != 1:
            return self._plainly(*plain)
        images, image_masks, tokens, token_masks = model._check_prefix(
            images, image_masks, tokens, token_masks
        )
        noise = model._actions_like(noise, 1, 'noise')
        state = model._check_state(state, 1)
        steps = model.config.num_steps if num_steps is None else int(num_steps)
        seen = [image for image, shown in zip(images, image_masks[0].tolist()) if shown]
        valid = tokens[:, token_masks[0].to(tokens.device)]
        bucket = -(-valid.shape[1] // PROMPT_BUCKET) * PROMPT_BUCKET
        key = (len(seen), bucket, steps)
        if key not in self._ready and key not in self.fallbacks:
            self._prepare(key, seen, valid, state, noise)
        if key in self.fallbacks:
            return self._plainly(*plain)
        fixed, call = self._ready[key]
        return self._call(fixed, call, seen, valid, state, noise)

    def _plainly(self, *arguments) -> Tensor:
        with uncompiled(self.model):
            return self.model.sample_actions(*arguments)

    def _call(self, fixed, call, images, tokens, state, noise) -> Tensor:
        with contextlib.nullcontext() if self.graphs is None else self.graphs.work():
            fixed.fill(images, tokens, state, noise)
            return call().clone()

    def _prepare(self, key, images, tokens, state, noise) -> None:
        """Capture one situation and trust it only if it gives the plain model's results."""
        try:
            fixed = FixedShape(self.model, *key)
            call = fixed.run
            if self.graphs is not None:
                call = self._record(fixed, images, tokens, state, noise)
            gap = self._largest_gap(fixed, call, images, tokens, state, noise)
        except (RuntimeError, torch.cuda.OutOfMemoryError) as error:
            self._fall_back(key, f'{type(error).__name__}: {str(error).splitlines()[0]}')
            return
        limit = CHECK_TOLERANCE[self.model.dtype]
        if not gap <= limit:
            self._fall_back(key, f'differs from the plain model by {gap:.2g} (limit {limit:.0e})')
        else:
            self._ready[key] = fixed, call

    def _fall_back(self, key, reason: str) -> None:
        self.fallbacks[key] = reason
        log.warning(
            'mode %s is off for %d cameras, %d prompt tokens, %d steps: %s; running plainly',
            self.mode, *key, reason,
        )  # fmt: skip

    def _record(self, fixed, *inputs) -> Callable[[], Tensor]:
        with self.graphs.work():
            fixed.fill(*inputs)
            for _ in range(3):  # lazy initialisation must not happen inside the recording
                fixed.run()
        return self.graphs.record(fixed.run)

    def _largest_gap(self, fixed, call, images, tokens, state, noise) -> float:
        """Return the largest difference from the plain model over successive, different calls."""
        gaps = []
        masks = [torch.ones(1, dtype=torch.bool) for _ in images]
        for i in range(CHECKS):
            # Not rolled alone: a warm-up's pictures may be of one colour, and all the same.
            turned = [
                image.roll(7 * i, dims=-1) * (1 - (i + c) / 16) for c, image in enumerate(images)
            ]
            shifted = tokens.roll(i, dims=1)
            other = noise.roll(3 * i, dims=1)
            moved = None if state is None else state + i / 4
            fast = self._call(fixed, call, turned, shifted, moved, other)
            valid = torch.ones(shifted.shape, dtype=torch.bool)
            plain = self._plainly(turned, masks, shifted, valid, moved, other, fixed.steps)
            gaps.append(float((fast - plain).abs().max()))
        return max(gaps, key=lambda gap: gap if gap == gap else float('inf'))


def compile_layers(model: Pi0Model) -> None:
    """Compile each layer's own arithmetic; attention and the cache stay as they are."""
    project = torch.compile(GemmaLayer.project, dynamic=False)
    finish = torch.compile(GemmaLayer.finish, dynamic=False)
    vision = torch.compile(VisionLayer.forward, dynamic=False)
    for module in model.modules():
        if isinstance(module, GemmaLayer):
            module.project = project.__get__(module)
            module.finish = finish.__get__(module)
        elif isinstance(module, VisionLayer):
            module.forward = vision.__get__(module)


@contextlib.contextmanager
def uncompiled(model: Pi0Model) -> Iterator[None]:
    """Take off what ``compile_layers`` put on the layers, and put it back at the end."""
    taken = []
    for module in model.modules():
        for name in ('project', 'finish', 'forward'):
            if name in vars(module):
                taken.append((module, name, vars(module).pop(name)))
    try:
        yield
    finally:
        for module, name, method in taken:
            vars(module)[name] = method
