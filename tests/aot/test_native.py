# SPDX-License-Identifier: Apache-2.0
"""Rows of images of their own shapes compile for kernels that hold no [N, N] array."""

import re

import jax
import jax.numpy as jnp

from tests.aot.programs import need
from vit_jax import models
from vit_jax.cost import topology
from vit_jax.devices import sharding
from vit_jax.models import DType
from vit_jax.models.layers.attention import AttentionImpl
from vit_jax.train import build as build_lib

ROWS, LENGTH = 4, 1024


def compiled(hardware: str, kernel: AttentionImpl, lead: tuple[int, ...]) -> str:
    """Compile the gradient of the logits of rows, each of one image or of several."""
    need(hardware)
    cfg = models.variant(
        "naflexvit_b16_gap",
        dim=128,
        num_heads=2,
        mlp_dim=128,
        depth=1,
        dtype=DType.BFLOAT16,
        attention=kernel,
    )
    top = topology.describe(hardware)
    mesh = sharding.make_mesh(sharding.MeshConfig(data=-1), top.devices)
    with top.tracing(), jax.set_mesh(mesh):
        params, module = models.abstract(cfg)["params"], models.create(cfg)
        where = sharding.batch_sharding(mesh)
        rows = jax.ShapeDtypeStruct((ROWS, LENGTH, 768), jnp.bfloat16, sharding=where)
        grids = jax.ShapeDtypeStruct((*lead, 2), jnp.int32, sharding=where)

        def total(params: dict, rows: jax.Array, grids: jax.Array) -> jax.Array:
            out: models.Output = module.apply({"params": params}, rows, grids=grids)
            return out.logits.sum()

        step = jax.jit(jax.grad(total))
        return step.lower(build_lib.placed(params, mesh), rows, grids).compile().as_text() or ""


def test_lengths_are_cudnns_and_segments_the_tpus() -> None:
    texts = {
        '"__cudnn': compiled("h100:1", AttentionImpl.AUTO, (ROWS,)),
        '"tpu_custom_call"': compiled("v5e:2x2", AttentionImpl.PALLAS, (ROWS, 6)),
    }
    for target, text in texts.items():
        assert f"custom_call_target={target}" in text
        assert not re.search(r"\[(\d+,)*10\d\d,10\d\d\]", text)  # no logits in memory
