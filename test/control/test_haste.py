# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""A new chunk's first setpoint leaves at once: still one a slot, and in the filter's rhythm."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pi0_ros.control import ActionChunk, ChunkExecutor, Switch
from pi0_ros.control.executor import HASTE_EVERY
from pi0_ros.safety import Playout
from pi0_ros.safety.playout import HASTY_SHARE

PERIOD, LEAD, ROWS = 0.02, 0.04, 100


def chunk(number, observed_at=0.0, rows=ROWS):
    """Row i holds 1000 * number + i, so that every setpoint says where it comes from."""
    values = 1000.0 * number + np.arange(rows)[:, None]
    return ActionChunk.of(values, 1, sequence=number, observed_at=observed_at)


def send(arrivals, end, step=0.001):
    """Poll densely, and at once when a chunk comes; return [(sent at, setpoint)]."""
    executor, out = ChunkExecutor(1, 1 / PERIOD, 1 / PERIOD, Switch(), 25, LEAD), []
    events = sorted(
        [(at, number) for number, at in enumerate(arrivals)]
        + [(tick * step, None) for tick in range(round(end / step))],
        key=lambda event: event[0],
    )
    for now, number in events:
        if number is not None:
            executor.install(chunk(number, now - 0.05), now)
        out += [(now, setpoint) for setpoint in executor.poll(now)]
    return executor, out


@pytest.mark.parametrize('phase', [0.0005, 0.003, 0.0107, 0.0195, 0.02])
def test_the_first_setpoint_of_a_chunk_leaves_when_the_chunk_comes(phase):
    arrival = 0.4 + phase
    _, sent = send([0.0, arrival], 1.0)
    first = next(at for at, setpoint in sent if setpoint.sequence == 1)
    assert first == pytest.approx(arrival, abs=1e-9)
    assert all(-1e-9 <= s.due - at - LEAD <= PERIOD + 1e-9 for at, s in sent)


def test_in_simulated_time_it_waits_for_its_tick():
    executor = ChunkExecutor(1, 1 / PERIOD, 1 / PERIOD, Switch(), 25, LEAD, haste=False)
    executor.install(chunk(0), 0.0)
    assert len(executor.poll(0.0)) == 1
    for tick in range(1, 40):
        assert len(executor.poll(tick * PERIOD)) == 1
    executor.install(chunk(1, 0.75), 39.5 * PERIOD)
    assert executor.poll(39.5 * PERIOD) == []
    assert [s.sequence for s in executor.poll(40 * PERIOD)] == [1]


def test_the_tick_does_not_send_it_again():
    _, sent = send([0.0, 0.411], 1.0)
    np.testing.assert_allclose(np.diff([s.due for _, s in sent]), PERIOD, atol=1e-9)
    rows = [s.row for _, s in sent if s.sequence == 1]
    np.testing.assert_allclose(np.diff(rows), 1.0, atol=1e-6)
    ticks = [at for at, s in sent if s.sequence == 0]
    assert len(ticks) == 21  # at 0.00, 0.02 ... 0.40; the slot of 0.42 is the new chunk's
    later = [at for at, s in sent if s.sequence == 1]
    np.testing.assert_allclose(later[1:], 0.44 + PERIOD * np.arange(len(later) - 1), atol=1.1e-3)


@settings(max_examples=60, deadline=None)
@given(pauses=st.lists(st.floats(0.0, 0.6), min_size=1, max_size=12))
def test_whatever_the_chunks_rhythm_one_setpoint_a_slot_in_order(pauses):
    arrivals = np.cumsum(pauses)
    executor, sent = send(arrivals, arrivals[-1] + 0.3, step=0.005)
    np.testing.assert_allclose(np.diff([s.due for _, s in sent]), PERIOD, atol=1e-6)
    assert (np.diff([at for at, _ in sent]) >= 0.0).all()
    for number in {s.sequence for _, s in sent}:
        rows = [s.row for _, s in sent if s.sequence == number and not s.holding]
        np.testing.assert_allclose(np.diff(rows), 1.0, atol=1e-4)  # none twice, none left out
    early = [k for k, (at, s) in enumerate(sent) if s.due - at - LEAD > 0.0051]
    assert all(gap >= HASTE_EVERY for gap in np.diff(early))
    assert executor.status(arrivals[-1]).stalls == 0


def test_what_was_sent_early_counts_like_any_other_row():
    """The next chunk skips exactly the rows that were sent since its observation."""
    executor, sent = send([0.0, 0.411], 0.412)
    assert sent[-1][1].sequence == 1
    observed = 0.405
    due_after = [s.due - observed for _, s in sent if s.due > observed]
    expected = sum(min(left, PERIOD) for left in due_after) / PERIOD
    executor.install(chunk(2, observed), 0.412)
    assert executor.status(0.412).last_skip == pytest.approx(expected)


def test_a_chunk_that_comes_while_dry_ends_the_holding_at_once():
    executor = ChunkExecutor(1, 1 / PERIOD, 1 / PERIOD, Switch(), 25, LEAD)
    executor.install(chunk(0, rows=5), 0.0)
    sent = [s for k in range(500) for s in executor.poll(k * 0.001)]
    assert sent[-1].holding
    executor.install(chunk(1, 0.45), 0.4995)
    (first,) = executor.poll(0.4995)
    assert (first.sequence, first.row, first.holding) == (1, 0.0, False)
    assert first.due - sent[-1].due == pytest.approx(PERIOD)


def test_after_clear_and_at_the_first_chunk_there_is_no_haste():
    executor = ChunkExecutor(1, 1 / PERIOD, 1 / PERIOD, Switch(), 25, LEAD)
    executor.install(chunk(0), 0.0)
    assert len(executor.poll(0.0)) == 1 and executor.poll(0.001) == []
    executor.clear()
    executor.install(chunk(1), 0.5)
    assert [s.due for s in executor.poll(0.5)] == [pytest.approx(0.5 + LEAD)]
    assert executor.poll(0.501) == []


def test_the_filter_plays_an_early_setpoint_no_earlier():
    """Its sense of time comes from the others: steps of a ramp stay even, to one per cent."""
    assert HASTE_EVERY > HASTY_SHARE
    rng = np.random.default_rng(3)
    arrivals = np.cumsum(rng.uniform(0.21, 0.5, 40))
    _, sent = send([0.0, *arrivals], arrivals[-1], step=0.0005)
    early = [s.due - at - LEAD for at, s in sent]
    assert max(early) > 0.015 and sum(e > 0.001 for e in early) > 30
    playout, positions = Playout(LEAD, 0.1), []
    queue = list(sent)
    for tick in range(round(arrivals[-1] / PERIOD) - 5):
        now = 0.05 + tick * PERIOD
        while queue and queue[0][0] <= now:
            at, setpoint = queue.pop(0)
            playout.add(at, setpoint.due, np.array([setpoint.due]))
        positions.append(playout.sample(now).position[0])
    assert playout.counters['late'] == 0
    np.testing.assert_allclose(np.diff(positions), PERIOD, rtol=0.011)
    np.testing.assert_allclose(positions, 0.05 + PERIOD * np.arange(len(positions)), atol=2e-3)
