# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Replay of whole bags: same chunks, alignment, metrics, verdict; BAG and TIME entries."""

from __future__ import annotations

import json

import numpy as np
import pytest
from bags import (
    ARM,
    JOINTS,
    START,
    TRAJECTORY,
    StillPolicy,
    aloha_messages,
    chunk,
    joints,
    pose,
    published,
    write_bag,
)

from pi0_ros.errors import Pi0RosError
from pi0_ros.replay import BagError, replay
from pi0_ros.replay.report import to_json
from pi0_ros.resources import share_path
from pi0_ros.robot import RobotSpec

ROBOT = RobotSpec.load('aloha')


def run(tmp_path, messages, policy=None, storage='mcap', **options):
    number = len(list(tmp_path.iterdir()))
    path = write_bag(tmp_path / f'bag{number}', messages, storage)
    return replay(path, policy or StillPolicy(), ROBOT, **options)


def test_same_bag_and_seed_give_the_same_chunks(tmp_path):
    messages = aloha_messages(ROBOT)
    first = run(tmp_path, messages)
    again = run(tmp_path, messages, storage='sqlite3')
    other = run(tmp_path, messages, seed=1)
    assert len(first.chunks) == 20
    assert [c.actions.tobytes() for c in first.chunks] == [
        c.actions.tobytes() for c in again.chunks
    ]
    assert first.summary['digest'] == again.summary['digest'] != other.summary['digest']
    assert first.chunks[0].actions.shape == (50, 14)
    assert first.chunks[0].actions.dtype == np.float32


def test_policy_sees_aligned_inputs_and_the_bags_prompt(tmp_path):
    policy = StillPolicy()
    run(tmp_path, aloha_messages(ROBOT, prompt='open the drawer'), policy)
    for observation in policy.seen:
        assert observation.prompt == 'open the drawer'
        assert set(observation.images) == set(ROBOT.cameras)
        stamps = observation.image_stamps_ns.values()
        assert max(stamps) - min(stamps) <= 50_000_000
        expected = pose((observation.stamp_ns - START) / 1e9 - 0.0005)
        assert np.abs(observation.positions - expected).max() < 0.01


def test_still_policy_is_fit_and_errors_are_those_of_the_motion(tmp_path):
    class Truth(StillPolicy):
        def predict(self, observation, noise=None):
            t = (observation.stamp_ns - START) / 1e9
            rows = [pose(t + 0.02 * (i + 1)) for i in range(50)]
            return [ROBOT.measured_to_policy(row) for row in rows]

    result = run(tmp_path, aloha_messages(ROBOT), Truth())
    summary = result.summary
    assert set(summary['against_states']) == {'1', '10', '25', '50'}
    for horizon in summary['against_states'].values():
        assert horizon['max'] < 2e-3
    wrong = run(tmp_path, aloha_messages(ROBOT), StillPolicy(speed=1.0))
    assert wrong.summary['against_states']['50']['max'] > 0.5


def test_recorded_actions_are_compared(tmp_path):
    messages = aloha_messages(ROBOT)
    for k in range(200):
        ns = START + k * 20_000_000
        action = ROBOT.measured_to_policy(pose(k / 50)) + 0.25
        messages.append(('/joint_command_raw', JOINTS, ns, joints(ns, ROBOT.joint_names, action)))
    messages.sort(key=lambda m: m[2])
    result = run(tmp_path, messages, StillPolicy(speed=0.0))
    assert abs(result.summary['against_actions']['1']['mae'] - 0.25) < 0.02


def test_limits_touched_make_it_unfit_and_are_named(tmp_path):
    result = run(tmp_path, aloha_messages(ROBOT), StillPolicy(speed=10.0))
    limits = result.summary['motion']['limits']
    assert {'velocity', 'position'} & {hit['bound'] for hit in limits}
    assert all(hit['joint'] in ROBOT.joint_names for hit in limits)
    assert result.verdict == 'no' and result.exit_code == 1
    assert 'filter would have changed' in ' '.join(result.reasons)


def test_a_chunk_that_must_be_refused_makes_it_unfit(tmp_path):
    class Broken(StillPolicy):
        def predict(self, observation, noise=None):
            actions = super().predict(observation, noise)
            if len(self.seen) == 3:
                actions[30, 2] = np.nan
            return actions

    result = run(tmp_path, aloha_messages(ROBOT, 2.0), Broken())
    assert len(result.summary['rejected_chunks']) == 1
    assert result.verdict == 'no'


def seen(tmp_path, messages):
    """Return the observations that a live node might have had."""
    policy = StillPolicy()
    run(tmp_path, messages, policy)
    return policy.seen


