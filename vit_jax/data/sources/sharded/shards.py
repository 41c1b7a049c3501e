# SPDX-License-Identifier: Apache-2.0
"""What datasets of many files share, tar and Parquet: splits by file names, class ids by labels.

The shards of a dataset must all be there, once each, and of one generation.
"""

import collections
import glob
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from vit_jax.data.names import (
    KNOWN_SPLITS,
    alike,
    classes_of,
    label_of,
    read_class_names,
    split_names,
    whole_number,
    with_known_names,
    without_label,
)
from vit_jax.data.several import LabelSets, Numbers, Read, of_numbers
from vit_jax.data.several import read as read_several
from vit_jax.data.sources.base import Labelled, absolute_slices, digest_of
from vit_jax.data.sources.partition import (
    WHOLE,
    SplitDraw,
    as_draw,
    check_no_seed,
    options,
    partition,
)
from vit_jax.errors import DataError, UserError, shown, some
from vit_jax.storage import remote
from vit_jax.storage.files import refused

MAX_CLASSES = 1 << 20  # a larger class id is some other number
_LONG = 10**18  # this and a larger number is a word
_CLASSNAMES = "classnames.txt"
_MOST = 1 << 26  # bytes of it
# The Hub has put a digest behind it, another of each shard.
_OF = re.compile(r"(.*?)-(\d+)-of-(\d{1,6})(?:-[0-9a-f]{8,64})?(\D.*|)", re.DOTALL)
_NUMBERED = re.compile(r"(.*?)(\d+)(\.[^.\d]*)", re.DOTALL)
# What browsers, Finder and Explorer call a second copy of a file.
_COPY = re.compile(
    r"(?P<before>copy of )?(?P<stem>.+?)"
    r"(?P<after>(?:[ _-]+copy)?(?: ?\(\d+\))?|(?:[ _-]+copy)(?: \d+)?)(?P<end>\.[^.]*)",
    re.IGNORECASE | re.DOTALL,
)
# What programs call a file that they have not finished.
_PARTS = (".part", ".partial", ".crdownload", ".download", ".incomplete", ".tmp")
_FEW = 4  # names that a message gives


class ShardSource(Labelled):
    """Examples of one split of some files; `read` is the format's own.

    `drawn` stays False where splits are: no table can list what is no file.
    """

    def __init__(
        self,
        name: str,
        classes: tuple[str, ...],
        files: Sequence[remote.FileInfo],
        labels: Int[np.ndarray, " M"] | LabelSets | Numbers,
        places: Int[np.ndarray, " M"],
    ) -> None:
        """Take the files of the split, and of each example its class id or -1, and its place.

        Instead of class ids there may be several labels of each example, or numbers.
        """
        self.name, self.class_names = name, classes
        self._files = tuple(files)
        self.is_remote = remote.is_remote(files[0].path)
        self._places = places.astype(np.int64)
        if isinstance(labels, np.ndarray):
            self.labels = labels.astype(np.int32)
        else:
            self.take_targets(labels)

    def __len__(self) -> int:
        return len(self._places)

    def digest(self) -> str:
        """Digest names and sizes of the files, labels and places."""
        files = [f"{base_name(file.path)} {file.size}".encode() for file in self._files]
        targets = self.labels if self._targets is None else self._targets
        assert targets is not None
        return digest_of([*files, targets.tobytes(), self._places.tobytes()])


def where_of(pattern: str) -> str:
    """Write a pattern for messages; one of this machine so that it looks like a path."""
    pattern = os.path.expanduser(pattern)
    is_plain = pattern.startswith("/") or remote.is_remote(pattern)
    return shown(pattern if is_plain else f"./{pattern.removeprefix('./')}")


def base_name(path: str) -> str:
    """Return the last part of a path or an address."""
    return _unsigned(path).rpartition("/")[2]


def _unsigned(path: str) -> str:
    """Return an address without the signature behind it, which is another every day."""
    return path.partition("?")[0] if path.startswith("http") and remote.is_remote(path) else path


class Shards(NamedTuple):
    """The files to be read, and what is to be said of those that are not."""

    files: list[remote.FileInfo]
    notes: tuple[str, ...]


