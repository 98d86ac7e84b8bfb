# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
The one thread that owns a policy: it constructs, warms up, asks, resets and closes it.

CUDA graphs, compiled models and many clients belong to the thread that made them, so nothing else
ever touches the object. Other threads post requests and read counters. Results come back through
``deliver``, called in this thread; those overtaken by a reset, a new prompt or a stop are dropped.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from pi0_ros.control.chunk import ActionChunk
from pi0_ros.control.stitching import DelayEstimate
from pi0_ros.errors import Pi0RosError

LOADING, READY, BUSY, FAILED, CLOSED = 'loading', 'ready', 'busy', 'failed', 'closed'


@dataclass(frozen=True)
class Job:
    """
    What one inference works on, taken when it begins.

    ``arguments`` are passed to ``predict`` by name beside the observation (noise, guidance);
    ``about`` to the :class:`ActionChunk` (its seed, the stamps of what it saw).
    """

    observation: object
    stamp_ns: int = 0
    observed_at: float = 0.0
    prompt: str = ''
    dt: float = 0.02
    frozen_rows: int | None = None
    arguments: Mapping[str, object] = field(default_factory=dict)
    about: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Failure:
    """An error as data: what happened, where, and how many times in a row."""

    message: str
    traceback: str
    in_a_row: int
    sequence: int


@dataclass(frozen=True)
class Statistics:
    """Counters since construction; durations [s] over the last 200 inferences."""

    state: str
    inferences: int
    dropped: int
    errors: int
    errors_in_a_row: int
    p50: float
    p99: float
    busy_for: float
    """How long the present inference has been running [s]; 0 when none is."""


