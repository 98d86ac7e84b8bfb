# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""The expert in the policy's place: its plan by the stamps of observations; its lesson."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from pi0_ros.errors import Pi0RosError
from pi0_ros.sim.aloha_sim import AlohaSim
from pi0_ros.training import teacher

PLAN = np.arange(200)[:, None] * np.linspace(1.0, 2.0, 14)


def seen(ns):
    return SimpleNamespace(stamp_ns=ns)


def test_rows_are_those_due_after_the_observation():
    policy = teacher.Teacher(PLAN, 50.0)
    begin = 5_000_000_000
    first = policy.predict(seen(begin))
    np.testing.assert_allclose(first, PLAN[1:51], rtol=1e-6)  # row 0 is due a step later
    late = policy.predict(seen(begin + 1_000_000_000))
    np.testing.assert_allclose(late, PLAN[51:101], rtol=1e-6)
    between = policy.predict(seen(begin + 10_000_000))
    np.testing.assert_allclose(between[0], (PLAN[1] + PLAN[2]) / 2, rtol=1e-6)
    end = policy.predict(seen(begin + 3_500_000_000))
    np.testing.assert_allclose(end[24:], np.repeat(PLAN[-1:], 26, axis=0), rtol=1e-6)
    policy.reset()
    np.testing.assert_allclose(policy.predict(seen(begin * 2)), PLAN[1:51], rtol=1e-6)


def test_the_lesson_names_the_seed_and_its_plan_does_the_task(tmp_path):
    lesson = tmp_path / 'lesson.json'
    lesson.write_text(json.dumps({'task': 'transfer_cube', 'seed': 7}))
    policy = teacher.expert_policy({'robot': 'aloha', 'checkpoint': str(lesson)})
    sim = AlohaSim('transfer_cube', seed=7)
    assert np.allclose(policy.actions[0], policy.actions[teacher.WAIT_STEPS - 1])  # it waits
    for action in policy.actions:
        sim.step(sim.robot.policy_to_command(action))
    assert sim.strict_success
    sim.close()


def test_without_a_lesson_it_says_so(tmp_path):
    with pytest.raises(Pi0RosError, match='JSON file with task and seed'):
        teacher.expert_policy({'robot': 'aloha', 'checkpoint': str(tmp_path / 'none.json')})
