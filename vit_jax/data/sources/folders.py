# SPDX-License-Identifier: Apache-2.0
"""Folders of images, [<split>/]<class>/[...]/*.{jpg,png,webp,...}, read as a dataset.

What a folder is, splits of classes, classes, or images alone, is decided by names. Runs that were
begun by earlier versions read theirs as those did, `folder:DIR?rules=1`: images of the class
folders alone, of the suffixes that were known then, whatever is in them.
"""

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from vit_jax.data import account
from vit_jax.data.account import Account
from vit_jax.data.images.header import OLD_SUFFIXES, read_file
from vit_jax.data.names import (
    KNOWN_SPLITS,
    alike,
    meaning,
    one_spelling,
    parts_of,
    split_notes,
    twins,
    with_known_names,
)
from vit_jax.data.sources import look
from vit_jax.data.sources.base import Example, Labelled, SplitError, absolute_slices, digest_of
from vit_jax.data.sources.listing import NO_IMAGE, NO_NAME, Listing, RemoteFolder, list_all
from vit_jax.data.sources.look import Seen, copies_told, same_content
from vit_jax.data.sources.partition import (
    WHOLE,
    SplitDraw,
    check_no_archive,
    check_no_seed,
    partition,
    split_draw,
)
from vit_jax.errors import UserError, shown, some
from vit_jax.storage import remote

DRAWN = ""  # the name of the only split of a folder without splits
BESIDE = "beside the class folders"
OUTSIDE = "outside the splits"
Folder: TypeAlias = Path | RemoteFolder


class FolderLayout(NamedTuple):
    """The split and the class of each file.

    Attributes:
        classes: their names, by class id.
        files: paths by split, a folder's name; `DRAWN` where splits are to be drawn.
        labels: their class ids, -1 for none.
        left_out: (reason, path) of the others.
        notes: what else was decided.
    """

    classes: tuple[str, ...]
    files: Mapping[str, list[str]]
    labels: Mapping[str, list[int]]
    left_out: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()


class _Top(NamedTuple):
    """A folder in the root: its number of images, directly and in each of its folders."""

    direct: int
    below: Counter[str]


def splits_in(paths: Iterable[str]) -> tuple[dict[str, bool], bool]:
    """Decide whether the folders in the root are splits or classes.

    Args:
        paths: of all files that are named as images, relative to the root.

    Returns:
        The splits, each with whether its images lie in class folders, {} for none; and whether the
        folders are classes instead.

    A folder that is named as a split (train, val, test) is one if it holds folders of images. The
    images directly in it are then strays, which must be fewer. If it holds images alone, it is a
    split without labels, beside such splits or without other folders. If no folder has such a name,
    folders with images directly in them are classes. Otherwise the folders are splits of any name,
    if there is only one or if they hold folders of the same names.
    """
    direct: Counter[str] = Counter()
    below: dict[str, Counter[str]] = defaultdict(Counter)
    for path in paths:
        top, slash, rest = path.partition("/")
        inside, deeper, _ = rest.partition("/")
        if slash and deeper:
            below[top][inside] += 1
        elif slash:
            direct[top] += 1
    tops = {n: _Top(direct[n], below.get(n, Counter())) for n in sorted({*direct, *below})}
    known = {name: top for name, top in tops.items() if alike(name) in KNOWN_SPLITS}
    of_classes = {name: top.below.total() > top.direct for name, top in known.items()}
    sizes = {name: top.direct + top.below.total() for name, top in tops.items()}
    others = sum(size for name, size in sizes.items() if name not in known)
    structured = [name for name, is_one in of_classes.items() if is_one]
    if any(not known[name].direct for name in structured):
        return of_classes, False
    if structured and others <= sum(sizes[name] for name in structured):
        return of_classes, False
    if known and not structured:
        # Two such folders, and few other images, are no classes that happen to have these names.
        meanings = {meaning(name) for name in known}
        if not others or (len(meanings) > 1 and others <= sum(sizes[name] for name in known)):
            return of_classes, False
    if not tops:
        return {}, False
    if any(top.direct for top in tops.values()):
        return {}, True
    shared = Counter(name for top in tops.values() for name in top.below)
    if len(tops) == 1 or max(shared.values()) > 1:
        return dict.fromkeys(tops, True), False
    return {}, True