class InferenceThread:
    """
    Runs a policy in a thread of its own.

    :param factory: makes the policy: an object with ``predict(observation, noise=None)`` and, if
        it has them, ``warm_up()``, ``reset()`` and ``close()``.
    :param observe: called in this thread when an inference begins, with its sequence number and
        the policy; returns the :class:`Job` with the newest observation, or None when there is
        none (it is asked again after the next ``request``).
    :param deliver: called in this thread with an :class:`ActionChunk` or a :class:`Failure`.
    :param dof: joints, the width of a chunk.
    """

    def __init__(
        self, factory: Callable[[], object], observe: Callable[[int, object], Job | None],
        deliver: Callable[[ActionChunk | Failure], None], dof: int, name: str = 'inference',
    ):  # fmt: skip
        self._factory, self._observe, self._deliver = factory, observe, deliver
        self._dof = dof
        self._changed = threading.Condition()
        self._state = LOADING
        self._requested = self._reset_posted = self._closing = False
        self._reset_due = False  # the last one failed; tried again before the next inference
        self._epoch = self._sequence = 0
        self._inferences = self._dropped = self._errors = self._in_a_row = 0
        self._durations: deque[float] = deque(maxlen=200)
        self._began: float | None = None
        self._failure: Failure | None = None
        self.delay = DelayEstimate()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    # -- any thread -----------------------------------------------------------------------------
    @property
    def state(self) -> str:
        """One of loading, ready, busy, failed, closed."""
        return self._state

    @property
    def failure(self) -> Failure | None:
        """Why the policy could not be made or warmed up; None otherwise."""
        return self._failure

    @property
    def epoch(self) -> int:
        """Grows with every ``invalidate``; a chunk of another epoch must not be used."""
        return self._epoch

    def wait_ready(self, timeout: float) -> bool:
        """Block up to ``timeout`` [s] until the policy is loaded or has failed to."""
        with self._changed:
            return self._changed.wait_for(lambda: self._state != LOADING, timeout)

    def request(self) -> None:
        """Ask for an inference; asking again before it begins changes nothing."""
        with self._changed:
            self._requested = True
            self._changed.notify_all()

    def invalidate(self, reset: bool = False) -> int:
        """
        Drop the result of whatever is running and any open request.

        :param reset: also let this thread call the policy's ``reset`` before its next inference.
        :return: the new epoch.
        """
        with self._changed:
            self._epoch += 1
            self._requested = False
            self._in_a_row = 0
            self._reset_posted = self._reset_posted or reset
            self._changed.notify_all()
            return self._epoch

    def close(self, timeout: float) -> bool:
        """
        End the thread; the policy is closed in it, at the latest when its present call returns.

        :return: False when it did not end within ``timeout`` [s].
        """
        with self._changed:
            self._closing = True
            self._epoch += 1
            self._changed.notify_all()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def statistics(self) -> Statistics:
        with self._changed:
            durations = list(self._durations)
            began = self._began
            p50, p99 = np.quantile(durations, [0.5, 0.99]) if durations else (0.0, 0.0)
            return Statistics(
                self._state, self._inferences, self._dropped, self._errors, self._in_a_row,
                float(p50), float(p99), 0.0 if began is None else time.monotonic() - began,
            )  # fmt: skip

    # -- this thread only -------------------------------------------------------------------------
    def _run(self) -> None:
        policy = None
        try:
            policy = self._factory()
            if not callable(getattr(policy, 'predict', None)):
                raise Pi0RosError(
                    f'the policy {type(policy).__name__} has no predict(observation, noise=None)'
                )
            warm_up = getattr(policy, 'warm_up', None)
            if warm_up:
                warm_up()
        except BaseException as error:  # SystemExit of a user's factory too: errors are data
            self._failure = Failure(_describe(error), traceback.format_exc(), 1, -1)
        self._set_state(READY if self._failure is None else FAILED)
        # Without a warm_up of its own the first call is the warm-up and no measure of the next.
        excluded = 0 if getattr(policy, 'warm_up', None) else 1
        while self._failure is None:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closing or self._reset_posted or self._requested
                )
                if self._closing:
                    break
                reset = self._reset_posted or (self._reset_due and self._requested)
                self._reset_posted = False
                requested, self._requested = self._requested, False
                epoch = self._epoch
                self._state = BUSY if requested else READY
            if reset and not self._reset(policy, epoch):
                continue
            if requested:
                excluded -= self._infer(policy, epoch, excluded > 0)
        if policy is not None:
            try:
                getattr(policy, 'close', lambda: None)()
            except BaseException as error:
                self._failure = Failure(_describe(error), traceback.format_exc(), 1, -1)
        self._set_state(FAILED if self._state == FAILED else CLOSED)

    def _infer(self, policy, epoch: int, warming: bool) -> int:
        """Run one inference; return 1 when it was one, 0 when there was nothing to work on."""
        sequence = self._sequence
        job = self._guard(lambda: self._observe(sequence, policy), epoch)
        if job is None:
            self._set_state(READY)
            return 0
        self._sequence += 1
        began = time.monotonic()
        with self._changed:
            self._began = began

        def predict() -> ActionChunk:
            actions = policy.predict(job.observation, **job.arguments)
            return ActionChunk.of(
                actions, self._dof, stamp_ns=job.stamp_ns, observed_at=job.observed_at,
                prompt=job.prompt, sequence=sequence, epoch=epoch, dt=job.dt,
                inference_s=time.monotonic() - began, frozen_rows=job.frozen_rows,
                **job.about,
            )  # fmt: skip

        chunk = self._guard(predict, epoch)
        took = time.monotonic() - began
        with self._changed:
            self._state, self._began = READY, None
            self._inferences += 1
            self._durations.append(took)
            if chunk is not None:
                self._in_a_row = 0
                if epoch != self._epoch:
                    self._dropped += 1
                    chunk = None
        if not warming:
            self.delay.add(took)
        if chunk is not None:
            self._deliver(chunk)
        return 1

    def _reset(self, policy, epoch: int) -> bool:
        """Reset the policy; False when it failed: not to be asked before that succeeds."""
        done = self._guard(lambda: (getattr(policy, 'reset', lambda: None)(), True)[1], epoch)
        with self._changed:
            self._reset_due = not done
            self._state = self._state if done else READY
        return bool(done)

    def _guard(self, call, epoch: int):
        """Return what ``call`` returns; an error is delivered as data and gives None."""
        try:
            return call()
        except BaseException as error:
            with self._changed:
                self._errors += 1
                if epoch != self._epoch:
                    return None
                self._in_a_row += 1
                failure = Failure(
                    _describe(error), traceback.format_exc(), self._in_a_row, self._sequence
                )
        self._deliver(failure)
        return None

    def _set_state(self, state: str) -> None:
        with self._changed:
            self._state = state
            self._changed.notify_all()


def _describe(error: BaseException) -> str:
    return f'{error}' if isinstance(error, Pi0RosError) else f'{type(error).__name__}: {error}'


def noise_for(seed: int, sequence: int, shape: tuple[int, ...]) -> np.ndarray:
    """
    Return the noise of the inference with this number, the same in every run and on replay.

    :return: float32 [*shape], standard normal.
    """
    return np.random.default_rng([seed, sequence]).standard_normal(shape, dtype=np.float32)
