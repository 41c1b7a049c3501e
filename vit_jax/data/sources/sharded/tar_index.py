# SPDX-License-Identifier: Apache-2.0
"""Where the images of tar shards lie and what their labels are: one pass over headers, then kept.

Headers are ustar with GNU's long names and base-256 sizes, and POSIX.1-2001's (PAX). Beside them
only the names that are too long for a header, and the labels, are read. Each member is an image, a
label, or another, with the reason why it is no example.

The index lies beside the shards where it may be written, in a bucket too, so that one host's pass
serves all; else in $XDG_CACHE_HOME/vit_jax or ~/.cache/vit_jax. It counts for a shard of the same
size and version, by time or etag. One that another user wrote is compared with the shards first.
"""

import concurrent.futures
import contextlib
import functools
import hashlib
import io
import itertools
import json
import os
import random
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from vit_jax.data.images.header import SUFFIXES
from vit_jax.data.names import contradiction, label_of
from vit_jax.data.several import of_list
from vit_jax.data.sources.captions import in_member
from vit_jax.errors import DataError, UserError, shown
from vit_jax.process import waiting
from vit_jax.storage import array_files, files, foreign, remote
from vit_jax.storage.files import cache_home

BLOCK = 512
_LONGEST = 1 << 20  # bytes of a long name or of a PAX header
_PACKED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ")  # gzip, zstd, bzip2, xz
_LINKS = (b"1", b"2")
_FILES = (b"\0", b"0", b"7")
_LONGEST_LABEL, _LONGEST_LABELS = 255, 4095  # of one, and of an image's several, a line each
_LOOKED_AT = 100  # members that tell what a shard has
LONGEST_TEXT = 1 << 20  # bytes of a member with a text, of which no more are read
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
_FORMAT = 2
_THREADS = 16
_COMPARED = 8  # shards, of an index of others
_REMEMBERED = 15  # digests of indices
# Bytes of one request. A bucket answers a few large ones sooner than one for every header.
_WINDOW, _REMOTE_WINDOW = 1 << 12, 1 << 22


class Member(NamedTuple):
    """A file in a tar; `start` is where its content begins, right behind its own header."""

    name: bytes
    start: int
    size: int
    crc: int  # CRC-32 of its header: of name, size, time, owner
    is_link: bool


