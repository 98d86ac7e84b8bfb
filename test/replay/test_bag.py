# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Reading bags: storages, damage, and files that are no bags; BAG entries of the field reports."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3

import numpy as np
import pytest
from bags import aloha_messages, string, write_bag

from pi0_ros.replay import BagError, open_bag
from pi0_ros.robot import RobotSpec

ROBOT = RobotSpec.load('aloha')


@pytest.fixture()
def messages():
    return aloha_messages(ROBOT, 1.0)


def read(path):
    with open_bag(path) as bag:
        return [(topic, ns, data) for topic, ns, data in bag.messages()], bag


@pytest.mark.parametrize('storage', ['mcap', 'sqlite3'])
@pytest.mark.parametrize('compress', ['', 'file', 'message', 'storage'])
def test_every_storage_gives_the_same_messages(tmp_path, messages, storage, compress):
    if compress == 'storage' and storage == 'sqlite3':
        compress = ''
    plain, _ = read(write_bag(tmp_path / 'plain', messages))
    path = write_bag(tmp_path / 'bag', messages, storage, compress)
    before = sorted(p.name for p in path.iterdir())
    got, bag = read(path)
    assert got == plain
    assert len(got) == len(messages) == bag.count
    assert not bag.incomplete
    assert sorted(p.name for p in path.iterdir()) == before


def test_b77_storage_is_found_from_the_file_itself(tmp_path, messages):
    path = write_bag(tmp_path / 'bag', messages)
    metadata = path / 'metadata.yaml'
    text = metadata.read_text()
    for wrong in ("''", 'sqlite3'):
        metadata.write_text(text.replace('identifier: mcap', f'identifier: {wrong}'))
        assert len(read(path)[0]) == len(messages)
    file = next(path.glob('*.mcap'))
    assert len(read(file)[0]) == len(messages)
    path = write_bag(tmp_path / 'sqlite', messages, 'sqlite3')
    assert len(read(next(path.glob('*.db3')))[0]) == len(messages)


