# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
The whole pipeline: an observation in, a chunk of actions in the robot's space out.

Order, as openpi has it: state into pi's space -> normalise -> pad to 32 -> model -> undo the
normalisation -> add the state where actions are relative -> cut to the robot's joints -> back into
the robot's space. The state that is added is the decoded one of the observation that produced the
chunk, for every row.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from pi0_ros.errors import Pi0RosError
from pi0_ros.policy.aloha import (
    FLIPPED,
    AlohaAdapter,
    absolute_from_delta,
    delta_from_absolute,
)
from pi0_ros.policy.checkpoint import (
    ACTION_SPACES,
    ALOHA_DELTA_MASK,
    CheckpointError,
    check_modes,
    locate,
    looks_relative,
    match_cameras,
    read_checkpoint,
    read_statistics,
)
from pi0_ros.policy.images import model_input
from pi0_ros.policy.normalization import Normalizer, StatisticsError, live_width
from pi0_ros.policy.prompt import PALIGEMMA, PromptTokenizer, load_encoder
from pi0_ros.robot import CAMERA_SLOTS, RobotSpec

_log = logging.getLogger(__name__)

OPENPI_CAMERAS = dict(zip(('cam_high', 'cam_left_wrist', 'cam_right_wrist'), CAMERA_SLOTS))
"""openpi's names of ALOHA's cameras and their slots; cam_low is accepted and not used."""


OPENPI_WIDTH = 32
"""Width of openpi's states and actions inside of the model."""


class PolicyError(Pi0RosError):
    """An observation or an output that cannot be used."""


def noise_from_seed(seed: int, sequence: int, chunk: int, width: int) -> np.ndarray:
    """Return the noise of an inference, float32 [chunk, width], the same on every machine."""
    generator = np.random.Generator(np.random.PCG64([seed, sequence]))
    return generator.standard_normal((chunk, width), dtype=np.float32)


