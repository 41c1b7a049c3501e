# SPDX-License-Identifier: Apache-2.0
"""Where the images of tar shards lie and what their labels are: one pass over headers, then kept.

The index lies beside the shards where it may be written, in a bucket too, so that one host's pass
serves all; else in $XDG_CACHE_HOME/vit_jax or ~/.cache/vit_jax. It counts for a shard of the same
size and version, by time or etag.
"""

import concurrent.futures
import contextlib
import functools
import hashlib
import io
import json
import os
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vit_jax import files, remote, waiting
from vit_jax.data.tar_headers import Member
from vit_jax.data.tar_members import Entries, Fields, entries_of, split_off
from vit_jax.errors import DataError, shown
from vit_jax.startup import cache_home

_FORMAT = 2
_THREADS = 16
# Bytes of one request. A bucket answers a few large ones sooner than one for every header.
_WINDOW, _REMOTE_WINDOW = 1 << 12, 1 << 22


def index(shards: Sequence[remote.FileInfo], fields: Fields) -> list[Entries]:
    """Return the images of every shard; raises what `scan` does."""
    return [split_off(entries)[0] for entries in scan(shards, fields)]


def scan(shards: Sequence[remote.FileInfo], fields: Fields) -> list[Entries]:
    """Return images and other members of every shard, from the index where it is still valid.

    Raises DataError: a shard that is cut, damaged, sparse or without images, or a key twice in it.
    """
    paths = [shard.path for shard in shards]
    folder = os.path.commonprefix(paths)  # noqa: RUF071  (commonpath spoils the // of addresses)
    folder = folder[: folder.rfind("/") + 1]
    names = [path.removeprefix(folder) for path in paths]
    digest = hashlib.sha256(json.dumps([_FORMAT, *fields, names]).encode()).hexdigest()[:12]
    places = _places(folder, f"vit_jax-index-{digest}.npz")
    versions = [f"{shard.size} {shard.version}" for shard in shards]
    kept: dict[str, tuple[str, Entries]] = {}
    missing = list(range(len(names)))
    for place in places:  # the first may be out of date, and nobody's to write
        found = _read(place)
        kept |= {names[i]: found[names[i]] for i in missing if names[i] in found}
        missing = [i for i in missing if names[i] not in kept or kept[names[i]][0] != versions[i]]
        if not missing:
            break
    changed = [names[i] for i in missing if names[i] in kept]
    if changed:
        more = f" and {len(changed) - 1} other shards" if len(changed) > 1 else ""
        line = f"{shown(changed[0])}{more} changed after the index was made; reading headers again"
        print(f"warning: {line}", file=sys.stderr)
    if missing:
        read = functools.partial(_index_shard, fields=fields)
        with (
            waiting.said(f"reading the headers of {len(missing)} tar files, once"),
            concurrent.futures.ThreadPoolExecutor(_THREADS) as pool,
        ):
            read_anew = pool.map(read, [shards[i] for i in missing])
            kept |= {names[i]: (versions[i], e) for i, e in zip(missing, read_anew, strict=True)}
        _write(places, {name: kept[name] for name in names})
    return [kept[name][1] for name in names]


def joined(entries: Sequence[Entries]) -> Entries:
    """Put the entries of several shards behind each other."""
    return Entries(*(np.concatenate(arrays) for arrays in zip(*entries, strict=True)))


def _index_shard(shard: remote.FileInfo, fields: Fields) -> Entries:
    try:
        return entries_of(_Window(shard), shard.size, fields)
    except remote.RemoteError:
        raise
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise DataError(f"{shown(shard.path)}: {why}") from error


class _Window:
    """Bytes of a shard, read ahead: headers and labels lie close to each other."""

    def __init__(self, shard: remote.FileInfo) -> None:
        self._shard, self._start, self._data = shard, 0, b""
        self._ahead = _REMOTE_WINDOW if remote.is_remote(shard.path) else _WINDOW

    def read(self, start: int, stop: int) -> bytes:
        stop = min(stop, self._shard.size)
        if not self._start <= start <= stop <= self._start + len(self._data):
            ahead = min(max(stop, start + self._ahead), self._shard.size)
            self._start, self._data = start, remote.read_range(self._shard.path, start, ahead)
        return self._data[start - self._start : stop - self._start]

    def content(self, member: Member) -> bytes:
        """Return the content of a member, or as much of it as tells that it is too long."""
        return self.read(member.start, member.start + min(member.size, 1 << 20))


def _places(folder: str, name: str) -> list[str]:
    """Return where an index may lie, best first."""
    is_remote = remote.is_remote(folder)
    full = folder if is_remote else os.path.abspath(folder)
    of_folder = hashlib.sha256(os.fsencode(full)).hexdigest()[:12]
    cached = str(cache_home() / "vit_jax" / "tar" / of_folder / name)
    return [f"{folder}{name}", cached] if remote.scheme(folder) in ("", "gs", "s3") else [cached]


def _read(place: str) -> dict[str, tuple[str, Entries]]:
    """Return version and entries of the shards of an index; nothing where it cannot be read."""
    try:
        with np.load(io.BytesIO(remote.read(place))) as found:
            ends = np.cumsum(found["counts"])[:-1]
            columns = [np.split(found[name], ends) for name in Entries._fields]
            names = [os.fsdecode(name) for name in found["shards"].tolist()]
            versions = [version.decode() for version in found["versions"].tolist()]
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile):
        return {}
    entries = (Entries(*column) for column in zip(*columns, strict=True))
    return dict(zip(names, zip(versions, entries, strict=True), strict=True))


def _write(places: Sequence[str], kept: dict[str, tuple[str, Entries]]) -> None:
    """Write an index to the first place that can be written; without one it is made anew."""
    arrays: dict[str, Any] = joined([entries for _, entries in kept.values()])._asdict()
    arrays["counts"] = np.array([len(entries.starts) for _, entries in kept.values()], np.int64)
    arrays["shards"] = np.array([os.fsencode(name) for name in kept], np.bytes_)
    arrays["versions"] = np.array([version.encode() for version, _ in kept.values()], np.bytes_)
    np.savez(data := io.BytesIO(), **arrays)
    for place in places:
        with contextlib.suppress(OSError, remote.RemoteError):
            if remote.is_remote(place):
                driver = remote.filesystem(place)
                remote.trying(place, functools.partial(driver.pipe_file, place, data.getvalue()))
            else:
                Path(place).parent.mkdir(parents=True, exist_ok=True)
                files.write(Path(place), data.getvalue())
            return
