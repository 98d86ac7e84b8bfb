# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
LeRobot data sets, v2.1 and v3.0, as episodes and back; needs pyarrow, not lerobot.

    v2.1  data/chunk-000/episode_000000.parquet    one file an episode; meta/*.jsonl
    v3.0  data/chunk-000/file-000.parquet          many episodes a file; meta/episodes/**.parquet

Pictures are in the parquet files (PNG, JPEG) or in videos (decoded with av). A frame's action is
the one commanded at that frame: row 0 of the chunk, due one frame later as everywhere here.
v2.0 is read as v2.1, whose folders it shares. A folder that lacks files is opened all the same,
for its statistics and the episodes that it has; ``missing`` names what is not there.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pi0_ros.errors import Pi0RosError
from pi0_ros.robot import RobotSpec
from pi0_ros.training.dataset import SECOND, DatasetError, Episode

STATE, ACTION, IMAGES = 'observation.state', 'action', 'observation.images.'
READABLE = ('v2.0', 'v2.1', 'v3.0')
WRITABLE = ('v2.1', 'v3.0')
FILES_A_CHUNK = 1000
FILE_BYTES = 100 * 2**20
"""Size after which a v3.0 data file is ended, as LeRobot does."""

PICTURES_SAMPLED = 100
"""Pictures a camera and episode from which their statistics are taken."""

QUANTILES = {'q01': 0.01, 'q10': 0.1, 'q50': 0.5, 'q90': 0.9, 'q99': 0.99}
INDICES = ('timestamp', 'frame_index', 'episode_index', 'index', 'task_index')
V2_DATA = 'data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet'
V2_VIDEO = 'videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4'
V3_DATA = 'data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet'
V3_VIDEO = 'videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4'


@dataclass(frozen=True)
class Entry:
    """One episode: where its rows and videos are. ``videos``: camera -> (file, begin [s])."""

    index: int
    length: int | None
    data: Path
    videos: Mapping[str, tuple[Path, float]]


@dataclass(frozen=True)
class LeRobotDataset:
    """
    An opened data set; make one with :meth:`open`.

    ``entries``: the episodes whose rows are there. ``cameras``: camera -> its feature.
    ``state_names`` and ``action_names``: joints, () where the data set does not name them.
    ``missing``: sentences on what the folder should hold and does not.
    """

    path: Path
    version: str
    fps: float
    robot_type: str
    features: Mapping[str, Mapping]
    tasks: Mapping[int, str]
    entries: tuple[Entry, ...]
    cameras: Mapping[str, str]
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    missing: tuple[str, ...]

    @classmethod
    def open(cls, path) -> LeRobotDataset:
        """
        Read a data set's meta files.

        :raises DatasetError: it is none, of a version that is not read, or without state or
            actions.
        """
        path = Path(path)
        info = _read_json(path / 'meta' / 'info.json', f'{path} is no LeRobot data set')
        version = str(info.get('codebase_version', ''))
        if version not in READABLE:
            raise DatasetError(
                f"{path} is a LeRobot data set of version '{version}'; {', '.join(READABLE)} are "
                "read, convert it with LeRobot's own scripts"
            )
        features = info.get('features')
        fps = info.get('fps')
        if not isinstance(features, Mapping) or not isinstance(fps, (int, float)) or fps <= 0:
            raise DatasetError(f'{path}/meta/info.json: no features, or fps is {fps!r}')
        for name in (STATE, ACTION):
            if name not in features:
                raise DatasetError(
                    f"{path} has no feature '{name}' (it has {', '.join(features)}); pi0 learns "
                    'actions from states'
                )
        missing: list[str] = []
        v3 = version.startswith('v3')
        tasks = _tasks_v3(path, missing) if v3 else _tasks_v2(path, missing)
        cameras = {
            name.removeprefix(IMAGES).removeprefix('observation.'): name
            for name, f in features.items()
            if f.get('dtype') in ('image', 'video') and not _is_depth(f)
        }
        video = {c: f for c, f in cameras.items() if features[f]['dtype'] == 'video'}
        entries = (_entries_v3 if v3 else _entries_v2)(path, info, video, missing)
        return cls(
            path, version, float(fps), str(info.get('robot_type') or ''), features, tasks,
            tuple(entries), cameras, _names(features[STATE]), _names(features[ACTION]),
            tuple(missing),
        )  # fmt: skip

    @property
    def prompt(self) -> str:
        """The only task's text, '' if there are none or several."""
        return next(iter(self.tasks.values())) if len(self.tasks) == 1 else ''

    def statistics(self) -> dict[str, dict]:
        """
        Return the data set's own statistics, without reading a frame.

        :return: ``state`` and ``actions``, each with ``mean``, ``std`` and what else it has
            (``q01``, ``q99`` from LeRobot 0.4 on): lists of floats.
        :raises DatasetError: when it has none.
        """
        from pi0_ros.policy.normalization import aggregate_episode_stats

        path = self.path / 'meta' / 'episodes_stats.jsonl'
        whole = self.path / 'meta' / 'stats.json'
        if whole.is_file():
            found = _read_json(whole, str(whole))
        elif path.is_file():
            found = aggregate_episode_stats(_read_lines(path))
        else:
            raise DatasetError(
                f'{self.path} has neither meta/stats.json nor meta/episodes_stats.jsonl; '
                'compute statistics from its frames'
            )
        result = {}
        for name, feature in (('state', STATE), ('actions', ACTION)):
            if feature not in found:
                raise DatasetError(f"{self.path}: its statistics lack '{feature}'")
            result[name] = {
                key: np.asarray(value, dtype=float).reshape(-1).tolist()
                for key, value in found[feature].items()
                if key != 'count'
            }
        return result

    def read(
        self, number: int, *, images: bool = True, image_size: int | None = None,
        robot: RobotSpec | None = None,
    ) -> Episode:  # fmt: skip
        """
        Return an episode.

        :param number: its index in the data set.
        :param images: False: no pictures (for statistics, or a data set without its videos).
        :param image_size: shrink pictures of videos to this square, as the model's input is.
        :param robot: its joint order is taken where the data set names the same joints in
            another one.
        :raises DatasetError: the episode, its file or its videos are not there or damaged.
        """
        entry = next((e for e in self.entries if e.index == number), None)
        if entry is None:
            have = ', '.join(str(e.index) for e in self.entries[:8]) or 'none'
            raise DatasetError(f'{self.path} has no rows of episode {number} (it has {have})')
        embedded = {c: f for c, f in self.cameras.items() if c not in self._videos()}
        columns = [STATE, ACTION, 'frame_index', 'task_index']
        table = _rows(entry, [*columns, *(embedded.values() if images else ())])
        n = len(table['frame_index'])
        where = f'{self.path} episode {number}'
        if not n or (entry.length is not None and n != entry.length):
            raise DatasetError(f'{where}: {n} rows of {entry.length} are in {entry.data.name}')
        if not np.array_equal(table['frame_index'], np.arange(n)):
            raise DatasetError(f'{where}: its frames are not numbered 0, 1, 2, ...')
        pictures: dict[str, Sequence[np.ndarray]] = {}
        if images:
            for camera, feature in self.cameras.items():
                if camera in embedded:
                    pictures[camera] = _Encoded(table[feature], f'{where}, {camera}', image_size)
                else:
                    file, begin = entry.videos[camera]
                    pictures[camera] = read_video(file, begin, n, self.fps, image_size)
        order = {name: slice(None) for name in (STATE, ACTION)}
        if robot is not None:
            order[STATE] = joint_order(self.state_names, robot.joint_names)
            order[ACTION] = joint_order(self.action_names, robot.joint_names)
        stamps = np.round(np.arange(n) * (SECOND / self.fps)).astype(np.int64)
        tasks = [self.tasks.get(int(t)) for t in table['task_index']]
        if None in tasks:
            raise DatasetError(f'{where}: task {table["task_index"][tasks.index(None)]} is not '
                               'among its tasks')  # fmt: skip
        return Episode(
            stamps_ns=stamps, states=table[STATE][:, order[STATE]], images=pictures,
            prompts=tuple(tasks), action_stamps_ns=stamps + round(SECOND / self.fps),
            actions=table[ACTION][:, order[ACTION]], rate=self.fps, source=where,
        )  # fmt: skip

    def read_all(self, **how) -> list[Episode]:
        """
        Return every episode that is there; arguments as in :meth:`read`.

        :raises DatasetError: when there is none.
        """
        if not self.entries:
            raise DatasetError(f'{self.path} holds no episode: {"; ".join(self.missing)}')
        return [self.read(entry.index, **how) for entry in self.entries]

    def _videos(self) -> dict[str, str]:
        return {c: f for c, f in self.cameras.items() if self.features[f]['dtype'] == 'video'}


def is_lerobot(path) -> bool:
    """Tell whether a folder is a LeRobot data set of any version."""
    return (Path(path) / 'meta' / 'info.json').is_file()


def joint_order(names: Sequence[str], wanted: Sequence[str]):
    """
    Return the index that brings joints into the robot's order.

    ``left_waist.pos``, ``main_left/waist`` and ``left/waist`` are one joint. Names that are not
    the robot's say nothing (data sets call joints ``motor_1``): the order stays.

    :return: a list of columns, or a slice that takes all.
    """
    own, goal = [_plain(n) for n in names], [_plain(n) for n in wanted]
    if sorted(own) != sorted(goal) or len(set(own)) < len(own):
        return slice(None)
    return [own.index(name) for name in goal]


def _plain(name: str) -> str:
    text = re.sub(r'[^a-z0-9]+', '_', str(name).lower()).strip('_')
    return re.sub(r'^(main|follower|leader)_|_(pos|position)$', '', text)


# --- reading ---------------------------------------------------------------------------------


def _entries_v2(path: Path, info: Mapping, video: Mapping, missing: list[str]) -> list[Entry]:
    episodes = path / 'meta' / 'episodes.jsonl'
    data, clips = info.get('data_path') or V2_DATA, info.get('video_path') or V2_VIDEO
    size = int(info.get('chunks_size') or FILES_A_CHUNK)
    total = int(info.get('total_episodes') or 0)
    if episodes.is_file():
        lengths = {int(r['episode_index']): int(r['length']) for r in _read_lines(episodes)}
    else:
        missing.append('meta/episodes.jsonl is missing')
        lengths = dict.fromkeys(range(total))
    found, lost, unseen = [], [], 0
    for number, length in sorted(lengths.items()):
        place = {'episode_chunk': number // size, 'episode_index': number}
        file = path / data.format(**place)
        films = {c: (path / clips.format(video_key=f, **place), 0.0) for c, f in video.items()}
        unseen += sum(not film.is_file() for film, _ in films.values())
        if file.is_file():
            found.append(Entry(number, length, file, films))
        else:
            lost.append(number)
    _tell_missing(missing, len(lengths), lost, unseen)
    return found


def _entries_v3(path: Path, info: Mapping, video: Mapping, missing: list[str]) -> list[Entry]:
    files = sorted((path / 'meta' / 'episodes').glob('*/*.parquet'))
    if not files:
        missing.append('meta/episodes/*/*.parquet is missing')
        return []
    data, clips = info.get('data_path') or V3_DATA, info.get('video_path') or V3_VIDEO
    found, lost, unseen, total = [], [], 0, 0
    for file in files:
        names = ['episode_index', 'length', 'data/chunk_index', 'data/file_index']
        for feature in video.values():
            names += [f'videos/{feature}/{k}'
                      for k in ('chunk_index', 'file_index', 'from_timestamp')]  # fmt: skip
        table = _columns(file, names)
        for k, number in enumerate(table['episode_index']):
            total += 1
            rows = path / data.format(
                chunk_index=table['data/chunk_index'][k], file_index=table['data/file_index'][k]
            )
            films = {}
            for camera, feature in video.items():
                key = f'videos/{feature}/'
                film = path / clips.format(
                    video_key=feature, chunk_index=table[f'{key}chunk_index'][k],
                    file_index=table[f'{key}file_index'][k],
                )  # fmt: skip
                films[camera] = film, float(table[f'{key}from_timestamp'][k])
                unseen += not film.is_file()
            if rows.is_file():
                found.append(Entry(int(number), int(table['length'][k]), rows, films))
            else:
                lost.append(int(number))
    _tell_missing(missing, total, lost, unseen)
    return found


