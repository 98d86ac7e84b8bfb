# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Sizes and numerics of a pi0 model, as plain data.

Used by the model, the weight reader and the converter; imports neither torch nor numpy.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from pi0_ros.errors import Pi0RosError

KINDS = ('pi0', 'pi05')

# How the implementation that trained a checkpoint walks from t=1 to t=0, and in which precision
# it embeds the time. The embedding's shortest period is 4e-3, so 1e-7 in time is seen in actions.
#   times 'grid':       1 - i/n in double, rounded to float32 once
#   times 'accumulate': float32 additions of -1/n
FAMILIES = {
    'lerobot': ('grid', 'float64'),
    'openpi': ('accumulate', 'float64'),
    'openpi_jax': ('accumulate', 'float32'),
    'transformers': ('grid', 'float32'),
}


@dataclass(frozen=True)
class VisionConfig:
    """SigLIP image encoder: square images of ``image`` pixels in patches of ``patch`` pixels."""

    hidden: int
    layers: int
    heads: int
    mlp: int
    patch: int
    image: int

    @property
    def tokens(self) -> int:
        """Return the number of tokens of one image."""
        return (self.image // self.patch) ** 2


@dataclass(frozen=True)
class GemmaConfig:
    """One Gemma transformer; ``vocab`` is 0 for the action expert, which embeds no tokens."""

    width: int
    depth: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocab: int = 0


_TINY = {
    'vision': {'hidden': 32, 'layers': 2, 'heads': 2, 'mlp': 64, 'patch': 14, 'image': 224},
    'text': {
        'width': 64, 'depth': 3, 'heads': 4, 'kv_heads': 1, 'head_dim': 16, 'mlp': 128,
        'vocab': 512,
    },
    'expert': {
        'width': 32, 'depth': 3, 'heads': 4, 'kv_heads': 1, 'head_dim': 16, 'mlp': 64,
    },
    'chunk': 8, 'max_state_dim': 32, 'max_action_dim': 32, 'num_steps': 10, 'n_cams': 3,
}  # fmt: skip
_SMALL = {
    'vision': {'hidden': 384, 'layers': 12, 'heads': 6, 'mlp': 1536, 'patch': 14, 'image': 224},
    'text': {
        'width': 512, 'depth': 8, 'heads': 8, 'kv_heads': 1, 'head_dim': 64, 'mlp': 2048,
        'vocab': 2048,
    },
    'expert': {
        'width': 256, 'depth': 8, 'heads': 8, 'kv_heads': 1, 'head_dim': 64, 'mlp': 1024,
    },
    'chunk': 50, 'max_state_dim': 32, 'max_action_dim': 32, 'num_steps': 10, 'n_cams': 3,
}  # fmt: skip
# The published model: SigLIP So400m/14, Gemma 2B, a 300M expert (3,238,048,528 parameters).
_FULL = {
    'vision': {'hidden': 1152, 'layers': 27, 'heads': 16, 'mlp': 4304, 'patch': 14, 'image': 224},
    'text': {
        'width': 2048, 'depth': 18, 'heads': 8, 'kv_heads': 1, 'head_dim': 256, 'mlp': 16384,
        'vocab': 257152,
    },
    'expert': {
        'width': 1024, 'depth': 18, 'heads': 8, 'kv_heads': 1, 'head_dim': 256, 'mlp': 4096,
    },
    'chunk': 50, 'max_state_dim': 32, 'max_action_dim': 32, 'num_steps': 10, 'n_cams': 3,
}  # fmt: skip
SIZES = {'tiny': _TINY, 'small': _SMALL, 'full': _FULL}


@dataclass(frozen=True)
class Pi0Config:
    """
    Everything that decides the numbers of a pi0 model, apart from its weights.

    ``kind`` None lets the weights decide between pi0 and pi0.5 when they are loaded.
    ``family`` names the implementation that trained the checkpoint (see ``FAMILIES``).
    """

    vision: VisionConfig
    text: GemmaConfig
    expert: GemmaConfig
    chunk: int = 50
    max_state_dim: int = 32
    max_action_dim: int = 32
    num_steps: int = 10
    n_cams: int = 3
    kind: str | None = None
    family: str = 'lerobot'
    min_period: float = 4e-3
    max_period: float = 4.0
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    layer_norm_eps: float = 1e-6

    def __post_init__(self):
        """Refuse sizes that cannot be a pi0 model, all faults in one sentence."""
        faults = self._wrong_numbers()
        if faults:
            raise Pi0RosError(f"model config: {'; '.join(faults)}; correct the dims")
        if self.kind is not None and self.kind not in KINDS:
            faults.append(f"kind '{self.kind}' is not one of {', '.join(KINDS)}")
        if self.family not in FAMILIES:
            faults.append(f"family '{self.family}' is not one of {', '.join(FAMILIES)}")
        text, expert, vision = self.text, self.expert, self.vision
        for name in ('depth', 'heads', 'kv_heads', 'head_dim'):
            a, b = getattr(text, name), getattr(expert, name)
            if a != b:
                faults.append(f'text.{name} {a} differs from expert.{name} {b}')
        if text.heads % max(text.kv_heads, 1):
            faults.append(f'text.heads {text.heads} is no multiple of kv_heads {text.kv_heads}')
        if text.head_dim % 2 or expert.width % 2:
            faults.append('head_dim and expert.width must be even')
        if vision.hidden % vision.heads:
            faults.append(f'vision.hidden {vision.hidden} is no multiple of heads {vision.heads}')
        if vision.image % vision.patch:
            faults.append(f'vision.image {vision.image} is no multiple of patch {vision.patch}')
        if faults:
            raise Pi0RosError(f"model config: {'; '.join(faults)}; correct the dims")

    def _wrong_numbers(self) -> list[str]:
        """Return a complaint about each size that is no whole number above zero."""
        numbers = {
            f'{part}.{name}': value
            for part in ('vision', 'text', 'expert')
            for name, value in dataclasses.asdict(getattr(self, part)).items()
            if (part, name) != ('expert', 'vocab')
        }
        for name in ('chunk', 'max_state_dim', 'max_action_dim', 'num_steps', 'n_cams'):
            numbers[name] = getattr(self, name)
        return [
            f'{name} {value!r} is no whole number above zero'
            for name, value in numbers.items()
            if type(value) is not int or value < 1
        ]

    @classmethod
    def from_dims(
        cls, dims: dict, kind: str | None = None, family: str = 'lerobot', **numerics
    ) -> Pi0Config:
        """
        Build a config from a plain dict of sizes.

        :param dims: keys ``vision`` (hidden, layers, heads, mlp, patch, image), ``text`` and
            ``expert`` (width, depth, heads, kv_heads, head_dim, mlp; text also vocab), ``chunk``,
            ``max_state_dim``, ``max_action_dim``, ``num_steps``, ``n_cams``; or a dict that holds
            such a dict under ``dims`` and perhaps ``kind`` and ``family`` beside it
        :param kind: 'pi0', 'pi05', or None: the weights decide
        :param family: whose Euler times and time embedding apply, see ``FAMILIES``
        :param numerics: any other field of the config, such as ``min_period``
        :raises Pi0RosError: a key is unknown or missing, or sizes contradict each other
        """
        if 'dims' in dims:
            kind = kind if kind is not None else dims.get('kind')
            family = dims.get('family', family)
            dims = dims['dims']
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(dims) - known)
        if unknown:
            raise Pi0RosError(f"model config: unknown dims {', '.join(unknown)}; remove them")
        try:
            parts = {
                'vision': VisionConfig(**dims['vision']),
                'text': GemmaConfig(**dims['text']),
                'expert': GemmaConfig(**dims['expert']),
            }
        except KeyError as error:
            raise Pi0RosError(f'model config: {error} is missing from the dims; add it') from None
        except TypeError as error:
            raise Pi0RosError(f'model config: {error}; correct the dims') from None
        rest = {k: v for k, v in dims.items() if k not in parts}
        strange = sorted(set(numerics) - known)
        if strange:
            raise Pi0RosError(f"model config: unknown fields {', '.join(strange)}; remove them")
        return cls(**{**parts, 'kind': kind, 'family': family, **rest, **numerics})

    @classmethod
    def named(cls, size: str, kind: str = 'pi0', family: str = 'lerobot') -> Pi0Config:
        """
        Return a named size: 'tiny' (0.3 M parameters), 'small' (63 M) or 'full' (3.24 B).

        :raises Pi0RosError: there is no such size
        """
        if size not in SIZES:
            raise Pi0RosError(f"no size '{size}'; choose one of {', '.join(SIZES)}")
        return cls.from_dims(SIZES[size], kind, family)

    @property
    def dims(self) -> dict:
        """Return the sizes as the dict that ``from_dims`` reads."""
        names = ('chunk', 'max_state_dim', 'max_action_dim', 'num_steps', 'n_cams')
        expert = dataclasses.asdict(self.expert)
        del expert['vocab']
        return {
            'vision': dataclasses.asdict(self.vision),
            'text': dataclasses.asdict(self.text),
            'expert': expert,
            **{name: getattr(self, name) for name in names},
        }

    def to_dict(self) -> dict:
        """Return all fields as JSON-ready data; ``from_dict`` is the inverse."""
        numerics = ('min_period', 'max_period', 'rope_theta', 'rms_norm_eps', 'layer_norm_eps')
        return {
            'kind': self.kind,
            'family': self.family,
            'dims': self.dims,
            **{name: getattr(self, name) for name in numerics},
        }

    @classmethod
    def from_dict(cls, data: dict) -> Pi0Config:
        """
        Rebuild a config from ``to_dict``.

        :raises Pi0RosError: as in ``from_dims``
        """
        numerics = {k: v for k, v in data.items() if k not in ('kind', 'family', 'dims')}
        return cls.from_dims(
            data.get('dims', {}), data.get('kind'), data.get('family', 'lerobot'), **numerics
        )

    def replace(self, **changes) -> Pi0Config:
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    @property
    def default_prompt_tokens(self) -> int:
        """Return the prompt length that the trainers use: 48 for pi0, 200 for pi0.5."""
        return 200 if self.kind == 'pi05' else 48
