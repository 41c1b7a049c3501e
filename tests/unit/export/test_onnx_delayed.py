# SPDX-License-Identifier: Apache-2.0
"""What is not written at once needs fewer nodes, and means the same."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.export import onnx as export_onnx
from vit_jax.export import onnx_delayed
from vit_jax.export.onnx_delayed import Product, Reshaped

RNG = np.random.default_rng(0)
KERNEL, SHIFT, SCALE = (RNG.normal(size=s).astype(np.float32) for s in ((4, 6), (1, 6), (1, 6)))


def written(function: Callable[..., Any], *shape: int) -> tuple[list[Any], Any]:
    """Return what is left of a program of lax operations, and the program as it is to be."""
    traced = jax.make_jaxpr(function)(jnp.zeros(shape))
    left: list[Any] = []

    def plain(x: jax.Array) -> list[Any]:
        left.extend(export_onnx._evaluate(traced.jaxpr, traced.consts, [x]))
        return [*map(onnx_delayed.whole, left)]

    return left, jax.make_jaxpr(plain)(jnp.zeros(shape))


def ops(program: Any) -> list[str]:
    return [e.params.get("op", e.primitive.name) for e in program.jaxpr.eqns]


@pytest.mark.parametrize("name", ["add", "sub", "from", "mul", "div", "all"])
def test_a_product_takes_up_what_scales_and_shifts_its_channels(name: str) -> None:
    apply = {
        "add": lambda y: y + SHIFT,
        "sub": lambda y: y - SHIFT,
        "from": lambda y: SHIFT - y,
        "mul": lambda y: y * SCALE,
        "div": lambda y: y / SCALE,
        "all": lambda y: ((y + SHIFT) * SCALE - 2.0) / SHIFT,
    }[name]
    x = RNG.normal(size=(3, 4)).astype(np.float32)
    (left,), program = written(lambda x: apply(x @ KERNEL), 3, 4)
    assert isinstance(left, Product)
    bias = 0 if left.bias is None else left.bias
    np.testing.assert_allclose(x @ left.kernel + bias, apply(x @ KERNEL), rtol=1e-5, atol=1e-6)
    assert ops(program) == ["MatMul", "Add"] if name not in ("mul", "div") else ["MatMul"]


def test_what_is_read_twice_is_written_once() -> None:
    def twice(x: jax.Array) -> jax.Array:
        y = x @ KERNEL
        return (y + SHIFT) * (y * SCALE)

    _, program = written(twice, 3, 4)
    assert ops(program).count("MatMul") == 1


def test_the_last_of_several_reshapes_counts() -> None:
    (left,), program = written(lambda x: x.reshape(6, 2).reshape(2, 6).reshape(4, 3), 3, 4)
    assert isinstance(left, Reshaped)
    assert ops(program) == ["Reshape"]
    (left,), program = written(lambda x: x.reshape(6, 2).reshape(3, 4), 3, 4)
    assert ops(program) == []


def test_rows_keep_the_axes_of_their_images() -> None:
    def flat(x: jax.Array) -> jax.Array:
        rows = x.reshape(-1, 4)
        return (rows + (rows @ KERNEL) @ KERNEL.T).reshape(x.shape)

    _, program = written(flat, 2, 3, 4)
    assert ops(program) == ["MatMul", "MatMul", "Add"]
    assert {e.outvars[0].aval.ndim for e in program.jaxpr.eqns} == {3}
