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
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pi0_ros.errors import Pi0RosError
from pi0_ros.policy import weights
from pi0_ros.policy.aloha import make_bool_mask
from pi0_ros.policy.normalization import MODES
from pi0_ros.robot import CAMERA_SLOTS

LAYOUTS = ('pi0_ros', 'lerobot', 'lerobot_old', 'openpi', 'transformers')
ACTION_SPACES = ('absolute', 'delta')
ALOHA_DELTA_MASK = make_bool_mask(6, -1, 6, -1)
"""openpi's: joints relative to the state, grippers absolute."""

_MODE_OF = {'MEAN_STD': 'zscore', 'QUANTILES': 'quantile', 'IDENTITY': 'identity'}
_IMAGE_PREFIX = 'observation.images.'
_log = logging.getLogger(__name__)


class CheckpointError(Pi0RosError):
    """A folder that cannot be run; says what it is, what is missing and the remedy."""


@dataclass(frozen=True)
class CheckpointInfo:
    """
    A checkpoint's own words; None where it does not say.

    ``cameras``: camera or feature name -> slot. ``statistics``: ``state`` and ``actions`` ->
    arrays by ``mean``, ``std``, ``q01``, ``q99``. ``aloha``: constants' generation, or ``off``.
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
    prompt: str = ''
    notes: tuple[str, ...] = field(default_factory=tuple)


def locate(path_or_hub_id: str) -> Path:
    """
    Return the folder of a checkpoint, downloading it from the hub when it is no local one.

    :raises CheckpointError: when there is no such folder or repository, or it is something else.
    """
    text = str(path_or_hub_id)
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
    data = _json(path) if path.is_file() else {}
    kind = data.get('type')
    if data.get('format') == 'pi0_ros':
        return _own(folder, data, asset_id)
    if kind is not None:
        if kind not in ('pi0', 'pi05'):
            raise CheckpointError(f"{folder} is a checkpoint of policy '{kind}', not of pi0")
        if (folder / 'policy_preprocessor.json').is_file():
            return _lerobot(folder, data)
        return _lerobot_old(folder, data)
    if str(data.get('model_type', '')).startswith('pi0'):
        return _with_openpi_statistics(
            CheckpointInfo(folder, 'transformers', 'pi0', 'transformers'), asset_id
        )
    if 'model_type' in data or 'architectures' in data:
        what = data.get('model_type') or data['architectures']
        raise CheckpointError(f"{folder} is a model of type '{what}', not pi0")
    if (folder / 'policy_preprocessor.json').is_file():
        raise CheckpointError(
            f'{folder} has processor files but no config.json; it is not complete'
            f'{_policy_hint(folder)}'
        )
    if (folder / 'meta' / 'info.json').is_file():
        version = _json(folder / 'meta' / 'info.json').get('codebase_version', 'of some version')
        raise CheckpointError(
            f'{folder} is a LeRobot data set ({version}), no pi0 checkpoint; give the folder of a '
            'policy trained on it'
        )
    if not _has_weights(folder):
        raise CheckpointError(
            f'{folder} holds no pi0 checkpoint: neither config.json nor model.safetensors'
        )
    return _with_openpi_statistics(CheckpointInfo(folder, 'openpi', None, 'openpi'), asset_id)


# --- layouts ---------------------------------------------------------------------------------


def _own(folder: Path, data: dict, asset_id: str | None) -> CheckpointInfo:
    model = data.get('model', {})
    pipeline = data.get('pipeline', {})
    unknown = set(pipeline) - {
        'action_space', 'delta_mask', 'aloha', 'state_mode', 'action_mode', 'dialect', 'cameras',
        'resize', 'state_dim', 'action_dim', 'prompt_tokens', 'prompt',
    }  # fmt: skip
    if unknown:
        raise CheckpointError(f'{folder}/config.json: unknown keys in pipeline: {sorted(unknown)}')
    if not pipeline and (folder / 'policy_preprocessor.json').is_file():
        return _lerobot(folder, data)  # converted from LeRobot: its processors came along
    values = dict(pipeline)
    if values.get('delta_mask') is not None:
        values['delta_mask'] = tuple(bool(v) for v in values['delta_mask'])
    family = model.get('family', 'lerobot')
    info = CheckpointInfo(folder, 'pi0_ros', model.get('kind'), family, **values)
    return _with_openpi_statistics(info, asset_id)


def _lerobot(folder: Path, data: dict) -> CheckpointInfo:
    """LeRobot from 0.4 on: statistics in a file that the processor's JSON names."""
    steps = _json(folder / 'policy_preprocessor.json').get('steps', [])
    step = _step(steps, 'normalizer_processor')
    modes = data.get('normalization_mapping') or (step or {}).get('config', {}).get('norm_map', {})
    statistics, source = None, ''
    if step is not None and step.get('state_file'):
        source = step['state_file']
        statistics = _tensor_statistics(folder / source)
        statistics['actions'] = _output_statistics(folder, statistics['actions'])
    relative = bool(data.get('use_relative_actions', False))
    return CheckpointInfo(
        folder, 'lerobot', data.get('type'), 'lerobot',
        action_space='delta' if relative else 'absolute',
        delta_mask=_relative_mask(data) if relative else None,
        aloha='off', dialect='lerobot', statistics=statistics, statistics_source=source,
        resize='torch', **_features(data, folder, _renames(steps)), **_modes(modes, folder),
        prompt_tokens=data.get('tokenizer_max_length'),
    )  # fmt: skip


