# SPDX-License-Identifier: Apache-2.0
"""Attention by JAX's Pallas kernel for TPUs, interpreted on a CPU; tests/aot compiles it."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.refusals import refused_by
from tests.unit.models.layers.test_cudnn import H100, value_and_gradients
from tests.unit.models.tiny import TINY
from vit_jax import models
from vit_jax.devices import hardware, sharding
from vit_jax.models import DType
from vit_jax.models.layers import attention
from vit_jax.models.layers.attention import AttentionImpl, attend, check_target

TPU = hardware.Target("tpu", "TPU v5 lite")
interpreted = functools.partial(attention.pallas, interpret=True)


def drawn(queries: int, keys: int, width: int, dtype: Any, batch: int = 1) -> list[jax.Array]:
    seeds = jax.random.split(jax.random.key(queries), 3)
    sizes = zip(seeds, (queries, keys, keys), strict=True)
    return [jax.random.normal(seed, (batch, 2, n, width)).astype(dtype) for seed, n in sizes]


@pytest.mark.parametrize("dtype, atol", [(jnp.float32, 1e-5), (jnp.bfloat16, 0.03)])
@pytest.mark.parametrize("queries, keys, width", [(641, 641, 64), (256, 256, 80), (1, 197, 16)])
def test_the_kernel_equals_xla_for_any_number_of_tokens(
    queries: int, keys: int, width: int, dtype: Any, atol: float
) -> None:
    args = drawn(queries, keys, width, dtype)
    with jax.default_matmul_precision("highest"):
        found, wanted = (value_and_gradients(f, *args) for f in (interpreted, attend))
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want, atol=atol * np.abs(want).max(), rtol=0)


def test_each_device_of_a_mesh_computes_its_own_images_and_heads() -> None:
    args = drawn(129, 129, 16, jnp.float32, batch=4)
    want = attend(*args)
    mesh = sharding.make_mesh(sharding.MeshConfig(data=2, fsdp=2, tensor=2), jax.devices()[:8])
    with jax.set_mesh(mesh):
        run = jax.jit(interpreted).lower(*args).compile()
        np.testing.assert_allclose(run(*args), want, atol=1e-5)
    # One image and one head on each device.
    assert "f32[1,1,256,16]" in (run.as_text() or "")


@pytest.mark.parametrize("target", [H100, hardware.Target("cpu")])
def test_elsewhere_xla_attends_and_training_is_refused_in_one_line(target: hardware.Target) -> None:
    q = jnp.ones((1, 1, 2, 8))
    with hardware.tracing_for(target):
        np.testing.assert_array_equal(attend(q, q, q, impl=AttentionImpl.PALLAS), q)
        with refused_by("models.layers.attention.check_target", "model.attention"):
            check_target(AttentionImpl.PALLAS)


@pytest.mark.parametrize("family", ["vit", "deit", "convit", "hybrid"])
def test_it_is_chosen_only_where_it_is_asked_for(family: str) -> None:
    for impl in AttentionImpl.AUTO, AttentionImpl.PALLAS:
        cfg = dataclasses.replace(TINY[family], attention=impl, dtype=DType.BFLOAT16)
        with hardware.tracing_for(TPU):
            module, variables = models.create(cfg), models.abstract(cfg)
            image = jax.ShapeDtypeStruct((1, *models.input_shape(cfg)), jnp.float32)
            program = str(jax.make_jaxpr(module.apply)(variables, image))
        assert ("splash" in program) == (impl is AttentionImpl.PALLAS)
