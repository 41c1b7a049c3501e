# SPDX-License-Identifier: Apache-2.0
"""XLA's text of a compiled program: instructions, how often each is run, the largest arrays."""

import dataclasses
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

_BITS = {"pred": 8, "token": 0, "f8e4m3fn": 8, "f8e5m2": 8, "bf16": 16, "c64": 64, "c128": 128}
_ARRAY = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([\d,]*)\](\{[^{}]*\})?")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.$-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.$-]+) = ")
_CALLED = re.compile(
    r"\b(calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.$-]+)"
)
# Instructions that name or pass on what others hold: `while` carries what is made around it.
_NO_MEMORY = {"parameter", "get-tuple-element", "tuple", "bitcast", "while", "constant", "call"}
_NO_MEMORY |= {"conditional", "optimization-barrier", "after-all", "copy-start"}
_NO_MEMORY |= {"send", "send-done", "recv", "recv-done"}


@dataclasses.dataclass(frozen=True)
class Array:
    """An array: XLA's dtype ("bf16"), the shape of one device's part, the layout in braces."""

    dtype: str
    shape: tuple[int, ...]
    layout: str = ""

    @property
    def num_bytes(self) -> int:
        """Bytes without a layout's padding."""
        digits = re.search(r"\d+$", self.dtype)
        bits = _BITS.get(self.dtype, int(digits[0]) if digits else 0)
        return math.prod(self.shape) * bits // 8

    @property
    def on_chip(self) -> bool:
        """Whether it lies in another memory than the chip's main one, such as a TPU's VMEM."""
        return re.search(r"S\([1-9]\d*\)", self.layout) is not None

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation: `%name = type opcode(operands), rest`; names without "%"."""

    name: str
    type: str
    opcode: str
    operands: tuple[str, ...]
    rest: str

    @property
    def arrays(self) -> list[Array]:
        """The arrays of the result: one, or those of a tuple."""
        return arrays(self.type)

    @property
    def called(self) -> dict[str, str]:
        """The computations that it calls, by attribute (calls, to_apply, body, condition)."""
        return dict(_CALLED.findall(self.rest))

    @property
    def op_name(self) -> str:
        """The path of jax's names to what it was traced from; "" where the compiler made it."""
        found = re.search(r'op_name="((?:[^"\\]|\\.)*)"', self.rest)
        return found[1] if found else ""


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled module: its instructions by computation, in the order in which they are run."""

    entry: str
    computations: dict[str, list[Instruction]]

    def inside(self, instruction: Instruction, attribute: str = "calls") -> list[Instruction]:
        """Return the instructions of the computation that an instruction calls; [] for none."""
        return self.computations.get(instruction.called.get(attribute, ""), [])


class Visit(NamedTuple):
    """The entry, a loop's body or a branch; a run runs it so many `times`, in so many `loops`."""

    name: str
    times: int
    loops: int


def parse(text: str) -> Program:
    """Parse `compiled.as_text()`."""
    computations: dict[str, list[Instruction]] = {}
    entry, body = "", []
    for line in text.splitlines():
        if header := _COMPUTATION.match(line):
            body = computations[header[2]] = []
            entry = header[2] if header[1] else entry
        elif start := _INSTRUCTION.match(line):
            body.append(_instruction(start[2], line[start.end() :]))
    return Program(entry, computations)


def arrays(text: str) -> list[Array]:
    """List the arrays of a type, an array's or a tuple's."""
    return [
        Array(dtype, tuple(int(n) for n in shape.split(",") if n), layout or "")
        for dtype, shape, layout in _ARRAY.findall(re.sub(r"/\*.*?\*/", "", text))
    ]


def schedules(program: Program, visit: Visit | None = None) -> Iterator[Visit]:
    """Walk the computations that are run, from the entry on, with their times in a run."""
    visit = visit or Visit(program.entry, 1, 0)
    yield visit
    for instruction in program.computations[visit.name]:
        called = instruction.called
        if instruction.opcode == "while":
            times = visit.times * trip_count(program, instruction)
            yield from schedules(program, Visit(called["body"], times, visit.loops + 1))
        elif instruction.opcode == "call":
            yield from schedules(program, visit._replace(name=called["to_apply"]))
        elif instruction.opcode == "conditional":
            branches = re.search(r"branch_computations=\{([^}]*)\}", instruction.rest)
            names = re.findall(r"[\w.$-]+", branches[1]) if branches else []
            names += [called[k] for k in ("true_computation", "false_computation") if k in called]
            for name in names:
                yield from schedules(program, visit._replace(name=name))


def trip_count(program: Program, loop: Instruction) -> int:
    """Return how often a `while` runs its body; 1 where the text has no count.

    XLA writes known_trip_count where it found one; else the condition compares with a constant.
    """
    known = re.search(r'known_trip_count"?:? ?\{"n":"(\d+)"', loop.rest)
    if known is not None:
        return int(known[1])
    condition = program.inside(loop, "condition")
    compared = [x for x in condition if x.opcode == "compare"]
    compared += [x for y in condition if y.opcode == "fusion" for x in program.inside(y)]
    if not any("direction=LT" in x.rest for x in compared):
        return 1
    limits = [x for x in condition if x.opcode == "constant" and x.type.startswith("s32[]")]
    values = [int(n[1]) for x in limits if (n := re.match(r"\((\d+)\)", x.rest))]
    return max(values, default=1)


def _instruction(name: str, text: str) -> Instruction:
    end = _closing(text, 0) if text.startswith("(") else text.index(" ")
    kind, text = text[:end], text[end:].lstrip()
    opcode, _, _ = text.partition("(")
    close = _closing(text, len(opcode))
    inside, rest = text[len(opcode) + 1 : close - 1], text[close:]
    if opcode == "constant":  # its value stands where the others' operands do
        return Instruction(name, kind, opcode, (), f"({inside}){rest}")
    # Shapes stand before the operands' names in some versions of the text.
    return Instruction(name, kind, opcode, tuple(re.findall(r"%([\w.$-]+)", inside)), rest)


def _closing(text: str, start: int) -> int:
    """Return the position behind the parenthesis that closes the one at `start`."""
    depth = 0
    for found in re.finditer(r"[()]", text[start:]):
        depth += 1 if found[0] == "(" else -1
        if depth == 0:
            return start + found.end()
    return len(text)


@dataclasses.dataclass(frozen=True)
class Temporary:
    """An array that `count` lines of a program make, its `layer`, and a device's padded bytes."""

    array: Array
    num_bytes: int
    count: int
    layer: str


def largest(program: Program, least: int = 2**20) -> list[Temporary]:
    """List the arrays of at least so many bytes in main memory, the largest first.

    These are the results of what the entry and the loops' bodies run, without the program's own: a
    fair stand-in for its buffers, of which the text does not show which share memory.
    """
    found: dict[tuple[str, str], Temporary] = {}
    for visit in schedules(program):
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


def padded_bytes(array: Array) -> int:
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


def estimated_cycles(program: Program) -> int | None:
    """Sum the cycles that a TPU's compiler writes beside each fusion, over loops; None without."""
    found = []
    for visit in schedules(program):
        for x in program.computations[visit.name]:
            if cycles := re.search(r'"estimated_cycles":"(\d+)"', x.rest):
                found.append(visit.times * int(cycles[1]))
    return sum(found) if found else None