def find(name: str, kind: str) -> tuple[str, Shards, dict[str, str]]:
    """Return what messages call "PATTERN?label=...", the files of the pattern, and the options.

    Raises UserError: no file is there, or one that the pattern names is not; an option of others;
    or what `complete` raises.
    """
    pattern, chosen = options(name)
    if "config" in chosen:
        raise UserError(f"{kind}:{shown(name)}: ?config= is for hf: alone; leave it out")
    pattern = os.path.expanduser(pattern)
    with refused(where_of(pattern)):
        files = remote.find(pattern) if pattern else []
    named = {name for name in remote.braces(pattern) if not re.search(r"[*?[]", name)}
    lacking = sorted(named - {file.path for file in files})
    if files and lacking:
        raise UserError(f"{where_of(pattern)} names {shown(lacking[0])}, which is not there")
    if not files:
        example = f"{kind}:DIR/train-*.{kind} or {kind}:gs://BUCKET/train-{{0000..1023}}.{kind}"
        raise UserError(f"{kind}:{shown(pattern)} matches no file; write it as {example}")
    where = where_of(pattern)
    exact = os.path.isfile(pattern) or not re.search(r"[*?[]", pattern)
    return where, complete(files, where, exact=exact), chosen


def splits_of(files: Sequence[remote.FileInfo]) -> list[str]:
    """Return the split of each file by its name, or "" for all where no name tells one.

    It is the first word of the name that is one, as in "imagenet1k-train-0000.tar", else the folder
    if that is, else what stands before "-00000-of-00008", as the Hub writes its splits.

    Raises UserError: the names of some files tell a split, and of others not.
    """
    names = [_split_of(file.path) for file in files]
    lacking = names.index("") if "" in names else -1
    if lacking >= 0 and any(names):
        other = next(file for file, name in zip(files, names, strict=True) if name)
        raise UserError(
            f"the name of {shown(files[lacking].path)} tells no split (train, val, test), as that "
            f"of {shown(base_name(other.path))} does; take a pattern that leaves out one of them"
        )
    return names


def _split_of(path: str) -> str:
    *folders, name = _unsigned(path).split("/")
    for word in (*re.findall("[A-Za-z]+", name), *folders[-1:]):
        if word.lower() in KNOWN_SPLITS:
            return word
    written = re.match(r"(\w+)-\d{5}-of-\d{5}\b", name)
    return written[1] if written else ""


def members_of(
    splits: Sequence[str],
    counts: Sequence[int],
    keys: Callable[[], Sequence[str]],
    labels: Int[np.ndarray, " M"],
    draw: SplitDraw | int,
    where: str,
) -> dict[str, Int[np.ndarray, " _"]]:
    """Return the indices of the examples of each split.

    Args:
        splits: of each file; "" is none, and splits are those of `partition`, and "whole".
        counts: the number of examples of each file.
        keys: names of the examples, each another; asked for only where splits are drawn.
        labels: of all examples.
        draw: how they are drawn.
        where: the dataset in messages.
    """
    if not any(splits):
        drawn = partition(keys(), labels.tolist(), draw)
        members = {name: np.array(found, int) for name, found in drawn.items()}
        return {**members, WHOLE: np.arange(len(labels))}
    check_no_seed(draw, where)
    same = split_names(splits)
    numbers = {name: k for k, name in enumerate(dict.fromkeys(same.values()))}
    of_example = np.repeat([numbers[same[name]] for name in splits], counts)
    return {name: np.flatnonzero(of_example == k) for name, k in numbers.items()}


def choose(
    split: str, members: Mapping[str, Int[np.ndarray, " _"]], draw: SplitDraw | int, where: str
) -> tuple[str, Int[np.ndarray, " _"]]:
    """Return a source's name and the indices of the examples of a split, with TFDS-style slices.

    `split` is as `DataConfig.train_split`; the rest is as in `members_of`.

    Raises SplitError: no such split.
    """
    split = with_known_names(split, list(members))
    slices = absolute_slices(split, {name: len(found) for name, found in members.items()}, where)
    chosen = np.concatenate([members[name][start:stop] for name, start, stop in slices])
    return f"{where}[{split}]" + as_draw(draw).told(), chosen


