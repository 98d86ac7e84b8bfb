# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
Recorded bags as a stream of serialized messages, without a ROS graph.

What a file is, is read from its first bytes: metadata, names and storage identifiers of real bags
are missing or wrong too often. mcap and sqlite3 are read directly and in order, so a file that was
cut off gives what it holds, memory stays bounded, and a bag's folder is never written to.
Message bytes are decoded by rosbags' types; no message package is needed.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from pi0_ros.errors import Pi0RosError

MCAP_MAGIC = b'\x89MCAP0\r\n'
SQLITE_MAGIC = b'SQLite format 3\x00'
ZSTD_MAGIC = b'\x28\xb5\x2f\xfd'
ROS1_MAGIC = b'#ROSBAG V'
LFS_MAGIC = b'version https://git-lfs'
SUFFIXES = ('.mcap', '.db3', '.mcap.zstd', '.db3.zstd', '.bag')
MAX_RECORD = 2**31  # bytes; a longer record is a damaged length


class BagError(Pi0RosError):
    """A bag that cannot be read; names the file, the cause and the remedy."""


@dataclass
class Topic:
    """One topic of a bag; ``count`` is None where only reading it all would tell."""

    name: str
    type: str
    count: int | None = None


@dataclass
class Bag:
    """
    An open bag; made by :func:`open_bag`.

    ``notes``: what was odd but readable. ``incomplete``: what is missing, '' if nothing is (for
    mcap known when all messages were read). ``damaged``: sqlite3 files whose index is broken; they
    are read row by row up to the damage. ``parameters``: node -> parameters, where
    ``pi0_ros record`` or the demo kept them.
    """

    path: Path
    files: list[Path]
    topics: dict[str, Topic] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    incomplete: str = ''
    damaged: set[Path] = field(default_factory=set)
    start_ns: int | None = None
    end_ns: int | None = None
    parameters: dict = field(default_factory=dict)
    read_bytes: int = 0
    total_bytes: int = 0

    @property
    def count(self) -> int | None:
        """How many messages the bag holds; None if unknown before it is read."""
        counts = [topic.count for topic in self.topics.values()]
        return None if None in counts else sum(counts)

    def lacks(self, what: str) -> None:
        """Add to what is missing, once."""
        if what not in self.incomplete:
            self.incomplete = '; '.join(filter(None, (self.incomplete, what)))

    def messages(self, topics=None) -> Iterator[tuple[str, int, memoryview]]:
        """
        Yield (topic, time of reception [ns], CDR bytes) in recorded order.

        The bytes are views of what was read from the file: most pictures are never looked at.

        :param topics: names to read; None: all of them.
        """
        wanted = set(self.topics if topics is None else topics)
        self.read_bytes = done = 0
        for path in self.files:
            reader = _read_mcap if _magic(path).startswith(MCAP_MAGIC) else _read_sqlite
            for topic, time_ns, data, position in reader(self, path, wanted):
                self.read_bytes = done + position
                yield topic, time_ns, memoryview(_zstd(data)) if data[:4] == ZSTD_MAGIC else data
            done += path.stat().st_size
        self.read_bytes = self.total_bytes


@contextlib.contextmanager
def open_bag(path) -> Iterator[Bag]:
    """
    Open a bag: a folder, or one .mcap or .db3 file, zstd-compressed or not.

    :raises BagError: when it cannot be read; one sentence with the remedy.
    """
    path = Path(path)
    if not path.exists():
        raise BagError(f'{path}: no such bag')
    with tempfile.TemporaryDirectory(prefix='pi0_ros_bag_') as scratch:
        bag = Bag(path, [])
        metadata = _metadata(path, bag)
        for file in _storage_files(path, metadata, bag):
            bag.files.append(_prepare(file, Path(scratch)))
        bag.total_bytes = sum(file.stat().st_size for file in bag.files)
        bag.parameters = _parameters(metadata)
        for entry in _listed(metadata, 'topics_with_message_count', dict):
            topic = entry.get('topic_metadata')
            if isinstance(topic, dict):
                _check_serialization(
                    topic.get('name', ''), str(topic.get('serialization_format', 'cdr')), path
                )
        for file in bag.files:
            if _magic(file).startswith(MCAP_MAGIC):
                _list_mcap(bag, file)
            else:
                _list_sqlite(bag, file)
        yield bag


