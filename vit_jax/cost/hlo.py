# SPDX-License-Identifier: Apache-2.0
"""What XLA's text of a compiled program says: its instructions, largest arrays and collectives.

Instructions come with how often each is run; what moves between devices comes with its kind, mesh
axes and bytes, and with what hides it.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

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
Groups = tuple[tuple[int, ...], ...]
KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
SLICES = "slices"  # in place of axes: over the network between slices of TPUs
# What takes a device's time: while one of these runs, what was started before it moves.
_COMPUTE = ("fusion", "dot", "convolution", "custom-call", "while", "call", "reduce", "scatter")


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
class HloModule:
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


def parse(text: str) -> HloModule:
    """Parse `compiled.as_text()`."""
    computations: dict[str, list[Instruction]] = {}
    entry, body = "", []
    for line in text.splitlines():
        if header := _COMPUTATION.match(line):
            body = computations[header[2]] = []
            entry = header[2] if header[1] else entry
        elif start := _INSTRUCTION.match(line):
            body.append(_instruction(start[2], line[start.end() :]))
    return HloModule(entry, computations)


def arrays(text: str) -> list[Array]:
    """List the arrays of a type, an array's or a tuple's."""
    return [
        Array(dtype, tuple(int(n) for n in shape.split(",") if n), layout or "")
        for dtype, shape, layout in _ARRAY.findall(re.sub(r"/\*.*?\*/", "", text))
    ]


def schedules(program: HloModule, visit: Visit | None = None) -> Iterator[Visit]:
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


def trip_count(program: HloModule, loop: Instruction) -> int:
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


def largest(program: HloModule, least: int = 2**20) -> list[Temporary]:
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


def estimated_cycles(program: HloModule) -> int | None:
    """Sum the cycles that a TPU's compiler writes beside each fusion, over loops; None without."""
    found = []
    for visit in schedules(program):
        for x in program.computations[visit.name]:
            if cycles := re.search(r'"estimated_cycles":"(\d+)"', x.rest):
                found.append(visit.times * int(cycles[1]))
    return sum(found) if found else None


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective operation of a program.

    Attributes:
        axes: names of the mesh axes that its groups run over, "data+fsdp"; with the size of a group
            where it is a part of an axis, as in "4 of data"; "" where nothing moves.
        num_bytes: of the array that it works on, on one device: what a gather results in, what a
            scatter takes. A ring of n moves (n - 1) / n of it, an all-reduce twice that.
        times, loops: how often it runs in a step, and how many loops it is in.
        hidden: whether it is started before other work and awaited after it.
        groups: of positions in the mesh, or empty where the text has none.
        arrays: its results on one device; several where the compiler has combined some.
        op_name: jax's name of what it was traced from.
    """

    kind: str
    axes: str
    num_bytes: int
    times: int
    loops: int
    hidden: bool
    groups: Groups
    arrays: tuple[Array, ...]
    op_name: str


def find(program: HloModule, axis_sizes: Mapping[str, int]) -> list[Collective]:
    """List the collectives of a program for a mesh of these axes, outermost first."""
    found = []
    for visit in schedules(program):
        schedule = program.computations[visit.name]
        for i, instruction in enumerate(schedule):
            if instruction.opcode == "send" and "_xla_megascale_" in instruction.rest:
                found.append(_between_slices(schedule, i, visit))
            core = _core(program, instruction)
            if core is None:
                continue
            kind, arrays = core.opcode.removesuffix("-start"), _results(core)
            groups = replica_groups(core.rest, math.prod(axis_sizes.values()))
            # A scatter keeps a part of what it works on.
            size = len(groups[0]) if kind == "reduce-scatter" and groups else 1
            if instruction.called.get("calls", "").startswith("all-reduce-scatter"):
                kind = "reduce-scatter"  # a TPU's: an all-reduce, of which a device keeps a slice
            one = Collective(
                kind=kind,
                axes=axes_of(groups, axis_sizes),
                num_bytes=sum(x.num_bytes for x in arrays) * size,
                times=visit.times,
                loops=visit.loops,
                hidden=_is_hidden(program, schedule, i, core),
                groups=groups,
                arrays=tuple(arrays),
                op_name=core.op_name or instruction.op_name,
            )
            found.append(one)
    return found


def replica_groups(text: str, num_devices: int) -> Groups:
    """Read the groups of an instruction's attributes, in any of the forms that XLA prints.

    Lists, {{0,1},{2,3}}; an iota that is reshaped and transposed, [4,2]<=[2,4]T(1,0); axes of a
    mesh, mesh['a'=4,'b'=2] {'a'}; pairs of a permutation. Empty where there are none or all.
    """
    pairs = re.search(r"source_target_pairs=\{(\{[\d,{} ]*\})\}", text)
    listed = re.search(r"replica_groups=\{(\{[\d,{} ]*\})?\}", text)
    if pairs or listed:
        inside = (pairs or listed)[1] or ""  # type: ignore[index]
        rows = tuple(tuple(_numbers(row)) for row in re.findall(r"\{([\d, ]+)\}", inside))
        return rows or (tuple(range(num_devices)),)
    iota = re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    if iota is not None:
        return _rows(_iota(iota[2], iota[3]).reshape(_numbers(iota[1])))
    ids = r"(?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))?"
    mesh = re.search(rf"replica_groups=mesh\[([^\]]*)\]{ids} \{{([^}}]*)\}}", text)
    if mesh is None:
        return ()
    names = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", mesh[1])}
    ids = _iota(mesh[2], mesh[3]) if mesh[2] else np.arange(math.prod(names.values()))
    shape, inner = [], []
    for name, size in names.items():  # an axis may be cut: 'a':(2)4 is 4 of it, behind 2
        cuts = [(int(a), int(b)) for a, b in re.findall(rf"'{name}':\((\d+)\)(\d+)", mesh[4])]
        whole = re.search(rf"'{name}'(?!:)", mesh[4]) is not None
        done = 1
        for before, length in sorted(cuts):
            shape += [before // done, length]
            inner.append(len(shape) - 1)
            done = before * length
        shape.append(size // done)
        if whole:
            inner.append(len(shape) - 1)
    outer = [i for i in range(len(shape)) if i not in inner]
    width = math.prod(shape[i] for i in inner)
    return _rows(ids.reshape(shape).transpose(*outer, *inner).reshape(-1, width))


def axes_of(groups: Sequence[Sequence[int]], axis_sizes: Mapping[str, int]) -> str:
    """Name the mesh axes along which the groups' devices lie apart."""
    shape = tuple(axis_sizes.values())
    names, width = set(), 1
    for group in groups:
        places = np.array(np.unravel_index(np.asarray(group), shape))
        differ = (places != places[:, :1]).any(axis=1)
        names |= set(itertools.compress(axis_sizes, differ))
        width = max(width, len(group))
    along = [name for name in axis_sizes if name in names]
    joined = "+".join(along)
    whole = math.prod(axis_sizes[name] for name in along)
    return joined if width == whole or not along else f"{width} of {joined}"