def sizes(members: Mapping[str, Int[np.ndarray, " _"]]) -> dict[str, int]:
    """Return the number of examples of each split, of which "whole" is all."""
    own = {name: len(found) for name, found in members.items() if name != WHOLE}
    return own or {name: len(found) for name, found in members.items()}


def class_ids(
    labels: np.ndarray, names: tuple[str, ...], tell: Callable[[int], str]
) -> tuple[tuple[str, ...], Int[np.ndarray, " M"]]:
    """Return the names of the classes and the class id of every example.

    Whole numbers are ids, and name their classes where nothing else does; -1 and b"" are no label.
    Other words are sorted, or have their place in `names`.

    Args:
        labels: integers, or bytes.
        names: of the classes, or ().
        tell: names an example by its index.

    Raises DataError: a label that is none of the classes.
    """
    words, of_word = np.unique(labels, return_inverse=True)

    def wrong(word: int, why: str) -> DataError:
        return DataError(f"{tell(int(np.flatnonzero(of_word == word)[0]))}: {why}")

    texts = []
    for word, value in enumerate(words.tolist()):
        try:
            texts.append(label_of(value))
        except ValueError as error:
            raise wrong(word, str(error)) from None
    # One word for all: a label that is no number makes all of them words.
    numbers = [whole_number(text) for text in texts if text]
    if all(number is not None and number < _LONG for number in numbers):
        ids = [-1 if text == "" else int(whole_number(text) or 0) for text in texts]
        count = len(names) or min(max(ids, default=-1) + 1, MAX_CLASSES)
        names = names or tuple(map(str, range(count)))
    else:
        names = names or tuple(sorted({*texts} - {""}))
        twice = {name for name, times in collections.Counter(names).items() if times > 1}
        for word, text in enumerate(texts):
            if text in twice:
                raise wrong(word, f"the label is {text!r}, and two classes are called so")
        known = {name: i for i, name in enumerate(names)} | {"": -1}
        ids = [known.get(text, -2) for text in texts]
    for word, k in enumerate(ids):
        if not -1 <= k < len(names):
            known_ids = f"classes are {names[0]!r} to {names[-1]!r}" if names else "there is none"
            text = texts[word] if labels.dtype.kind == "S" else words.tolist()[word]
            raise wrong(word, f"the label is {text!r}; {known_ids}")
    return names, np.array(ids, np.int64)[of_word]


def several_of(
    found: np.ndarray,
    targets: tuple[str, ...],
    names: tuple[str, ...],
    tell: Callable[[int], str],
    *,
    is_list: bool,
) -> Read | None:
    """Read numbers [M, K] of columns, or lists of labels as bytes; None of one label an example.

    Raises what `several_labels` does.
    """
    if targets:
        values = found.astype(np.float32)
        return Read(targets, Numbers(values), [], of_numbers(targets, values))
    if not is_list:
        return None
    return several_labels([each.decode() for each in found.tolist()], names, tell)


def several_labels(
    texts: Sequence[str], names: tuple[str, ...], tell: Callable[[int], str]
) -> Read:
    """Read the labels of examples, a text of `several.of_list` each, as `class_ids` does.

    Raises DataError: a label that is none of the classes.
    """
    counts = [text.count("\n") + 1 if text else 0 for text in texts]
    ends = np.cumsum(counts)

    def ids_of(flat: Sequence[str]) -> tuple[tuple[str, ...], Sequence[int]]:
        def of_label(k: int) -> str:
            return tell(int(np.searchsorted(ends, k, side="right")))

        encoded = np.array([label.encode() for label in flat] or [b""], np.bytes_)
        classes, ids = class_ids(encoded, names, of_label)
        return classes, ids[: len(flat)].tolist()

    return read_several(texts, ids_of)