def arrange(
    images: Sequence[str], folders: Sequence[str], where: str, bad: set[str]
) -> FolderLayout:
    """Assign a split and a class to each image.

    Class ids come from the sorted union of the class folders of all splits, so that a class missing
    from one split shifts no label. An image in a deeper folder belongs to the class above it.

    Args:
        images: paths of all images by their names, relative to the root.
        folders: those of all folders.
        where: the root in messages.
        bad: those of `images` that cannot be read.

    Raises UserError: a class without an image, or one whose name differs between splits in case.
    """
    splits, are_classes = splits_in(images)
    names = list(splits) or [DRAWN]
    depth = 2 if splits else 1  # the number of an image's folders that have a meaning
    left_out: list[tuple[str, str]] = []
    found: dict[str, list[tuple[str, str]]] = {name: [] for name in names}
    written: dict[str, dict[str, str]] = {
        name: {} for name in names
    }  # by the common spelling: the folder's
    notes: list[str] = []
    lost: Counter[str] = Counter()  # unreadable images of a class
    for path in images:
        *above, _ = path.split("/")
        split = above[0] if splits and above else DRAWN
        if split not in found:
            left_out.append((OUTSIDE, path))
            continue
        labelled = splits[split] if splits else are_classes
        if labelled and len(above) < depth:
            left_out.append((BESIDE, path))
            continue
        label = one_spelling(above[depth - 1]) if labelled else ""
        if labelled:
            first = written[split].setdefault(label, above[depth - 1])
            if first != above[depth - 1]:
                line = f"the folders {first!r} and {above[depth - 1]!r} are one class, {label!r}"
                notes.extend([] if line in notes else [line])
        if path in bad:
            lost[label] += 1
            continue
        found[split].append((path, label))
    for path in folders:  # class folders without an image
        parts = path.split("/")
        split = parts[0] if splits else DRAWN
        if len(parts) == depth and split in found and (splits[split] if splits else are_classes):
            written[split].setdefault(one_spelling(parts[-1]), parts[-1])
    _check_spelling(where, written)
    classes = tuple(sorted({label for names in written.values() for label in names}))
    counts = {name: Counter(label for _, label in pairs) for name, pairs in found.items()}
    for label in classes:
        if not any(label in of for of in counts.values()):
            split = next(name for name in names if label in written[name])
            folder = "/".join(filter(None, (where, split, written[split][label])))
            why = f", but {lost[label]:,} that cannot be read" if lost[label] else ""
            raise UserError(
                f"class folder {shown(folder)} holds no images{why}; remove it or fill it"
            )
    notes += _notes(splits, classes, counts, written)
    ids = {label: k for k, label in enumerate(classes)} | {"": -1}
    files = {name: [path for path, _ in pairs] for name, pairs in found.items()}
    labels = {name: [ids[label] for _, label in pairs] for name, pairs in found.items()}
    return FolderLayout(classes, files, labels, left_out, notes)


def _notes(
    splits: Mapping[str, bool],
    classes: Sequence[str],
    counts: Mapping[str, Counter[str]],
    written: Mapping[str, Mapping[str, str]],
) -> list[str]:
    """Return notes on what the user may not have intended."""
    notes = [
        f"{name}: no class folders in it, so its images have no labels"
        for name in splits
        if not splits[name]
    ]
    for name, labels in written.items():
        empty = [repr(label) for label in labels if not counts[name][label]]
        if empty and name:
            notes.append(f"{name}: no images of {some(empty)}")
    notes += [
        f"{' and '.join(map(repr, same))} are {len(same)} classes; if they are one, give them "
        "one name"
        for same in twins(classes)
    ]
    return notes + split_notes(splits)


def _check_spelling(where: str, written: Mapping[str, Mapping[str, str]]) -> None:
    """Raise UserError if two splits spell a class with different case.

    Within one split they are two classes: handwritten letters may well lie in "a" and "A".
    """
    spelled: dict[str, dict[str, str]] = {}
    for split, labels in written.items():
        for label in labels:
            spelled.setdefault(alike(label), {}).setdefault(label, split)
    for found in spelled.values():
        if len(found) > 1 and all(len(found.keys() & {*labels}) < 2 for labels in written.values()):
            (one, here), (two, there) = list(found.items())[:2]
            differs = f"the class {one!r} of {here} is {two!r} in {there}"
            raise UserError(f"{where}: {differs}; give both folders the same name")


