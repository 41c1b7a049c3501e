# SPDX-License-Identifier: Apache-2.0
"""Row groups of Parquet files by ranged reads, those used last kept in memory."""

import collections
import concurrent.futures
import io
import threading
from collections.abc import Callable
from typing import Any

from vit_jax.storage import remote

MAX_BYTES = 512 << 20  # of the decoded row groups of a split in one process
_AT_ONCE = 8  # row groups in work, which take memory that nothing counts


class RowGroups:
    """The row groups used last, up to a number of bytes; threads that want the same wait for it."""

    def __init__(self, load: Callable[[int], Any], max_bytes: int = MAX_BYTES) -> None:
        self._load, self._max_bytes, self._bytes = load, max_bytes, 0
        self._lock, self._loading = threading.Lock(), threading.Semaphore(_AT_ONCE)
        self._held: collections.OrderedDict[int, concurrent.futures.Future[Any]]
        self._held = collections.OrderedDict()

    def get(self, key: int) -> Any:
        """Return a row group; raises what `load` does."""
        with self._lock:
            future = self._held.get(key)
            if known := future is not None:
                self._held.move_to_end(key)
            else:
                future = self._held[key] = concurrent.futures.Future()
        if not known:
            try:
                with self._loading:
                    loaded = self._load(key)
            except BaseException as error:
                with self._lock:
                    del self._held[key]
                future.set_exception(error)
                raise
            with self._lock:  # so that what is done is counted
                self._bytes += loaded.nbytes
                future.set_result(loaded)
                done = [key for key, future in self._held.items() if future.done()]
                while self._bytes > self._max_bytes and len(done) > 1:
                    self._bytes -= self._held.pop(done.pop(0)).result().nbytes
        return future.result()


class _Ranged(io.RawIOBase):
    """A file for pyarrow, made of ranged reads."""

    def __init__(self, file: remote.FileInfo) -> None:
        self._file, self._at = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._file.size)[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = self._file.size if size < 0 else min(self._at + size, self._file.size)
        data = remote.read_range(self._file.path, self._at, end)
        self._at += len(data)
        return data


def open_file(file: remote.FileInfo, footer: Any = None) -> Any:
    """Open a file as a `pyarrow.parquet.ParquetFile`; `footer` is its metadata, if known."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    return pq.ParquetFile(pa.PythonFile(_Ranged(file), "r"), metadata=footer)