def label_notes(
    labels: np.ndarray, ids: Int[np.ndarray, " M"], classes: tuple[str, ...], *, named: bool
) -> list[str]:
    """Return what is to be said of labels: those that look alike, or are missing.

    Args:
        labels: as `class_ids` takes them.
        ids: and classes: what it returned.
        classes: likewise.
        named: whether something else than the labels named the classes.
    """
    counts: collections.Counter[str] = collections.Counter()
    words, times = np.unique(labels, return_counts=True)
    for value, count in zip(words.tolist(), times.tolist(), strict=True):
        counts[label_of(value)] += count
    notes = [] if named else classes_of(counts)[2]
    if not named and (empty := sorted({*range(len(classes))} - {*ids.tolist()})):
        listed = ", ".join(classes[k] for k in empty[:4]) + (", ..." if len(empty) > 4 else "")
        notes.append(f"{len(empty):,} of the {len(classes):,} classes have no example ({listed})")
    return [*notes, *without_label(int((ids < 0).sum()), len(ids))]


def class_names_beside(files: Sequence[remote.FileInfo]) -> tuple[str, ...]:
    """Return the names of classnames.txt beside the files, or above their folder "train"; or ().

    Raises DataError: `names.read_class_names` cannot read it.
    """
    folder = files[0].path.rpartition("/")[0]
    above, _, name = folder.rpartition("/")
    for place in (folder, above) if name.lower() in KNOWN_SPLITS else (folder,):
        try:
            file = f"{place}/{_CLASSNAMES}" if place else _CLASSNAMES
            return read_class_names(remote.read(file, _MOST).decode())
        except UnicodeDecodeError:
            raise DataError(f"{shown(file)}: can't decode it, as it is no UTF-8") from None
        except (FileNotFoundError, remote.MissingError, remote.ForbiddenError):
            continue
        except ValueError as error:
            if isinstance(error, UserError):
                raise
            raise DataError(f"{shown(file)}: {error}") from None
    return ()


def complete(files: Sequence[remote.FileInfo], where: str, *, exact: bool) -> Shards:
    """Check that the shards of a dataset are a whole one.

    A second copy of a file, "train (1).tar", is left out where it has the size of the first.

    Args:
        files: that a pattern matches.
        where: the pattern in messages.
        exact: whether each is named, so that it is known which are left out.

    Raises DataError: a number of "-00000-of-00003" is missing, two generations of shards of one
    name, a copy of another size, or a file that is not finished.
    """
    kept, notes = _without_copies(files, where)
    for name in () if exact else _unfinished(kept):
        said = f"{shown(name)} is no finished file"
        if os.path.exists(os.path.splitext(name)[0]):
            notes.append(f"{said}; what it was to become is there")
        else:
            raise DataError(f"{where} is not complete: {said}; finish the download, or delete it")
    notes += _check_numbers(kept, where, exact=exact)
    if not exact:
        notes += _gaps(kept)
    return Shards(kept, tuple(notes))


def compare(told: Mapping[str, int], counts: Mapping[str, int], where: str) -> list[str]:
    """Compare the numbers of examples that a dataset's card tells with those that there are.

    Returns a line for each split of the card that is not there at all.

    Raises DataError: a split that has another number.
    """
    by_name, notes = {alike(name): (name, count) for name, count in counts.items()}, []
    for name, wanted in told.items():
        if alike(name) not in by_name:
            notes.append(f"the card lists the split {name} ({wanted:,}), of which no file is here")
            continue
        here, count = by_name[alike(name)]
        if count != wanted:
            raise DataError(
                f"{where}: the card tells {wanted:,} examples of {here}, and the files hold "
                f"{count:,}; download them again, or read what is there by its files: "
                "data.name=parquet:PATTERN or tar:PATTERN"
            )
    return notes


def _name(path: str) -> tuple[str, str]:
    """Return the folder of a path or an address, and the name in it."""
    path = path.partition("?")[0] if path.startswith("http") else path
    folder, slash, name = path.rpartition("/")
    return folder + slash, name


