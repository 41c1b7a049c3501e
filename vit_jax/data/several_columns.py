# SPDX-License-Identifier: Apache-2.0
"""Which columns of a Parquet file hold labels, one or several an image, and which hold numbers."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64

from vit_jax.data import several
from vit_jax.data.names import class_names
from vit_jax.errors import UserError


def targets(kinds: Mapping[str, Any], chosen: Mapping[str, str], where: str) -> tuple[str, ...]:
    """Return the columns of numbers that "?target=A,B" names.

    Raises UserError: one that is not there or holds no numbers, or a label that is asked for too.
    """
    if not chosen.get("target"):
        return ()
    if chosen.get("label", "none") != "none":
        raise UserError(f"{where}: ?target= and ?label= exclude each other; leave out one")
    found = several.target_columns([*kinds], chosen["target"], where)
    for name in found:
        if not is_number(kinds[name]):
            holds = f"the column {name} of {where} holds {kinds[name]}"
            raise UserError(f"{holds}, and no numbers; choose others by ?target=COLUMN,COLUMN")
    return tuple(found)


def is_list(opened: Any, name: str) -> bool:
    """Return whether a column of an open file holds lists."""
    import pyarrow.types as types

    names = opened.schema_arrow.names
    kind = opened.schema_arrow.field(name).type if name in names else None
    return kind is not None and (types.is_list(kind) or types.is_large_list(kind))


def holds_labels(kind: Any) -> bool:
    """Return whether a column has a label in each row, or a list of them."""
    import pyarrow.types as types

    is_list = types.is_list(kind) or types.is_large_list(kind)
    return is_label(kind.value_type if is_list else kind)


def is_number(kind: Any) -> bool:
    """Return whether a column has a number in each row."""
    import pyarrow.types as types

    kinds = types.is_integer, types.is_floating, types.is_decimal
    return any(is_kind(kind) for is_kind in kinds)


def is_label(kind: Any) -> bool:
    """Return whether a column has what may be one label in each row."""
    import pyarrow.types as types

    if types.is_dictionary(kind):  # pandas' categories
        kind = kind.value_type
    numbers = types.is_integer, types.is_floating, types.is_decimal, types.is_boolean
    texts = types.is_string, types.is_large_string, types.is_string_view, types.is_null
    return any(is_kind(kind) for is_kind in (*numbers, *texts))


def features(opened: Any) -> dict[str, Any]:
    """Return the Hub's description of each column; {} of files that others wrote."""
    text = (opened.schema_arrow.metadata or {}).get(b"huggingface", b"{}")
    features = json.loads(text).get("info", {}).get("features", {})
    lists = {name: {"feature": x[0]} for name, x in features.items() if isinstance(x, list) and x}
    return {name: each for name, each in (features | lists).items() if isinstance(each, dict)}


def inner(features: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the description of a column, or of what its lists hold."""
    found = features.get(name, {})
    inside = found.get("feature")
    return inside if isinstance(inside, dict) else found


def classes(features: Mapping[str, Any], label: str) -> tuple[str, ...]:
    """Return the classes that the Hub's description gives a column; () where it gives none."""
    return class_names(inner(features, label).get("names") or ())


def numbers(opened: Any, columns: Sequence[str]) -> Float64[np.ndarray, "M K"]:
    """Read columns of numbers of an open file; NaN where one is missing.

    Raises ValueError: a number that is not finite.
    """
    table = opened.read(columns=list(columns))
    values = [[*map(several.number, table.column(name).to_pylist())] for name in columns]
    return np.array(values, np.float64).reshape(len(columns), -1).T
