# SPDX-License-Identifier: Apache-2.0
"""Decodes every image of a dataset, to find those that cannot be used, say nothing or are copies.

Images are compared by what a model sees of them, their pixels, whatever bytes they lie in.
"""

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import cv2
import numpy as np

from vit_jax import data
from vit_jax.data.account import SYSTEM, Account, dataset_of
from vit_jax.data.config import Background, Reading
from vit_jax.data.images import bands
from vit_jax.data.images.decode import decode
from vit_jax.data.names import with_known_names
from vit_jax.data.sources import look
from vit_jax.data.sources.base import (
    Example,
    Source,
    SplitError,
    account_of,
    bands_of,
    has_captions,
    target_kind,
    target_of,
)
from vit_jax.data.sources.captions import Captions
from vit_jax.data.sources.partition import WHOLE
from vit_jax.errors import unknown
from vit_jax.process import waiting
from vit_jax.storage import remote

_CHUNK = 1024  # examples decoded at once
_FLAT = 2  # levels by which the pixels of one colour may differ, as JPEG leaves them
# Kinds of findings; what cannot be read has a word of its own, such as "empty" or "cut off".
TWO_SPLITS, TWO_CLASSES, TWICE = "in two splits", "in two classes", "there twice"
BLANK = "of one colour"
UNREADABLE = "unreadable"
UNLIKE = "of other bands"


class Fault(NamedTuple):
    """One image, or one file that is none, and what is wrong with it."""

    found: str  # its kind: one of the words above, or of those of an `Account`
    name: str
    split: str  # "" for a file that is left out of the dataset
    label: str  # its class, "" for none
    why: str
    index: int = -1  # of the example in its split; -1 for a file that is left out


class Captioned(NamedTuple):
    """What was counted of captions."""

    images: int  # that have one or several
    without: int  # images
    captions: int
    characters: int  # of all captions

    def line(self) -> str:
        """Return a summary: "5 captions of 3 images, 21.4 characters long on average; ..."."""
        mean = self.characters / max(self.captions, 1)
        text = f"{self.captions:,} captions of {self.images:,} images, {mean:.1f} characters long"
        without = f"; {self.without:,} images have no caption" if self.without else ""
        return f"{text} on average{without}"


class Inspected(NamedTuple):
    """The result of an inspection.

    Attributes:
        account: of the dataset, without its notes on copies, which are findings here.
        num_images: how many examples were read.
        num_decoded: how many of them can be decoded.
        findings: the gravest kinds first; copies of one image follow one another.
        captions: of the images that can be read; None of a dataset without.
        targets: a line about the masks, boxes or depth of those; "" of a dataset without.
    """

    account: Account
    num_images: int
    num_decoded: int
    findings: list[Fault]
    captions: Captioned | None
    targets: str = ""


class _Seen(NamedTuple):
    """What is kept of an example: why it cannot be used, its pixels' digest, its label, a note."""

    why: str
    pixels: bytes
    label: str
    blank: str
    captions: tuple[str, ...] = ()
    facts: str = ""  # of an array, its bands and their dtype
    target: Any = None  # what was counted of it


@look.once()
def open_splits(
    name: str,
    data_dir: str = "",
    splits: Sequence[str] = (),
    captions: Captions = Captions.UNREAD,
    chosen: tuple[str, ...] = (),
) -> dict[str, Source]:
    """Open the splits given, or all that have examples, of what `data.name` may be.

    Images are pictures, or with `chosen` bands (`DataConfig.bands`) arrays.

    Raises UserError: no such dataset or split.
    """
    names: list[str] = []
    try:
        data.open_source(name, data_dir, split="?", captions=captions, bands=chosen)
    except SplitError as error:  # it has the names of those that there are
        names = [split for split in error.splits if split != WHOLE] or list(error.splits)
    asked = [with_known_names(split, names) for split in splits]
    for split in asked:
        if split not in names:
            raise unknown(f"split of {name}", split, names)
    found: dict[str, Source] = {}
    for split in asked or names:
        with contextlib.suppress(SplitError):  # one of classes of one or two images is empty
            how = {"captions": captions, "bands": chosen}
            found[split] = data.open_source(name, data_dir, split, **how)
    return found


