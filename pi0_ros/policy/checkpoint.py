# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
What a checkpoint's folder says about itself, beside the weights.

Reads this package's own folders, LeRobot's before and since its processor files, openpi's and
transformers' native PI0. What a folder does not say stays None and must be said by the user: a
wrong guess of action space or statistics moves the arm wrongly. docs/checkpoints.md lists all.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from pi0_ros.errors import Pi0RosError
from pi0_ros.policy import weights
from pi0_ros.policy.aloha import PI_STATE_RANGE, make_bool_mask
from pi0_ros.policy.images import RESIZES
from pi0_ros.policy.normalization import (
    DIALECTS,
    LEROBOT_EPS,
    MODES,
    aggregate_episode_stats,
)
from pi0_ros.robot import CAMERA_SLOTS

LAYOUTS = ('pi0_ros', 'lerobot', 'lerobot_old', 'openpi', 'transformers')
ACTION_SPACES = ('absolute', 'delta')
ALOHA_DELTA_MASK = make_bool_mask(6, -1, 6, -1)
"""openpi's: joints relative to the state, grippers absolute."""

_MODE_OF = {
    'MEAN_STD': 'zscore', 'QUANTILES': 'quantile', 'MIN_MAX': 'min_max',
    'QUANTILE10': 'quantile10', 'IDENTITY': 'identity',
}  # fmt: skip
_IMAGE_PREFIX = 'observation.images.'
_STATE, _ACTION = 'observation.state', 'action'
# LeRobot's steps by registered name; those without one are saved by the path of their class.
_STEP_CLASSES = {
    'rename_observations_processor': 'RenameObservationsProcessorStep',
    'tokenizer_processor': 'TokenizerProcessorStep',
    'relative_actions_processor': 'RelativeActionsProcessorStep',
    'normalizer_processor': 'NormalizerProcessorStep',
    'unnormalizer_processor': 'UnnormalizerProcessorStep',
}
_HARMLESS_STEPS = {
    'to_batch_processor', 'device_processor', 'pi0_new_line_processor',
    'pi05_prepare_state_tokenizer_processor_step', 'absolute_actions_processor',
}  # fmt: skip
_FAST = (
    'a pi0-FAST checkpoint (it writes actions as text tokens and has no action expert); pi0_ros '
    'runs pi0 and pi0.5'
)
_log = logging.getLogger(__name__)


class CheckpointError(Pi0RosError):
    """A folder that cannot be run; says what it is, what is missing and the remedy."""


@dataclass(frozen=True)
class CheckpointInfo:
    """
    A checkpoint's own words; None where it does not say.

    ``cameras``: camera or feature name -> slot, in the order of the model's pictures (slot '':
    none of the known ones). ``statistics``: ``state`` and ``actions`` -> arrays by ``mean``,
    ``std``, ``q01``, ... ``assets``: the robots whose statistics lie there, where they are
    several and it is not said which. ``aloha``: constants' generation, or ``off``. ``notes``:
    sentences that the user should read.
    """

    path: Path
    layout: str
    kind: str | None = None
    family: str = 'lerobot'
    action_space: str | None = None
    delta_mask: tuple[bool, ...] | None = None
    aloha: str | None = None
    state_mode: str | None = None
    action_mode: str | None = None
    dialect: str = 'openpi'
    statistics: Mapping[str, Mapping] | None = None
    statistics_source: str = ''
    cameras: Mapping[str, str] | None = None
    resize: str = 'pillow'
    state_dim: int | None = None
    action_dim: int | None = None
    prompt_tokens: int | None = None
    truncate: bool = True
    tokenizer: str | None = None
    prompt: str = ''
    assets: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default_factory=tuple)


def locate(path_or_hub_id: str) -> Path:
    """
    Return the folder of a checkpoint, downloading it from the hub when it is no local one.

    :raises CheckpointError: when there is no such folder or repository, or it is something else.
    """
    text = str(path_or_hub_id)
    if not text.strip():
        raise CheckpointError('the path of the checkpoint is empty; give a folder or a hub id')
    path = Path(text).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        raise CheckpointError(f"'{text}' is a file ({_what_file(path)}); give its folder")
    if text.count('/') != 1 or text.startswith(('.', '/', '~')):
        raise CheckpointError(f"checkpoint '{text}' does not exist; give a folder or a hub id")
    try:
        from huggingface_hub import snapshot_download

        found = snapshot_download(
            text, allow_patterns=['*.json', '*.safetensors', '*.model', 'assets/*'],
        )  # fmt: skip
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise CheckpointError(
            f"checkpoint '{text}' is neither a folder here nor to be had from the hub ({reason})"
        ) from None
    return Path(found)


