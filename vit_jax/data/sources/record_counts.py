# SPDX-License-Identifier: Apache-2.0
"""Whether the files of a TFDS dataset hold as many records as its metadata tell."""

import functools
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from array_record.python import array_record_module  # type: ignore[attr-defined]


def check(directory: Path, splits: Iterable[Any]) -> None:
    """Raise ValueError: a file of some splits holds another number of records than these tell."""
    told = {
        file: length
        for split in splits
        for file, length in zip(sorted(split.filenames), split.shard_lengths, strict=True)
    }

    def count(file: str) -> int:
        found = os.stat(directory / file)
        return _count(str(directory / file), found.st_size, found.st_mtime_ns)

    with ThreadPoolExecutor(16) as pool:
        for file, number in zip(told, pool.map(count, told), strict=True):
            if number != told[file]:
                holds = f"{number:,} records" if number else "no records that can be read"
                raise ValueError(f"{file} holds {holds}, not {told[file]:,}")


@functools.lru_cache(1 << 14)
def _count(path: str, _size: int, _time: int) -> int:
    """Return the number of a file's records by its footer, which also tells that it is whole."""
    try:
        reader = array_record_module.ArrayRecordReader(path)
        count = reader.num_records() if reader.ok() else 0
        reader.close()  # raises what is wrong with a file that is cut
    except (RuntimeError, ValueError):
        return 0
    return count
