# SPDX-License-Identifier: Apache-2.0
"""What a compiled program moves between devices: kind, mesh axes, bytes, and what hides it."""

import dataclasses
import itertools
import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from vit_jax.cost import hlo

Groups = tuple[tuple[int, ...], ...]
KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
SLICES = "slices"  # in place of axes: over the network between slices of TPUs
# What takes a device's time: while one of these runs, what was started before it moves.
_COMPUTE = ("fusion", "dot", "convolution", "custom-call", "while", "call", "reduce", "scatter")


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
    arrays: tuple[hlo.Array, ...]
    op_name: str


def find(program: hlo.Program, axis_sizes: Mapping[str, int]) -> list[Collective]:
    """List the collectives of a program for a mesh of these axes, outermost first."""
    found = []
    for visit in hlo.schedules(program):
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


def _between_slices(
    schedule: Sequence[hlo.Instruction], start: int, visit: hlo.Visit
) -> Collective:
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


def _core(program: hlo.Program, instruction: hlo.Instruction) -> hlo.Instruction | None:
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


def _is_beside(instruction: hlo.Instruction) -> bool:
    return instruction.called.get("calls", "").startswith("async_collective_fusion")


def _results(core: hlo.Instruction) -> list[hlo.Array]:
    """List a collective's results: those of a start stand behind its operands.

    Before JAX 0.12 the type of an all-reduce's start has its results alone.
    """
    arrays, count = core.arrays, len(core.operands)
    if core.opcode.endswith("-start") and len(arrays) > count:
        return arrays[count : 2 * count]
    return arrays


def _is_hidden(
    program: hlo.Program, schedule: Sequence[hlo.Instruction], start: int, core: hlo.Instruction
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