def _tell_missing(missing: list[str], total: int, lost: list[int], unseen: int) -> None:
    if lost:
        some = ', '.join(map(str, lost[:5])) + (', ...' if len(lost) > 5 else '')
        missing.append(f'rows of {len(lost)} of {total} episodes are missing ({some})')
    if unseen:
        missing.append(f'{unseen} videos are missing')


def _tasks_v2(path: Path, missing: list[str]) -> dict[int, str]:
    file = path / 'meta' / 'tasks.jsonl'
    if not file.is_file():
        missing.append('meta/tasks.jsonl is missing')
        return {}
    return {int(row['task_index']): str(row['task']) for row in _read_lines(file)}


def _tasks_v3(path: Path, missing: list[str]) -> dict[int, str]:
    file = path / 'meta' / 'tasks.parquet'
    if not file.is_file():
        missing.append('meta/tasks.parquet is missing')
        return {}
    table = _columns(file, None)
    texts = table.get('task', table.get('__index_level_0__'))  # pandas keeps an index so
    if texts is None or 'task_index' not in table:
        raise DatasetError(f'{file}: no tasks in it (columns {", ".join(table)})')
    return {int(i): str(t) for i, t in zip(table['task_index'], texts)}


def _names(feature: Mapping) -> tuple[str, ...]:
    """Return a feature's names, however deep they are nested; () if they do not fit its shape."""
    flat: list[str] = []

    def gather(value):
        if isinstance(value, Mapping):
            for part in value.values():
                gather(part)
        elif isinstance(value, (list, tuple)):
            for part in value:
                gather(part)
        elif isinstance(value, str):
            flat.append(value)

    gather(feature.get('names'))
    return tuple(flat) if len(flat) == int(np.prod(feature.get('shape') or [0])) else ()


