# SPDX-License-Identifier: Apache-2.0
"""Images in Parquet files, `parquet:PATTERN`, as the Hugging Face Hub's datasets have them.

The Hub's layout: https://huggingface.co/docs/datasets/about_dataset_features, a column of
struct<bytes, path> and one of int64, whose classes the schema's metadata names. Other tables are
read where it is clear which columns are image and label.
"""

import concurrent.futures
import functools
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vit_jax.data import several, several_columns
from vit_jax.data.account import Account, left_out
from vit_jax.data.names import (
    LABELS,
    contradiction,
    label_of,
    one_spelling,
    split_notes,
)
from vit_jax.data.sources import arrays
from vit_jax.data.sources import captions as captions_lib
from vit_jax.data.sources.base import Example
from vit_jax.data.sources.captions import Captions
from vit_jax.data.sources.partition import draw_of
from vit_jax.data.sources.sharded import row_groups, shards
from vit_jax.errors import DataError, UserError, shown, unknown
from vit_jax.process import waiting
from vit_jax.storage import remote

NO_LABEL = "none"  # the column that there is none, in "?label=none"
_LIKE_LABELS = re.compile("label|class|target|categor|cls|^y$", re.IGNORECASE)
_MAX_TEXT = 64 << 20  # of their captions, which are read and kept by themselves
_THREADS = 16
_MANY = 100  # row groups read anew, after which it is said
_OWN = ("_footers", "_held", "_texts", "_others", "_seen", "_again")  # of a process


class Columns(NamedTuple):
    """What is read of a file; every file of a dataset has these."""

    image: str  # its path: "image.bytes" where the column is a struct
    label: str  # "" where there is none
    classes: tuple[str, ...]  # of a ClassLabel; () is not known
    targets: tuple[str, ...] = ()  # columns of numbers, in place of a label


def find(opened: Any, chosen: Mapping[str, str], where: str, *, nesting: bool = False) -> Columns:
    """Choose the columns of an open `pyarrow.parquet.ParquetFile`.

    The image is the column that the Hub's metadata calls one, else a struct with bytes, else a
    binary column, else with `nesting` one of lists of lists; the label is the one that the metadata
    calls a ClassLabel, else one of a usual name. If several fit, "image" and "label" are taken,
    else `chosen` must name them.

    Raises UserError: no column of images, several that fit or disagree, none of the name chosen, or
    one that holds no labels.
    """
    import pyarrow.types as types

    features = several_columns.features(opened)
    named = {name: features.get(name, {}).get("_type") for name in opened.schema_arrow.names}
    kinds = {field.name: field.type for field in opened.schema_arrow}
    structs = [
        n for n, k in kinds.items() if types.is_struct(k) and k.get_field_index("bytes") >= 0
    ]
    binary = [n for n, k in kinds.items() if types.is_binary(k) or types.is_large_binary(k)]
    plain = [n for n in binary if n not in LABELS] or binary
    nested = [n for n, k in kinds.items() if nesting and arrays.depth_of(k) > 1]
    marked = [name for name in (*structs, *plain) if named[name] == "Image"]
    given = chosen.get("image", "")
    fit = marked or structs or plain or nested
    image = _one("image", given, fit, [*structs, *plain, *nested], where)
    words = [
        n
        for n, k in kinds.items()
        if several_columns.holds_labels(k) or (n in binary and n != image)
    ]
    marked = [
        name for name in words if several_columns.inner(features, name).get("_type") == "ClassLabel"
    ]
    given, label = chosen.get("label", ""), ""
    targets = several_columns.targets(kinds, chosen, where)
    if (given != NO_LABEL or NO_LABEL in kinds) and not targets:
        usual = [name for name in LABELS if name in kinds and name not in (*structs, image)]
        if not given and not marked:
            _check_usual([opened], usual, where)
        wanted = given or ("" if marked else "".join(usual[:1]))
        if wanted in kinds and wanted not in (*words, *structs):
            what = f"the column {wanted} of {where} holds {kinds[wanted]}"
            how = f"choose another by the end of the name, ?label=COLUMN, or ?label={NO_LABEL}"
            raise UserError(f"{what}, and labels are numbers or words, one or a list; {how}")
        label = _one("label", given, marked or usual[:1], words, where)
    if not image:
        has = ", ".join(kinds)
        raise UserError(f"{where} has no column of images (struct with bytes, binary): {has}")
    path = f"{image}.bytes" if image in structs else image
    return Columns(path, label, several_columns.classes(features, label), targets)