class Pi0Policy:
    """
    A checkpoint, ready to act. Make one with :meth:`from_pretrained`.

    Not thread-safe; every call belongs to one thread. ``chunk_size`` rows come out of
    :meth:`predict`, ``action_dim`` is the width of the noise that goes in.
    """

    def __init__(
        self, model, tokenizer: PromptTokenizer, state: Normalizer, actions: Normalizer, *,
        dof: int, cameras: Mapping[str, str], delta_mask=None, aloha: AlohaAdapter | None = None,
        resize: str = 'pillow', num_steps: int | None = None, seed: int = 0, prompt: str = '',
        info=None,
    ):  # fmt: skip
        self.model, self.tokenizer = model, tokenizer
        self.config = model.config
        self.chunk_size, self.action_dim = model.config.chunk, model.config.max_action_dim
        self.dof, self.cameras, self.prompt, self.info = dof, dict(cameras), prompt, info
        self._state, self._actions = state, actions
        self._delta_mask, self._aloha, self._resize = delta_mask, aloha, resize
        self._num_steps, self._seed, self._sequence = num_steps, seed, 0
        self._said: tuple = ((), ())  # cameras that were missing or not used, last time
        if dof > min(model.config.max_action_dim, model.config.max_state_dim):
            raise PolicyError(
                f'the robot has {dof} joints, the model takes {model.config.max_state_dim} and '
                f'gives {model.config.max_action_dim}'
            )
        self._log_setup()

    @classmethod
    def from_pretrained(
        cls, path, device: str = 'cpu', dtype: str = 'float32',
        robot: RobotSpec | str | None = None,
        no_normalization: bool = False, num_steps: int | None = None, *,
        action_space: str | None = None, aloha: str | None = None,
        normalization: str | None = None, statistics: str | None = None,
        asset_id: str | None = None, tokenizer: str | None = None, family: str | None = None,
        seed: int = 0,
    ) -> Pi0Policy:  # fmt: skip
        """
        Load a checkpoint of any known layout.

        Arguments after ``num_steps`` say what the checkpoint does not; where it does, it wins only
        if they are None.

        :param path: folder or hub id.
        :param device: torch's, or ``auto``: cuda where there is one.
        :param robot: decides joints and cameras, and is checked against the checkpoint.
        :param no_normalization: run without statistics; for checkpoints trained that way.
        :param num_steps: flow steps; None: the checkpoint's (10).
        :param action_space: ``absolute`` or ``delta`` (ALOHA's mask: joints, not grippers).
        :param aloha: generation of gripper constants (``openpi``, ``lerobot_old``) or ``off``.
        :param normalization: ``zscore``, ``quantile`` or ``identity``.
        :param statistics: another norm_stats.json, LeRobot's stats.json or episodes_stats.jsonl,
            or a LeRobot data set's folder; ``asset_id``: one of the checkpoint's own.
        :param tokenizer: folder, file or hub id; None: the checkpoint's, else PaliGemma's.
        :param family: whose arithmetic (Euler times, time embedding) applies.
        :param seed: of the noise where :meth:`predict` is given none.
        :raises Pi0RosError: whatever is missing or does not fit, with the remedy.
        """
        from pi0_ros.policy.convert import find_jax, open_source
        from pi0_ros.policy.model import Pi0Model

        robot = RobotSpec.load(robot) if isinstance(robot, str) else robot
        folder = locate(path)
        info = read_checkpoint(folder, asset_id)
        if find_jax(folder) is not None:
            raise CheckpointError(
                f"{folder} holds openpi's JAX parameters; convert them first: pi0_ros convert "
                f'{folder} NEW_FOLDER'
            )
        if info.assets and statistics is None and not no_normalization:
            raise CheckpointError(
                f'{folder} has statistics of several robots ({", ".join(info.assets)}); say which '
                'with asset_id'
            )
        config = open_source(folder, family=family or info.family).config
        info = replace(info, kind=config.kind)
        if statistics is not None:
            stats, task = read_statistics(statistics)
            info = replace(
                info, statistics=stats, statistics_source=str(statistics),
                prompt=info.prompt or task,
            )  # fmt: skip
        aloha = aloha or info.aloha
        dof = _dof(robot, info)
        if aloha is None and dof != 14:
            aloha = 'off'
        if aloha is None:
            raise CheckpointError(
                f"{folder} does not say whether it uses pi's ALOHA space; say aloha='openpi' "
                "(checkpoints since July 2025), 'lerobot_old', or 'off' (simulation)"
            )
        space = action_space or info.action_space
        if space not in ACTION_SPACES:
            said = f"'{space}' is not supported" if space else 'the checkpoint does not say'
            raise CheckpointError(
                f"{folder}: action space: {said}; say action_space='absolute' or 'delta' "
                "(openpi's pi0_aloha* configs train deltas, pi0_aloha_sim absolute targets)"
            )
        mask = None
        if space == 'delta':
            mask = info.delta_mask
            if mask is None and robot is not None:
                mask = tuple(i not in robot.gripper_indices for i in range(dof))
            if mask is None and dof == 14:
                mask = ALOHA_DELTA_MASK
            if mask is None:
                raise CheckpointError(
                    f'{folder}: actions are deltas, and it is not said which of {dof} are '
                    'grippers, which stay absolute; give a robot'
                )
        elif info.statistics is not None and looks_relative(info.statistics):
            _log.warning(
                'actions are taken as absolute, but their means are near 0 where those of the '
                "state are not; if they are relative, say action_space='delta'"
            )
        state, actions = _normalizers(info, normalization, no_normalization, dof)
        length = info.prompt_tokens or config.default_prompt_tokens
        encode = load_encoder(tokenizer or _own_tokenizer(folder) or info.tokenizer or PALIGEMMA)
        words = PromptTokenizer(
            encode, family or info.family, length, info.truncate, config.text.vocab
        )
        for note in info.notes:
            _log.warning('%s', note)
        model = Pi0Model.load(folder, config, _usable_device(device), dtype)
        return cls(
            model, words, state, actions, dof=dof, cameras=_camera_table(robot, info),
            delta_mask=mask, aloha=None if aloha == 'off' else AlohaAdapter(aloha),
            resize=info.resize, num_steps=num_steps, seed=seed, prompt=info.prompt, info=info,
        )  # fmt: skip

    @property
    def model(self):
        """The model, None once closed; on a GPU it runs as CUDA graphs (``accelerate.py``)."""
        return self._model

    @model.setter
    def model(self, model) -> None:
        from pi0_ros.policy.accelerate import Accelerated

        self._model = model
        self._sampler = None if model is None else Accelerated(model)

    @property
    def aloha_constants(self) -> str:
        """Generation of ALOHA's gripper constants in use, or 'off'."""
        return self._aloha.constants if self._aloha else 'off'

    # -- acting -------------------------------------------------------------------------------

    def predict(self, observation, noise=None, guidance=None) -> np.ndarray:
        """
        Return the next actions.

        :param observation: ``images`` (camera -> uint8 [H, W, 3] RGB), ``state`` [dof] in the
            robot's policy space, ``prompt``.
        :param noise: float [chunk, action_dim]; None: drawn from the seed, a new one each call.
        :param guidance: a ``Guidance`` with previous actions in the robot's action space.
        :return: float32 [chunk, dof] in the robot's action space.
        :raises Pi0RosError: the observation does not fit, or the output is not finite.
        """
        import torch

        if self.model is None:
            raise PolicyError('the policy is closed; load it again')
        base, state, tokens = self._inputs(observation)
        images, masks = self._pictures(observation.images)
        if noise is None:
            noise = noise_from_seed(self._seed, self._sequence, self.chunk_size, self.action_dim)
        self._sequence += 1
        noise = np.asarray(noise, dtype=np.float32)
        wanted = (self.chunk_size, self.action_dim)
        if noise.shape not in (wanted, (1, *wanted)):
            raise PolicyError(f'noise has shape {noise.shape}; the model takes {wanted}')
        noise = noise.reshape(wanted)
        padded = np.zeros((1, self.config.max_state_dim), dtype=np.float32)
        padded[0, : self.dof] = state
        if guidance is not None:
            guidance = guidance.with_actions(
                self._model_actions(guidance.previous_actions, base).astype(np.float32)
            )
        with torch.inference_mode(guidance is None or not guidance.full_jacobian), (
            torch.set_grad_enabled(guidance is not None and guidance.full_jacobian)
        ):
            out = self._sampler.sample_actions(
                images, masks,
                torch.from_numpy(tokens)[None],
                torch.ones(1, len(tokens), dtype=torch.bool),
                torch.from_numpy(padded), noise=torch.from_numpy(noise)[None],
                num_steps=self._num_steps or self.config.num_steps, guidance=guidance,
            )  # fmt: skip
        raw = out[0].detach().float().cpu().numpy()
        if not np.isfinite(raw).all():
            raise PolicyError(
                'the model returned NaN or infinity; the weights are damaged or the dtype is too '
                'narrow'
            )
        actions = self._actions.unnormalize(raw)[:, : self.dof]
        actions = absolute_from_delta(actions, base, self._delta_mask)
        if self._aloha is not None:
            actions = self._aloha.robot_actions_from_pi(actions)
        return actions.astype(np.float32)

    def warm_up(self) -> None:
        """
        Run on made-up input, so that the first real inference is as fast as the rest.

        On a GPU once for each number of cameras, so that losing one in motion records nothing.
        """
        from types import SimpleNamespace

        size = self.config.vision.image
        state = self._state.offset[: self.dof] if len(self._state.offset) else np.zeros(self.dof)
        if self._aloha is not None:
            state = np.full(self.dof, 0.5)
        names = list(self.cameras)
        fewest = len(names) if self._sampler.mode == 'eager' else 1
        for count in range(len(names), fewest - 1, -1):
            images = {name: np.zeros((size, size, 3), np.uint8) for name in names[:count]}
            self._said = tuple(names[count:]), ()  # left out on purpose
            prompt = self.prompt or 'warm up'
            self.predict(SimpleNamespace(images=images, state=state, prompt=prompt))
        self._said = (), ()
        self.reset()

    def reset(self) -> None:
        """Begin a new episode: the noise starts over."""
        self._sequence = 0

    def close(self) -> None:
        """Let the model's memory go."""
        self.model = None

    # -- inside -------------------------------------------------------------------------------

    def _inputs(self, observation) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the decoded state (the base of deltas), the normalised one, and the tokens."""
        state = np.asarray(observation.state, dtype=np.float64).reshape(-1)
        if len(state) != self.dof:
            raise PolicyError(f'the state has {len(state)} values, the policy takes {self.dof}')
        if not np.isfinite(state).all():
            raise PolicyError('the state has a value that is not finite')
        base = state if self._aloha is None else self._aloha.pi_state_from_robot(state)
        normal = self._state.normalize(base)
        text_state = normal if self.config.kind == 'pi05' else None
        return base, normal, self.tokenizer(observation.prompt or self.prompt, text_state)

    def _pictures(self, given: Mapping):
        """Return the model's pictures and masks in its order; absent cameras are left out."""
        import torch

        names = list(self.cameras)
        present = [name for name in names if name in given]
        absent = tuple(name for name in names if name not in given)
        unused = tuple(name for name in given if name not in names)
        if present and (absent, unused) != self._said:  # once, until it changes
            self._said = (absent, unused)
            if absent:
                _log.warning('no picture of %s; masked and left out', ', '.join(absent))
            if unused:
                _log.warning('the policy takes no picture of %s; not used', ', '.join(unused))
        if not present:
            raise PolicyError(
                f'no camera of the policy ({", ".join(names)}) is in the observation '
                f'({", ".join(given) or "none"})'
            )
        size = self.config.vision.image
        images = [model_input(given[n], size, self._resize)[None] for n in present]
        return images, [torch.ones(1, dtype=torch.bool)] * len(images)

    def _model_actions(self, actions, base: np.ndarray) -> np.ndarray:
        """Return robot actions [k, dof] in the model's space: the way of training."""
        actions = np.asarray(actions, dtype=np.float64)
        if actions.shape[-1] != self.dof:
            raise PolicyError(
                f'previous actions have {actions.shape[-1]} values a row, the policy takes '
                f'{self.dof}'
            )
        if self._aloha is not None:
            actions = self._aloha.pi_actions_from_robot(actions)
        return self._actions.normalize(delta_from_absolute(actions, base, self._delta_mask))

    def _log_setup(self) -> None:
        table = ', '.join(f'{name} -> {slot}' for name, slot in self.cameras.items())
        _log.info('cameras: %s', table)
        if self._aloha is None:
            _log.info("ALOHA adaptation off: joints and grippers are the data set's own")
        else:
            flips = ', '.join(map(str, FLIPPED))
            _log.info(
                'ALOHA adaptation on: joints %s negated, gripper constants %s',
                flips, self._aloha.constants,
            )  # fmt: skip
        what = 'absolute' if self._delta_mask is None else f'relative where {self._delta_mask}'
        _log.info('actions are %s; normalisation %s (%s)', what, self._actions.mode,
                  self._actions.dialect)  # fmt: skip


