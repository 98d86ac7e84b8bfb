# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""From a bag to training samples: what was observed, what was done next, and the statistics."""

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / 'replay'))

from bags import ARM, JOINTS, START, aloha_messages, joints, pose, write_bag

from pi0_ros.errors import Pi0RosError
from pi0_ros.gripper import normalized_from_joint_rad
from pi0_ros.observation import Observation
from pi0_ros.policy import Pi0Policy
from pi0_ros.policy.aloha import AlohaAdapter, make_bool_mask
from pi0_ros.policy.images import resize_with_pad
from pi0_ros.policy.make_checkpoint import make_checkpoint
from pi0_ros.replay import BagError, replay
from pi0_ros.robot import RobotSpec
from pi0_ros.training.dataset import (
    ChunkDataset,
    DatasetError,
    Episode,
    check_policy,
    check_robot,
    policy_from_command,
    read_bag,
    statistics,
    write_statistics,
)

ALOHA = RobotSpec.load('aloha')
LEAD = 0.1  # s by which the commands are ahead of the measured pose


def commands(topic='/joint_command', seconds=3.0, pause=(), values=lambda t: pose(t + LEAD)):
    """Return commands [(topic, type, ns, message)] every 20 ms, without those in a pause."""
    out = []
    for k in range(round(seconds * 50)):
        t = k / 50
        if pause and pause[0] < t < pause[1]:
            continue
        ns = START + k * 20_000_000
        out.append((topic, JOINTS, ns + 1_000_000, joints(ns, ALOHA.joint_names, values(t))))
    return out


def bag(folder, *more, seconds=3.0, **how):
    messages = [*aloha_messages(ALOHA, seconds, **how), *(m for part in more for m in part)]
    return write_bag(folder / 'bag', sorted(messages, key=lambda m: m[2]))


@pytest.fixture(scope='module')
def recorded(tmp_path_factory):
    return bag(tmp_path_factory.mktemp('bag'), commands())


@pytest.fixture(scope='module')
def episode(recorded):
    episodes = read_bag(recorded, ALOHA)
    assert len(episodes) == 1
    return episodes[0]


def in_policy_space(command):
    out = np.array(command, dtype=float)
    for index, gripper in ALOHA.grippers.items():
        out[..., index] = normalized_from_joint_rad(out[..., index], gripper.calibration)
    return out


def test_observations_are_those_of_replay(recorded, episode):
    class Keeper:
        seen = []

        def predict(self, observation):
            self.seen.append(observation)
            return np.asarray(observation.state, np.float32)[None]

    replay(recorded, Keeper(), ALOHA, stride=1)
    by_stamp = {o.stamp_ns: o for o in reversed(Keeper.seen)}  # the first of each stamp
    assert 90 <= len(episode) <= 150  # ticks of 50 Hz; cameras come 3 ms apart
    for k in (0, 40, len(episode) - 1):
        observation = by_stamp[episode.stamps_ns[k]]
        np.testing.assert_allclose(episode.states[k], observation.state, rtol=1e-6)
        for name, picture in observation.images.items():
            assert np.array_equal(episode.images[name][k], picture)
    assert episode.prompts[0] == 'transfer the cube'
    assert list(episode.images) == list(ALOHA.cameras)


def test_row_i_is_the_command_due_i_plus_one_periods_later(episode):
    for k in (0, 30, 60):
        chunk, padded = episode.chunk(k, 10, 50.0)
        after = (episode.stamps_ns[k] - START) / 1e9 + (np.arange(10) + 1) / 50
        expected = in_policy_space([pose(t + LEAD) for t in after])
        np.testing.assert_allclose(chunk, expected, atol=2e-4)  # linear between 20 ms
        assert chunk.dtype == np.float32 and not padded.any()


def test_past_the_end_the_last_action_is_repeated_and_marked(episode):
    chunk, padded = episode.chunk(len(episode) - 1, 50, 50.0)
    assert padded.any() and not padded[0]
    first = int(np.argmax(padded))
    assert padded[first:].all()
    np.testing.assert_array_equal(chunk[first:], np.repeat(episode.actions[-1:], 50 - first, 0))


