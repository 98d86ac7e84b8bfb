# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""LeRobot data sets, written and read in both versions; real ones of other makers; refusals."""

import dataclasses
import io
import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from pi0_ros.robot import RobotSpec
from pi0_ros.training.dataset import (
    ChunkDataset,
    DatasetError,
    Episode,
    check_robot,
    write_statistics,
)
from pi0_ros.training.lerobot import LeRobotDataset, is_lerobot, joint_order, write_lerobot

ALOHA = RobotSpec.load('aloha')
CAMERAS = ('cam_high', 'cam_left_wrist')


def episode(seed, n=12, fps=25, size=(32, 48), prompt='lift the cube', dof=14):
    rng = np.random.default_rng(seed)
    stamps = np.round(np.arange(n) * 1e9 / fps).astype(np.int64)
    rows, columns = np.mgrid[: size[0], : size[1]]
    images = {}
    for number, name in enumerate(CAMERAS):
        frames = []
        for k in range(n):  # smooth, so that a lossy codec keeps it
            base = np.stack([rows * 2 + 40 * number, columns * 2, rows * 0 + 8 * k], axis=-1)
            frames.append(np.clip(base + seed, 0, 255).astype(np.uint8))
        images[name] = frames
    return Episode(
        stamps, rng.standard_normal((n, dof)).astype(np.float32), images, (prompt,) * n,
        stamps + round(1e9 / fps), rng.standard_normal((n, dof)).astype(np.float32), float(fps),
        f'made {seed}',
    )  # fmt: skip


EPISODES = [episode(0), episode(1, n=9, prompt='put it down'), episode(2, n=15)]


@pytest.fixture(scope='module', params=['v2.1', 'v3.0'])
def version(request):
    return request.param


@pytest.fixture(scope='module')
def folder(version, tmp_path_factory):
    return write_lerobot(tmp_path_factory.mktemp('lr') / 'set', EPISODES, ALOHA, version=version)


def test_what_was_written_is_read_again_to_the_last_bit(folder, version):
    data = LeRobotDataset.open(folder)
    assert (data.version, data.fps, data.robot_type) == (version, 25.0, 'aloha')
    assert data.action_names == ALOHA.joint_names and data.missing == ()
    assert list(data.cameras) == list(CAMERAS) and len(data.entries) == 3
    assert data.prompt == '' and sorted(data.tasks.values()) == ['lift the cube', 'put it down']
    for number, wanted in enumerate(EPISODES):
        got = data.read(number, robot=ALOHA)
        for name in ('states', 'actions', 'stamps_ns', 'action_stamps_ns'):
            assert np.array_equal(getattr(got, name), getattr(wanted, name)), name
        assert got.prompts == wanted.prompts
        for camera in CAMERAS:
            for k in (0, len(wanted) - 1):
                assert np.array_equal(got.images[camera][k], wanted.images[camera][k])


def test_statistics_are_those_of_the_frames(folder):
    values = LeRobotDataset.open(folder).statistics()
    for name, key in (('state', 'states'), ('actions', 'actions')):
        rows = np.concatenate([getattr(e, key) for e in EPISODES]).astype(np.float64)
        np.testing.assert_allclose(values[name]['mean'], rows.mean(0), atol=1e-6)
        np.testing.assert_allclose(values[name]['std'], rows.std(0), atol=1e-6)
        np.testing.assert_allclose(values[name]['max'], rows.max(0), atol=1e-6)


def test_videos_are_found_at_their_time(version, tmp_path):
    path = write_lerobot(tmp_path / 'set', EPISODES, ALOHA, version=version, videos=True)
    data = LeRobotDataset.open(path)
    got = data.read(2)
    assert len(got.images['cam_high']) == 15
    for k in (0, 7, 14):
        for camera in CAMERAS:
            wanted = EPISODES[2].images[camera][k].astype(float)
            assert np.abs(got.images[camera][k] - wanted).mean() < 3.0  # frames differ by 8
    small = data.read(2, image_size=16)
    assert small.images['cam_high'][3].shape == (16, 16, 3)


