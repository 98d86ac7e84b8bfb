# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Weight files: every known key layout of a pi0 model in, one documented layout out.

Called by ``Pi0Model.load`` and by the converter. Reads safetensors only (never a pickle), by plain
file reads straight into the model's memory, so that loading needs no second copy of the weights.

The names used here are openpi's, which is also the documented layout: ``paligemma_with_expert.
paligemma.model.{vision_tower.vision_model, multi_modal_projector.linear, language_model}.*``,
``paligemma_with_expert.gemma_expert.model.*``, and the bare heads (``state_proj.*``, ...).
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from pi0_ros.errors import Pi0RosError
from pi0_ros.policy.config import Pi0Config

VISION = 'paligemma_with_expert.paligemma.model.vision_tower.vision_model.'
PROJECTOR = 'paligemma_with_expert.paligemma.model.multi_modal_projector.linear.'
TEXT = 'paligemma_with_expert.paligemma.model.language_model.'
EXPERT = 'paligemma_with_expert.gemma_expert.model.'
# The token embedding is tied to the language head; openpi's own files hold it under this name.
EMBEDDING = 'paligemma_with_expert.paligemma.lm_head.weight'

IGNORED = ''  # in a file, but no part of the model

DTYPES = {
    'F64': torch.float64,
    'F32': torch.float32,
    'F16': torch.float16,
    'BF16': torch.bfloat16,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
DTYPE_WORDS = {
    'float32': torch.float32,
    'float16': torch.float16,
    'bfloat16': torch.bfloat16,
}
MAX_HEADER = 100_000_000  # the safetensors format's own limit, bytes
CHUNK = 32 * 1024 * 1024  # bytes staged at a time when the dtype or the device differs
LISTED = 12  # names spelled out in an error before "and n more"

# (pattern, replacement): the first that matches wins. Sources, by layout:
#   (a)  LeRobot 0.1-0.3 with transformers <= 4.51: paligemma.{vision_tower.vision_model,
#        language_model.model, language_model.lm_head}
#   (a') the same re-saved with transformers >= 4.52, and LeRobot >= 0.4: paligemma.model.*
#   (b), (c) lerobot/pi0_base and openpi: as (a') without the leading 'model.'
#   transformers >= 5.4: model.vlm.*, model.dit.*, embed_action_time.* in memory; its
#        save_pretrained writes (c) with language_model.model.* and the expert's lm_head
#   transformers >= 5.6 drops 'vision_model.' below vision_tower
_HEADS = r'(?:state_proj|action_in_proj|action_out_proj|action_time_mlp_(?:in|out)'
_HEADS += r'|time_mlp_(?:in|out))\.(?:weight|bias)'
_VLM = r'(?:model\.)?(?:paligemma_with_expert\.paligemma|vlm)\.(?:model\.)?'
_DIT = r'(?:model\.)?(?:paligemma_with_expert\.gemma_expert(?:\.model)?|dit)\.'
_LANGUAGE = r'(?:language_model\.(?:model\.)?)'
_RULES = [
    (re.compile(rf'(?:model\.)?(?:embed_action_time\.)?({_HEADS})'), r'\1'),
    (re.compile(rf'{_VLM}vision_tower\.(?:vision_model\.)?(.+)'), VISION + r'\1'),
    (re.compile(rf'{_VLM}multi_modal_projector\.linear\.(.+)'), PROJECTOR + r'\1'),
    (re.compile(rf'{_VLM}{_LANGUAGE}?(?:embed_tokens|lm_head)\.weight'), EMBEDDING),
    (re.compile(rf'{_VLM}{_LANGUAGE}(.+)'), TEXT + r'\1'),
    # The expert embeds no tokens: its head (random or zeros) and embedding are never used.
    (re.compile(rf'{_DIT}(?:lm_head|embed_tokens)\.weight'), IGNORED),
    (re.compile(rf'{_DIT}(.+)'), EXPERT + r'\1'),
    # Statistics that LeRobot 0.1-0.3 kept among the weights; the checkpoint reader takes them.
    (re.compile(r'(?:un)?normalize_(?:inputs|targets|outputs)\..+'), IGNORED),
]  # fmt: skip


def canonical(key: str) -> str | None:
    """Return a key's documented name, '' for one to ignore, None for an unknown one."""
    for pattern, replacement in _RULES:
        if pattern.fullmatch(key):
            return pattern.sub(replacement, key) if replacement else IGNORED
    return None


@dataclass(frozen=True)
class Slot:
    """Where a weight of the documented layout lives: rows of a parameter of ``Pi0Model``."""

    name: str
    shape: tuple[int, ...]
    parameter: str
    start: int
    stop: int


def slots(config: Pi0Config) -> list[Slot]:
    """Return the complete documented layout of a config, in file order."""
    found: list[Slot] = []

    def add(name: str, parameter: str, *shape: int, start: int = 0, rows: int | None = None):
        rows = shape[0] if rows is None else rows
        found.append(Slot(name, shape, parameter, start, start + rows))

    def linear(name: str, parameter: str, out: int, into: int):
        add(f'{name}.weight', f'{parameter}.weight', out, into)
        add(f'{name}.bias', f'{parameter}.bias', out)

    vision, hidden = config.vision, config.vision.hidden
    patch = f'{VISION}embeddings.patch_embedding'
    add(f'{patch}.weight', 'vision.patch.weight', hidden, 3, vision.patch, vision.patch)
    add(f'{patch}.bias', 'vision.patch.bias', hidden)
    position = f'{VISION}embeddings.position_embedding.weight'
    add(position, 'vision.position', vision.tokens, hidden)
    for i in range(vision.layers):
        file, model = f'{VISION}encoder.layers.{i}.', f'vision.layers.{i}.'
        for n in (1, 2):
            for part in ('weight', 'bias'):
                add(f'{file}layer_norm{n}.{part}', f'{model}norm{n}.{part}', hidden)
        for n, letter in enumerate('qkv'):
            key = f'{file}self_attn.{letter}_proj'
            start = n * hidden
            add(f'{key}.weight', f'{model}qkv.weight', hidden, hidden, start=start)
            add(f'{key}.bias', f'{model}qkv.bias', hidden, start=start)
        linear(f'{file}self_attn.out_proj', f'{model}out', hidden, hidden)
        linear(f'{file}mlp.fc1', f'{model}up', vision.mlp, hidden)
        linear(f'{file}mlp.fc2', f'{model}down', hidden, vision.mlp)
    for part in ('weight', 'bias'):
        add(f'{VISION}post_layernorm.{part}', f'vision.norm.{part}', hidden)
    linear(PROJECTOR.rstrip('.'), 'vision.projector', config.text.width, hidden)
    add(EMBEDDING, 'embedding', config.text.vocab, config.text.width)

    def gemma(file: str, model: str, size, adaptive: bool):
        def norm(name: str, parameter: str):
            if adaptive:
                linear(f'{name}.dense', f'{parameter}.dense', 3 * size.width, size.width)
            else:
                add(f'{name}.weight', f'{parameter}.weight', size.width)

        q, kv = size.heads * size.head_dim, size.kv_heads * size.head_dim
        for i in range(size.depth):
            f, m = f'{file}layers.{i}.', f'{model}.layers.{i}.'
            norm(f'{f}input_layernorm', f'{m}norm1')
            for letter, start, rows in (('q', 0, q), ('k', q, kv), ('v', q + kv, kv)):
                key = f'{f}self_attn.{letter}_proj.weight'
                add(key, f'{m}qkv.weight', rows, size.width, start=start)
            add(f'{f}self_attn.o_proj.weight', f'{m}out.weight', size.width, q)
            norm(f'{f}post_attention_layernorm', f'{m}norm2')
            add(f'{f}mlp.gate_proj.weight', f'{m}gate_up.weight', size.mlp, size.width)
            up = f'{f}mlp.up_proj.weight'
            add(up, f'{m}gate_up.weight', size.mlp, size.width, start=size.mlp)
            add(f'{f}mlp.down_proj.weight', f'{m}down.weight', size.width, size.mlp)
        norm(f'{file}norm', f'{model}.norm')

    gemma(TEXT, 'text', config.text, adaptive=False)
    gemma(EXPERT, 'expert', config.expert, adaptive=config.kind == 'pi05')
    width = config.expert.width
    linear('action_in_proj', 'action_in_proj', width, config.max_action_dim)
    linear('action_out_proj', 'action_out_proj', config.max_action_dim, width)
    if config.kind == 'pi05':
        linear('time_mlp_in', 'time_mlp_in', width, width)
        linear('time_mlp_out', 'time_mlp_out', width, width)
    else:
        linear('state_proj', 'state_proj', width, config.max_state_dim)
        linear('action_time_mlp_in', 'action_time_mlp_in', width, 2 * width)
        linear('action_time_mlp_out', 'action_time_mlp_out', width, width)
    return found


@dataclass(frozen=True)
class Entry:
    """One tensor of a safetensors file."""

    file: Path
    key: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int


def read_header(path: Path) -> tuple[dict[str, Entry], dict[str, str]]:
    """
    Return the tensors and the metadata of one safetensors file, checked against its length.

    :raises Pi0RosError: it is absent, a Git LFS pointer, a pickle, damaged or cut short
    """
    try:
        length = path.stat().st_size
        with open(path, 'rb') as file:
            start = file.read(8)
            if start[:7] == b'version':
                raise Pi0RosError(f'{path} is a Git LFS pointer, no weights; run git lfs pull')
            size = struct.unpack('<Q', start)[0] if len(start) == 8 else 0
            if not 2 <= size <= min(MAX_HEADER, length - 8):
                raise Pi0RosError(
                    f'{path} is no safetensors file (or is cut short); pi0_ros reads safetensors '
                    'only, no pickles: download it again or convert it'
                )
            header = json.loads(file.read(size))
        metadata = header.pop('__metadata__', {})
        entries = {}
        for key, info in header.items():
            begin, end = info['data_offsets']
            shape = tuple(info['shape'])
            entries[key] = Entry(path, key, info['dtype'], shape, 8 + size + begin, end - begin)
    except OSError as error:
        raise Pi0RosError(f'{path}: {error.strerror or error}; check the path') from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, Pi0RosError):
            raise
        raise Pi0RosError(f'{path}: damaged safetensors header; download it again') from None
    for entry in entries.values():
        if entry.dtype in DTYPES:
            want = math.prod(entry.shape) * DTYPES[entry.dtype].itemsize
            if want != entry.size:
                raise Pi0RosError(
                    f'{path}: {entry.key} holds {entry.size} bytes, its shape needs {want}; '
                    'download the file again'
                )
    end = max((entry.offset + entry.size for entry in entries.values()), default=0)
    if end > length:
        raise Pi0RosError(
            f'{path} is cut short: {length} bytes of {end}; download it again'
        )
    return entries, metadata


