# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""One thread owns the policy; results that were overtaken never come out."""

import threading
import time

import numpy as np
import pytest

from pi0_ros.control import ActionChunk, Failure, InferenceThread, Job, noise_for

BOUND = 5.0
DOF = 2


class Policy:
    """Notes the thread of every call; waits for ``go`` in predict when it is given one."""

    def __init__(self, go=None, answer=None):
        self.calls = [('construct', threading.get_ident())]
        self.seen = []
        self.go, self.entered = go, threading.Event()
        self.answer = answer

    def note(self, what):
        self.calls.append((what, threading.get_ident()))

    def warm_up(self):
        self.note('warm_up')

    def predict(self, observation, noise=None):
        self.note('predict')
        self.seen.append(observation)
        self.entered.set()
        if self.go is not None:
            assert self.go.wait(BOUND)
        if self.answer is not None:
            return self.answer(len(self.seen))
        return np.full((5, DOF), float(observation))

    def reset(self):
        self.note('reset')

    def close(self):
        self.note('close')


class Rig:
    """An inference thread whose outcomes are collected and can be waited for."""

    def __init__(self, factory, observe=None):
        self.outcomes, self.arrived = [], threading.Condition()
        self.newest = 0
        self.thread = InferenceThread(
            factory, observe or (lambda sequence, policy: Job(self.newest)), self._deliver, DOF
        )

    def _deliver(self, outcome):
        with self.arrived:
            self.outcomes.append(outcome)
            self.arrived.notify_all()

    def wait(self, count):
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.outcomes) >= count, BOUND)
        return self.outcomes

    def until(self, condition):
        deadline = time.monotonic() + BOUND
        pause = threading.Event()
        while not condition():
            assert time.monotonic() < deadline, 'condition not met in time'
            pause.wait(0.002)


@pytest.fixture()
def rig():
    rigs = []

    def make(*args, **kwargs):
        rigs.append(Rig(*args, **kwargs))
        return rigs[-1]

    yield make
    for each in rigs:
        each.thread.close(BOUND)


def test_every_call_of_the_policy_comes_from_one_thread(rig):
    made = []
    r = rig(lambda: made.append(Policy()) or made[0])
    assert r.thread.wait_ready(BOUND)
    r.thread.request()
    r.wait(1)
    r.thread.invalidate(reset=True)
    r.thread.request()
    r.wait(2)
    assert r.thread.close(BOUND)
    names = [name for name, _ in made[0].calls]
    assert names == ['construct', 'warm_up', 'predict', 'reset', 'predict', 'close']
    idents = {ident for _, ident in made[0].calls}
    assert len(idents) == 1 and threading.get_ident() not in idents


def test_b11_an_inference_takes_the_newest_observation_when_it_begins(rig):
    go = threading.Event()
    policy = Policy(go)
    r = rig(lambda: policy)
    r.newest = 1
    r.thread.request()
    assert policy.entered.wait(BOUND)
    for newest in range(2, 50):  # a backlog that must not be worked through
        r.newest = newest
        r.thread.request()
    go.set()
    r.wait(2)
    assert policy.seen == [1, 49]


@pytest.mark.parametrize('reset', [False, True])
def test_result_overtaken_by_a_prompt_or_reset_is_dropped(rig, reset):
    go = threading.Event()
    policy = Policy(go)
    r = rig(lambda: policy)
    r.newest = 7
    r.thread.request()
    assert policy.entered.wait(BOUND)
    r.thread.invalidate(reset=reset)
    go.set()
    r.newest = 8
    r.thread.request()
    (chunk,) = r.wait(1)
    assert chunk.actions[0, 0] == 8.0 and chunk.epoch == r.thread.epoch
    assert r.thread.statistics().dropped == 1


def test_sequence_numbers_grow_over_dropped_results(rig):
    r = rig(Policy)
    for expected in range(3):
        r.thread.request()
        assert r.wait(expected + 1)[-1].sequence == expected


def test_without_an_observation_nothing_is_asked_and_no_number_is_used(rig):
    policy, jobs, numbers = Policy(), [None, None, Job(3)], []

    def observe(sequence, _):
        numbers.append(sequence)
        return jobs.pop(0)

    r = rig(lambda: policy, observe)
    for asked in (1, 2, 3):
        r.thread.request()
        r.until(lambda asked=asked: len(numbers) == asked)
    assert r.wait(1)[0].sequence == 0
    assert numbers == [0, 0, 0] and policy.seen == [3]


