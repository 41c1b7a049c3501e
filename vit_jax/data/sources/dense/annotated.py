# SPDX-License-Identifier: Apache-2.0
"""Images as files with targets as files: what is found, counted, checked, and divided into splits.

A layout (masks, COCO, VOC, YOLO, depth) lists its images and has an `Annotations`; this module does
what is alike for all of them, before the first step, and has the source.
"""

import dataclasses
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np

from vit_jax.data import account
from vit_jax.data.account import Account, Said
from vit_jax.data.images.header import read_file
from vit_jax.data.names import read_class_names, split_notes, with_known_names
from vit_jax.data.sources import look
from vit_jax.data.sources.base import Example, Labelled, absolute_slices, digest_of
from vit_jax.data.sources.dense.facts import measured
from vit_jax.data.sources.dense.shape import Shape, fitted, shape_at, shape_of
from vit_jax.data.sources.listing import RemoteFolder
from vit_jax.data.sources.look import copies_told, same_content
from vit_jax.data.sources.partition import WHOLE, SplitDraw, check_no_seed, options, partition
from vit_jax.data.targets import PixelTarget, TargetKind
from vit_jax.errors import DataError, UserError, shown
from vit_jax.process import waiting
from vit_jax.storage import remote

Root: TypeAlias = Path | RemoteFolder
CLASSES = "classes.txt"  # names the classes of a layout that has no place for them
GONE = "of files that are not there"  # the reason why an image that is listed is left out


class Item(NamedTuple):
    """An image of a layout; its number there is that of its annotations.

    Attributes:
        path: relative to the root.
        split: "" where it has none.
    """

    path: str
    split: str = ""


class Checked(NamedTuple):
    """What a look at all annotations has found.

    Attributes:
        bad: by image, why it is not used, in words that follow a number.
        notes: what is to be said of the others, a line each.
    """

    bad: Mapping[int, str]
    notes: Sequence[str] = ()


@runtime_checkable
class Annotations(Protocol):
    """The targets of a layout's images, by the images' numbers. It can be pickled."""

    classes: tuple[str, ...]
    things: tuple[bool, ...]  # of a panoptic set, which classes are things; () is all

    def check(self, rows: Sequence[int], shapes: Mapping[int, Shape], kind: TargetKind) -> Checked:
        """Look at the annotations of some images; `shapes` may lack those in a bucket.

        Raises UserError: what no image's absence mends, as a class beyond those that are named.
        """
        ...

    def target(self, row: int, kind: TargetKind, shape: Shape) -> PixelTarget:
        """Return an image's target, of the shown or the stored image.

        Raises ValueError, OSError, RemoteError: it cannot be read.
        """
        ...

    def digest(self, row: int) -> bytes:
        """Return what tells an image's annotations from others."""
        ...


@dataclasses.dataclass(frozen=True)
class FoundImages:
    """A dataset, before a split of it is chosen.

    Attributes:
        root: of the images.
        paths: of all images that are used, relative to the root.
        rows: their numbers in `annotations`.
        shapes: of each, (height, width, turn); zeros where nobody looked.
        members: the places in `paths` of each split.
        drawn: whether the splits were drawn.
        left_out: (reason, path) of each image or file that is not used.
    """

    root: Path | str
    paths: list[str]
    rows: list[int]
    shapes: np.ndarray
    members: Mapping[str, Sequence[int]]
    drawn: bool
    annotations: Annotations
    account: Account
    left_out: list[tuple[str, str]]


