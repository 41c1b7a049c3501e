# SPDX-License-Identifier: Apache-2.0
"""FLOPs against hand counts and against the published table (timm 1.0, torch's flop counter)."""

import jax
import jax.numpy as jnp
import pytest

from vit_jax.cost import flops


def spec(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def test_matmul_and_batched_einsum():
    assert flops.count(jnp.matmul, spec(3, 5), spec(5, 7)) == 2 * 3 * 5 * 7

    def scores(q, k):
        return jnp.einsum("bqhd,bkhd->bhqk", q, k)

    assert flops.count(scores, spec(2, 3, 4, 5), spec(2, 6, 4, 5)) == 2 * 2 * 4 * 3 * 6 * 5


def test_work_has_the_bytes_of_operands_and_results_and_the_calls():
    found = flops.work(jnp.matmul, spec(3, 5), spec(5, 7))
    assert found == flops.Work(2 * 3 * 5 * 7, 4 * (15 + 35 + 21), 1) == flops.matmul(3, 5, 7, 4)
    half = jax.ShapeDtypeStruct((3, 5), jnp.bfloat16), jax.ShapeDtypeStruct((5, 7), jnp.bfloat16)
    assert flops.work(jnp.matmul, *half) == flops.matmul(3, 5, 7, 2)
    batched = flops.work(lambda a, b: a @ b, spec(2, 3, 5), spec(2, 5, 7))
    assert batched == flops.matmul(3, 5, 7, 4, batch=2)

    def scanned(x):
        return jax.lax.scan(lambda c, _: (c @ c, None), x, None, length=5)[0]

    assert flops.work(scanned, spec(4, 4)) == flops.Work().plus(flops.matmul(4, 4, 4, 4), 5)


@pytest.mark.parametrize("groups", [1, 4])
def test_convolution(groups):
    def conv(x, kernel):
        return jax.lax.conv_general_dilated(
            x,
            kernel,
            (2, 2),
            "VALID",
            feature_group_count=groups,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )

    count = flops.count(conv, spec(2, 8, 8, 8), spec(2, 2, 8 // groups, 12))
    assert count == 2 * (2 * 4 * 4 * 12) * (2 * 2 * 8 // groups)


def test_control_flow():
    once = 2 * 4**3

    def scanned(x):
        return jax.lax.scan(lambda c, _: (c @ c, None), x, None, length=5)[0]

    def branches(x):
        return jax.lax.cond(x[0, 0] > 0, lambda x: x @ x @ x, lambda x: x @ x, x)

    def loop(x):
        return jax.lax.while_loop(lambda x: x[0, 0] > 0, lambda x: x @ x, x)

    def nested(x):
        return jax.jit(jax.checkpoint(lambda x: scanned(x @ x)))(x)

    assert flops.count(scanned, spec(4, 4)) == 5 * once
    assert flops.count(branches, spec(4, 4)) == 2 * once
    assert flops.count(loop, spec(4, 4)) == once
    assert flops.count(nested, spec(4, 4)) == 6 * once


def test_custom_gradients_count_their_forward_once():
    @jax.custom_vjp
    def f(x):
        return x @ x

    f.defvjp(lambda x: (x @ x, x), lambda x, g: (g @ x.T + x.T @ g,))
    assert flops.count(f, spec(4, 4)) == 2 * 4**3
    assert flops.count(jax.nn.relu, spec(4, 4)) == 0  # a custom_jvp


def test_gradient_of_a_matmul_is_two_more():
    def loss(x, w):
        return jnp.sum(jnp.tanh(x @ w))

    gradient = jax.grad(loss, argnums=(0, 1))
    forward = flops.count(loss, spec(3, 5), spec(5, 7))
    assert flops.count(gradient, spec(3, 5), spec(5, 7)) == flops.train_flops(forward)


def test_fused_attention_counts_its_hidden_matmuls(monkeypatch):
    """cuDNN's kernel is one opaque operation; traced here as if a GPU were present."""
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91500)
    monkeypatch.setattr(cudnn, "check_compute_capability", lambda _: True)
    monkeypatch.setattr(cudnn, "is_cuda_compute_capability_equal", lambda _: True)
    query = jax.ShapeDtypeStruct((2, 16, 4, 64), jnp.bfloat16)

    def attend(implementation):
        return lambda q: jax.nn.dot_product_attention(q, q, q, implementation=implementation)

    forward = flops.count(attend("cudnn"), query)
    assert forward == flops.count(attend("xla"), query) == 2 * 2 * (2 * 4 * 16 * 16 * 64)
    total = flops.count(jax.grad(lambda q: attend("cudnn")(q).sum().astype(jnp.float32)), query)
    assert total == forward + forward * 5 // 2  # the backward kernel computes q k^T again