def topic_name(name: str) -> str:
    """Return a topic name with its leading slash."""
    return name if name.startswith('/') else f'/{name}'


def type_name(name: str) -> str:
    """Return 'pkg/msg/Type' for 'pkg/Type'."""
    parts = name.split('/')
    return f'{parts[0]}/msg/{parts[1]}' if len(parts) == 2 else name


def header_stamp(data: bytes | memoryview) -> int:
    """Return the header stamp [ns] of a CDR message that begins with a std_msgs/Header."""
    order = 'little' if data[1] & 1 else 'big'
    seconds = int.from_bytes(data[4:8], order, signed=True)
    return seconds * 1_000_000_000 + int.from_bytes(data[8:12], order)


# --- finding the files ------------------------------------------------------------------------


def _magic(path: Path) -> bytes:
    with path.open('rb') as file:
        return file.read(32)


def _metadata(path: Path, bag: Bag) -> dict:
    file = path / 'metadata.yaml'
    if not path.is_dir():
        return {}
    if not file.exists():
        bag.notes.append(
            f'{path.name}: metadata.yaml is missing, files are read in the order of their names '
            '(`ros2 bag reindex` restores it)'
        )
        return {}
    try:
        data = yaml.safe_load(file.read_text(encoding='utf-8', errors='replace'))
        information = data['rosbag2_bagfile_information']
    except (yaml.YAMLError, KeyError, TypeError, OSError):
        information = None
    if not isinstance(information, dict):
        bag.notes.append(
            f'{path.name}: metadata.yaml is empty or no metadata of rosbag2 (a recorder that was '
            'killed?), files are read in the order of their names'
        )
        return {}
    return information


def _listed(metadata: dict, key: str, kind: type) -> list:
    """Return the entries of a list that are what they should be; metadata is edited by hand."""
    entries = metadata.get(key)
    return [e for e in entries if isinstance(e, kind)] if isinstance(entries, list) else []


def _parameters(metadata: dict) -> dict:
    try:
        parameters = json.loads(metadata['custom_data']['parameters'])
    except (KeyError, TypeError, ValueError):
        return {}
    return parameters if isinstance(parameters, dict) else {}


def _storage_files(path: Path, metadata: dict, bag: Bag) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(
        (p for p in path.iterdir() if p.name.endswith(SUFFIXES)),
        key=lambda p: [int(t) if t.isdigit() else t for t in re.split(r'(\d+)', p.name)],
    )
    names = _listed(metadata, 'relative_file_paths', str)
    listed = [path / Path(name).name for name in names if Path(name).name]
    listed = [
        p if p.exists() or not Path(f'{p}.zstd').exists() else Path(f'{p}.zstd') for p in listed
    ]
    missing = [p.name for p in listed if not p.exists()]
    if missing:
        raise BagError(
            f'{path}: metadata.yaml lists {", ".join(missing)}, which is not there; copy the '
            'whole folder'
        )
    if not listed and not found:
        raise BagError(f'{path}: neither .mcap nor .db3 files in this folder; is it a bag?')
    if not listed:
        _note_gaps(bag, found)
    return listed or found


def _note_gaps(bag: Bag, files: list[Path]) -> None:
    """Tell of parts of a split bag that are not there; only their numbers show it."""
    numbers = {}
    for file in files:
        match = re.match(r'(.*)_(\d+)\.', file.name)
        if match:
            numbers.setdefault(match[1], set()).add(int(match[2]))
    for name, present in numbers.items():
        missing = sorted(set(range(max(present))) - present)
        if missing:
            parts = ', '.join(f'{name}_{k}' for k in missing[:5])
            bag.lacks(f'parts of the split bag are not there: {parts}')