def captions(opened: Any, chosen: Mapping[str, str], where: str, wanted: Captions) -> str:
    """Choose the column of captions of an open file, "" where none are wanted or there are none.

    Raises UserError: none of the name chosen, or none of a usual name where they are needed.
    """
    if wanted is Captions.UNREAD:
        return ""
    kinds = {field.name: field.type for field in opened.schema_arrow}
    fit = [name for name, kind in kinds.items() if _holds_text(kind)]
    given = chosen.get("captions", "") or captions_lib.usual(fit)
    if wanted is Captions.NEEDED and not given:
        what = f"column of captions ({', '.join(captions_lib.USUAL)})"
        example = next(iter(fit), "COLUMN")
        how = f"choose one by the end of the name: ?captions={example}"
        raise captions_lib.lacking(where, what, map(shown, kinds), how)
    return _one("caption", given, [], fit, where)


def _holds_text(kind: Any) -> bool:
    """Return whether a column has texts, lists of them, or structs or lists of structs with one."""
    import pyarrow.types as types

    if types.is_list(kind) or types.is_large_list(kind):
        return _holds_text(kind.value_type)
    if types.is_struct(kind):
        names = {field.name: field.type for field in kind}
        return any(name in names and _holds_text(names[name]) for name in captions_lib.INSIDE)
    return types.is_string(kind) or types.is_large_string(kind)


def _as_bytes(kind: Any) -> Any:
    """Return a type with bytes in place of text, which pyarrow does not give where it is broken."""
    import pyarrow as pa
    import pyarrow.types as types

    if types.is_string(kind):
        return pa.binary()
    if types.is_large_string(kind):
        return pa.large_binary()
    if types.is_list(kind):
        return pa.list_(_as_bytes(kind.value_type))
    if types.is_large_list(kind):
        return pa.large_list(_as_bytes(kind.value_type))
    if types.is_struct(kind):
        return pa.struct([(field.name, _as_bytes(field.type)) for field in kind])
    return kind


def labels(opened: Any, columns: Columns, place: str = "the file") -> np.ndarray:
    """Return the labels of a file: integers, -1 where there is none, or words as bytes.

    Several labels of an image are lines of such (`several.of_list`), and numbers float64 [rows, K].

    Raises ValueError: a file that lacks a column or has classes of other names; DataError: a label
    that is none, in the words of `names.label_of`. `place` is the file in messages.
    """
    paths = [opened.schema.column(i).path for i in range(len(opened.schema.names))]
    lacking = {columns.image, columns.label, *columns.targets}
    lacking -= {*paths, *opened.schema_arrow.names, ""}
    is_list = several_columns.is_list(opened, columns.label)
    lacking -= {columns.label} if is_list else set()
    if (
        lacking
        or several_columns.classes(several_columns.features(opened), columns.label)
        != columns.classes
    ):
        other = f"no column {min(lacking)}" if lacking else "classes of other names"
        raise ValueError(f"it has {other}, unlike the first file")
    if columns.targets:
        return several_columns.numbers(opened, columns.targets)
    if not columns.label:
        return np.full(opened.metadata.num_rows, -1, np.int64)
    values = opened.read(columns=[columns.label]).column(0).to_pylist()
    if not is_list and all(value is None or type(value) is int for value in values):
        return np.array([-1 if value is None else value for value in values], np.int64)
    read = several.of_list if is_list else label_of
    texts = []
    for row, value in enumerate(values):
        try:
            texts.append(read(value).encode())
        except ValueError as error:
            raise DataError(f"{place} row {row}: {error}") from None
    return np.array(texts, np.bytes_)


