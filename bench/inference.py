# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
How fast pi0 runs here, against transformers' own PI0 with the same weights in the same process.

    python bench/inference.py                                   # 'small' model, two CPU threads
    python bench/inference.py --size full --dtype bfloat16      # the published size
    python bench/inference.py --device cuda --size full --dtype bfloat16
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from pi0_ros.policy import Pi0Config, Pi0Model
from pi0_ros.policy import weights as weight_files
from pi0_ros.policy.accelerate import Accelerated

PROMPT = 48  # tokens of a pi0 prompt, padding included
TOLERANCE = {'float32': 1e-3, 'bfloat16': 2e-1}  # between implementations, on actions of scale 1


def make_inputs(config: Pi0Config, cameras: int, valid: int, device: str, seed: int = 0) -> dict:
    """Return inputs with ``cameras`` cameras present of the config's and ``valid`` real tokens."""
    rng = np.random.default_rng(seed)
    size, count = config.vision.image, config.n_cams

    def tensor(array):
        return torch.from_numpy(array).to(device)

    tokens = np.zeros((1, PROMPT), dtype=np.int64)
    tokens[0, :valid] = rng.integers(3, config.text.vocab - 1, valid)
    images = rng.uniform(-1, 1, (count, 1, 3, size, size)).astype(np.float32)
    noise = rng.standard_normal((1, config.chunk, config.max_action_dim)).astype(np.float32)
    return {
        'images': [tensor(image) for image in images],
        'image_masks': [torch.tensor([c < cameras]) for c in range(count)],
        'tokens': tensor(tokens),
        'token_masks': torch.arange(PROMPT)[None] < valid,
        'state': tensor(rng.standard_normal((1, config.max_state_dim)).astype(np.float32)),
        'noise': tensor(noise),
    }


class TransformersPi0:
    """transformers' native PI0 (5.4 and later) with our weights."""

    def __init__(self, model: Pi0Model):
        """Build the peer and copy the weights over, name by name."""
        from transformers import PI0Config, PI0ForConditionalGeneration

        config = model.config
        v, t, e = config.vision, config.text, config.expert
        peer_config = PI0Config(
            vlm_config={
                'model_type': 'paligemma',
                'text_config': {
                    'model_type': 'gemma', 'hidden_size': t.width, 'num_hidden_layers': t.depth,
                    'intermediate_size': t.mlp, 'num_attention_heads': t.heads,
                    'num_key_value_heads': t.kv_heads, 'head_dim': t.head_dim,
                    'vocab_size': t.vocab,
                },
                'vision_config': {
                    'model_type': 'siglip_vision_model', 'intermediate_size': v.mlp,
                    'hidden_size': v.hidden, 'patch_size': v.patch, 'image_size': v.image,
                    'num_hidden_layers': v.layers, 'num_attention_heads': v.heads,
                    'vision_use_head': False,
                },
                'projection_dim': t.width,
                'image_token_id': t.vocab,
            },
            dit_config={
                'model_type': 'gemma', 'hidden_size': e.width, 'num_hidden_layers': e.depth,
                'intermediate_size': e.mlp, 'num_attention_heads': e.heads,
                'num_key_value_heads': e.kv_heads, 'head_dim': e.head_dim,
            },
            chunk_size=config.chunk, max_state_dim=config.max_state_dim,
            max_action_dim=config.max_action_dim, num_inference_steps=config.num_steps,
        )  # fmt: skip
        self.image_token, self.per_image = t.vocab, v.tokens
        self.model = PI0ForConditionalGeneration(peer_config).to(model.device).eval()
        slots = {slot.name: slot for slot in weight_files.slots(config)}
        ours = dict(model.named_parameters())
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                known = weight_files.canonical(name)
                if known == weight_files.IGNORED:
                    continue
                slot = slots.pop(known)
                rows = ours[slot.parameter][slot.start : slot.stop]
                parameter.data = rows.reshape(slot.shape).to(parameter.dtype, copy=True)
        assert not slots, sorted(slots)
        self.model.to(model.dtype)

    def sample_actions(self, images, image_masks, tokens, token_masks, state, noise):
        """Return actions [1, chunk, dim]: absent cameras masked, as LeRobot and openpi do it."""
        device, dtype = tokens.device, self.model.dtype
        image_ids = torch.full((1, len(images) * self.per_image), self.image_token, device=device)
        seen = torch.stack([m.to(device) for m in image_masks], 1)
        seen = seen.repeat_interleave(self.per_image, 1)
        return self.model.sample_actions(
            state=state.to(dtype),
            input_ids=torch.cat([image_ids, tokens], 1),
            pixel_values=torch.stack(images, 1).to(dtype),
            pixel_attention_mask=torch.ones(1, len(images), dtype=torch.bool, device=device),
            attention_mask=torch.cat([seen, token_masks.to(device)], 1).long(),
            noise=noise.to(dtype),
        )