def _prepare(path: Path, scratch: Path) -> Path:
    """Return a plain mcap or sqlite3 file that may be read without touching the user's folder."""
    magic = _magic(path)
    if magic.startswith(ZSTD_MAGIC):
        target = scratch / path.name.removesuffix('.zstd')
        with path.open('rb') as source, target.open('wb') as sink:
            try:
                with _zstd_module().open(source, 'rb') as unpacked:
                    shutil.copyfileobj(unpacked, sink)
            except Exception as error:
                raise BagError(f'{path}: damaged zstd file ({error})') from None
        path, magic = target, _magic(target)
    if magic.startswith(ROS1_MAGIC):
        raise BagError(
            f'{path}: a ROS 1 bag; convert it with `rosbags-convert --src {path.name} --dst '
            f'{path.stem}`'
        )
    if magic.startswith(LFS_MAGIC):
        raise BagError(f'{path}: a Git LFS pointer, not the bag itself; run `git lfs pull`')
    if not magic:
        raise BagError(f'{path}: the file is empty')
    if magic.startswith(SQLITE_MAGIC):
        journal = Path(f'{path}-wal')
        if journal.exists() and journal.stat().st_size:  # unfinished writes: read a copy
            copy = scratch / path.name
            shutil.copyfile(path, copy)
            shutil.copyfile(journal, f'{copy}-wal')
            return copy
        return path
    if not magic.startswith(MCAP_MAGIC):
        raise BagError(
            f'{path}: neither an mcap nor a sqlite3 file (begins with {magic[:8].hex(" ")})'
        )
    return path


def _zstd_module():
    try:
        from compression import zstd  # Python 3.14
    except ImportError:
        try:
            from backports import zstd
        except ImportError:
            raise BagError(
                'this bag is compressed with zstd; install backports.zstd to read it'
            ) from None
    return zstd


def _zstd(data: bytes) -> bytes:
    try:
        return _zstd_module().decompress(data)
    except BagError:
        raise
    except Exception as error:
        raise BagError(f'a zstd-compressed message is damaged ({error})') from None


def _check_serialization(name: str, serialization: str, source: Path) -> None:
    if serialization not in ('cdr', ''):
        raise BagError(
            f"{source}: topic {name} has serialization format '{serialization}'; only cdr is "
            'supported'
        )


def _add_topic(bag: Bag, name: str, kind: str, serialization: str, count, source: Path) -> None:
    _check_serialization(name, serialization, source)
    topic = bag.topics.setdefault(topic_name(name), Topic(topic_name(name), type_name(kind), 0))
    if count is None or topic.count is None:
        topic.count = None
    else:
        topic.count += count


def _span(bag: Bag, start: int, end: int) -> None:
    bag.start_ns = start if bag.start_ns is None else min(bag.start_ns, start)
    bag.end_ns = end if bag.end_ns is None else max(bag.end_ns, end)


# --- sqlite3 ----------------------------------------------------------------------------------


def _connect(path: Path, damaged: bool = False) -> sqlite3.Connection:
    options = 'mode=ro' if Path(f'{path}-wal').exists() else 'mode=ro&immutable=1'
    if Path(f'{path}-wal').exists() and not Path(f'{path}-wal').stat().st_size:
        options = 'mode=ro&immutable=1'
    db = sqlite3.connect(f'{path.resolve().as_uri()}?{options}', uri=True)
    if damaged:  # the documented way to make SQLite read past a wrong file size
        db.execute('PRAGMA writable_schema = ON')
    return db


def _list_sqlite(bag: Bag, path: Path) -> None:
    try:
        rows, counts, start, end = _sqlite_contents(path)
    except sqlite3.Error as error:
        try:
            rows, counts, start, end = _sqlite_salvage(bag, path)
        except sqlite3.Error:
            raise BagError(
                f'{path}: sqlite3 file without the tables of rosbag2 or damaged ({error}); '
                f'`sqlite3 {path.name} .recover | sqlite3 new.db3` may save a part'
            ) from None
    for number, name, kind, serialization in rows:
        _add_topic(bag, name, kind, serialization, counts.get(number, 0), path)
    if start is not None:
        _span(bag, start, end)


def _sqlite_contents(path: Path):
    """Return topics, counts by topic id, first and last time of a sound file."""
    with contextlib.closing(_connect(path)) as db:
        rows = db.execute('SELECT id, name, type, serialization_format FROM topics').fetchall()
        counts = dict(
            db.execute('SELECT topic_id, COUNT(*) FROM messages GROUP BY topic_id').fetchall()
        )
        span = 'SELECT MIN(timestamp), MAX(timestamp) FROM messages'
        return rows, counts, *db.execute(span).fetchone()


