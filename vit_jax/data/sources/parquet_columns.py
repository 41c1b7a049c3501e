# SPDX-License-Identifier: Apache-2.0
"""Which columns of a Parquet file are image and label, and what its classes are called."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vit_jax.data.names import LABELS, class_names, contradiction, label_of, one_spelling
from vit_jax.errors import DataError, UserError, unknown

NO_LABEL = "none"  # the column that there is none, in "?label=none"


_LIKE_LABELS = re.compile("label|class|target|categor|cls|^y$", re.IGNORECASE)


class Columns(NamedTuple):
    """What is read of a file; every file of a dataset has these."""

    image: str  # its path: "image.bytes" where the column is a struct
    label: str  # "" where there is none
    classes: tuple[str, ...]  # of a ClassLabel; () is not known


def find(opened: Any, chosen: Mapping[str, str], where: str) -> Columns:
    """Choose the columns of an open `pyarrow.parquet.ParquetFile`.

    The image is the column that the Hub's metadata calls one, else a struct with bytes, else a
    binary column; the label is the one that the metadata calls a ClassLabel, else one of a usual
    name. If several fit, "image" and "label" are taken, else `chosen` must name them.

    Raises UserError: no column of images, several that fit or disagree, none of the name chosen, or
    one that holds no labels.
    """
    import pyarrow.types as types

    features = _features(opened)
    named = {name: features.get(name, {}).get("_type") for name in opened.schema_arrow.names}
    kinds = {field.name: field.type for field in opened.schema_arrow}
    structs = [
        n for n, k in kinds.items() if types.is_struct(k) and k.get_field_index("bytes") >= 0
    ]
    binary = [n for n, k in kinds.items() if types.is_binary(k) or types.is_large_binary(k)]
    plain = [n for n in binary if n not in LABELS] or binary
    marked = [name for name in (*structs, *plain) if named[name] == "Image"]
    given = chosen.get("image", "")
    image = _one("image", given, marked or structs or plain, [*structs, *plain], where)
    words = [n for n, k in kinds.items() if _is_label(k) or (n in binary and n != image)]
    marked = [name for name in words if named[name] == "ClassLabel"]
    given, label = chosen.get("label", ""), ""
    if given != NO_LABEL or NO_LABEL in kinds:
        usual = [name for name in LABELS if name in kinds and name not in (*structs, image)]
        if not given and not marked:
            _check_usual([opened], usual, where)
        wanted = given or ("" if marked else "".join(usual[:1]))
        if wanted in kinds and wanted not in (*words, *structs):
            what = f"the column {wanted} of {where} holds {kinds[wanted]}"
            how = f"choose another by the end of the name, ?label=COLUMN, or ?label={NO_LABEL}"
            raise UserError(f"{what}, and a label is one number or word an image; {how}")
        label = _one("label", given, marked or usual[:1], words, where)
    if not image:
        has = ", ".join(kinds)
        raise UserError(f"{where} has no column of images (struct with bytes, binary): {has}")
    path = f"{image}.bytes" if image in structs else image
    return Columns(path, label, _classes(features, label))


def labels(opened: Any, columns: Columns, place: str = "the file") -> np.ndarray:
    """Return the labels of a file: integers, -1 where there is none, or words as bytes.

    Raises ValueError: a file that lacks a column or has classes of other names; DataError: a label
    that is none, in the words of `names.label_of`. `place` is the file in messages.
    """
    paths = [opened.schema.column(i).path for i in range(len(opened.schema.names))]
    lacking = {columns.image, columns.label} - {*paths, ""}
    if lacking or _classes(_features(opened), columns.label) != columns.classes:
        other = f"no column {min(lacking)}" if lacking else "classes of other names"
        raise ValueError(f"it has {other}, unlike the first file")
    if not columns.label:
        return np.full(opened.metadata.num_rows, -1, np.int64)
    values = opened.read(columns=[columns.label]).column(0).to_pylist()
    if all(value is None or type(value) is int for value in values):
        return np.array([-1 if value is None else value for value in values], np.int64)
    texts = []
    for row, value in enumerate(values):
        try:
            texts.append(label_of(value).encode())
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
    words = [field.name for field in fields if _is_label(field.type)]
    if not columns.label and words and chosen.get("label") != NO_LABEL:
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
    if usual and usual[0] == columns.label and all(map(_is_label, kinds)):
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


def _is_label(kind: Any) -> bool:
    import pyarrow.types as types

    if types.is_dictionary(kind):  # pandas' categories
        kind = kind.value_type
    numbers = types.is_integer, types.is_floating, types.is_decimal, types.is_boolean
    texts = types.is_string, types.is_large_string, types.is_string_view, types.is_null
    return any(is_kind(kind) for is_kind in (*numbers, *texts))


def _features(opened: Any) -> dict[str, Any]:
    """Return the Hub's description of each column but lists; {} of files that others wrote."""
    text = (opened.schema_arrow.metadata or {}).get(b"huggingface", b"{}")
    features = json.loads(text).get("info", {}).get("features", {})
    return {name: each for name, each in features.items() if isinstance(each, dict)}


def _classes(features: Mapping[str, Any], label: str) -> tuple[str, ...]:
    return class_names(features.get(label, {}).get("names") or ())


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
