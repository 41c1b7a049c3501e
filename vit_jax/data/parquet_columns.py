# SPDX-License-Identifier: Apache-2.0
"""Which columns of a Parquet file are image and label, and what its classes are called."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vit_jax.errors import UserError, unknown

_LABELS = ("label", "labels", "cls", "class", "class_id", "target")


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

    Raises UserError: no column of images, several that fit, or none of the name chosen.
    """
    import pyarrow.types as types

    features = _features(opened)
    named = {name: features.get(name, {}).get("_type") for name in opened.schema_arrow.names}
    kinds = {field.name: field.type for field in opened.schema_arrow}
    structs = [
        n for n, k in kinds.items() if types.is_struct(k) and k.get_field_index("bytes") >= 0
    ]
    plain = [n for n, k in kinds.items() if types.is_binary(k) or types.is_large_binary(k)]
    marked = [name for name in (*structs, *plain) if named[name] == "Image"]
    given = chosen.get("image", "")
    image = _one("image", given, marked or structs or plain, [*structs, *plain], where)
    words = [n for n, k in kinds.items() if _is_label(k)]
    marked = [name for name in words if named[name] == "ClassLabel"]
    usual = [name for name in _LABELS if name in words][:1]
    label = _one("label", chosen.get("label", ""), marked or usual, words, where)
    if not image:
        has = ", ".join(kinds)
        raise UserError(f"{where} has no column of images (struct with bytes, binary): {has}")
    path = f"{image}.bytes" if image in structs else image
    return Columns(path, label, _classes(features, label))


def labels(opened: Any, columns: Columns) -> np.ndarray:
    """Return the labels of a file: integers, -1 where there is none, or words as bytes.

    Raises ValueError: a file that lacks a column or has classes of other names.
    """
    paths = [opened.schema.column(i).path for i in range(len(opened.schema.names))]
    lacking = {columns.image, columns.label} - {*paths, ""}
    if lacking or _classes(_features(opened), columns.label) != columns.classes:
        other = f"no column {min(lacking)}" if lacking else "classes of other names"
        raise ValueError(f"it has {other}, unlike the first file")
    if not columns.label:
        return np.full(opened.metadata.num_rows, -1, np.int64)
    values = opened.read(columns=[columns.label]).column(0).to_pylist()
    if all(isinstance(value, int | None) for value in values):
        return np.array([-1 if value is None else value for value in values], np.int64)
    return np.array([b"" if v is None else str(v).strip().encode() for v in values], np.bytes_)


def _is_label(kind: Any) -> bool:
    import pyarrow.types as types

    if types.is_dictionary(kind):  # pandas' categories
        kind = kind.value_type
    return types.is_integer(kind) or types.is_string(kind) or types.is_large_string(kind)


def _features(opened: Any) -> dict[str, Any]:
    """Return the Hub's description of each column but lists; {} of files that others wrote."""
    text = (opened.schema_arrow.metadata or {}).get(b"huggingface", b"{}")
    features = json.loads(text).get("info", {}).get("features", {})
    return {name: each for name, each in features.items() if isinstance(each, dict)}


def _classes(features: Mapping[str, Any], label: str) -> tuple[str, ...]:
    return tuple(features.get(label, {}).get("names") or ())


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