def members(read: Callable[[int, int], bytes], end: int) -> Iterator[Member]:
    """Yield the files and links of a tar, in their order.

    Blocks of zeros between members are passed over, so that tars one behind the other are read
    whole, which GNU tar does by --ignore-zeros.

    Args:
        read: returns the bytes from one offset to another.
        end: the size of the tar.

    Raises ValueError: it is cut, damaged or compressed, or a member is sparse.
    """
    at, finished = 0, False
    common: dict[bytes, bytes] = {}  # PAX records for all that follows
    own: dict[bytes, bytes] = {}  # those of the next member, GNU's long name among them
    while at < end:
        block = read(at, at + BLOCK)
        if len(block) == BLOCK and not any(block):
            at, finished = at + BLOCK, True
            continue
        kind, size = _kind_and_size(block, at)
        start, finished = at + BLOCK, False
        name = _name(block)
        records = {**common, **own}
        if kind not in b"LKxg":
            name = records.get(b"path", name)
            size = int(records.get(b"size", size))
            if kind == b"S" or any(key.startswith(b"GNU.sparse") for key in records):
                raise ValueError(f"{_shown(name)} is sparse, which is not read; write it plainly")
        at = start + -(-size // BLOCK) * BLOCK
        if size < 0 or start + size > end:
            needs = f"{_shown(name)} ends at byte {start + size:,}"
            raise ValueError(f"cut off: {needs}, and the file has {end:,}")
        if kind in b"LKxg":
            if size > _LONGEST:
                raise ValueError(f"a header of {size:,} bytes at byte {start - BLOCK:,}")
            content = read(start, start + size)
            if kind == b"L":
                own[b"path"] = content.rstrip(b"\0")
            elif kind != b"K":  # the name that a link points to
                (common if kind == b"g" else own).update(_records(content))
            continue
        own = {}
        if kind in _LINKS or (kind in _FILES and not name.endswith(b"/")):
            yield Member(name, start, size, zlib.crc32(block), kind in _LINKS)
    if not finished:
        raise ValueError("cut off: the block of zeros that ends a tar is missing")


def _kind_and_size(block: bytes, at: int) -> tuple[bytes, int]:
    """Return type and size; raises ValueError: this is no header."""
    if at == 0 and block.startswith(_PACKED):
        raise ValueError("compressed, which has no random access; decompress it once")
    if len(block) < BLOCK:
        raise ValueError(f"cut off in the header at byte {at:,}")
    try:
        size = _number(block[124:136])
        if 256 + sum(block[:148]) + sum(block[156:]) == _number(block[148:156]) and size >= 0:
            return block[156:157], size
    except ValueError:
        pass
    raise ValueError(f"damaged: no header of a tar at byte {at:,}")


def _number(field: bytes) -> int:
    """Read octal digits, or GNU's base 256 of numbers that these have no room for."""
    if field[0] & 0x80:
        return int.from_bytes(field[1:])
    return int(field.partition(b"\0")[0].strip() or b"0", 8)


def _name(block: bytes) -> bytes:
    name, prefix = block[:100].partition(b"\0")[0], b""
    if block[257:263] == b"ustar\0":  # in GNU's own headers times stand there
        prefix = block[345:500].partition(b"\0")[0]
    return prefix + b"/" + name if prefix else name


def _records(content: bytes) -> dict[bytes, bytes]:
    """Read PAX records, b"LENGTH KEY=VALUE\\n"; raises ValueError: they are damaged."""
    found = {}
    while content.strip(b"\0"):
        length = int(content.partition(b" ")[0])
        record, content = content[:length], content[length:]
        key, equals, value = record.partition(b" ")[2].partition(b"=")
        if not equals or not record.endswith(b"\n"):
            raise ValueError("damaged: a PAX header without KEY=VALUE")
        found[key] = value[:-1]
    return found


def _shown(name: bytes) -> str:
    return repr(name.decode(errors="backslashreplace"))


class Fields(NamedTuple):
    """Which members of a key are its image and its label."""

    image: str = ""  # a suffix, "jpg"; "" is the first of `SUFFIXES` that there is
    label: str = ""  # a suffix, "cls", or a key of the JSON; "" is the first of `LABELS`
    captions: str | None = None  # likewise; "" is KEY.txt, else a usual key; None: are not wanted


# Where the captions of an image lie.
CAPTIONS = np.dtype(
    [
        ("start", "<i8"),  # of the content of their member
        ("size", "<i8"),
        ("crc", "<u4"),  # CRC-32 of its header
        ("is_json", "?"),
        ("count", "<i4"),  # 0: there are none
        ("broken", "<i4"),  # those that are not UTF-8
    ]
)


class Entries(NamedTuple):
    """The images of some shards, in their order."""

    names: np.ndarray  # bytes (M,), of the members
    starts: np.ndarray  # int64 (M,), the first byte of each image
    sizes: np.ndarray  # int64 (M,), bytes of each image
    crcs: np.ndarray  # uint32 (M,), CRC-32 of the header in front of it
    labels: np.ndarray  # bytes (M,), as text, b"" where there is none
    captions: np.ndarray  # CAPTIONS (M,), or V1 (M,) where they are not wanted


@runtime_checkable
class ShardBytes(Protocol):
    """Bytes of a shard."""

    def read(self, start: int, stop: int) -> bytes: ...

    def content(self, member: Member) -> bytes:
        """Return the content of a member, or as much of it as tells that it is too long."""
        ...


def split_off(entries: Entries) -> tuple[Entries, list[tuple[str, str]]]:
    """Separate images from members that are none: (reason, name) of each of these."""
    is_left = np.array([label[:1] == _LEFT_OUT for label in entries.labels.tolist()], bool)
    names = [name.decode(errors="backslashreplace") for name in entries.names[is_left].tolist()]
    reasons = [_WHY.get(label[1:2], "not an image") for label in entries.labels[is_left].tolist()]
    used = Entries(*(column[~is_left] for column in entries))
    return used, list(zip(reasons, names, strict=True))


def entries_of(window: ShardBytes, size: int, fields: Fields, *, agree: bool = False) -> Entries:
    """Return the images of a shard, and behind them its members that belong to none.

    With `agree`, all labels of a key must say the same where `fields` does not choose one.

    Raises ValueError: a shard that is cut, damaged, sparse or without images, a key twice in it, a
    label that is none.
    """
    samples: dict[bytes, dict[str, Member]] = {}
    beside: dict[str, dict[bytes, bytes]] = {}  # labels of the JSON, by their names and keys
    labels: dict[bytes, dict[str, bytes]] = {}  # by suffix
    others: list[tuple[bytes, str, Member]] = []  # that are no image, label or JSON of a key
    wanted = (fields.label,) if fields.label else LABELS
    wanted = () if fields.label == NO_LABEL else wanted
    texts: dict[bytes, tuple[int, ...]] = {}  # of each key that has captions a row of CAPTIONS
    for member in members(window.read, size):
        folder, slash, base = member.name.rpartition(b"/")
        stem, dot, suffix = base.partition(b".")
        kind = suffix.decode(errors="replace").lower()
        is_label = kind in wanted
        key = folder + slash + stem
        if not (stem and dot):  # hidden, or without a suffix
            others.append((b"", "", member))
            continue
        if fields.captions is not None and kind in ("json", fields.captions.lower() or "txt"):
            is_json = kind == "json"
            given = in_member(window.content(member), fields.captions, is_json=is_json)
            if given.texts and not (is_json and key in texts):
                where = member.start, min(member.size, LONGEST_TEXT), member.crc
                texts[key] = (*where, is_json, len(given.texts), given.broken)
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
        elif kind == "json" and wanted:
            content = window.content(member)
            if fields.captions is not None:  # which are read where they are not UTF-8
                content = content.decode(errors="replace").encode()
            if not any(found.values()):
                found[kind] = _json_label(content, name, wanted)
            if agree and not fields.label:
                _add_labels(content, beside, key)
    chosen = {
        key: next(filter(None, map(labels[key].get, (*wanted, "json"))), b"") for key in labels
    }
    _check_agree(chosen, {**_of_suffixes(labels, agree and not fields.label), **beside})
    rows, left, none = [], [], (0, 0, 0, False, 0, 0)
    order = [fields.image] if fields.image else [suffix[1:] for suffix in SUFFIXES]
    for key, sample in samples.items():
        image = next((sample[kind] for kind in order if kind in sample), None)
        if image is not None:
            rows.append((*_columns(image), chosen[key], texts.get(key, none)))
        for kind, member in sample.items():
            if member is not image and (image is None or f".{kind}" in SUFFIXES):
                left.append((*_columns(member), _LEFT_OUT + (b"a" if image else b"k"), none))
    images = {key for key, sample in samples.items() if any(kind in sample for kind in order)}
    for key, kind, member in others:
        if key not in images:
            left.append((*_columns(member), _LEFT_OUT + _why(member.name, kind), none))
    if not rows:
        kinds = {*itertools.chain(*samples.values()), *(kind for key, kind, _ in others if key)}
        has = ", ".join(f".{kind}" for kind in sorted(kinds)[:8]) or "none of a key"
        raise ValueError(f"no member is .{fields.image or 'jpg, .png, ...'}; there are {has}")
    kinds = (np.bytes_, np.int64, np.int64, np.uint32, np.bytes_, CAPTIONS)
    columns = zip(*rows, *left, strict=True)
    found = Entries(*(np.array([*c], kind) for c, kind in zip(columns, kinds, strict=True)))
    if fields.captions is None:
        return found._replace(captions=_no_captions(len(found.names)))
    return found


def _no_captions(count: int) -> np.ndarray:
    return np.zeros(count, "V1")


def _of_suffixes(
    labels: dict[bytes, dict[str, bytes]], wanted: bool
) -> dict[str, dict[bytes, bytes]]:
    """Return the labels of each suffix, KEY.cls or KEY.label, by their keys; {} if not wanted."""
    found: dict[str, dict[bytes, bytes]] = {}
    for key, given in labels.items() if wanted else ():
        for kind in given.keys() - {"json"}:
            found.setdefault(f"KEY.{kind}", {})[key] = given[kind]
    return found


def _add_labels(content: bytes, found: dict[str, dict[bytes, bytes]], key: bytes) -> None:
    """Add what a JSON has under the usual names of labels, and is one."""
    try:
        tree = json.loads(content)
    except (ValueError, RecursionError):
        return
    for name in LABELS if isinstance(tree, dict) else ():
        with contextlib.suppress(ValueError):  # it is no label
            if label := label_of(tree.get(name)):
                found.setdefault(f"{name!r} in its JSON", {})[key] = label.encode()


def _check_agree(chosen: dict[bytes, bytes], others: dict[str, dict[bytes, bytes]]) -> None:
    """Raise ValueError where labels of a key do not mean what is taken as such."""
    for name, of_key in others.items():
        keys = list(of_key)
        try:
            ones, two = ([label_of(labels[key]) for key in keys] for labels in (chosen, of_key))
        except ValueError:  # which is told where it is read
            continue
        if places := contradiction(ones, two):
            said = (
                f"{keys[k].decode(errors='replace')!r} has {ones[k]!r}, and {two[k]!r} by {name}"
                for k in dict.fromkeys(places)
            )
            raise ValueError(f"labels disagree: {'; '.join(said)}; choose one by ?label=FIELD")


def _columns(member: Member) -> tuple[bytes, int, int, int]:
    return member.name, member.start, member.size, member.crc


def _why(name: bytes, kind: str) -> bytes:
    """Return the letter of why a member is no part of an example."""
    if not kind:
        return b"h" if name.rpartition(b"/")[2].startswith(b".") else b"s"
    return b"d" if f".{kind.rpartition('.')[2]}" in SUFFIXES else b"i"


def _label(content: bytes, name: str) -> bytes:
    text = content.strip()
    longest = max(map(len, text.split(b"\n")))
    if longest > _LONGEST_LABEL or len(text) > _LONGEST_LABELS or b"\0" in text:
        raise ValueError(f"{name!r} holds no label, but {len(text):,} bytes")
    return text


def _json_label(content: bytes, name: str, wanted: Sequence[str]) -> bytes:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name!r} is no JSON ({error})") from None
    values = (found.get(key) for key in wanted) if isinstance(found, dict) else ()
    try:
        value = next((value for value in values if value is not None), "")
        label = of_list(value) if isinstance(value, list) else label_of(value)
    except ValueError as error:
        advice = f"choose another by ?label=FIELD, or ?label={NO_LABEL}"
        raise ValueError(f"{name!r}: {error}; {advice}") from None
    return _label(label.encode(), name)


