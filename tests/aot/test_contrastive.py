# SPDX-License-Identifier: Apache-2.0
"""The contrastive losses of 32,768 pairs, as the compilers of TPUs and GPUs plan them."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from tests.aot.programs import need
from vit_jax.cost import hlo, topology
from vit_jax.devices import sharding
from vit_jax.devices.sharding import MeshConfig
from vit_jax.models.contrastive import passed_bytes, sigmoid_loss, softmax_loss

BATCH, WIDTH = 32_768, 768
MIB = 2**20


# Temporaries of a device, MiB; in brackets those of the formula of the whole batch under jit alone:
# v5e:16x16 softmax 0.00 (112), sigmoid 0.00 (112): the ring's arrays stay on the chip;
# h100:8 softmax 59 (1,120), sigmoid 91 (1,632).
@pytest.mark.parametrize("hardware, most", [("v5e:16x16", 4 * MIB), ("h100:8", 120 * MIB)])
@pytest.mark.parametrize("form", ["softmax", "sigmoid"])
def test_a_device_keeps_little_and_passes_what_is_counted(
    form: str, hardware: str, most: int
) -> None:
    need(hardware)
    top = topology.describe(hardware)
    mesh = sharding.make_mesh(MeshConfig(), top.devices)
    split, everywhere = sharding.batch_sharding(mesh), NamedSharding(mesh, PartitionSpec())
    rows = jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32, sharding=split)
    ids = jax.ShapeDtypeStruct((BATCH,), jnp.int32, sharding=split)
    scalar = jax.ShapeDtypeStruct((), jnp.float32, sharding=everywhere)
    loss, scalars = {
        "softmax": (softmax_loss, [scalar]),
        "sigmoid": (sigmoid_loss, [scalar, scalar]),
    }[form]
    over = tuple(range(2 + len(scalars)))
    gradients = (split, split, *[everywhere] * len(scalars))
    with top.tracing(), jax.set_mesh(mesh):
        step = jax.value_and_grad(lambda *args: loss(*args).loss, over)
        step = jax.jit(step, out_shardings=(everywhere, gradients))
        lowered = step.lower(rows, rows, *scalars, ids)
        program = topology.compile_lowered(lowered, top.compiler_options).program
    assert program.memory_analysis().temp_size_in_bytes < most
    found = hlo.find(hlo.parse(program.as_text()), dict(mesh.shape))
    assert {x.kind for x in found} == {"collective-permute", "all-reduce"}
    sent = sum(x.num_bytes * x.times for x in found if x.kind == "collective-permute")
    assert sent == passed_bytes(BATCH, WIDTH, mesh.size, softmax=form == "softmax")