class AnnotatedSource(Labelled):
    """One split of images with targets; see `Source`. The images have no class of their own."""

    def __init__(
        self, found: FoundImages, name: str, chosen: Sequence[int], kind: TargetKind
    ) -> None:
        """Take the dataset and the places of its images that are meant."""
        self._root, self.drawn, self.name = found.root, found.drawn, name
        self.is_remote = isinstance(found.root, str)
        self.target_kind = kind
        self._annotations = found.annotations
        self.class_names, self.things = found.annotations.classes, found.annotations.things
        self.labels = np.full(len(chosen), -1, np.int32)
        self.account, self.left_out = found.account, found.left_out
        self._paths = np.array([os.fsencode(found.paths[i]) for i in chosen], np.bytes_)
        self._rows = np.array([found.rows[i] for i in chosen], np.int64)
        self._shapes = found.shapes[np.asarray(chosen, np.int64)]

    @property
    def has_masks(self) -> bool:
        """Whether segments have masks, and not boxes alone."""
        return getattr(self._annotations, "has_masks", True)

    def __len__(self) -> int:
        return len(self._paths)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "left_out": []}  # workers do not need it

    def read(self, index: int) -> Example:
        """Return an example's encoded image; its label is -1.

        Raises OSError or MissingError: there is no such file; RemoteError: the bucket does not
        answer.
        """
        path = self.path(index)
        return {"image": remote.read(path) if self.is_remote else read_file(path), "label": -1}

    def target(self, index: int) -> PixelTarget:
        """Return an example's target, in pixels of the upright image.

        Raises DataError: it cannot be read, or is of an image of another size; RemoteError.
        """
        shape = Shape(*self._shapes[index].tolist())
        try:
            if not shape.height:
                shape = shape_of(self.read(index)["image"])
            row, kind = int(self._rows[index]), TargetKind(self.target_kind)
            found = self._annotations.target(row, kind, shape)
            return fitted(found, shape, self.path(index))
        except remote.RemoteError:
            raise
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise DataError(f"{self.example_id(index)}: {why}") from error

    def example_id(self, index: int) -> str:
        return shown(self.path(index))

    def digest(self) -> str:
        """Digest the paths below the root and what their targets are."""
        pairs = zip(self._paths.tolist(), self._rows.tolist(), strict=True)
        return digest_of(b"%b\0%b" % (path, self._annotations.digest(row)) for path, row in pairs)

    def rows(self) -> list[tuple[str, ...]]:
        """List the absolute path of every example, and no class."""
        paths = map(self.path, range(len(self)))
        return [(path if self.is_remote else os.path.abspath(path), "") for path in paths]

    def path(self, index: int) -> str:
        """Return the path or the address of an image."""
        path = os.fsdecode(self._paths[index])
        return f"{self._root}/{path}" if self.is_remote else str(Path(self._root, path))


