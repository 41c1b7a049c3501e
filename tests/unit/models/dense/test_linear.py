# SPDX-License-Identifier: Apache-2.0
"""The linear head of depth against its equation in numpy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.models.dense.linear import LinearDepth


def test_depths_are_weighted_bins() -> None:
    rng = np.random.default_rng(0)
    x, kernel = rng.normal(size=(2, 3, 4, 5)), rng.normal(size=(5, 8))
    mean, var = rng.normal(size=5), rng.uniform(1, 2, size=5)
    bias = rng.normal(size=8)
    variables: Any = {
        "params": {
            "norm": {"scale": np.full(5, 2.0), "bias": np.ones(5)},
            "conv": {"kernel": kernel, "bias": bias},
        },
        "batch_stats": {"norm": {"mean": mean, "var": var}},
    }
    variables = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), variables)
    found: Any = LinearDepth(8, 0.5, 4.0).apply(variables, jnp.asarray(x, jnp.float32))
    normal = 2 * (x - mean) / np.sqrt(var + 1e-5) + 1
    weights = np.maximum(normal @ kernel + bias, 0) + 0.1
    wanted = (weights / weights.sum(axis=-1, keepdims=True)) @ np.linspace(0.5, 4.0, 8)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_it_starts_in_the_middle_and_keeps_statistics() -> None:
    head, x = LinearDepth(256, 0.001, 10.0, train=True), jnp.ones((1, 2, 2, 3))
    variables = head.init(jax.random.key(0), x)
    out: Any = head.apply(variables, x, mutable=["batch_stats"])
    found, state = out
    np.testing.assert_allclose(found, 5.0005, rtol=1e-4)
    np.testing.assert_allclose(state["batch_stats"]["norm"]["mean"], 0.1, rtol=1e-5)
