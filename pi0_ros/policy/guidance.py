# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Real-time chunking: sampling guided towards what is left of the previous chunk.

After "Real-Time Execution of Action Chunking Flow Policies" (arXiv:2506.07339) and LeRobot's
implementation of it. The policy builds a ``Guidance`` in the robot's action space and hands the
model one in model space; the model calls ``correct`` in each flow step.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pi0_ros.errors import Pi0RosError

SCHEDULES = ('exp', 'linear', 'ones', 'zeros')
DEFAULT_MAX_WEIGHT = 10.0  # LeRobot's default cap
DEFAULT_HORIZON = 10  # LeRobot's default execution horizon, in steps


@dataclass(frozen=True)
class Guidance:
    """
    What the new chunk should agree with, and how strongly.

    :param previous_actions: float [k, d] (or [B, k, d]): the unexecuted rest of the previous
        chunk, its first row being the action due now. For ``Pi0Policy.predict`` in the robot's
        action space, for ``Pi0Model.sample_actions`` normalised. Steps beyond k and dimensions
        beyond d are not guided at all; nothing is padded with zeros.
    :param delay: inference delay in steps: so many first rows will be executed meanwhile
    :param execution_horizon: rows that the new chunk shares with the old one; cut to k
    :param schedule: how the weight falls between delay and horizon, one of ``SCHEDULES``
    :param max_weight: cap of the guidance weight, which grows without bound at both ends
    :param full_jacobian: take the vector-Jacobian product through the network, as published
        (about twice the time); False leaves the network's Jacobian out, as LeRobot does
    :raises Pi0RosError: a number or the schedule makes no sense
    """

    previous_actions: Any
    delay: int = 0
    execution_horizon: int = DEFAULT_HORIZON
    schedule: str = 'exp'
    max_weight: float = DEFAULT_MAX_WEIGHT
    full_jacobian: bool = False

    def __post_init__(self):
        """Refuse what cannot be meant."""
        if self.schedule not in SCHEDULES:
            raise Pi0RosError(
                f"guidance schedule '{self.schedule}' is not one of {', '.join(SCHEDULES)}"
            )
        if self.delay < 0 or self.execution_horizon < 0:
            raise Pi0RosError(
                f'guidance delay {self.delay} and execution_horizon {self.execution_horizon} '
                'must not be negative; give both in steps'
            )
        if not self.max_weight >= 0:
            raise Pi0RosError(f'guidance max_weight {self.max_weight} must be a number >= 0')

    def with_actions(self, previous_actions) -> Guidance:
        """Return the same guidance towards other actions (for a change of space)."""
        return dataclasses.replace(self, previous_actions=previous_actions)


def prefix_weights(delay: int, horizon: int, chunk: int, schedule: str) -> list[float]:
    """
    Return the weight of each of the chunk's steps, 1 at the executed end and 0 past the horizon.

    :param delay: steps with weight 1; cut to the horizon
    :param horizon: first step with weight 0
    :param chunk: length of the result
    :param schedule: 'ones' up to the horizon, 'zeros' past the delay, 'linear', or 'exp':
        w * (e^w - 1) / (e - 1) of the linear weight
    """
    horizon = min(horizon, chunk)
    delay = min(delay, horizon)
    ramp = horizon - delay
    weights = []
    for step in range(chunk):
        if step < delay:
            weight = 1.0
        elif step >= horizon or schedule == 'zeros':
            weight = 0.0
        elif schedule == 'ones':
            weight = 1.0
        else:
            weight = (horizon - step) / (ramp + 1)
            if schedule == 'exp':
                weight *= math.expm1(weight) / math.expm1(1.0)
        weights.append(weight)
    return weights


def guidance_weight(time: float, max_weight: float) -> float:
    """
    Return the scalar weight of the correction at flow time t (1 is noise, 0 is data).

    With tau = 1 - t and r^2 = (1 - tau)^2 / ((1 - tau)^2 + tau^2): (1 - tau) / (tau r^2), at most
    ``max_weight``.
    """
    tau = 1.0 - time
    if tau <= 0.0 or time <= 0.0:
        return max_weight
    return min(max_weight, (time / tau) * (time * time + tau * tau) / (time * time))


class ModelGuidance:
    """A ``Guidance`` laid out for one batch in the model's space, as tensors."""

    def __init__(self, guidance: Guidance, batch: int, chunk: int, action_dim: int, device):
        """
        Check shapes and lay out target and weights.

        :raises Pi0RosError: the previous actions fit neither the batch nor the action size
        """
        import torch

        actions = torch.as_tensor(guidance.previous_actions, dtype=torch.float32, device=device)
        if actions.ndim == 2:
            actions = actions[None].expand(batch, -1, -1)
        if actions.ndim != 3 or actions.shape[0] != batch or actions.shape[2] > action_dim:
            raise Pi0RosError(
                f'guidance previous_actions have shape {tuple(actions.shape)}; the model takes '
                f'[{batch}, k, up to {action_dim}]'
            )
        if not bool(torch.isfinite(actions).all()):
            raise Pi0RosError('guidance previous_actions hold NaN or infinity; drop the guidance')
        left = min(actions.shape[1], chunk)
        dims = actions.shape[2]
        horizon = min(guidance.execution_horizon, left)
        weights = prefix_weights(guidance.delay, horizon, chunk, guidance.schedule)
        self.guidance = guidance
        self.target = torch.zeros(batch, chunk, action_dim, device=device)
        self.target[:, :left, :dims] = actions[:, :left]
        self.weights = torch.zeros(1, chunk, action_dim, device=device)
        self.weights[0, :, :dims] = torch.tensor(weights, device=device)[:, None]

    def velocity(self, x, time: float, velocity: Callable):
        """
        Return the guided velocity.

        :param x: float32 [B, chunk, action_dim], the flow state
        :param time: flow time of x
        :param velocity: function of x; differentiable if the full Jacobian is asked for
        """
        import torch

        weight = guidance_weight(time, self.guidance.max_weight)
        if not self.guidance.full_jacobian:
            v = velocity(x)
            return v - weight * ((self.target - (x - time * v)) * self.weights)
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            v = velocity(x)
            clean = x - time * v
            error = ((self.target - clean) * self.weights).detach()
            (correction,) = torch.autograd.grad(clean, x, error)
        return v.detach() - weight * correction
