# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Replay with a real (tiny) pi0 checkpoint: chunks repeated bit for bit, text and state shown."""

from __future__ import annotations

import numpy as np
import pytest
from bags import StillPolicy, aloha_messages, published, write_bag

from pi0_ros.replay import replay
from pi0_ros.replay.report import write_report
from pi0_ros.robot import RobotSpec

ROBOT = RobotSpec.load('aloha')


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
    from pi0_ros.policy.make_checkpoint import make_checkpoint

    path = tmp_path_factory.mktemp('checkpoint') / 'tiny'
    make_checkpoint(path, size='tiny', robot='aloha', seed=0)
    return path


def load(checkpoint):
    from pi0_ros.policy import Pi0Policy

    return Pi0Policy.from_pretrained(checkpoint, robot=ROBOT)


class Guided:
    """Predicts as a node with real-time chunking does: every chunk from the rows before it."""

    def __init__(self, policy):
        self.policy, self.before = policy, None

    def predict(self, observation, noise):
        from pi0_ros.control.chunk import at_rows
        from pi0_ros.policy import Guidance

        guidance = None
        if self.before is not None:
            stamp, rows = self.before
            shift = (observation.stamp_ns - stamp) / 1e9 * ROBOT.policy_rate
            upcoming = at_rows(rows, np.arange(shift, len(rows) - 1 + 1e-6))
            guidance = Guidance(
                previous_actions=upcoming, delay=5, execution_horizon=len(upcoming)
            )
        actions = self.policy.predict(observation, noise, guidance=guidance)
        self.before = observation.stamp_ns, actions
        return actions


def bag_of(tmp_path, predict, frozen=None):
    messages = aloha_messages(ROBOT, 1.0)
    policy = StillPolicy()
    replay(write_bag(tmp_path / 'inputs', messages), policy, ROBOT)
    observations = policy.seen[:3]
    out = published(messages, observations, predict, frozen=frozen)
    return write_bag(tmp_path / 'bag', out), len(observations)


def test_chunks_of_a_checkpoint_are_repeated_bit_for_bit(tmp_path, checkpoint):
    path, count = bag_of(tmp_path, load(checkpoint).predict)
    result = replay(path, load(checkpoint), ROBOT, at='published')
    assert result.summary['published']['equal'] == count
    assert result.summary['published']['different'] == 0


def test_guided_chunks_are_told_apart_and_their_distance_is_measured(tmp_path, checkpoint):
    path, count = bag_of(tmp_path, Guided(load(checkpoint)).predict, frozen=5)
    result = replay(path, load(checkpoint), ROBOT, at='published')
    counts = result.summary['published']
    assert (counts['equal'], counts['guided'], counts['different']) == (1, count - 1, 0)
    assert counts['guided_apart'] < 1e-4  # here the motion under way is that of the chunk before
    assert any('with guidance' in reason for reason in result.reasons)


def test_report_shows_text_tokens_and_state_as_the_model_was_told(tmp_path, checkpoint):
    policy = load(checkpoint)
    path = write_bag(tmp_path / 'bag', aloha_messages(ROBOT, 0.5, prompt='lift the_lid'))
    result = replay(path, policy, ROBOT)
    told = result.summary['model_input']
    assert told['tokens'] == policy.tokenizer('lift the_lid').tolist()
    assert told['text'].endswith('\n') and 'lift the' in told['text']
    assert len(told['state']) == ROBOT.dof and told['limit'] >= len(told['tokens'])
    write_report(result, tmp_path / 'report.html')
    page = (tmp_path / 'report.html').read_text()
    assert f'{len(told["tokens"])} of {told["limit"]} tokens' in page
    assert ' '.join(map(str, told['tokens'])) in page