_BY_ROW = 'FROM messages NOT INDEXED ORDER BY id'


def _sqlite_salvage(bag: Bag, path: Path):
    """Return the same of a file that was cut off or damaged, as far as its rows can be read."""
    bag.damaged.add(path)
    counts, start, end = {}, None, None
    with contextlib.closing(_connect(path, damaged=True)) as db:
        rows = db.execute('SELECT id, name, type, serialization_format FROM topics').fetchall()
        with contextlib.suppress(sqlite3.DatabaseError):
            for number, time_ns in db.execute(f'SELECT topic_id, timestamp {_BY_ROW}'):
                counts[number] = counts.get(number, 0) + 1
                start = time_ns if start is None else min(start, time_ns)
                end = time_ns if end is None else max(end, time_ns)
    return rows, counts, start, end


def _read_sqlite(bag: Bag, path: Path, wanted: set):
    damaged = path in bag.damaged
    with contextlib.closing(_connect(path, damaged)) as db:
        names = {
            number: topic_name(name)
            for number, name in db.execute('SELECT id, name FROM topics')
            if topic_name(name) in wanted
        }
        if not names:
            return
        total = bag.count or 1
        marks = ', '.join('?' * len(names))
        query = f'WHERE topic_id IN ({marks}) ORDER BY timestamp, id'
        if damaged:
            query = f'NOT INDEXED WHERE topic_id IN ({marks}) ORDER BY id'
        size = path.stat().st_size
        try:
            rows = db.execute(f'SELECT topic_id, timestamp, data FROM messages {query}', [*names])
            for k, (number, time_ns, data) in enumerate(rows):
                yield names[number], time_ns, memoryview(data), min(k / total, 1.0) * size
        except sqlite3.DatabaseError as error:
            bag.lacks(f'{path.name} is damaged ({error}); replayed up to there')


# --- mcap -------------------------------------------------------------------------------------
# https://mcap.dev/spec: records of opcode (1 byte), length (8 bytes), content; little endian.

_HEADER, _FOOTER, _SCHEMA, _CHANNEL, _MESSAGE, _CHUNK = 1, 2, 3, 4, 5, 6
_STATISTICS, _DATA_END = 0x0B, 0x0F