def _without_copies(
    files: Sequence[remote.FileInfo], where: str
) -> tuple[list[remote.FileInfo], list[str]]:
    sizes = {_name(file.path): file.size for file in files}
    kept, notes = [], []
    for file in files:
        folder, name = _name(file.path)
        found = _COPY.fullmatch(name)
        original = found["stem"] + found["end"] if found else name
        if original == name or (folder, original) not in sizes:
            kept.append(file)
            continue
        two = f"{shown(name)} looks like a copy of {shown(original)}"
        if sizes[folder, original] != file.size:
            raise DataError(f"{where}: {two}, but has another size; delete one of them")
        notes.append(f"{two}, of the same size, and is left out")
    return kept, notes


def _unfinished(files: Sequence[remote.FileInfo]) -> Iterator[str]:
    """Yield the files beside local shards that are parts of such."""
    kinds = {os.path.splitext(file.path)[1] for file in files}
    for folder in sorted(
        {_name(file.path)[0] for file in files if not remote.is_remote(file.path)}
    ):
        for name in sorted(os.listdir(folder or ".")):
            stem, end = os.path.splitext(name)
            if end in _PARTS and os.path.splitext(stem)[1] in kinds:
                yield f"{folder}{name}"


def _check_numbers(files: Sequence[remote.FileInfo], where: str, *, exact: bool) -> list[str]:
    """Check "NAME-00000-of-00003"; return lines of those that a pattern leaves out."""
    sets: dict[tuple[str, str, str], dict[int, dict[int, str]]] = {}
    for file in files:
        folder, name = _name(file.path)
        if found := _OF.fullmatch(name):
            of_total = sets.setdefault((folder, found[1], found[4]), {})
            before = of_total.setdefault(int(found[3]), {}).setdefault(int(found[2]), name)
            if before != name:
                two = f"{shown(before)} and {shown(name)} are one shard of two generations"
                raise DataError(f"{where}: {two}; delete those of one, or name the files of one")
    notes = []
    for (folder, stem, end), of_total in sets.items():
        kind = shown(f"{folder}{stem}-*{end}")
        if len(of_total) > 1:
            totals = " and ".join(f"-of-{total:05}" for total in sorted(of_total))
            what = f"{kind} has shards of two generations, {totals}; delete those of one, or name"
            raise DataError(f"{where}: {what} the files of one")
        ((total, names),) = of_total.items()
        first = int(0 not in names and total in names)  # some count from one
        lacking = sorted({*range(first, total + first)} - {*names})
        if not lacking:
            continue
        width = len(re.findall(r"-(\d+)-of-", next(iter(names.values())))[-1])
        absent = [f"{stem}-{number:0{width}}-of-{total:0{width}}" for number in lacking]
        listed = some([shown(f"{name}{end}") for name in absent], _FEW)
        if exact or _is_there(folder, absent[0], end):
            notes.append(f"{len(names)} of the {total} shards {kind} are read, without {listed}")
        else:
            what = f"{kind} is not complete: there is no {listed}"
            how = "download it again, or name the files that are to be read, as by {00000,00002}"
            raise DataError(f"{where}: {what}; {how}")
    return notes


def _is_there(folder: str, name: str, end: str) -> bool:
    try:
        return bool(remote.find(f"{glob.escape(folder + name)}*{glob.escape(end)}"))
    except remote.MissingError:
        return False


def _gaps(files: Sequence[remote.FileInfo]) -> list[str]:
    """Return a line for each sequence of numbered files in which some are missing."""
    sets: dict[tuple[str, str, str, int], set[int]] = collections.defaultdict(set)
    for file in files:
        folder, name = _name(file.path)
        found = _NUMBERED.fullmatch(name)
        if found and not _OF.fullmatch(name):
            padded = len(found[2]) if found[2].startswith("0") else 0
            sets[folder, found[1], found[3], padded].add(int(found[2]))
    notes = []
    for (_, stem, end, width), numbers in sets.items():
        first, last = min(numbers), max(numbers)
        if last - first > 2 * len(numbers):  # dates and the like are no sequence
            continue
        if lacking := sorted({*range(first, last)} - numbers):
            names = some([shown(f"{stem}{number:0{width}}{end}") for number in lacking], _FEW)
            notes.append(f"the numbers of the files have gaps: there is no {names}")
    return notes
