# SPDX-License-Identifier: Apache-2.0
"""Whether the shards of a dataset are all there, once each, and of one generation."""

import collections
import glob
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from vit_jax.data.names import alike
from vit_jax.errors import DataError, shown, some
from vit_jax.storage import remote

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


class Shards(NamedTuple):
    """The files to be read, and what is to be said of those that are not."""

    files: list[remote.FileInfo]
    notes: tuple[str, ...]


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