def from_parameters(parameters: Mapping) -> Pi0Policy:
    """
    Build a policy from a node's parameters; the default ``policy`` of ``policy_node``.

    :param parameters: ``checkpoint`` and any argument of :meth:`Pi0Policy.from_pretrained`; empty
        texts and zeros count as not given.
    """
    if not parameters.get('checkpoint'):
        raise CheckpointError("parameter 'checkpoint' is empty; give a folder or a hub id")
    names = (
        'device', 'dtype', 'robot', 'no_normalization', 'num_steps', 'action_space', 'aloha',
        'normalization', 'statistics', 'asset_id', 'tokenizer', 'family', 'seed',
    )  # fmt: skip
    given = {name: parameters[name] for name in names if parameters.get(name)}
    return Pi0Policy.from_pretrained(parameters['checkpoint'], **given)


def _dof(robot, info) -> int:
    widths = {
        'config.json': info.action_dim,
        'statistics': _width(info.statistics['actions']) if info.statistics else None,
    }
    if robot is not None:
        for said, what in ((info.action_dim, 'actions'), (info.state_dim, 'values of state')):
            if said is not None and said != robot.dof:
                raise CheckpointError(
                    f"{info.path}: the checkpoint has {said} {what}, robot '{robot.name}' has "
                    f'{robot.dof} joints'
                )
        return robot.dof
    known = next((w for w in widths.values() if w), None)
    if known is None:
        raise CheckpointError(
            f'{info.path} does not say for how many joints it is; give a robot'
        )
    return known


