# SPDX-License-Identifier: Apache-2.0
"""`main.py --compile_for`: a run's programs by the compiler of hardware that is not here."""

import dataclasses
import functools
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from vit_jax import config as config_lib
from vit_jax import models, trees
from vit_jax.config.tree import Config
from vit_jax.cost import hlo, memory, scale, tables, topology
from vit_jax.devices import sharding
from vit_jax.errors import UserError
from vit_jax.evals.classify import score_batch
from vit_jax.models import patch_sizes
from vit_jax.train import build as build_lib
from vit_jax.train.estimate import abstract_batch, estimate_memory, estimate_step, loss_share
from vit_jax.train.state import TrainState

_LONG = 100_000  # steps of an epoch: durations in epochs need a number, which changes no program
_IMAGES, _CLASSES = 100_000, 1000  # of data that nobody reads, for what a config leaves to them
_LARGE = 2**20  # bytes on one device


@dataclasses.dataclass(frozen=True)
class Examined:
    """A compiled program, its text, and the collectives in it."""

    compiled: topology.Compiled
    program: hlo.HloModule
    collectives: Sequence[hlo.Collective]

    @property
    def planned(self) -> int:
        """Bytes on one device."""
        return memory.planned(self.compiled.program)


def compile_for(cfg: Config, name: str) -> tuple[str, UserError | None]:
    """Return the report, and why the run would not fit the hardware or None.

    Compiles the training step and the largest evaluation of the head, with the run's batches, over
    its mesh. Needs no data and no weights, and writes nothing.

    Raises UserError: settings that do not go together, or a program that does not compile.
    """
    top = topology.describe(name)
    given, cfg = cfg, config_lib.guessed(cfg, _IMAGES, _CLASSES)
    mesh = _mesh(cfg, top)
    config_lib.check_batch(cfg, sharding.batch_shards(mesh))
    parts = build_lib.build(cfg, _LONG * cfg.data.batch_size)
    hint = "; --config.model.scan_unroll=1 compiles the blocks as a loop, far sooner"
    hint = "" if cfg.model.scan_unroll == 1 else hint
    print(f"compiling for {name}, which takes minutes{hint}", file=sys.stderr)
    axis_sizes, evaluation = dict(mesh.shape), None
    with top.tracing():
        config_lib.check_kernel(cfg)
        lowered = build_lib.lower_step(parts, mesh, abstract_batch(cfg, parts))
        step = _compile(lowered, top, axis_sizes)
        estimate = estimate_memory(cfg, parts, mesh)
        size = _eval_batch_size(cfg, mesh)
        if size:
            evaluation = _compile(_lower_evaluation(cfg, parts, mesh, size), top, axis_sizes)
    state, batch = build_lib.abstract_state(parts, mesh), cfg.data.batch_size
    shards = sharding.batch_shards(mesh)
    lines = [
        f"COMPILED for {name}: {mesh.size} x {top.target.kind}, mesh {axis_sizes}",
        f"step: batch {batch:,}, {batch // shards} images for each of {shards} parts; "
        f"compiled in {step.compiled.seconds:.0f} s",
    ]
    lines += _assumed(given, cfg)
    sides = patch_sizes.sides(cfg.model)
    if len(sides) > 1:
        each = ", ".join(map(str, sides))
        lines += [f"of patches of {sides[0]} pixels, the dearest; drawn are {each}"]
    if evaluation is not None:
        seconds = evaluation.compiled.seconds
        lines += [f"evaluation: batch {size:,}; compiled in {seconds:.0f} s"]
    programs = [step] if evaluation is None else [step, evaluation]
    lines += ["", "MEMORY (plan of one device)", *_memory(programs, estimate, top.memory)]
    lines += ["", "LARGEST TEMPORARIES (of the step)", *_temporaries(step)]
    lines += ["", "COLLECTIVES (of a step, bytes of the arrays on one device)"]
    lines += [*_collectives(step.collectives), "", "WHOLE COPIES"]
    lines += [*_copies(step, state, axis_sizes), "", "TIME"]
    lines += _time(cfg, parts, axis_sizes, top.target.kind, step)
    unfit = None
    if step.planned > top.memory:
        planned, has = f"{step.planned / 1e9:.1f} GB", f"{top.memory / 1e9:.1f} GB"
        what = f"the step compiles, but its plan of {planned} is more than the {has} of a device"
        unfit = UserError(f"{what}; {topology.TAKE_LESS}")
    return "\n".join(lines), unfit