def _is_depth(feature: Mapping) -> bool:
    info = feature.get('info') or feature.get('video_info') or {}
    return bool(info.get('video.is_depth_map') or info.get('is_depth_map'))


def _read_json(path: Path, what: str) -> dict:
    try:
        data = json.loads(path.read_text(encoding='utf-8'))
    except (OSError, ValueError) as error:
        raise DatasetError(f'{what}: {path.name} is not there or no JSON ({error})') from None
    if not isinstance(data, dict):
        raise DatasetError(f'{what}: {path.name} holds no JSON object')
    return data


def _read_lines(path: Path) -> Iterable[dict]:
    for number, line in enumerate(path.read_text(encoding='utf-8').splitlines(), 1):
        if not line.strip():
            continue
        try:
            yield json.loads(line)
        except ValueError as error:
            raise DatasetError(f'{path}, line {number}: no JSON ({error})') from None


def _parquet():
    try:
        import pyarrow.parquet
    except ImportError:
        raise DatasetError(
            "LeRobot data sets need pyarrow; install it with pip install 'pi0_ros[train]'"
        ) from None
    return pyarrow.parquet


def _columns(path: Path, names: list[str] | None, filters=None) -> dict:
    parquet = _parquet()
    try:
        have = parquet.read_schema(path).names
        lost = [n for n in names or () if n not in have]
        if lost:
            raise DatasetError(f'{path}: no column {", ".join(lost)} (it has {", ".join(have)})')
        table = parquet.read_table(path, columns=names, filters=filters)
    except (OSError, ValueError, KeyError) as error:
        if isinstance(error, Pi0RosError):
            raise
        raise DatasetError(f'{path}: not readable as parquet ({error})') from None
    return {name: table[name].to_pylist() for name in table.column_names}


