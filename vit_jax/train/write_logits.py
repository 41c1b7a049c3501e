# SPDX-License-Identifier: Apache-2.0
"""Write a teacher's logits for a whole run: the run's stream without student and gradient."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from vit_jax import config as config_lib
from vit_jax import models, objectives
from vit_jax.config.tree import Config
from vit_jax.cost.tables import format_bytes
from vit_jax.devices import sharding
from vit_jax.distill import TeacherConfig, check_unmixed, teacher
from vit_jax.distill import cache as cache_lib
from vit_jax.distill import stream as stream_lib
from vit_jax.distill.cache import LogitCache, Rows, compact
from vit_jax.distill.stream import Stream
from vit_jax.errors import UserError
from vit_jax.evals.passes import ahead
from vit_jax.objectives import DistillConfig
from vit_jax.process.preemption import INTERRUPTED, Preemption
from vit_jax.train import build as build_lib
from vit_jax.train.batches import device_batches
from vit_jax.train.report.progress import Progress
from vit_jax.workdir import folder as workdir

_COMMIT_EVERY = 10.0  # seconds of work that a kill may cost


def write(cfg: Config, path: Path, top_k: int = 0) -> int:
    """Write the teacher's logits for every position of the run of `cfg` that has none yet.

    Existing rows are compared with their checksums; the first rows at the start and the last at the
    end, with the live teacher's.

    The run's mesh does the work; its `objective.distill.cache` is set to `path`, a directory.
    `top_k` logits of each image are kept; 0 is all.

    Returns the exit status: 0 complete, 75 asked to stop (the same command continues).

    Raises UserError: nothing to cache, another cache in `path`, a full disk.
    """
    distill = _check(cfg, path)
    source = build_lib.open_train(cfg)
    cfg = config_lib.fitted(cfg, len(source), source.num_classes)
    if not 0 <= top_k < cfg.model.num_classes:
        most = cfg.model.num_classes - 1
        raise UserError(f"--top_k={top_k} must be 1 to {most} (or left out, to keep all logits)")
    positions = config_lib.plan(cfg, len(source)).total_steps * cfg.data.batch_size
    mesh = sharding.make_mesh(cfg.mesh)
    config_lib.check_batch(cfg, sharding.batch_shards(mesh))
    stream = Stream(distill, cfg.model, cfg.data, cfg.seed, source)
    names = source.class_names
    variables, digest = teacher.read_weights(stream.cfg, names)
    identity = stream.identity(digest)
    with workdir.lock(path, cache=True), jax.set_mesh(mesh):
        cache = LogitCache(
            path,
            identity,
            top_k,
            cfg.model.num_classes,
            distill.temperature,
            class_names=names,
        )
        if (path / cache_lib.RECORD).exists():
            cache = cache_lib.read(path)
            stream_lib.check_stream(cache, identity, names)
            if cache.top_k != top_k:
                raise UserError(f"{path} was begun with --top_k={cache.top_k}; it must continue so")
            stream_lib.check_temperature(cache, distill)
            cache.check_rows(cache.done)
            teacher.verify(cache, stream, variables, 0)
        size = cache.row_bytes
        total = format_bytes(positions * size)
        print(f"{positions:,} images, {size:,} bytes each: {total} in {path}", flush=True)
        if cache.done < positions:
            cache.reserve(positions)
            cache = _fill(cfg, cache, stream, mesh, variables, positions)
        if cache.done < positions:
            return INTERRUPTED
        teacher.verify(cache, stream, variables, max(positions - teacher.ROWS, 0))
    print(f"{path} is complete: --config.objective.distill.cache={path}", flush=True)
    return 0


def _check(cfg: Config, path: Path) -> TeacherConfig:
    """Return the teacher's settings, after checking all that a run with this cache would."""
    if jax.process_count() > 1:
        raise UserError("cached logits are written by one process; start the command once")
    if not isinstance(cfg.objective, DistillConfig):
        kind = type(cfg.objective).__name__
        raise UserError(f"{kind} has no teacher; set config.objective = DistillConfig(...)")
    distill = cfg.objective.distill
    if not distill.weights:
        raise UserError(
            "objective.distill.weights is not set: the logits of which teacher?",
            field="objective.distill.weights",
        )
    check_unmixed(cfg.data)
    distill.cache = str(path)  # a cache that no run could use is refused now
    config_lib.check(cfg)
    return distill


def _fill(
    cfg: Config, cache: LogitCache, stream: Stream, mesh: Mesh, variables: Any, positions: int
) -> LogitCache:
    """Write from the last committed position on, to the end or until asked to stop."""
    size = cfg.data.batch_size
    start, stop = cache.done // size, positions // size
    committed = time.monotonic()
    if cache.done:
        print(f"continuing at position {cache.done:,}", flush=True)
    with Progress(stop, size, start_step=start) as progress, Preemption() as stop_request:
        for step, rows in _rows(cfg, cache, stream, mesh, variables, range(start, stop)):
            # After a resume with another batch size, write only rows not yet committed: recomputing
            # rows in another batch would not match their checksums bit for bit.
            first = max(cache.done, step * size)
            cache.write(first, {key: value[first - step * size :] for key, value in rows.items()})
            progress.advance(step + 1)
            stopping = step + 1 < stop and stop_request.requested(step + 1)
            if step + 1 == stop or stopping or time.monotonic() - committed > _COMMIT_EVERY:
                cache, committed = cache.finish((step + 1) * size), time.monotonic()
                rate = progress.images_per_sec()
                progress.report({} if rate is None else {"perf/images_per_sec": rate})
            if stopping:
                progress.message(
                    f"{stop_request}: wrote {cache.done:,} of {positions:,} positions; the same "
                    "command continues"
                )
                break
    return cache


def _rows(
    cfg: Config, cache: LogitCache, stream: Stream, mesh: Mesh, variables: Any, steps: range
) -> Iterator[tuple[int, Rows]]:
    """Yield the rows of each batch, one batch behind the devices."""
    abstract = build_lib.placed(models.abstract(stream.taught.teacher), mesh)
    predict = teacher.make_predict(stream)
    compute = jax.jit(
        lambda variables, image: compact(predict(variables, image), cache.top_k, cache.temperature),
        out_shardings=NamedSharding(mesh, PartitionSpec()),
    )
    frozen = sharding.place(variables, abstract)
    objective = objectives.create(cfg.objective, cfg.model, cfg.data)
    device = device_batches(
        cfg.data, objective, stream.source, mesh, seed=cfg.seed, start=steps.start
    )
    with contextlib.closing(device) as batches:
        computed = ahead(steps, lambda step: (step, compute(frozen, next(batches)["image"])), 1)
        for step, rows in computed:
            yield step, jax.tree.map(np.asarray, rows)
