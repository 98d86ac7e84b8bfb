# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
The safety filter against a million random and adversarial ticks, and what a tick costs.

    python bench/safety.py [--ticks N] [--json FILE]

Every command that the shipped ``SafetyFilter.step`` returns is judged from outside, by code that
shares nothing with it: finite differences against every limit, and, from every single state,
whether full deceleration (jerk-limited) turns the joint round before its position limit. At random
moments the filter is also braked to rest and judged on the way. Exits with 1 on any violation.

The tracking part sends motions that are inside every limit, and policy-like ones with noise; the
report says how far the command was from its target, in ticks of motion.

A tick's cost is processor time; 'passed' is the time that went by, with all that the machine did
beside it.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time

import numpy as np

from pi0_ros.robot import RobotSpec
from pi0_ros.safety import Limits, SafetyFilter

TOLERANCE = 1e-9
"""Of positions absolute (rad); of rates relative to the limit: third differences round."""

RUN = 2_000  # ticks between resets
BRAKE_EVERY = 250  # ticks, on average, between trial stops


# --- what is sent ----------------------------------------------------------------------------


def steps(rng, limits, start, n):
    """Limit to limit and anywhere, each held for a while."""
    low, high = limits.lower - 0.5, limits.upper + 0.5
    corners = np.where(rng.random((n, limits.dof)) < 0.5, low, high)
    anywhere = rng.uniform(low, high, (n, limits.dof))
    goals = np.where(rng.random((n, limits.dof)) < 0.5, corners, anywhere)
    hold = int(rng.integers(1, 60))
    return np.repeat(goals[: n // hold + 1], hold, axis=0)[:n]


def storm(rng, limits, start, n):
    """White noise over twice the range."""
    middle, half = 0.5 * (limits.lower + limits.upper), limits.upper - limits.lower
    return middle + half * rng.uniform(-1.0, 1.0, (n, limits.dof))


def chirp(rng, limits, start, n):
    """Sweeps from standing to the Nyquist rate, beyond every limit."""
    t = np.arange(n)[:, None]
    sweep = np.pi * t * t / (2.0 * n) * rng.uniform(0.1, 1.0, limits.dof)
    middle, half = 0.5 * (limits.lower + limits.upper), 0.5 * (limits.upper - limits.lower)
    return middle + rng.uniform(0.1, 1.3, limits.dof) * half * np.sin(sweep)


def policy(rng, limits, start, n, period=0.02, noise=1e-3, speed=0.5):
    """Smooth motion, noise of a milliradian on it."""
    t = period * np.arange(n)[:, None]
    rate = rng.uniform(0.5, 3.0, limits.dof)
    wide = np.minimum(speed * limits.velocity / rate, 0.45 * (limits.upper - limits.lower))
    middle = np.clip(start, limits.lower + wide, limits.upper - wide)
    phase = rng.uniform(0.0, 2.0 * np.pi, limits.dof)
    return middle + wide * np.sin(rate * t + phase) + noise * rng.standard_normal((n, limits.dof))


def into_limits(rng, limits, start, n, period=0.02):
    """Full speed at a position limit and beyond, then back, then the other."""
    t = period * np.arange(n)[:, None]
    reach = 1.2 * (limits.upper - limits.lower)
    phase = t * limits.velocity * rng.uniform(0.2, 0.6, limits.dof) / reach  # folded: twice that
    triangle = 2.0 * np.abs(np.mod(phase, 1.0) - 0.5)
    return 0.5 * (limits.lower + limits.upper) + reach * (triangle - 0.5)


def spikes(rng, limits, start, n):
    """A smooth motion, one sample in twenty is somewhere else, some for good."""
    base = policy(rng, limits, start, n, noise=0.0)
    jump = rng.random((n, limits.dof)) < 0.05
    base = base + np.where(jump, rng.normal(0.0, 2.0, base.shape), 0.0)
    leap = rng.random(base.shape) < 0.003
    return base + np.cumsum(np.where(leap, rng.normal(size=base.shape), 0.0), 0)


def greedy(rng, limits, start, n):
    """Just what a step may still do: bang-bang jerk, integrated with the limits ignored."""
    period = 0.02
    jerk = np.repeat(rng.choice([-1.0, 1.0], (n // 7 + 1, limits.dof)), 7, axis=0)[:n]
    top, fastest = limits.acceleration, limits.velocity
    a = np.clip(np.cumsum(jerk * limits.jerk * period, 0), -top, top)
    v = np.clip(np.cumsum(a * period, 0), -fastest, fastest)
    return start + np.cumsum(v * period, 0)


def nan_storm(rng, limits, start, n):
    """A policy whose messages are half rotten: NaN, infinity, 1e300, sometimes all at once."""
    targets = policy(rng, limits, start, n)
    bad = rng.random((n, limits.dof)) < 0.03
    targets[bad] = rng.choice([np.nan, np.inf, -np.inf, 1e300, -1e300], bad.sum())
    return targets


SCENARIOS = (steps, storm, chirp, policy, into_limits, spikes, greedy, nan_storm)


def limit_sets(rng):
    """Yield (name, limits, period, weight): the robot's own, tight ones, odd ones."""
    aloha = Limits.from_robot(RobotSpec.load('aloha'))
    yield 'aloha, 50 Hz', aloha, 0.02, 6

    def with_rates(velocity, acceleration, jerk):
        return Limits(aloha.names, aloha.lower, aloha.upper, velocity, acceleration, jerk)

    ones = np.ones(aloha.dof)
    tight = with_rates(3.0 * ones, 12.0 * ones, 200.0 * ones)
    yield '12 rad/s^2, 200 rad/s^3, 50 Hz', tight, 0.02, 2
    yield 'aloha, 200 Hz', aloha, 0.005, 1
    odd = with_rates(
        10 ** rng.uniform(-1.0, 1.0, aloha.dof),
        10 ** rng.uniform(0.0, 2.0, aloha.dof),
        10 ** rng.uniform(1.5, 4.0, aloha.dof),
    )
    yield 'odd, a decade or two apart, 50 Hz', odd, 0.02, 1


# --- the judge -------------------------------------------------------------------------------


def judge(commands, limits, period, low, high) -> dict:
    """
    Return the worst excess over each limit; below zero or ``TOLERANCE`` is inside.

    :param commands: [n, dof], beginning with the pose of the reset, held.
    :param low: [dof], and ``high``: the position limits, widened to where the joint began.
    """
    v = np.diff(commands, axis=0) / period
    a = np.diff(v, axis=0) / period
    j = np.diff(a, axis=0) / period
    return {
        'position': float(max((low - commands).max(), (commands - high).max())),
        'velocity': float((np.abs(v) / limits.velocity).max() - 1.0),
        'acceleration': float((np.abs(a) / limits.acceleration).max() - 1.0),
        'jerk': float((np.abs(j) / limits.jerk).max() - 1.0),
        'stopping': float(cannot_turn(commands[2:], v[1:], a, limits, period, low, high)),
    }


def cannot_turn(p, v, a, limits, period, low, high) -> float:
    """Return how far beyond the limits full deceleration from any of the states still carries."""
    worst = -np.inf
    for sign, bound in ((1.0, high), (-1.0, -low)):
        x, speed, accel = sign * p, sign * v, sign * a
        moving = speed > 0.0
        for _ in range(100_000):
            accel = np.maximum(accel - limits.jerk * period, -limits.acceleration)
            speed = speed + accel * period
            moving = (speed > 0.0) & (moving | (accel > 0.0))
            x = np.where(moving, x + speed * period, x)
            if not (moving | (accel > 0.0)).any():
                break
        worst = max(worst, float((x - bound).max()))
    return worst


def run(rng, limits, period, scenario) -> tuple[dict, np.ndarray]:
    """Play one scenario; return worst excesses and the seconds [n, 2] of steps: worked, passed."""
    safety = SafetyFilter(limits, period)
    start = rng.uniform(limits.lower, limits.upper)
    if rng.random() < 0.2:  # begun outside: only the way in is open
        start = start + rng.normal(0.0, 0.1, limits.dof)
    targets = scenario(rng, limits, start, RUN)
    missing = rng.random(RUN) < (0.05 if rng.random() < 0.5 else 0.0)
    lagging = rng.normal(0.0, 0.05, limits.dof)
    safety.reset(start)
    low, high = np.minimum(limits.lower, start), np.maximum(limits.upper, start)
    commands, took = [start, start, start], np.empty((RUN, 2))
    stops = {}
    for k in range(RUN):
        measured = commands[-1] + lagging if rng.random() < 0.9 else np.full(limits.dof, np.nan)
        if missing[k]:
            command, _ = safety.brake()
            took[k] = np.nan
        else:
            began, worked = time.perf_counter(), time.thread_time()
            command, _ = safety.step(targets[k], measured)
            took[k] = time.thread_time() - worked, time.perf_counter() - began
        commands.append(command)
        if rng.random() < 1.0 / BRAKE_EVERY:
            state, way = safety.save(), commands[-3:]
            while not safety.at_rest:
                way.append(safety.brake()[0])
            way.extend([safety.brake()[0]] * 3)
            worse(stops, judge(np.array(way), limits, period, low, high))
            safety.restore(state)
    result = judge(np.array(commands), limits, period, low, high)
    return worse(result, stops), took[np.isfinite(took[:, 0])]


def worse(total: dict, other: dict) -> dict:
    """Take the larger excess of two, in place."""
    for bound, excess in other.items():
        total[bound] = max(total.get(bound, -np.inf), excess)
    return total


# --- following -------------------------------------------------------------------------------


def follow(limits, period, noise, seed=0, ticks=20_000) -> dict:
    """Return how closely a motion inside the limits is followed, and the lag that fits best."""
    rng = np.random.default_rng(seed)
    start = 0.5 * (limits.lower + limits.upper)
    smooth = policy(rng, limits, start, ticks, period, noise=0.0)
    targets = smooth + noise * rng.standard_normal(smooth.shape)
    safety = SafetyFilter(limits, period)
    safety.reset(targets[0])
    commands = np.array([safety.step(target)[0] for target in targets])
    moved = np.abs(np.diff(smooth, axis=0)).max(0)
    settle = 200
    lags = [
        np.abs(commands[settle:] - targets[settle - k : ticks - k]).mean() for k in range(4)
    ]
    error = np.abs(commands - targets)[settle:]
    past = np.maximum(commands - targets.max(0), targets.min(0) - commands)[settle:]
    return {
        'lag_ticks': int(np.argmin(lags)),
        'max_error_mrad': 1e3 * float(error.max()),
        'max_error_ticks_of_motion': float((error.max(0) / moved).max()),
        'unchanged_share': float((error < 1e-9).mean()),
        'overshoot_mrad': 1e3 * float(max(past.max(), 0.0)),
    }


def step_response(limits, period, size=0.5) -> dict:
    """Return overshoot and time of a step that stays."""
    safety = SafetyFilter(limits, period)
    start = 0.5 * (limits.lower + limits.upper)
    safety.reset(start)
    commands = np.array([safety.step(start + size)[0] for _ in range(500)]) - start
    outside = np.flatnonzero((np.abs(commands - size) > 1e-3).any(1))
    return {
        'overshoot_mrad': 1e3 * float(max((commands - size).max(), 0.0)),
        'settled_s': period * int(outside.max() + 2),
    }


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[1])
    parser.add_argument('--ticks', type=int, default=1_000_000)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--json', metavar='FILE')
    args = parser.parse_args(argv)
    rng = np.random.default_rng(args.seed)
    sets = list(limit_sets(rng))
    weight = sum(entry[3] for entry in sets)
    rows, total, violations = [], 0, 0
    print(
        f'{"limits":34} {"scenario":12} {"ticks":>9} {"worst excess":>13}'
        '  p50 us  p99 us  passed p99'
    )
    for name, limits, period, share in sets:
        rounds = max(1, -(-args.ticks * share // (weight * len(SCENARIOS) * RUN)))
        for scenario in SCENARIOS:
            worst: dict = {}
            times = []
            for _ in range(rounds):
                result, took = run(rng, limits, period, scenario)
                worse(worst, result)
                times.append(took)
            took = 1e6 * np.concatenate(times)
            ticks = rounds * RUN
            broken = [bound for bound, excess in worst.items() if not excess <= TOLERANCE]
            violations += len(broken)
            total += ticks
            row = {
                'limits': name, 'scenario': scenario.__name__, 'ticks': ticks, 'excess': worst,
                'p50_us': float(np.quantile(took[:, 0], 0.5)),
                'p99_us': float(np.quantile(took[:, 0], 0.99)),
                'passed_p99_us': float(np.quantile(took[:, 1], 0.99)),
            }  # fmt: skip
            rows.append(row)
            print(
                f'{name:34} {row["scenario"]:12} {ticks:9,} {max(worst.values()):13.2e} '
                f'{row["p50_us"]:7.1f} {row["p99_us"]:7.1f} {row["passed_p99_us"]:11.1f}'
                + (f'  VIOLATED: {worst}' if broken else ''),
                flush=True,
            )
    following = {}
    for name, limits, period, _ in sets[:2]:
        following[name] = {
            'inside the limits': follow(limits, period, 0.0),
            'with 1 mrad of noise': follow(limits, period, 1e-3),
            'step of 0.5': step_response(limits, period),
        }
        for what, figures in following[name].items():
            text = ', '.join(f'{key} {value:.4g}' for key, value in figures.items())
            print(f'{name}, {what}: {text}')
    print(f'{total:,} ticks of {sets[0][1].dof} joints, {violations} violations')
    if args.json:
        with open(args.json, 'w') as file:
            json.dump(
                {
                    'machine': platform.machine(), 'python': platform.python_version(),
                    'numpy': np.__version__, 'ticks': total, 'violations': violations,
                    'tolerance': TOLERANCE, 'rows': rows, 'following': following,
                },
                file, indent=1,
            )  # fmt: skip
    return 1 if violations else 0


if __name__ == '__main__':
    sys.exit(main())