def _width(statistics: Mapping) -> int:
    """Return how many values statistics are for; 32 is a width to which openpi pads."""
    length = max((np.size(v) for v in statistics.values() if v is not None), default=0)
    return live_width(statistics) if length == OPENPI_WIDTH else length


def _normalizers(info, normalization, no_normalization: bool, dof: int):
    if no_normalization:
        identity = Normalizer('identity', info.dialect, np.zeros(0), np.ones(0))
        return identity, identity
    modes = check_modes(info, normalization)
    if info.statistics is None and modes != ('identity', 'identity'):
        raise StatisticsError(
            f'{info.path} has no statistics (norm_stats.json, or the file that its processor '
            'names); give them with statistics=, or say no_normalization if it was trained '
            'without'
        )
    statistics = info.statistics or {'state': {}, 'actions': {}}
    dialect = info.dialect
    try:
        return tuple(
            Normalizer.from_statistics(name, statistics[name], mode, dialect, dof)
            for name, mode in zip(('state', 'actions'), modes)
        )
    except StatisticsError as error:
        raise StatisticsError(f'{info.path}, {info.statistics_source}: {error}') from None


def _usable_device(name: str) -> str:
    """Return a device that torch has: ``auto`` is cuda where there is one."""
    import torch

    if name == 'auto':
        return 'cuda' if torch.cuda.is_available() else 'cpu'
    try:
        torch.empty(1, device=name)
    except (AssertionError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise PolicyError(
            f"device '{name}' cannot be used here ({reason}); say 'cpu', 'cuda' or 'auto'"
        ) from None
    return name


def _camera_table(robot, info) -> dict[str, str]:
    """Return robot camera -> slot of the cameras that the model sees, in its order."""
    if robot is None:
        return dict(info.cameras or OPENPI_CAMERAS)
    own = {name: camera.slot for name, camera in robot.cameras.items()}
    if info.cameras is None:
        return {n: slot for slot in CAMERA_SLOTS for n, s in own.items() if s == slot}
    table, absent = match_cameras(info.cameras, own)
    if not table:
        raise CheckpointError(
            f"{info.path} was trained with cameras {', '.join(info.cameras)}; robot "
            f"'{robot.name}' has {', '.join(own)}"
        )
    if absent:
        _log.warning(
            "the checkpoint was trained with cameras that robot '%s' lacks, and runs without: %s",
            robot.name, ', '.join(absent),
        )  # fmt: skip
    return table


def _own_tokenizer(folder):
    for name in ('tokenizer.json', 'tokenizer.model', 'paligemma_tokenizer.model'):
        if (folder / name).is_file():
            return str(folder / name)
    return None