def find(
    root: Root,
    where: str,
    items: Sequence[Item],
    annotations: Annotations,
    kind: TargetKind,
    draw: SplitDraw,
    *,
    left_out: Sequence[tuple[str, str]] = (),
    notes: Sequence[str] = (),
    in_order: bool = False,
) -> FoundImages:
    """Look at all images of a layout and their annotations, and divide them into splits.

    Args:
        root: to which paths are relative.
        where: the dataset in messages.
        items: the images.
        annotations: of the images, by their places in `items`.
        kind: of targets.
        draw: of splits, where `items` have none.
        left_out: (reason, path) of what the layout does not use.
        notes: what it has to say.
        in_order: keep the order of paths in splits of the layout's own, instead of a mixed one.

    Raises UserError: no image that can be used, or most images without a target that can be; what
    `Annotations.check` raises.
    """
    others, notes = list(left_out), list(notes)
    if not items:
        raise UserError(f"{where} has no images with targets{why(others)}")
    place = root if isinstance(root, Path) else str(root)
    paths = [item.path for item in items]
    places = look.places_of(place, paths)
    name = os.path.abspath(root) if isinstance(root, Path) else str(root)
    bad: dict[int, str] = {}
    seen: list[look.Seen] = []
    shapes = np.zeros((len(items), 3), np.int32)
    if isinstance(root, Path):
        seen = look.examine(places, name)
        bad = {
            row: GONE if each.why == "gone" else each.why
            for row, each in enumerate(seen)
            if each.why
        }
        good = [row for row in range(len(items)) if row not in bad]
        told = measured([places[row] for row in good], f"{name}, sizes", _shape_told)
        for row, text in zip(good, told, strict=True):
            if text.startswith("!"):
                bad[row] = text[1:]
            else:
                shapes[row] = [int(word) for word in text.split()]
    else:
        notes.append(look.believed(len(items), "images and targets"))
    good = [row for row in range(len(items)) if row not in bad]
    known = {row: Shape(*shapes[row].tolist()) for row in good if shapes[row, 0]}
    checked = annotations.check(good, known, kind)
    bad = {row: look.in_a_word(why) for row, why in bad.items()} | dict(checked.bad)
    notes += checked.notes
    others += [(why, paths[row]) for row, why in bad.items()]
    good = [row for row in good if row not in bad]
    if 2 * len(bad) >= len(items) and bad:
        raise UserError(f"{where}: {len(good):,} of {len(items):,} images can be used{why(others)}")
    # By a hash of the names, so that a slice is no part of an album.
    good.sort(key=paths.__getitem__ if in_order else lambda row: _mixing(paths[row]))
    own: dict[str, list[int]] = {}
    drawn = not any(items[row].split for row in good)
    if drawn:
        kept = [paths[row] for row in good]
        contents = [seen[row].key for row in good] if seen else ()
        own = dict(partition(kept, [-1] * len(good), draw, contents))
    else:
        check_no_seed(draw, where)
        for at, row in enumerate(good):
            own.setdefault(items[row].split, []).append(at)
        own = dict(sorted(own.items()))
    if seen:
        groups = same_content([places[row] for row in good], [seen[row] for row in good], name)
        names = [shown(paths[row]) for row in good]
        splits = [items[row].split for row in good]
        notes += copies_told(groups, names, splits, [""] * len(good))
    counted = Account(
        unit="images",
        num_classes=len(annotations.classes),
        what="depth maps" if kind is TargetKind.DEPTH else "",
        used={key: len(rows) for key, rows in own.items()},
        left_out=account.left_out(others),
        notes=(*findings(notes), *split_notes(own)),
        said=tuple(line for line in notes if isinstance(line, Said)),
    )
    members: dict[str, Sequence[int]] = dict(own)
    if drawn:
        members[WHOLE] = list(range(len(good)))
    return FoundImages(
        root=place,
        paths=[paths[row] for row in good],
        rows=good,
        shapes=shapes[np.asarray(good, np.int64)],
        members=members,
        drawn=drawn,
        annotations=annotations,
        account=counted,
        left_out=others,
    )


def choose(
    found: FoundImages, where: str, split: str, kind: TargetKind, draw: SplitDraw
) -> AnnotatedSource:
    """Return one split, with slices; raises SplitError: there is none such."""
    split = with_known_names(split, list(found.members))
    sizes = {name: len(rows) for name, rows in found.members.items()}
    slices = absolute_slices(split, sizes, where)
    chosen = [i for name, start, stop in slices for i in found.members[name][start:stop]]
    told = draw.told() if found.drawn else ""
    return AnnotatedSource(found, f"{where}[{split}]{told}", chosen, kind)