def find_files(path: Path) -> list[Path]:
    """
    Return the weight files behind a file, an index or a folder.

    :raises Pi0RosError: there are none, or shards that the index names are missing (all listed)
    """
    if path.is_dir():
        for name in ('model.safetensors', 'model.safetensors.index.json'):
            if (path / name).is_file():
                return find_files(path / name)
        pickles = sorted(p.name for p in path.glob('*') if p.suffix in ('.bin', '.pt', '.pth'))
        other = f' (pickles are refused: {listed(pickles)})' if pickles else ''
        raise Pi0RosError(
            f'{path} holds no model.safetensors or model.safetensors.index.json{other}; give a '
            'folder that does'
        )
    if not path.exists():
        raise Pi0RosError(f'{path} does not exist; check the path')
    if path.name.endswith('.index.json'):
        try:
            names = sorted(set(map(str, json.loads(path.read_text())['weight_map'].values())))
        except (ValueError, KeyError, AttributeError, TypeError):
            raise Pi0RosError(f'{path} is no safetensors index; download it again') from None
        outside = [name for name in names if Path(name).name != name]
        if outside:
            raise Pi0RosError(f'{path} names shards outside its folder: {listed(outside)}')
        missing = [name for name in names if not (path.parent / name).is_file()]
        if missing:
            raise Pi0RosError(
                f'{path.parent}: {len(missing)} of {len(names)} shards are missing: '
                f'{listed(missing)}; download them'
            )
        return [path.parent / name for name in names]
    return [path]


