# SPDX-License-Identifier: Apache-2.0
"""BatchNorm: its formulas, its running statistics, the same ones on every layout."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.devices import sharding
from vit_jax.devices.sharding import MeshConfig
from vit_jax.models.layers.norm import BatchNorm

SHAPE = (16, 3, 5, 6)


def draw(seed: int = 0, shift: float = 2.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (shift + rng.normal(size=SHAPE) * np.arange(1, 7)).astype(np.float32)


def variables() -> dict[str, Any]:
    rng = np.random.default_rng(1)

    def one() -> np.ndarray:
        return rng.uniform(0.5, 2, 6).astype(np.float32)

    return {
        "params": {"scale": one(), "bias": one()},
        "batch_stats": {"mean": one(), "var": one()},
    }


def norm(train: bool, dtype: Any = jnp.float32) -> BatchNorm:
    return BatchNorm(epsilon=1e-5, dtype=dtype, train=train)


def train(before: dict[str, Any], x: Any, dtype: Any = jnp.float32) -> tuple[jax.Array, Any]:
    y, state = norm(True, dtype).apply(before, jnp.asarray(x), mutable=["batch_stats"])
    return y, state["batch_stats"]


def test_evaluation_normalises_by_the_running_statistics_and_keeps_them() -> None:
    before, x = variables(), draw()
    y, state = norm(False).apply(before, jnp.asarray(x), mutable=["batch_stats"])
    params, old = before["params"], before["batch_stats"]
    expected = (x - old["mean"]) / np.sqrt(old["var"] + 1e-5) * params["scale"] + params["bias"]
    np.testing.assert_allclose(y, expected, atol=5e-6)
    jax.tree.map(np.testing.assert_array_equal, state["batch_stats"], old)


def test_initialising_leaves_zero_mean_and_unit_variance() -> None:
    for is_training in (False, True):
        made = norm(is_training).init(jax.random.key(0), jnp.asarray(draw()))
        assert jax.tree.map(lambda leaf: set(leaf.tolist()), made) == {
            "params": {"scale": {1.0}, "bias": {0.0}},
            "batch_stats": {"mean": {0.0}, "var": {1.0}},
        }


def test_variance_survives_a_large_mean() -> None:
    x = draw(shift=3000.0)
    _, after = train(variables(), x)
    true = x.astype(np.float64).var(axis=(0, 1, 2), ddof=1)
    # One pass over the data, E[x^2] - E[x]^2, would keep no digit of it.
    mine = (after["var"] - 0.9 * variables()["batch_stats"]["var"]) / 0.1
    np.testing.assert_allclose(mine, true, rtol=1e-4)


def test_bfloat16_activations_have_float32_statistics() -> None:
    x = jnp.asarray(draw()).astype(jnp.bfloat16)
    y, after = train(variables(), x, jnp.bfloat16)
    assert y.dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves(after)} == {jnp.dtype("float32")}
    _, exact = train(variables(), x.astype(jnp.float32))
    jax.tree.map(np.testing.assert_array_equal, after, exact)


def test_one_value_a_channel_is_finite() -> None:
    y, after = train(variables(), np.ones((1, 1, 1, 6), np.float32))
    np.testing.assert_allclose(y.reshape(-1), variables()["params"]["bias"])
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after))


@pytest.mark.parametrize(
    "mesh",
    [
        MeshConfig(),
        MeshConfig(data=1, fsdp=8),
        MeshConfig(data=4, tensor=2),
        MeshConfig(data=2, fsdp=2, tensor=2),
    ],
    ids=["data", "fsdp", "tensor", "mixed"],
)
def test_statistics_are_of_the_global_batch(mesh: MeshConfig) -> None:
    # Every device's part has a mean of its own.
    x = draw() + 10 * np.arange(16, dtype=np.float32).reshape(-1, 1, 1, 1)

    def run(devices: Any, before: Any, x: Any) -> Any:
        def loss(params: Any) -> tuple[jax.Array, Any]:
            y, state = norm(True).apply({**before, "params": params}, x, mutable=["batch_stats"])
            return (jnp.sin(y) * x).mean(), (y, state)

        with jax.set_mesh(devices):
            return jax.jit(jax.value_and_grad(loss, has_aux=True))(before["params"])

    laid = sharding.make_mesh(mesh)
    batch = sharding.global_batch({"x": x}, laid, batch_size=len(x))["x"]
    assert not batch.is_fully_replicated
    one = run(sharding.make_mesh(MeshConfig(), jax.devices()[:1]), variables(), jnp.asarray(x))
    many = run(laid, variables(), batch)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), many, one)
