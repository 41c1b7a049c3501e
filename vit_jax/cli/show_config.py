# SPDX-License-Identifier: Apache-2.0
"""A config as text: what its file, its recipe and the overrides come to."""

import dataclasses
import enum
import textwrap
from collections.abc import Iterator
from typing import Any

from vit_jax import field_names, fields

_WIDTH = 100


def show(cfg: Any, *, everything: bool = False) -> list[str]:
    """List the fields that are not at their defaults, or all of them, a part of the config a line.

    Values are written as flags take them.
    """
    groups: dict[str, list[str]] = {}
    for path, text in _items(cfg, "", everything):
        groups.setdefault(path, []).append(text)
    width = max(map(len, groups), default=0) + 2
    lines = []
    for path, texts in groups.items():
        # A value with spaces in it stays on one line.
        kept = " ".join(text.replace(" ", "\0") for text in texts)
        indent = path.ljust(width)
        wrapped = textwrap.wrap(
            kept,
            _WIDTH,
            initial_indent=indent,
            subsequent_indent=" " * width,
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines += [line.replace("\0", " ") for line in wrapped]
    return lines


def _items(node: Any, path: str, everything: bool) -> Iterator[tuple[str, str]]:
    """Yield (path of the part, "field=value"), the fields of a part before its parts."""
    default, parts = type(node)(), []
    for field in dataclasses.fields(node):
        value, here = getattr(node, field.name), f"{path}.{field.name}".lstrip(".")
        if dataclasses.is_dataclass(value):
            if fields.annotations(type(node))[field.name] is not type(value):
                parts.append((here, type(value).__name__))  # such as the model's class
            parts += _items(value, here, everything)
        elif isinstance(value, dict):
            for name, each in value.items():
                parts += _items(each, f"{here}.{name}", everything)
        elif everything or value != getattr(default, field.name):
            yield path or "run", f"{field.name}={_written(value)}"
    yield from parts


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return field_names.written(value) if value else "()"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value.value if isinstance(value, enum.Enum) else value) or '""'
