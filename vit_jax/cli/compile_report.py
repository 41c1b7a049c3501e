# SPDX-License-Identifier: Apache-2.0
"""What `main.py --compile_for` prints: memory, traffic and time of compiled programs."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from vit_jax import trees
from vit_jax.analysis import memory, peaks, tables
from vit_jax.aot import collectives, compiler, hlo, temporaries, topology
from vit_jax.train.state import TrainState

_LARGE = 2**20  # bytes on one device
_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class Examined:
    """A compiled program, its memory plan, and facts read from its text."""

    compiled: compiler.Compiled
    plan: Any
    program: hlo.Program
    collectives: Sequence[collectives.Collective]

    @property
    def planned(self) -> int:
        """Bytes on one device."""
        return memory.planned(self.compiled.program)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """All that is printed.

    Attributes:
        hardware: what is compiled for.
        axis_sizes: of the mesh.
        step: the training step.
        evaluation: of the largest batch that is evaluated, or None.
        batch_size, eval_batch_size: over all devices.
        state: the train state's shapes and shardings.
        estimate: the dry run's.
        seconds: of a step by the cost model, least and most; None where it does not know the chip.
    """

    hardware: topology.Topology
    axis_sizes: Mapping[str, int]
    step: Examined
    evaluation: Examined | None
    batch_size: int
    eval_batch_size: int
    state: TrainState
    estimate: memory.Memory
    seconds: tuple[float, float] | None


def write(report: Report) -> str:
    """Lay the report out as text."""
    kind = report.hardware.target.kind
    count = math.prod(report.axis_sizes.values())
    lines = [
        f"COMPILED for {report.hardware.name}: {count} x {kind}, mesh {dict(report.axis_sizes)}",
        f"step: batch {report.batch_size:,}, {report.batch_size // _parts(report)} images for each "
        f"of {_parts(report)} parts; compiled in {report.step.compiled.seconds:.0f} s",
    ]
    if report.evaluation is not None:
        lines += [
            f"evaluation: batch {report.eval_batch_size:,}; "
            f"compiled in {report.evaluation.compiled.seconds:.0f} s"
        ]
    lines += ["", "MEMORY (plan of one device)", *_memory(report)]
    lines += ["", "LARGEST TEMPORARIES (of the step)", *_temporaries(report.step)]
    lines += ["", "COLLECTIVES (of a step, bytes of the arrays on one device)"]
    lines += _collectives(report.step.collectives)
    lines += ["", "WHOLE COPIES", *_copies(report)]
    lines += ["", "TIME", *_time(report)]
    return "\n".join(lines)


def _parts(report: Report) -> int:
    return report.axis_sizes["data"] * report.axis_sizes["fsdp"]


def _gb(size: float) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def _memory(report: Report) -> list[str]:
    programs = [report.step] + ([report.evaluation] if report.evaluation else [])
    capacity = report.hardware.memory

    def row(name: str, of: str) -> list[str]:
        return [name, *(_gb(getattr(x.plan, of)) for x in programs)]

    rows = [
        row("arguments (state, batch)", "argument_size_in_bytes"),
        row("outputs", "output_size_in_bytes"),
        row("  of them in the arguments' place", "alias_size_in_bytes"),
        row("temporaries", "temp_size_in_bytes"),
    ]
    total = ["plan", *(_gb(x.planned) for x in programs)]
    share = [f"of {capacity / 1e9:.1f} GB", *(f"{x.planned / capacity:.0%}" for x in programs)]
    estimate = [
        "--dry_run estimates",
        _gb(report.estimate.device_total),
        *[""] * (len(programs) - 1),
    ]
    header = ["", "step", "evaluation"][: 1 + len(programs)]
    right = tuple(range(1, 1 + len(programs)))
    return tables.align(header, rows, [total, share], [estimate], right=right)


def _temporaries(step: Examined) -> list[str]:
    found = temporaries.largest(step.program, _LARGE)[:_SHOWN]
    if not found:
        return ["none of 1 MB in the device's main memory"]
    rows = [[_gb(x.num_bytes), str(x.array), f"{x.count}", x.layer or "-"] for x in found]
    return tables.align(["size", "array", "lines", "made by"], rows, right=(0, 2))


def _collectives(found: Sequence[collectives.Collective]) -> list[str]:
    groups: dict[tuple[str, str], list[collectives.Collective]] = {}
    for x in found:
        if x.axes:
            groups.setdefault((x.kind, x.axes), []).append(x)
    rows = []
    for (kind, axes), some in sorted(groups.items(), key=lambda kv: -_moved(kv[1])):
        hidden = [x for x in some if x.hidden]
        rows.append(
            [
                kind,
                axes,
                f"{sum(x.times for x in some):,}",
                f"{sum(x.times for x in some if x.loops):,}",
                _gb(_moved(some)),
                f"{_moved(hidden) / max(_moved(some), 1):.0%}",
                "+".join(
                    sorted({a.dtype for x in some for a in x.arrays if x.num_bytes >= _LARGE})
                ),
            ]
        )
    if not rows:
        return ["none"]
    header = ["kind", "over", "count", "in loops", "bytes", "hidden", "dtype"]
    return [
        *tables.align(header, rows, right=(2, 3, 4, 5)),
        "hidden: started before other work and awaited after it, as the compiler scheduled them",
    ]


def _moved(found: Sequence[collectives.Collective]) -> int:
    return sum(x.num_bytes * x.times for x in found)


def _copies(report: Report) -> list[str]:
    """Describe what every device of an axis holds though the axis could divide it."""
    lines = []
    kept = {"parameters": report.state.params, "optimizer state": report.state.opt_state}
    for what, tree in kept.items():
        for axis in ("fsdp", "tensor"):
            names, total = undivided(tree, axis, report.axis_sizes)
            if names:
                more = f" and {len(names) - 3} more" if len(names) > 3 else ""
                lines.append(
                    f"{what} over {axis}={report.axis_sizes[axis]}: {_gb(total)} in "
                    f"{', '.join(names[:3])}{more}"
                )
    wide = [x for x in report.step.collectives if x.kind == "all-gather" and "data" in x.axes]
    for x in wide:
        if x.num_bytes >= _LARGE:
            lines.append(
                f"gathered over {x.axes}: {_gb(x.num_bytes)}, {temporaries.layer(x.op_name)}"
            )
    if report.step.compiled.num_rematerialized:
        lines.append(
            f"the partitioner made {report.step.compiled.num_rematerialized} array(s) whole to "
            "shard them anew (involuntary full rematerialization)"
        )
    if not lines and report.axis_sizes["fsdp"] == 1 and report.axis_sizes["data"] > 1:
        return ["parameters and optimizer state, on every device: mesh.fsdp would divide them"]
    return lines or ["no parameter, no optimizer state and no gathered array of over 1 MB"]


def undivided(tree: Any, axis: str, axis_sizes: Mapping[str, int]) -> tuple[list[str], int]:
    """Name the leaves of over 1 MB that an axis could divide and does not; with their bytes."""
    names, total, size = [], 0, axis_sizes[axis]
    for name, leaf in trees.named_leaves(tree) if size > 1 else ():
        shape = leaf.sharding.shard_shape(leaf.shape)
        used = {
            a
            for part in leaf.sharding.spec
            for a in ((part,) if isinstance(part, str) else part or ())
        }
        held = math.prod(shape) * leaf.dtype.itemsize
        if axis not in used and held >= _LARGE and any(n % size == 0 for n in shape):
            names.append(name)
            total += held
    return names, total


def _time(report: Report) -> list[str]:
    lines = []
    if report.seconds is None:
        lines.append(f"the cost model does not know {report.hardware.target.kind}")
    else:
        least, most = report.seconds
        lines.append(
            f"step by the cost model: {least * 1e3:.0f} to {most * 1e3:.0f} ms, "
            f"{report.batch_size / most:,.0f} to {report.batch_size / least:,.0f} images/s "
            "(published MFU of .27 to .45; docs/scale.md)"
        )
    cycles = temporaries.estimated_cycles(report.step.program)
    clock = peaks.clock(report.hardware.target.kind)
    if cycles is not None and clock is not None:
        lines.append(
            f"compiler's static estimate, without collectives: {cycles / clock * 1e3:.0f} ms "
            "(to compare two forms of a model, not a speed)"
        )
    return lines