def inspect(sources: Mapping[str, Source], num_threads: int) -> Inspected:
    """Read and decode every example of some splits, in parallel, once.

    Args:
        sources: of one dataset, by split.
        num_threads: examples decoded at the same time.

    Raises RemoteError: a bucket does not answer.
    """
    first = next(iter(sources.values()))
    used = {name: len(source) for name, source in sources.items()}
    targets: list[Any] = []
    texts: list[tuple[int, int]] = []  # of each image read, its captions and their characters
    broken: list[Fault] = []
    blank: list[Fault] = []
    whose: dict[bytes, tuple[str, int, str]] = {}  # by pixels, the first example that has them
    copies: dict[bytes, list[tuple[str, int, str]]] = {}
    kinds: dict[str, list[tuple[str, int, str]]] = {}  # by bands and dtype, their examples
    for split, index, seen in _all(sources, num_threads):
        if seen.target is not None:
            targets.append(seen.target)
        if not seen.why:
            texts.append((len(seen.captions), sum(map(len, seen.captions))))
        if seen.facts:
            kinds.setdefault(seen.facts, []).append((split, index, seen.label))
        if seen.why:
            name = sources[split].example_id(index)
            kind = look.in_a_word(seen.why)
            kind = UNREADABLE if kind == seen.why else kind
            broken.append(Fault(kind, name, split, seen.label, seen.why, index))
        elif seen.blank:  # all such of one size are copies, which says nothing more
            name = sources[split].example_id(index)
            blank.append(Fault(BLANK, name, split, seen.label, seen.blank, index))
        else:
            here = (split, index, seen.label)
            before = whose.setdefault(seen.pixels, here)
            if before is not here:
                copies.setdefault(seen.pixels, [before]).append(here)
    account = account_of(first) or Account(
        unit="examples", num_classes=first.num_classes, used=used
    )
    notes = tuple(note for note in account.notes if look.BY_CONTENT not in note)
    left_out = [
        Fault(look.in_a_word(why), path, "", "", why)
        for why, path in getattr(first, "left_out", ())
        if why != SYSTEM
    ]
    return Inspected(
        dataclasses.replace(account, notes=notes),
        sum(used.values()),
        sum(used.values()) - len(broken),
        [*broken, *_unlike(sources, kinds), *left_out, *_copies(sources, copies), *blank],
        _captioned(texts) if has_captions(first) else None,
        _told(targets, first),
    )


def _told(targets: Sequence[Any], source: Source) -> str:
    kind = target_kind(source)
    if not kind:
        return ""
    from vit_jax.data.target_counts import line  # late: few datasets have targets

    return line(targets, kind, source.class_names)


def _unlike(
    sources: Mapping[str, Source], kinds: Mapping[str, Sequence[tuple[str, int, str]]]
) -> list[Fault]:
    """Return a finding for each array of other bands, or of another dtype, than most have."""
    usual = max(kinds, key=lambda kind: len(kinds[kind]), default="")
    return [
        Fault(
            UNLIKE,
            sources[split].example_id(index),
            split,
            label,
            f"{kind}, where most are {usual}",
            index,
        )
        for kind, members in kinds.items()
        if kind != usual
        for split, index, label in members
    ]


def _captioned(texts: Sequence[tuple[int, int]]) -> Captioned:
    with_one = sum(count > 0 for count, _ in texts)
    totals = (sum(column) for column in zip((0, 0), *texts, strict=True))
    return Captioned(with_one, len(texts) - with_one, *totals)


