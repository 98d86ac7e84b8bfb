# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Setpoints of the executor in simulated seconds: order, counting, holding, stalls."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pi0_ros.control import ActionChunk, Blend, ChunkExecutor, DelayEstimate, Switch
from pi0_ros.errors import Pi0RosError
from pi0_ros.safety import Playout


def make(rate=50.0, policy_rate=None, stitcher=None, horizon=25, lead=None, dof=1):
    return ChunkExecutor(dof, rate, policy_rate or rate, stitcher or Switch(), horizon, lead)


def ramp(start=0.0, step=0.001, rows=50, dof=1, **kwargs):
    values = start + step * np.arange(rows)[:, None] * np.ones(dof)
    return ActionChunk.of(values, dof, **kwargs)


def run(executor, begin, end, step=0.001):
    """Poll densely; return the setpoints."""
    out = []
    for now in np.arange(round(begin / step), round(end / step)) * step:
        out += executor.poll(float(now))
    return out


def values(setpoints):
    return np.array([s.positions[0] for s in setpoints])


def test_nothing_is_sent_before_the_first_chunk():
    assert run(make(), 0.0, 1.0) == []


def test_b46_every_row_once_in_order_one_a_tick():
    executor = make()
    executor.install(ramp(), 10.0)
    sent = run(executor, 10.0, 11.0)
    np.testing.assert_allclose(values(sent), 0.001 * np.arange(50), atol=1e-7)
    np.testing.assert_allclose(np.diff([s.due for s in sent]), 0.02, atol=1e-9)
    assert sent[0].due == pytest.approx(10.0 + 0.04)


def test_setpoints_leave_the_lead_before_they_are_due():
    executor = make(lead=0.1)
    executor.install(ramp(), 0.0)
    for now in np.arange(1000) * 0.001:
        for setpoint in executor.poll(now):
            assert setpoint.due - now == pytest.approx(0.1, abs=0.0011)


@pytest.mark.parametrize(('rate', 'latency', 'rows'), [(30.0, 0.3, 9), (50.0, 0.2, 10)])
def test_b41_skips_the_rows_sent_since_the_observation(rate, latency, rows):
    """With no lead and an observation at the moment of the request: latency x rate."""
    executor = make(rate, lead=0.0)
    executor.install(ramp(sequence=0), 0.0)
    executor_time = 0.5
    run(executor, 0.0, executor_time, 1e-3)
    observed = executor.status(executor_time)
    run(executor, executor_time, executor_time + latency, 1e-3)
    before = executor.status(executor_time + latency)
    assert before.setpoints - observed.setpoints == rows
    executor.install(ramp(sequence=1, observed_at=executor_time), executor_time + latency)
    assert executor.status(1.0).last_skip == pytest.approx(rows, abs=1.0)


def test_first_chunk_starts_at_row_zero_however_long_it_took():
    executor = make()
    executor.install(ramp(observed_at=0.0), 7.3)
    assert executor.status(7.3).last_skip == 0.0


def test_restart_after_running_dry_skips_nothing_and_goes_on_from_the_held_setpoint():
    executor = make()
    executor.install(ramp(sequence=0), 0.0)
    sent = run(executor, 0.0, 2.0)
    assert [s.holding for s in sent] == [False] * 50 + [True] * (len(sent) - 50)
    np.testing.assert_allclose(values(sent[50:]), 0.049, atol=1e-7)
    executor.install(ramp(start=0.05, sequence=1, observed_at=1.5), 2.0)
    after = run(executor, 2.0, 2.1)
    assert executor.status(2.1).last_skip == 0.0
    np.testing.assert_allclose(values(after), 0.05 + 0.001 * np.arange(len(after)), atol=1e-7)


def test_rows_sent_before_running_dry_still_count():
    """Observed while 10 rows were left: those 10 moved the arm, the pause after them did not."""
    executor = make(lead=0.0)
    executor.install(ramp(sequence=0), 0.0)
    run(executor, 0.0, 3.0)
    executor.install(ramp(sequence=1, observed_at=39 * 0.02), 3.0)
    assert executor.status(3.0).last_skip == pytest.approx(10.0, abs=1e-6)


def test_constant_velocity_truth_comes_out_as_constant_steps_over_every_seam():
    """Latency and frame phase jitter, chunks follow the truth of their own observation."""
    rng = np.random.default_rng(1)
    executor = make(stitcher=Switch())
    velocity, now, sequence, sent, stands_until = 0.5, 0.0, 0, [], None
    while now < 20.0:
        observed = now - rng.uniform(0.0, 0.033)
        latency = rng.uniform(0.02, 0.4)
        sent += run(executor, now, now + latency)
        now = round(now + latency, 3)
        if stands_until is None:
            stands_until = now + executor.lead - 0.02
        rows = velocity * (max(observed, stands_until) + 0.02 * np.arange(1, 51))
        executor.install(
            ActionChunk.of(rows[:, None], 1, sequence=sequence, observed_at=observed), now
        )
        sequence += 1
    steps = np.diff(values(sent))
    np.testing.assert_allclose(steps, velocity * 0.02, rtol=0.02)
    assert not any(s.holding for s in sent)


