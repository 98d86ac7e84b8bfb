# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""Statistics: every mode of normalisation, those of streams, of episodes, of data sets."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pi0_ros.errors import Pi0RosError
from pi0_ros.policy import Pi0Policy
from pi0_ros.policy.checkpoint import read_statistics
from pi0_ros.policy.make_checkpoint import make_checkpoint
from pi0_ros.policy.normalization import (
    Normalizer,
    RunningStatistics,
    StatisticsError,
    aggregate_episode_stats,
    live_width,
)
from pi0_ros.robot import RobotSpec

ALOHA = RobotSpec.load('aloha')
RANGES = {'min': [0.0, -1.0, 2.0], 'max': [4.0, 1.0, 2.0], 'q10': [1.0, 0.0, 0.0],
          'q90': [2.0, 0.5, 0.0], 'q01': [0.0, -1.0, 0.0], 'q99': [1.0, 1.0, 0.0]}  # fmt: skip


# --- modes


@pytest.mark.parametrize('mode, low, high', [('min_max', 'min', 'max'), ('quantile', 'q01', 'q99'),
                                             ('quantile10', 'q10', 'q90')])  # fmt: skip
def test_a_range_goes_to_minus_one_and_one_in_each_dialect(mode, low, high):
    x = np.array([3.0, 0.25, 2.5])
    low, high = np.array(RANGES[low]), np.array(RANGES[high])
    spread = high - low
    for dialect, divisor, factor in (
        ('openpi', spread + 1e-6, spread + 1e-6),
        ('lerobot', *[np.where(spread == 0, 1e-8, spread)] * 2),
        ('lerobot_old', spread + 1e-8, spread),
    ):
        normalizer = Normalizer.from_statistics('state', RANGES, mode, dialect, 3)
        y = normalizer.normalize(x)
        assert np.allclose(y, 2 * (x - low) / divisor - 1, rtol=1e-14)
        back = normalizer.unnormalize(y)
        assert np.allclose(back, (y + 1) / 2 * factor + low, rtol=1e-14)
        assert np.allclose(back[:2], x[:2], rtol=1e-6) and np.isfinite(y).all()
    assert live_width(RANGES) == 3


@pytest.mark.parametrize('mode', ['min_max', 'quantile10'])
def test_a_range_that_is_missing_or_upside_down_is_named(mode):
    key = {'min_max': 'max', 'quantile10': 'q90'}[mode]
    with pytest.raises(StatisticsError, match=f"no '{key}', which {mode} normalisation needs"):
        Normalizer.from_statistics('state', {**RANGES, key: None}, mode, 'lerobot')
    with pytest.raises(StatisticsError, match='spread of dimension 0 is negative'):
        Normalizer.from_statistics('state', {**RANGES, key: [-9.0, 9.0, 9.0]}, mode, 'lerobot')


@pytest.mark.parametrize('values', ['abc', ['a'] * 3, [[1.0], [1.0, 2.0]], {'a': 1}])
def test_what_is_no_list_of_numbers_is_said_so(values):
    with pytest.raises(StatisticsError, match='state: max is no list of numbers'):
        Normalizer.from_statistics('state', {**RANGES, 'max': values}, 'min_max', 'lerobot')


# --- of a stream


def check_stream(case):
    statistics = RunningStatistics()
    for batch in case['batches']:
        statistics.update(batch)
    for key, values in statistics.result().items():
        assert np.array_equal(values, case['openpi'][key]), key


def test_statistics_of_a_stream_are_openpis_to_the_bit(data_dir):
    cases = json.loads((data_dir / 'transforms/running_stats.json').read_text())['cases']
    assert len(cases) >= 2
    for case in cases:
        check_stream(case)


def test_statistics_of_a_stream_refuse_what_has_none():
    statistics = RunningStatistics()
    statistics.update([[1.0, 2.0]])
    with pytest.raises(StatisticsError, match='of 1 vectors'):
        statistics.result()
    with pytest.raises(StatisticsError, match='width 3 after batches of width 2'):
        statistics.update(np.zeros((4, 3)))
    for batch in ([[np.nan, 0.0]], np.zeros((0, 2))):
        with pytest.raises(StatisticsError, match='not finite'):
            statistics.update(batch)


# --- of episodes


def episodes(seed=0, count=4, width=14):
    """Return rows as in episodes_stats.jsonl, and the frames that they sum up."""
    rng = np.random.default_rng(seed)
    rows, frames = [], []
    for i in range(count):
        x = rng.normal(i, 1 + i, (5 + 7 * i, width))
        frames.append(x)
        stats = {
            'mean': x.mean(0), 'std': x.std(0), 'min': x.min(0), 'max': x.max(0),
            'q01': np.quantile(x, 0.01, axis=0), 'count': [len(x)],
        }  # fmt: skip
        plain = {key: np.asarray(values).tolist() for key, values in stats.items()}
        picture = {'mean': [[[0.5]]] * 3, 'std': [[[0.1 * i]]] * 3, 'count': [2]}
        rows.append({'episode_index': i, 'stats': {
            'observation.state': plain, 'action': plain, 'observation.images.top': picture,
        }})  # fmt: skip
    return rows, np.concatenate(frames)