def read_checkpoint(folder: Path, asset_id: str | None = None) -> CheckpointInfo:
    """
    Read everything but the weights.

    :param asset_id: which of openpi's ``assets/<id>/norm_stats.json``, if there are several.
    :raises CheckpointError: when the folder is no pi0 checkpoint; names what it is.
    """
    folder = Path(folder)
    path = folder / 'config.json'
    data = read_json(path) if path.is_file() else {}
    kind = data.get('type')
    if data.get('format') == 'pi0_ros':
        return _own(folder, data, asset_id)
    refuse_others(folder, data)
    if kind is not None:
        if (folder / 'policy_preprocessor.json').is_file():
            return _lerobot(folder, data)
        return _lerobot_old(folder, data)
    if str(data.get('model_type', '')).startswith('pi0'):
        return _transformers(folder, data, asset_id)
    if 'model_type' in data or 'architectures' in data:
        what = data.get('model_type') or data['architectures']
        raise CheckpointError(f"{folder} is a model of type '{what}', not pi0")
    if (folder / 'policy_preprocessor.json').is_file():
        raise CheckpointError(
            f'{folder} has processor files but no config.json; it is not complete'
            f'{_policy_hint(folder)}'
        )
    if (folder / 'meta' / 'info.json').is_file():
        version = read_json(folder / 'meta/info.json').get('codebase_version', 'of some version')
        raise CheckpointError(
            f'{folder} is a LeRobot data set ({version}), no pi0 checkpoint; give the folder of a '
            'policy trained on it'
        )
    if (folder / 'adapter_config.json').is_file():
        raise CheckpointError(
            f'{folder} holds a LoRA adapter alone; merge it into its base model and give that'
        )
    if not _has_weights(folder):
        try:
            weights.find_files(folder)
        except Pi0RosError as error:
            raise CheckpointError(f'no pi0 checkpoint: {error}') from None
    return _with_openpi_statistics(CheckpointInfo(folder, 'openpi', None, 'openpi'), asset_id)


def refuse_others(folder: Path, data: Mapping) -> None:
    """
    Refuse the config of another policy.

    :raises CheckpointError: says which it is.
    """
    kind = data.get('type')
    said = str(kind or data.get('model_type') or data.get('architectures') or '').lower()
    if re.search('pi0?[-_]?fast', said):
        raise CheckpointError(f'{folder} is {_FAST}')
    if kind is not None and kind not in ('pi0', 'pi05'):
        raise CheckpointError(f"{folder} is a checkpoint of policy '{kind}', not of pi0")


# --- layouts ---------------------------------------------------------------------------------


