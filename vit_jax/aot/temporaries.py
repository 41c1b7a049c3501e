# SPDX-License-Identifier: Apache-2.0
"""The largest arrays that a compiled program makes, and the layers that they come from."""

import dataclasses
import math
import re

from vit_jax.aot import hlo

# Instructions that name or pass on what others hold: `while` carries what is made around it.
_NO_MEMORY = frozenset(
    [
        *("parameter", "get-tuple-element", "tuple", "bitcast", "while", "constant", "call"),
        *("conditional", "optimization-barrier", "after-all", "copy-start"),
        *("send", "send-done", "recv", "recv-done"),
    ]
)


@dataclasses.dataclass(frozen=True)
class Temporary:
    """A kind of array that `count` lines of a program make, and its `layer`.

    `num_bytes` are those of one device, with a TPU's padding to whole tiles.
    """

    array: hlo.Array
    num_bytes: int
    count: int
    layer: str


def largest(program: hlo.Program, least: int = 2**20) -> list[Temporary]:
    """List the arrays of at least so many bytes in main memory, the largest first.

    The text does not show which of them share memory. These are the results of what the entry and
    the loops' bodies run, without the program's own results: a fair stand-in for its buffers.
    """
    found: dict[tuple[str, str], Temporary] = {}
    for visit in hlo.schedules(program):
        schedule = program.computations[visit.name]
        returned = set(schedule[-1].operands) if visit.loops == 0 else set()
        for x in schedule:
            if x.opcode in _NO_MEMORY or x.name in returned:
                continue
            for array in x.arrays:
                size, key = padded_bytes(array), (str(array), layer(x.op_name))
                if not array.on_chip and size >= least:
                    count = found[key].count + 1 if key in found else 1
                    found[key] = Temporary(array, size, count, key[1])
    return sorted(found.values(), key=lambda x: -x.num_bytes)


def padded_bytes(array: hlo.Array) -> int:
    """Count an array's bytes with the padding of its layout's first tile, as {1,0:T(8,128)}."""
    order = re.match(r"\{([\d,]+)", array.layout)
    tile = re.search(r"T\(([\d,]+)\)", array.layout)
    if not array.shape or order is None or tile is None:
        return array.num_bytes
    sizes, minor_first = list(array.shape), [int(n) for n in order[1].split(",")]
    sides = [int(n) for n in tile[1].split(",")]
    for dim, side in zip(minor_first, reversed(sides), strict=False):
        sizes[dim] = math.ceil(sizes[dim] / side) * side
    return dataclasses.replace(array, shape=tuple(sizes)).num_bytes


def layer(op_name: str) -> str:
    """Shorten jax's path of names: "jit(f)/transpose(jvp(ViT))/head/dot" is "backward head/dot"."""
    first = op_name.split(":")[0].split(";")[0].replace("\\", "")
    again = "rematted_computation" in first or "/checkpoint/" in first
    when = "backward " if "transpose(" in first else "forward " if "jvp(" in first else ""
    when = "again " if again and "transpose(" not in first else when
    parts = []
    for part in re.split(r"/(?![^(]*\))", first):
        part = part.split(".")[-1] if re.match(r"\w+\._", part) else part
        inside = part in ("while", "body", "closed_call", "checkpoint", "rematted_computation")
        if inside or "(" in part or (parts and parts[-1] == part.lstrip("_")):
            continue
        parts.append(part.lstrip("_"))
    return when + "/".join(parts[-4:])


def estimated_cycles(program: hlo.Program) -> int | None:
    """Sum the cycles that a TPU's compiler writes beside each fusion, over loops; None without."""
    total, found = 0, False
    for visit in hlo.schedules(program):
        for x in program.computations[visit.name]:
            cycles = re.search(r'"estimated_cycles":"(\d+)"', x.rest)
            if cycles is not None:
                total, found = total + visit.times * int(cycles[1]), True
    return total if found else None
