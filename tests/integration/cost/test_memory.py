# SPDX-License-Identifier: Apache-2.0
"""Bytes by hand, over meshes that do not exist, and against XLA's own plan."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cost.test_memory import GPU
from vit_jax import models
from vit_jax.cli import dry_run
from vit_jax.config.tree import Config
from vit_jax.data import DataConfig
from vit_jax.devices import hardware, sharding
from vit_jax.models.layers.attention import AttentionImpl
from vit_jax.models.layers.dense import ReduceDType
from vit_jax.train import build

ROOT = Path(__file__).parents[3]


def test_gradients_summed_in_bfloat16_take_half():
    cfg = Config(
        model=models.variant("vit_ti16", dtype=models.DType.BFLOAT16, attention=AttentionImpl.XLA),
        data=DataConfig(batch_size=8),
        mesh=sharding.MeshConfig(data=1, fsdp=8),
        duration="1 steps",
    )
    parts = build.build(cfg, num_examples=8)
    mesh = sharding.abstract_mesh(cfg.mesh, 8)
    with hardware.tracing_for(GPU):
        wide, narrow = (
            dry_run.estimate_memory(dataclasses.replace(cfg, reduce_dtype=dtype), parts, mesh)
            for dtype in ReduceDType
        )
    block = 192 * 192 * 12 + (4 + 9) * 192  # kernels; biases, two LayerNorms
    assert wide.device_total - narrow.device_total == 2 * block


# At these sizes activations, not single operations, take the memory.
PLANNED = """
import json, sys
from benchmarks.memory import compare
from vit_jax import models
shapes = dict(image_size=(112, 112))
vit = dict(dim=96, depth=3, num_heads=3, mlp_dim=384, **shapes)
found = {
    "rematerialised": compare(models.variant("deit_s16", remat="full", **vit), 32, accum_steps=2),
    "resnet": compare(models.variant("resnet50", depths=(8,), widths=(128,), **shapes), 8),
}
json.dump(found, sys.stdout)
"""


@pytest.mark.slow
def test_xla_plans_about_as_much():
    """Of whole steps, compiled as a run compiles them; NOTES.md of benchmarks/ has every family.

    tests/aot/test_cost.py has a ViT that keeps its activations.
    """
    env = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-c", PLANNED], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for name, (estimated, planned) in json.loads(done.stdout.splitlines()[-1]).items():
        assert estimated == pytest.approx(planned, rel=0.15), name