def test_recorded_rows_come_back_to_the_last_bit_at_their_own_rate():
    stamps = np.round(np.arange(40) * 1e9 / 30).astype(np.int64)
    rng = np.random.default_rng(0)
    actions = rng.standard_normal((40, 3)).astype(np.float32)
    episode = Episode(
        stamps, actions, {}, ('go',) * 40, stamps + round(1e9 / 30), actions, 30.0, 'made'
    )
    chunk, padded = episode.chunk(7, 20, 30.0)
    assert np.array_equal(chunk, actions[7:27]) and not padded.any()


def test_raw_commands_are_in_the_policys_space_already(tmp_path):
    raw = commands('/joint_command_raw', values=lambda t: np.full(14, 0.01 * t))
    got = read_bag(bag(tmp_path, raw), ALOHA, actions='joint_command_raw')[0]
    chunk, _ = got.chunk(20, 1, 50.0)
    after = (got.stamps_ns[20] - START) / 1e9 + 0.02
    np.testing.assert_allclose(chunk[0], np.full(14, 0.01 * after), atol=1e-6)


def test_leaders_poses_are_the_actions_in_teleoperation(tmp_path):
    closed, opened = -0.68, 0.31

    def leader(side, part, late):
        out = []
        for k in range(150):
            ns = START + k * 20_000_000 + late
            q = pose(k / 50)[part]
            q[6] = closed + 0.25 * (opened - closed)
            message = joints(ns, ARM, q)
            out.append((f'/leader_{side}/joint_states', JOINTS, ns + 100_000, message))
        return out

    path = bag(
        tmp_path, leader('left', slice(0, 7), 0), leader('right', slice(7, 14), 7_000_000)
    )
    sources = [('/leader_left/joint_states', 'left/'), ('/leader_right/joint_states', 'right/')]
    got = read_bag(path, ALOHA, leader=sources, leader_gripper=(closed, opened))[0]
    np.testing.assert_allclose(got.actions[:, [6, 13]], 0.25, atol=1e-6)
    t = (got.action_stamps_ns[50] - START) / 1e9
    np.testing.assert_allclose(got.actions[50, :6], pose(t)[:6], atol=1e-5)
    np.testing.assert_allclose(got.actions[50, 7:13], pose(t - 0.007)[7:13], atol=1e-4)
    with pytest.raises(BagError, match='no leader moves right/waist'):
        read_bag(path, ALOHA, leader=sources[:1])


def test_a_pause_of_the_commands_ends_an_episode(tmp_path):
    path = bag(tmp_path, commands(pause=(1.0, 2.0)))
    first, second = read_bag(path, ALOHA)
    assert first.action_stamps_ns[-1] <= START + 1.0 * 1e9
    assert second.action_stamps_ns[0] >= START + 2.0 * 1e9
    assert second.stamps_ns[0] >= START + 1.98e9


def test_pictures_shrink_as_the_models_input_does(recorded, episode):
    small = read_bag(recorded, ALOHA, image_size=32)[0]
    whole = episode.images['cam_high'][5]
    assert np.array_equal(small.images['cam_high'][5], resize_with_pad(whole, 32))


def test_bags_without_actions_or_with_other_names_are_refused(tmp_path, recorded):
    with pytest.raises(BagError, match="no actions on 'joint_command_raw'.*--actions"):
        read_bag(recorded, ALOHA, actions='joint_command_raw')
    half = [(t, k, ns, joints(START, ARM, np.zeros(7))) for t, k, ns, _ in commands()]
    with pytest.raises(BagError, match='/joint_command does not name left/waist'):
        read_bag(bag(tmp_path, half), ALOHA)


def test_actions_of_another_time_are_refused(tmp_path):
    late = [(t, k, ns, joints(ns + 10**12, m.name, m.position)) for t, k, ns, m in commands()]
    with pytest.raises(DatasetError, match='none at the same time.*one clock'):
        read_bag(bag(tmp_path, late), ALOHA)


def test_a_bag_without_pictures_at_the_same_time_as_joints_is_refused(tmp_path):
    path = bag(tmp_path, commands(), zero_stamp=['cam_high'])
    with pytest.raises(DatasetError, match='no usable observation.*cam_high'):
        read_bag(path, ALOHA)