@pytest.mark.parametrize('compress', ['', 'storage'])
def test_b78_cut_recording_is_read_up_to_the_break(tmp_path, messages, compress):
    path = write_bag(tmp_path / 'bag', messages, compress=compress)
    (path / 'metadata.yaml').unlink()
    whole, bag = read(path)
    assert any('metadata.yaml is missing' in note for note in bag.notes)
    file = next(path.glob('*.mcap'))
    data = file.read_bytes()
    file.write_bytes(data[: len(data) * 6 // 10])
    got, bag = read(path)
    assert got == whole[: len(got)]
    if not compress:  # all in one chunk otherwise
        assert 0 < len(got) < len(whole)
    assert 'cut off' in bag.incomplete


def test_topic_and_type_names_are_normalised(tmp_path):
    path = write_bag(tmp_path / 'bag', [('AAA', 'std_msgs/msg/String', 5, string('x'))])
    _, bag = read(path)
    assert bag.topics['/AAA'].type == 'std_msgs/msg/String'


@pytest.mark.parametrize(
    ('content', 'text'),
    [
        (b'#ROSBAG V2.0\n....', 'ROS 1 bag'),
        (b'version https://git-lfs.github.com/spec/v1\n', 'git lfs pull'),
        (b'hello', 'neither an mcap nor a sqlite3 file'),
        (b'', 'empty'),
        (b'SQLite format 3\x00' + bytes(100), 'damaged'),
        (b'\x28\xb5\x2f\xfdnonsense', 'damaged zstd'),
    ],
)
def test_what_is_no_bag_is_named(tmp_path, content, text):
    file = tmp_path / 'x.mcap'
    file.write_bytes(content)
    with pytest.raises(BagError, match=text), open_bag(file):
        raise AssertionError('must not open')


def test_missing_folder_and_file_are_named(tmp_path, messages):
    with pytest.raises(BagError, match='no such bag'), open_bag(tmp_path / 'nothing'):
        raise AssertionError('must not open')
    with pytest.raises(BagError, match='neither .mcap nor .db3'), open_bag(tmp_path):
        raise AssertionError('must not open')
    path = write_bag(tmp_path / 'bag', messages)
    next(path.glob('*.mcap')).unlink()
    with pytest.raises(BagError, match=r'bag.mcap'), open_bag(path):
        raise AssertionError('must not open')


REAL = {  # folder -> messages read, or part of the refusal
    'ats_flight_v9': 6553,
    'ats_servo_serial_log': 1294,
    'ats_static_inverror': 6849,
    'file_compression': 775,
    'geocamxyz_all_types_sqlite3': 188,
    'inorbit_metadata_only': 'rosbag_demo.db3',
    'interbotix_duck_dunk_ros1': 'rosbags-convert',
    'jinbeizame_array_msgs': 2,
    'klintan_bare_db3': 5,
    'lfs_pointer_demo': 'git lfs pull',
    'nav2_mcap_zstd_v9': 693,
    'rosbag2_cdr_test_sqlite3_v7': 7,
    'rosbag2_empty_bag': 0,
    'rosbag2_no_metadata_sqlite3_split': 3177,
    'rosbag2_perf_malformed_types': 0,
    'rosbag2_seek_mcap_v6': 5,
    'rosbag2_service_events_sqlite3_v8': 10,
    'rosbag2_wbag_mcap_split': 6074,
    'rosbag2_wrong_serialization_sqlite3': 'only cdr',
    'wx200_waist_converted': 10598,
}


@pytest.mark.parametrize('name', REAL)
def test_bags_of_others(shared_dir, name):
    expected = REAL[name]
    if isinstance(expected, str):
        with pytest.raises(BagError, match=expected):
            read(shared_dir / 'real' / 'bags' / name)
        return
    got, bag = read(shared_dir / 'real' / 'bags' / name)
    assert len(got) == bag.count == expected
    times = [ns for _, ns, _ in got]
    assert times == sorted(times)
    assert not bag.incomplete


@pytest.mark.parametrize(
    'text',
    ['', 'hello', ': : :\n- [', 'rosbag2_bagfile_information: 5',
     'rosbag2_bagfile_information:\n  relative_file_paths: 5\n  topics_with_message_count: x\n',
     'rosbag2_bagfile_information:\n  relative_file_paths: [5, null]\n'],
)  # fmt: skip
def test_metadata_of_a_killed_recorder_or_an_editor_does_not_matter(tmp_path, messages, text):
    path = write_bag(tmp_path / 'bag', messages)
    (path / 'metadata.yaml').write_text(text)
    assert len(read(path)[0]) == len(messages)
    (path / 'metadata.yaml').unlink()
    (path / 'metadata.yaml').mkdir()
    assert len(read(path)[0]) == len(messages)


def test_part_that_is_missing_from_a_split_bag_is_named(tmp_path, messages):
    path = tmp_path / 'split'
    path.mkdir()
    third = len(messages) // 3
    for k in (0, 2, 11):
        part = write_bag(tmp_path / f'part{k}', messages[k % 3 * third : (k % 3 + 1) * third])
        shutil.copy(next(part.glob('*.mcap')), path / f'split_{k}.mcap')
    got, bag = read(path)
    assert len(got) == 3 * third
    assert 'split_1, split_3' in bag.incomplete
    (path / 'metadata.yaml').write_text(
        'rosbag2_bagfile_information:\n  relative_file_paths: [split_0.mcap, split_1.mcap]\n'
    )
    with pytest.raises(BagError, match=r'lists split_1.mcap, which is not there'):
        read(path)


@pytest.mark.parametrize('tail', ['', 'zeros'])
def test_cut_sqlite_file_is_read_row_by_row_up_to_the_damage(tmp_path, messages, tail):
    path = write_bag(tmp_path / 'bag', messages, 'sqlite3')
    whole, _ = read(path)
    file = next(path.glob('*.db3'))
    data = file.read_bytes()
    left = data[: len(data) * 6 // 10]
    file.write_bytes(left + bytes(len(data) - len(left)) if tail else left)
    got, bag = read(path)
    assert len(whole) // 3 < len(got) < len(whole)
    assert got == whole[: len(got)]
    assert 'damaged' in bag.incomplete


def test_writes_that_sqlite_had_not_finished_are_read_and_left_alone(tmp_path, messages):
    path = write_bag(tmp_path / 'bag', messages, 'sqlite3')
    with contextlib.closing(sqlite3.connect(next(path.glob('*.db3')))) as db:
        db.execute('PRAGMA journal_mode = WAL')
        db.execute(
            'INSERT INTO messages (topic_id, timestamp, data) '
            'SELECT topic_id, timestamp + 1, data FROM messages LIMIT 3'
        )
        db.commit()
        shutil.copytree(path, tmp_path / 'killed')
    before = {p.name: p.read_bytes() for p in (tmp_path / 'killed').iterdir()}
    assert any(name.endswith('-wal') for name in before)
    assert len(read(tmp_path / 'killed')[0]) == len(messages) + 3
    assert {p.name: p.read_bytes() for p in (tmp_path / 'killed').iterdir()} == before


def test_mcap_without_its_index_or_with_a_zeroed_tail_is_read_as_far_as_it_goes(
    tmp_path, messages
):
    path = write_bag(tmp_path / 'bag', messages)
    (path / 'metadata.yaml').unlink()
    whole, _ = read(path)
    file = next(path.glob('*.mcap'))
    data = file.read_bytes()
    file.write_bytes(data[:-200])  # a recorder that was killed while writing the summary
    assert read(path)[0] == whole
    third = len(data) // 3
    file.write_bytes(data[:third] + bytes(len(data) - third))  # what a power failure leaves
    got, bag = read(path)
    assert 1 < len(got) < len(whole)
    assert got[:-1] == whole[: len(got) - 1]  # the last one lies across the break
    assert 'damaged from byte' in bag.incomplete


@pytest.mark.parametrize('storage', ['mcap', 'sqlite3'])
def test_flipped_bits_never_end_in_anything_but_a_result_or_one_sentence(
    tmp_path, messages, storage
):
    path = write_bag(tmp_path / 'bag', messages[:60], storage)
    (path / 'metadata.yaml').unlink()
    file = next(path.iterdir())
    data = file.read_bytes()
    rng = np.random.default_rng(0)
    outcomes = set()
    for _ in range(60):
        broken = bytearray(data)
        ends = (0, 3000) if rng.random() < 0.5 else (len(data) - 3000, len(data))
        for at in rng.integers(*ends, 4):
            broken[at] ^= int(rng.integers(1, 256))
        file.write_bytes(bytes(broken))
        try:
            _, bag = read(path)
            outcomes.add('damaged' if bag.incomplete else 'read')
        except BagError as error:
            outcomes.add('refused')
            assert '\n' not in str(error)
    assert {'read', 'refused'} & outcomes and len(outcomes) > 1
