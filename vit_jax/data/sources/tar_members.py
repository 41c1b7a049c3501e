# SPDX-License-Identifier: Apache-2.0
"""What the members of a tar are: images, their labels, and others, of which each has a reason."""

import contextlib
import itertools
import json
from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from vit_jax.data.images.header import SUFFIXES
from vit_jax.data.names import contradiction, label_of
from vit_jax.data.sources.tar_headers import Member, members

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


@runtime_checkable
class Window(Protocol):
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


def entries_of(window: Window, size: int, fields: Fields, *, agree: bool = False) -> Entries:
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
        elif kind == "json" and wanted:
            if not any(found.values()):
                found[kind] = _json_label(window.content(member), name, wanted)
            if agree and not fields.label:
                _add_labels(window.content(member), beside, key)
    chosen = {
        key: next(filter(None, map(labels[key].get, (*wanted, "json"))), b"") for key in labels
    }
    _check_agree(chosen, {**_of_suffixes(labels, agree and not fields.label), **beside})
    rows, left = [], []
    order = [fields.image] if fields.image else [suffix[1:] for suffix in SUFFIXES]
    for key, sample in samples.items():
        image = next((sample[kind] for kind in order if kind in sample), None)
        if image is not None:
            rows.append((*_columns(image), chosen[key]))
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