@pytest.mark.parametrize('unit', ['rad', 'm', 'normalized'])
@pytest.mark.parametrize('space', ['normalized', 'pi_angle', 'rad', 'm'])
def test_actions_of_commands_undo_the_command_map(unit, space):
    arms = []
    for arm in ALOHA.arms:
        gripper = dataclasses.replace(arm.gripper, command_unit=unit, policy_space=space)
        arms.append(dataclasses.replace(arm, gripper=gripper))
    robot = dataclasses.replace(ALOHA, arms=tuple(arms), policy_units='deg')
    low, high = {'m': (0.02, 0.055)}.get(space, (0.1, 0.9))
    actions = np.random.default_rng(0).uniform(low, high, (20, 14))
    back = policy_from_command(robot, robot.policy_to_command(actions))
    np.testing.assert_allclose(back, actions, atol=1e-9)


def test_samples_and_whole_episodes_held_out(episode):
    data = ChunkDataset([episode] * 4, 50, 50.0)
    assert len(data) == 4 * len(episode)
    sample = data[len(episode) + 3]
    assert (sample.episode, sample.index) == (1, 3)
    assert sample.actions.shape == (50, 14) and sample.padded.shape == (50,)
    train, held = data.split(0.25, seed=1)
    assert len(train.episodes) == 3 and len(held.episodes) == 1
    with pytest.raises(DatasetError, match='at least two episodes'):
        ChunkDataset([episode], 50, 50.0).split(0.5)


def test_statistics_of_absolute_actions_and_in_a_checkpoint(episode, tmp_path):
    values = statistics(ChunkDataset([episode], 50, 50.0))
    np.testing.assert_allclose(values['state']['mean'], episode.states.mean(0), rtol=1e-5)
    np.testing.assert_allclose(
        values['actions']['q99'], np.quantile(episode.actions, 0.99, axis=0), rtol=1e-5
    )
    path = write_statistics(tmp_path, values)
    folder = make_checkpoint(tmp_path / 'tiny')
    policy = Pi0Policy.from_pretrained(folder, robot=ALOHA, statistics=str(path))
    observation = Observation({}, np.array(values['state']['mean']), 'go')
    _, normal, _ = policy._inputs(observation)
    np.testing.assert_allclose(normal, 0.0, atol=1e-6)


def test_statistics_of_relative_actions_in_pis_space(episode):
    mask, adapter = make_bool_mask(6, -1, 6, -1), AlohaAdapter('openpi')
    data = ChunkDataset([episode], 5, 50.0)
    values = statistics(data, adapter, mask)
    deltas = []
    for k in range(len(data)):
        chunk, padded = data.actions(k)
        chunk = adapter.pi_actions_from_robot(chunk)
        state = adapter.pi_state_from_robot(episode.states[k])
        chunk[:, :6] -= state[:6]
        chunk[:, 7:13] -= state[7:13]
        deltas.append(chunk[~padded])
    deltas = np.concatenate(deltas)
    np.testing.assert_allclose(values['actions']['mean'], deltas.mean(0), atol=1e-6)
    np.testing.assert_allclose(values['actions']['std'], deltas.std(0), atol=1e-6)
    state = adapter.pi_state_from_robot(episode.states)
    np.testing.assert_allclose(values['state']['mean'], state.mean(0), rtol=1e-6)


def test_what_does_not_fit_is_said_all_at_once(episode, tmp_path):
    data = ChunkDataset([episode], 50, 50.0)
    check_robot(data, ALOHA)
    with pytest.raises(DatasetError, match='14 actions.*the robot has 7 joints; chunks are cut'):
        check_robot(data, RobotSpec.load('wxai'))
    blind = dataclasses.replace(episode, images={'cam_high': episode.images['cam_high']})
    with pytest.raises(DatasetError, match='cam_left_wrist, cam_right_wrist are missing'):
        check_robot(ChunkDataset([blind], 50, 50.0), ALOHA)
    with pytest.raises(DatasetError, match='cut at 30 Hz.*policy_rate of 50 Hz'):
        check_robot(ChunkDataset([episode], 50, 30.0), ALOHA)
    policy = Pi0Policy.from_pretrained(make_checkpoint(tmp_path / 'tiny'), robot=ALOHA)
    check_policy(data, policy)
    with pytest.raises(DatasetError, match='chunks have 10 rows, the checkpoint gives 50'):
        check_policy(ChunkDataset([episode], 10, 50.0), policy)


def test_episodes_that_hold_nonsense_are_refused(episode):
    bad = episode.actions.copy()
    bad[3, 2] = np.nan
    with pytest.raises(DatasetError, match='actions are not finite from row 3'):
        dataclasses.replace(episode, actions=bad)
    with pytest.raises(Pi0RosError, match='1 prompts for'):
        dataclasses.replace(episode, prompts=('go',))
