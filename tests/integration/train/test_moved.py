# SPDX-License-Identifier: Apache-2.0
"""What a step moves between devices: sums in the dtype that was chosen, one layer's weights."""

import re
from typing import Any

import jax
import numpy as np
import pytest

from vit_jax import models
from vit_jax.config.tree import Config
from vit_jax.data import DataConfig
from vit_jax.devices import sharding
from vit_jax.devices.sharding import MeshConfig
from vit_jax.models import DType
from vit_jax.models.reduction import ReduceDType
from vit_jax.train import build as build_lib

BATCH, DEPTH = 16, 3
# Of each block: qkv, proj, fc1 and fc2.
KERNELS = 4


def lower(sums: ReduceDType = ReduceDType.FLOAT32, **fields: Any) -> Any:
    """Trace a ViT's step on 2 x 4 devices that split its parameters."""
    model = models.ViTConfig(
        image_size=(16, 16),
        patch=(8, 8),
        dim=16,
        depth=DEPTH,
        num_heads=2,
        mlp_dim=32,
        num_classes=8,
        **fields,
    )
    cfg = Config(
        model=model,
        data=DataConfig(batch_size=BATCH),
        duration="2 steps",
        mesh=MeshConfig(data=2, fsdp=4),
        reduce_dtype=sums,
    )
    mesh = sharding.make_mesh(cfg.mesh, jax.devices()[:8])
    batch = {
        "image": jax.ShapeDtypeStruct((BATCH, 16, 16, 3), np.uint8),
        "label": jax.ShapeDtypeStruct((BATCH,), np.int32),
    }
    return build_lib.lower_step(build_lib.build(cfg, num_examples=100), mesh, batch)


def wide_products(text: str) -> int:
    """Count matmuls of bfloat16 whose sums are float32."""
    narrow = r"tensor<[\dx]+xbf16>"
    return len(re.findall(rf"dot_general.*\({narrow}, {narrow}\) -> tensor<[\dx]+xf32>", text))


@pytest.mark.parametrize(("sums", "wide"), [(ReduceDType.FLOAT32, 1), (ReduceDType.BFLOAT16, 0)])
def test_gradients_are_summed_in_the_dtype_chosen(sums: ReduceDType, wide: int) -> None:
    # XLA for CPUs sums everything in float32, so what it is told is looked at: a looped block's
    # kernels and the patches'. The logits of attention have float32 sums with either.
    text = lower(sums, dtype=DType.BFLOAT16, scan_unroll=1).as_text()
    logits = wide_products(
        lower(ReduceDType.BFLOAT16, dtype=DType.BFLOAT16, scan_unroll=1).as_text()
    )
    assert wide_products(text) - logits == wide * (KERNELS + 1)


def gathered(text: str) -> list[str]:
    """List the shapes that are gathered, whole kernels of one layer or of several."""
    return re.findall(r"= (\w+\[[\d,]+\])\S* all-gather\(", text)


def test_layers_laid_out_gather_their_own_weights_for_each_pass() -> None:
    shapes = gathered(lower(scan_unroll=0).compile().as_text())
    for shape in ("f32[16,48]", "f32[16,16]"):  # qkv and proj
        assert shapes.count(shape) == 2 * DEPTH, shapes
    assert not [shape for shape in shapes if shape.startswith(f"f32[{DEPTH},")]
