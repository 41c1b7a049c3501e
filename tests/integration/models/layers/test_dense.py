# SPDX-License-Identifier: Apache-2.0
"""Projections to the parts of every head: the form for TPUs equals the other, parameters too."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.unit.models.tiny import TINY
from vit_jax import models
from vit_jax.devices import hardware
from vit_jax.models.layers.dense import HeadsDense

TPU = hardware.Target("tpu", "TPU v5 lite")
NORMAL = jax.nn.initializers.normal(1.0)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("parts", [2, 3])
def test_columns_are_head_then_part_on_every_target(parts: int, bias: bool) -> None:
    x = jax.random.normal(jax.random.key(0), (2, 5, 8))
    dense = HeadsDense(
        parts * 12, jnp.float32, NORMAL, NORMAL, use_bias=bias, num_heads=4, parts=parts
    )
    variables: Any = dense.init(jax.random.key(1), x)
    kernel = variables["params"]["kernel"].reshape(8, 4, parts, 3)
    want = np.einsum("bni,ihpd->pbhnd", x, kernel)
    if bias:
        want += (
            variables["params"]["bias"].reshape(4, parts, 3).transpose(1, 0, 2)[:, None, :, None]
        )
    for target in (hardware.Target("cpu"), TPU):
        with hardware.tracing_for(target):
            found: Any = dense.apply(variables, x)
        np.testing.assert_allclose(np.stack(found), want, atol=1e-5)


@pytest.mark.parametrize("family", ["vit", "cait", "convit"])
def test_a_tpus_program_has_the_same_parameters_outputs_and_gradients(family: str) -> None:
    cfg, found = TINY[family], []
    image = jax.random.normal(jax.random.key(0), (2, *models.input_shape(cfg)))
    for target in (hardware.Target("cpu"), TPU):
        with hardware.tracing_for(target), jax.default_matmul_precision("highest"):
            module = models.create(cfg)
            draw = jax.jit(lambda key, module=module: models.init(module, cfg, key)[0])
            params = draw(jax.random.key(1))

            def loss(params: Any, module: Any = module) -> jax.Array:
                out = module.apply({"params": params}, image)
                return (out.features**2).sum() + jnp.sin(out.tokens).sum()

            found.append((params, *jax.jit(jax.value_and_grad(loss))(params)))
            relaid = "bni,ihd->bhnd" in jax.jit(loss).lower(params).as_text(debug_info=True)
            assert relaid == (target is TPU)
    for here, there in zip(*found, strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), here, there)