def test_published_chunks_are_repeated_bit_for_bit(tmp_path):
    messages = aloha_messages(ROBOT)
    messages = published(messages, seen(tmp_path, messages), StillPolicy().predict)
    result = run(tmp_path, messages, at='published')
    counts = result.summary['published']
    assert (counts['equal'], counts['different'], counts['not repeatable']) == (20, 0, 0)
    changed = run(tmp_path, messages, StillPolicy(speed=0.2), at='published')
    assert changed.summary['published']['equal'] == 0
    assert changed.summary['published']['different'] == 20
    assert changed.verdict == 'no'


def test_published_chunks_name_their_inputs_whatever_came_later(tmp_path):
    """An inference that began late saw older pictures than the bag has at its publication."""
    messages = aloha_messages(ROBOT)
    messages = published(
        messages, seen(tmp_path, messages), StillPolicy().predict, delay=900_000_000
    )
    result = run(tmp_path, messages, at='published')
    assert result.summary['published']['equal'] == 20


def test_sample_that_the_node_lost_on_the_way_is_left_out_again(tmp_path):
    messages = aloha_messages(ROBOT)
    lossy = [
        m for m in messages
        if m[0] != '/follower_left/joint_states' or (m[2] - START) // 20_000_000 % 5 != 1
    ]  # fmt: skip
    observations = seen(tmp_path, lossy)
    messages = published(messages, observations, StillPolicy().predict)
    result = run(tmp_path, messages, at='published')
    assert result.summary['published']['equal'] == len(observations)


def test_published_chunk_whose_picture_was_not_recorded_is_counted_and_named(tmp_path):
    messages = aloha_messages(ROBOT)
    complete = published(messages, seen(tmp_path, messages), StillPolicy().predict)
    topic = ROBOT.cameras['cam_high'].topic
    holes = [m for m in complete if m[0] != topic or not 1.0 < (m[2] - START) / 1e9 < 1.4]
    result = run(tmp_path, holes, at='published')
    counts = result.summary['published']
    assert counts['not repeatable'] >= 2 and counts['different'] == 0
    assert counts['equal'] + counts['not repeatable'] == 20
    assert any('cam_high' in p['input'] and 'not in the bag' in p['text']
               for p in result.summary['problems'])  # fmt: skip


def test_labels_of_an_older_version_are_refused_with_the_remedy(tmp_path):
    messages = aloha_messages(ROBOT, 1.0)
    for label, text in (('seq=0;seed=0', 'older version.*record again'), ('world', 'policy_node')):
        message = chunk(START, label, ROBOT.joint_names, np.zeros((50, 14)))
        with pytest.raises(BagError, match=text):
            run(tmp_path, [*messages, ('/action_chunk', TRAJECTORY, START + 10**9, message)],
                at='published')  # fmt: skip


def test_published_needs_published_chunks(tmp_path):
    with pytest.raises(BagError, match='action_chunk'):
        run(tmp_path, aloha_messages(ROBOT, 1.0), at='published')


def test_b02_camera_without_stamps_is_named_or_retimed(tmp_path):
    messages = aloha_messages(ROBOT, 2.0, zero_stamp=['cam_high'])
    refused = run(tmp_path, messages)
    assert refused.verdict == 'no'
    assert any('cam_high' in r and 'zero' in r for r in refused.reasons)
    retimed = run(tmp_path, messages, use_received_time=True)
    assert retimed.summary['chunks'] > 5
    assert retimed.summary['inputs']['cam_high']['retimed'] == 60
    assert any('60 messages re-timed' in note for note in retimed.summary['notes'])


def test_b04_looped_recording_goes_on_after_the_jump(tmp_path):
    loop = aloha_messages(ROBOT, 2.0)
    twice = loop + [(t, k, ns + 2_000_000_000, m) for t, k, ns, m in loop]  # stamps as before
    result = run(tmp_path, twice, max_age=0.3)
    assert result.summary['inputs']['cam_high']['backwards'] == 1
    assert any('went back' in note for note in result.summary['notes'])


def test_b79_unknown_types_on_other_topics_do_not_matter(tmp_path):
    from bags import STORE
    from rosbags.rosbag2 import StoragePlugin, Writer

    path = tmp_path / 'bag'
    with Writer(path, version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        odd = writer.add_connection(
            '/foo', 'custom_msgs/msg/Foo', msgdef='int32 x', rihs01='RIHS01_' + '0' * 64
        )
        writer.write(odd, START, b'\x00\x01\x00\x00\x05\x00\x00\x00')
        connections = {}
        for topic, kind, ns, message in aloha_messages(ROBOT, 1.0):
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, kind, typestore=STORE)
            writer.write(connections[topic], ns, STORE.serialize_cdr(message, kind))
    assert replay(path, StillPolicy(), ROBOT).summary['chunks'] == 5


