# SPDX-License-Identifier: Apache-2.0
"""Seconds of each stage of a start, in a process of its own: one line of JSON on stdout.

    python -m benchmarks.start_stages digits | MODEL SCAN_UNROLL

`digits` is the digits' run up to its first step. For a MODEL (a variant's name) it is its training
step at batch 8, built and compiled by shapes alone: no parameter is allocated.
"""

import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

# What main.py imports for a run; the rest comes when it is used.
MODULES = ("vit_jax.cli.train", "vit_jax.process.startup", "vit_jax.train.loop")


class _Stages:
    """Seconds by stage, in order."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def __call__(self, name: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        found = work()
        self.seconds[name] = time.perf_counter() - start
        return found


def digits(stage: _Stages) -> None:
    """Do what the digits' run does, in its order."""
    stage("imports", _imports)
    import jax

    from configs.vit_mu_digits import get_config
    from vit_jax.devices import sharding
    from vit_jax.process import startup
    from vit_jax.train import batches, build

    startup.configure()
    cfg = get_config()
    source = stage("data set", lambda: build.open_train(cfg))
    mesh = stage("devices", lambda: sharding.make_mesh(cfg.mesh))
    parts = stage("build", lambda: build.build(cfg, len(source)))
    with jax.set_mesh(mesh):
        state = stage("init", lambda: jax.block_until_ready(build.init_state(cfg, parts, mesh)))
        stream = batches.device_batches(
            cfg.data, parts.objective, source, mesh, seed=cfg.seed, start=0
        )
        batch = stage("first batch", lambda: next(stream))
        compiled = _compile(stage, build.compile_steps(parts, mesh)[0], state, {}, batch)
        stage("first step", lambda: jax.block_until_ready(compiled(state, {}, batch)))
        stream.close()


def step(stage: _Stages, model: str, scan_unroll: int) -> None:
    """Build and compile the training step of a model by shapes alone."""
    import jax
    import numpy as np

    from vit_jax import models
    from vit_jax.config.tree import Config
    from vit_jax.data import DataConfig
    from vit_jax.devices import sharding
    from vit_jax.process import startup
    from vit_jax.train import build

    startup.configure()
    cfg = Config(
        model=models.variant(model, scan_unroll=scan_unroll),
        data=DataConfig(batch_size=8),
        duration="1000 steps",
    )
    mesh = sharding.make_mesh(cfg.mesh)
    parts = stage("build", lambda: build.build(cfg, 1000))
    shape = (8, *models.input_shape(cfg.model))
    batch = {
        "image": jax.ShapeDtypeStruct(shape, np.uint8),
        "label": jax.ShapeDtypeStruct((8,), np.int32),
    }
    with jax.set_mesh(mesh):
        state = build.abstract_state(parts, mesh)
        _compile(stage, build.compile_steps(parts, mesh)[0], state, {}, batch)


def _imports() -> None:
    for module in MODULES:
        importlib.import_module(module)


def _compile(stage: _Stages, train_step: Any, *args: Any) -> Any:
    lowered = stage("trace", lambda: train_step.lower(*args))
    return stage("compile", lowered.compile)


if __name__ == "__main__":
    stages = _Stages()
    if sys.argv[1] == "digits":
        digits(stages)
    else:
        step(stages, sys.argv[1], int(sys.argv[2]))
    print(json.dumps(stages.seconds))
