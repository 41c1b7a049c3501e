# SPDX-License-Identifier: Apache-2.0
"""The head of self-distillation against its layers written out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

from vit_jax.models.decoder import ProjectionHead


@pytest.mark.parametrize("unit", [True, False])
def test_layers_by_hand(unit: bool) -> None:
    head = ProjectionHead(6, 4, 3, 5, unit, jnp.float32)
    x = np.random.default_rng(0).normal(size=(3, 8))
    params = head.init(jax.random.key(0), jnp.asarray(x, jnp.float32))["params"]
    params = jax.tree.map(lambda p: p * 10, params)  # out of the linear part of the GELU
    w = jax.tree.map(lambda p: np.asarray(p, np.float64), params)
    y = x
    for layer in ("fc1", "fc2"):
        y = y @ w[layer]["kernel"] + w[layer]["bias"]
        y = y * 0.5 * (1 + erf(y / np.sqrt(2)))
    y = y @ w["fc3"]["kernel"] + w["fc3"]["bias"]
    y /= np.linalg.norm(y, axis=-1, keepdims=True)
    prototypes = w["prototypes"]["kernel"]
    if unit:
        prototypes /= np.linalg.norm(prototypes, axis=0, keepdims=True)
    found = head.apply({"params": params}, jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(found, y @ prototypes, atol=2e-6)


def test_a_feature_of_zero_has_a_gradient() -> None:
    head = ProjectionHead(6, 4, 1, 5, True, jnp.float32)
    x = jnp.zeros((2, 8))
    params = head.init(jax.random.key(0), x)["params"]
    grads = jax.grad(lambda p: head.apply({"params": p}, x).sum())(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))