def _string(data, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from('<I', data, at)
    return bytes(data[at + 4 : at + 4 + size]).decode('utf-8', 'replace'), at + 4 + size


def _records(data):
    at = 0
    while at + 9 <= len(data):
        opcode, size = struct.unpack_from('<BQ', data, at)
        at += 9
        if at + size > len(data):
            return
        yield opcode, data[at : at + size]
        at += size


def _schema(content) -> tuple[int, str]:
    return struct.unpack_from('<H', content)[0], _string(content, 2)[0]


def _channel(content) -> tuple[int, int, str, str]:
    number, schema = struct.unpack_from('<HH', content)
    name, at = _string(content, 4)
    return number, schema, name, _string(content, at)[0]


def _summary(path: Path) -> bytes | None:
    """Return the summary section; None for a file that was cut off or has none."""
    size = path.stat().st_size
    tail = 9 + 20 + len(MCAP_MAGIC)
    if size < tail + len(MCAP_MAGIC):
        return None
    with path.open('rb') as file:
        file.seek(size - tail)
        end = file.read(tail)
        if not end.endswith(MCAP_MAGIC) or end[0] != _FOOTER:
            return None
        (start,) = struct.unpack_from('<Q', end, 9)
        if not 0 < start <= size - tail:
            return b''
        file.seek(start)
        return file.read(size - tail - start)


def _list_mcap(bag: Bag, path: Path) -> None:
    try:
        schemas, channels, counts = _mcap_contents(bag, _summary(path) or b'')
    except struct.error:  # a damaged summary says nothing about the data
        schemas, channels, counts = {}, {}, None
    if counts is None or (not channels and any(counts.values())):  # read it all to know
        counts, channels, schemas = {}, {}, {}
        for kind, values in _scan_mcap(bag, path):
            if kind == _SCHEMA:
                schemas[values[0]] = values[1]
            elif kind == _CHANNEL:
                channels[values[0]] = (values[2], values[1], values[3])
            else:
                counts[values[0]] = counts.get(values[0], 0) + 1
                _span(bag, values[1], values[1])
    for number, (name, schema, encoding) in channels.items():
        _add_topic(bag, name, schemas.get(schema, ''), encoding, counts.get(number, 0), path)


def _mcap_contents(bag: Bag, summary: bytes):
    """Return schemas, channels and counts (None: not told) of a summary section."""
    schemas, channels, counts = {}, {}, None
    for opcode, content in _records(summary):
        if opcode == _SCHEMA:
            number, name = _schema(content)
            schemas[number] = name
        elif opcode == _CHANNEL:
            number, schema, name, encoding = _channel(content)
            channels[number] = (name, schema, encoding)
        elif opcode == _STATISTICS:
            messages, _, _, _, _, _, start, end = struct.unpack_from('<QHIIIIQQ', content)
            (size,) = struct.unpack_from('<I', content, 42)
            counts = dict(struct.iter_unpack('<HQ', content[46 : 46 + size]))
            if messages:
                _span(bag, start, end)
    return schemas, channels, counts


def _scan_mcap(bag: Bag, path: Path):
    """
    Yield (opcode, fields) of schemas, channels and messages up to the end or the break.

    A message's fields are (channel, time, data, position in the file).
    """
    with path.open('rb') as file:
        file.seek(len(MCAP_MAGIC))
        while True:
            begins = file.tell()
            head = file.read(9)
            opcode, size = struct.unpack('<BQ', head) if len(head) == 9 else (0, 0)
            if opcode in (_FOOTER, _DATA_END):
                return
            content = file.read(size) if 0 < opcode and size < MAX_RECORD else b''
            cut = len(head) < 9 or opcode == 0 or len(content) < size
            if cut:
                bag.lacks(
                    f'{path.name} was cut off at byte {path.stat().st_size}; replayed up to there'
                    if file.tell() >= path.stat().st_size
                    else f'{path.name} is damaged from byte {begins} on; replayed up to there'
                )
                if opcode != _CHUNK:
                    return
            inner = ((opcode, memoryview(content)),)
            if opcode == _CHUNK:
                try:
                    inner = _records(_unpack_chunk(content, cut))
                except (BagError, struct.error) as error:
                    bag.lacks(f'{path.name}: {error}, from byte {begins} on')
                    return
            messages = []
            try:
                for kind, data in inner:
                    if kind == _SCHEMA:
                        yield kind, _schema(data)
                    elif kind == _CHANNEL:
                        yield kind, _channel(data)
                    elif kind == _MESSAGE:
                        channel, _, time_ns, _ = struct.unpack_from('<HIQQ', data)
                        messages.append((channel, time_ns, data[22:], file.tell()))
            except struct.error:
                bag.lacks(f'{path.name} is damaged from byte {begins} on; replayed up to there')
                cut = True
            messages.sort(key=lambda m: m[1])
            for message in messages:
                yield _MESSAGE, message
            if cut:
                return


def _unpack_chunk(content, cut: bool) -> memoryview:
    """Return the records of a chunk; of one that was cut off, those that are whole."""
    _, _, size, _ = struct.unpack_from('<QQQI', content)
    compression, at = _string(content, 28)
    (length,) = struct.unpack_from('<Q', content, at)
    data = memoryview(content)[at + 8 : at + 8 + length]
    try:
        if compression == 'zstd':
            data = _zstd_module().ZstdDecompressor().decompress(data)
        elif compression == 'lz4':
            import lz4.frame

            data = lz4.frame.LZ4FrameDecompressor().decompress(data)
        elif compression:
            raise BagError(f"a chunk is compressed with '{compression}', which is unknown")
    except BagError:
        raise
    except Exception as error:  # each decompressor has errors of its own
        raise BagError(f'a chunk cannot be unpacked ({error})') from None
    if len(data) != size and not cut:
        raise BagError(f'a chunk has {len(data)} bytes instead of {size}')
    return memoryview(data)


def _read_mcap(bag: Bag, path: Path, wanted: set):
    names = {}
    for kind, values in _scan_mcap(bag, path):
        if kind == _CHANNEL:
            if topic_name(values[2]) in wanted:
                names[values[0]] = topic_name(values[2])
        elif kind == _MESSAGE and values[0] in names:
            yield names[values[0]], values[1], values[2], values[3]
