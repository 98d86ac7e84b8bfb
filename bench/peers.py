# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
LeRobot's pi0 with our weights, for comparing results and speed in one process.

Needs an environment in which ``lerobot`` (0.5 or later, with its pi0 extra, torch and the matching
torchvision) imports; LeRobot pins other versions than pi0_ros, so this is a second environment:

    pip install 'lerobot[pi]' && pip install --no-deps -e . && python bench/peers.py

Run as a script it compares actions on random tiny models and says by how much they differ.
"""

from __future__ import annotations

import contextlib
import inspect

import torch

from pi0_ros.policy import weights as weight_files


def why_not() -> str:
    """Return why LeRobot's pi0 cannot be had here, '' if it can."""
    try:
        from lerobot.policies.pi0 import modeling_pi0
    except Exception as error:  # whatever an import of half of its dependencies raises
        return f'{type(error).__name__}: {error}'.splitlines()[0]
    if not hasattr(modeling_pi0, 'PI0Pytorch'):
        return 'LeRobot before 0.4 has another pi0'
    return ''


class LeRobotPi0:
    """LeRobot's ``PI0Pytorch`` in the sizes of one of our models, with its weights."""

    def __init__(self, model):
        """
        Build the peer and copy the weights over, name by name.

        LeRobot writes the published sizes into its constructors; they are replaced while it
        builds, nothing else is.

        :param model: a ``Pi0Model`` of kind pi0.
        """
        from lerobot.policies.pi0 import configuration_pi0, modeling_pi0

        config = model.config
        options = {
            'chunk_size': config.chunk, 'n_action_steps': config.chunk,
            'max_state_dim': config.max_state_dim, 'max_action_dim': config.max_action_dim,
            'num_inference_steps': config.num_steps, 'device': 'cpu',
            'dtype': 'bfloat16' if model.dtype == torch.bfloat16 else 'float32',
        }  # fmt: skip
        settings = configuration_pi0.PI0Config(**options)
        self.steps = config.num_steps
        with _sizes(modeling_pi0, config):
            peer = modeling_pi0.PI0Pytorch(settings)
        slots = {slot.name: slot for slot in weight_files.slots(config)}
        ours = dict(model.named_parameters())
        used = set()
        with torch.no_grad():
            for name, parameter in peer.named_parameters():
                known = weight_files.canonical(name)
                if known == weight_files.IGNORED:
                    continue
                slot = slots[known]
                rows = ours[slot.parameter][slot.start : slot.stop]
                parameter.data = rows.reshape(slot.shape).to(parameter.dtype, copy=True)
                used.add(known)
        assert used == set(slots), sorted(set(slots) - used)
        self.model = peer.to(model.device).eval()

    def sample_actions(self, images, image_masks, tokens, token_masks, state, noise):
        """Return actions [1, chunk, dim]."""
        device = tokens.device
        with torch.no_grad():
            return self.model.sample_actions(
                images, [mask.to(device) for mask in image_masks], tokens,
                token_masks.to(device), state, noise=noise, num_steps=self.steps,
            )  # fmt: skip


@contextlib.contextmanager
def _sizes(module, config):
    """Have a module of LeRobot's build models of these sizes while the context lasts."""
    v, t = config.vision, config.text
    kept = {
        name: getattr(module, name)
        for name in (
            'get_gemma_config', 'PaliGemmaForConditionalGenerationWithPiGemma',
            'PiGemmaForCausalLM', 'PaliGemmaForConditionalGeneration', 'GemmaForCausalLM',
        )
        if hasattr(module, name)
    }  # fmt: skip
    variants = {'gemma_2b': config.text, 'gemma_300m': config.expert}

    def gemma(variant):
        size = variants[variant]
        return module.GemmaConfig(
            width=size.width, depth=size.depth, mlp_dim=size.mlp, num_heads=size.heads,
            num_kv_heads=size.kv_heads, head_dim=size.head_dim,
        )  # fmt: skip

    def paligemma(config, _class=None):
        vision, text = config.vision_config, config.text_config
        vision.hidden_size, vision.num_hidden_layers = v.hidden, v.layers
        vision.num_attention_heads, vision.intermediate_size = v.heads, v.mlp
        vision.patch_size, vision.image_size = v.patch, v.image
        vision.projection_dim = config.projection_dim = t.width
        text.vocab_size = config._vocab_size = t.vocab
        return _class(config)

    def causal(config, _class=None):
        config.vocab_size = t.vocab
        return _class(config)

    def bound(build, kind):
        return lambda config: build(config, _class=kind)

    module.get_gemma_config = gemma
    for name, kind in kept.items():
        if inspect.isclass(kind):
            build = paligemma if name.startswith('Pali') else causal
            setattr(module, name, bound(build, kind))
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(module, name, value)


def main() -> int:
    """Compare actions of random tiny models; exit 1 if they differ, 2 without LeRobot."""
    import numpy as np
    from inference import make_inputs

    from pi0_ros.policy import Pi0Config, Pi0Model

    missing = why_not()
    if missing:
        print(f"LeRobot's pi0 cannot be imported here ({missing}); see the top of {__file__}")
        return 2
    worst = 0.0
    for seed, cameras in ((0, 3), (1, 2), (2, 1)):
        model = Pi0Model.random(Pi0Config.named('tiny'), seed)
        inputs = make_inputs(model.config, cameras, valid=12, device='cpu', seed=seed)
        with torch.no_grad():
            ours = model.sample_actions(**inputs)
        theirs = LeRobotPi0(model).sample_actions(**inputs)
        gap = float(np.abs((ours - theirs).numpy()).max())
        print(f'seed {seed}, {cameras} cameras: largest difference of actions {gap:.2g}')
        worst = max(worst, gap)
    return int(not worst < 1e-5)


if __name__ == '__main__':
    raise SystemExit(main())