def _own(folder: Path, data: dict, asset_id: str | None) -> CheckpointInfo:
    model, pipeline = (_object(data, key, folder) for key in ('model', 'pipeline'))
    unknown = set(pipeline) - {
        'action_space', 'delta_mask', 'aloha', 'state_mode', 'action_mode', 'dialect', 'cameras',
        'camera_order', 'resize', 'state_dim', 'action_dim', 'prompt_tokens', 'truncate',
        'tokenizer', 'prompt',
    }  # fmt: skip
    if unknown:
        raise CheckpointError(f'{folder}/config.json: unknown keys in pipeline: {sorted(unknown)}')
    if not pipeline and (folder / 'policy_preprocessor.json').is_file():
        return _lerobot(folder, data)  # converted from LeRobot: its processors came along
    values = dict(pipeline)
    for key in ('state_dim', 'action_dim', 'prompt_tokens'):
        value = values.get(key)
        if value is not None and (type(value) is not int or value < 1):
            raise CheckpointError(f'{folder}/config.json: {key} is {value!r}, no whole number > 0')
    mask = values.get('delta_mask')
    if mask is not None:
        dof = values.get('action_dim')
        if not isinstance(mask, list) or len(mask) != (dof or len(mask)) or any(
            type(value) is not bool for value in mask
        ):
            raise CheckpointError(
                f'{folder}/config.json: delta_mask is {mask!r:.60}; expected a true or false for '
                f'each of {dof or "the"} joints'
            )
        values['delta_mask'] = tuple(mask)
    order = values.pop('camera_order', None)
    if values.get('cameras') is not None:
        cameras = _object(pipeline, 'cameras', folder)
        if not cameras or not all(isinstance(slot, str) for slot in cameras.values()):
            raise CheckpointError(
                f'{folder}/config.json: cameras are {cameras}; expected name -> slot, such as '
                f'{{"cam_high": "{CAMERA_SLOTS[0]}"}}'
            )
        order = order or sorted(cameras, key=lambda name: _rank(cameras[name]))
        if sorted(order) != sorted(cameras):
            raise CheckpointError(
                f'{folder}/config.json: camera_order is {order}, cameras are {list(cameras)}'
            )
        values['cameras'] = {name: cameras[name] for name in order}
    for key, known in (
        ('action_space', ACTION_SPACES), ('aloha', (*PI_STATE_RANGE, 'off')),
        ('state_mode', MODES), ('action_mode', MODES), ('dialect', DIALECTS),
        ('resize', RESIZES),
    ):  # fmt: skip
        if values.get(key) is not None and values[key] not in known:
            raise CheckpointError(
                f"{folder}/config.json: {key} is '{values[key]}'; expected one of "
                f'{", ".join(known)}'
            )
    family = model.get('family', 'lerobot')
    info = CheckpointInfo(folder, 'pi0_ros', model.get('kind'), family, **values)
    return _with_openpi_statistics(info, asset_id)


def _lerobot(folder: Path, data: dict) -> CheckpointInfo:
    """LeRobot from 0.4 on: statistics in a file that the processor's JSON names."""
    steps = _steps(folder / 'policy_preprocessor.json')
    step = _step(steps, 'normalizer_processor')
    undo = _step(_steps(folder / 'policy_postprocessor.json'), 'unnormalizer_processor')
    modes = _object(data, 'normalization_mapping', folder)
    modes |= {k: v for k, v in _norm_map(step).items() if k != 'ACTION'}
    if 'ACTION' in _norm_map(undo or step):
        modes['ACTION'] = _norm_map(undo or step)['ACTION']  # LeRobot runs what its steps say
    for found in (step, undo):
        eps = _config(found).get('eps')
        if eps is not None and eps != LEROBOT_EPS:
            raise CheckpointError(
                f"{folder}: its normaliser adds eps {eps}; pi0_ros knows LeRobot's {LEROBOT_EPS}"
            )
    statistics, source = None, ''
    if step is not None and step.get('state_file'):
        source = str(step['state_file'])
        needed = [name for name, key in (('state', 'STATE'), ('actions', 'ACTION'))
                  if modes.get(key) != 'IDENTITY']  # fmt: skip
        own = undo is not None and undo.get('state_file')
        statistics = _tensor_statistics(
            folder, source, [name for name in needed if name != 'actions' or not own]
        )
        if own:
            actions = _tensor_statistics(
                folder, str(undo['state_file']), [name for name in needed if name == 'actions']
            )
            statistics['actions'] = actions['actions']  # what LeRobot undoes the actions with
    mask = _relative_mask(data, steps)
    tokens = _config(_step(steps, 'tokenizer_processor'))
    return CheckpointInfo(
        folder, 'lerobot', data.get('type'), 'lerobot',
        action_space='absolute' if mask is None else 'delta', delta_mask=mask,
        aloha='off', dialect='lerobot', statistics=statistics, statistics_source=source,
        resize='torch', **_features(data, folder, _renames(steps)), **_modes(modes, folder),
        prompt_tokens=tokens.get('max_length') or data.get('tokenizer_max_length'),
        truncate=bool(tokens.get('truncation', True)),
        tokenizer=tokens.get('tokenizer_name'), notes=_strange_steps(steps),
    )  # fmt: skip


