# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""The same scenarios for every stitcher: constant velocity, noisy chunks, jittering latency."""

import numpy as np
import pytest

from pi0_ros.control import (
    STITCHERS,
    ActionChunk,
    Blend,
    ChunkExecutor,
    RealTimeChunking,
    Switch,
    make_stitcher,
)
from pi0_ros.errors import Pi0RosError
from pi0_ros.policy.guidance import prefix_weights

RATE = 50.0
DT = 1.0 / RATE
VELOCITY = 0.5  # rad/s
ROWS = 50


def guided(rows, upcoming, delay):
    """What a guided policy does, in one line: agree with the old rows as the mask demands."""
    overlap = min(len(upcoming), len(rows))
    weight = np.array(prefix_weights(delay, overlap, len(rows), 'exp'))[:, None]
    old = np.vstack([upcoming[:overlap], rows[overlap:]])
    return weight * old + (1.0 - weight) * rows


class World:
    """
    An arm that follows its setpoints, a policy that sees where it stands, a clock.

    Chunks go on from the arm's own position at the observation with VELOCITY, wrong by a bias of
    each chunk and by noise of each row.
    """

    def __init__(self, stitcher, seed=0, bias=0.0, noise=0.0, latency=(0.05, 0.25)):
        self.rng = np.random.default_rng(seed)
        self.executor = ChunkExecutor(1, RATE, RATE, stitcher)
        self.bias, self.noise, self.latency = bias, noise, latency
        self.sent, self.seams, self.inside = [], [], []

    def position(self, time):
        if not self.sent:
            return 0.0
        return float(
            np.interp(time, [s.due for s in self.sent], [s.positions[0] for s in self.sent])
        )

    def run(self, seconds):
        now, sequence, pending = 0.0, 0, None
        executor = self.executor
        for now in np.arange(round(seconds * 250)) / 250:
            if pending is None and executor.wants_chunk(0.25):
                observed = now - self.rng.uniform(0.001, 0.033)
                upcoming = executor.upcoming(observed)
                frozen = None
                rows = self.position(observed) + VELOCITY * DT * np.arange(1, ROWS + 1)
                rows = rows + self.rng.normal(0, self.bias) + self.rng.normal(0, self.noise, ROWS)
                rows = rows[:, None]
                if executor.stitcher.wants_guidance and len(upcoming):
                    frozen = min(executor.delay_rows(observed, 0.25), len(upcoming))
                    rows = guided(rows, upcoming, frozen)
                chunk = ActionChunk.of(
                    rows, 1, sequence=sequence, observed_at=observed, frozen_rows=frozen
                )
                pending = (now + self.rng.uniform(*self.latency), chunk)
                sequence += 1
            if pending is not None and now >= pending[0]:
                executor.install(pending[1], now)
                pending = None
            self.sent += executor.poll(now)
        return self

    def steps(self):
        """Return (steps at seams, steps inside chunks)."""
        values = np.array([s.positions[0] for s in self.sent])
        sequence = np.array([s.sequence for s in self.sent])
        steps = np.diff(values)
        seam = np.diff(sequence) > 0
        return steps[seam], steps[~seam]


@pytest.mark.parametrize('name', STITCHERS)
@pytest.mark.parametrize('seed', range(3))
def test_agreeing_chunks_come_out_as_constant_steps(name, seed):
    seams, inside = World(make_stitcher(name), seed).run(10.0).steps()
    assert len(seams) > 10
    np.testing.assert_allclose(seams, VELOCITY * DT, rtol=0.02)
    np.testing.assert_allclose(inside, VELOCITY * DT, rtol=0.02)


@pytest.mark.parametrize('name', ['blend', 'rtc'])
@pytest.mark.parametrize('seed', range(3))
def test_noisy_chunks_make_no_larger_steps_at_seams_than_inside(name, seed):
    world = World(make_stitcher(name), seed, bias=0.01, noise=0.002).run(30.0)
    seams, inside = world.steps()
    assert len(seams) > 30
    deviation = np.abs(seams - VELOCITY * DT), np.abs(inside - VELOCITY * DT)
    assert np.median(deviation[0]) <= 1.2 * np.median(deviation[1])
    assert np.max(deviation[0]) <= np.max(deviation[1])