def test_b80_ragged_start_waits_and_reports_the_overlap(tmp_path):
    delays = {'cam_high': 1.0, 'cam_left_wrist': 1.5}
    policy = StillPolicy()
    result = run(tmp_path, aloha_messages(ROBOT, 3.0, camera_delay=delays), policy)
    assert result.summary['overlap_s'][0] == pytest.approx(1.5, abs=0.05)
    assert all(set(o.images) == set(ROBOT.cameras) for o in policy.seen)
    assert any('begin up to 1.5 s after' in note for note in result.summary['notes'])
    assert result.summary['chunks'] >= 7


def test_b81_only_the_bags_time_counts(tmp_path):
    """Stamps in simulated time, far from the times of recording, give the same observations."""
    messages = aloha_messages(ROBOT, 2.0)
    shifted = [(t, k, ns + 10**15, m) for t, k, ns, m in messages]
    first, second = run(tmp_path, messages), run(tmp_path, shifted)
    assert first.summary['digest'] == second.summary['digest']
    assert any('another clock' in note for note in second.summary['notes'])


def test_b82_latched_prompt_before_the_start_counts_and_descriptions_are_not_needed(tmp_path):
    """Latched topics lie at 0 s; a replay from 2 s on needs the prompt and no others."""
    from bags import STORE, string

    messages = aloha_messages(ROBOT, prompt='close the box')
    transform = STORE.types['tf2_msgs/msg/TFMessage'](transforms=[])
    messages[:0] = [
        ('/robot_description', 'std_msgs/msg/String', START, string('<robot/>')),
        ('/tf_static', 'tf2_msgs/msg/TFMessage', START, transform),
    ]
    policy = StillPolicy()
    result = run(tmp_path, messages, policy, start=2.0)
    assert result.summary['chunks'] == 10
    assert {o.prompt for o in policy.seen} == {'close the box'}


def test_b82_rviz_part_loads_the_description_from_its_file(tmp_path):
    from pi0_ros.bringup import REPLAY_ARGUMENTS, replay_graph

    values = {argument.name: argument.default for argument in REPLAY_ARGUMENTS}
    graph = replay_graph({**values, 'bag': str(tmp_path)})
    text = ROBOT.urdf_path.read_text()
    assert any(p.parameters.get('robot_description') == text for p in graph)


def test_b79_needed_topic_of_an_unknown_type_is_refused_before_anything_is_loaded(tmp_path):
    from bags import STORE
    from rosbags.rosbag2 import StoragePlugin, Writer

    path = tmp_path / 'bag'
    topic = ROBOT.cameras['cam_high'].topic
    with Writer(path, version=9, storage_plugin=StoragePlugin.SQLITE3) as writer:
        odd = writer.add_connection(
            topic, 'custom_msgs/msg/Foo', msgdef='int32 x', rihs01='RIHS01_' + '0' * 64
        )
        writer.write(odd, START, b'\x00\x01\x00\x00\x05\x00\x00\x00')
        connections = {}
        for name, kind, ns, message in aloha_messages(ROBOT, 0.5, drop=['cam_high']):
            if name not in connections:
                connections[name] = writer.add_connection(name, kind, typestore=STORE)
            writer.write(connections[name], ns, STORE.serialize_cdr(message, kind))
    with pytest.raises(BagError, match=f'{topic} carries custom_msgs/msg/Foo, not an image'):
        replay(path, StillPolicy(), ROBOT)


def test_missing_camera_is_refused_with_a_suggestion_and_a_map(tmp_path):
    messages = aloha_messages(ROBOT, 1.0, rename={'cam_high': '/cam_high/color/image_raw'})
    with pytest.raises(BagError, match=r'did you mean /cam_high/color/image_raw .*--map cam_high'):
        run(tmp_path, messages)
    mapped = run(tmp_path, messages, cameras={'cam_high': '/cam_high/color/image_raw'})
    assert mapped.summary['chunks'] == 5
    with pytest.raises(BagError, match='no camera nose'):
        run(tmp_path, messages, cameras={'nose': '/x'})


def test_joint_states_of_another_topic_and_prefix(tmp_path):
    messages = []
    for topic, kind, ns, message in aloha_messages(ROBOT, 1.0):
        if kind == JOINTS:
            side = 'left' if 'left' in topic else 'right'
            message = joints(ns - 500_000, [f'{side}/{n}' for n in ARM], message.position)
            topic = '/joint_states'
        messages.append((topic, kind, ns, message))
    with pytest.raises(BagError, match='--joint-states'):
        run(tmp_path, messages)
    assert run(tmp_path, messages, joint_states=[('/joint_states', '')]).summary['chunks'] == 5