def _lerobot_old(folder: Path, data: dict) -> CheckpointInfo:
    """LeRobot 0.1 to 0.3: statistics among the weights, ALOHA adaptation by two flags."""
    features = _object(data, 'input_features', folder)
    if 'pixels' in features:
        try:
            weights.find_files(folder)
            also = ''
        except Pi0RosError as error:
            also = f'; also {error}'
        mapping = data.get('normalization_mapping') or {}
        raw = all(mapping.get(key) == 'IDENTITY' for key in ('STATE', 'ACTION'))
        raise CheckpointError(
            f"{folder}: its picture is called 'pixels' and comes as [H, W, C]"
            f'{", its normalisation is IDENTITY, so it holds no statistics" if raw else ""}; this '
            'checkpoint was trained through a private pipeline (LeRobot writes '
            f'observation.images.*) and is not supported{also}'
        )
    try:
        source = weights.WeightSource.open(folder)
    except Pi0RosError as error:
        raise CheckpointError(str(error)) from None
    statistics = _buffer_statistics(folder)
    return CheckpointInfo(
        folder, 'lerobot_old', data.get('type') or source.kind, 'lerobot',
        # LeRobot 0.1-0.3 has the flag and not the deltas; who set it trained them elsewhere.
        action_space=None if data.get('use_delta_joint_actions_aloha') else 'absolute',
        aloha='lerobot_old' if data.get('adapt_to_pi_aloha') else 'off',
        dialect='lerobot_old', statistics=statistics or None,
        statistics_source='buffers among the weights' if statistics else '',
        resize='torch_left_top', **_features(data, folder),
        **_modes(_object(data, 'normalization_mapping', folder), folder),
        prompt_tokens=data.get('tokenizer_max_length'), truncate=False,
    )  # fmt: skip


def _transformers(folder: Path, data: dict, asset_id: str | None) -> CheckpointInfo:
    """Native PI0 (transformers 5.4 and later): statistics, if any, in its processor's JSON."""
    info = CheckpointInfo(folder, 'transformers', 'pi0', 'transformers', truncate=False)
    path = folder / 'processor_config.json'
    said = read_json(path) if path.is_file() else {}
    statistics = {
        name: {key: said[f'{name}_{key}'] for key in ('mean', 'std')
               if said.get(f'{name}_{key}') is not None}
        for name in ('state', 'actions')
    }  # fmt: skip
    if any(statistics.values()):
        for name, found in statistics.items():
            if len(found) < 2:
                raise CheckpointError(f'{path}: {name}_mean and {name}_std are not both there')
        return replace(
            info, statistics=statistics, statistics_source=path.name, dialect='lerobot',
            state_mode='zscore', action_mode='zscore', resize='transformers',
        )  # fmt: skip
    info = _with_openpi_statistics(info, asset_id)
    # With openpi's statistics it is openpi's model in another layout: pictures as openpi has them.
    return info if info.statistics else replace(info, dialect='lerobot', resize='transformers')


def _with_openpi_statistics(info: CheckpointInfo, asset_id: str | None) -> CheckpointInfo:
    """Add ``norm_stats.json`` (beside the weights or in assets/<id>/) to what is known."""
    found = {p.parent.name: p for p in sorted(info.path.glob('assets/*/norm_stats.json'))}
    found |= {f'{p.parent.parent.name}/{p.parent.name}': p
              for p in sorted(info.path.glob('assets/*/*/norm_stats.json'))}  # fmt: skip
    beside = info.path / 'norm_stats.json'
    if asset_id is not None:
        if asset_id not in found:
            raise CheckpointError(
                f'{info.path} has no assets/{asset_id}/norm_stats.json (it has: '
                f'{", ".join(found) or "none"})'
            )
        path = found[asset_id]
    elif beside.is_file():
        path = beside
    elif len(found) > 1:
        return replace(info, assets=tuple(found))
    elif found:
        path = next(iter(found.values()))
    else:
        return info
    return replace(
        info, statistics=read_norm_stats(path), statistics_source=str(path.relative_to(info.path))
    )


# --- statistics ------------------------------------------------------------------------------


