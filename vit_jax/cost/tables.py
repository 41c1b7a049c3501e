# SPDX-License-Identifier: Apache-2.0
"""Plain-text tables of parameters and of a run's memory, for `--dry_run` and `summary`."""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jax.sharding import NamedSharding

from vit_jax import trees
from vit_jax.cost.memory import Memory
from vit_jax.process.escapes import terminal
from vit_jax.trees import PyTree

REPLICATED = "replicated"
# What the fields of Memory are called, but for the last.
_MEMORY = ["parameters", "optimizer state", "moving average", "frozen parameters", "gradients"]
_MEMORY += ["activations, estimated", "workspace, estimated", "input batch"]


def parameter_table(
    params: PyTree, columns: Mapping[str, Mapping[str, str]] | None = None
) -> list[str]:
    """List every parameter with its shape, dtype, size and sharding, then the totals.

    A stacked parameter shows its depth apart, `12 x (768, 2304)`; its size counts all layers. The
    sharding column, the mesh axes that cut each dimension, appears when some parameter is cut.
    `columns` adds others: header -> parameter's name -> text.
    """
    leaves = trees.named_leaves(params)
    columns = dict(columns or {})
    shardings = {name: _spec(leaf) for name, leaf in leaves}
    if set(shardings.values()) - {"", REPLICATED}:
        columns["sharding"] = shardings
    rows, groups = [], collections.Counter()
    for name, leaf in leaves:
        others = [column[name] for column in columns.values()]
        rows.append([name, _shape(name, leaf), str(leaf.dtype), f"{leaf.size:,}", *others])
        groups[name.split("/")[0]] += int(leaf.size)
    blank = [""] * len(columns)
    totals = [[group, "", "", f"{size:,}", *blank] for group, size in groups.items()]
    total = ["total", "", "", f"{groups.total():,}", *blank]
    header = ["name", "shape", "dtype", "size", *columns]
    return align(header, rows, totals, [total], right=(3,))


def memory_table(memory: Memory) -> list[str]:
    """List what one device holds during a training step, with the total and the checkpoint."""
    parts = zip(_MEMORY, dataclasses.astuple(memory), strict=False)
    rows = [[name, format_bytes(size)] for name, size in parts if size]
    total = ["total", format_bytes(memory.device_total)]
    checkpoint = ["checkpoint, uncompressed", format_bytes(memory.checkpoint)]
    return align(["memory", "per device"], rows, [total], [checkpoint], right=(1,))


def first_of(names: Sequence[str]) -> str:
    """Name the first three: "a, b, c and 2 more"."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def format_bytes(size: int) -> str:
    """Write a number of bytes with a binary unit: "1.50 GiB"."""
    value, unit = _scaled(size, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"])
    return f"{size} B" if unit == "B" else f"{value:.2f} {unit}"


def format_flops(flops: int | float) -> str:
    """Write a number of floating-point operations with a decimal unit: "35.1 GFLOP"."""
    value, unit = _scaled(flops, 1000, ["", "k", "M", "G", "T", "P", "E", "Z"])
    return f"{value:.3g} {unit}FLOP"


def _scaled(value: int | float, step: int, units: Sequence[str]) -> tuple[float, str]:
    scaled = float(value)
    while scaled >= step and len(units) > 1:
        scaled, units = scaled / step, units[1:]
    return scaled, units[0]


def align(
    header: Sequence[str], *groups: Sequence[Sequence[str]], right: Sequence[int] = ()
) -> list[str]:
    """Lay rows out in aligned columns, with a rule before each group; `right`: flush-right ones."""
    shown = [[[*map(terminal, row)] for row in group] for group in ([header], *groups)]
    rows = [row for group in shown for row in group]
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        columns = enumerate(zip(row, widths, strict=True))
        cells = (x.rjust(width) if i in right else x.ljust(width) for i, (x, width) in columns)
        return "  ".join(cells).rstrip()

    lines = [line(rows[0])]
    for group in shown[1:]:
        if group:
            lines.append("-" * (sum(widths) + 2 * (len(widths) - 1)))
            lines += [line(row) for row in group]
    return lines


def _shape(name: str, leaf: Any) -> str:
    sides = list(map(str, leaf.shape))
    depth = f"{sides.pop(0)} x " if trees.is_stacked(name) and sides else ""
    return f"{depth}({', '.join(sides)})"


def _spec(leaf: Any) -> str:
    sharding = getattr(leaf, "sharding", None)
    if not isinstance(sharding, NamedSharding):
        return ""
    parts = [(axes,) if isinstance(axes, str) else axes or () for axes in sharding.spec]
    cuts = ["+".join(x for x in names if sharding.mesh.shape[x] > 1) for names in parts]
    return f"({', '.join(cut or '-' for cut in cuts)})" if any(cuts) else REPLICATED