def test_nameless_joint_states_need_names(tmp_path):
    messages = []
    for topic, kind, ns, message in aloha_messages(ROBOT, 1.0):
        if kind == JOINTS:
            message = joints(ns - 500_000, [], message.position)
        messages.append((topic, kind, ns, message))
    with pytest.raises(BagError, match=r'follower_left/joint_states.*--joint-names'):
        run(tmp_path, messages)
    assert run(tmp_path, messages, joint_names=ARM).summary['chunks'] == 5
    with pytest.raises(BagError, match='2 joint names given'):
        run(tmp_path, messages, joint_names=['a', 'b'])


def test_empty_prompt_is_refused(tmp_path):
    with pytest.raises(Pi0RosError, match='--prompt'):
        run(tmp_path, aloha_messages(ROBOT, 1.0, prompt=''))


def test_camera_gap_gives_no_observation_and_is_counted(tmp_path):
    topic = ROBOT.cameras['cam_high'].topic
    messages = [
        m for m in aloha_messages(ROBOT) if m[0] != topic or not 1.0 < (m[2] - START) / 1e9 < 2.5
    ]
    result = run(tmp_path, messages)
    problems = [p for p in result.summary['problems'] if p['blocked']]
    assert [p['input'] for p in problems] == ['cam_high']
    assert result.summary['refused'] >= 6
    assert any('nothing for 1.5 s' in note for note in result.summary['notes'])


def test_interruption_keeps_what_is_done(tmp_path):
    class Impatient(StillPolicy):
        def predict(self, observation, noise=None):
            if len(self.seen) == 5:
                raise KeyboardInterrupt
            return super().predict(observation, noise)

    result = run(tmp_path, aloha_messages(ROBOT), Impatient())
    assert len(result.chunks) == 5
    assert result.exit_code == 3
    assert 'interrupted' in result.summary['incomplete']


def test_cut_bag_is_incomplete(tmp_path):
    path = write_bag(tmp_path / 'bag', aloha_messages(ROBOT))
    (path / 'metadata.yaml').unlink()
    file = next(path.glob('*.mcap'))
    data = file.read_bytes()
    file.write_bytes(data[: len(data) * 6 // 10])
    result = replay(path, StillPolicy(), ROBOT)
    assert result.summary['chunks'] > 5
    assert result.exit_code == 3
    assert 'cut off' in ' '.join(result.reasons)


def test_start_and_end_and_stride(tmp_path):
    result = run(tmp_path, aloha_messages(ROBOT), start=1.0, end=3.0, stride=25)
    assert len(result.chunks) == 4
    assert (result.chunks[0].stamp_ns - START) / 1e9 == pytest.approx(1.0, abs=0.1)
    for options in ({'stride': 0}, {'at': 'once'}, {'start': 2.0, 'end': 1.0}):
        with pytest.raises(Pi0RosError):
            run(tmp_path, aloha_messages(ROBOT, 1.0), **options)


def test_recorded_motion_goes_through_the_filter_and_never_over_a_hole(tmp_path):
    motion = [m for m in aloha_messages(ROBOT) if m[1] == JOINTS]
    path = write_bag(tmp_path / 'whole', motion)
    whole = replay(path, None, ROBOT)
    assert whole.verdict == 'yes', whole.reasons
    assert whole.summary['motion']['setpoints'] >= 197
    hole = [m for m in motion if not 1.0 < (m[2] - START) / 1e9 < 3.0]
    result = replay(write_bag(tmp_path / 'hole', hole), None, ROBOT)
    assert result.summary['motion']['setpoints'] < 105
    assert not result.summary['motion']['limited_ticks']
    assert result.summary['motion']['seams'] == 1


def test_summary_is_strict_json(tmp_path):
    result = run(tmp_path, aloha_messages(ROBOT, 1.0))
    again = json.loads(to_json(result.summary))
    assert again['verdict'] == result.verdict
    assert again['options']['end'] is None


def test_b50_an_opening_in_metres_where_a_fraction_is_expected_is_reported(tmp_path):
    text = share_path('config/robots/aloha.yaml').read_text()
    assert text.count('{joint: gripper, unit: rad}') == 1
    yaml = tmp_path / 'metres.yaml'
    measured = '{joint: gripper, unit: '
    yaml.write_text(text.replace(f'{measured}rad}}', f'{measured}normalized}}'))
    for opening, told in ((0.057, True), (0.9, False)):
        messages = aloha_messages(ROBOT, 3.0)
        for _, kind, time_ns, message in messages:
            if kind == 'sensor_msgs/msg/JointState':
                share = 0.5 - 0.5 * np.cos(4.0 * (time_ns - messages[0][2]) / 1e9)
                message.position[message.name.index('gripper')] = opening * share
        path = write_bag(tmp_path / f'bag{told}', messages)
        notes = replay(path, StillPolicy(), RobotSpec.load(yaml)).summary['notes']
        assert any('left/gripper: its opening goes from 0.0' in note for note in notes) == told