def parts(shard: remote.FileInfo) -> list[str]:
    """Return what the first keys of a shard have: their suffixes, and keys of the first JSON."""
    window = _Window(shard)
    found: dict[str, None] = {}
    for member in itertools.islice(members(window.read, shard.size), _LOOKED_AT):
        suffix = member.name.rpartition(b"/")[2].partition(b".")[2].decode(errors="replace")
        if suffix == "json" and "KEY.json" not in found:
            with contextlib.suppress(ValueError, RecursionError):
                found |= dict.fromkeys(map(repr, json.loads(window.content(member))))
        found[f"KEY.{suffix}"] = None
    return list(found)


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
    told = fields[:2] if fields.captions is None else fields
    digest = hashlib.sha256(json.dumps([_FORMAT, *told, names]).encode()).hexdigest()[:12]
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
        _write(places, own, {name: kept[name] for name in names}, fields)
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
        return self.read(member.start, member.start + min(member.size, LONGEST_TEXT))


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
    is_captioned = fields.captions is not None
    stored, kinds = Entries._fields, "SiiuSViSS"
    if not is_captioned:
        stored, kinds = stored[:-1], kinds.replace("V", "")
    kinds = dict(zip((*stored, "counts", "shards", "versions"), kinds, strict=True))
    try:
        data = remote.read(place, most)
        columns = array_files.vectors(data, kinds)
        counts, names = columns["counts"].astype(np.int64), columns["shards"].tolist()
        versions = [version.decode() for version in columns["versions"].tolist()]
        names = [os.fsdecode(name) for name in names]
        if (counts < 1).any() or len({len(names), len(versions), len(counts)}) != 1:
            raise ValueError("other numbers of shards")
        if not is_captioned:
            columns["captions"] = _no_captions(len(columns["labels"]))
        elif columns["captions"].dtype != CAPTIONS:
            raise ValueError("other facts of captions")
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
    places = [(entries.starts, entries.sizes)]
    if entries.captions.dtype == CAPTIONS:
        told = entries.captions[entries.captions["count"] > 0]
        places.append((told["start"], told["size"]))
    starts, sizes = (np.concatenate(each).astype(np.int64) for each in zip(*places, strict=True))
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


def _write(
    places: Sequence[str], own: Path, kept: dict[str, tuple[str, Entries]], fields: Fields
) -> None:
    """Write an index to the first place that can be written; without one it is made anew."""
    arrays: dict[str, Any] = joined([entries for _, entries in kept.values()])._asdict()
    if fields.captions is None:
        del arrays["captions"]
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
