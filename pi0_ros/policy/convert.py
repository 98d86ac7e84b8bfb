# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
``pi0_ros convert``: any known checkpoint into the one documented format.

Reads every safetensors layout that the model reads, and openpi's JAX parameters: an .npz of flat
keys, or an orbax folder (with the extra ``pi0_ros[jax]``). One array is in memory at a time.
"""

from __future__ import annotations

import argparse
import glob
import json
import math
import re
import shutil
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pi0_ros.errors import Pi0RosError
from pi0_ros.policy import weights
from pi0_ros.policy.checkpoint import (
    carried_over,
    read_checkpoint,
    read_json,
    refuse_others,
    state_files,
)
from pi0_ros.policy.config import FAMILIES, SIZES, Pi0Config
from pi0_ros.policy.weights import EMBEDDING, EXPERT, PROJECTOR, TEXT, VISION

SO400M_HIDDEN, SO400M_HEADS = 1152, 16  # the one vision tower whose heads its width tells


# ---- openpi's JAX parameters


def _transposed(a: np.ndarray) -> np.ndarray:
    return a.T


def _same(a: np.ndarray) -> np.ndarray:
    return a


def _heads_in(a: np.ndarray) -> np.ndarray:
    """[width, heads, d] -> [heads*d, width] (vision), the bias [heads, d] -> [heads*d]."""
    return a.reshape(a.shape[0], -1).T if a.ndim == 3 else a.reshape(-1)


def _heads_out(a: np.ndarray) -> np.ndarray:
    """[heads, d, width] -> [width, heads*d]."""
    return a.reshape(-1, a.shape[-1]).T


def _queries(a: np.ndarray) -> np.ndarray:
    """[heads, width, d] -> [heads*d, width]."""
    return a.transpose(0, 2, 1).reshape(-1, a.shape[1])


def _part(index: int, then: Callable) -> Callable:
    return lambda a: then(a[index])


# (JAX key, documented key, what to do with one layer's array). '{i}' marks a layer: the JAX array
# has the layers as its first axis.
_BLOCK = 'PaliGemma/img/Transformer/encoderblock/'
_LAYER = f'{VISION}encoder.layers.{{i}}.'
_JAX_RULES: list[tuple[str, str, Callable]] = [
    (
        'PaliGemma/img/embedding/kernel',
        f'{VISION}embeddings.patch_embedding.weight',
        lambda a: a.transpose(3, 2, 0, 1),
    ),
    ('PaliGemma/img/embedding/bias', f'{VISION}embeddings.patch_embedding.bias', _same),
    (
        'PaliGemma/img/pos_embedding',
        f'{VISION}embeddings.position_embedding.weight',
        lambda a: a[0],
    ),
    ('PaliGemma/img/Transformer/encoder_norm/scale', f'{VISION}post_layernorm.weight', _same),
    ('PaliGemma/img/Transformer/encoder_norm/bias', f'{VISION}post_layernorm.bias', _same),
    ('PaliGemma/img/head/kernel', f'{PROJECTOR}weight', _transposed),
    ('PaliGemma/img/head/bias', f'{PROJECTOR}bias', _same),
    ('PaliGemma/llm/embedder/input_embedding', EMBEDDING, _same),
]
for _n in (0, 1):
    for _theirs, _ours in (('scale', 'weight'), ('bias', 'bias')):
        _JAX_RULES.append(
            (f'{_BLOCK}LayerNorm_{_n}/{_theirs}', f'{_LAYER}layer_norm{_n + 1}.{_ours}', _same)
        )
    _JAX_RULES += [
        (f'{_BLOCK}MlpBlock_0/Dense_{_n}/kernel', f'{_LAYER}mlp.fc{_n + 1}.weight', _transposed),
        (f'{_BLOCK}MlpBlock_0/Dense_{_n}/bias', f'{_LAYER}mlp.fc{_n + 1}.bias', _same),
    ]
_ATTENTION = f'{_BLOCK}MultiHeadDotProductAttention_0/'
for _theirs, _ours in (('query', 'q'), ('key', 'k'), ('value', 'v')):
    for _kind, _name in (('kernel', 'weight'), ('bias', 'bias')):
        _JAX_RULES.append(
            (
                f'{_ATTENTION}{_theirs}/{_kind}',
                f'{_LAYER}self_attn.{_ours}_proj.{_name}',
                _heads_in,
            )
        )
_JAX_RULES += [
    (f'{_ATTENTION}out/kernel', f'{_LAYER}self_attn.out_proj.weight', _heads_out),
    (f'{_ATTENTION}out/bias', f'{_LAYER}self_attn.out_proj.bias', _same),
]
for _suffix, _root in (('', TEXT), ('_1', EXPERT)):
    _LLM, _OUT = 'PaliGemma/llm/layers/', f'{_root}layers.{{i}}.'
    _kv = f'{_LLM}attn/kv_einsum{_suffix}/w'  # [layers, 2, kv heads, width, d]
    _gating = f'{_LLM}mlp{_suffix}/gating_einsum'  # [layers, 2, width, mlp], 0 is the gate
    _JAX_RULES += [
        (f'{_LLM}attn/q_einsum{_suffix}/w', f'{_OUT}self_attn.q_proj.weight', _queries),
        (_kv, f'{_OUT}self_attn.k_proj.weight', _part(0, _queries)),
        (_kv, f'{_OUT}self_attn.v_proj.weight', _part(1, _queries)),
        (f'{_LLM}attn/attn_vec_einsum{_suffix}/w', f'{_OUT}self_attn.o_proj.weight', _heads_out),
        (_gating, f'{_OUT}mlp.gate_proj.weight', _part(0, _transposed)),
        (_gating, f'{_OUT}mlp.up_proj.weight', _part(1, _transposed)),
        (f'{_LLM}mlp{_suffix}/linear', f'{_OUT}mlp.down_proj.weight', _transposed),
    ]
    for _theirs, _ours in (
        (f'{_LLM}pre_attention_norm', f'{_OUT}input_layernorm'),
        (f'{_LLM}pre_ffw_norm', f'{_OUT}post_attention_layernorm'),
        ('PaliGemma/llm/final_norm', f'{_root}norm'),
    ):
        _JAX_RULES += [
            (f'{_theirs}{_suffix}/scale', f'{_ours}.weight', _same),
            (f'{_theirs}{_suffix}/Dense_0/kernel', f'{_ours}.dense.weight', _transposed),
            (f'{_theirs}{_suffix}/Dense_0/bias', f'{_ours}.dense.bias', _same),
        ]
for _name in (
    'state_proj', 'action_in_proj', 'action_out_proj', 'action_time_mlp_in',
    'action_time_mlp_out', 'time_mlp_in', 'time_mlp_out',
):  # fmt: skip
    _JAX_RULES += [
        (f'{_name}/kernel', f'{_name}.weight', _transposed),
        (f'{_name}/bias', f'{_name}.bias', _same),
    ]


def plain_key(key: str) -> str:
    """Return a JAX key without the levels that some checkpoints add at its ends."""
    return re.sub(r'^/?(?:params/)?|/value$', '', key)


@dataclass(frozen=True)
class JaxTensor:
    """A tensor of the documented layout, cut from a JAX array when it is read."""

    shape: tuple[int, ...]
    read: Callable[[], Tensor]


def from_jax(arrays) -> tuple[dict[str, JaxTensor], list[str]]:
    """
    Map openpi's JAX parameters to the documented layout.

    :param arrays: a mapping of flat keys joined by '/' to arrays (numpy's open .npz will do)
    :return: tensors by documented name, and the keys that no rule knows
    """
    present = {plain_key(key): key for key in arrays.keys()}
    tensors: dict[str, JaxTensor] = {}
    used = set()
    last: dict = {}

    def array(key: str) -> np.ndarray:
        if last.get('key') != key:  # neighbours in the file are often cut from one array
            last.update(key=key, value=np.asarray(arrays[key]))
        return last['value']

    def tensor(key: str, layer: int | None, change: Callable) -> Tensor:
        a = array(key)
        return _to_torch(change(a if layer is None else a[layer]))

    for theirs, ours, change in _JAX_RULES:
        key = present.get(theirs)
        if key is None:
            continue
        used.add(theirs)
        whole = array(key)
        layers = range(whole.shape[0]) if '{i}' in ours else [None]
        for layer in layers:
            piece = change(whole if layer is None else whole[layer])
            tensors[ours.replace('{i}', str(layer))] = JaxTensor(
                piece.shape, lambda k=key, n=layer, c=change: tensor(k, n, c)
            )
    return tensors, sorted(set(present) - used)


def _to_torch(array: np.ndarray) -> Tensor:
    array = np.ascontiguousarray(array)
    if array.dtype.name == 'bfloat16' or array.dtype == np.dtype('V2'):
        return torch.from_numpy(array.view(np.uint16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def read_jax(path: Path):
    """
    Return a mapping of flat keys to arrays from an .npz file or an orbax folder.

    :raises Pi0RosError: it can't be read, or it is an orbax folder and tensorstore isn't installed
    """
    if path.is_file():
        try:
            return np.load(path, allow_pickle=False)
        except (OSError, EOFError, ValueError, zipfile.BadZipFile):
            raise Pi0RosError(
                f'{path} is no .npz of openpi parameters, or is damaged (pickles are refused); '
                'give another'
            ) from None
    return OrbaxArrays(path)


class OrbaxArrays(Mapping):
    """
    The arrays of an orbax folder by flat key, each read when it is asked for.

    orbax writes one zarr array a parameter, by the parameter's path joined by dots, into one
    OCDBT store or (older) into a folder each; ``_METADATA`` lists the paths. tensorstore, which
    orbax itself reads through, reads them without JAX.

    :raises Pi0RosError: it is no such folder, an array is damaged, or tensorstore isn't installed
    """

    def __init__(self, path: Path):
        try:
            import tensorstore
        except ImportError:
            raise Pi0RosError(
                f"{path} is an orbax checkpoint; pip install 'pi0_ros[jax]' to read it"
            ) from None
        self._open, self._path = tensorstore.open, path
        try:
            data = json.loads((path / '_METADATA').read_text())
            self._driver = 'zarr3' if data.get('use_zarr3') else 'zarr'
            paths = [
                [str(part['key']) for part in entry['key_metadata']]
                for entry in data['tree_metadata'].values()
            ]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise Pi0RosError(
                f'{path}: its _METADATA cannot be read ({type(error).__name__}: {error}); give '
                "the whole 'params' folder of an openpi checkpoint"
            ) from None
        self._names = {'/'.join(parts): '.'.join(parts) for parts in paths}

    def __iter__(self):
        return iter(self._names)

    def __len__(self):
        return len(self._names)

    def __getitem__(self, key: str) -> np.ndarray:
        name = self._names[key]
        if (self._path / 'manifest.ocdbt').is_file():
            store = {'driver': 'ocdbt', 'base': f'file://{self._path.resolve()}/', 'path': name}
        else:
            store = {'driver': 'file', 'path': f'{self._path.resolve()}/{name}/'}
        try:
            return self._open({'driver': self._driver, 'kvstore': store}).result().read().result()
        except ValueError as error:
            reason = str(error).splitlines()[0][:160]
            raise Pi0RosError(
                f"{self._path}: parameter '{key}' cannot be read ({reason}); copy the folder again"
            ) from None


def find_jax(path: Path) -> Path | None:
    """Return the .npz or orbax folder behind a path, None if there is none."""
    if path.suffix == '.npz':
        return path
    for folder in (path, path / 'params'):
        if any((folder / name).exists() for name in ('_METADATA', 'manifest.ocdbt', '_sharding')):
            return folder
    return path / 'params.npz' if (path / 'params.npz').is_file() else None


# ---- sizes


def infer_config(
    shapes: dict[str, tuple[int, ...]], vision_heads: int | None = None, **known
) -> Pi0Config:
    """
    Work out a model's sizes from its weights.

    Not in the weights: the chunk length and the number of steps (50 and 10 unless given), and the
    heads of a vision tower other than So400m.

    :param shapes: by documented name
    :param known: fields that the weights don't tell: ``chunk``, ``num_steps``, ``family``, ...
    :raises Pi0RosError: what is needed is not there
    """
    try:
        hidden, _, patch, _ = shapes[f'{VISION}embeddings.patch_embedding.weight']
        tokens = shapes[f'{VISION}embeddings.position_embedding.weight'][0]
        vocab, width = shapes[EMBEDDING]
        if vision_heads is None:
            if hidden != SO400M_HIDDEN:
                raise Pi0RosError(
                    f'the heads of a vision tower of width {hidden} cannot be told from the '
                    "weights; give the sizes as 'dims' in config.json, or with --config"
                )
            vision_heads = SO400M_HEADS

        def count(root: str) -> int:
            found = [re.match(re.escape(root) + r'(\d+)\.', name) for name in shapes]
            return 1 + max(int(match[1]) for match in found if match)

        def gemma(root: str, size: int) -> dict:
            q = shapes[f'{root}layers.0.self_attn.q_proj.weight'][0]
            head_dim = shapes[f'{root}layers.0.self_attn.k_proj.weight'][0]  # one kv head
            return {
                'width': size, 'depth': count(f'{root}layers.'), 'heads': q // head_dim,
                'kv_heads': 1, 'head_dim': head_dim,
                'mlp': shapes[f'{root}layers.0.mlp.up_proj.weight'][0],
            }  # fmt: skip

        dims = {
            'vision': {
                'hidden': hidden, 'layers': count(f'{VISION}encoder.layers.'),
                'heads': vision_heads, 'mlp': shapes[f'{VISION}encoder.layers.0.mlp.fc1.bias'][0],
                'patch': patch, 'image': math.isqrt(tokens) * patch,
            },
            'text': {**gemma(TEXT, width), 'vocab': vocab},
            'expert': gemma(EXPERT, shapes['action_in_proj.bias'][0]),
            'max_action_dim': shapes['action_out_proj.bias'][0],
            'max_state_dim': shapes.get('state_proj.weight', (0, 32))[1],
        }  # fmt: skip
    except (KeyError, ValueError) as error:
        if isinstance(error, Pi0RosError):
            raise
        raise Pi0RosError(
            f'these are not all weights of a pi0 model (looked for {error}); check the path'
        ) from None
    kind = 'pi05' if 'time_mlp_in.weight' in shapes else 'pi0'
    return Pi0Config.from_dims(dims, **{'kind': kind, **known})


def read_config(path: Path, family: str | None = None) -> tuple[Pi0Config | None, dict]:
    """
    Return the config that a JSON file holds in full, or None and what little it says.

    Understands this package's own files and those with a ``dims`` object; of LeRobot's config the
    chunk length and the number of steps.

    :param family: of the result where the file names none
    :raises Pi0RosError: it is no JSON object, or its sizes make no model
    """
    default = family or 'lerobot'
    data = read_json(path)
    model = data.get('model')
    if isinstance(model, dict) and 'dims' in model:
        return Pi0Config.from_dict({'family': default, **model}), {}
    if isinstance(data.get('dims'), dict) or 'vision' in data:
        return Pi0Config.from_dims(data, family=default), {}
    said = {
        'chunk': data.get('chunk_size'),
        'num_steps': data.get('num_inference_steps', data.get('num_steps')),
    }
    return None, {k: v for k, v in said.items() if v}


# ---- conversion


@dataclass(frozen=True)
class Source:
    """A checkpoint about to be converted: its tensors by documented name, and its config."""

    config: Pi0Config
    tensors: dict[str, weights.Tensorlike]
    layout: str


def open_source(
    path, config: Pi0Config | None = None, dtype: str | None = None, family: str | None = None
) -> Source:
    """
    Find out what a checkpoint is and check that it is complete.

    :param path: a safetensors file, its index, a folder, an .npz, or an orbax folder
    :param config: sizes; None: from config.json beside the weights, else from the weights
    :param dtype: of the result; None: as stored
    :param family: see ``FAMILIES``; None: the config's, or 'openpi' for JAX parameters
    :raises Pi0RosError: not all weights of a pi0 model are there, or too many
    """
    path = Path(path)
    if path.is_dir() and 'type' in _config_of(path):
        refuse_others(path, _config_of(path))
    target = weights.word_to_dtype(dtype) if dtype else None
    jax_path = find_jax(path)
    said: dict = {}
    beside = (path if path.is_dir() else path.parent) / 'config.json'
    theirs = jax_path is not None or _is_openpi(path)
    default_family = family or ('openpi' if theirs else 'lerobot')
    if config is None and beside.is_file():
        config, said = read_config(beside, default_family)
    if config is not None and family is not None:
        config = config.replace(family=family)
    if jax_path is not None:
        arrays = read_jax(jax_path)
        pieces, unknown = from_jax(arrays)
        heads = None
        for key in arrays.keys():
            if plain_key(key).endswith('MultiHeadDotProductAttention_0/query/bias'):
                heads = arrays[key].shape[1]
        known = {'family': default_family, **said}
        shapes = {name: tuple(piece.shape) for name, piece in pieces.items()}
        if not pieces:
            raise Pi0RosError(
                f'{jax_path}: none of its {len(unknown)} arrays is a parameter of pi0 '
                f'({weights.listed(unknown[:3])}); check the path'
            )
        if EMBEDDING in pieces and not any(name.startswith(EXPERT) for name in pieces):
            raise Pi0RosError(
                f'{jax_path} holds a PaliGemma or pi0-FAST model: it has no action expert; '
                'pi0_ros runs pi0 and pi0.5'
            )
        config = config or infer_config(shapes, heads, **known)
        tensors = {
            name: weights.Tensorlike(name, target or torch.float32, tuple(p.shape), p.read)
            for name, p in pieces.items()
        }
        layout = 'openpi JAX'
    else:
        source = weights.WeightSource.open(path)
        unknown = source.unknown
        shapes = {name: entry.shape for name, entry in source.entries.items()}
        known = {'family': default_family, **said}
        config = source.resolve(config or infer_config(shapes, **known))
        source.check(config)
        tensors = {
            name: weights.Tensorlike(
                name,
                target or weights.DTYPES[entry.dtype],
                entry.shape,
                lambda n=name: source.tensor(n),
            )
            for name, entry in source.entries.items()
        }
        layout = 'safetensors'
    if config.kind is None:
        config = config.replace(kind='pi05' if 'time_mlp_in.weight' in tensors else 'pi0')
    wanted = {slot.name: slot.shape for slot in weights.slots(config)}
    faults = [f'{name} is missing' for name in wanted if name not in tensors]
    faults += [f'{name} is extra' for name in (*unknown, *(n for n in tensors if n not in wanted))]
    faults += [
        f'{name} has shape {list(tensors[name].shape)} instead of {list(shape)}'
        for name, shape in wanted.items()
        if name in tensors and tensors[name].shape != tuple(shape)
    ]
    if faults:
        raise Pi0RosError(f'{path} is no complete pi0 model: {weights.listed(faults)}')
    return Source(config, {name: tensors[name] for name in wanted}, layout)


def convert(
    source, destination, config: Pi0Config | None = None, dtype: str | None = None,
    family: str | None = None, progress: Callable[[int], None] | None = None,
) -> Path:  # fmt: skip
    """
    Convert a checkpoint into a folder of the documented format (docs/checkpoints.md).

    Writes ``model.safetensors`` and ``config.json``; copies statistics, processors and tokenizer
    that lie beside the weights unchanged.

    :param source: see ``open_source``
    :param destination: a folder; made if it does not exist
    :param progress: called with the number of bytes after each tensor
    :return: the folder
    :raises Pi0RosError: the source is no complete pi0 model, or the destination holds a model
    """
    source, destination = Path(source), Path(destination)
    opened = open_source(source, config, dtype, family)
    target = destination / 'model.safetensors'
    if target.exists():
        raise Pi0RosError(f'{target} exists already; give another folder')
    beside = source if source.is_dir() and source.name != 'params' else source.parent
    named = state_files(beside)
    data = {'type': opened.config.kind, 'format': 'pi0_ros', 'model': opened.config.to_dict()}
    statistics = None
    if (source / 'config.json').is_file():
        data = {**read_json(source / 'config.json'), **data}
        pipeline, statistics = _lerobot_old_pipeline(source)
        data |= pipeline
    # Whatever can be refused has been; from here on files appear.
    weights.write_file(target, opened.tensors.values(), {'pi0_ros': 'weights 1'}, progress)
    copy_side_files(beside, destination, named)
    if statistics is not None:
        text = json.dumps({'norm_stats': statistics}) + '\n'
        (destination / 'norm_stats.json').write_text(text)
    path = destination / 'config.json'
    path.write_text(json.dumps(data, indent=2) + '\n')
    return destination


def _config_of(folder: Path) -> dict:
    path = folder / 'config.json'
    return read_json(path) if path.is_file() else {}


def _is_openpi(path: Path) -> bool:
    """Tell openpi's PyTorch folders: its statistics, and no config of LeRobot's or others'."""
    config = path / 'config.json'
    if config.is_file():
        data = read_json(config)
        if {'type', 'model_type', 'format'} & set(data):
            return False
    return any(path.glob('assets/**/norm_stats.json')) or (path / 'norm_stats.json').is_file()


def _lerobot_old_pipeline(source: Path) -> tuple[dict, dict | None]:
    """Return LeRobot 0.1-0.3's pipeline section and its statistics, which lie in no file."""
    data = read_json(source / 'config.json')
    if data.get('format') == 'pi0_ros' or 'type' not in data:
        return {}, None
    info = read_checkpoint(source)
    if info.layout != 'lerobot_old':
        return {}, None
    pipeline, statistics = carried_over(info)
    return {'pipeline': pipeline}, statistics


def copy_side_files(source: Path, destination: Path, named=()) -> list[str]:
    """
    Copy statistics, processors and tokenizer files; return their names.

    :param named: further files, see ``state_files``.
    """
    patterns = (
        'norm_stats.json', 'assets', 'policy_preprocessor*', 'policy_postprocessor*',
        'tokenizer*', 'special_tokens_map.json', '*.model', 'stats.json',
        'processor_config.json', 'preprocessor_config.json', *map(glob.escape, named),
    )  # fmt: skip
    copied = []
    for pattern in patterns:
        for path in sorted(source.glob(pattern)):
            target = destination / path.name
            if path.is_dir():
                shutil.copytree(path, target, dirs_exist_ok=True)
            elif not target.exists():
                shutil.copy2(path, target)
            copied.append(path.name)
    return copied


# ---- command line


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument('source', help='safetensors file or index, folder, .npz or orbax folder')
    parser.add_argument('destination', help='folder to write')
    parser.add_argument('--dtype', choices=tuple(weights.DTYPE_WORDS), help='default: as stored')
    parser.add_argument('--config', help='JSON with the sizes (dims), if they cannot be told')
    parser.add_argument('--size', choices=tuple(SIZES), help='a named size instead of --config')
    parser.add_argument('--family', choices=tuple(FAMILIES), help='who trained it')


def run(args: argparse.Namespace) -> int:
    """Convert with a progress bar; print where the result is."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    config = None
    if args.config:
        config, _ = read_config(Path(args.config), args.family)
        if config is None:
            raise Pi0RosError(f'{args.config} holds no dims; give the sizes in full')
    elif args.size:
        config = Pi0Config.named(args.size, None, args.family or 'lerobot')
    opened = open_source(args.source, config, args.dtype, args.family)
    total = sum(
        math.prod(tensor.shape) * tensor.dtype.itemsize for tensor in opened.tensors.values()
    )
    columns = (TextColumn('{task.description}'), BarColumn(), DownloadColumn())
    with Progress(*columns) as bar:
        task = bar.add_task('converting', total=total)
        folder = convert(
            args.source, args.destination, opened.config, args.dtype, args.family,
            lambda done: bar.advance(task, done),
        )  # fmt: skip
    print(f'{opened.layout} {opened.config.kind} ({opened.config.family}) -> {folder}')
    return 0