def _assumed(given: Config, cfg: Config) -> list[str]:
    """Return a line about what the data would say and the report assumes; none without any."""
    found = []
    if cfg.model is not given.model or cfg.objective is not given.objective:
        found.append(f"{_CLASSES:,} classes")
    if cfg.data is not given.data:
        found.append(f"a batch of {cfg.data.batch_size}")
    return [f"assumed, as the data are not read: {' and '.join(found)}"] if found else []


def _mesh(cfg: Config, top: topology.Topology) -> Mesh:
    mesh = sharding.make_mesh(cfg.mesh, top.devices)
    if mesh.size != len(top.devices):
        what = f"mesh {dict(mesh.shape)} takes {mesh.size} of the {len(top.devices)} devices of"
        advice = "set one of its axes to -1, or name smaller hardware"
        raise UserError(f"{what} {top.name}; {advice}")
    return mesh


def _eval_batch_size(cfg: Config, mesh: Mesh) -> int:
    """Return the largest batch of an evaluation of the head, over all devices; 0 for none."""
    heads = [ev for ev in cfg.evals.values() if ev.predictor == "logits"]
    sizes = [ev.batch_size or cfg.data.batch_size for ev in heads]
    unit = sharding.batch_shards(mesh)
    return math.ceil(max(sizes) / unit) * unit if sizes else 0


def _lower_evaluation(cfg: Config, parts: build_lib.Parts, mesh: Mesh, size: int) -> Any:
    state = build_lib.abstract_state(parts, mesh)
    array = functools.partial(jax.ShapeDtypeStruct, sharding=sharding.batch_sharding(mesh))
    batch = {"image": array((size, *models.input_shape(cfg.model)), cfg.data.dtype.value)}
    batch |= {"label": array((size,), "int32"), "mask": array((size,), "float32")}
    with jax.set_mesh(mesh):
        params = build_lib.placed(parts.params, mesh)
        variables = {"params": params, **state.model_state}
        side = min((ev.patch for ev in cfg.evals.values() if ev.patch), default=0)  # the dearest
        predict = parts.objective.of_patch(side).predictors["logits"]
        loss = cfg.objective.head_loss
        return score_batch.lower(variables, batch, predict=predict, loss=loss, mesh=mesh)


def _compile(lowered: Any, top: topology.Topology, axis_sizes: dict[str, int]) -> Examined:
    compiled = topology.compile_lowered(lowered, top.compiler_options)
    program = hlo.parse(compiled.program.as_text())
    return Examined(compiled, program, hlo.find(program, axis_sizes))


def _gb(size: float) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def _memory(programs: list[Examined], estimate: memory.Memory, capacity: int) -> list[str]:
    plans = [x.compiled.program.memory_analysis() for x in programs]
    parts = {
        "arguments (state, batch)": "argument",
        "outputs": "output",
        "  of them in the arguments' place": "alias",
        "temporaries": "temp",
    }
    rows = [
        [name, *(_gb(getattr(plan, f"{part}_size_in_bytes")) for plan in plans)]
        for name, part in parts.items()
    ]
    total = ["plan", *(_gb(x.planned) for x in programs)]
    share = [f"of {capacity / 1e9:.1f} GB", *(f"{x.planned / capacity:.0%}" for x in programs)]
    none = [""] * (len(programs) - 1)
    dry_run = ["--dry_run estimates", _gb(estimate.device_total), *none]
    header = ["", "step", "evaluation"][: 1 + len(programs)]
    right = range(1, 1 + len(programs))
    return tables.align(header, rows, [total, share], [dry_run], right=right)


def _temporaries(step: Examined) -> list[str]:
    found = hlo.largest(step.program, _LARGE)[:5]
    if not found:
        return ["none of 1 MB in the device's main memory"]
    rows = [[_gb(x.num_bytes), str(x.array), f"{x.count}", x.layer or "-"] for x in found]
    return tables.align(["size", "array", "lines", "made by"], rows, right=(0, 2))