def unread(opened: Any, columns: Columns, chosen: Mapping[str, str]) -> list[str]:
    """Return a line for each column that a person may have meant to be read, and is not."""
    names = {one_spelling(n).lower(): n for n in opened.schema_arrow.names}
    notes = []
    if "split" in names and names["split"] not in (columns.label, columns.image):
        how = "the names of files tell splits: write the rows of each to files of its name"
        notes.append(f"the column {names['split']} is not read; {how}")
    fields = [field for field in opened.schema_arrow if _LIKE_LABELS.search(field.name)]
    words = [field.name for field in fields if several_columns.is_label(field.type)]
    is_read = columns.label or columns.targets
    if not is_read and words and chosen.get("label") != NO_LABEL:
        usual, how = ", ".join(LABELS), f"?label={words[0]} at the end of the name reads it"
        notes.append(f"no column is called {usual}, so there are no labels; {how}")
    return notes


def without_image(opened: Any, columns: Columns) -> int:
    """Return how many rows have no image, as far as the file's metadata tell."""
    facts, count = opened.metadata, 0
    for group in map(facts.row_group, range(facts.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            told = column.statistics if column.path_in_schema == columns.image else None
            count += told.null_count if told is not None and told.has_null_count else 0
    return count


def has_beside(opened: Any, columns: Columns, chosen: Mapping[str, str]) -> bool:
    """Return whether more columns are called as labels usually are, and none was chosen."""
    others = {*LABELS} - {columns.label}
    is_told = bool(chosen.get("label") or columns.classes or not columns.label)
    return not is_told and not others.isdisjoint(opened.schema_arrow.names)


def check_beside(files: Sequence[Any], columns: Columns, where: str) -> None:
    """Raise UserError where other usual columns of labels say something else in all the files.

    What a number stands for in one of them it must in the others.
    """
    has = [set(opened.schema_arrow.names) for opened in files]
    usual = [name for name in LABELS if all(name in names for names in has)]
    kinds = [opened.schema_arrow.field(name).type for opened in files for name in usual]
    if usual and usual[0] == columns.label and all(map(several_columns.is_label, kinds)):
        _check_usual(files, usual, where)


def _check_usual(files: Sequence[Any], usual: Sequence[str], where: str) -> None:
    """Raise UserError where columns that are usually labels say different things."""
    for other in usual[1:]:
        ones, others = (
            [value for opened in files for value in opened.read(columns=[n]).column(0).to_pylist()]
            for n in (usual[0], other)
        )
        try:
            places = contradiction([*map(label_of, ones)], [*map(label_of, others)])
        except ValueError:  # one of them is no label
            continue
        if places:
            said = [f"row {k} has {ones[k]!r} and {others[k]!r}" for k in {*places}]
            what = f"the columns {usual[0]} and {other} disagree ({', '.join(sorted(said))})"
            how = f"choose one by the end of the name: ?label={usual[0]}"
            raise UserError(f"{where}: {what}; {how}")


def _one(kind: str, given: str, fit: Sequence[str], all_: Sequence[str], where: str) -> str:
    """Return the column to take, "" where there is none."""
    if given:
        if given not in all_:
            raise unknown(f"column of {kind}s in {where}", given, all_)
        return given
    if len(fit) > 1 and kind not in fit:
        listed = ", ".join(fit)
        how = f"choose one by the end of the name: ?{kind}={fit[0]}"
        raise UserError(f"{where} has several columns of {kind}s ({listed}); {how}")
    return kind if kind in fit else "".join(fit)


class ParquetSource(shards.ShardSource):
    """Examples of one split of Parquet files; see `Source`."""

    def __init__(self, *source: Any, columns: Columns, groups: np.ndarray, text: str = "") -> None:
        """Take what `ShardSource` does, and how to find a row.

        Args:
            source: arguments of `ShardSource`; places are rows, counted through all files.
            columns: which of the files' are read.
            groups: int (G, 3), of every row group its file, its number there, its first row.
            text: the column of captions, "" for none.
        """
        super().__init__(*source)
        self._columns, self._groups = columns, groups
        self._text, self.has_captions = text, bool(text)
        self._restart()

    def _restart(self) -> None:
        # By file; what has been read is left behind where the source is pickled.
        self._footers: dict[int, Any] = {}
        self._seen: set[int] = set()
        self._again = 0
        self._held = row_groups.RowGroups(self._load)
        self._texts = row_groups.RowGroups(self._load_captions, _MAX_TEXT)
        self._others: dict[str, row_groups.RowGroups] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in _OWN}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._restart()

    def read(self, index: int) -> Example:
        """Return an example's encoded image and its class id, -1 where it has none.

        Raises DataError: the file changed or is damaged, or the row has no image in it.
        """
        image = self._value(self._held, index)
        if isinstance(image, dict):
            image = image["bytes"]
        if not image:
            raise DataError(f"{self.example_id(index)}: the row holds no image, or its path alone")
        texts = {"captions": self.captions(index)} if self.has_captions else {}
        return {"image": image, **self._target(index), **texts}

    def captions(self, index: int) -> tuple[str, ...]:
        """Return an example's captions; raises DataError as `read`."""
        return captions_lib.listed(self._value(self._texts, index)).texts

    @property
    def schema(self) -> Any:
        """The columns of the first file, a pyarrow Schema."""
        return row_groups.open_file(self._files[0]).schema_arrow

    @property
    def files(self) -> tuple[remote.FileInfo, ...]:
        """The files of the split."""
        return self._files

    @property
    def image_column(self) -> str:
        """The column of the images."""
        return self._columns.image.partition(".")[0]

    @property
    def features(self) -> Mapping[str, Any]:
        """The Hub's description of each column, {} where others wrote the files."""
        return several_columns.features(row_groups.open_file(self._files[0]))

    def place(self, index: int) -> tuple[str, int]:
        """Return the file of an example, and its row there."""
        group, row = self._find(index)
        file = int(self._groups[group, 0])
        first = int(self._groups[np.searchsorted(self._groups[:, 0], file), 2])
        return self._files[file].path, row - first

    def value(self, column: str, index: int) -> Any:
        """Return what another column has of an example; raises DataError as `read`."""
        if column not in self._others:
            self._others[column] = row_groups.RowGroups(
                functools.partial(self._column, name=column)
            )
        return self._value(self._others[column], index)

    def _value(self, held: "row_groups.RowGroups", index: int) -> Any:
        group, row = self._find(index)
        try:
            found = held.get(group)[row - int(self._groups[group, 2])]
            if self.bands and held is self._held and found.is_valid:
                return arrays.file_of(found)
            return found.as_py()
        except remote.RemoteError:
            raise
        except (OSError, ValueError, IndexError) as error:  # pyarrow's are these
            why = " ".join(str(error).split())[:200]
            raise DataError(f"{self.example_id(index)}: {why}") from error

    def example_id(self, index: int) -> str:
        file, row = self.place(index)
        return f"{shown(file)} row {row}"

    def _find(self, index: int) -> tuple[int, int]:
        """Return the row group of an example, and its row counted through all files."""
        row = int(self._places[index])
        return int(np.searchsorted(self._groups[:, 2], row, side="right")) - 1, row

    def _count(self, group: int) -> None:
        self._again += group in self._seen
        self._seen.add(group)
        if self._again == _MANY:
            self._again += 1
            print(
                f"warning: {self.name}: row groups are read again and again, each for an image; "
                "write the data once as ArrayRecord: vit_jax prepare NAME --to=arrayrecord",
                file=sys.stderr,
            )

    def _load(self, group: int) -> Any:
        """Return the images of a row group, a pyarrow ChunkedArray."""
        self._count(group)
        return self._column(group, self._columns.image)

    def _load_captions(self, group: int) -> Any:
        found = self._column(group, self._text)
        return found.cast(_as_bytes(found.type))

    def _column(self, group: int, name: str) -> Any:
        file, number, _ = map(int, self._groups[group])
        facts = self._files[file]
        if remote.info(facts.path) != facts:
            raise ValueError("the file changed after the run began")
        opened = row_groups.open_file(facts, self._footers.get(file))
        self._footers[file] = opened.metadata
        return opened.read_row_group(number, columns=[name]).column(0)


def opened_file(path: str) -> Any:
    """Open a Parquet file; raises ValueError, OSError: it cannot be read."""
    return row_groups.open_file(remote.info(path))


def open_parquet(
    name: str,
    split: str,
    captions: Captions = Captions.UNREAD,
    bands: tuple[str, ...] = (),
) -> ParquetSource:
    """Open one split of Parquet files, "PATTERN?label=COLUMN&image=COLUMN", with TFDS-style slices.

    Splits are told by the names of the files, else drawn by `partition`. Columns are found as
    `find` says. Classes are those that the schema names, else classnames.txt beside
    the files, else the labels: whole numbers are ids, and other words sorted classes.

    Raises UserError: no such file, split or column; a file that is cut or damaged.
    """
    where, found, chosen = shards.find(name, "parquet")
    how: dict[str, Any] = {"notes": found.notes, "wanted": captions, "bands": bands}
    return open_shards(where, found.files, split, chosen, **how)


def open_shards(
    where: str,
    files: Sequence[remote.FileInfo],
    split: str,
    chosen: dict[str, str],
    splits: Sequence[str] = (),
    *,
    told: Mapping[str, int] = types.MappingProxyType({}),
    notes: Sequence[str] = (),
    wanted: Captions = Captions.UNREAD,
    bands: tuple[str, ...] = (),
) -> ParquetSource:
    """Open one split of some Parquet files; arguments are as in `tar_files.open_shards`.

    With `bands` (`DataConfig.bands`) an image may be lists of lists of numbers.
    """
    splits = splits or shards.splits_of(files)
    with waiting.said(f"reading the labels of {where}"):
        first = _reading(files[0], lambda: row_groups.open_file(files[0]))
        columns = _reading(files[0], lambda: find(first, chosen, where, nesting=bool(bands)))
        text = captions(first, chosen, where, wanted)
        read = functools.partial(_labels, columns=columns)
        with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
            firsts, found, empty = zip(*pool.map(read, files), strict=True)
        if len(files) > 1 and has_beside(first, columns, chosen):
            several = [
                _reading(file, functools.partial(row_groups.open_file, file)) for file in files
            ]
            check = functools.partial(check_beside, several, columns, where)
            _reading(files[0], check)
    counts = [len(labels) for labels in found]
    ends = np.cumsum(counts)

    def tell(row: int) -> str:
        file = int(np.searchsorted(ends, row, side="right"))
        return f"{shards.base_name(files[file].path)} row {row - (ends[file] - counts[file])}"

    def keys() -> list[str]:
        return [tell(row) for row in range(ends[-1])]

    names = columns.classes or shards.class_names_beside(files)
    kinds = {labels.dtype.kind for labels in found if len(labels)}
    dtype = np.int64 if kinds == {"i"} else np.float64 if columns.targets else np.bytes_
    joined = np.concatenate([labels.astype(dtype) for labels in found])
    is_list = several_columns.is_list(first, columns.label)
    many = shards.several_of(joined, columns.targets, names, tell, is_list=is_list)
    if many is None:
        classes, labels = shards.class_ids(joined, names, tell)
    else:
        classes, labels, notes = many.classes, many.labels.first(), [*notes, *many.notes]
    draw = draw_of(chosen)
    members = shards.members_of(splits, counts, keys, labels, draw, where)
    notes = [*notes, *split_notes(members)]
    notes += shards.compare(told, shards.sizes(members), where)
    lost: list[tuple[str, str]] = []
    if columns.targets:
        has = ~np.asarray(np.isnan(joined).all(axis=1), bool)
        lost = [("without a number", tell(row)) for row in np.flatnonzero(~has).tolist()]
        members = {name: each[has[each]] for name, each in members.items()}
    if wanted is Captions.NEEDED:
        count = functools.partial(_captioned, column=text)
        with (
            waiting.said(f"reading the captions of {where}"),
            concurrent.futures.ThreadPoolExecutor(_THREADS) as pool,
        ):
            has, broken = zip(*pool.map(count, files), strict=True)
        if len(joined) and not any(map(np.any, has)):
            raise UserError(f"{where}: all captions of the column {text} are empty")
        members, without = captions_lib.leave_out(members, np.concatenate(has), tell)
        lost = [*lost, *without]
        notes += captions_lib.notes(sum(broken))
    title, rows = shards.choose(split, members, draw, where)
    used = np.unique(np.searchsorted(ends, rows, side="right"))
    table = [
        (int(np.searchsorted(used, file)), number, first + int(ends[file]) - counts[file])
        for file in used.tolist()
        for number, first in enumerate(firsts[file])
    ]
    of_rows = labels[rows] if many is None else many.labels.take(rows)
    source = title, classes, [files[i] for i in used], of_rows, rows
    opened = ParquetSource(*source, columns=columns, groups=np.array(table, np.int64), text=text)
    opened.bands = bands
    if many is None and (classes or not text):
        notes += shards.label_notes(joined, labels, classes, named=bool(names))
    notes += unread(first, columns, chosen)
    if sum(empty):
        notes.append(f"{sum(empty):,} of {ends[-1]:,} rows have no image")
    opened.account = Account(
        unit="rows",
        num_classes=len(classes),
        used=shards.sizes(members),
        left_out=left_out(lost),
        notes=tuple(notes),
        what="" if many is None else many.what,
    )
    return opened


@functools.lru_cache(4096)  # the splits of a run are opened one by one
def _labels(file: remote.FileInfo, columns: Columns) -> tuple[list[int], np.ndarray, int]:
    """Return the first row of each row group of a file, its labels, its rows without an image."""

    def read() -> tuple[list[int], np.ndarray, int]:
        opened = row_groups.open_file(file)
        facts = opened.metadata
        counts = [facts.row_group(i).num_rows for i in range(facts.num_row_groups)]
        found = labels(opened, columns, shown(file.path))
        empty = without_image(opened, columns)
        return (np.cumsum(counts) - counts).tolist(), found, empty

    return _reading(file, read)


@functools.lru_cache(4096)
def _captioned(file: remote.FileInfo, column: str) -> tuple[np.ndarray, int]:
    """Return which rows of a file have a caption, and how many captions are not UTF-8."""

    def read() -> tuple[np.ndarray, int]:
        opened = row_groups.open_file(file)
        if column not in opened.schema_arrow.names:
            raise ValueError(f"it has no column {column}, unlike the first file")
        found = opened.read(columns=[column]).column(0)
        values = map(captions_lib.listed, found.cast(_as_bytes(found.type)).to_pylist())
        pairs = [(bool(each.texts), each.broken) for each in values]
        return np.array([one for one, _ in pairs], bool), sum(broken for _, broken in pairs)

    return _reading(file, read)


def _reading(file: remote.FileInfo, do: Callable[[], Any]) -> Any:
    """Return `do()`; raises DataError for what pyarrow raises of a file that cannot be read."""
    try:
        return do()
    except UserError:
        raise
    except (OSError, ValueError, KeyError, OverflowError) as error:
        why = " ".join(str(error).split())[:200]
        raise DataError(f"{shown(file.path)}: not a readable Parquet file ({why})") from error
