# SPDX-License-Identifier: Apache-2.0
"""Ranged reads of ArrayRecord files give what array_record's own writer was given."""

import pickle
import random
from pathlib import Path

import pytest
from array_record.python import array_record_module

from vit_jax.data.sources.record_ranges import RecordRanges, Shard
from vit_jax.errors import DataError
from vit_jax.storage import remote


def records() -> list[bytes]:
    draw = random.Random(1)  # shorter and longer than blocks of 64 KiB; those of "ab" compress
    return [
        b"ab" * draw.randrange(90_000) if i % 2 else draw.randbytes(draw.choice([0, 1, 70_000]))
        for i in range(60)
    ]


def write(path: Path, options: str, rows: list[bytes]) -> remote.FileInfo:
    writer = array_record_module.ArrayRecordWriter(str(path), options)
    for row in rows:
        writer.write(row)
    writer.close()
    return remote.info(str(path))


@pytest.mark.parametrize("codec", ["", ",uncompressed", ",brotli:1"])
def test_records_are_those_written(tmp_path: Path, codec: str) -> None:
    rows = records()
    file = write(tmp_path / "r", f"group_size:1{codec}", rows)
    found = RecordRanges([Shard(file, 3, 10), Shard(file, 40, 20)])
    found = pickle.loads(pickle.dumps(found))
    assert [found[i] for i in range(len(found))] == rows[3:13] + rows[40:]


def test_an_index_of_more_than_a_block(tmp_path: Path) -> None:
    file = write(tmp_path / "r", "group_size:1,uncompressed", [b"%d" % i for i in range(9000)])
    found = RecordRanges([Shard(file, 0, 9000)])
    assert (found[0], found[8999]) == (b"0", b"8999")


def test_one_read_for_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "r", "group_size:1", records())
    found, reads, read = RecordRanges([Shard(file, 0, 60)]), [], remote.read_range
    monkeypatch.setattr(remote, "read_range", lambda *a: reads.append(a) or read(*a))
    found[5], found[6], found[5]
    assert len(reads) == 4  # the index first


def test_what_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    grouped = write(tmp_path / "grouped", "group_size:2", records())
    with pytest.raises(DataError, match=r"grouped: groups its records; write it with group_size:1"):
        RecordRanges([Shard(grouped, 0, 60)])[0]
    file = write(tmp_path / "r", "group_size:1", records())
    with pytest.raises(DataError, match="r: holds 60 records, not 61"):
        RecordRanges([Shard(file, 0, 61)])[60]
    data = bytearray((tmp_path / "r").read_bytes())
    starts = RecordRanges([Shard(file, 0, 60)])
    starts[0]
    data[1 << 16 : 1 << 17] = bytes(1 << 16)
    (tmp_path / "r").write_bytes(data)
    with pytest.raises(DataError, match=r"r, record \d+: "):
        [starts[i] for i in range(60)]
    (tmp_path / "cut").write_bytes(data[:-9])
    (tmp_path / "other").write_bytes(bytes(1 << 17))
    for name, why in (("cut", "is no whole"), ("other", "a chunk is not of simple records")):
        with pytest.raises(DataError, match=f"{name}: {why}"):
            RecordRanges([Shard(remote.info(str(tmp_path / name)), 0, 1)])[0]
