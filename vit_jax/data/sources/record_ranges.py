# SPDX-License-Identifier: Apache-2.0
"""ArrayRecord files in a bucket: one ranged read for each record.

Sources: google/riegeli doc/riegeli_records_file_format.md (blocks, chunks, simple records) and
google/array_record cpp/layout.proto (postscript, footers). array_record's own reader knows gs://
alone, and asks for all of a file from the record on.
"""

import bisect
import itertools
import struct
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int64

from vit_jax.errors import DataError, shown
from vit_jax.storage import remote

# A file is blocks of 64 KiB, each with a header wherever it falls within a chunk.
_BLOCK, _BLOCK_HEADER = 1 << 16, 24
# Two hashes, and the type in the lowest byte of the fourth number: sizes are what is needed.
_CHUNK_HEADER = struct.Struct("<8x Q 8x Q Q")
_SIMPLE, _STORED = ord("r"), 0
_CODECS = {ord("z"): "zstd", ord("b"): "brotli"}
_MAGIC = 0x71930E704FDAE05E


class Shard(NamedTuple):
    """Some records of a file."""

    file: remote.FileInfo
    skip: int  # records before the first
    take: int  # how many


class RecordRanges:
    """Random access to the records of some shards; can be pickled, for worker processes."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = list(shards)
        self._ends = list(itertools.accumulate(shard.take for shard in shards))
        self._starts: dict[str, Int64[np.ndarray, " ends"]] = {}
        self._locks = [threading.Lock() for _ in shards]

    def __reduce__(self) -> tuple[Any, ...]:
        return RecordRanges, (self._shards,)

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> bytes:
        """Return a record.

        Raises DataError: the file is damaged or of a form that is not read; RemoteError.
        """
        number = bisect.bisect_right(self._ends, index)
        shard = self._shards[number]
        path = shard.file.path
        with self._locks[number]:  # by the first reader; the others of this file wait for it
            if path not in self._starts:
                self._starts[path] = _starts(shard.file)
        starts = self._starts[path]
        at = index - (self._ends[number] - shard.take) + shard.skip
        if at + 1 >= len(starts):
            raise DataError(f"{shown(path)}: holds {len(starts) - 1} records, not {at + 1}")
        start, stop = int(starts[at]), int(starts[at + 1])
        try:
            (record,) = _records(remote.read_range(path, start, stop), start)
        except (ValueError, IndexError, struct.error, OSError) as error:
            if isinstance(error, remote.RemoteError):
                raise
            raise DataError(f"{shown(path)}, record {at}: {error}") from error
        return record


def _starts(file: remote.FileInfo) -> Int64[np.ndarray, " ends"]:
    """Read where each record of a file begins, and, one more, where the last one ends."""
    path, size = file.path, file.size
    begin = max(size - 2 * _BLOCK, 0)
    tail = remote.read_range(path, begin, size)
    try:
        if size < 2 * _BLOCK or size % _BLOCK:
            raise ValueError("is no whole ArrayRecord file")
        postscript = _fields(_records(tail[-_BLOCK:], size - _BLOCK)[0])
        footer = postscript[1]
        if postscript[2] != _MAGIC:
            raise ValueError("is no ArrayRecord file")
        if footer < begin:
            tail, begin = remote.read_range(path, footer, size), footer
        chunks = [_fields(each) for each in _records(tail[footer - begin : -_BLOCK], footer)[1:]]
        if any(chunk[3] != 1 for chunk in chunks):
            raise ValueError("groups its records; write it with group_size:1")
        return np.array([*(chunk.get(1, 0) for chunk in chunks), footer], np.int64)
    except (ValueError, IndexError, KeyError, struct.error, OSError) as error:
        if isinstance(error, remote.RemoteError):
            raise
        raise DataError(f"{shown(path)}: {error}") from error


def _records(data: bytes, start: int) -> list[bytes]:
    """Return the records of the chunk that begins at byte `start` of its file, as `data` does."""
    cuts = range(-start % _BLOCK, len(data), _BLOCK)
    pieces = [data[a:b] for a, b in itertools.pairwise([0, *cuts, len(data)])]
    head, *rest = pieces
    chunk = head + b"".join(piece[_BLOCK_HEADER:] for piece in rest)
    size, kind, _ = _CHUNK_HEADER.unpack_from(chunk)
    body = memoryview(chunk)[_CHUNK_HEADER.size :][:size]
    if len(body) < size:
        raise ValueError("a chunk is cut off")
    if kind & 255 != _SIMPLE:
        raise ValueError("a chunk is not of simple records; write it without transpose")
    codec = body[0]
    length, at = _varint(body, 1)
    sizes, values = (
        _unpacked(codec, part) for part in (body[at : at + length], body[at + length :])
    )
    records, place, used = [], 0, 0
    while place < len(sizes):
        length, place = _varint(sizes, place)
        records.append(bytes(values[used : used + length]))
        used += length
    if used != len(values) or len(records) != kind >> 8:
        raise ValueError("a chunk is damaged")
    return records


def _unpacked(codec: int, data: memoryview) -> memoryview:
    if codec == _STORED:
        return data
    if codec not in _CODECS:
        raise ValueError("a chunk is compressed in a way that is not read here")
    import pyarrow  # late: uncompressed files, and local ones, do not need it

    size, at = _varint(data, 0)
    return memoryview(pyarrow.decompress(data[at:], size, _CODECS[codec], asbytes=True))


def _fields(message: bytes) -> dict[int, int]:
    """Return the numbers of a protocol buffer's fields, all of them varints."""
    found: dict[int, int] = {}
    view, at = memoryview(message), 0
    while at < len(view):
        key, at = _varint(view, at)
        found[key >> 3], at = _varint(view, at)
    return found


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return the number that begins at a byte, and where the next begins."""
    value = shift = 0
    while data[at] > 127:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
    return value | data[at] << shift, at + 1
