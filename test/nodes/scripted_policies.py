# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Policies for driving policy_node over real topics; no model.

Every factory reads its settings from the node's parameters, so that a test passes
``-p latency:=0.3`` like any other parameter. Calls are noted in the file ``journal`` (one JSON
object a line) when that parameter is given.
"""

from __future__ import annotations

import json
import threading
import time

import numpy as np


class Scripted:
    """Stays at the measured state; sleeps ``latency`` s from call ``slow_from`` on."""

    def __init__(self, parameters):
        self.parameters = parameters
        self.latency = float(parameters.get('latency', 0.0))
        self.rows = int(parameters.get('rows', 50))
        self.dt = 1.0 / float(parameters['policy_rate'])
        self.journal = parameters.get('journal')
        self.calls = 0
        self.note('construct')

    def note(self, what, **more):
        if self.journal:
            entry = {'what': what, 'thread': threading.get_ident(), **more}
            with open(self.journal, 'a', encoding='utf-8') as file:
                file.write(json.dumps(entry) + '\n')

    def warm_up(self):
        self.note('warm_up')

    def reset(self):
        self.note('reset')

    def close(self):
        self.note('close')

    def predict(self, observation, noise=None):
        self.calls += 1
        self.note(
            'predict',
            call=self.calls,
            prompt=observation.prompt,
            stamp_ns=observation.stamp_ns,
            state=[float(x) for x in observation.state],
            pixels={k: [int(x) for x in v[0, 0]] for k, v in observation.images.items()},
        )
        self.work()
        return self.actions(observation)

    def work(self):
        if self.latency and self.calls >= int(self.parameters.get('slow_from', 1)):
            time.sleep(self.latency)

    def actions(self, observation):
        return np.tile(observation.state, (self.rows, 1)).astype(np.float32)


class Ramp(Scripted):
    """Joint 0 of every chunk is 0, 0.001, 0.002, ... (field report B46); the others stay 0."""

    def actions(self, observation):
        chunk = np.zeros((self.rows, len(observation.state)), np.float32)
        chunk[:, 0] = 0.001 * np.arange(self.rows)
        return chunk


class Loading(Scripted):
    """Takes a minute to load."""

    def __init__(self, parameters):
        super().__init__(parameters)
        time.sleep(60.0)


class Numbered(Scripted):
    """Every row of chunk n holds n in joint 0, the prompt's length in joint 1."""

    def actions(self, observation):
        chunk = np.zeros((self.rows, len(observation.state)), np.float32)
        chunk[:, 0] = self.calls
        chunk[:, 1] = len(observation.prompt)
        return chunk


class ConstantVelocity(Scripted):
    """Goes on from the measured state at ``velocity`` rad/s in every arm joint."""

    def actions(self, observation):
        ahead = self.dt * np.arange(1, self.rows + 1)[:, None]
        speed = np.full(len(observation.state), float(self.parameters.get('velocity', 0.1)))
        return (observation.state + ahead * speed).astype(np.float32)


class Raising(Scripted):
    """Raises from call ``raise_from`` to call ``raise_to``."""

    def actions(self, observation):
        first = int(self.parameters.get('raise_from', 1))
        last = int(self.parameters.get('raise_to', 10**9))
        if first <= self.calls <= last:
            raise RuntimeError(f'scripted failure of call {self.calls}')
        return super().actions(observation)


class Malformed(Scripted):
    """A chunk with one NaN at row 30 in every call after the first."""

    def actions(self, observation):
        chunk = super().actions(observation)
        if self.calls > 1:
            chunk[30, 3] = np.nan
        return chunk


def not_a_policy(parameters):
    return object()


def exploding(parameters):
    raise MemoryError('no room for the weights')