def list_images(root: Path | RemoteFolder, where: str, split: str) -> FolderLayout:
    """List a folder's images in the splits that `split` names.

    Raises UserError: no folders of classes, or one without images; OSError.
    """
    inside = _subfolders(root)
    known = [name for name in inside if name.lower() in KNOWN_SPLITS]
    splits = [name for name in known if not _has_images(root / name)]
    if not splits and any(_has_images(root / name) for name in inside):
        classes = {DRAWN: inside}
    else:
        splits = splits or [name for name in inside if _subfolders(root / name)]
        classes = {name: _subfolders(root / name) for name in splits}
    if not any(classes.values()):
        raise UserError(f"{where} has no class folders, in folders train, val, test or in itself")
    union = tuple(sorted(set().union(*classes.values())))
    ids = {name: i for i, name in enumerate(union)}
    wanted = {name for name, _ in parts_of(with_known_names(split, splits))}
    files, labels = {}, {}
    for name, names in classes.items():
        found = _files(root, f"{name}/" if name else "", names) if name in {*wanted, DRAWN} else []
        files[name], labels[name] = found, [ids[path.rsplit("/", 2)[-2]] for path in found]
    return FolderLayout(union, files, labels)


def _subfolders(folder: Path | RemoteFolder) -> list[str]:
    if isinstance(folder, RemoteFolder):
        return sorted(name for name in folder.folders() if not name.startswith("."))
    with os.scandir(folder) as entries:
        return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))


def _has_images(folder: Path | RemoteFolder) -> bool:
    if isinstance(folder, RemoteFolder):
        return any(name.lower().endswith(OLD_SUFFIXES) for name in folder.files())
    with os.scandir(folder) as entries:
        return any(entry.name.lower().endswith(OLD_SUFFIXES) for entry in entries)


def _files(root: Path | RemoteFolder, before: str, classes: list[str]) -> list[str]:
    found: list[str] = []
    for name in classes:
        images = [
            f"{before}{name}/{each}"
            for each in _file_names(root / before / name)
            if each.lower().endswith(OLD_SUFFIXES) and not each.startswith(".")
        ]
        if not images:
            raise UserError(f"class folder {shown(str(root / before / name))} holds no images")
        found += images
    return sorted(found, key=lambda p: hashlib.blake2b(os.fsencode(p), digest_size=8).digest())


def _file_names(folder: Path | RemoteFolder) -> list[str]:
    if isinstance(folder, RemoteFolder):
        return folder.files()
    with os.scandir(folder) as entries:
        return [e.name for e in entries if e.is_file(follow_symlinks=False) or e.is_symlink()]


class FolderSource(Labelled):
    """Examples of one split of a folder or a table; see `Source`."""

    def __init__(
        self,
        root: Path | str,
        name: str,
        classes: tuple[str, ...],
        paths: Sequence[str],
        labels: Sequence[int],
        *,
        drawn: bool = False,
    ) -> None:
        """Store paths relative to `root`, in their order of reading, and their class ids.

        `root` is a string where it is an address.
        """
        self._root, self.drawn = root, drawn
        self.is_remote = isinstance(root, str)
        self.name = name
        self.class_names = classes
        self.labels = np.array(labels, np.int32)
        self.left_out: list[tuple[str, str]] = []  # (reason, path) of each file that is no example
        # A list of a million paths would take ten times the memory, here and in every worker.
        self._paths = np.array([os.fsencode(path) for path in paths], np.bytes_)

    def __len__(self) -> int:
        return len(self._paths)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "left_out": []}  # workers do not need it

    def read(self, index: int) -> Example:
        """Return an example's encoded image and its class id.

        Raises OSError or MissingError: there is no such file; RemoteError: the bucket does not
        answer; ValueError: a band without a file.
        """
        path = self._path(index)
        if self.bands:
            from vit_jax.data.sources import arrays  # late: most folders hold pictures

            image = arrays.read(path, self.bands)
        else:
            image = remote.read(path) if self.is_remote else read_file(path)
        return {"image": image, **self._target(index)}

    def example_id(self, index: int) -> str:
        return shown(self._path(index))

    def digest(self) -> str:
        """Digest the paths below the folder; a million sizes would take minutes to ask for."""
        return digest_of(self._paths.tolist())

    def rows(self) -> list[tuple[str, ...]]:
        """List the absolute path and the class of every example."""
        paths = (
            os.path.abspath(path) if not self.is_remote else path
            for path in map(self._path, range(len(self)))
        )
        return [(path, *cells) for path, cells in zip(paths, self._cells(), strict=True)]

    def columns(self) -> tuple[str, ...]:
        """Name the columns of `rows`."""
        return "path", "label"

    def _cells(self) -> list[tuple[str, ...]]:
        """Return what a table says of each example, besides its path."""
        assert self.labels is not None
        names = [each.replace("|", "\\|") for each in self.class_names]
        return [(names[k] if k >= 0 else "",) for k in self.labels]

    def _path(self, index: int) -> str:
        path = os.fsdecode(self._paths[index])
        if self.is_remote:  # the root is "" if the addresses share no beginning
            return f"{self._root}/{path}".removeprefix("/")
        return os.path.join(self._root, path)  # a tenth of pathlib's time


