# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Setpoints are played when due, evenly, whatever the sender's clock and the network do."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pi0_ros.safety import Playout
from pi0_ros.safety.playout import LEAP_S, QUEUE_LENGTH

PERIOD, LEAD = 0.02, 0.04


def ramp(due, speed=1.0):
    return np.array([speed * due, -due])


def played(offset, delays, ticks=100, phase=0.004, first=10.0):
    """Send a ramp, position = due time, messages late by their delays; return what is played."""
    playout = Playout(LEAD, 0.1)
    sends = sorted(
        (first + k * PERIOD - LEAD + delays(k), first + k * PERIOD) for k in range(ticks)
    )
    out = []
    for k in range(ticks - 5):
        now = first + phase + k * PERIOD
        while sends and sends[0][0] <= now:
            arrival, due = sends.pop(0)
            playout.add(arrival, due + offset, ramp(due))
        out.append(playout.sample(now))
    return playout, out


@pytest.mark.parametrize('offset', [0.0, 1234.5, -7.0])
def test_plays_at_the_due_time_whatever_the_senders_clock_says(offset):
    _, out = played(offset, lambda k: 0.0)
    for k, sample in enumerate(out):
        assert sample.position[0] == pytest.approx(10.0 + 0.004 + k * PERIOD, abs=1e-6)
        assert sample.velocity == pytest.approx([1.0, -1.0], abs=1e-6)
        assert sample.ahead


def test_output_is_even_although_arrivals_are_not():
    rng = np.random.default_rng(0)
    late = 0.018 * rng.random(200)  # a lead of two ticks takes one tick of unevenness
    _, out = played(0.0, lambda k: late[k], ticks=200)
    positions = np.array([sample.position[0] for sample in out[100:]])
    assert np.abs(np.diff(positions) - PERIOD).max() < 0.012 * PERIOD  # one per cent of bending


def test_one_late_message_delays_no_other():
    playout, out = played(0.0, lambda k: 0.075 if k == 50 else 0.0)
    positions = [sample.position[0] for sample in out]
    assert positions[60] == pytest.approx(10.004 + 60 * PERIOD, abs=1e-6)
    assert np.all(np.diff(positions) >= -1e-9)


def test_nothing_is_played_before_the_first_is_due():
    playout = Playout(LEAD, 0.1)
    assert playout.sample(0.0) is None
    playout.add(0.0, 100.0, ramp(1.0))
    assert playout.sample(0.039) is None
    assert playout.sample(0.041).position[0] == 1.0


def test_after_the_last_its_position_holds_at_rest():
    playout = Playout(LEAD, 0.1)
    playout.add(0.0, 5.0, ramp(1.0))
    playout.add(0.02, 5.02, ramp(2.0))
    sample = playout.sample(9.0)
    assert sample.position[0] == 2.0 and not sample.velocity.any() and not sample.ahead


def test_neighbours_are_interpolated():
    playout = Playout(LEAD, 0.1)
    playout.add(0.0, 5.0, ramp(1.0))
    playout.add(0.02, 5.02, ramp(2.0))
    sample = playout.sample(0.045)
    assert sample.position[0] == pytest.approx(1.25) and sample.velocity[0] == pytest.approx(50.0)


def test_a_gap_is_held_not_interpolated():
    playout = Playout(LEAD, 0.1)
    playout.add(0.0, 5.0, ramp(1.0))
    playout.add(0.2, 5.2, ramp(2.0))
    assert playout.sample(0.2).position[0] == 1.0
    assert playout.sample(0.241).position[0] == 2.0


def test_of_two_with_one_due_time_the_first_counts():
    playout = Playout(LEAD, 0.1)
    assert playout.add(0.0, 5.0, ramp(1.0))
    assert not playout.add(0.001, 5.0, ramp(9.0))
    assert playout.counters['duplicate'] == 1
    assert playout.sample(0.05).position[0] == 1.0