def read_statistics(path) -> tuple[dict[str, dict], str]:
    """
    Read statistics from whatever file or folder of openpi's or LeRobot's holds them.

    :param path: ``norm_stats.json``; LeRobot's ``stats.json``, ``episodes_stats.jsonl`` (v2.1;
        aggregated) or processor ``.safetensors``; or the folder of a LeRobot data set.
    :return: ``state`` and ``actions`` -> statistics; the data set's instruction, if it has one.
    :raises CheckpointError: when there are none, or they lack state or actions.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        meta = path if path.name == 'meta' else path / 'meta'
        for file in (
            meta / 'stats.json', meta / 'episodes_stats.jsonl', path / 'norm_stats.json',
        ):  # fmt: skip
            if file.is_file():
                return read_statistics(file)[0], _only_task(meta / 'tasks.jsonl')
        raise CheckpointError(
            f'{path} holds no statistics (looked for meta/stats.json, meta/episodes_stats.jsonl '
            'and norm_stats.json)'
        )
    if path.suffix == '.jsonl':
        stats = aggregate_episode_stats(_rows(path))
        return _named(stats, path), ''
    if path.suffix == '.safetensors':
        return _tensor_statistics(path.parent, path.name), ''
    data = read_json(path)
    if _STATE in data or _ACTION in data:
        return _named(data, path), ''
    return read_norm_stats(path), ''


def _named(stats: Mapping[str, Mapping], path: Path) -> dict[str, dict]:
    for feature in (_STATE, _ACTION):
        if not isinstance(stats.get(feature), Mapping):
            raise CheckpointError(
                f"{path}: statistics of '{feature}' are missing (it has {', '.join(stats)})"
            )
    return {'state': dict(stats[_STATE]), 'actions': dict(stats[_ACTION])}


def _rows(path: Path) -> list:
    try:
        lines = path.read_text(encoding='utf-8').splitlines()
        return [json.loads(line) for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        raise CheckpointError(f'{path}: not readable as lines of JSON ({error})') from None


def _only_task(path: Path) -> str:
    """Return the instruction of a data set that has a single one."""
    tasks = [row.get('task', '') for row in _rows(path)] if path.is_file() else []
    return str(tasks[0]) if len(tasks) == 1 else ''


def read_norm_stats(path: Path) -> dict[str, dict]:
    """
    Read openpi's ``norm_stats.json``.

    :raises CheckpointError: when it is none, or lacks state or actions.
    """
    data = read_json(path)
    stats = data.get('norm_stats', data)
    if not isinstance(stats, dict):
        raise CheckpointError(f"{path}: 'norm_stats' holds no object by 'state' and 'actions'")
    result = {}
    for name in ('state', 'actions'):
        if not isinstance(stats.get(name), dict):
            have = ', '.join(map(str, stats)) or 'nothing'
            raise CheckpointError(f"{path}: statistics of '{name}' are missing (it has {have})")
        result[name] = stats[name]
    return result


def _tensor_statistics(
    folder: Path, name: str, needed=('state', 'actions')
) -> dict[str, dict]:  # fmt: skip
    """Read the file in which a LeRobot step keeps its statistics: ``feature.statistic`` keys."""
    path = folder / name
    if Path(name).name != name:
        raise CheckpointError(f"{folder}: the processor's statistics '{name}' lie outside of it")
    if not path.is_file():
        raise CheckpointError(
            f'{folder}: the processor names {name} for its statistics; it is missing'
        )
    tensors = _read_tensors(path, lambda key: True)
    result: dict[str, dict] = {'state': {}, 'actions': {}}
    for key, value in tensors.items():
        feature, _, statistic = key.rpartition('.')
        group = {_STATE: 'state', _ACTION: 'actions'}.get(feature)
        if group:
            result[group][statistic] = value
    for group, feature in (('state', _STATE), ('actions', _ACTION)):
        if group in needed and not result[group]:
            raise CheckpointError(
                f"{path}: statistics of '{feature}' are missing (it has "
                f'{", ".join(sorted(tensors)[:6]) or "nothing"})'
            )
    return result


def _buffer_statistics(folder: Path) -> dict[str, dict]:
    """Collect LeRobot's normalisation buffers from the weights' files."""
    wanted = {
        'normalize_inputs.buffer_observation_state.': 'state',
        'unnormalize_outputs.buffer_action.': 'actions',
    }

    def group_of(key: str) -> str | None:
        key = key.removeprefix('model.')
        return next((group for start, group in wanted.items() if key.startswith(start)), None)

    result: dict[str, dict] = {}
    for file in weights.find_files(folder):
        for key, value in _read_tensors(file, group_of).items():
            if np.isfinite(value).all():  # infinity is LeRobot's mark of statistics never given
                result.setdefault(group_of(key), {})[key.rsplit('.', 1)[1]] = value
    for start, group in wanted.items():
        if result and group not in result:
            raise CheckpointError(
                f"{folder}: statistics of {group} ('{start}...') are missing among its weights"
            )
    return result


def _read_tensors(path: Path, wanted) -> dict[str, np.ndarray]:
    """Return some tensors of a safetensors file as float64, whatever their dtype."""
    import torch

    entries, _ = weights.read_header(path)
    found = {}
    with open(path, 'rb') as file:
        for key, entry in entries.items():
            if wanted(key) and entry.dtype in weights.DTYPES:
                values = torch.empty(entry.shape, dtype=torch.float64)
                weights.read_tensor(file, entry, values)
                found[key] = values.numpy()
    return found


# --- LeRobot's config ------------------------------------------------------------------------


def _features(data: dict, folder: Path, renames: Mapping[str, str] | None = None) -> dict:
    inputs, outputs = (
        _object(data, key, folder) for key in ('input_features', 'output_features')
    )
    pictures = [
        key for key, feature in inputs.items()
        if key.startswith('observation.image') or _object(inputs, key, folder).get('type')
        == 'VISUAL'
    ]  # fmt: skip
    names = [key.removeprefix(_IMAGE_PREFIX).removeprefix('observation.') for key in pictures]
    names = [name for name in names if not name.startswith('empty_camera')]
    cameras = None
    if names:
        # The order of the config is that of the model's pictures. A name that is a slot's says
        # which camera it is; other names take the slots in turn, while there is one for each.
        if len(names) > len(CAMERA_SLOTS):
            slots = ['' if name not in CAMERA_SLOTS else name for name in names]
        elif set(names) & set(CAMERA_SLOTS):
            free = iter(slot for slot in CAMERA_SLOTS if slot not in names)
            slots = [name if name in CAMERA_SLOTS else next(free) for name in names]
        else:
            slots = list(CAMERA_SLOTS[: len(names)])
        cameras = {(renames or {}).get(name, name): slot for name, slot in zip(names, slots)}
    widths = {}
    for key, features, name in (
        ('state_dim', inputs, _STATE), ('action_dim', outputs, _ACTION),
    ):  # fmt: skip
        shape = _object(features, name, folder).get('shape') or [None]
        if not isinstance(shape, list) or not isinstance(shape[0], (int, type(None))):
            raise CheckpointError(f"{folder}/config.json: shape of '{name}' is {shape}")
        # LeRobot pads to this width and writes it where no data set said another.
        padded = data.get('max_state_dim' if name == _STATE else 'max_action_dim', 32)
        widths[key] = None if shape[0] == padded else shape[0]
    return {'cameras': cameras, **widths}


def _modes(mapping: Mapping, folder: Path) -> dict:
    modes = {}
    if mapping.get('VISUAL') not in (None, 'IDENTITY'):
        raise CheckpointError(
            f"{folder}: its pictures are normalised by {mapping['VISUAL']} of the data set; pi0 "
            'takes them as they are (IDENTITY), others are not supported'
        )
    for key, name in (('STATE', 'state_mode'), ('ACTION', 'action_mode')):
        word = mapping.get(key)
        if word is not None and str(word) not in _MODE_OF:
            raise CheckpointError(
                f'{folder}: normalisation {word} of {key} is not supported; '
                f'expected one of {", ".join(_MODE_OF)}'
            )
        modes[name] = _MODE_OF.get(word)
    return modes


def _relative_mask(data: dict, steps: list[dict]) -> tuple[bool, ...] | None:
    """Return which actions are relative to the state; None: none of them."""
    step = _step(steps, 'relative_actions_processor')
    said = _config(step)
    if not said.get('enabled', bool(data.get('use_relative_actions', False))):
        return None
    names = said.get('action_names', data.get('action_feature_names'))
    # LeRobot's default and comparison: letters' case does not count, names beyond are relative.
    default = ['gripper'] if step is None else []
    words = said.get('exclude_joints', data.get('relative_exclude_joints', default)) or []
    excluded = [str(word).lower() for word in words if word]
    width = ((data.get('output_features') or {}).get('action') or {}).get('shape', [0])[0]
    if not names:
        return (True,) * int(width or 32)  # LeRobot: all of them when it does not know the names
    mask = [not any(word in str(name).lower() for word in excluded) for name in names]
    return tuple(mask + [True] * (int(width or 0) - len(mask)))


def _steps(path: Path) -> list[dict]:
    """Return the steps of a processor's JSON; none where there is no such file."""
    if not path.is_file():
        return []
    steps = read_json(path).get('steps', [])
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise CheckpointError(f"{path}: 'steps' is no list of objects")
    return steps


