# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Which weights of a pi0 learn: all, parts of it, or low-rank adapters (LoRA, through peft).

Adapters go on the matrices of Gemma and of the action expert; the heads around the actions, small
and new to every robot, are trained whole and in float32. Adapters are saved alone, a few
megabytes, and merged into the weights for deployment, which then costs nothing at inference.

pi0's queries, keys and values are one matrix here, and so are gate and up: one adapter spans them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pi0_ros.errors import Pi0RosError

HEADS = {
    'pi0': ('action_in_proj', 'action_out_proj', 'state_proj', 'action_time_mlp_in',
            'action_time_mlp_out'),
    'pi05': ('action_in_proj', 'action_out_proj', 'time_mlp_in', 'time_mlp_out'),
}  # fmt: skip
"""What is between the expert and the robot's numbers; always trained whole, in float32."""

PARTS = {
    'text': r'text\.layers\.\d+\.(qkv|out|gate_up|down)',
    'expert': r'expert\.layers\.\d+\.(qkv|out|gate_up|down)',
    'vision': r'vision\.layers\.\d+\.(qkv|out|up|down)',
}
FREEZING = ('none', 'vision', 'all_but_expert')
ADAPTER_FILES = ('adapter_config.json', 'adapter_model.safetensors')


class LoraError(Pi0RosError):
    """Adapters that cannot be made, loaded or merged."""


def freeze(model, what: str = 'none') -> int:
    """
    Choose which weights learn.

    :param what: ``none`` frozen; ``vision``: the image encoder (its projector learns);
        ``all_but_expert``: only the action expert and the heads learn.
    :return: how many parameters learn.
    :raises LoraError: for another word.
    """
    if what not in FREEZING:
        raise LoraError(f"cannot freeze '{what}'; choose one of {', '.join(FREEZING)}")
    heads = HEADS[model.config.kind]
    for name, parameter in model.named_parameters():
        learns = True
        if what == 'vision':
            learns = not name.startswith('vision.') or name.startswith('vision.projector.')
        elif what == 'all_but_expert':
            learns = name.startswith(('expert.', *(f'{head}.' for head in heads)))
        parameter.requires_grad_(learns)
    return trainable(model)


def leave_unread(model, config) -> None:
    """
    Freeze what no output depends on: all of the last prefix layer but its keys and values.

    They would never get a gradient, for which training on several processes waits.

    :param model: ``Pi0Model``, or peft's model around one.
    """
    last = f'text.layers.{config.text.depth - 1}.'
    unread = (*(f'{last}{name}.' for name in ('out', 'norm2', 'gate_up', 'down')), 'text.norm.')
    for name, parameter in model.named_parameters():
        if name.removeprefix('base_model.model.').startswith(unread):
            parameter.requires_grad_(False)