def test_out_of_order_is_put_in_its_place_while_ahead_and_else_dropped():
    playout = Playout(LEAD, 0.1)
    playout.add(0.0, 5.0, ramp(0.0))
    playout.add(0.005, 5.04, ramp(4.0))
    assert not playout.add(0.01, 5.02, ramp(1.0))
    assert playout.sample(0.061).position[0] == pytest.approx(1.15, abs=0.12)  # not 2.1
    assert not playout.add(0.07, 5.01, ramp(99.0))
    assert playout.counters['out of order'] == 2
    assert playout.sample(0.075).position[0] < 4.0


def test_a_senders_clock_that_leaps_begins_anew():
    playout = Playout(LEAD, 0.1)
    for k in range(5):
        playout.add(k * PERIOD, 50.0 + k * PERIOD, ramp(1.0))
    playout.add(0.1, 50.1 - 2.0 * LEAP_S, ramp(7.0))
    assert playout.counters['after a time leap'] == 1
    assert playout.sample(0.12) is None  # what was queued is gone
    assert playout.sample(0.15).position[0] == 7.0


def test_unstamped_setpoints_are_played_in_order_after_the_lead():
    playout = Playout(LEAD, 0.1)
    for k in range(20):
        playout.add(k * PERIOD, None, ramp(float(k)))
    assert playout.sample(0.2 + LEAD).position[0] == pytest.approx(10.0, abs=1e-6)


def test_flush_forgets_everything():
    playout = Playout(LEAD, 0.1)
    playout.add(0.0, 5.0, ramp(1.0))
    playout.flush()
    assert playout.sample(1.0) is None
    playout.add(2.0, -70.0, ramp(3.0))
    assert playout.sample(2.0 + LEAD + 1e-6).position[0] == 3.0


def test_queue_is_bounded():
    playout = Playout(LEAD, 0.1)
    for k in range(10 * QUEUE_LENGTH):
        playout.add(0.0, 5.0 + 1e-4 * k, ramp(float(k)))
    kept = 0
    before = None
    for k in range(10 * QUEUE_LENGTH):
        sample = playout.sample(LEAD + 1e-4 * k)
        if sample is not None and (before is None or sample.position[0] != before):
            kept, before = kept + 1, sample.position[0]
    assert 0 < kept <= QUEUE_LENGTH + 1


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0.0, 0.05), st.floats(-1.0, 1.0), st.floats(-2.0, 2.0)),
        min_size=1, max_size=60,
    )
)  # fmt: skip
def test_what_is_played_lies_between_what_was_sent(messages):
    playout = Playout(LEAD, 0.1)
    now, sent = 0.0, []
    for wait, due, value in messages:
        now += wait
        playout.add(now, now + due, np.array([value]))
        sent.append(value)
        sample = playout.sample(now)
        if sample is not None:
            assert min(sent) - 1e-9 <= sample.position[0] <= max(sent) + 1e-9


@pytest.mark.parametrize('lag', [0.0, 0.009])
def test_spike_is_dropped_when_its_successor_shows_it(lag):
    playout = Playout(LEAD, 0.1, np.array([3.0, 3.0]))
    values = [0.0, 0.02, 1.0, 0.06, 0.08]
    for k, value in enumerate(values):
        late = lag if k == 3 else 0.0
        playout.add(k * PERIOD + late, 5.0 + k * PERIOD, np.array([value, 0.0]))
    assert playout.counters['dropped as spikes'] == 1
    for k in (1.25, 1.5, 2.0, 2.5, 3.0):
        position = playout.sample(LEAD + k * PERIOD).position
        assert position == pytest.approx([k * PERIOD, 0.0], abs=1e-3)


def test_motion_there_and_back_that_the_joints_can_do_is_no_spike():
    playout = Playout(LEAD, 0.1, np.array([3.0, 3.0]))
    for k, value in enumerate([0.0, 0.05, 0.0, 0.3, 0.6, 0.6, 0.3, 0.3]):
        playout.add(k * PERIOD, 5.0 + k * PERIOD, np.array([value, 0.0]))
    assert playout.counters['dropped as spikes'] == 0