def _collectives(found: Sequence[hlo.Collective]) -> list[str]:
    groups: dict[tuple[str, str], list[hlo.Collective]] = {}
    for x in found:
        if x.axes:
            groups.setdefault((x.kind, x.axes), []).append(x)
    rows = []
    for (kind, axes), some in sorted(groups.items(), key=lambda kv: -_moved(kv[1])):
        count, inside = sum(x.times for x in some), sum(x.times for x in some if x.loops)
        hidden = _moved([x for x in some if x.hidden]) / max(_moved(some), 1)
        dtypes = {array.dtype for x in some for array in x.arrays if x.num_bytes >= _LARGE}
        row = [kind, axes, f"{count:,}", f"{inside:,}", _gb(_moved(some)), f"{hidden:.0%}"]
        rows.append([*row, "+".join(sorted(dtypes))])
    if not rows:
        return ["none"]
    header = ["kind", "over", "count", "in loops", "bytes", "hidden", "dtype"]
    note = "hidden: started before other work and awaited after it, as the compiler scheduled them"
    return [*tables.align(header, rows, right=(2, 3, 4, 5)), note]


def _moved(found: Sequence[hlo.Collective]) -> int:
    return sum(x.num_bytes * x.times for x in found)


def _copies(step: Examined, state: TrainState, axis_sizes: Mapping[str, int]) -> list[str]:
    """Describe what every device of an axis holds though the axis could divide it."""
    lines = []
    kept = {"parameters": state.params, "optimizer state": state.opt_state}
    for what, tree in kept.items():
        for axis in ("fsdp", "tensor"):
            names, total = undivided(tree, axis, axis_sizes)
            if names:
                where = f"{what} over {axis}={axis_sizes[axis]}"
                lines.append(f"{where}: {_gb(total)} in {tables.first_of(names)}")
    for x in step.collectives:
        if x.kind == "all-gather" and "data" in x.axes and x.num_bytes >= _LARGE:
            layer = hlo.layer(x.op_name)
            lines.append(f"gathered over {x.axes}: {_gb(x.num_bytes)}, {layer}")
    if count := step.compiled.num_rematerialized:
        lines.append(
            f"the partitioner made {count} array(s) whole to shard them anew "
            "(involuntary full rematerialization)"
        )
    if not lines and axis_sizes["fsdp"] == 1 and axis_sizes["data"] > 1:
        return ["parameters and optimizer state, on every device: mesh.fsdp would divide them"]
    return lines or ["no parameter, no optimizer state and no gathered array of over 1 MB"]


def undivided(tree: Any, axis: str, axis_sizes: Mapping[str, int]) -> tuple[list[str], int]:
    """Name the leaves of over 1 MB that an axis could divide and does not; with their bytes."""
    names, total, size = [], 0, axis_sizes[axis]
    for name, leaf in trees.named_leaves(tree) if size > 1 else ():
        shape = leaf.sharding.shard_shape(leaf.shape)
        parts = [(axes,) if isinstance(axes, str) else axes or () for axes in leaf.sharding.spec]
        divided = any(axis in axes for axes in parts)
        held = math.prod(shape) * leaf.dtype.itemsize
        if not divided and held >= _LARGE and any(n % size == 0 for n in shape):
            names.append(name)
            total += held
    return names, total


def _time(
    cfg: Config, parts: build_lib.Parts, axis_sizes: Mapping[str, int], kind: str, step: Examined
) -> list[str]:
    lines, chip, batch = [], scale.chip(kind), cfg.data.batch_size
    if chip is None:
        lines.append(f"the cost model does not know {kind}")
    else:
        least, most = estimate_step(cfg, parts, axis_sizes, chip).range
        lines.append(
            f"step by the cost model: {least * 1e3:.3g} to {most * 1e3:.3g} ms, "
            f"{batch / most:,.0f} to {batch / least:,.0f} images/s, if the input keeps up "
            "(8 of 10 public runs; docs/scale.md)"
        )
    lines += loss_share(cfg, parts, axis_sizes)
    cycles, clock = hlo.estimated_cycles(step.program), scale.clock(kind)
    if cycles is not None and clock is not None:
        what = f"compiler's static estimate, without collectives: {cycles / clock * 1e3:.0f} ms"
        lines.append(f"{what} (to compare two forms of a model, not a speed)")
    return lines