def state_files(folder: Path) -> list[str]:
    """
    Return the files, beside them, in which the steps of LeRobot's processors keep their state.

    :raises CheckpointError: when a processor cannot be read or names a file elsewhere.
    """
    found = []
    for path in sorted(Path(folder).glob('policy_p*processor.json')):
        for step in _steps(path):
            name = step.get('state_file')
            if name and (not isinstance(name, str) or Path(name).name != name):
                raise CheckpointError(f'{path}: state_file {name!r} is no name of a file beside')
            found += [name] if name else []
    return found


def _step_name(step: Mapping) -> str:
    name = step.get('registry_name')
    kind = str(step.get('class', '')).rsplit('.', 1)[-1]
    return str(name or next((n for n, c in _STEP_CLASSES.items() if c == kind), kind))


def _step(steps, name: str) -> dict | None:
    return next((step for step in steps if _step_name(step) == name), None)


def _config(step: Mapping | None) -> Mapping:
    config = (step or {}).get('config')
    return config if isinstance(config, Mapping) else {}


def _norm_map(step: Mapping | None) -> Mapping:
    mapping = _config(step).get('norm_map')
    return mapping if isinstance(mapping, Mapping) else {}


def _strange_steps(steps) -> tuple[str, ...]:
    """Return a note about steps that pi0's own pipeline does not have and that are not run."""
    strange = [n for n in map(_step_name, steps) if n not in _HARMLESS_STEPS | set(_STEP_CLASSES)]
    if not strange:
        return ()
    return (
        f'its preprocessor has steps that pi0_ros does not run: {", ".join(strange)}; where they '
        "change pictures, state or text, the results are not its trainer's",
    )