def open_folder(path: str, split: str, bands: tuple[str, ...] = ()) -> FolderSource:
    """Open one split of a folder of images, with TFDS-style slices.

    With `bands` (`DataConfig.bands`) images are arrays, or folders with a file for each band.

    What the folder means `arrange` decides: folders of classes in folders of splits, of any
    names; folders of classes alone, or images alone, whose splits are those of `partition`, and
    "whole". Names of splits that mean the same, "validation" and "Val", stand for each other.
    Within a split, files come in an order that depends on their names alone but is mixed over the
    classes: by name, `train[:99%]` would lack the last.

    All of the folder is listed, and the beginning of each image looked at (`look`): what cannot be
    read has no index, and is in the source's account with all else that is left out.

    Raises UserError: no such folder or split, no image, a class without one, a folder that may not
    be read, or a class whose name differs between splits in case alone.
    """
    path, draw = split_draw(path)
    if not path:
        raise UserError("data.name=folder: names no folder; write it as data.name=folder:DIR")
    if remote.is_remote(path):
        return _open(RemoteFolder.open(path), split, draw, bands)
    try:
        return _open(Path(os.path.expanduser(path)), split, draw, bands)
    except OSError as error:
        raise UserError(f"{shown(str(error.filename or path))}: {error.strerror}") from error


def _open(root: Folder, split: str, draw: SplitDraw, bands: tuple[str, ...] = ()) -> FolderSource:
    where = shown(str(root) if root.is_absolute() else f"./{root}")
    if not root.is_dir():
        check_no_archive(str(root))
        is_file = isinstance(root, Path) and root.is_file()
        what = f"{where} is a file, and no folder" if is_file else f"no folder {where!r}"
        raise UserError(f"{what}; {_expected(where)}")
    found = look.kept(
        (str(root), where, draw, split if draw.rules == 1 else "", bands),
        lambda: _read(root, where, split, draw, bands),
    )
    if not found.drawn:
        check_no_seed(draw.seed, where)
    split = with_known_names(split, list(found.files))
    sizes = {name: len(paths) for name, paths in found.files.items()}
    try:
        slices = absolute_slices(split, sizes, where)
    except SplitError as error:
        if found.account and found.account.left_out:
            error.args = (f"{error} ({found.account.why_left_out()})",)
        only, *more = found.files
        is_known = alike(only) in KNOWN_SPLITS or split.partition("[")[0] != "train"
        if not found.drawn and not more and not is_known:
            inside = shown(only)
            error.args = (f"{error}; if {inside} is no split, name the folder {where}/{inside}",)
        raise
    chosen = [path for name, start, stop in slices for path in found.files[name][start:stop]]
    source = FolderSource(
        root if isinstance(root, Path) else str(root),
        f"{where}[{split}]" + (draw.told() if found.drawn else ""),
        found.classes,
        chosen,
        [found.labels[path] for path in chosen],
        drawn=found.drawn,
    )
    source.account, source.left_out = found.account, found.left_out
    source.bands = bands
    return source


class _Reading(NamedTuple):
    """The contents of a folder as a dataset.

    Attributes:
        classes: their names, by class id.
        files: paths by split, in the order to be read.
        labels: class ids by path, -1 for none.
        drawn: whether the splits were drawn.
        account: of all files; None by the rules of earlier versions.
        left_out: (reason, path) of each that is not used.
    """

    classes: tuple[str, ...]
    files: Mapping[str, list[str]]
    labels: Mapping[str, int]
    drawn: bool
    account: Account | None = None
    left_out: list[tuple[str, str]] = []  # noqa: RUF012  (never changed)