def options_of(name: str, kind: str, known: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Separate "PATH?ignore=255&split_seed=1" into the path and its options.

    Raises UserError: an option that this `kind` of datasets does not have.
    """
    path, chosen = options(name)
    if surplus := sorted(chosen.keys() - {*known, "split_seed"}):
        has = ", ".join(f"?{key}=" for key in (*known, "split_seed"))
        raise UserError(f"{kind}:{shown(path)} has no ?{surplus[0]}=; it has {has}")
    return path, chosen


def open_root(path: str, kind: str) -> tuple[Root, str]:
    """Return the folder that a name of a `kind` of datasets names, and what messages call it.

    Raises UserError: there is no such folder; RemoteError.
    """
    if not path:
        raise UserError(f"data.name={kind}: names no folder; write it as data.name={kind}:DIR")
    if remote.is_remote(path):
        root: Root = RemoteFolder.open(path)
    else:
        root = Path(os.path.expanduser(path))
    where = shown(str(root) if root.is_absolute() else f"./{root}")
    if not root.is_dir():
        raise UserError(f"no folder {where!r}; write data.name={kind}:DIR, a folder")
    return root, where


def text_of(root: Root, name: str) -> str:
    """Return the text of a small file below a root, "" where there is none.

    Raises UserError: it is no text in UTF-8.
    """
    path = f"{root}/{name}"
    try:
        return remote.read(path, 1 << 26).decode()
    except UnicodeDecodeError:
        raise UserError(f"{shown(path)} is no text in UTF-8; save it as that") from None
    except (FileNotFoundError, remote.MissingError):
        return ""


def findings(notes: Sequence[str]) -> list[str]:
    """Return the notes that need a look, without those that only say how data are read."""
    return [line for line in notes if not isinstance(line, Said)]


def class_names_in(root: Root, where: str, path: str = CLASSES) -> tuple[str, ...]:
    """Return the names in classes.txt below a root, () where there is none.

    Raises UserError: it lists no names.
    """
    text = text_of(root, path)
    try:
        return read_class_names(text) if text else ()
    except ValueError as error:
        raise UserError(f"{where}/{path}: {error}") from None


def told_by(root: Root, paths: Sequence[str], what: str, told: Callable[[bytes], str]) -> list[str]:
    """Return `told(content)` of each file, read in threads; "!" and why where it raises ValueError.

    Args:
        root: to which paths are relative; what files on a disk tell is kept in the cache.
        paths: of the files.
        what: they are called, "the labels".
        told: makes a text of a file's content.
    """
    if isinstance(root, Path):
        places = look.places_of(root, paths)
        return measured(
            places, f"{what} of {root.absolute()}", lambda place: told(read_file(place))
        )

    def of_far(place: str) -> str:
        data = remote.read(place)
        try:
            return told(data)
        except ValueError as error:
            return f"!{error}"

    # Most of the time is spent in waiting for the bucket.
    with waiting.said(f"reading {what} of {root}"), ThreadPoolExecutor(16) as pool:
        return list(pool.map(of_far, look.places_of(str(root), paths)))


def counted(found: Sequence[tuple[str, str]], what: str) -> list[str]:
    """Return a line "3 boxes are empty, and left out (first a.jpg)" for each reason of some pairs.

    Args:
        found: (reason, the image's name).
        what: is counted: "box", "segment".
    """
    lines = []
    for reason, each in account.left_out(found).items():
        if each.count == 1:
            one = reason.replace("their image", "its image")
            lines.append(f"1 {what} is {one} (first: {each.first[0]})")
        else:
            plural = f"{what}es" if what == "box" else f"{what}s"
            lines.append(f"{each.count:,} {plural} are {reason} (first: {each.first[0]})")
    return lines


def unfit(kind: TargetKind, fit: Sequence[TargetKind], where: str) -> UserError:
    """Return the error of a dataset that has no targets of a kind."""
    words = {
        TargetKind.PIXELS: "a class for each pixel",
        TargetKind.SEGMENTS: "segments (masks or boxes, each of a class)",
        TargetKind.DEPTH: "a depth for each pixel",
    }
    has = " or ".join(words[each] for each in fit)
    return UserError(f"{where} has {has}, and not {words[kind]}; learn that, or name other data")


def kind_of(kind: TargetKind, fit: Sequence[TargetKind], where: str) -> TargetKind:
    """Return the kind of targets that is wanted, by default the first that there is.

    Raises UserError: there are none such.
    """
    if kind is TargetKind.NONE:
        return fit[0]
    if kind not in fit:
        raise unfit(kind, fit, where)
    return kind


def _shape_told(place: str) -> str:
    return " ".join(map(str, shape_at(place)))


def why(others: Sequence[tuple[str, str]]) -> str:
    """Return " (2 of 2 files left out: ...)" of (reason, path) pairs, "" of none."""
    if not others:
        return ""
    counts = account.left_out(others)
    return f" ({Account(unit='files', num_classes=0, used={}, left_out=counts).why_left_out()})"


def _mixing(path: str) -> bytes:
    return hashlib.blake2b(os.fsencode(path), digest_size=8).digest()