def test_episodes_later_in_a_v3_video_are_cut_out(tmp_path):
    """LeRobot packs many episodes into one video; ours is joined by hand to look the same."""
    whole = episode(0, n=20)
    path = write_lerobot(tmp_path / 'set', [whole], ALOHA, videos=True)
    meta = path / 'meta' / 'episodes' / 'chunk-000' / 'file-000.parquet'
    table = pq.read_table(meta).to_pylist()[0]
    rows, parts = path / 'data' / 'chunk-000' / 'file-000.parquet', []
    for number, (begin, end) in enumerate(((0, 8), (8, 20))):
        part = {k: v for k, v in table.items() if not k.startswith('stats/')}
        part |= {'episode_index': number, 'length': end - begin}
        for camera in CAMERAS:
            part[f'videos/observation.images.{camera}/from_timestamp'] = begin / 25
        parts.append(part)
    pq.write_table(pa.Table.from_pylist(parts), meta)
    frames = pq.read_table(rows).to_pydict()
    frames['episode_index'] = [0] * 8 + [1] * 12
    frames['frame_index'] = [*range(8), *range(12)]
    pq.write_table(pa.table(frames), rows)
    second = LeRobotDataset.open(path).read(1)
    assert np.array_equal(second.states, whole.states[8:])
    for k in (0, 5, 11):
        wanted = whole.images['cam_high'][8 + k].astype(float)
        assert np.abs(second.images['cam_high'][k] - wanted).mean() < 3.0


def test_frames_of_a_bag_come_on_an_even_grid(tmp_path):
    """Observations with a camera's jitter: each frame takes the nearest, actions are theirs."""
    base = episode(0, n=30)
    jitter = np.random.default_rng(1).integers(-4_000_000, 4_000_000, 30)
    jitter[0] = 0
    rough = dataclasses.replace(base, stamps_ns=base.stamps_ns + jitter)
    path = write_lerobot(tmp_path / 'set', [rough], ALOHA)
    got = LeRobotDataset.open(path).read(0)
    n = len(got)
    assert n in (29, 30)
    assert np.array_equal(got.states, base.states[:n])
    np.testing.assert_allclose(got.actions, base.actions[:n], atol=1e-6)


def test_other_rates_interpolate_the_actions(tmp_path):
    path = write_lerobot(tmp_path / 'set', [EPISODES[0]], ALOHA, fps=50)
    got = LeRobotDataset.open(path).read(0)
    assert got.rate == 50.0 and len(got) == 23
    between = (EPISODES[0].actions[0] + EPISODES[0].actions[1]) / 2
    np.testing.assert_allclose(got.actions[2], between, atol=1e-6)
    with pytest.raises(DatasetError, match='whole number'):
        write_lerobot(tmp_path / 'other', [dataclasses.replace(EPISODES[0], rate=12.5)])


def test_statistics_go_into_a_checkpoint(folder, tmp_path):
    from pi0_ros.policy.checkpoint import read_norm_stats

    path = write_statistics(tmp_path, LeRobotDataset.open(folder).statistics())
    assert len(read_norm_stats(path)['actions']['q01']) == 14


def test_real_humanoid_data_set(shared_dir):
    """v2.1, nested names, one episode of a hundred, no videos, no stats.json."""
    path = shared_dir / 'real' / 'stats' / 'lerobot_dataset_v21_g1'
    assert is_lerobot(path)
    data = LeRobotDataset.open(path)
    assert (data.version, data.fps, data.robot_type) == ('v2.1', 30.0, 'Unitree_G1_Inspire')
    assert data.prompt == 'Pick up the yellow bottle on the table.'
    assert len(data.state_names) == 26 and data.state_names[0] == 'kLeftShoulderPitch'
    assert any('episodes.jsonl' in m for m in data.missing)
    assert any('99 of 100 episodes' in m for m in data.missing)
    assert any('100 videos are missing' in m for m in data.missing)
    assert [e.index for e in data.entries] == [10]
    values = data.statistics()
    assert len(values['actions']['mean']) == 26
    lines = (path / 'meta' / 'episodes_stats.jsonl').read_text().splitlines()
    rows = [json.loads(line)['stats']['action'] for line in lines]
    counts = np.array([row['count'][0] for row in rows], dtype=float)
    means, stds = (np.array([row[k] for row in rows]) for k in ('mean', 'std'))
    mean = (counts[:, None] * means).sum(0) / counts.sum()
    square = (counts[:, None] * (stds**2 + means**2)).sum(0) / counts.sum()
    np.testing.assert_allclose(values['actions']['mean'], mean, rtol=1e-9)
    np.testing.assert_allclose(values['actions']['std'], np.sqrt(square - mean**2), rtol=1e-6)
    got = data.read(10, images=False)
    assert got.states.shape == (290, 26) and got.prompts[0] == data.prompt
    with pytest.raises(DatasetError, match='episode_000010.mp4: this video is missing'):
        data.read(10)
    with pytest.raises(DatasetError, match='26 actions.*robot has 14 joints.*cut at 30 Hz'):
        check_robot(ChunkDataset([got], 50, 30.0), ALOHA)