def test_b44_long_latency_runs_dry_holds_and_restarts_without_a_jump():
    executor = make(stitcher=Blend(10))
    executor.install(ramp(rows=50, step=0.01, sequence=0), 0.0)
    first = run(executor, 0.0, 0.5)
    second = run(executor, 0.5, 1.7)  # 1.2 s of inference, 0.5 s of rows left
    executor.install(ramp(start=0.24, rows=50, step=0.01, sequence=1, observed_at=0.5), 1.7)
    third = run(executor, 1.7, 2.1)
    sent = first + second + third
    assert executor.status(2.1).dry_runs == 1
    assert executor.status(2.1).last_skip == pytest.approx(26.0)
    np.testing.assert_allclose(np.diff([s.due for s in sent]), 0.02, atol=1e-9)
    steps = np.diff(values(sent))
    assert steps.max() < 0.0111 and steps.min() > -1e-9


def test_b44_short_latency_never_leaves_a_gap():
    executor = make(horizon=25)
    sequence, sent, pending = 0, [], (0.0, 0.086)
    for now in np.arange(5000) * 0.001:
        if pending and now >= pending[1]:
            executor.install(ramp(sequence=sequence, observed_at=pending[0]), now)
            sequence, pending = sequence + 1, None
        sent += executor.poll(now)
        if not pending and executor.wants_chunk(0.086):
            pending = (now, now + 0.086)
    assert not any(s.holding for s in sent)
    np.testing.assert_allclose(np.diff([s.due for s in sent]), 0.02, atol=1e-9)
    # rows 4.3 + lead .. 25 of each chunk: about one inference in 19 rows
    assert 11 <= sequence <= 16


def test_execution_horizon_counts_rows_from_the_observation():
    executor = make(horizon=25, lead=0.0)
    executor.install(ramp(), 0.0)
    run(executor, 0.0, 24 * 0.02 - 0.005)
    assert not executor.wants_chunk()
    assert executor.wants_chunk(expected_inference=0.05)
    run(executor, 24 * 0.02 - 0.005, 25 * 0.02)
    assert executor.wants_chunk()


def test_chunk_all_of_whose_rows_have_passed_is_not_used():
    executor = make(lead=0.0)
    executor.install(ramp(rows=200, sequence=0), 0.0)
    run(executor, 0.0, 3.0)
    assert not executor.install(ramp(rows=10, sequence=1, observed_at=1.0), 3.0)
    status = executor.status(3.0)
    assert (status.sequence, status.chunks_expired) == (0, 1)


def test_older_chunk_never_replaces_a_newer_one():
    executor = make()
    assert executor.install(ramp(sequence=4), 0.0)
    assert not executor.install(ramp(start=9.0, sequence=3), 0.0)
    assert values(executor.poll(0.0)).max() < 1.0


def test_policy_at_half_rate_is_resampled_by_time():
    executor = make(50.0, 25.0, lead=0.0)
    executor.install(ramp(step=0.02, rows=25, dt=0.04), 0.0)
    sent = run(executor, 0.0, 0.98)
    np.testing.assert_allclose(np.diff(values(sent)), 0.01, atol=1e-7)
    assert executor.status(1.0).row == pytest.approx(24.5)


def test_policy_faster_than_control_is_resampled_by_time():
    executor = make(50.0, 100.0, lead=0.0)
    executor.install(ramp(step=0.01, rows=50, dt=0.01), 0.0)
    np.testing.assert_allclose(values(run(executor, 0.0, 0.48)), 0.02 * np.arange(24), atol=1e-7)


def test_stall_within_the_lead_is_made_up_for_with_even_due_times():
    executor = make(lead=0.1)
    executor.install(ramp(), 0.0)
    sent = run(executor, 0.0, 0.2) + run(executor, 0.29, 0.4)
    np.testing.assert_allclose(np.diff([s.due for s in sent]), 0.02, atol=1e-9)
    np.testing.assert_allclose(values(sent), 0.001 * np.arange(len(sent)), atol=1e-7)
    assert executor.status(0.4).stalls == 0


@pytest.mark.parametrize('stall', [0.15, 0.5, 30.0])
def test_longer_stall_pauses_the_motion_and_skips_no_row(stall):
    executor = make(lead=0.04)
    executor.install(ramp(), 0.0)
    sent = run(executor, 0.0, 0.2) + run(executor, 0.2 + stall, 0.4 + stall)
    moving = [s for s in sent if not s.holding]
    np.testing.assert_allclose(values(moving), 0.001 * np.arange(len(moving)), atol=1e-7)
    (repeated,) = [k for k, s in enumerate(sent) if s.holding]
    assert values(sent)[repeated] == values(sent)[repeated - 1]
    status = executor.status(0.4 + stall)
    assert (status.stalls, status.dry_runs, status.holds) == (1, 0, 1)
    assert status.worst_late == pytest.approx(stall, abs=0.03)
    gaps = np.diff([s.due for s in sent])
    assert sorted(gaps)[-1] == pytest.approx(stall, abs=0.05)
    assert (np.sort(gaps)[:-1] < 0.0201).all() and (gaps > 0.0199).all()