def test_b37_errors_are_data_and_the_thread_lives(rig):
    def answer(call):
        if call in (2, 3):
            raise RuntimeError(f'boom {call}')
        return np.zeros((3, DOF))

    r = rig(lambda: Policy(answer=answer))
    for count in range(1, 5):
        r.thread.request()
        r.wait(count)
    kinds = [type(outcome) for outcome in r.outcomes]
    assert kinds == [ActionChunk, Failure, Failure, ActionChunk]
    assert [r.outcomes[1].in_a_row, r.outcomes[2].in_a_row] == [1, 2]
    assert r.outcomes[1].message == 'RuntimeError: boom 2'
    assert 'in answer' in r.outcomes[1].traceback
    statistics = r.thread.statistics()
    assert (statistics.errors, statistics.errors_in_a_row) == (2, 0)


@pytest.mark.parametrize(
    'bad',
    [
        np.zeros((50, 13)), np.zeros((0, DOF)), np.zeros(DOF), np.full((4, DOF), None),
        np.array([[0.0, 0.0], [np.nan, 0.0]]),
    ],
)  # fmt: skip
def test_b47_a_bad_chunk_is_an_error_and_nothing_of_it_comes_out(rig, bad):
    r = rig(lambda: Policy(answer=lambda call: bad))
    r.thread.request()
    (outcome,) = r.wait(1)
    assert isinstance(outcome, Failure) and 'the policy returned' in outcome.message


def test_b37_a_policy_whose_reset_fails_is_not_asked_before_it_succeeds(rig):
    """Its state belongs to another episode until then; each try counts as an error in a row."""

    class Stubborn(Policy):
        failures = 2

        def reset(self):
            self.note('reset')
            if self.failures:
                self.failures -= 1
                raise RuntimeError('reset failed')

    policy = Stubborn()
    r = rig(lambda: policy)
    r.thread.invalidate(reset=True)
    assert r.wait(1)[0].message == 'RuntimeError: reset failed'
    r.thread.request()
    assert r.wait(2)[1].in_a_row == 2 and policy.seen == []
    r.thread.request()
    assert isinstance(r.wait(3)[2], ActionChunk)
    r.thread.request()
    r.wait(4)
    assert [what for what, _ in policy.calls].count('reset') == 3


def test_system_exit_of_a_policy_does_not_kill_the_thread(rig):
    def answer(call):
        raise SystemExit(3)

    r = rig(lambda: Policy(answer=answer))
    for count in (1, 2):
        r.thread.request()
        assert isinstance(r.wait(count)[-1], Failure)


def test_errors_of_the_observation_are_delivered_too(rig):
    def observe(sequence, policy):
        raise ValueError('bad frame')

    r = rig(Policy, observe)
    r.thread.request()
    assert r.wait(1)[0].message == 'ValueError: bad frame'


@pytest.mark.parametrize('stage', ['construct', 'warm_up', 'no predict'])
def test_policy_that_cannot_be_loaded_is_a_named_failure(rig, stage):
    class Broken(Policy):
        def __init__(self):
            if stage == 'construct':
                raise MemoryError('the card is full')
            super().__init__()

        def warm_up(self):
            raise MemoryError('the card is full')

    r = rig(object if stage == 'no predict' else Broken)
    assert r.thread.wait_ready(BOUND)
    said = 'has no predict' if stage == 'no predict' else 'the card is full'
    assert said in r.thread.failure.message
    assert r.thread.close(BOUND) and r.thread.state == 'failed'


def test_b38_close_is_bounded_while_the_policy_is_busy(rig):
    go = threading.Event()
    policy = Policy(go)
    r = rig(lambda: policy)
    r.thread.request()
    assert policy.entered.wait(BOUND)
    assert not r.thread.close(0.05)  # bounded, and honest about it
    go.set()
    assert r.thread.close(BOUND)
    assert r.outcomes == []  # nothing is delivered after close
    assert policy.calls[-1][0] == 'close'


def test_b41_warm_up_is_no_measure_of_the_delay(rig):
    class NoWarmUp:
        def predict(self, observation, noise=None):
            return np.zeros((3, DOF))

    r = rig(NoWarmUp)
    r.thread.request()
    r.wait(1)
    assert r.thread.delay.seconds == 0.0  # the first call of a policy without warm_up
    r.thread.request()
    r.wait(2)
    assert r.thread.delay.seconds > 0.0


def test_noise_repeats_for_a_seed_and_number_and_differs_between_numbers():
    first = noise_for(3, 5, (50, 32))
    np.testing.assert_array_equal(first, noise_for(3, 5, (50, 32)))
    assert first.dtype == np.float32
    assert abs(np.corrcoef(first.ravel(), noise_for(3, 6, (50, 32)).ravel())[0, 1]) < 0.1
    assert abs(np.corrcoef(first.ravel(), noise_for(4, 5, (50, 32)).ravel())[0, 1]) < 0.1
