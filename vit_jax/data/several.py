# SPDX-License-Identifier: Apache-2.0
"""Several labels of an image, or numbers, as tables and shards of one's own data have them.

A text holds the labels of one image, a line each (`SEPARATOR`): what a table divides by "|", a list
of Parquet's, the lines of a tar's KEY.cls. "?cat" says that nobody knows whether a cat is there:
that class of that image neither teaches nor counts. "\\?cat" and, in a table, "a\\|b" are names.
"""

import dataclasses
import enum
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Float32, Int8, Int32, Int64, UInt8

from vit_jax.data.names import NOTHING, classes_of, label_of, one_spelling
from vit_jax.errors import UserError, shown, unknown

SEPARATOR = "\n"  # no label has one inside: `names.one_spelling`
NOT_KNOWN = -1  # in a multi-hot row, which then is int8
_BAR = re.compile(r"(?<!\\)\|")
_MOST_NOTED = 3


class HowMany(enum.StrEnum):
    """How many labels a cell or a member holds, `?labels=` at the end of a dataset's name."""

    AUTO = ""  # several, where one of them does
    ONE = "one"
    SEVERAL = "several"


def kind_of(chosen: Mapping[str, str], where: str) -> HowMany:
    """Return what `?labels=` of a dataset's name asks for; raises UserError: anything else."""
    given = chosen.get("labels", "")
    if given not in tuple(HowMany):
        raise UserError(f"{where}: ?labels={shown(given)} must be one or several")
    return HowMany(given)


@dataclasses.dataclass(frozen=True)
class LabelSets:
    """The labels of M images.

    Attributes:
        starts: where the labels of each begin in `ids`, and where the last ones end; S = M + 1.
        ids: class ids; k that are not known are there as -k - 1.
        num_classes: K.
        has_unknown: whether any image of the dataset, of all its splits, has one not known.
    """

    starts: Int64[np.ndarray, " S"]
    ids: Int32[np.ndarray, " N"]
    num_classes: int
    has_unknown: bool
    are_numbers: ClassVar[bool] = False

    def __len__(self) -> int:
        return len(self.starts) - 1

    def of(self, index: int) -> Int32[np.ndarray, " n"]:
        """Return the part of `ids` of an image."""
        return self.ids[self.starts[index] : self.starts[index + 1]]

    def example(self, index: int) -> dict[str, UInt8[np.ndarray, " K"] | Int8[np.ndarray, " K"]]:
        """Return {"label": 1 for each class of an image, `NOT_KNOWN` or 0 for others}."""
        own = self.of(index)
        hot = np.zeros(self.num_classes, np.int8 if self.has_unknown else np.uint8)
        hot[own[own >= 0]] = 1
        if self.has_unknown:
            hot[-1 - own[own < 0]] = NOT_KNOWN
        return {"label": hot}

    def take(self, rows: Sequence[int] | np.ndarray) -> "LabelSets":
        """Return those of some images."""
        chosen = [self.of(int(row)) for row in rows]
        return dataclasses.replace(self, **_joined(chosen))

    def cells(self, names: Sequence[str]) -> list[tuple[str, ...]]:
        """Return what a table says of each image: ("cat|?dog",)."""
        return [(as_cell(names, self.of(index)),) for index in range(len(self))]

    def first(self) -> Int32[np.ndarray, " M"]:
        """Return one label of each image, by which splits are drawn evenly; -1 of one without."""
        found = (own[own >= 0] for own in map(self.of, range(len(self))))
        return np.array([own[0] if len(own) else -1 for own in found], np.int32)

    def tobytes(self) -> bytes:
        return self.starts.tobytes() + self.ids.tobytes()


def _joined(ids: Sequence[Sequence[int] | np.ndarray]) -> dict[str, np.ndarray]:
    starts = np.cumsum([0, *map(len, ids)]).astype(np.int64)
    joined = np.concatenate([np.zeros(0, np.int32), *(np.asarray(x, np.int32) for x in ids)])
    return {"starts": starts, "ids": joined}


@dataclasses.dataclass(frozen=True)
class Numbers:
    """Numbers of M images, one or several each; NaN is not known."""

    values: Float32[np.ndarray, "M K"]
    are_numbers: ClassVar[bool] = True
    has_unknown: ClassVar[bool] = False  # NaN says it, in the same type

    def __len__(self) -> int:
        return len(self.values)

    def example(self, index: int) -> dict[str, Float32[np.ndarray, " K"]]:
        """Return {"value": the numbers of an image}."""
        return {"value": self.values[index]}

    def cells(self, names: Sequence[str]) -> list[tuple[str, ...]]:
        """Return what a table says of each image, a text for each number."""
        del names
        return [tuple("" if x != x else repr(x) for x in row) for row in self.values.tolist()]

    def first(self) -> Int32[np.ndarray, " M"]:
        """Return -1 for each image: none has a class."""
        return np.full(len(self), -1, np.int32)

    def take(self, rows: Sequence[int] | np.ndarray) -> "Numbers":
        """Return those of some images."""
        return Numbers(self.values[np.asarray(rows, np.int64)])

    def tobytes(self) -> bytes:
        return self.values.tobytes()