def test_after_a_stall_the_filter_plays_no_step_larger_than_before():
    """Whatever the phase of its ticks; the pause itself is played as standing still."""
    for stall in np.arange(0.045, 0.4, 0.0137):
        executor, playout, positions = make(lead=0.04), Playout(0.04, 0.1), []
        executor.install(ramp(), 0.0)
        for tick in range(600):
            now = tick * 0.001
            if not 0.2 <= now < 0.2 + stall:
                for setpoint in executor.poll(now):
                    playout.add(now, setpoint.due, setpoint.positions)
            if tick % 20 == 7 and now > 0.05:
                positions.append(playout.sample(now).position[0])
        steps = np.diff(positions)
        assert executor.status(0.6).stalls == 1
        assert steps.max() < 0.00102 and steps.min() > -1e-9


def test_clear_ends_the_stream_and_forgets_what_was_sent():
    executor = make()
    executor.install(ramp(sequence=0), 0.0)
    run(executor, 0.0, 0.3)
    executor.clear()
    assert run(executor, 0.3, 1.0) == [] and executor.next_poll() is None
    executor.install(ramp(sequence=1, observed_at=0.2), 1.0)
    assert executor.status(1.0).last_skip == 0.0
    assert executor.poll(1.0)[0].due == pytest.approx(1.04)


def test_upcoming_is_the_motion_as_the_next_chunk_sees_it():
    executor = make(lead=0.04)
    executor.install(ramp(step=0.01), 0.0)
    sent = run(executor, 0.0, 0.4)
    observed = 0.37
    upcoming = executor.upcoming(observed)[:, 0]
    dues = [s.due for s in sent]
    expected = np.interp(observed + 0.02, dues, values(sent))
    assert upcoming[0] == pytest.approx(expected)
    np.testing.assert_allclose(np.diff(upcoming), 0.01, atol=1e-6)
    # the same motion, handed back as a chunk, changes nothing at the seam
    executor.install(
        ActionChunk.of(upcoming[:, None], 1, sequence=1, observed_at=observed), 0.4
    )
    sent += run(executor, 0.4, 0.6)
    np.testing.assert_allclose(np.diff(values(sent)), 0.01, atol=1e-6)


def test_upcoming_is_empty_without_motion():
    executor = make()
    assert executor.upcoming(0.0).shape == (0, 1)
    executor.install(ramp(rows=5), 0.0)
    run(executor, 0.0, 1.0)
    assert executor.upcoming(0.9).shape == (0, 1)


@pytest.mark.parametrize('origin', [0.0, 1.7e9])
def test_ticks_hit_a_clock_that_advances_in_tens_of_milliseconds(origin):
    """Simulated time since 1970 as a float is coarse; the rhythm must not slip by a clock step."""
    executor = make()
    executor.install(ramp(), origin)
    sent = []
    for step in range(100):
        sent += [(step, s) for s in executor.poll(origin + step * 0.01)]
    assert [step for step, _ in sent] == list(range(0, 100, 2))


@settings(max_examples=60, deadline=None)
@given(
    polls=st.lists(st.floats(0.0, 0.3), min_size=5, max_size=60),
    latency=st.floats(0.0, 0.5),
    horizon=st.integers(1, 60),
    ticks=st.integers(1, 40),
)
def test_any_rhythm_of_polling_gives_due_times_in_order_and_bounded_steps(
    polls, latency, horizon, ticks
):
    """Chunks that agree with what is sent: no step exceeds the velocity, whatever the rhythm."""
    executor = make(stitcher=Blend(ticks), horizon=horizon)
    now, sequence, pending, sent = 0.0, 0, (0.0, 0.0), []
    for pause in polls:
        now += pause
        if pending and now >= pending[1]:
            moved = executor._rows_since(pending[0])
            here = (values(sent[-1:]) if sent else np.zeros(1))[0] - 0.001 * moved
            executor.install(
                ramp(here + 0.001, sequence=sequence, observed_at=pending[0]), now
            )
            sequence, pending = sequence + 1, None
        sent += executor.poll(now)
        if not pending and executor.wants_chunk(latency):
            pending = (now, now + latency)
    if len(sent) > 1:
        assert (np.diff([s.due for s in sent]) > 0.0199).all()
        steps = np.diff(values(sent))
        assert steps.max() < 0.00101 and steps.min() > -1e-6


def test_rates_must_be_positive():
    with pytest.raises(Pi0RosError, match='must be positive'):
        make(rate=0.0, policy_rate=50.0)


def test_b41_delay_estimate_forgets_a_slow_call():
    estimate = DelayEstimate(window=20)
    for seconds in [0.70, *[0.30] * 20]:
        estimate.add(seconds)
    assert estimate.rows(1 / 30) == 9


def test_delay_estimate_is_a_high_quantile():
    estimate = DelayEstimate(window=20)
    for i in range(100):
        estimate.add(0.2 if i % 5 == 0 else 0.1)
    assert estimate.rows(0.02) == 10
