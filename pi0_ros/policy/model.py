# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
The pi0 and pi0.5 network: SigLIP, Gemma, the action expert, and the flow from noise to actions.

Own torch code; needs no transformers. What makes it fast changes no result: cameras and prompt
positions that are masked are dropped from the sequence, the last prefix layer computes only keys
and values, the state token (which sees the prefix and itself) joins the key/value cache once, and
everything that depends on the flow time alone is computed once for all steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pi0_ros.errors import Pi0RosError
from pi0_ros.policy import weights as weight_files
from pi0_ros.policy.config import FAMILIES, GemmaConfig, Pi0Config
from pi0_ros.policy.guidance import Guidance, ModelGuidance
from pi0_ros.policy.memory import keep_freed_memory

DTYPES = {'float32': torch.float32, 'bfloat16': torch.bfloat16}
GELU_SLOPE = math.sqrt(2 / math.pi)
GELU_LINEAR = torch.tensor(-2 * GELU_SLOPE)
GELU_BLOCK = 128 * 1024  # elements: 512 KiB, a quarter of a usual second-level cache


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """
    Return scaled dot-product attention by torch's fused kernels.

    :param q: [B, G, Q, D]; :param k: [B, G, K, D]; :param v: [B, G, K, D]
    :param mask: bool, broadcastable to [B, G, Q, K], True where q may see k; None: everywhere
    """
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def attend_eager(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Return the same as ``attend``, written out: the reference that tests hold it to."""
    scores = (q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(torch.float32).min)
    return torch.softmax(scores, dim=-1).to(v.dtype) @ v


def rotation_tables(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """
    Return cosine and signed sine of the rotary embedding for ``rotate``, float32 [..., head_dim].

    Computed afresh from the config, so that no change of the module's dtype can round them.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=positions.device)
    angles = positions[..., None].float() * (1.0 / theta ** (exponents / head_dim))
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the halves of the last axis in float32 and cast back; tables as wide as x."""
    wide = x.float()
    swapped = wide.roll(x.shape[-1] // 2, dims=-1)
    return torch.addcmul(wide * cos, swapped, sin).to(x.dtype)


def gelu(x: Tensor, times: Tensor | None = None) -> Tensor:
    """
    Return GELU (tanh form) of x, multiplied by ``times`` if given.

    For inference in float32 on a CPU written as x / (1 + exp(-2 u)) over blocks that stay in the
    cache: within 1e-6 of torch's own and 40 % faster.
    """
    plain = x.device.type != 'cpu' or x.dtype != torch.float32 or torch.is_grad_enabled()
    if plain or torch.compiler.is_compiling():
        y = F.gelu(x, approximate='tanh')
        return y if times is None else y * times
    out = torch.empty(x.shape)
    rows = max(1, GELU_BLOCK // x.shape[-1])
    sources = x.flatten(0, -2).split(rows)
    factors = [None] * len(sources) if times is None else times.flatten(0, -2).split(rows)
    for source, factor, block in zip(sources, factors, out.flatten(0, -2).split(rows)):
        torch.addcmul(GELU_LINEAR, source, source, value=-2 * GELU_SLOPE * 0.044715, out=block)
        block.mul_(source).exp_().add_(1.0)
        torch.div(source, block, out=block)
        if factor is not None:
            block.mul_(factor)
    return out


def add_product(x: Tensor, y: Tensor, linear: nn.Linear) -> Tensor:
    """
    Return x + linear(y), all [B, T, W]; where no gradient is recorded x becomes the result.

    In float32 the product is then added to x as it is made, which saves two passes over x; in
    bfloat16 that would leave a rounding out.
    """
    if torch.is_grad_enabled() or x.dtype != torch.float32:
        return x + linear(y)
    if linear.bias is not None:
        x.add_(linear.bias)
    x.view(-1, x.shape[-1]).addmm_(y.flatten(0, -2), linear.weight.t())
    return x


def root_mean_square_norm(x: Tensor, eps: float) -> Tensor:
    """Return x divided by its root mean square over the last axis, float32."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    return x * torch.rsqrt(norm.square() / x.shape[-1] + eps)


def time_embedding(times: Tensor, width: int, config: Pi0Config) -> Tensor:
    """
    Return the sine-cosine embedding of flow times, sines first.

    :param times: float32 [n]
    :return: float32 [n, width], computed in the precision of the checkpoint's family
    """
    precision = getattr(torch, FAMILIES[config.family][1])
    fraction = torch.linspace(0.0, 1.0, width // 2, dtype=precision, device=times.device)
    period = config.min_period * (config.max_period / config.min_period) ** fraction
    angles = (1.0 / period * 2 * math.pi)[None] * times[:, None].to(precision)
    return torch.cat((angles.sin(), angles.cos()), dim=1).float()


def flow_times(num_steps: int, family: str) -> list[float]:
    """Return the float32 flow times of the Euler steps as the family's own sampler has them."""
    if FAMILIES[family][0] == 'grid':
        return [float(np.float32(1.0 - i / num_steps)) for i in range(num_steps)]
    times, time = [], np.float32(1.0)
    for _ in range(num_steps):
        times.append(float(time))
        time = np.float32(time + np.float32(-1.0 / num_steps))
    return times


class RMSNorm(nn.Module):
    """Root-mean-square norm in float32, scaled by 1 + weight."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor, modulation: None = None) -> tuple[Tensor, None]:
        """Return the normed x in its dtype, and no gate."""
        h = root_mean_square_norm(x, self.eps)
        return torch.addcmul(h, h, self.weight).to(x.dtype), None


class AdaptiveRMSNorm(nn.Module):
    """The root-mean-square norm of pi0.5, scaled, shifted and gated by the flow time."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.eps = eps
        self.dense = nn.Linear(width, 3 * width)

    def forward(self, x: Tensor, modulation: Tensor) -> tuple[Tensor, Tensor]:
        """Return the normed x in its dtype, and the residual's gate; modulation [B, 1, 3 W]."""
        scale, shift, gate = modulation.chunk(3, dim=-1)
        h = root_mean_square_norm(x, self.eps)
        return (torch.addcmul(h, h, scale) + shift).to(x.dtype), gate.to(x.dtype)


class VisionLayer(nn.Module):
    """One pre-norm SigLIP block."""

    def __init__(self, hidden: int, heads: int, mlp: int, eps: float):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(hidden, eps=eps)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)
        self.norm2 = nn.LayerNorm(hidden, eps=eps)
        self.up = nn.Linear(hidden, mlp)
        self.down = nn.Linear(mlp, hidden)

    def forward(self, x: Tensor, attention) -> Tensor:
        """Return the block's output for x [N, tokens, hidden], contiguous; x is used up."""
        n, tokens, hidden = x.shape
        qkv = self.qkv(self.norm1(x)).view(n, tokens, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = attention(q, k, v, None).transpose(1, 2).reshape(n, tokens, hidden)
        x = add_product(x, y, self.out)
        return add_product(x, gelu(self.up(self.norm2(x))), self.down)


class VisionTower(nn.Module):
    """SigLIP without its pooling head, followed by the projector to the language width."""

    def __init__(self, config: Pi0Config):
        super().__init__()
        vision = config.vision
        self.patch_size = vision.patch
        self.patch = nn.Linear(3 * vision.patch**2, vision.hidden)
        self.position = nn.Parameter(torch.empty(vision.tokens, vision.hidden))
        self.layers = nn.ModuleList(
            VisionLayer(vision.hidden, vision.heads, vision.mlp, config.layer_norm_eps)
            for _ in range(vision.layers)
        )
        self.norm = nn.LayerNorm(vision.hidden, eps=config.layer_norm_eps)
        self.projector = nn.Linear(vision.hidden, config.text.width)

    def forward(self, images: Tensor, attention, remember: bool) -> Tensor:
        """Return tokens [N, tokens, text width] of images float32 [N, 3, H, W] in [-1, 1]."""
        n, channels, height, width = images.shape
        p = self.patch_size
        patches = images.view(n, channels, height // p, p, width // p, p)
        patches = patches.permute(0, 2, 4, 1, 3, 5).reshape(n, -1, channels * p * p)
        x = self.patch(patches.to(self.patch.weight.dtype)) + self.position
        x = x.to(self.projector.weight.dtype)
        for layer in self.layers:
            if remember:
                x = checkpoint(layer, x, attention, use_reentrant=False)
            else:
                x = layer(x, attention)
        return self.projector(self.norm(x))


class GemmaLayer(nn.Module):
    """One Gemma block; the heads of a key/value group see its keys and values without a copy."""

    def __init__(self, config: GemmaConfig, norm, eps: float):
        super().__init__()
        self.kv_heads, self.head_dim = config.kv_heads, config.head_dim
        self.q_rows = config.heads * config.head_dim
        kv_rows = config.kv_heads * config.head_dim
        self.norm1 = norm(config.width, eps)
        self.qkv = nn.Linear(config.width, self.q_rows + 2 * kv_rows, bias=False)
        self.out = nn.Linear(self.q_rows, config.width, bias=False)
        self.norm2 = norm(config.width, eps)
        self.gate_up = nn.Linear(config.width, 2 * config.mlp, bias=False)
        self.down = nn.Linear(config.mlp, config.width, bias=False)

    def _split(self, rows: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated queries and keys, and values, [B, T, any, D], of projections."""
        heads = rows.unflatten(-1, (-1, self.head_dim))
        turned, v = heads.tensor_split((-self.kv_heads,), dim=2)
        turned = rotate(turned, cos[:, :, None], sin[:, :, None])
        q, k = turned.tensor_split((-self.kv_heads,), dim=2)
        return q, k, v

    def keys_values(self, x: Tensor, rotation) -> tuple[Tensor, Tensor]:
        """Return only the keys and values of x [B, T, W]."""
        h, _ = self.norm1(x)
        _, k, v = self._split(F.linear(h, self.qkv.weight[self.q_rows :]), *rotation)
        return k.transpose(1, 2), v.transpose(1, 2)

    def forward(self, x: Tensor, rotation, join, attention, mask, modulation=(None, None)):
        """
        Return the block's output for x [B, T, W].

        :param rotation: cosine and sine [B or 1, T, D]
        :param join: takes the keys and values of x, returns all those to attend to
        :param mask: bool [B, 1, 1, K] of valid keys, or None
        :param modulation: what each adaptive norm gets
        """
        q, k, v, gate = self.project(x, *rotation, modulation[0])
        y = self.attend(attention, q, *join(k, v), mask)
        return self.finish(x, y, gate, modulation[1])

    def attend(self, attention, q: Tensor, k: Tensor, v: Tensor, mask) -> Tensor:
        """Return what queries [B, T, heads, D] see of k and v [B, G, K, D]: [B, T, heads D]."""
        b, t, heads, _ = q.shape
        k, v = (
            part[:, :, None].expand(-1, -1, heads // self.kv_heads, -1, -1).flatten(1, 2)
            for part in (k, v)
        )
        y = attention(q.transpose(1, 2), k, v, mask).transpose(1, 2)
        return y.reshape(b, t, self.q_rows)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor, modulation):
        """Return queries [B, T, heads, D], keys and values [B, G, T, D], residual gate."""
        h, gate = self.norm1(x, modulation)
        q, k, v = self._split(self.qkv(h), cos, sin)
        return q, k.transpose(1, 2), v.transpose(1, 2), gate

    def finish(self, x: Tensor, y: Tensor, gate, modulation) -> Tensor:
        """Return the block's output for its input x [B, T, W], used up, and attention's, y."""
        x = self._add(x, y, self.out, gate)
        h, gate = self.norm2(x, modulation)
        gates, up = self.gate_up(h).chunk(2, dim=-1)
        return self._add(x, gelu(gates, up), self.down, gate)

    @staticmethod
    def _add(x: Tensor, y: Tensor, linear: nn.Linear, gate: Tensor | None) -> Tensor:
        return add_product(x, y, linear) if gate is None else x + gate * linear(y)


class Gemma(nn.Module):
    """A stack of Gemma blocks and its final norm."""

    def __init__(self, config: GemmaConfig, norm, eps: float):
        super().__init__()
        self.layers = nn.ModuleList(GemmaLayer(config, norm, eps) for _ in range(config.depth))
        self.norm = norm(config.width, eps)


@dataclass
class Prefix:
    """
    Embedded images and prompt with everything invalid left out.

    ``embeddings`` [B, N, W]; ``lengths`` int64 [B], valid tokens of each row (they come first, so
    positions are 0, 1, 2, ...); ``mask`` bool [B, N] of valid tokens, None if all are;
    ``index`` int64 [B, N]: where each token stands in the full sequence of all cameras and tokens.
    """

    embeddings: Tensor
    lengths: Tensor
    mask: Tensor | None
    index: Tensor


class Cache:
    """
    Keys and values of the prefix and the state token, with room for the actions.

    Buffers are allocated once and written in place; where gradients are recorded, which in-place
    writes would break, tensors are joined instead.
    """

    def __init__(self, prefix: Prefix, layers: int, room: int):
        self.lengths, self.mask = prefix.lengths, prefix.mask
        self.capacity = prefix.embeddings.shape[1] + room
        self.length = 0
        self.keys: list[Tensor | None] = [None] * layers
        self.values: list[Tensor | None] = [None] * layers

    def advance(self, tokens: int) -> None:
        """Make the tokens of the pass that has just ended part of the cache."""
        self.length += tokens
        if self.mask is not None and self.length > self.mask.shape[1]:
            self.mask = F.pad(self.mask, (0, self.length - self.mask.shape[1]), value=True)

    def key_mask(self, new: int) -> Tensor | None:
        """Return the mask over the kept keys and ``new`` valid ones, [B, 1, 1, K], or None."""
        if self.mask is None:
            return None
        return F.pad(self.mask[:, : self.length], (0, new), value=True)[:, None, None]


class Pi0Model(nn.Module):
    """
    The network without normalisation, images, tokenizer: tensors in, tensors out.

    Build it with ``load``; calling the constructor gives uninitialised weights.
    """

    def __init__(self, config: Pi0Config):
        """Lay out the modules for a config whose kind is known (None counts as pi0)."""
        super().__init__()
        self.config = config = config.replace(kind=config.kind or 'pi0')
        norm = AdaptiveRMSNorm if config.kind == 'pi05' else RMSNorm
        width = config.expert.width
        self.vision = VisionTower(config)
        self.embedding = nn.Parameter(torch.empty(config.text.vocab, config.text.width))
        self.text = Gemma(config.text, RMSNorm, config.rms_norm_eps)
        self.expert = Gemma(config.expert, norm, config.rms_norm_eps)
        self.action_in_proj = nn.Linear(config.max_action_dim, width)
        self.action_out_proj = nn.Linear(width, config.max_action_dim)
        if config.kind == 'pi05':
            self.time_mlp_in = nn.Linear(width, width)
            self.time_mlp_out = nn.Linear(width, width)
        else:
            self.state_proj = nn.Linear(config.max_state_dim, width)
            self.action_time_mlp_in = nn.Linear(2 * width, width)
            self.action_time_mlp_out = nn.Linear(width, width)
        self.attention = attend
        self.gradient_checkpointing = False

    # ---- making, loading, saving

    @classmethod
    def empty(cls, config: Pi0Config, device='cpu', dtype='float32') -> Pi0Model:
        """
        Build the model with uninitialised weights, straight on the device.

        In bfloat16 the patch and position embedding, the norms of Gemma and expert and the action
        heads stay float32, as in openpi.

        :raises Pi0RosError: the dtype is not float32 or bfloat16
        """
        name = str(dtype).removeprefix('torch.')
        if name not in DTYPES:
            raise Pi0RosError(f"model dtype '{name}' is not one of {', '.join(DTYPES)}")
        if torch.device(device).type == 'cpu':
            keep_freed_memory()
        with torch.device('meta'):
            model = cls(config)
        for module_name, module in model.named_modules():
            keep = isinstance(module, (RMSNorm, AdaptiveRMSNorm, VisionTower))
            keep = keep or '_proj' in module_name or 'time_mlp' in module_name
            keep = keep or module_name == 'vision.patch' or module_name.endswith('.dense')
            kept = torch.float32 if keep else DTYPES[name]
            for key, parameter in list(module.named_parameters(recurse=False)):
                memory = torch.empty(parameter.shape, dtype=kept, device=device)
                setattr(module, key, nn.Parameter(memory))
        return model.eval()

    @classmethod
    def load(cls, path, config: Pi0Config, device='cpu', dtype='float32') -> Pi0Model:
        """
        Load weights in any known key layout; never a partly loaded model.

        :param path: a .safetensors file, a .safetensors.index.json with its shards beside it, or
            a folder that holds one of them (model.safetensors, model.safetensors.index.json)
        :param config: ``kind`` None: the weights decide between pi0 and pi0.5
        :param device: anything torch takes
        :param dtype: 'float32' or 'bfloat16' (or the torch dtype)
        :return: the model in evaluation mode
        :raises Pi0RosError: weights are missing, extra, of the wrong shape or kind (all listed),
            the file is damaged or no safetensors file, or memory does not suffice
        """
        source = weight_files.WeightSource.open(Path(path))
        config = source.resolve(config)
        source.check(config)
        try:
            model = cls.empty(config, device, dtype)
        except (RuntimeError, MemoryError) as error:
            if not isinstance(error, (torch.cuda.OutOfMemoryError, MemoryError)):
                if 'memory' not in str(error):
                    raise
            raise Pi0RosError(
                f'{path}: not enough memory for the model on {device}; free memory or use '
                'dtype bfloat16'
            ) from error
        source.read_into(model)
        model.lay_out()
        return model

    def lay_out(self) -> None:
        """
        Lay the expert's matrices out by columns on the CPU; shapes and values stay.

        The flow multiplies 50 tokens at a time, for which that order is a quarter faster.
        """
        if self.device.type == 'cpu':
            for layer in self.expert.layers:
                for linear in (layer.qkv, layer.out, layer.gate_up, layer.down):
                    linear.weight.data = linear.weight.data.t().contiguous().t()

    @classmethod
    def random(cls, config: Pi0Config, seed: int = 0, device='cpu', dtype='float32') -> Pi0Model:
        """Build the model with random weights, normal with deviation 1/sqrt(fan-in)."""
        model = cls.empty(config, device, dtype)
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in model.named_parameters():
            if name.endswith('.bias'):
                scale = 0.02
            elif parameter.ndim == 1:
                scale = 0.1
            else:
                scale = 1.0 if name == 'embedding' else parameter.shape[1] ** -0.5
            layer_norm = 'vision' in name and 'norm' in name and name.endswith('.weight')
            with torch.no_grad():
                for rows in parameter.data.split(4096):
                    values = torch.randn(rows.shape, generator=generator) * scale
                    rows.copy_(values + 1.0 if layer_norm else values)
        model.lay_out()
        return model

    def save(self, path, dtype: str | None = None, metadata: dict | None = None, progress=None):
        """
        Write the weights to one safetensors file in the documented layout (docs/checkpoints.md).

        :param dtype: 'float32', 'bfloat16' or 'float16' for all tensors; None: as they are
        :param progress: called with the number of bytes after each tensor
        """
        weight_files.save_model(self, Path(path), dtype, metadata, progress)

    @property
    def device(self) -> torch.device:
        """Return where the weights are."""
        return self.action_out_proj.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the bulk of the weights."""
        return self.vision.projector.weight.dtype

    # ---- prefix

    def embed_images(self, images: Tensor) -> Tensor:
        """
        Return image tokens in the language width.

        :param images: float32 [N, 3, H, W] in [-1, 1], H and W the config's image size
        :return: [N, tokens, W] in the model's dtype; not scaled
        """
        remember = self.gradient_checkpointing and torch.is_grad_enabled()
        return self.vision(images, self.attention, remember)

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        """Return token embeddings times sqrt(width): [B, L] -> [B, L, W]."""
        return F.embedding(tokens, self.embedding) * math.sqrt(self.config.text.width)

    def embed_prefix(self, images, image_masks, tokens, token_masks) -> Prefix:
        """
        Embed cameras and prompt, leaving out whatever is masked.

        :param images: list of float [B, 3, H, W] in [-1, 1], one a camera, in slot order
        :param image_masks: list of bool [B], one a camera
        :param tokens: int [B, L]; :param token_masks: bool [B, L]
        :raises Pi0RosError: shapes do not fit together, or a row has nothing valid
        """
        images, image_masks, tokens, token_masks = self._check_prefix(
            images, image_masks, tokens, token_masks
        )
        batch, cameras = image_masks.shape
        per_image = self.config.vision.tokens
        used = [c for c in range(cameras) if bool(image_masks[:, c].any())]
        columns = token_masks.any(0).nonzero()[:, 0]
        where = [torch.arange(c * per_image, (c + 1) * per_image) for c in used]
        where = torch.cat([*where, cameras * per_image + columns])
        valid = torch.cat(
            [
                image_masks[:, used].repeat_interleave(per_image, dim=1),
                token_masks[:, columns],
            ],
            dim=1,
        )
        lengths = valid.sum(1)
        if bool((lengths == 0).any()):
            raise Pi0RosError('a row of the batch has neither a camera nor a prompt; give it one')
        device = self.device
        parts = []
        if used:
            shown = image_masks[:, used]
            stacked = torch.stack([images[c] for c in used], dim=1).to(device, torch.float32)
            if bool(shown.all()):
                features = self.embed_images(stacked.flatten(0, 1))
                parts.append(features.view(batch, len(used) * per_image, -1))
            else:
                seen = self.embed_images(stacked[shown.to(device)])
                features = seen.new_zeros(batch, len(used), per_image, seen.shape[-1])
                features = features.index_put(tuple(shown.to(device).nonzero().unbind(1)), seen)
                parts.append(features.flatten(1, 2))
        parts.append(self.embed_tokens(tokens[:, columns].to(device)))
        embeddings = torch.cat(parts, dim=1)
        index = where[None].expand(batch, -1)
        mask = None
        if not bool(valid.all()):  # rows differ: bring the valid tokens of each to the front
            longest = int(lengths.max())
            order = torch.argsort(~valid, dim=1, stable=True)[:, :longest]
            index = index.gather(1, order)
            mask = (torch.arange(longest)[None] < lengths[:, None]).to(device)
            order = order.to(device)[..., None].expand(-1, -1, embeddings.shape[-1])
            embeddings = embeddings.gather(1, order)
        return Prefix(embeddings, lengths.to(device), mask, index)

    def _check_prefix(self, images, image_masks, tokens, token_masks):
        """Return images as a list, masks as CPU tensors [B, C] and [B, L], tokens as int64."""
        images = _columns(images)
        tokens = torch.as_tensor(tokens).long()
        shown = [m.cpu().bool() for m in _columns(image_masks)]
        empty = torch.zeros(tokens.shape[0], 0, dtype=torch.bool)
        image_masks = torch.stack(shown, dim=1) if shown else empty
        token_masks = torch.as_tensor(token_masks).cpu().bool()
        batch, size = tokens.shape[0], self.config.vision.image
        want = (batch, 3, size, size)
        for number, image in enumerate(images):
            if tuple(image.shape) != want or not image.is_floating_point():
                raise Pi0RosError(
                    f'image {number} is {image.dtype} {tuple(image.shape)}; the model takes '
                    f'float {want} in [-1, 1]'
                )
        if len(images) != image_masks.shape[1] or image_masks.shape[0] != batch:
            raise Pi0RosError(
                f'{len(images)} images of batch {batch} but masks {tuple(image_masks.shape)}; '
                'give one bool [B] for each image'
            )
        if tokens.shape != token_masks.shape:
            raise Pi0RosError(
                f'tokens {tuple(tokens.shape)} and their masks {tuple(token_masks.shape)} differ'
            )
        beyond = tokens[token_masks.to(tokens.device)]
        vocab = self.config.text.vocab
        if beyond.numel() and not 0 <= int(beyond.min()) <= int(beyond.max()) < vocab:
            raise Pi0RosError(
                f'token id {int(beyond.max())} is outside the vocabulary of {vocab}; use the '
                "checkpoint's tokenizer"
            )
        return images, image_masks, tokens, token_masks

    def encode_prefix(self, prefix: Prefix, output: bool = False):
        """
        Run the language model over the prefix.

        :param output: also run what only the output needs (nothing in pi0 reads it)
        :return: the cache of keys and values; with ``output`` also the output [B, N, W]
        """
        config = self.config
        x = prefix.embeddings.clone()
        tokens = x.shape[1]
        cache = Cache(prefix, config.text.depth, room=1 + config.chunk)
        positions = torch.arange(tokens, device=x.device)[None]
        rotation = rotation_tables(positions, config.text.head_dim, config.rope_theta)
        mask = cache.key_mask(0) if prefix.mask is None else prefix.mask[:, None, None]
        last = config.text.depth - 1
        for i, layer in enumerate(self.text.layers):
            if i == last and not output:
                _Join(cache, i, keep=True)(*layer.keys_values(x, rotation))
                break
            x = self._run(layer, x, rotation, _Join(cache, i, keep=True), mask)
        cache.advance(tokens)
        return (cache, self.text.norm(x)[0]) if output else cache

    def _run(self, layer, x, rotation, join, mask, modulation=(None, None)):
        if self.gradient_checkpointing and torch.is_grad_enabled():
            return checkpoint(
                layer, x, rotation, join, self.attention, mask, modulation, use_reentrant=False
            )
        return layer(x, rotation, join, self.attention, mask, modulation)

    # ---- suffix

    def add_state(self, cache: Cache, state: Tensor) -> None:
        """
        Put the state token's keys and values into the cache (pi0; pi0.5 has no state token).

        :param state: float32 [B, max_state_dim], normalised
        """
        if self.config.kind == 'pi05':
            return
        x = self.state_proj(state)[:, None].to(self.dtype)
        rotation = self._suffix_rotation(cache, 0, 1)
        mask = cache.key_mask(1)
        last = self.config.expert.depth - 1
        for i, layer in enumerate(self.expert.layers):
            if i == last:
                _Join(cache, i, keep=True)(*layer.keys_values(x, rotation))
                break
            x = self._run(layer, x, rotation, _Join(cache, i, keep=True), mask)
        cache.advance(1)

    def _suffix_rotation(self, cache: Cache, offset: int, tokens: int):
        positions = cache.lengths[:, None] + torch.arange(
            offset, offset + tokens, device=cache.lengths.device
        )
        return rotation_tables(positions, self.config.expert.head_dim, self.config.rope_theta)

    def embed_times(self, times: Tensor) -> TimeTerms:
        """
        Return all that depends on the flow time alone.

        :param times: float32 [n]; terms for all n are computed at once
        """
        emb = time_embedding(times, self.config.expert.width, self.config)
        if self.config.kind != 'pi05':
            mlp = self.action_time_mlp_in
            width = self.config.expert.width
            return TimeTerms(F.linear(emb, mlp.weight[:, width:], mlp.bias)[:, None], None, None)
        condition = F.silu(self.time_mlp_out(F.silu(self.time_mlp_in(emb))))
        norms = [n for layer in self.expert.layers for n in (layer.norm1, layer.norm2)]
        modulations = [n.dense(condition)[:, None] for n in (*norms, self.expert.norm)]
        return TimeTerms(None, condition, torch.stack(modulations, dim=1))

    def embed_actions(self, x: Tensor, time: TimeTerms) -> Tensor:
        """Return the action tokens, float32 [B, chunk, W], of x float32 [B, chunk, dim]."""
        actions = self.action_in_proj(x)
        if self.config.kind == 'pi05':
            return actions
        weight = self.action_time_mlp_in.weight[:, : self.config.expert.width]
        return self.action_time_mlp_out(F.silu(F.linear(actions, weight) + time.bias))

    def velocity(self, cache: Cache, x: Tensor, time: TimeTerms, rotation=None) -> Tensor:
        """
        Return the flow's velocity.

        :param cache: prefix and state
        :param x: float32 [B, chunk, max_action_dim]
        :param time: terms of one time, or of one a row
        :return: float32 [B, chunk, max_action_dim]
        """
        chunk = x.shape[1]
        if rotation is None:
            rotation = self.action_rotation(cache)
        mask = cache.key_mask(chunk)
        h = self.embed_actions(x, time).to(self.dtype)
        for i, layer in enumerate(self.expert.layers):
            h = self._run(layer, h, rotation, _Join(cache, i, keep=False), mask, time.of_layer(i))
        h, _ = self.expert.norm(h, time.of_output())
        return self.action_out_proj(h.float())

    def action_rotation(self, cache: Cache):
        """Return cosine and sine for the action tokens that follow the cache."""
        offset = 0 if self.config.kind == 'pi05' else 1
        return self._suffix_rotation(cache, offset, self.config.chunk)

    # ---- the two things one does with it

    @torch.no_grad()
    def sample_actions(
        self, images, image_masks, tokens, token_masks, state, noise=None, num_steps=None,
        guidance: Guidance | None = None,
    ) -> Tensor:  # fmt: skip
        """
        Walk from noise to actions.

        :param images: list of float [B, 3, H, W] in [-1, 1], one a camera slot, in slot order
        :param image_masks: list of bool [B]; False: the camera is absent, its content is not read
        :param tokens: int [B, L]; :param token_masks: bool [B, L]
        :param state: float [B, max_state_dim], normalised; pi0.5 has it in the prompt instead
        :param noise: float [B, chunk, max_action_dim], standard normal; None: drawn
        :param num_steps: Euler steps; None: the config's (10)
        :param guidance: real-time chunking towards previous actions in this normalised space
        :return: float32 [B, chunk, max_action_dim], normalised
        :raises Pi0RosError: a shape does not fit
        """
        steps = self.config.num_steps if num_steps is None else int(num_steps)
        if steps < 1:
            raise Pi0RosError(f'num_steps {num_steps} must be at least 1')
        prefix = self.embed_prefix(images, image_masks, tokens, token_masks)
        batch = prefix.embeddings.shape[0]
        x = self._actions_like(noise, batch, 'noise')
        state = self._check_state(state, batch)
        cache = self.encode_prefix(prefix)
        self.add_state(cache, state)
        rtc = None
        if guidance is not None:
            rtc = ModelGuidance(guidance, *x.shape, device=x.device)
        return self.flow(cache, x, steps, rtc)

    def step_terms(self, steps: int) -> TimeTerms:
        """Return the time terms of all Euler steps; they change only with the weights."""
        times = flow_times(steps, self.config.family)
        return self.embed_times(torch.tensor(times, device=self.device))

    def flow(
        self, cache: Cache, x: Tensor, steps: int, rtc: ModelGuidance | None = None,
        terms: TimeTerms | None = None,
    ) -> Tensor:  # fmt: skip
        """
        Return the end of ``steps`` Euler steps from x at t=1, float32 like x.

        :param terms: ``step_terms(steps)`` if they are at hand
        """
        times = flow_times(steps, self.config.family)
        terms = self.step_terms(steps) if terms is None else terms
        rotation = self.action_rotation(cache)
        for i, time in enumerate(times):
            term = terms.step(i)
            if rtc is None:
                v = self.velocity(cache, x, term, rotation)
            else:
                v = rtc.velocity(x, time, lambda y, t=term: self.velocity(cache, y, t, rotation))
            x = x + (-1.0 / steps) * v
        return x

    def loss(
        self, images, image_masks, tokens, token_masks, state, actions, noise, time
    ) -> Tensor:
        """
        Return the flow-matching loss of each element, differentiable, not reduced.

        Other arguments as in ``sample_actions``.

        :param actions: float [B, chunk, max_action_dim], normalised target
        :param noise: float [B, chunk, max_action_dim]
        :param time: float [B] in (0, 1], 1 is pure noise
        :return: float32 [B, chunk, max_action_dim], (velocity - (noise - actions))^2
        """
        prefix = self.embed_prefix(images, image_masks, tokens, token_masks)
        batch = prefix.embeddings.shape[0]
        actions = self._actions_like(actions, batch, 'actions')
        noise = self._actions_like(noise, batch, 'noise')
        state = self._check_state(state, batch)
        time = torch.as_tensor(time, dtype=torch.float32, device=self.device).reshape(batch)
        t = time[:, None, None]
        cache = self.encode_prefix(prefix)
        self.add_state(cache, state)
        x = t * noise + (1 - t) * actions
        v = self.velocity(cache, x, self.embed_times(time))
        return F.mse_loss(v, noise - actions, reduction='none')

    def forward(self, *args, **kwargs) -> Tensor:
        """Return ``loss``, so that wrappers for distributed training find it."""
        return self.loss(*args, **kwargs)

    def _actions_like(self, value, batch: int, name: str) -> Tensor:
        shape = (batch, self.config.chunk, self.config.max_action_dim)
        if value is None:
            return torch.randn(shape).to(self.device)
        value = torch.as_tensor(value).to(self.device, torch.float32)
        if tuple(value.shape) != shape:
            raise Pi0RosError(f'{name} has shape {tuple(value.shape)}; the model takes {shape}')
        return value

    def _check_state(self, state, batch: int) -> Tensor | None:
        if self.config.kind == 'pi05':
            return None
        state = torch.as_tensor(state).to(self.device, torch.float32)
        shape = (batch, self.config.max_state_dim)
        if tuple(state.shape) != shape:
            raise Pi0RosError(
                f'state has shape {tuple(state.shape)}; the model takes {shape}, normalised and '
                'padded with zeros'
            )
        return state


@dataclass
class TimeTerms:
    """
    What the flow time contributes, for one or several times.

    ``bias`` [n, 1, W] enters pi0's action tokens; ``condition`` [n, W] is pi0.5's time condition,
    ``modulations`` [n, norms, 1, 3 W] what its adaptive norms make of it.
    """

    bias: Tensor | None
    condition: Tensor | None
    modulations: Tensor | None

    def step(self, i: int) -> TimeTerms:
        """Return the terms of the i-th time alone."""
        return TimeTerms(*(None if part is None else part[i : i + 1] for part in self._parts()))

    def _parts(self):
        return self.bias, self.condition, self.modulations

    def of_layer(self, i: int) -> tuple[Tensor | None, Tensor | None]:
        """Return the modulation of both norms of a layer."""
        if self.modulations is None:
            return None, None
        return self.modulations[:, 2 * i], self.modulations[:, 2 * i + 1]

    def of_output(self) -> Tensor | None:
        """Return the modulation of the final norm."""
        return None if self.modulations is None else self.modulations[:, -1]


class _Join:
    """
    How one layer's new keys and values meet those that the cache held when it was made.

    Calling it again (as gradient checkpointing does) gives the same result and keeps nothing.
    """

    def __init__(self, cache: Cache, layer: int, keep: bool):
        self.cache, self.layer, self.keep = cache, layer, keep
        self.held = cache.keys[layer], cache.values[layer]
        self.start = cache.length

    def __call__(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        kept, seen = zip(
            self._write(self.held[0], keys), self._write(self.held[1], values), strict=True
        )
        if self.keep:
            self.cache.keys[self.layer], self.cache.values[self.layer] = kept
            self.keep = False
        return seen

    def _write(self, held: Tensor | None, new: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the cache is to keep, and the held and the new part in one tensor."""
        end = self.start + new.shape[2]
        if torch.is_grad_enabled():
            joined = new if held is None else torch.cat((held[:, :, : self.start], new), dim=2)
            return joined, joined
        if held is None:
            shape = (*new.shape[:2], self.cache.capacity, new.shape[3])
            held = torch.empty(shape, dtype=new.dtype, device=new.device)
        held[:, :, self.start : end] = new
        return held, held[:, :, :end]


def _columns(items: Sequence | Tensor | np.ndarray) -> list[Tensor]:
    """Return a list, one tensor a camera, of a list or of a stack [B, cameras, ...]."""
    if isinstance(items, (Tensor, np.ndarray)):
        return list(torch.as_tensor(items).unbind(1))
    return [torch.as_tensor(item) for item in items]