def test_episodes_pool_to_the_statistics_of_all_their_frames():
    rows, frames = episodes()
    pooled = aggregate_episode_stats(rows)
    state = pooled['observation.state']
    for key, values in (('mean', frames.mean(0)), ('std', frames.std(0)),
                        ('min', frames.min(0)), ('max', frames.max(0))):  # fmt: skip
        assert np.allclose(state[key], values, rtol=1e-12), key
    assert state['count'] == [len(frames)]
    lengths = [row['stats']['action']['count'][0] for row in rows]
    weighted = np.average([r['stats']['action']['q01'] for r in rows], axis=0, weights=lengths)
    assert np.allclose(state['q01'], weighted)  # LeRobot's rule, not the quantile of all
    assert pooled['observation.images.top']['std'].shape == (3, 1, 1)
    bare = aggregate_episode_stats([row['stats'] for row in rows])
    assert np.array_equal(bare['action']['std'], state['std'])


@pytest.mark.parametrize(
    'change, expected',
    [
        (lambda s: s.pop('std'), "episode 2: statistics of 'action' have no 'std'"),
        (lambda s: s.pop('count'), "episode 2: .* no 'count'"),
        (lambda s: s.update(mean=[0.0]), 'episode 2: mean .* shape .1,., before it was .14,.'),
        (lambda s: s.update(mean=['x'] * 14), 'episode 2: mean of action holds no numbers'),
        (lambda s: s.update(std=[float('nan')] * 14), "episode 2: std of 'action' is not finite"),
        (lambda s: s.update(count=[0]), "episode 2 has no frames of 'action'"),
    ],
)
def test_episodes_that_do_not_fit_together_are_named(change, expected):
    rows, _ = episodes()
    rows[2]['stats'] = json.loads(json.dumps(rows[2]['stats']))
    change(rows[2]['stats']['action'])
    with pytest.raises(StatisticsError, match=expected):
        aggregate_episode_stats(rows)


@pytest.mark.parametrize('rows', [[], [3], [{'stats': None}], [{'stats': {}}]])
def test_no_episodes_make_no_statistics(rows):
    with pytest.raises(StatisticsError, match='no statistics'):
        aggregate_episode_stats(rows)


# --- wherever they lie


@pytest.fixture(scope='module')
def made(tmp_path_factory):
    return make_checkpoint(tmp_path_factory.mktemp('made') / 'tiny')


def data_set(folder, tasks=('Pick up the yellow bottle.',), kind='episodes_stats.jsonl'):
    rows, frames = episodes()
    (folder / 'meta').mkdir(parents=True)
    if kind.endswith('l'):
        text = '\n'.join(map(json.dumps, rows))
    else:
        text = json.dumps(rows[0]['stats'])
    (folder / 'meta' / kind).write_text(text + '\n')
    lines = [json.dumps({'task_index': i, 'task': task}) for i, task in enumerate(tasks)]
    (folder / 'meta/tasks.jsonl').write_text('\n'.join(lines))
    return folder, frames


def test_a_data_sets_folder_gives_statistics_and_its_one_instruction(made, tmp_path):
    folder, frames = data_set(tmp_path / 'set')
    policy = Pi0Policy.from_pretrained(made, robot=ALOHA, statistics=folder)
    assert np.allclose(policy.info.statistics['actions']['mean'], frames.mean(0))
    assert policy.prompt == 'Pick up the yellow bottle.'
    for file in (folder / 'meta', folder / 'meta/episodes_stats.jsonl'):
        assert np.allclose(read_statistics(file)[0]['state']['std'], frames.std(0))
    two, _ = data_set(tmp_path / 'two', ('a', 'b'), 'stats.json')
    assert Pi0Policy.from_pretrained(made, robot=ALOHA, statistics=two).prompt == ''


def test_statistics_are_read_from_a_processors_file(made, tmp_path):
    values = np.arange(14.0, dtype=np.float32)
    file = tmp_path / 'step_5.safetensors'
    save_file({f'{feature}.{key}': values + 1 for feature in ('observation.state', 'action')
               for key in ('mean', 'std')}, file)  # fmt: skip
    policy = Pi0Policy.from_pretrained(made, robot=ALOHA, statistics=str(file))
    assert np.array_equal(policy.info.statistics['state']['std'], values + 1)


