# SPDX-License-Identifier: Apache-2.0
"""The Pallas kernels compile for TPUs, forward and backward, above 1,024 tokens."""

import re

import pytest

from tests.aot.programs import compile_gradient
from vit_jax import models
from vit_jax.devices import sharding
from vit_jax.models import DType
from vit_jax.models.layers.attention import AttentionImpl


@pytest.mark.parametrize(
    "hardware, mesh, side, own",
    [
        ("v5e:2x2", {"data": 1, "fsdp": 2, "tensor": 2}, 45, "2,1,2048,64"),
    ],
)
def test_the_kernels_compile_for_each_devices_images_and_heads(
    hardware: str, mesh: dict[str, int], side: int, own: str
) -> None:
    cfg = models.variant(
        "vit_b16",
        image_size=(4 * side,),
        patch=(4, 4),
        dim=128,
        num_heads=2,
        mlp_dim=128,
        depth=1,
        scan_unroll=1,
        dtype=DType.BFLOAT16,
        attention=AttentionImpl.PALLAS,
    )
    mesh_config = sharding.MeshConfig(**mesh)
    images = 2 * mesh_config.data * mesh_config.fsdp
    text = compile_gradient(cfg, hardware, mesh_config, images)
    kernels = [line for line in text.splitlines() if 'custom_call_target="tpu_custom_call"' in line]
    assert len(kernels) == 3  # forward, and of the backward one for q and one for k and v
    assert all(f"bf16[{own}]" in line for line in kernels)
    tokens = side * side + 1
    assert not re.search(rf"\[(\d+,)*{tokens},{tokens}\]", text)  # no logits in memory
