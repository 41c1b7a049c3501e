# SPDX-License-Identifier: Apache-2.0
"""The Pallas kernels compile for TPUs, forward and backward, above 1,024 tokens."""

import importlib.util
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from vit_jax import models, sharding
from vit_jax.aot import topology
from vit_jax.models import DType
from vit_jax.models.layers.attention import AttentionImpl

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs TPUs' compiler, libtpu"
)


def compiled(hardware: str, mesh_config: sharding.MeshConfig, side: int) -> str:
    """Return the gradient of a ViT of two blocks over side x side patches and a class token."""
    cfg = models.variant(
        "vit_b16",
        image_size=(8 * side,),
        patch=(8, 8),
        dim=128,
        num_heads=2,
        mlp_dim=128,
        depth=2,
        scan_unroll=1,
        dtype=DType.BFLOAT16,
        attention=AttentionImpl.PALLAS,
    )
    described = topology.describe(hardware)
    mesh = sharding.make_mesh(mesh_config, described.devices)
    with described.tracing(), jax.set_mesh(mesh):
        params, module = models.abstract(cfg)["params"], models.create(cfg)
        params = jax.tree.map(
            lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where),
            params,
            sharding.shardings(params, mesh),
        )
        split = NamedSharding(mesh, PartitionSpec(sharding.BATCH_AXES))
        image = jax.ShapeDtypeStruct((16, *models.input_shape(cfg)), jnp.bfloat16, sharding=split)
        outputs: Any = module.apply
        step = jax.jit(jax.grad(lambda p, x: outputs({"params": p}, x).logits.sum()))
        return step.lower(params, image).compile().as_text() or ""


@pytest.mark.parametrize(
    "hardware, mesh, side, own",
    [
        ("v5e:2x2", {"data": 4}, 32, "4,2,1152,64"),
        ("v5e:2x2", {"data": 1, "fsdp": 2, "tensor": 2}, 64, "8,1,4224,64"),
        ("v6e:2x2", {"data": 2, "tensor": 2}, 32, "8,1,1152,64"),
    ],
)
def test_the_kernels_compile_for_each_devices_images_and_heads(
    hardware: str, mesh: dict[str, int], side: int, own: str
) -> None:
    text = compiled(hardware, sharding.MeshConfig(**mesh), side)
    kernels = [line for line in text.splitlines() if 'custom_call_target="tpu_custom_call"' in line]
    assert len(kernels) == 3  # forward, and of the backward one for q and one for k and v
    assert all(f"bf16[{own}]" in line for line in kernels)
    tokens = side * side + 1
    assert not re.search(rf"\[(\d+,)*{tokens},{tokens}\]", text)  # no logits in memory
