# SPDX-License-Identifier: Apache-2.0
"""Where the images of tar shards lie and what their labels are: one pass over headers, then kept.

The index lies beside the shards where it may be written, in a bucket too, so that one host's pass
serves all; else in $XDG_CACHE_HOME/vit_jax or ~/.cache/vit_jax. It counts for a shard of the same
size and version, by time or etag. One that another user wrote is compared with the shards first.
"""

import concurrent.futures
import contextlib
import functools
import hashlib
import io
import json
import os
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vit_jax.data.sources.tar_headers import BLOCK, Member
from vit_jax.data.sources.tar_members import Entries, Fields, entries_of, split_off
from vit_jax.errors import DataError, UserError, shown
from vit_jax.process import waiting
from vit_jax.storage import array_files, files, foreign, remote
from vit_jax.storage.files import cache_home

_FORMAT = 2
_THREADS = 16
_COMPARED = 8  # shards, of an index of others
_REMEMBERED = 15  # digests of indices
# Bytes of one request. A bucket answers a few large ones sooner than one for every header.
_WINDOW, _REMOTE_WINDOW = 1 << 12, 1 << 22


def index(shards: Sequence[remote.FileInfo], fields: Fields) -> list[Entries]:
    """Return the images of every shard; raises what `scan` does."""
    return [split_off(entries)[0] for entries in scan(shards, fields)]


def scan(
    shards: Sequence[remote.FileInfo], fields: Fields, *, agree: bool = False
) -> list[Entries]:
    """Return images and other members of every shard, from the index where it is still valid.

    With `agree`, labels of a key that disagree are refused when the index is made.

    Raises DataError: a shard that is cut, damaged, sparse or without images, or a key twice in it.
    """
    paths = [shard.path for shard in shards]
    folder = os.path.commonprefix(paths)  # noqa: RUF071  (commonpath spoils the // of addresses)
    folder = folder[: folder.rfind("/") + 1]
    names = [path.removeprefix(folder) for path in paths]
    digest = hashlib.sha256(json.dumps([_FORMAT, *fields, names]).encode()).hexdigest()[:12]
    places = _places(folder, f"vit_jax-index-{digest}.npz")
    own = Path(f"{places[-1]}.sha256")
    versions = [_version(shard) for shard in shards]
    kept: dict[str, tuple[str, Entries]] = {}
    missing = list(range(len(names)))
    for place in places:  # the first may be out of date, and nobody's to write
        found = _read(place, own, dict(zip(names, shards, strict=True)), fields)
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
        read = functools.partial(_index_shard, fields=fields, agree=agree)
        with (
            waiting.said(f"reading the headers of {len(missing)} tar files, once"),
            concurrent.futures.ThreadPoolExecutor(_THREADS) as pool,
        ):
            read_anew = pool.map(read, [shards[i] for i in missing])
            kept |= {names[i]: (versions[i], e) for i, e in zip(missing, read_anew, strict=True)}
        _write(places, own, {name: kept[name] for name in names})
    return [kept[name][1] for name in names]


def joined(entries: Sequence[Entries]) -> Entries:
    """Put the entries of several shards behind each other."""
    return Entries(*(np.concatenate(arrays) for arrays in zip(*entries, strict=True)))


def _index_shard(shard: remote.FileInfo, fields: Fields, *, agree: bool = False) -> Entries:
    try:
        return entries_of(_Window(shard), shard.size, fields, agree=agree)
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


def _read(
    place: str, own: Path, shards: Mapping[str, remote.FileInfo], fields: Fields
) -> dict[str, tuple[str, Entries]]:
    """Return version and entries of the shards of an index; nothing where it is none to believe.

    One that this user has not written is compared with the headers of some shards, drawn at random.

    Args:
        place: the index.
        own: where the digests of those that this user wrote, or has compared, are kept.
        shards: by their names in it.
        fields: by which it was made.
    """
    most = (1 << 20) + sum(shard.size for shard in shards.values())  # a header alone is 512 bytes
    kinds = dict(zip((*Entries._fields, "counts", "shards", "versions"), "SiiuSiSS", strict=True))
    try:
        data = remote.read(place, most)
        columns = array_files.vectors(data, kinds)
        counts, names = columns["counts"].astype(np.int64), columns["shards"].tolist()
        versions = [version.decode() for version in columns["versions"].tolist()]
        names = [os.fsdecode(name) for name in names]
        if (counts < 1).any() or len({len(names), len(versions), len(counts)}) != 1:
            raise ValueError("other numbers of shards")
        if {len(columns[name]) for name in Entries._fields} != {int(counts.sum())}:
            raise ValueError("other numbers of images")
        ends = np.cumsum(counts)[:-1]
        split = [np.split(columns[name], ends) for name in Entries._fields]
        entries = [Entries(*column) for column in zip(*split, strict=True)]
        found = dict(zip(names, zip(versions, entries, strict=True), strict=True))
        current = [n for n in found if n in shards and found[n][0] == _version(shards[n])]
        if not all(_is_inside(found[name][1], shards[name].size) for name in current):
            raise ValueError("images outside of their shards")
    except (UserError, OSError, ValueError):
        return {}
    digest = hashlib.sha256(data).hexdigest()
    if digest not in _remembered(own):
        drawn = random.SystemRandom().sample(current, min(_COMPARED, len(current)))
        if not all(_is_same(found[name][1], shards[name], fields) for name in drawn):
            line = f"{shown(place)} is not what the shards hold; it is made anew"
            print(f"warning: {line}", file=sys.stderr)
            return {}
        if len(current) == len(found):
            _remember(own, digest)
    return found


def _version(shard: remote.FileInfo) -> str:
    return f"{shard.size} {shard.version}"


def _is_inside(entries: Entries, size: int) -> bool:
    starts, sizes = (column.astype(np.int64) for column in (entries.starts, entries.sizes))
    return bool((starts >= BLOCK).all() and (sizes >= 0).all() and (sizes <= size - starts).all())


def _is_same(entries: Entries, shard: remote.FileInfo, fields: Fields) -> bool:
    made = _index_shard(shard, fields)
    return all(np.array_equal(*columns) for columns in zip(entries, made, strict=True))


def _remembered(own: Path) -> list[str]:
    try:
        return foreign.read(own).decode(errors="replace").split()
    except (OSError, UserError):
        return []


def _remember(own: Path, digest: str) -> None:
    with contextlib.suppress(OSError):
        own.parent.mkdir(parents=True, exist_ok=True)
        files.write(own, "\n".join([*_remembered(own)[-_REMEMBERED:], digest]))


def _write(places: Sequence[str], own: Path, kept: dict[str, tuple[str, Entries]]) -> None:
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
            _remember(own, hashlib.sha256(data.getvalue()).hexdigest())
            return