def _read(
    root: Folder, where: str, split: str, draw: SplitDraw, bands: tuple[str, ...]
) -> _Reading:
    if draw.rules == 1:
        return _arranged(list_images(root, where, split), draw, {})
    listing, name = list_all(root), where_name(root)
    place = root if isinstance(root, Path) else str(root)
    if bands:
        from vit_jax.data.sources import arrays  # late: most folders hold pictures

        arrays.check_place(str(root), bands)
        listing = arrays.grouped(listing, bands)
    others = [*listing.others, *_unnamed(root, listing)]
    if not listing.images:
        counts = account.left_out(others)
        why = Account(unit="files", num_classes=0, used={}, left_out=counts).why_left_out()
        raise UserError(
            f"{where} has no images, in folders train, val, test or in itself"
            f"{f' ({why})' if others else ''}; {_expected(where)}"
        )
    seen: dict[str, Seen] = {}
    notes: list[str] = []
    if isinstance(root, RemoteFolder) and len(listing.images) > look.MOST_FAR:
        notes = [look.believed(len(listing.images))]
    else:
        facts = {f.path: f for f in root.below} if isinstance(root, RemoteFolder) else {}
        places = look.places_of(place, listing.images)
        found = arrays.examine(places, name, bands) if bands else look.examine(places, name, facts)
        seen = dict(zip(listing.images, found, strict=True))
    bad = {path: each.why for path, each in seen.items() if each.why}
    layout = arrange(listing.images, listing.folders, where, {*bad})
    twins = () if bands else _twins(layout)
    notes += [*layout.notes, *twins, *_copies(layout, seen, place, name)]
    outside = {path for _, path in layout.left_out}
    others += layout.left_out
    others += [(why, path) for path, why in bad.items() if path not in outside]
    found = _arranged(layout, draw, seen)
    counted = Account(
        unit="files",
        num_classes=len(layout.classes),
        used={name: len(paths) for name, paths in found.files.items() if name != WHOLE},
        left_out=account.left_out((look.in_a_word(why), path) for why, path in others),
        notes=tuple(notes),
    )
    return found._replace(account=counted, left_out=others)


def _arranged(layout: FolderLayout, draw: SplitDraw, seen: Mapping[str, Seen]) -> _Reading:
    """Order files by a hash of their names, which mixes the classes; draw splits if need be."""
    labels: dict[str, int] = {}
    for name, paths in layout.files.items():
        labels.update(zip(paths, layout.labels[name], strict=True))
    files = {name: sorted(paths, key=_mixing) for name, paths in layout.files.items()}
    if DRAWN not in files:
        return _Reading(layout.classes, files, labels, drawn=False)
    whole = files[DRAWN]
    contents = [seen[path].key for path in whole] if seen else ()
    members = partition(whole, [labels[path] for path in whole], draw, contents)
    files = {name: [whole[i] for i in chosen] for name, chosen in members.items()}
    return _Reading(layout.classes, {**files, WHOLE: whole}, labels, drawn=True)


def _mixing(path: str) -> bytes:
    return hashlib.blake2b(os.fsencode(path), digest_size=8).digest()


def _expected(where: str) -> str:
    return f"expected {where}/[{{train,val}}/]<class>/*.{{jpg,png,webp,...}}"


def where_name(root: Folder) -> str:
    """Return a folder's name, which does not depend on the working directory."""
    return os.path.abspath(root) if isinstance(root, Path) else str(root)


def _unnamed(root: Folder, listing: Listing) -> list[tuple[str, str]]:
    """Look at files whose names do not tell what they are, and return (reason, path) of each."""
    if isinstance(root, RemoteFolder):
        return [(NO_IMAGE, path) for path in listing.unnamed]
    images = map(look.is_image, look.places_of(root, listing.unnamed))
    return [
        (NO_NAME if image else NO_IMAGE, path)
        for path, image in zip(listing.unnamed, images, strict=True)
    ]


def _copies(
    found: FolderLayout, seen: Mapping[str, Seen], root: Path | str, name: str
) -> list[str]:
    """Return notes on images that occur more than once."""
    if not seen:
        return []
    rows = [
        (path, split, found.classes[label] if label >= 0 else "")
        for split, paths in found.files.items()
        for path, label in zip(paths, found.labels[split], strict=True)
    ]
    paths = [path for path, _, _ in rows]
    groups = same_content(look.places_of(root, paths), [seen[path] for path in paths], name)
    names = list(map(shown, paths))
    return copies_told(groups, names, [row[1] for row in rows], [row[2] for row in rows])


def _twins(found: FolderLayout) -> list[str]:
    """Return a note on files that differ only in their suffix, perhaps one photograph twice."""
    stems: Counter[str] = Counter()
    names: dict[str, list[str]] = defaultdict(list)
    for paths in found.files.values():
        stems.update(path.rpartition(".")[0] for path in paths)
    twins = {stem for stem, count in stems.items() if count > 1}
    if not twins:
        return []
    for paths in found.files.values():
        for path in paths:
            if (stem := path.rpartition(".")[0]) in twins:
                names[stem].append(path)
    one, two = (shown(path) for path in sorted(names[min(twins)])[:2])
    more = f", and {len(twins) - 1:,} more such" if len(twins) > 1 else ""
    return [f"{one} and {two}{more}: one photograph twice would count twice"]