@pytest.mark.parametrize(
    'name, text, expected',
    [
        ('stats.json', '{"observation.state": {"mean": [1]}}', "'action' are missing"),
        ('episodes_stats.jsonl', '{"stats": {}}\n{', 'not readable as lines of JSON'),
        ('norm_stats.json', '{"norm_stats": [1]}', "no object by 'state' and 'actions'"),
        ('norm_stats.json', '{"norm_stats": {"state": {}}}', "'actions' are missing"),
        ('calibration.json', '{"shoulder_pan": {"id": 1}}', "'state' are missing"),
    ],
)
def test_files_without_statistics_are_refused(made, tmp_path, name, text, expected):
    (tmp_path / name).write_text(text)
    with pytest.raises(Pi0RosError, match=expected):
        Pi0Policy.from_pretrained(made, robot=ALOHA, statistics=tmp_path / name)
    with pytest.raises(Pi0RosError, match='holds no statistics'):
        Pi0Policy.from_pretrained(made, robot=ALOHA, statistics=tmp_path.parent)


def test_openpis_assets_are_chosen_by_name(made, tmp_path):
    folder = shutil.copytree(made, tmp_path / 'several')
    stats = json.loads((folder / 'norm_stats.json').read_text())
    (folder / 'norm_stats.json').unlink()
    for number, name in enumerate(('trossen', 'physical-intelligence/libero')):
        stats['norm_stats']['state']['mean'] = [0.5 * number] * 14
        (folder / 'assets' / name).mkdir(parents=True)
        (folder / 'assets' / name / 'norm_stats.json').write_text(json.dumps(stats))
    with pytest.raises(Pi0RosError, match='trossen, physical-intelligence/libero.*asset_id'):
        Pi0Policy.from_pretrained(folder, robot=ALOHA)
    for number, name in enumerate(('trossen', 'physical-intelligence/libero')):
        policy = Pi0Policy.from_pretrained(folder, robot=ALOHA, asset_id=name)
        assert policy.info.statistics['state']['mean'][0] == 0.5 * number
    with pytest.raises(Pi0RosError, match='no assets/other/norm_stats.json .it has: trossen'):
        Pi0Policy.from_pretrained(folder, robot=ALOHA, asset_id='other')


def test_actions_are_left_alone_where_lerobot_left_them_alone(made, tmp_path):
    folder = shutil.copytree(made, tmp_path / 'new')
    dims = json.loads((folder / 'config.json').read_text())['model']['dims']
    config = {'type': 'pi0', 'dims': dims, 'normalization_mapping': {'STATE': 'MIN_MAX'}}
    (folder / 'config.json').write_text(json.dumps(config))
    save_file({'observation.state.min': np.zeros(14), 'observation.state.max': np.ones(14)},
              folder / 's.safetensors')  # fmt: skip
    norm_map = {'VISUAL': 'IDENTITY', 'STATE': 'MIN_MAX', 'ACTION': 'IDENTITY'}
    steps = [{'class': 'lerobot.processor.normalize_processor.NormalizerProcessorStep',
              'config': {'eps': 1e-8, 'norm_map': norm_map}, 'state_file': 's.safetensors'}]
    (folder / 'policy_preprocessor.json').write_text(json.dumps({'steps': steps}))
    info = Pi0Policy.from_pretrained(folder, robot=ALOHA).info
    assert (info.state_mode, info.action_mode) == ('min_max', 'identity')
    assert load_file(folder / 's.safetensors').keys() == {
        f'observation.state.{key}' for key in info.statistics['state']
    }


# --- files that others made


def test_every_real_file_of_statistics_is_read_or_refused(shared_dir):
    stats = shared_dir / 'real/stats'
    widths = {'robomme': (8, 8), 'humanoid': (24, 24), 'kinova': (8, 8)}
    for name, expected in widths.items():
        found, _ = read_statistics(stats / f'openpi_{name}_norm_stats.json')
        assert tuple(map(live_width, (found['state'], found['actions']))) == expected
        for group in ('state', 'actions'):
            assert len(found[group]['mean']) >= expected[0]
            for mode in ('zscore', 'quantile'):
                normalizer = Normalizer.from_statistics(group, found[group], mode, 'openpi')
                y = normalizer.normalize(np.array(found[group]['mean']) + 0.1)
                assert np.isfinite(y).all()
            with pytest.raises(StatisticsError, match=f'{expected[group != "state"]} dim.*14'):
                Normalizer.from_statistics(group, found[group], 'zscore', 'openpi', 14)
    found, task = read_statistics(stats / 'lerobot_dataset_v21_g1')
    assert live_width(found['actions']) == 26 and 'yellow bottle' in task
    franka = stats / 'lerobot_smolvla_franka'
    file = 'policy_preprocessor_step_5_normalizer_processor.safetensors'
    found, _ = read_statistics(franka / file)
    assert tuple(map(live_width, (found['state'], found['actions']))) == (9, 8)
    with pytest.raises(Pi0RosError, match="'state' are missing .it has shoulder_pan"):
        read_statistics(stats / 'lerobot_so101_calibration_follower.json')


def test_the_whole_reference_of_streams(shared_dir):
    path = shared_dir / 'golden/transforms/running_stats.json'
    for case in json.loads(path.read_text())['cases']:
        check_stream(case)