def _rows(entry: Entry, names: list[str]) -> dict:
    filters = [('episode_index', '==', entry.index)]
    table = _columns(entry.data, names, filters)
    for name in (STATE, ACTION):
        try:
            values = np.array(table[name], dtype=np.float32)
        except (TypeError, ValueError):
            values = np.zeros(0)
        if len(values) and values.ndim != 2:
            raise DatasetError(f"{entry.data}: '{name}' holds no rows of equal length")
        table[name] = values
    return table


class _Encoded(Sequence):
    """Pictures in a parquet column, decoded when they are asked for."""

    def __init__(self, cells: list, where: str, image_size: int | None):
        self._cells, self._where, self._size = cells, where, image_size

    def __len__(self) -> int:
        return len(self._cells)

    def __getitem__(self, index):
        from PIL import Image, UnidentifiedImageError

        cell = self._cells[index]
        data = cell.get('bytes') if isinstance(cell, Mapping) else cell
        if not isinstance(data, bytes):
            path = cell.get('path') if isinstance(cell, Mapping) else None
            raise DatasetError(
                f'{self._where}: picture {index} is not in the parquet file (path {path}); embed '
                'the pictures or encode them as video'
            )
        try:
            picture = np.asarray(Image.open(io.BytesIO(data)).convert('RGB'))
        except (OSError, UnidentifiedImageError) as error:
            raise DatasetError(f'{self._where}: picture {index} is damaged ({error})') from None
        return _sized(picture, self._size)