def test_joints_in_another_order_are_brought_into_the_robots():
    names = [f'main_{n.replace("/", "_")}.pos' for n in reversed(ALOHA.joint_names)]
    assert joint_order(names, ALOHA.joint_names) == list(range(13, -1, -1))
    assert joint_order([f'motor_{i}' for i in range(14)], ALOHA.joint_names) == slice(None)


def test_joint_order_applies_to_state_and_actions(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / 'copy')
    info = json.loads((copy / 'meta' / 'info.json').read_text())
    back = [n.replace('/', '_') for n in reversed(ALOHA.joint_names)]
    info['features']['action']['names'] = {'motors': back}
    (copy / 'meta' / 'info.json').write_text(json.dumps(info))
    got = LeRobotDataset.open(copy).read(0, robot=ALOHA)
    assert np.array_equal(got.actions, EPISODES[0].actions[:, ::-1])
    assert np.array_equal(got.states, EPISODES[0].states)


def edit_info(folder, **changes):
    path = folder / 'meta' / 'info.json'
    info = json.loads(path.read_text())
    info.update(changes)
    path.write_text(json.dumps(info))


def test_what_is_no_data_set_or_too_old_is_said(folder, tmp_path):
    with pytest.raises(DatasetError, match='no LeRobot data set'):
        LeRobotDataset.open(tmp_path)
    copy = shutil.copytree(folder, tmp_path / 'copy')
    edit_info(copy, codebase_version='v1.6')
    with pytest.raises(DatasetError, match="version 'v1.6'.*convert it"):
        LeRobotDataset.open(copy)
    edit_info(copy, codebase_version='v2.1', features={'action': {'dtype': 'float32'}})
    with pytest.raises(DatasetError, match="no feature 'observation.state'"):
        LeRobotDataset.open(copy)
    edit_info(copy, fps=0)
    with pytest.raises(DatasetError, match='fps is 0'):
        LeRobotDataset.open(copy)


def test_damage_is_said_with_the_file(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / 'copy')
    file = LeRobotDataset.open(copy).entries[0].data
    table = pq.read_table(file).to_pydict()
    cell = table['observation.images.cam_high'][1]
    cell['bytes'] = cell['bytes'][:20]
    table['observation.images.cam_left_wrist'][0] = {'bytes': None, 'path': 'images/0.png'}
    pq.write_table(pa.table(table), file)
    got = LeRobotDataset.open(copy).read(0)
    with pytest.raises(DatasetError, match='picture 1 is damaged'):
        got.images['cam_high'][1]
    with pytest.raises(DatasetError, match='not in the parquet file.*embed'):
        got.images['cam_left_wrist'][0]
    del table['action']
    pq.write_table(pa.table(table), file)
    with pytest.raises(DatasetError, match='no column action'):
        LeRobotDataset.open(copy).read(0)
    file.write_bytes(b'PAR1 no more')
    with pytest.raises(DatasetError, match='not readable as parquet'):
        LeRobotDataset.open(copy).read(0)


def test_pictures_as_jpeg_and_as_bare_bytes(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / 'copy')
    file = LeRobotDataset.open(copy).entries[0].data
    table = pq.read_table(file).to_pydict()
    out = io.BytesIO()
    Image.fromarray(EPISODES[0].images['cam_high'][0]).save(out, 'JPEG', quality=95)
    table['observation.images.cam_high'] = [out.getvalue()] * len(table['index'])
    pq.write_table(pa.table(table), file)
    got = LeRobotDataset.open(copy).read(0).images['cam_high'][0].astype(float)
    assert np.abs(got - EPISODES[0].images['cam_high'][0]).mean() < 4.0


def test_writing_refuses_what_would_be_lost(tmp_path):
    (tmp_path / 'full').mkdir()
    (tmp_path / 'full' / 'x').touch()
    with pytest.raises(DatasetError, match='not empty'):
        write_lerobot(tmp_path / 'full', EPISODES)
    with pytest.raises(DatasetError, match='other joints or cameras'):
        write_lerobot(tmp_path / 'a', [EPISODES[0], episode(1, dof=7)])
    with pytest.raises(DatasetError, match='even sides'):
        write_lerobot(tmp_path / 'b', [episode(0, size=(31, 48))], videos=True)
    grown = episode(0)
    grown.images['cam_high'][3] = np.zeros((64, 64, 3), np.uint8)
    with pytest.raises(DatasetError, match='picture 3 of cam_high'):
        write_lerobot(tmp_path / 'c', [grown])
    with pytest.raises(DatasetError, match="'v1.0' is not written"):
        write_lerobot(tmp_path / 'd', EPISODES, version='v1.0')
