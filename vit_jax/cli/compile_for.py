# SPDX-License-Identifier: Apache-2.0
"""`main.py --compile_for`: a run's programs by the compiler of hardware that is not here."""

import math
import sys
from typing import Any

import jax
from jax.sharding import Mesh

from vit_jax import config as config_lib
from vit_jax import models, sharding
from vit_jax.analysis import scale
from vit_jax.aot import collectives, compiler, hlo, topology
from vit_jax.cli import compile_report
from vit_jax.cli.dry_run import abstract_batch, estimate_memory, estimate_step
from vit_jax.config import Config
from vit_jax.errors import UserError
from vit_jax.evals.classify import score_batch
from vit_jax.train import build as build_lib

_LONG = 100_000  # steps of an epoch: durations in epochs need a number, and none changes a program


def compile_for(cfg: Config, name: str) -> tuple[str, UserError | None]:
    """Return the report, and why the run would not fit the hardware or None.

    Compiles the training step and the largest evaluation of the head, with the run's batches, over
    its mesh. Needs no data and no weights, and writes nothing.

    Raises UserError: settings that do not go together, or a program that does not compile.
    """
    top = topology.describe(name)
    mesh = _mesh(cfg, top)
    config_lib.check_batch(cfg, sharding.batch_shards(mesh))
    parts = build_lib.build(cfg, _LONG * cfg.data.batch_size)
    looped = cfg.model.scan_unroll == 1
    hint = (
        "" if looped else "; --config.model.scan_unroll=1 compiles the blocks as a loop, far sooner"
    )
    print(f"compiling for {name}, which takes minutes{hint}", file=sys.stderr)
    with top.tracing():
        config_lib.check_kernel(cfg)
        lowered = build_lib.lower_step(parts, mesh, abstract_batch(cfg, parts))
        step = compiler.compile_lowered(lowered, top.compiler_options)
        estimate = estimate_memory(cfg, parts, mesh)
        size = _eval_batch_size(cfg, mesh)
        evaluation = None
        if size is not None:
            lowered = _lower_evaluation(cfg, parts, mesh, size)
            evaluation = compiler.compile_lowered(lowered, top.compiler_options)
    chip = scale.chip(top.target.kind)
    report = compile_report.Report(
        hardware=top,
        axis_sizes=dict(mesh.shape),
        step=_examined(step, dict(mesh.shape)),
        evaluation=None if evaluation is None else _examined(evaluation, dict(mesh.shape)),
        batch_size=cfg.data.batch_size,
        eval_batch_size=size or 0,
        state=build_lib.abstract_state(parts, mesh),
        estimate=estimate,
        seconds=None if chip is None else estimate_step(cfg, parts, dict(mesh.shape), chip).range,
    )
    return compile_report.write(report), _unfit(report)


def _mesh(cfg: Config, top: topology.Topology) -> Mesh:
    mesh = sharding.make_mesh(cfg.mesh, top.devices)
    if mesh.size != len(top.devices):
        raise UserError(
            f"mesh {dict(mesh.shape)} takes {mesh.size} of the {len(top.devices)} devices of "
            f"{top.name}; set one of its axes to -1, or name smaller hardware"
        )
    return mesh


def _eval_batch_size(cfg: Config, mesh: Mesh) -> int | None:
    heads = [ev for ev in cfg.evals.values() if ev.predictor == "logits"]
    sizes = [ev.batch_size or cfg.data.batch_size for ev in heads]
    unit = sharding.batch_shards(mesh)
    return math.ceil(max(sizes) / unit) * unit if sizes else None


def _lower_evaluation(cfg: Config, parts: build_lib.Parts, mesh: Mesh, size: int) -> Any:
    state = build_lib.abstract_state(parts, mesh)
    where = sharding.batch_sharding(mesh)
    image = jax.ShapeDtypeStruct((size, *models.input_shape(cfg.model)), "uint8")
    label, mask = (jax.ShapeDtypeStruct((size,), dtype) for dtype in ("int32", "float32"))
    batch = {"image": image, "label": label, "mask": mask}
    batch = {k: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where) for k, x in batch.items()}
    with jax.set_mesh(mesh):
        variables = {"params": state.params, **state.model_state}
        predict, loss = parts.objective.predictors["logits"], cfg.objective.head_loss
        return score_batch.lower(variables, batch, predict=predict, loss=loss, mesh=mesh)


def _examined(compiled: compiler.Compiled, axis_sizes: dict[str, int]) -> compile_report.Examined:
    program = hlo.parse(compiled.program.as_text())
    return compile_report.Examined(
        compiled=compiled,
        plan=compiled.program.memory_analysis(),
        program=program,
        collectives=collectives.find(program, axis_sizes),
    )


def _unfit(report: compile_report.Report) -> UserError | None:
    planned, memory = report.step.planned, report.hardware.memory
    if planned <= memory:
        return None
    return UserError(
        f"the step compiles, but its plan of {planned / 1e9:.1f} GB is more than the "
        f"{memory / 1e9:.1f} GB of a device; fewer images a chip, accum_steps, model.remat=full or "
        "mesh.fsdp take less"
    )