def is_several(text: str) -> bool:
    """Return whether a cell of a table holds several labels: a "|" between them, or a list."""
    return _BAR.search(text) is not None or _listed(text) is not None


def of_cell(text: str) -> str:
    """Return the labels in a cell of a table, a line each.

    Raises ValueError: what `label_of` raises of one of them.
    """
    listed = _listed(text)
    if listed is not None:
        return of_list(listed)
    parts = (part.replace("\\|", "|") for part in _BAR.split(text))
    return of_list(list(parts))


def of_list(values: Iterable[Any] | None) -> str:
    """Return the labels of a list, a line each, sorted and each once; "" of None and of none.

    Raises ValueError: what `label_of` raises of one of them, or one that is there and not known.
    """
    marked = {_marked(value) for value in (() if values is None else values)}
    both = {text for text in marked if f"?{text}" in marked}
    if both:
        raise ValueError(f"{min(both)!r} is a label and, by {'?' + min(both)!r}, not known")
    return SEPARATOR.join(sorted(marked - {"", "?"}))


def _marked(value: Any) -> str:
    if isinstance(value, bytes | bytearray):
        value = bytes(value).decode("utf-8", "backslashreplace")
    if not isinstance(value, str):
        return label_of(value)
    text = one_spelling(value)
    if text.startswith("?"):
        return f"?{label_of(text[1:])}"
    found = label_of(text.removeprefix("\\") if text.startswith("\\?") else text)
    return f"\\{found}" if found.startswith("?") else found


def _listed(text: str) -> list[Any] | None:
    """Return the list that a cell is, as pandas and JSON write them."""
    text = text.strip()
    if text[:1] + text[-1:] != "[]":
        return None
    for each in (text, text.replace("'", '"')):
        try:
            found = json.loads(each)
        except (ValueError, RecursionError):
            continue
        return found if isinstance(found, list) else None
    return None


def split(text: str) -> list[tuple[str, bool]]:
    """Return each label of a text from `of_list`, and whether it is there (or not known)."""
    found = []
    for line in text.split(SEPARATOR) if text else ():
        known = not line.startswith("?")
        found.append((line.removeprefix("?" if not known else "\\"), known))
    return found


def as_cell(names: Sequence[str], ids: np.ndarray) -> str:
    """Write an image's labels as a table has them: "cat|?dog"; ids are as in `LabelSets`."""
    words: list[tuple[str, str]] = []
    for k in ids.tolist():
        name = str(names[k if k >= 0 else -1 - k])
        words.append(("" if k >= 0 else "?", name.replace("|", "\\|")))
    return "|".join(
        mark + (f"\\{word}" if not mark and word.startswith("?") else word) for mark, word in words
    )


class Read(NamedTuple):
    """What the labels of all images of a dataset say.

    Attributes:
        classes: their names, by class id.
        labels: of the images, in their order.
        notes: what is odd about them, a line each.
        what: what they are, for the account.
    """

    classes: tuple[str, ...]
    labels: "LabelSets | Numbers"
    notes: list[str]
    what: str


def read(
    texts: Sequence[str],
    ids_of: Callable[[Sequence[str]], tuple[tuple[str, ...], Sequence[int]]] | None = None,
) -> Read:
    """Read the labels of images, each a text from `of_list`.

    Args:
        texts: of all images.
        ids_of: labels -> names of the classes and the class id of each label, where something
            besides the labels names them; else they are as `names.classes_of` has them.
    """
    parts = [split(text) for text in texts]
    flat = [label for each in parts for label, _ in each]
    notes: list[str] = []
    if ids_of is None:
        class_of, classes, notes = classes_of(Counter(flat))
        place = {name: k for k, name in enumerate(classes)}
        ids: Sequence[int] = [place[class_of[label]] for label in flat]
    else:
        classes, ids = ids_of(flat)
    rest, rows, lost = iter(ids), [], 0
    for each in parts:
        own = [(int(next(rest)), known) for _, known in each]
        there = {k for k, known in own if known}
        unknown = {k for k, known in own if not known} - there
        rows.append([*sorted(there), *sorted(-1 - k for k in unknown)])
        lost += len(unknown)
    labels = LabelSets(**_joined(rows), num_classes=len(classes), has_unknown=lost > 0)
    counts = Counter(k for own in rows for k in own if k >= 0)
    mean = sum(counts.values()) / max(len(rows), 1)
    what = f"{len(classes):,} classes, {mean:.2f} labels an image in the mean"
    what += f", {lost:,} not known" if lost else ""
    if without := [name for k, name in enumerate(classes) if not counts[k]]:
        listed = ", ".join(without[:_MOST_NOTED]) + (", ..." if without[_MOST_NOTED:] else "")
        of = f"{len(without):,} of the {len(classes):,} classes"
        notes = [*notes, f"{of} have no image ({listed})"]
    return Read(classes, labels, notes, what)