def _lerobot_old(folder: Path, data: dict) -> CheckpointInfo:
    """LeRobot 0.1 to 0.3: statistics among the weights, ALOHA adaptation by two flags."""
    features = data.get('input_features', {})
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
        dialect='lerobot', statistics=statistics or None,
        statistics_source='buffers among the weights' if statistics else '',
        resize='torch_left_top', **_features(data, folder),
        **_modes(data.get('normalization_mapping', {}), folder),
        prompt_tokens=data.get('tokenizer_max_length'),
    )  # fmt: skip


def _with_openpi_statistics(info: CheckpointInfo, asset_id: str | None) -> CheckpointInfo:
    """Add ``norm_stats.json`` (beside the weights or in assets/<id>/) to what is known."""
    from dataclasses import replace

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
        raise CheckpointError(
            f'{info.path} has statistics of several robots ({", ".join(found)}); say which with '
            'asset_id'
        )
    elif found:
        path = next(iter(found.values()))
    else:
        return info
    return replace(
        info, statistics=read_norm_stats(path), statistics_source=str(path.relative_to(info.path))
    )


# --- statistics ------------------------------------------------------------------------------


def read_norm_stats(path: Path) -> dict[str, dict]:
    """
    Read openpi's ``norm_stats.json``.

    :raises CheckpointError: when it is none, or lacks state or actions.
    """
    data = _json(path)
    stats = data.get('norm_stats', data)
    result = {}
    for name in ('state', 'actions'):
        if not isinstance(stats.get(name), dict):
            have = ', '.join(map(str, stats)) or 'nothing'
            raise CheckpointError(f"{path}: statistics of '{name}' are missing (it has {have})")
        result[name] = stats[name]
    return result


def _tensor_statistics(path: Path, needed=('state', 'actions')) -> dict[str, dict]:
    if not path.is_file():
        raise CheckpointError(
            f'{path.parent}: the processor names {path.name} for its statistics; it is missing'
        )
    from safetensors.numpy import load_file

    return _sorted_statistics(load_file(str(path)), str(path), needed)


def _buffer_statistics(folder: Path) -> dict[str, dict]:
    """Collect LeRobot's normalisation buffers from the weights' files."""
    from safetensors import safe_open

    wanted = {
        'normalize_inputs.buffer_observation_state.': 'state',
        'unnormalize_outputs.buffer_action.': 'actions',
    }
    result: dict[str, dict] = {}
    for file in weights.find_files(folder):
        with safe_open(str(file), 'np') as tensors:
            for key in tensors.keys():
                for prefix, name in wanted.items():
                    if key.removeprefix('model.').startswith(prefix):
                        statistic = key.rsplit('.', 1)[1]
                        result.setdefault(name, {})[statistic] = tensors.get_tensor(key)
    return result


def _sorted_statistics(
    tensors: Mapping[str, np.ndarray], source: str, needed
) -> dict[str, dict]:  # fmt: skip
    result: dict[str, dict] = {'state': {}, 'actions': {}}
    for key, value in tensors.items():
        feature, _, statistic = key.rpartition('.')
        name = {'observation.state': 'state', 'action': 'actions'}.get(feature)
        if name and statistic in ('mean', 'std', 'q01', 'q99', 'min', 'max'):
            result[name][statistic] = value
    for name, feature in (('state', 'observation.state'), ('actions', 'action')):
        if name in needed and not result[name]:
            raise CheckpointError(
                f"{source}: statistics of '{feature}' are missing (it has "
                f'{", ".join(sorted(tensors)[:6]) or "nothing"})'
            )
    return result


# --- LeRobot's config ------------------------------------------------------------------------


