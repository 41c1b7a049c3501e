# SPDX-License-Identifier: Apache-2.0
"""The tables as people read them."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from vit_jax.cost import tables
from vit_jax.cost.memory import Memory
from vit_jax.devices import sharding

PARAMS = {
    "blocks": {"mlp": {"fc1": {"kernel": jax.ShapeDtypeStruct((12, 768, 3072), jnp.float32)}}},
    "cls_token": jax.ShapeDtypeStruct((1, 1, 768), jnp.float32),
    "head": {
        "bias": jax.ShapeDtypeStruct((1000,), jnp.float32),
        "kernel": jax.ShapeDtypeStruct((768, 1000), jnp.bfloat16),
    },
}


def placed(**sizes):
    mesh = sharding.abstract_mesh(sharding.MeshConfig(**sizes), 8)
    return jax.tree.map(
        lambda leaf, s: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=s),
        PARAMS,
        sharding.shardings(PARAMS, mesh),
    )


def test_parameter_table():
    assert tables.parameter_table(PARAMS) == [
        "name                   shape             dtype           size",
        "-------------------------------------------------------------",
        "blocks/mlp/fc1/kernel  12 x (768, 3072)  float32   28,311,552",
        "cls_token              (1, 1, 768)       float32          768",
        "head/bias              (1000)            float32        1,000",
        "head/kernel            (768, 1000)       bfloat16     768,000",
        "-------------------------------------------------------------",
        "blocks                                             28,311,552",
        "cls_token                                                 768",
        "head                                                  769,000",
        "-------------------------------------------------------------",
        "total                                              29,081,320",
    ]


def test_shardings_are_shown_where_they_cut():
    lines = tables.parameter_table(placed(data=1, fsdp=4, tensor=2))
    found = {line.split()[0]: line.split("  ")[-1].strip() for line in lines[2:6]}
    assert found == {
        "blocks/mlp/fc1/kernel": "(-, fsdp, tensor)",
        "cls_token": "replicated",
        "head/bias": "(tensor)",
        "head/kernel": "(fsdp, tensor)",
    }
    assert tables.parameter_table(placed(data=8)) == tables.parameter_table(PARAMS)
    fsdp_only = tables.parameter_table(placed(data=2, fsdp=4))
    assert fsdp_only[2].endswith("(-, fsdp, -)")


def test_memory_table():
    sizes = dict.fromkeys((field.name for field in dataclasses.fields(Memory)), 2**20)
    lines = tables.memory_table(Memory(**(sizes | {"frozen": 0, "activations": 3 * 2**30})))
    assert not any(line.startswith("frozen") for line in lines)
    assert "activations, estimated      3.00 GiB" in lines
    assert "total                       3.01 GiB" in lines
    assert "checkpoint, uncompressed    1.00 MiB" in lines


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (2**40, "1.00 TiB")]
)
def test_bytes(size, text):
    assert tables.format_bytes(size) == text


def test_flops():
    assert tables.format_flops(35_127_656_448) == "35.1 GFLOP"
    assert tables.format_flops(0) == "0 FLOP"
