# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Chunks are accepted or refused as a whole; resampling keeps rows in order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pi0_ros.control import ActionChunk, ChunkError, chunk_label, parse_chunk_label
from pi0_ros.control.chunk import resample

DOF = 14
GOOD = np.arange(50 * DOF, dtype=np.float32).reshape(50, DOF)


def with_nan(row):
    bad = GOOD.copy()
    bad[row, 3] = np.nan
    return bad


@pytest.mark.parametrize(
    ('actions', 'said'),
    [
        (GOOD[:, :13], r'\(50, 13\)'),
        (np.zeros((50, 16)), r'\(50, 16\)'),
        (np.zeros((0, DOF)), r'\(0, 14\)'),
        (np.zeros(DOF), r'\(14,\)'),
        (GOOD.astype(object), 'dtype object'),
        (GOOD > 3, 'dtype bool'),
        (with_nan(30), 'nan at row 30, joint 3'),
        (np.full((50, DOF), np.inf), 'inf at row 0'),
        (None, 'dtype object'),
        ('text', 'dtype'),
        (GOOD[None], r'\(1, 50, 14\)'),  # a batch of one
        ({'actions': GOOD}, 'a dict of dtype object'),
        ([[0.0] * 14, [0.0] * 13], 'a list that is no array'),
        ((GOOD, {}), 'a tuple that is no array'),
        (GOOD.astype(complex), 'dtype complex128'),
        (np.full((50, DOF), 1e300), 'inf at row 0, joint 0'),
    ],
)
def test_b47_malformed_chunk_is_refused_as_a_whole(actions, said):
    with pytest.raises(ChunkError, match=said):
        ActionChunk.of(actions, DOF)


@pytest.mark.parametrize('dof', [14, 7])
def test_b54_the_models_padding_is_dropped(dof):
    wide = np.full((50, 32), 9.9)
    wide[:, :dof] = 0.5
    assert np.array_equal(ActionChunk.of(wide, dof).actions, np.full((50, dof), 0.5, np.float32))


def test_chunk_is_a_read_only_copy_in_float32():
    source = GOOD.astype(np.float64)
    chunk = ActionChunk.of(source, DOF, sequence=3)
    source[:] = 0.0
    np.testing.assert_array_equal(chunk.actions, GOOD)
    assert chunk.actions.dtype == np.float32
    with pytest.raises(ValueError, match='read-only'):
        chunk.actions[0, 0] = 1.0


def test_whole_rows_come_out_unchanged():
    np.testing.assert_array_equal(resample(GOOD, 7.0, 1.0), GOOD[7:])


@given(
    rows=st.integers(1, 40),
    start=st.floats(0.0, 50.0),
    step=st.floats(0.1, 3.0),
)
def test_resampled_ramp_stays_a_ramp_inside_the_chunk(rows, start, step):
    ramp = np.arange(rows, dtype=np.float64)[:, None]
    out = resample(ramp, start, step)[:, 0]
    if start > rows - 1 + 1e-6:
        assert len(out) == 0
        return
    assert out[0] == pytest.approx(start, abs=2e-6)
    assert out[-1] <= rows - 1 and rows - 1 - out[-1] < step + 1e-5  # nothing left unsent
    np.testing.assert_allclose(np.diff(out), step, atol=3e-6)


STAMPS = st.integers(0, 2**62)


@given(
    sequence=st.integers(0, 2**40),
    seed=st.integers(0, 2**31),
    stamp=STAMPS,
    joints=st.lists(STAMPS, max_size=4),
    cameras=st.dictionaries(st.text(), STAMPS, max_size=4),
)
def test_a_label_says_everything_that_repeats_the_inference(
    sequence, seed, stamp, joints, cameras
):
    """Cameras may be named anything, also 'seq' or 'a;b=c'."""
    chunk = ActionChunk.of(
        GOOD, DOF, sequence=sequence, seed=seed, stamp_ns=stamp,
        joint_stamps_ns=tuple(joints), image_stamps_ns={'joints': 5, **cameras},
    )  # fmt: skip
    if not joints:
        chunk = ActionChunk.of(
            GOOD, DOF, sequence=sequence, seed=seed, stamp_ns=stamp,
            image_stamps_ns={k: v for k, v in cameras.items() if k != 'joints'},
        )  # fmt: skip
    text = chunk_label(chunk)
    assert text.startswith(f'seq={sequence};seed={seed};obs={stamp}')
    label = parse_chunk_label(text)
    assert (label['seq'], label['seed'], label['obs']) == (sequence, seed, stamp)
    assert label.get('joints', ()) == chunk.joint_stamps_ns
    assert label['cameras'] == chunk.image_stamps_ns


def test_labels_of_older_versions_are_read():
    assert parse_chunk_label('seq=3;seed=7') == {'seq': 3, 'seed': 7, 'cameras': {}}


@pytest.mark.parametrize('text', ['', 'world', 'seq=3', 'seq=x;seed=1', 'seq=1;seed=2;a=b=c'])
def test_a_text_that_is_no_label_is_refused_by_quoting_it(text):
    with pytest.raises(ChunkError, match='not published by policy_node'):
        parse_chunk_label(text)


@pytest.mark.parametrize('kind', [np.float64, np.float16, np.int64, '>f4', list])
def test_whatever_holds_real_numbers_is_accepted(kind):
    whole = np.arange(2 * DOF).reshape(2, DOF)
    given = whole.tolist() if kind is list else whole.astype(kind)
    np.testing.assert_array_equal(ActionChunk.of(given, DOF).actions, whole)