def _all(sources: Mapping[str, Source], num_threads: int) -> Iterator[tuple[str, int, _Seen]]:
    """Decode all examples; yields (split, index, what was seen) in their order."""
    first = next(iter(sources.values()))
    with (
        waiting.counted(
            f"decoding the images of {dataset_of(first.name)}", sum(map(len, sources.values()))
        ) as done,
        ThreadPoolExecutor(num_threads) as pool,
    ):
        for split, source in sources.items():
            for at in range(0, len(source), _CHUNK):
                chunk = range(at, min(at + _CHUNK, len(source)))
                for index, seen in zip(
                    chunk, pool.map(lambda i, s=source: _look(s, i), chunk), strict=True
                ):
                    yield split, index, seen
                done(len(chunk))


def _look(source: Source, index: int) -> _Seen:
    label = ""
    try:
        example = source.read(index)
        label = _class_of(source, example)
        facts = ""
        if chosen := bands_of(source):
            pixels = bands.load(example["image"], chosen).pixels
            bands.check_finite(pixels)
            facts = str(bands.BandFacts(pixels.dtype.name, pixels.shape[2]))
            blank = "of one value" if (pixels == pixels[:1, :1]).all() else ""
        else:
            pixels = decode(example["image"], 3)
            blank = _blank(example["image"], pixels)
        counted = _count(source, index)
    except remote.MissingError as error:
        return _Seen(str(error), b"", label, "")
    except remote.RemoteError:
        raise
    except (ValueError, OSError, cv2.error) as error:
        why = getattr(error, "strerror", None) or getattr(error, "err", None) or str(error)
        why = " ".join(str(why).split())[:200] or type(error).__name__
        return _Seen(why, b"", label, "")
    texts = example.get("captions", ())
    digest = hashlib.blake2b(repr(pixels.shape).encode(), digest_size=16)
    digest.update(pixels.tobytes())
    return _Seen("", digest.digest(), label, blank, texts, facts, counted)


def _count(source: Source, index: int) -> Any:
    """Read an example's target and count what it holds; None of a source without."""
    if not target_kind(source):
        return None
    from vit_jax.data.target_counts import count

    return count(target_of(source, index))


def _class_of(source: Source, example: Example) -> str:
    """Name the class of an example, or its classes; "" for none."""
    label: Any = example.get("label")
    if source.multi_label:
        return " + ".join(source.class_names[k] for k in np.flatnonzero(label))
    is_one = isinstance(label, int | np.integer) and 0 <= label < source.num_classes
    return source.class_names[int(label)] if is_one else ""


def _blank(image: bytes, pixels: np.ndarray) -> str:
    """Return "wholly black" or so for an image of a single colour, "" for every other image."""
    low, high = pixels.min(axis=(0, 1)), pixels.max(axis=(0, 1))
    if int((high - low).max()) > _FLAT:
        return ""
    # Behind what is transparent lies white here, elsewhere black.
    on_black = decode(image, 3, Reading(Background.BLACK))
    if int(on_black.max()) <= _FLAT and int(low.min()) >= 255 - _FLAT:
        return "wholly transparent"
    colour = "#" + "".join(f"{level:02x}" for level in pixels[0, 0].tolist())
    return f"wholly {({'#000000': 'black', '#ffffff': 'white'}).get(colour, colour)}"


def _copies(
    sources: Mapping[str, Source], groups: Mapping[bytes, Sequence[tuple[str, int, str]]]
) -> list[Fault]:
    """Return a finding for each image that another one equals, by what is wrong with that."""
    found: dict[str, list[Fault]] = {TWO_CLASSES: [], TWO_SPLITS: [], TWICE: []}
    for members in groups.values():
        names = [sources[split].example_id(index) for split, index, _ in members]
        classes = {label for *_, label in members} - {""}
        kinds = [TWO_CLASSES] * (len(classes) > 1)
        kinds += [TWO_SPLITS] * (len({split for split, *_ in members}) > 1)
        for kind in kinds or [TWICE]:
            for (split, index, label), name in zip(members, names, strict=True):
                other = names[0] if name != names[0] else names[1]
                why = f"the pixels of {other}"
                found[kind].append(Fault(kind, name, split, label, why, index))
    return [finding for kind in found.values() for finding in kind]
