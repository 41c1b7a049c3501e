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
import itertools
import json
import os
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vit_jax import files, remote, waiting
from vit_jax.data.image_header import SUFFIXES
from vit_jax.data.names import label_of
from vit_jax.data.tar_headers import Member, members
from vit_jax.errors import DataError, shown
from vit_jax.startup import cache_home

_FORMAT = 2
_THREADS = 16
# Bytes of one request. A bucket answers a few large ones sooner than one for every header.
_WINDOW, _REMOTE_WINDOW = 1 << 12, 1 << 22
_LONGEST_LABEL = 255
LABELS = ("cls", "label", "class", "class_id")
NO_LABEL = "none"  # the field that there is none, in "?label=none"
_LEFT_OUT = b"\0"  # before the letter of why a member is no example; no label begins so
_WHY = {
    b"h": "hidden",
    b"s": "without a suffix",
    b"i": "not an image",
    b"d": "with a dot in front of the suffix",
    b"a": "another image of its key",
    b"k": "of keys without an image",
}


class Fields(NamedTuple):
    """Which members of a key are its image and its label."""

    image: str = ""  # a suffix, "jpg"; "" is the first of `SUFFIXES` that there is
    label: str = ""  # a suffix, "cls", or a key of the JSON; "" is the first of `LABELS`


class Entries(NamedTuple):
    """The images of some shards, in their order."""

    names: np.ndarray  # bytes (M,), of the members
    starts: np.ndarray  # int64 (M,), the first byte of each image
    sizes: np.ndarray  # int64 (M,), bytes of each image
    crcs: np.ndarray  # uint32 (M,), CRC-32 of the header in front of it
    labels: np.ndarray  # bytes (M,), as text, b"" where there is none


def index(shards: Sequence[remote.FileInfo], fields: Fields) -> list[Entries]:
    """Return the images of every shard; raises what `scan` does."""
    return [split_off(entries)[0] for entries in scan(shards, fields)]


def split_off(entries: Entries) -> tuple[Entries, list[tuple[str, str]]]:
    """Separate images from members that are none: (reason, name) of each of these."""
    is_left = np.array([label[:1] == _LEFT_OUT for label in entries.labels.tolist()], bool)
    names = [name.decode(errors="backslashreplace") for name in entries.names[is_left].tolist()]
    reasons = [_WHY[label[1:2]] for label in entries.labels[is_left].tolist()]
    used = Entries(*(column[~is_left] for column in entries))
    return used, list(zip(reasons, names, strict=True))


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
        return _entries(_Window(shard), shard.size, fields)
    except remote.RemoteError:
        raise
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise DataError(f"{shown(shard.path)}: {why}") from error


def _entries(window: "_Window", size: int, fields: Fields) -> Entries:
    samples: dict[bytes, dict[str, Member]] = {}
    labels: dict[bytes, dict[str, bytes]] = {}  # by suffix
    others: list[tuple[bytes, str, Member]] = []  # that are no image, label or JSON of a key
    wanted = (fields.label,) if fields.label else LABELS
    wanted = () if fields.label == NO_LABEL else wanted
    for member in members(window.read, size):
        folder, slash, base = member.name.rpartition(b"/")
        stem, dot, suffix = base.partition(b".")
        kind = suffix.decode(errors="replace").lower()
        is_label = kind in wanted
        key = folder + slash + stem
        if not (stem and dot):  # hidden, or without a suffix
            others.append((b"", "", member))
            continue
        if not (is_label or kind in ("json", fields.image) or f".{kind}" in SUFFIXES):
            others.append((key, kind, member))
            continue
        name = member.name.decode(errors="backslashreplace")
        if member.is_link:
            raise ValueError(f"{name!r} is a link; write the file itself into the tar")
        sample, found = samples.setdefault(key, {}), labels.setdefault(key, {})
        if kind in sample:
            raise ValueError(f"{name!r} is there twice: its key has two .{kind}")
        sample[kind] = member
        if is_label:
            found[kind] = _label(window.content(member), name)
        elif kind == "json" and wanted and not any(found.values()):
            found[kind] = _json_label(window.content(member), name, wanted)
    rows, left = [], []
    order = [fields.image] if fields.image else [suffix[1:] for suffix in SUFFIXES]
    for key, sample in samples.items():
        image = next((sample[kind] for kind in order if kind in sample), None)
        label = next(filter(None, map(labels[key].get, (*wanted, "json"))), b"")
        if image is not None:
            rows.append((*_columns(image), label))
        for kind, member in sample.items():
            if member is not image and (image is None or f".{kind}" in SUFFIXES):
                left.append((*_columns(member), _LEFT_OUT + (b"a" if image else b"k")))
    images = {key for key, sample in samples.items() if any(kind in sample for kind in order)}
    for key, kind, member in others:
        if key not in images:
            left.append((*_columns(member), _LEFT_OUT + _why(member.name, kind)))
    if not rows:
        kinds = {*itertools.chain(*samples.values()), *(kind for key, kind, _ in others if key)}
        has = ", ".join(f".{kind}" for kind in sorted(kinds)[:8]) or "none of a key"
        raise ValueError(f"no member is .{fields.image or 'jpg, .png, ...'}; there are {has}")
    kinds = (np.bytes_, np.int64, np.int64, np.uint32, np.bytes_)
    columns = zip(*rows, *left, strict=True)
    return Entries(*(np.array(c, kind) for c, kind in zip(columns, kinds, strict=True)))


def _columns(member: Member) -> tuple[bytes, int, int, int]:
    return member.name, member.start, member.size, member.crc


def _why(name: bytes, kind: str) -> bytes:
    """Return the letter of why a member is no part of an example."""
    if not kind:
        return b"h" if name.rpartition(b"/")[2].startswith(b".") else b"s"
    return b"d" if f".{kind.rpartition('.')[2]}" in SUFFIXES else b"i"


def _label(content: bytes, name: str) -> bytes:
    text = content.strip()
    if len(text) > _LONGEST_LABEL or b"\0" in text:
        raise ValueError(f"{name!r} holds no label, but {len(text):,} bytes")
    return text


def _json_label(content: bytes, name: str, wanted: Sequence[str]) -> bytes:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name!r} is no JSON ({error})") from None
    values = (found.get(key) for key in wanted) if isinstance(found, dict) else ()
    try:
        label = label_of(next((value for value in values if value is not None), ""))
    except ValueError as error:
        advice = f"choose another by ?label=FIELD, or ?label={NO_LABEL}"
        raise ValueError(f"{name!r}: {error}; {advice}") from None
    return _label(label.encode(), name)


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