def gemm_rate(config: Pi0Config, dtype: torch.dtype, device: str, tokens: int = 780) -> float:
    """Return the best measured rate of the model's own large matrix products, FLOP/s."""
    shapes = [
        (tokens, config.text.width, 2 * config.text.mlp),
        (tokens, config.text.mlp, config.text.width),
        (3 * config.vision.tokens, config.vision.hidden, config.vision.mlp),
    ]
    best = 0.0
    for m, k, n in shapes:
        a = torch.randn(m, k, dtype=dtype, device=device)
        b = torch.randn(n, k, dtype=dtype, device=device)
        for _ in range(12):
            synchronize(device)
            start = time.perf_counter()
            torch.nn.functional.linear(a, b)
            synchronize(device)
            best = max(best, 2 * m * k * n / (time.perf_counter() - start))
    return best


def needed_flops(config: Pi0Config, cameras: int, valid: int) -> float:
    """Return the floating-point operations that the result needs, without those for padding."""
    v, t, e = config.vision, config.text, config.expert
    image = v.tokens * (
        v.layers * (2 * v.hidden * (4 * v.hidden + 2 * v.mlp) + 4 * v.tokens * v.hidden)
        + 2 * v.hidden * (3 * v.patch**2 + t.width)
    )

    def layer(size, tokens, keys):
        q, kv = size.heads * size.head_dim, size.kv_heads * size.head_dim
        linear = size.width * (2 * q + 2 * kv + 3 * size.mlp)
        return tokens * (2 * linear + 4 * keys * q)

    prefix = cameras * v.tokens + valid
    only_kv = prefix * 4 * t.width * t.kv_heads * t.head_dim
    text = (t.depth - 1) * layer(t, prefix, prefix) + only_kv
    flow = config.num_steps * e.depth * layer(e, config.chunk, prefix + 1 + config.chunk)
    return cameras * image + text + flow


def synchronize(device: str) -> None:
    """Wait for the device, where it works on its own."""
    if str(device).startswith('cuda'):
        torch.cuda.synchronize()