def _sized(picture: np.ndarray, size: int | None) -> np.ndarray:
    if size is None:
        return picture
    from pi0_ros.policy.images import resize_with_pad

    return resize_with_pad(picture, size)


def _av():
    try:
        import av
    except ImportError:
        raise DatasetError(
            "this data set keeps its pictures as video; reading and writing it needs av: pip "
            "install 'pi0_ros[train]'"
        ) from None
    return av


def read_video(path: Path, begin: float, count: int, fps: float, image_size=None) -> list:
    """
    Return frames of a video, uint8 [H, W, 3] RGB.

    :param begin: time of the first one [s]; :param count: how many, one every 1 / fps s.
    :param image_size: shrink each to this square with black borders.
    :raises DatasetError: the file is not there, damaged, or ends too early.
    """
    av = _av()
    if not Path(path).is_file():
        raise DatasetError(f'{path}: this video is missing; fetch the data set whole')
    frames: list = [None] * count
    try:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            if begin > 0:
                container.seek(int(begin / stream.time_base), stream=stream)
            for frame in container.decode(stream):
                k = round((frame.time - begin) * fps)
                if 0 <= k < count and frames[k] is None:
                    frames[k] = _sized(frame.to_ndarray(format='rgb24'), image_size)
                if k >= count - 1:
                    break
    except (av.FFmpegError, IndexError) as error:
        raise DatasetError(f'{path}: not a readable video ({error})') from None
    if any(frame is None for frame in frames):
        lost = next(k for k, frame in enumerate(frames) if frame is None)
        raise DatasetError(
            f'{path}: no frame at {begin + lost / fps:.3f} s; the video does not belong to '
            'these rows'
        )
    return frames


# --- writing ---------------------------------------------------------------------------------


def write_lerobot(
    path, episodes: Sequence[Episode], robot: RobotSpec | None = None, *,
    version: str = 'v3.0', videos: bool = False, fps: int | None = None,
) -> Path:  # fmt: skip
    """
    Write episodes as a LeRobot data set.

    A frame every 1 / fps s: the observation nearest to that moment, and the action due one frame
    later. Data that came from a LeRobot data set go back unchanged.

    :param robot: names the joints and the ``robot_type``.
    :param version: ``v2.1`` or ``v3.0``.
    :param videos: encode pictures as H.264 (smaller, lossy) instead of embedding them as PNG.
    :param fps: frames a second, a whole number; None: the rate of the actions.
    :return: the folder.
    :raises DatasetError: the folder is not empty, episodes do not fit together, fps is no whole
        number, or a picture changes its size.
    """
    path = Path(path)
    if version not in WRITABLE:
        raise DatasetError(f"version '{version}' is not written; choose {' or '.join(WRITABLE)}")
    if path.exists() and any(path.iterdir()):
        raise DatasetError(f'{path} is not empty; give another folder')
    if not episodes:
        raise DatasetError('no episodes to write')
    rate = episodes[0].rate if fps is None else fps
    if not rate > 0 or round(rate) != rate:
        raise DatasetError(f'{rate:g} Hz: LeRobot takes a whole number of frames a second')
    return _Writer(path, version, int(rate), videos, episodes, robot).write()