class WeightSource:
    """The tensors of one model, wherever and under whatever names they lie."""

    def __init__(self, path: Path, entries: dict[str, Entry], metadata: dict[str, str]):
        """
        Sort a set of tensors into known, ignored and unknown ones.

        :param entries: by the keys that the files use
        :raises Pi0RosError: two keys mean the same weight
        """
        self.path, self.metadata = path, metadata
        self.keys = list(entries)
        self.entries: dict[str, Entry] = {}
        self.unknown: list[str] = []
        for key, entry in entries.items():
            name = canonical(key)
            if name is None:
                self.unknown.append(key)
            elif name == EMBEDDING and name in self.entries:
                # Both names of the tied embedding: a re-saved file may hold a stale head.
                if 'embed_tokens' in key:
                    self.entries[name] = entry
            elif name in self.entries:
                other = self.entries[name].key
                raise Pi0RosError(f"{path}: '{other}' and '{key}' are the same weight; remove one")
            elif name != IGNORED:
                self.entries[name] = entry

    @classmethod
    def open(cls, path: Path) -> WeightSource:
        """
        Read the headers of a file, an index with shards, or a folder.

        :raises Pi0RosError: see ``find_files`` and ``read_header``; or a tensor is in two shards
        """
        entries: dict[str, Entry] = {}
        metadata: dict[str, str] = {}
        for file in find_files(path):
            found, notes = read_header(file)
            twice = sorted(set(found) & set(entries))
            if twice:
                raise Pi0RosError(f'{file}: {listed(twice)} are in another shard too')
            entries.update(found)
            metadata.update(notes)
        return cls(path, entries, metadata)

    @property
    def kind(self) -> str:
        """Return 'pi05' if the weights are those of pi0.5, else 'pi0'."""
        adaptive = any('layernorm.dense.' in name for name in self.entries)
        return 'pi05' if adaptive or 'time_mlp_in.weight' in self.entries else 'pi0'

    @property
    def size(self) -> int:
        """Return the bytes of all used tensors."""
        return sum(entry.size for entry in self.entries.values())

    def resolve(self, config: Pi0Config) -> Pi0Config:
        """
        Return the config with its kind settled by the weights.

        :raises Pi0RosError: the config names another kind
        """
        if config.kind not in (None, self.kind):
            raise Pi0RosError(
                f'{self.path} holds a {self.kind} model but the config says {config.kind}; '
                'correct the config'
            )
        return config.replace(kind=self.kind)

    def check(self, config: Pi0Config) -> None:
        """
        Refuse weights that are not exactly those of the config.

        :raises Pi0RosError: lists all missing, extra and misshapen weights and foreign dtypes
        """
        if not self.entries:
            raise Pi0RosError(
                f'{self.path}: none of its {len(self.keys)} weights is called as in a known '
                f'layout of pi0 ({listed(self.keys[:3])}); check whether this is a pi0 checkpoint'
            )
        if EMBEDDING in self.entries and not any(
            name.startswith((EXPERT, 'action_in_proj')) for name in self.entries
        ):
            raise Pi0RosError(
                f'{self.path} holds a PaliGemma or pi0-FAST model: no action expert is among its '
                f'{len(self.keys)} weights; pi0_ros runs pi0 and pi0.5'
            )
        wanted = {slot.name: slot for slot in slots(config)}
        missing = [name for name in wanted if name not in self.entries]
        extra = self.unknown + [e.key for name, e in self.entries.items() if name not in wanted]
        wrong, foreign = [], []
        for name, slot in wanted.items():
            entry = self.entries.get(name)
            if entry is None:
                continue
            if entry.shape != slot.shape:
                wrong.append(f'{entry.key} {list(entry.shape)} instead of {list(slot.shape)}')
            if entry.dtype not in DTYPES:
                foreign.append(f'{entry.key} ({entry.dtype})')
        faults = [
            f'{len(names)} {word}: {listed(names)}'
            for word, names in (
                ('missing', missing),
                ('extra', extra),
                ('of the wrong shape', wrong),
                ('of an unsupported dtype', foreign),
            )
            if names
        ]
        if faults:
            raise Pi0RosError(
                f"{self.path}: weights do not fit the model: {'; '.join(faults)}; "
                'check the sizes in the config, or whether this is a pi0 checkpoint'
            )

    def read_into(self, model, progress: Callable[[int], None] | None = None) -> None:
        """
        Fill the model's parameters; ``check`` has passed.

        :param progress: called with the number of bytes after each tensor
        :raises Pi0RosError: the disk fails or the file has shrunk meanwhile
        """
        parameters = dict(model.named_parameters())
        files = {}
        try:
            wanted = [(self.entries[slot.name], slot) for slot in slots(model.config)]
            for entry, slot in sorted(wanted, key=lambda w: (str(w[0].file), w[0].offset)):
                if entry.file not in files:
                    files[entry.file] = open(entry.file, 'rb', buffering=0)
                rows = parameters[slot.parameter].data[slot.start : slot.stop]
                read_tensor(files[entry.file], entry, rows)
                if progress:
                    progress(entry.size)
        except OSError as error:
            raise Pi0RosError(f'{self.path}: {error.strerror or error} while reading') from error
        finally:
            for file in files.values():
                file.close()

    def tensor(self, name: str) -> Tensor:
        """Return one weight by its documented name, on the CPU, in the file's dtype and shape."""
        entry = self.entries[name]
        out = torch.empty(entry.shape, dtype=DTYPES[entry.dtype])
        with open(entry.file, 'rb', buffering=0) as file:
            read_tensor(file, entry, out)
        return out