def trainable(model) -> int:
    """Return how many parameters of a model learn."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def add_lora(
    model, rank: int = 16, alpha: float | None = None, dropout: float = 0.0,
    parts: Sequence[str] = ('text', 'expert'), seed: int | None = None,
):  # fmt: skip
    """
    Put adapters into a ``Pi0Model``; everything but them and the heads is frozen.

    The model is changed in place: train what is returned, and use :func:`merge` to get the model
    back. Right after adding, outputs are the model's own (the second factor starts at zero).

    :param rank: of the adapters; openpi's configs have 16 for Gemma 2B and 32 for the expert.
    :param alpha: scale, applied as alpha / rank; None: the rank.
    :param dropout: on the adapters' input.
    :param parts: which of ``text``, ``expert``, ``vision`` get adapters.
    :param seed: of the adapters' first factor; None: torch's generator as it stands.
    :return: peft's ``PeftModel``; calling it returns the loss of ``Pi0Model.loss``.
    :raises LoraError: no such part, a rank below 1, or peft is not installed.
    """
    peft = _peft()
    unknown = [part for part in parts if part not in PARTS]
    if unknown or not parts:
        raise LoraError(
            f"no part '{', '.join(unknown)}' for adapters; choose from {', '.join(PARTS)}"
        )
    if rank < 1 or not 0.0 <= dropout < 1.0:
        raise LoraError(f'rank {rank} must be at least 1 and dropout {dropout} lie in 0..1')
    import torch

    config = peft.LoraConfig(
        r=rank, lora_alpha=rank if alpha is None else alpha, lora_dropout=dropout,
        target_modules='|'.join(f'(?:{PARTS[part]})' for part in parts),
        modules_to_save=list(HEADS[model.config.kind]),
    )  # fmt: skip
    config._register_custom_module({torch.nn.Linear: _sliceable_layer()})
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        return peft.get_peft_model(model, config)


def save_adapters(adapted, folder, base: str = '') -> Path:
    """
    Write the adapters and the heads alone.

    :param adapted: what :func:`add_lora` returned.
    :param base: name or path of the checkpoint that they belong to, noted in the config.
    :return: the folder, with ``adapter_model.safetensors`` and ``adapter_config.json``.
    """
    folder = Path(folder)
    adapted.peft_config['default'].base_model_name_or_path = base or None
    adapted.save_pretrained(str(folder), save_embedding_layers=False)  # else it asks the hub
    (folder / 'README.md').unlink(missing_ok=True)  # peft's empty model card
    return folder


def load_adapters(model, folder, learn: bool = False):
    """
    Put saved adapters into the model that they were trained on.

    :param model: the base ``Pi0Model``; changed in place.
    :param learn: True to go on training them.
    :return: peft's ``PeftModel``.
    :raises LoraError: the folder holds none, or they do not fit the model.
    """
    peft = _peft()
    folder = Path(folder)
    lost = [name for name in ADAPTER_FILES if not (folder / name).is_file()]
    if lost:
        raise LoraError(f'{folder} holds no adapters ({", ".join(lost)} is missing)')
    import torch
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(folder / ADAPTER_FILES[1]), 'pt') as tensors:
            saved = {key: tuple(tensors.get_slice(key).get_shape()) for key in tensors.keys()}
        config = peft.LoraConfig.from_pretrained(str(folder))
    except (SafetensorError, OSError, TypeError, ValueError) as error:
        raise LoraError(f'{folder}: no readable adapters ({error})') from None
    config.inference_mode, config.base_model_name_or_path = not learn, None
    config._register_custom_module({torch.nn.Linear: _sliceable_layer()})
    try:
        adapted = peft.get_peft_model(model, config)
    except ValueError as error:
        raise LoraError(f'{folder}: its adapters do not fit this model ({error})') from None
    wanted = {k: tuple(v.shape) for k, v in peft.get_peft_model_state_dict(adapted).items()}
    if wanted != saved:
        odd = sorted(k for k in wanted.keys() | saved.keys() if wanted.get(k) != saved.get(k))
        raise LoraError(
            f'{folder}: its adapters belong to a model of other sizes ({odd[0]} is '
            f'{saved.get(odd[0])}, here {wanted.get(odd[0])}); give the checkpoint that they were '
            'trained on'
        )
    from safetensors.torch import load_file

    peft.set_peft_model_state_dict(adapted, load_file(str(folder / ADAPTER_FILES[1])))
    return adapted


def merge(adapted):
    """
    Return the plain ``Pi0Model`` with adapters and heads in its own weights, ready to save.

    :param adapted: peft's model; not to be used afterwards.
    """
    model = adapted.merge_and_unload()
    model.requires_grad_(False)
    return model.eval()


def _peft():
    try:
        import peft
    except ImportError:
        raise LoraError("LoRA needs peft; install it with pip install 'pi0_ros[train]'") from None
    return peft


def _sliceable_layer():
    """
    Return peft's linear layer, whose ``weight`` includes the adapters.

    The model reads parts of some matrices (only the keys and values of the last prefix layer);
    peft's own ``weight`` would be that of the base alone.
    """
    from peft.tuners.lora import Linear

    class SliceableLinear(Linear):
        @property
        def weight(self):
            base = self.get_base_layer().weight
            if self.merged or self.disable_adapters:
                return base
            for name in self.active_adapters:
                if name in self.lora_A:
                    base = base + self.get_delta_weight(name).to(base.dtype)
            return base

    return SliceableLinear