def test_switching_noisy_chunks_does_make_larger_steps():
    """The scenario above can tell stitchers apart."""
    seams, inside = World(Switch(), 0, bias=0.01, noise=0.002).run(30.0).steps()
    deviation = np.abs(seams - VELOCITY * DT), np.abs(inside - VELOCITY * DT)
    assert np.max(deviation[0]) > 1.5 * np.max(deviation[1])


@pytest.mark.parametrize('name', STITCHERS)
@pytest.mark.parametrize('latency', [(0.0, 0.002), (0.3, 0.7), (0.9, 1.3)])
def test_every_stitcher_keeps_the_rhythm_and_goes_forward(name, latency):
    world = World(make_stitcher(name), latency=latency).run(10.0)
    np.testing.assert_allclose(np.diff([s.due for s in world.sent]), DT, atol=1e-9)
    seams, inside = world.steps()
    steps = np.concatenate([seams, inside])
    assert steps.min() > -1e-6 and steps.max() < 1.1 * VELOCITY * DT


def stitch(stitcher, leftover, fresh, last=None, frozen=None, first_row=0.0):
    fresh = np.asarray(fresh, dtype=np.float64).reshape(-1, 1)
    leftover = np.asarray(leftover, dtype=np.float64).reshape(-1, 1)
    chunk = ActionChunk.of(fresh, 1, frozen_rows=frozen)
    last = None if last is None else np.array([float(last)])
    return stitcher.stitch(last, leftover, fresh, chunk, first_row, 1.0)[:, 0]


def test_b40_short_leftover_makes_no_dip_towards_zero_or_the_mean():
    """Two rows left near 95, where the data's mean is 10 and zero in model space means 10."""
    for name in STITCHERS:
        out = stitch(make_stitcher(name), [95.0, 95.2], np.full(50, 95.6), last=94.8)
        assert out.min() >= 94.9 and out.max() <= 95.6 + 1e-9
        assert (np.diff(out) >= -1e-9).all()


def test_b42_rebased_chunk_makes_no_step_larger_than_the_blend():
    """All-zero deltas from q = 0 and then q = 0.02: the seam is spread, never taken at once."""
    out = stitch(Blend(20), np.zeros(30), np.full(50, 0.02), last=0.0)
    steps = np.diff(np.concatenate([[0.0], out]))
    assert (steps >= -1e-12).all() and steps.max() <= 0.02 / 21 + 1e-12
    assert out[20] == pytest.approx(0.02)


def test_b43_disagreeing_chunks_stay_below_the_joint_velocity_without_reversing():
    """0.0 then 0.3 rad at 40 ms a tick: waist velocity limit 3.14159 rad/s."""
    for leftover in (np.zeros(40), np.zeros(3), np.zeros(0)):
        out = stitch(Blend(20), leftover, np.full(44, 0.3), last=0.0)
        steps = np.diff(np.concatenate([[0.0], out]))
        assert (steps >= -1e-12).all() and steps.max() <= 3.14159 * 0.04


def test_switch_is_the_new_chunk_itself():
    np.testing.assert_array_equal(stitch(Switch(), np.ones(9), np.arange(5)), np.arange(5))


def test_rtc_plays_what_it_promised_and_then_the_new_chunk():
    out = stitch(RealTimeChunking(), np.full(30, 1.0), np.full(30, 2.0), frozen=8, first_row=5.0)
    np.testing.assert_array_equal(out, [1.0] * 3 + [2.0] * 27)


def test_rtc_without_guidance_blends():
    old, new = np.zeros(30), np.full(30, 1.0)
    np.testing.assert_array_equal(
        stitch(RealTimeChunking(Blend(5)), old, new, last=0.0),
        stitch(Blend(5), old, new, last=0.0),
    )


def test_the_first_chunk_is_not_blended_with_anything():
    for name in STITCHERS:
        np.testing.assert_array_equal(stitch(make_stitcher(name), [], np.arange(5)), np.arange(5))


def test_unknown_stitcher_and_bad_blend_are_refused():
    with pytest.raises(Pi0RosError, match='switch, blend, rtc'):
        make_stitcher('glue')
    with pytest.raises(Pi0RosError, match='at least 1'):
        make_stitcher('blend', 0)