def read_tensor(file, entry: Entry, out: Tensor) -> None:
    """
    Read one tensor into contiguous memory of any dtype on any device.

    :raises Pi0RosError: the file ends early
    """
    file.seek(entry.offset)
    flat = out.view(-1)
    dtype = DTYPES[entry.dtype]
    if dtype == out.dtype and out.device.type == 'cpu':
        _fill(file, entry, flat)
        return
    step = CHUNK // dtype.itemsize
    pinned = out.device.type == 'cuda'
    stage = torch.empty(min(step, flat.numel()), dtype=dtype, pin_memory=pinned)
    for piece in flat.split(step):
        part = stage[: piece.numel()]
        _fill(file, entry, part)
        piece.copy_(part)


def _fill(file, entry: Entry, flat: Tensor) -> None:
    view = memoryview(flat.view(torch.uint8).numpy())
    done = 0
    while done < len(view):
        got = file.readinto(view[done : done + (1 << 30)])
        if not got:
            raise Pi0RosError(f'{entry.file} ended while {entry.key} was read; download it again')
        done += got


@dataclass(frozen=True)
class Tensorlike:
    """A tensor to write: its name, dtype and shape now, its values when its turn comes."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    read: Callable[[], Tensor]


def write_file(
    path: Path,
    tensors: Iterable[Tensorlike],
    metadata: dict[str, str] | None = None,
    progress: Callable[[int], None] | None = None,
) -> None:
    """
    Write a safetensors file, one tensor in memory at a time; it appears only when complete.

    :param progress: called with the number of bytes after each tensor
    :raises Pi0RosError: the disk is full or the folder is not writable
    """
    tensors = list(tensors)
    header: dict = {'__metadata__': {'format': 'pt', **(metadata or {})}}
    offset = 0
    for tensor in tensors:
        size = math.prod(tensor.shape) * tensor.dtype.itemsize
        header[tensor.name] = {
            'dtype': NAMES[tensor.dtype],
            'shape': list(tensor.shape),
            'data_offsets': [offset, offset + size],
        }
        offset += size
    text = json.dumps(header).encode()
    text += b' ' * (-len(text) % 8)
    part = path.with_name(path.name + '.part')
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(part, 'wb') as file:
            file.write(struct.pack('<Q', len(text)) + text)
            for tensor in tensors:
                values = tensor.read().detach().to('cpu', tensor.dtype).contiguous()
                if values.numel() != math.prod(tensor.shape):
                    raise ValueError(f'{tensor.name}: {values.shape} instead of {tensor.shape}')
                file.write(values.view(-1).view(torch.uint8).numpy())
                if progress:
                    progress(values.numel() * values.element_size())
        os.replace(part, path)
    except OSError as error:
        raise Pi0RosError(f'{path}: {error.strerror or error}; nothing was written') from error
    finally:
        part.unlink(missing_ok=True)


def save_model(model, path: Path, dtype=None, metadata=None, progress=None) -> None:
    """Write a model's weights in the documented layout; see ``Pi0Model.save``."""
    target = word_to_dtype(dtype) if dtype is not None else None
    parameters = dict(model.named_parameters())

    def tensorlike(slot: Slot) -> Tensorlike:
        rows = parameters[slot.parameter].data[slot.start : slot.stop]
        return Tensorlike(slot.name, target or rows.dtype, slot.shape, lambda: rows)

    write_file(path, [tensorlike(slot) for slot in slots(model.config)], metadata, progress)


def word_to_dtype(word: str) -> torch.dtype:
    """
    Return the torch dtype for the name of one that weight files may have.

    :raises Pi0RosError: it is none of float32, float16, bfloat16
    """
    name = str(word).removeprefix('torch.')
    if name not in DTYPE_WORDS:
        raise Pi0RosError(f"dtype '{name}' is not one of {', '.join(DTYPE_WORDS)}")
    return DTYPE_WORDS[name]


def listed(names: list[str]) -> str:
    """Return names joined for an error, the first dozen spelled out."""
    shown = ', '.join(names[:LISTED])
    more = len(names) - LISTED
    return f'{shown} and {more} more' if more > 0 else shown