def _between_slices(schedule: Sequence[Instruction], start: int, visit: Visit) -> Collective:
    """Describe what one slice sends to the others: hosts of a TPU do it, beside the program."""
    send = schedule[start]
    kind = re.search(r'_xla_megascale_transfer_type="(\w+)"', send.rest)
    meeting = re.search(r'_xla_host_transfer_rendezvous="[^"]*"', send.rest)
    after = schedule[start + 1 :]
    receives = [x.name for x in after if x.opcode == "recv" and meeting and meeting[0] in x.rest]
    received = receives[-1] if receives else "recv"
    done = [i for i, x in enumerate(schedule) if x.opcode == "recv-done" and received in x.operands]
    between = schedule[start + 1 : done[0]] if done else []
    return Collective(
        kind=kind[1].lower().replace("_", "-") if kind else "send",
        axes=SLICES,
        num_bytes=send.arrays[0].num_bytes,
        times=visit.times,
        loops=visit.loops,
        hidden=any(x.opcode in _COMPUTE for x in between),
        groups=(),
        arrays=(send.arrays[0],),
        op_name=send.op_name,
    )


def _core(program: HloModule, instruction: Instruction) -> Instruction | None:
    """Return the collective that a line starts or is, or None.

    A TPU's asynchronous collective is a fusion that holds it and a call of AsyncCollectiveStart;
    the fusions that run beside it and the one that awaits it hold it once more.
    """
    if instruction.opcode.removesuffix("-start") in KINDS:
        return instruction
    if instruction.opcode not in ("fusion", "async-start"):
        return None
    inside = program.inside(instruction)
    cores = [x for x in inside if x.opcode.removesuffix("-start") in KINDS]
    if not cores:
        return None
    text = " ".join(x.rest for x in inside if x.opcode == "custom-call")
    part_of_another = "AsyncCollectiveDone" in text or _is_beside(instruction)
    return None if part_of_another else cores[0]


def _is_beside(instruction: Instruction) -> bool:
    return instruction.called.get("calls", "").startswith("async_collective_fusion")


def _results(core: Instruction) -> list[Array]:
    """List a collective's results: those of a start stand behind its operands.

    Before JAX 0.12 the type of an all-reduce's start has its results alone.
    """
    arrays, count = core.arrays, len(core.operands)
    if core.opcode.endswith("-start") and len(arrays) > count:
        return arrays[count : 2 * count]
    return arrays


def _is_hidden(
    program: HloModule, schedule: Sequence[Instruction], start: int, core: Instruction
) -> bool:
    """Return whether other work stands between a collective's start and what awaits it."""
    instruction = schedule[start]
    by_fusion = any("AsyncCollectiveStart" in x.rest for x in program.inside(instruction))
    started = by_fusion or instruction.opcode.endswith("-start")
    if not started or '"is_sync":true' in instruction.rest:
        return False
    channel = re.search(r"channel_id=\d+,", core.rest)
    for later in schedule[start + 1 :]:
        if later.opcode.endswith("-done") and instruction.name in later.operands:
            return False
        inside = program.inside(later)
        if by_fusion and channel and any(channel[0] in x.rest for x in inside):
            return _is_beside(later)
        if later.opcode in _COMPUTE:
            return True
    return False


def _iota(dims: str, order: str | None) -> np.ndarray:
    sizes = _numbers(dims)
    grid = np.arange(math.prod(sizes)).reshape(sizes)
    return grid.transpose(_numbers(order)) if order else grid


def _numbers(text: str) -> list[int]:
    return [int(n) for n in text.split(",")]


def _rows(grid: np.ndarray) -> Groups:
    return tuple(map(tuple, grid.tolist()))