def alternate(calls: dict, repeats: int, device: str) -> dict[str, list[float]]:
    """Return the seconds of each call, all called in turn so that noise hits all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
        call()
    for _ in range(repeats):
        for name, call in calls.items():
            synchronize(device)
            start = time.perf_counter()
            call()
            synchronize(device)
            seconds[name].append(time.perf_counter() - start)
    return seconds


def stage_times(model: Pi0Model, inputs: dict, repeats: int, device: str) -> dict[str, float]:
    """Return the median seconds of vision (with prompt embedding), prefix, state and flow."""
    rows = []
    x = inputs['noise']
    prefix_inputs = [inputs[k] for k in ('images', 'image_masks', 'tokens', 'token_masks')]
    with torch.no_grad():
        for _ in range(repeats + 1):
            marks = [time.perf_counter()]

            def mark(marks=marks):
                synchronize(device)
                marks.append(time.perf_counter())

            prefix = model.embed_prefix(*prefix_inputs)
            mark()
            cache = model.encode_prefix(prefix)
            mark()
            model.add_state(cache, inputs['state'])
            mark()
            model.flow(cache, x, model.config.num_steps)
            mark()
            rows.append(np.diff(marks))
    return dict(zip(('vision', 'prefix', 'state', 'flow'), np.median(rows[1:], axis=0).tolist()))


def spread(seconds: list[float]) -> dict[str, float]:
    """Return percentiles in ms."""
    ms = 1e3 * np.asarray(seconds)
    return {
        'median': statistics.median(ms), 'p90': float(np.percentile(ms, 90)),
        'p99': float(np.percentile(ms, 99)), 'min': float(ms.min()), 'max': float(ms.max()),
        'n': len(ms),
    }  # fmt: skip


def describe_machine(device: str) -> dict:
    """Return what the numbers were measured on."""
    name = platform.processor()
    with contextlib.suppress(OSError):
        cpu = Path('/proc/cpuinfo').read_text().split('model name', 1)[-1]
        name = cpu.splitlines()[0].lstrip('\t :')
    machine = {'cpu': name, 'python': platform.python_version(), 'torch': torch.__version__}
    if device.startswith('cuda'):
        machine['gpu'] = torch.cuda.get_device_name()
    with contextlib.suppress(ImportError):
        import transformers

        machine['transformers'] = transformers.__version__
    return machine


def run_case(model, fast, peers, args, cameras: int, rate: float) -> dict:
    """Measure one number of cameras; return its rows."""
    config, device = model.config, args.device
    inputs = make_inputs(config, cameras, args.valid_tokens, device)
    calls = {'pi0_ros': lambda: fast(**inputs)}
    for name, peer in peers.items():
        calls[name] = lambda peer=peer: peer.sample_actions(**inputs)
    results = {name: call().float().cpu() for name, call in calls.items()}
    case = {'cameras': cameras, 'gap': {}}
    for name, result in results.items():
        gap = float((result - results['pi0_ros']).abs().max())
        case['gap'][name] = gap
        if not gap <= TOLERANCE[args.dtype]:
            raise SystemExit(f'{name} differs from pi0_ros by {gap:.2g}: the timing means nothing')
    if device.startswith('cuda'):
        torch.cuda.reset_peak_memory_stats()
    case['times_ms'] = {k: spread(v) for k, v in alternate(calls, args.repeats, device).items()}
    if device.startswith('cuda'):
        case['peak_gib'] = torch.cuda.max_memory_allocated() / 2**30
    stages = stage_times(model, inputs, max(3, args.repeats // 2), device)
    case['stages_ms'] = {name: 1e3 * seconds for name, seconds in stages.items()}
    flops = needed_flops(config, cameras, args.valid_tokens)
    ours = case['times_ms']['pi0_ros']['median'] / 1e3
    case['gflop'] = flops / 1e9
    case['share_of_gemm_rate'] = flops / rate / ours
    medians = {k: v['median'] for k, v in case['times_ms'].items() if k != 'pi0_ros'}
    if medians:
        case['speedup'] = min(medians.values()) / 1e3 / ours
    return case


def show(case: dict) -> None:
    """Print one case as table rows."""
    print(f"\n{case['cameras']} cameras ({case['gflop']:.1f} GFLOP needed)")
    print(f"  {'':14}{'p50 ms':>9}{'p90':>9}{'p99':>9}{'min':>9}   largest gap")
    for name, t in case['times_ms'].items():
        numbers = ''.join(f'{t[k]:9.1f}' for k in ('median', 'p90', 'p99', 'min'))
        print(f"  {name:14}{numbers}   {case['gap'][name]:.1e}")
    stages = ', '.join(f'{k} {v:.1f}' for k, v in case['stages_ms'].items())
    print(f'  stages, ms (eager): {stages}')
    print(f"  share of the machine's own GEMM rate: {case['share_of_gemm_rate']:.0%}")
    if 'peak_gib' in case:
        print(f"  peak memory: {case['peak_gib']:.2f} GiB")
    if 'speedup' in case:
        print(f"  faster than the faster peer: {case['speedup']:.2f} x")


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument('--size', default='small', choices=('tiny', 'small', 'full'))
    parser.add_argument('--device', default='cpu')
    parser.add_argument('--dtype', default='float32', choices=('float32', 'bfloat16'))
    parser.add_argument('--threads', type=int, default=2, help='CPU threads')
    parser.add_argument('--repeats', type=int, default=9, help='timed calls of each (at least 7)')
    parser.add_argument('--cameras', type=int, nargs='*', help='default: 3 2; cuda: 3 2 1')
    parser.add_argument('--valid-tokens', type=int, default=12, help='real tokens of the 48')
    parser.add_argument('--no-peer', action='store_true', help='measure pi0_ros alone')
    parser.add_argument('--mode', default='auto', choices=('auto', 'eager', 'graph', 'compile'))
    parser.add_argument('--json', type=Path, help='also write the figures here')
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    cuda = args.device.startswith('cuda')
    cameras = args.cameras or ([3, 2, 1] if cuda else [3, 2])
    model = Pi0Model.random(Pi0Config.named(args.size), 0, args.device, args.dtype)
    peers = {}
    if not args.no_peer:
        try:
            peers['transformers'] = TransformersPi0(model)
        except ImportError as error:
            print(f'transformers has no native PI0 here ({error}); measuring pi0_ros alone')
    accelerated = Accelerated(model, args.mode)
    fast = accelerated.sample_actions
    machine = describe_machine(args.device)
    rate = gemm_rate(model.config, model.dtype, args.device)
    count = sum(p.numel() for p in model.parameters())
    print(f"pi0 '{args.size}', {count:,} parameters, {args.dtype}, {args.device}, "
          f'{args.threads} CPU threads, {args.valid_tokens} of {PROMPT} tokens, '
          f'{model.config.num_steps} steps')  # fmt: skip
    print(', '.join(f'{k} {v}' for k, v in machine.items()))
    print(f'measured GEMM rate: {rate / 1e9:.0f} GFLOP/s')
    cases = []
    for number in cameras:
        cases.append(run_case(model, fast, peers, args, number, rate))
        show(cases[-1])
    for situation, reason in accelerated.fallbacks.items():
        print(f'{accelerated.mode} was off for {situation}: {reason}')
    if args.json:
        arguments = {k: str(v) for k, v in vars(args).items()}
        data = {'machine': machine, 'arguments': arguments, 'gemm_flops': rate, 'cases': cases}
        args.json.write_text(json.dumps(data, indent=1))
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
