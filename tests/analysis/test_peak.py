# SPDX-License-Identifier: Apache-2.0
"""The most memory a program holds at once, by hand."""

from typing import Any

import jax
import jax.numpy as jnp

from vit_jax.analysis import peak

B, D, F = 32, 8, 64
X = jax.ShapeDtypeStruct((B, D), jnp.float32)
SQUARE = jax.ShapeDtypeStruct((D, D), jnp.float32)
ROWS = B * D * 4  # bytes of x and of what a square kernel makes of it
WIDE = B * F * 4


def most(fn: Any, *args: Any) -> int:
    return peak.peak_of(jax.make_jaxpr(fn)(*args).jaxpr, peak.array_bytes)


def test_a_product_holds_what_it_reads_and_what_it_makes() -> None:
    def chain(x: Any, w: Any) -> Any:
        return (x @ w @ w @ w @ w).sum()

    assert most(chain, X, SQUARE) == 2 * ROWS


def test_elementwise_work_is_done_where_it_is_read() -> None:
    assert most(lambda x, w: (jnp.abs(x @ w) + 1).sum(), X, SQUARE) == ROWS
    # A product reads it from memory, and takes no longer what it was made of.
    assert most(lambda x, w: (jnp.abs(x @ w) @ w).sum(), X, SQUARE) == 2 * ROWS
    # An output is held by whoever runs the program.
    assert most(lambda x, w: x @ w, X, SQUARE) == 0


def test_what_is_dear_and_read_twice_is_stored() -> None:
    def twice(fn: Any) -> Any:
        def run(x: Any, w: Any) -> Any:
            z = x @ w
            y = fn(z)
            return y.sum(axis=0) @ w, (y * z).sum(axis=0) @ w

        return run

    assert most(twice(jnp.abs), X, SQUARE) < 2 * ROWS < most(twice(jnp.exp), X, SQUARE)


def test_a_gradient_holds_what_the_backward_pass_reads() -> None:
    def loss(kernels: Any, x: Any) -> Any:
        first, second = kernels
        return ((jnp.sin(x @ first) @ second) ** 2).mean()

    first = jax.ShapeDtypeStruct((D, F), jnp.float32)
    second = jax.ShapeDtypeStruct((F, D), jnp.float32)
    # The gradients of the sine and of the second product, what the cosine is made anew of, and the
    # gradient of the second kernel, which is there by then.
    assert most(jax.grad(loss), (first, second), X) == 2 * WIDE + ROWS + F * D * 4


def test_a_loop_stores_what_its_turns_hand_on_and_laid_out_it_recomputes() -> None:
    def deep(unroll: int, block: Any) -> int:
        def loss(kernels: Any, x: Any) -> Any:
            return (jax.lax.scan(block, x, kernels, unroll=unroll)[0] ** 2).mean()

        kernels = jax.ShapeDtypeStruct((6, D, D), jnp.float32)
        return most(jax.grad(loss), kernels, X)

    def block(x: Any, kernel: Any) -> Any:
        return jnp.sin(jnp.sin(x) @ kernel), None

    rolled, laid_out = deep(1, block), deep(6, block)
    kept = deep(1, jax.checkpoint(block))
    assert 6 * 3 * ROWS <= rolled < 6 * 4 * ROWS  # cos(x), sin(x), cos(sin(x) k)
    assert 6 * ROWS <= kept < 6 * 2 * ROWS + 3 * ROWS
    assert laid_out < rolled


def test_the_dearest_branch_and_keys_count() -> None:
    def branch(x: Any, w: Any) -> Any:
        return jax.lax.cond(x.sum() > 0, lambda: (x @ w @ w).sum(), lambda: 0.0)

    assert most(branch, X, SQUARE) == 2 * ROWS + 4  # the number of the branch
    assert peak.array_bytes(jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 3))) == 24