class _Writer:
    """Writes one data set; what both versions share, and where they differ."""

    def __init__(self, path: Path, version, fps: int, videos: bool, episodes, robot):
        self.path, self.version, self.fps, self.videos = path, version, fps, videos
        self.episodes, self.robot = episodes, robot
        self.v3 = version == 'v3.0'
        first = episodes[0]
        self.cameras = {f'{IMAGES}{name}': name for name in first.images}
        self.sizes = {c: first.images[c][0].shape for c in first.images}
        self.features = self._features(first)
        self.tasks: dict[str, int] = {}
        self.total = 0
        self.meta: list[dict] = []
        self.stats: list[dict] = []
        if videos:
            _av()
            odd = [c for c, s in self.sizes.items() if s[0] % 2 or s[1] % 2]
            if odd:
                raise DatasetError(
                    f'pictures of {odd[0]} are {self.sizes[odd[0]][1]}x{self.sizes[odd[0]][0]}; '
                    'video needs even sides, write the pictures as they are'
                )

    def write(self) -> Path:
        _parquet()
        (self.path / 'meta').mkdir(parents=True, exist_ok=True)
        sink = _Sink(self.path, self.v3)
        try:
            for number, episode in enumerate(self.episodes):
                columns, tasks = self._episode(number, episode)
                table = self._table(columns)
                place = sink.add(number, table)
                self._film(number, episode, columns['nearest'])
                self._note(number, columns, tasks, place, episode)
        finally:
            sink.close()
        self._finish()
        return self.path

    def _features(self, first: Episode) -> dict:
        names = list(self.robot.joint_names) if self.robot is not None else None
        features = {
            STATE: {'dtype': 'float32', 'shape': [first.states.shape[1]],
                    'names': names if names and len(names) == first.states.shape[1] else None},
            ACTION: {'dtype': 'float32', 'shape': [first.dof],
                     'names': names if names and len(names) == first.dof else None},
        }  # fmt: skip
        for feature, camera in self.cameras.items():
            height, width, _ = self.sizes[camera]
            features[feature] = {
                'dtype': 'video' if self.videos else 'image', 'shape': [height, width, 3],
                'names': ['height', 'width', 'channels'],
            }  # fmt: skip
            if self.videos:
                features[feature]['info'] = {
                    'video.height': height, 'video.width': width, 'video.codec': 'h264',
                    'video.pix_fmt': 'yuv420p', 'video.is_depth_map': False,
                    'video.fps': self.fps, 'video.channels': 3, 'has_audio': False,
                }  # fmt: skip
        for name in INDICES:
            kind = 'float32' if name == 'timestamp' else 'int64'
            features[name] = {'dtype': kind, 'shape': [1], 'names': None}
        return features

    def _episode(self, number: int, episode: Episode):
        """Return the columns of an episode on the grid of frames, and its tasks."""
        if episode.states.shape[1:] + episode.actions.shape[1:] != (
            self.features[STATE]['shape'][0], self.features[ACTION]['shape'][0]
        ) or list(episode.images) != list(self.cameras.values()):  # fmt: skip
            raise DatasetError(f'{episode.source}: other joints or cameras than the first episode')
        span = episode.stamps_ns[-1] - episode.stamps_ns[0]
        n = int(span * self.fps / SECOND + 1e-3) + 1
        grid = episode.stamps_ns[0] + np.round(np.arange(n) * (SECOND / self.fps)).astype(int)
        after = np.clip(np.searchsorted(episode.stamps_ns, grid), 1, len(episode) - 1)
        if len(episode) == 1:
            after[:] = 0
        before = np.maximum(after - 1, 0)
        stamps = episode.stamps_ns
        near = np.where(grid - stamps[before] < stamps[after] - grid, before, after)
        grid_action = Episode(
            grid, episode.states[near], {}, ('',) * n, episode.action_stamps_ns, episode.actions,
            episode.rate, episode.source,
        )  # fmt: skip
        actions = np.stack([grid_action.chunk(k, 1, self.fps)[0][0] for k in range(n)])
        prompts = [episode.prompts[k] for k in near]
        for prompt in prompts:
            self.tasks.setdefault(prompt, len(self.tasks))
        columns = {
            STATE: episode.states[near].astype(np.float32), ACTION: actions, 'nearest': near,
            'timestamp': (np.arange(n) / self.fps).astype(np.float32),
            'frame_index': np.arange(n), 'episode_index': np.full(n, number),
            'index': np.arange(self.total, self.total + n),
            'task_index': np.array([self.tasks[p] for p in prompts]),
        }  # fmt: skip
        for feature, camera in self.cameras.items():
            columns[feature] = [self._picture(episode, camera, k) for k in near]
        self.total += n
        return columns, list(dict.fromkeys(prompts))

    def _picture(self, episode: Episode, camera: str, k: int) -> np.ndarray:
        picture = episode.images[camera][k]
        if picture.shape != self.sizes[camera]:
            raise DatasetError(
                f'{episode.source}: picture {k} of {camera} is {picture.shape}, the first was '
                f'{self.sizes[camera]}'
            )
        return picture

    def _table(self, columns: dict):
        import pyarrow as pa

        arrays, hints = {}, {}
        for name in (STATE, ACTION):
            values = columns[name]
            width = values.shape[1]
            flat = pa.array(np.ascontiguousarray(values).reshape(-1), pa.float32())
            arrays[name] = pa.FixedSizeListArray.from_arrays(flat, width)
            hints[name] = {
                'feature': {'dtype': 'float32', '_type': 'Value'}, 'length': width,
                '_type': 'Sequence',
            }  # fmt: skip
        if not self.videos:
            kind = pa.struct([('bytes', pa.binary()), ('path', pa.string())])
            for feature in self.cameras:
                cells = [{'bytes': _png(p), 'path': None} for p in columns[feature]]
                arrays[feature] = pa.array(cells, kind)
                hints[feature] = {'_type': 'Image'}
        for name in INDICES:
            dtype = self.features[name]['dtype']
            arrays[name] = pa.array(columns[name].astype(dtype))
            hints[name] = {'dtype': dtype, '_type': 'Value'}
        table = pa.table(arrays)
        hint = json.dumps({'info': {'features': hints}})
        return table.replace_schema_metadata({'huggingface': hint})

    def _film(self, number: int, episode: Episode, near) -> None:
        if not self.videos:
            return
        for feature, camera in self.cameras.items():
            file = self.path / self._video_path(feature, number)
            file.parent.mkdir(parents=True, exist_ok=True)
            write_video(file, (episode.images[camera][k] for k in near), self.fps)

    def _video_path(self, feature: str, number: int) -> str:
        chunk, file = divmod(number, FILES_A_CHUNK)
        if self.v3:
            return V3_VIDEO.format(video_key=feature, chunk_index=chunk, file_index=file)
        return V2_VIDEO.format(video_key=feature, episode_chunk=chunk, episode_index=number)

    def _note(self, number: int, columns, tasks, place: tuple[int, int], episode) -> None:
        n = len(columns['index'])
        entry = {'episode_index': number, 'tasks': tasks, 'length': n}
        stats = {name: _describe(columns[name]) for name in (STATE, ACTION, *INDICES)}
        for feature in self.cameras:
            step = max(n // PICTURES_SAMPLED, 1)
            stats[feature] = _describe_pictures(columns[feature][::step])
        self.stats.append({'episode_index': number, 'stats': stats})
        if self.v3:
            begin = int(columns['index'][0])
            entry |= {
                'data/chunk_index': place[0], 'data/file_index': place[1],
                'dataset_from_index': begin, 'dataset_to_index': begin + n,
                'meta/episodes/chunk_index': 0, 'meta/episodes/file_index': 0,
            }  # fmt: skip
            chunk, file = divmod(number, FILES_A_CHUNK)
            for feature in self.cameras if self.videos else ():
                entry |= {
                    f'videos/{feature}/chunk_index': chunk, f'videos/{feature}/file_index': file,
                    f'videos/{feature}/from_timestamp': 0.0,
                    f'videos/{feature}/to_timestamp': n / self.fps,
                }  # fmt: skip
            for feature, values in stats.items():
                entry |= {f'stats/{feature}/{key}': value for key, value in values.items()}
        self.meta.append(entry)

    def _finish(self) -> None:
        from pi0_ros.policy.normalization import aggregate_episode_stats

        chunks = (len(self.meta) - 1) // FILES_A_CHUNK + 1
        info = {
            'codebase_version': self.version,
            'robot_type': self.robot.name if self.robot is not None else None,
            'total_episodes': len(self.meta), 'total_frames': self.total,
            'total_tasks': len(self.tasks), 'chunks_size': FILES_A_CHUNK, 'fps': self.fps,
            'splits': {'train': f'0:{len(self.meta)}'},
            'data_path': V3_DATA if self.v3 else V2_DATA,
            'video_path': (V3_VIDEO if self.v3 else V2_VIDEO) if self.videos else None,
            'features': self.features,
        }  # fmt: skip
        meta = self.path / 'meta'
        if self.v3:
            info |= {'data_files_size_in_mb': 100, 'video_files_size_in_mb': 200}
            self._write_tasks_v3(meta / 'tasks.parquet')
            self._write_meta_v3(meta / 'episodes' / 'chunk-000' / 'file-000.parquet')
            whole = aggregate_episode_stats(self.stats)
            plain = {f: {k: np.asarray(v).tolist() for k, v in s.items()}
                     for f, s in whole.items()}  # fmt: skip
            _write_json(meta / 'stats.json', plain)
        else:
            info |= {
                'total_videos': len(self.meta) * len(self.cameras) * self.videos,
                'total_chunks': chunks,
            }  # fmt: skip
            tasks = [{'task_index': i, 'task': t} for t, i in self.tasks.items()]
            for name, rows in (
                ('tasks', tasks), ('episodes', self.meta), ('episodes_stats', self.stats)
            ):  # fmt: skip
                lines = ''.join(json.dumps(row) + '\n' for row in rows)
                (meta / f'{name}.jsonl').write_text(lines, encoding='utf-8')
        _write_json(meta / 'info.json', info)

    def _write_tasks_v3(self, path: Path) -> None:
        """Write the tasks as pandas would, whose index they are when LeRobot reads them."""
        import pyarrow as pa

        table = pa.table({
            'task_index': pa.array(list(self.tasks.values()), pa.int64()),
            'task': pa.array(list(self.tasks), pa.string()),
        })  # fmt: skip
        columns = [
            {'name': name, 'field_name': name, 'pandas_type': kind, 'numpy_type': numpy,
             'metadata': None}
            for name, kind, numpy in (('task_index', 'int64', 'int64'),
                                      ('task', 'unicode', 'object'))
        ]  # fmt: skip
        hint = {
            'index_columns': ['task'], 'column_indexes': [], 'columns': columns,
            'pandas_version': '2.0.0', 'creator': {'library': 'pyarrow', 'version': '14'},
        }  # fmt: skip
        table = table.replace_schema_metadata({'pandas': json.dumps(hint)})
        _parquet().write_table(table, path)

    def _write_meta_v3(self, path: Path) -> None:
        import pyarrow as pa

        path.parent.mkdir(parents=True, exist_ok=True)
        columns = {key: [entry[key] for entry in self.meta] for key in self.meta[0]}
        _parquet().write_table(pa.table(columns), path)


class _Sink:
    """Where rows go: a file an episode (v2.1), or files of bounded size (v3.0)."""

    def __init__(self, path: Path, v3: bool):
        self._path, self._v3, self._writer, self._file = path, v3, None, None
        self._number = -1

    def add(self, number: int, table) -> tuple[int, int]:
        """Write an episode's table; return its chunk and file index."""
        full = self._file is not None and self._file.stat().st_size >= FILE_BYTES
        if self._writer is None or not self._v3 or full:
            self.close()
            self._number += 1
            chunk, file = divmod(self._number, FILES_A_CHUNK)
            name = (
                V3_DATA.format(chunk_index=chunk, file_index=file) if self._v3
                else V2_DATA.format(episode_chunk=chunk, episode_index=number)
            )  # fmt: skip
            self._file = self._path / name
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._writer = _parquet().ParquetWriter(self._file, table.schema)
        self._writer.write_table(table)
        return divmod(self._number, FILES_A_CHUNK)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None


def write_video(path: Path, pictures: Iterable[np.ndarray], fps: int) -> None:
    """Encode pictures uint8 [H, W, 3] as H.264, a key frame every second one."""
    av = _av()
    with av.open(str(path), 'w') as container:
        stream = None
        for picture in pictures:
            if stream is None:
                stream = container.add_stream('libx264', rate=fps)
                stream.height, stream.width = picture.shape[:2]
                stream.pix_fmt = 'yuv420p'
                stream.options = {'g': '2', 'crf': '18'}
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format='rgb24')
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def _png(picture: np.ndarray) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(picture).save(out, 'PNG')
    return out.getvalue()


def _describe(values: np.ndarray) -> dict[str, list]:
    """Return the statistics that LeRobot keeps of a column, of [n] or [n, d]."""
    values = np.asarray(values, dtype=np.float64).reshape(len(values), -1)
    quantiles = np.quantile(values, list(QUANTILES.values()), axis=0)
    return {
        'min': values.min(0).tolist(), 'max': values.max(0).tolist(),
        'mean': values.mean(0).tolist(), 'std': values.std(0).tolist(), 'count': [len(values)],
        **{key: row.tolist() for key, row in zip(QUANTILES, quantiles)},
    }  # fmt: skip


def _describe_pictures(pictures: Sequence[np.ndarray]) -> dict[str, list]:
    """Return the statistics of pictures by colour, of values 0..1, shaped [3, 1, 1]."""
    small = [p[::4, ::4].reshape(-1, 3) for p in pictures]
    found = _describe(np.concatenate(small) / 255.0)
    found['count'] = [len(pictures)]
    return {
        key: value if key == 'count' else [[[v]] for v in value] for key, value in found.items()
    }


def _write_json(path: Path, data) -> None:
    path.write_text(json.dumps(data, indent=4) + '\n', encoding='utf-8')