def _renames(steps) -> dict[str, str]:
    """Return camera of the policy -> camera of the robot, from the renaming step."""
    renames = _config(_step(steps, 'rename_observations_processor')).get('rename_map') or {}
    if not isinstance(renames, dict) or not all(isinstance(new, str) for new in renames.values()):
        raise CheckpointError(f"policy_preprocessor.json: 'rename_map' is {renames!r:.60}")
    return {
        new.removeprefix(_IMAGE_PREFIX): old.removeprefix(_IMAGE_PREFIX)
        for old, new in renames.items()
    }


# --- helpers ---------------------------------------------------------------------------------


def _rank(slot: str) -> int:
    return CAMERA_SLOTS.index(slot) if slot in CAMERA_SLOTS else len(CAMERA_SLOTS)


def _object(data: Mapping, key: str, folder: Path) -> dict:
    """Return the object under a key; nothing is an empty one."""
    value = data.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise CheckpointError(f"{folder}/config.json: '{key}' is no object; it is {value!r:.60}")
    return value


def read_json(path: Path) -> dict:
    """
    Return the object that a JSON file holds.

    :raises CheckpointError: when it cannot be read, or holds something else.
    """
    try:
        data = json.loads(path.read_text(encoding='utf-8'))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f'{path}: not readable as JSON ({error})') from None
    if not isinstance(data, dict):
        raise CheckpointError(f'{path}: holds no JSON object')
    return data


def _has_weights(folder: Path) -> bool:
    names = ('model.safetensors', 'model.safetensors.index.json', 'params', 'params.npz')
    return any((folder / name).exists() for name in names)