def number(text: Any) -> float:
    """Return the number in a cell, NaN where it is empty or says that it is none.

    Raises ValueError: a text that is no finite number.
    """
    if text is None:
        return math.nan
    plain = one_spelling(text) if isinstance(text, str) else text
    if isinstance(plain, str) and plain.casefold() in ("", "nan", *NOTHING):
        return math.nan
    try:
        found = float(plain)
    except (TypeError, ValueError):
        raise ValueError(f"{text!r} is no number") from None
    if math.isinf(found) or (not math.isnan(found) and abs(found) > np.finfo(np.float32).max):
        raise ValueError(f"{text!r} is no finite number")
    return found


def of_numbers(names: Sequence[str], values: Float32[np.ndarray, "M K"]) -> str:
    """Return what the numbers of a dataset are, for its account."""
    said = []
    for name, column in zip(names, values.T, strict=True):
        known = column[~np.isnan(column)]
        lacking = len(column) - len(known)
        but = f", {lacking:,} not known" if lacking else ""
        low, high = (f"{x:.6g}" for x in (known.min(initial=np.inf), known.max(initial=-np.inf)))
        said.append(f"{name} from {low} to {high}{but}")
    plural = "numbers" if len(names) != 1 else "number"
    return f"{len(names)} {plural} an image ({'; '.join(said)})"


def target_columns(columns: Sequence[str], chosen: str, where: str) -> list[str]:
    """Return the columns of numbers of a table: those of `?target=A,B`, else `target` if no label.

    A column "mass [kg]" or "mass (kg)" is found by "mass" too.

    Raises UserError: a column that is not there.
    """
    if not chosen:
        of_name = {name.casefold(): name for name in columns}
        return [of_name["target"]] if "target" in of_name and "label" not in of_name else []
    plain = {re.sub(r"\s*[\[(][^\])]*[\])]$", "", name).casefold(): name for name in columns}
    plain |= {name.casefold(): name for name in columns}
    found = []
    for each in map(one_spelling, chosen.split(",")):
        if each.casefold() not in plain:
            raise unknown(f"column of {where}, ?target={chosen}", each, columns)
        found.append(plain[each.casefold()])
    if len({*found}) < len(found):
        raise UserError(f"{where}: ?target={shown(chosen)} names a column twice; name each once")
    return found


class Cells(NamedTuple):
    """What the cells of a table's rows mean.

    Attributes:
        columns: that say it: "label", or those of numbers.
        kind: how many labels a cell holds; ONE or SEVERAL.
        numbers: whether these are numbers.
        escaped: whether a "|" that is no separator is written as "\\|".
    """

    columns: tuple[str, ...]
    kind: HowMany
    numbers: bool
    escaped: bool

    @property
    def is_one(self) -> bool:
        """Whether each row has one label."""
        return self.kind is HowMany.ONE and not self.numbers

    def text(self, cells: Sequence[str]) -> str:
        """Return what a row's cells of these columns say, alike for two that say the same.

        Raises ValueError: they are no labels, or no numbers.
        """
        if self.numbers:
            found = numbers_in(cells, self.columns)
            known = any(x == x for x in found)
            return SEPARATOR.join("" if x != x else repr(x) for x in found) if known else ""
        if self.kind is HowMany.SEVERAL:
            return of_cell(cells[0])
        return label_of(cells[0].replace("\\|", "|") if self.escaped else cells[0])

    def read(self, texts: Sequence[str]) -> "Read":
        """Read what `text` returned of the images that are used."""
        if not self.numbers:
            return read(texts)
        rows = [[number(x) for x in text.split(SEPARATOR)] for text in texts]
        values = np.array(rows, np.float32).reshape(len(texts), len(self.columns))
        return Read(self.columns, Numbers(values), [], of_numbers(self.columns, values))


def meant(rows: Sequence[Mapping[str, str]], chosen: Mapping[str, str], where: str) -> Cells:
    """Find out what the cells of a table mean, which are given by the names of their columns.

    A "|" in any cell of labels, or a list in brackets, makes the cells of all rows several labels;
    `?labels=one` does not look for them.

    Raises UserError: options of the dataset's name that are none, or no such columns.
    """
    kind = kind_of(chosen, where)
    targets = target_columns([*rows[0]], chosen.get("target", ""), where)
    if targets and kind is not HowMany.AUTO:
        raise UserError(f"{where}: ?labels={kind} is of labels, and ?target= of numbers; leave one")
    if targets:
        return Cells(tuple(targets), HowMany.ONE, numbers=True, escaped=False)
    is_auto = kind is HowMany.AUTO
    if is_auto and any(is_several(row.get("label", "")) for row in rows):
        kind = HowMany.SEVERAL
    return Cells(("label",), kind or HowMany.ONE, numbers=False, escaped=is_auto)


def numbers_in(cells: Sequence[str], names: Sequence[str]) -> list[float]:
    """Return the numbers in some cells of a row.

    Raises ValueError: naming the column of a cell that holds no number.
    """
    found = []
    for name, cell in zip(names, cells, strict=True):
        try:
            found.append(number(cell))
        except ValueError as error:
            raise ValueError(f"the column {name}: {error}; leave it empty if unknown") from None
    return found
