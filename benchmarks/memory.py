# SPDX-License-Identifier: Apache-2.0
"""The memory of a training step as the dry run estimates it, beside what XLA plans for it.

    python -m benchmarks.memory
    python -m benchmarks.memory --only vit_b16 --only swin_t

Nothing is run: the step of each model is compiled, and XLA asked for its plan.
"""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from benchmarks import record
from vit_jax import models
from vit_jax.config.tree import Config
from vit_jax.cost import memory
from vit_jax.data import DataConfig
from vit_jax.devices import sharding
from vit_jax.models import DType, ModelConfig, Remat
from vit_jax.process import startup
from vit_jax.train import build as build_lib
from vit_jax.train.estimate import estimate_memory

# By what is written in the table: a variant, fields of its model, fields of the run.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "vit_s16": ("vit_s16", {}, {}),
    "vit_b16": ("vit_b16", {}, {}),
    "vit_b16 dropout_rate=0.1": ("vit_b16", {"dropout_rate": 0.1}, {}),
    "vit_b16 scan_unroll=1": ("vit_b16", {"scan_unroll": 1}, {}),
    "vit_b16 remat=dots": ("vit_b16", {"remat": Remat.DOTS}, {}),
    "vit_b16 remat=full": ("vit_b16", {"remat": Remat.FULL}, {}),
    "vit_b16 bfloat16": ("vit_b16", {"dtype": DType.BFLOAT16}, {}),
    "vit_b16 accum_steps=4": ("vit_b16", {}, {"accum_steps": 4}),
    "deit_s16": ("deit_s16", {}, {}),
    "cait_xxs24": ("cait_xxs24", {}, {}),
    "convit_ti": ("convit_ti", {}, {}),
    "mixer_s16": ("mixer_s16", {}, {}),
    "swin_t": ("swin_t", {}, {}),
    "r26_vit_s32": ("r26_vit_s32", {}, {}),
    "bit_r50x1": ("bit_r50x1", {}, {}),
    "resnet50": ("resnet50", {}, {}),
    "regnety_4gf": ("regnety_4gf", {}, {}),
}
_BATCH = 16


def compare(model: ModelConfig, batch_size: int, **fields: Any) -> tuple[int, int]:
    """Return the bytes of a step on one device by the dry run's estimate and by XLA's plan."""
    data = DataConfig(batch_size=batch_size)
    cfg = dataclasses.replace(Config(model=model, data=data, duration="10 steps"), **fields)
    parts, mesh, step = lowered(cfg, jax.devices()[:1])
    return estimate_memory(cfg, parts, mesh).device_total, memory.planned(step.compile())


def lowered(cfg: Config, devices: Sequence[Any]) -> tuple[build_lib.Parts, jax.sharding.Mesh, Any]:
    """Return a run's parts, its mesh of `devices` and its step, traced for a batch of images."""
    size = cfg.data.batch_size
    mesh = sharding.make_mesh(cfg.mesh, devices)
    parts = build_lib.build(cfg, num_examples=10 * size)
    batch = {
        "image": jax.ShapeDtypeStruct((size, *models.input_shape(cfg.model)), "uint8"),
        "label": jax.ShapeDtypeStruct((size,), "int32"),
    }
    return parts, mesh, build_lib.lower_step(parts, mesh, batch)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory")
    parser.add_argument("--only", action="append", choices=CASES, metavar="CASE")
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    args = parser.parse_args(argv)
    startup.configure()
    rows = []
    for name in args.only or CASES:
        variant, options, fields = CASES[name]
        estimated, planned = compare(models.variant(variant, **options), _BATCH, **fields)
        dtype = "" if "dtype" in options else " float32"
        row = record.Row(
            work=f"{name} step memory batch={_BATCH}{dtype}",
            unit="MiB",
            ours=estimated / 2**20,
            peer="XLA's plan",
            peer_value=planned / 2**20,
            ratio=estimated / planned,
        )
        print(record.table([row]), flush=True)
        rows.append(row)
    record.report(rows, args.out)


if __name__ == "__main__":
    main()