def _policy_hint(folder: Path) -> str:
    try:
        names = ' '.join(map(_step_name, _steps(folder / 'policy_preprocessor.json')))
    except CheckpointError:
        return ''
    if 'smolvla' in names:
        return '; its processors are those of SmolVLA, not of pi0'
    if 'pi0_fast' in names:
        return f'; its processors are those of {_FAST}'
    return ''


def _what_file(path: Path) -> str:
    if path.suffix in ('.yaml', '.yml'):
        try:
            text = path.read_text(encoding='utf-8', errors='replace')
        except OSError:
            return 'YAML'
        if 'vision_type' in text:
            return 'a FlashRT configuration; the checkpoint itself decides its sizes'
        if 'dataset_repo_id' in text:
            return 'an old LeRobot policy configuration (hydra), which is not supported'
        return 'YAML'
    if path.name.endswith('norm_stats.json'):
        return "openpi's statistics; give them as statistics= beside a checkpoint"
    return path.suffix.lstrip('.') or 'no folder'


def match_cameras(
    seen: Mapping[str, str], own: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:  # fmt: skip
    """
    Return a robot's cameras for those of a checkpoint, and the checkpoint's that it lacks.

    A camera of the same name is the one. Otherwise the robot's camera of the same slot stands in;
    where other names are the same, only if the name itself is a slot's: then the rest of the
    names are known too, and their place in a list says nothing.

    :param seen: the checkpoint's, name -> slot, in the model's order.
    :param own: the robot's, name -> slot.
    :return: robot camera -> slot, in the model's order; names without one.
    """
    table: dict[str, str] = {}
    absent = []
    related = any(name in own for name in seen)
    for name, slot in seen.items():
        stand_in = [n for n, s in own.items() if s and s == slot and n not in seen]
        if name in own:
            table[name] = slot
        elif stand_in and (name in CAMERA_SLOTS or not related):
            table[stand_in[0]] = slot
        else:
            absent.append(name)
    return table, absent


def carried_over(info: CheckpointInfo) -> tuple[dict, dict | None]:
    """
    Return the pipeline section and the norm_stats of a checkpoint that keeps neither in a file.

    For converting LeRobot 0.1-0.3, whose statistics lie among the weights.
    """
    names = (
        'action_space', 'aloha', 'state_mode', 'action_mode', 'dialect', 'cameras', 'resize',
        'state_dim', 'action_dim', 'prompt_tokens', 'truncate',
    )  # fmt: skip
    pipeline = {name: getattr(info, name) for name in names if getattr(info, name) is not None}
    if info.cameras:
        pipeline['camera_order'] = list(info.cameras)
    if info.statistics is None:
        return pipeline, None
    return pipeline, {
        name: {key: np.asarray(values, dtype=float).reshape(-1).tolist()
               for key, values in group.items()}
        for name, group in info.statistics.items()
    }  # fmt: skip


def looks_relative(statistics: Mapping[str, Mapping]) -> bool:
    """
    Tell whether actions look like deltas: their means near 0 where the state's are far from it.

    A hint for warnings only; absolute targets follow the state's means.
    """
    state, actions = (statistics[name].get('mean') for name in ('state', 'actions'))
    if state is None or actions is None:
        return False
    try:
        state, actions = (np.abs(np.asarray(mean, float).reshape(-1)) for mean in (state, actions))
    except (TypeError, ValueError):
        return False  # no numbers; the normaliser says so
    n = min(len(state), len(actions))
    state, actions = state[:n], actions[:n]
    far = state > 0.2
    return bool(far.sum() >= 2 and np.median(actions[far] / state[far]) < 0.1)


def check_modes(info: CheckpointInfo, normalization: str | None) -> tuple[str, str]:
    """
    Return the modes of state and actions: the user's, the checkpoint's, or openpi's rule.

    openpi does not write the mode down: z-score for pi0, quantiles for the others.
    """
    if normalization is not None and normalization not in MODES:
        raise CheckpointError(
            f"normalization '{normalization}' is not known; expected one of {', '.join(MODES)}"
        )
    default = 'quantile' if info.kind == 'pi05' else 'zscore'
    state = normalization or info.state_mode or default
    actions = normalization or info.action_mode or default
    return state, actions