def _features(data: dict, folder: Path, renames: Mapping[str, str] | None = None) -> dict:
    inputs, outputs = data.get('input_features') or {}, data.get('output_features') or {}
    names = [key.removeprefix(_IMAGE_PREFIX) for key in inputs if key.startswith(_IMAGE_PREFIX)]
    names = [name for name in names if not name.startswith('empty_camera')]
    if len(names) > len(CAMERA_SLOTS):
        raise CheckpointError(
            f'{folder} was trained with {len(names)} cameras ({", ".join(names)}); at most '
            f'{len(CAMERA_SLOTS)} are supported'
        )
    cameras = None
    if names:
        if set(names) <= set(CAMERA_SLOTS):
            cameras = {name: name for name in CAMERA_SLOTS if name in names}
        else:
            cameras = dict(zip(names, CAMERA_SLOTS))
        cameras = {(renames or {}).get(name, name): slot for name, slot in cameras.items()}
    width = {
        key: (feature or {}).get('shape', [None])[0]
        for key, feature in (('state_dim', inputs.get('observation.state')),
                             ('action_dim', outputs.get('action')))
    }  # fmt: skip
    return {'cameras': cameras, **width}


def _modes(mapping: Mapping, folder: Path) -> dict:
    modes = {}
    for key, name in (('STATE', 'state_mode'), ('ACTION', 'action_mode')):
        word = mapping.get(key)
        if word is not None and word not in _MODE_OF:
            raise CheckpointError(
                f'{folder}: normalisation {word} of {key} is not supported; '
                f'expected one of {", ".join(_MODE_OF)}'
            )
        modes[name] = _MODE_OF.get(word)
    return modes


def _relative_mask(data: dict) -> tuple[bool, ...] | None:
    names = data.get('action_feature_names')
    # LeRobot's default and comparison: letters' case does not count, names beyond are relative.
    words = data.get('relative_exclude_joints', ['gripper']) or []
    excluded = [str(word).lower() for word in words if word]
    width = ((data.get('output_features') or {}).get('action') or {}).get('shape', [0])[0]
    if not names:
        return (True,) * int(width or 32)  # LeRobot: all of them when it does not know the names
    mask = [not any(word in str(name).lower() for word in excluded) for name in names]
    return tuple(mask + [True] * (int(width or 0) - len(mask)))


def _step(steps, name: str) -> dict | None:
    return next((step for step in steps if step.get('registry_name') == name), None)


def _renames(steps) -> dict[str, str]:
    """Return camera of the policy -> camera of the robot, from the renaming step."""
    step = _step(steps, 'rename_observations_processor') or {}
    return {
        new.removeprefix(_IMAGE_PREFIX): old.removeprefix(_IMAGE_PREFIX)
        for old, new in ((step.get('config') or {}).get('rename_map') or {}).items()
    }


def _output_statistics(folder: Path, otherwise: Mapping) -> Mapping:
    """Return what LeRobot undoes the actions' normalisation with: the postprocessor's file."""
    path = folder / 'policy_postprocessor.json'
    if not path.is_file():
        return otherwise
    step = _step(_json(path).get('steps', []), 'unnormalizer_processor')
    if step is None or not step.get('state_file'):
        return otherwise
    return _tensor_statistics(folder / step['state_file'], ('actions',))['actions']


# --- helpers ---------------------------------------------------------------------------------


def _json(path: Path) -> dict:
    try:
        data = json.loads(path.read_text(encoding='utf-8'))
    except (OSError, ValueError) as error:
        raise CheckpointError(f'{path}: not readable as JSON ({error})') from None
    if not isinstance(data, dict):
        raise CheckpointError(f'{path}: holds no JSON object')
    return data


def _has_weights(folder: Path) -> bool:
    names = ('model.safetensors', 'model.safetensors.index.json', 'params', 'params.npz')
    return any((folder / name).exists() for name in names)


def _policy_hint(folder: Path) -> str:
    try:
        steps = _json(folder / 'policy_preprocessor.json').get('steps', [])
    except CheckpointError:
        return ''
    for step in steps:
        name = str(step.get('registry_name', ''))
        if 'smolvla' in name:
            return '; its processors are those of SmolVLA, not of pi0'
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
    return path.suffix.lstrip('.') or 'no folder'


def carried_over(info: CheckpointInfo) -> tuple[dict, dict | None]:
    """
    Return the pipeline section and the norm_stats of a checkpoint that keeps neither in a file.

    For converting LeRobot 0.1-0.3, whose statistics lie among the weights.
    """
    names = (
        'action_space', 'aloha', 'state_mode', 'action_mode', 'dialect', 'cameras', 'resize',
        'state_dim', 'action_dim', 'prompt_tokens',
    )  # fmt: skip
    pipeline = {name: getattr(info, name) for name in names if getattr(info, name) is not None}
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
    n = min(len(state), len(actions))
    state, actions = np.abs(np.asarray(state[:n], float)), np.abs(np.asarray(actions[:n], float))
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
