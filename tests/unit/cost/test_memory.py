# SPDX-License-Identifier: Apache-2.0
"""Bytes by hand, over meshes that do not exist, and against XLA's own plan."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import optax
import pytest

from vit_jax.cost import memory
from vit_jax.devices import hardware, sharding

B, D, F = 32, 8, 64
KERNEL = D * F * 4  # bytes of one kernel


def loss(params, frozen, kept, batch, rng):
    """A two-layer perceptron named after a block's, so that the sharding rules apply."""
    hidden = jnp.sin(batch["x"] @ params["fc1"]["kernel"])
    if frozen is not None:
        hidden = hidden + frozen
    return jnp.mean((hidden @ params["fc2"]["kernel"]) ** 2), {}


def state(tx=None):
    params = {
        "fc1": {"kernel": jax.ShapeDtypeStruct((D, F), jnp.float32)},
        "fc2": {"kernel": jax.ShapeDtypeStruct((F, D), jnp.float32)},
    }
    opt_state = jax.eval_shape((tx or optax.adamw(1e-3)).init, params)
    return SimpleNamespace(
        params=params, model_state={}, opt_state=opt_state, ema=params, objective=None
    )


def sharded(state, mesh, num_devices):
    mesh = sharding.abstract_mesh(mesh, num_devices)

    def place(tree):
        return jax.tree.map(
            lambda leaf, s: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=s),
            tree,
            sharding.shardings(tree, mesh),
        )

    return SimpleNamespace(**{key: place(tree) for key, tree in vars(state).items()}), mesh


def batch(size=B):
    return {"x": jax.ShapeDtypeStruct((size, D), jnp.float32)}


def test_one_device():
    m = memory.estimate(state(), loss, batch())
    assert m.params == m.ema == m.gradients == 2 * KERNEL
    assert m.optimizer == 2 * 2 * KERNEL + 4  # two moments and a step count
    assert m.batch == B * D * 4
    # cos(z) for the sine, sin(z) for the second matmul's kernel, its output for the square.
    assert m.activations == (B * F + B * F + B * D) * 4
    assert m.checkpoint == m.params + m.optimizer + m.ema
    assert m.frozen == m.workspace == 0
    assert m.device_total == 2 * KERNEL * 5 + 4 + m.batch + m.activations


def test_pod_of_256_planned_here():
    placed, mesh = sharded(state(), sharding.MeshConfig(data=64, fsdp=4, tensor=1), 256)
    m = memory.estimate(placed, loss, batch(1024), axis_sizes=dict(mesh.shape))
    assert m.params == m.gradients == 2 * KERNEL // 4
    assert m.optimizer == 2 * 2 * KERNEL // 4 + 4
    assert m.batch == 1024 // 256 * D * 4
    assert m.activations == 4 * (F + F + D) * 4
    assert m.checkpoint == 8 * KERNEL + 4  # parameters, two moments, moving average: in full


def test_accumulation_trades_activations_for_a_gradient_and_sam_takes_a_copy():
    whole = memory.estimate(state(), loss, batch())
    parts = memory.estimate(state(), loss, batch(), num_microbatches=4)
    assert parts.activations == whole.activations // 4
    assert parts.gradients == 2 * whole.gradients
    assert parts.batch == whole.batch
    uphill = memory.estimate(state(), loss, batch(), uphill=True)
    assert uphill.gradients == 2 * whole.gradients


def test_frozen_parameters_and_no_average():
    no_ema = state()
    no_ema.ema = None
    m = memory.estimate(no_ema, loss, batch(), frozen=jax.ShapeDtypeStruct((1, F), jnp.float32))
    assert (m.frozen, m.ema) == (F * 4, 0)
    assert m.checkpoint == m.params + m.optimizer


def test_remat_keeps_less_and_recomputes_one_block_at_a_time():
    def deep(remat, depth):
        def block(x, kernel):
            return jnp.sin(jnp.sin(x) @ kernel), None

        def fn(params, frozen, model_state, batch, rng):
            body = jax.checkpoint(block) if remat else block
            return jnp.mean(jax.lax.scan(body, batch["x"], params)[0] ** 2), {}

        params = jax.ShapeDtypeStruct((depth, D, D), jnp.float32)
        return memory.activation_bytes(fn, params, None, {}, batch())

    x = B * D * 4
    # Plain: cos(x), sin(x), cos(sin(x) k) a block; remat: its input. The square's input besides.
    assert deep(False, 6) == 6 * 3 * x + x
    assert deep(True, 6) == 6 * x + x + 3 * x
    assert deep(True, 12) - deep(True, 6) == 6 * x


TPU = hardware.Target("tpu", "TPU v5 lite")
GPU = hardware.Target("gpu", "NVIDIA H100 80GB HBM3", (9, 0))


@pytest.mark.parametrize(
    "shape, target, elements",
    [
        # As libtpu lays them out: bf16[64,12,197,64]{2,3,1,0:T(8,128)}, the tokens in the lanes.
        ((64, 12, 197, 64), TPU, 64 * 12 * 64 * 256),
        ((64, 12, 197, 197), TPU, 64 * 12 * 200 * 256),
        ((12608, 768), TPU, 12608 * 768),
        ((64, 12, 197, 1), TPU, 64 * 16 * 256),
        ((16, 257, 104), TPU, 16 * 264 * 128),  # less than 16 * 104 * 384
        # And XLA for GPUs: bf16[24576,56,56] for the 49 tokens of a Swin's window.
        ((24576, 49, 49), GPU, 24576 * 56 * 56),
        ((64, 197, 1024), GPU, 64 * 197 * 1024),
        ((64, 12, 197, 197), hardware.Target("cpu"), 64 * 12 * 197 * 197),
    ],
)
def test_padding(shape, target, elements):
    assert memory.padded(shape, 2, target) == 2 * elements


def test_an_accelerator_has_a_blocks_gradients_in_hand():
    with hardware.tracing_for(GPU):
        m = memory.estimate(state(), loss, batch())
    # The outputs of both matmuls; there are no attention weights.
    assert m.workspace == (B * F + B * D) * 4
    assert m.device_total == memory.estimate(state(), loss, batch()).device_total + m.workspace


def test_attention_has_its_logits_gradient_in_hand_too():
    def attend(params, frozen, model_state, batch, rng):
        y = batch["x"] @ params
        return jnp.mean(jnp.matmul(y[None], y[None].swapaxes(1, 2)) ** 2), {}

    jaxpr = jax.make_jaxpr(attend)(jnp.ones((D, D)), None, {}, {"x": jnp.ones((B, D))}, None)
    found = memory.in_progress(jaxpr.jaxpr, lambda aval: aval.size, GPU)
    assert found == B * D + B * B


def test_a_tpu_has_the_logits_gradient_as_it_is_multiplied():
    def attend(y):
        sides = (((2,), (2,)), ((0,), (0,)))
        return jax.lax.dot_general(y, y, sides, preferred_element_type=jnp.float32)

    jaxpr = jax.make_jaxpr(attend)(jnp.ones((1, B, D), jnp.bfloat16)).jaxpr
    found = [
        memory.in_progress(jaxpr, lambda aval: aval.size * aval.dtype.itemsize, target)
        for target in (GPU, TPU)
    ]
    assert found == [4 * B * B, 2 * B * B]


def test_a_tpu_keeps_heads_side_by_side():
    def forward(x):
        return x.swapaxes(1, 2).reshape(2, 200, 1024)

    jaxpr = jax.make_jaxpr(forward)(jnp.ones((2, 16, 200, 64))).jaxpr
    kept = [jaxpr.eqns[0].outvars[0]]  # 2 x 200 x 16 x 64, of which a head takes 128 lanes
    shapes = [memory.held(kept, jaxpr, target)[0].shape for target in (GPU, TPU)]
    assert shapes == [(2, 200, 16, 64), (2, 200, 1024)]


def test_weights_of_fsdp_are_whole_for_two_layers():
    params = {
        "blocks": {"fc1": {"kernel": jax.ShapeDtypeStruct((12, D, F), jnp.float32)}},
        "head": {"kernel": jax.ShapeDtypeStruct((D, 3), jnp.float32)},
    }
    sizes = {"data": 2, "fsdp": 4, "tensor": 2}
    weights = D * F // 2

    def gathered(**kwargs):
        return memory.gathered_weights(params, sizes | kwargs.pop("over", {}), 2, 4, **kwargs)

    assert gathered(recomputed=False) == weights * (2 * 2 + 4)
    assert gathered(recomputed=True) == weights * (2 + 4)
    assert gathered(recomputed=False, over={"fsdp": 1}) == 0


def test_a_comparison_is_made_again_on_an_accelerator():
    def relu(params, frozen, model_state, batch, rng):
        return jnp.sum(jax.nn.relu(batch["x"] @ params)), {}

    kernel = jax.ShapeDtypeStruct((D, F), jnp.float32)
    here = memory.activation_bytes(relu, kernel, None, {}, batch())
    with hardware.tracing_for(GPU):
        there = memory.activation_bytes(relu, kernel, None, {}, batch())
    assert here - there == B * F  # a byte each


def test_a_gpu_keeps_what_is_read_in_float32_as_it_is():
    def powers(params, frozen, model_state, batch, rng):
        e = jnp.exp(batch["x"] @ params)
        y = e.astype(jnp.bfloat16)
        return jnp.sum(y * y * jnp.bfloat16(2)).astype(jnp.float32) / jnp.sum(e), {}

    kernel = jax.ShapeDtypeStruct((D, F), jnp.float32)
    narrow = memory.activation_bytes(powers, kernel, None, {}, batch())
    with hardware.tracing_for(GPU):
        wide = memory.activation_bytes(powers, kernel, None, {}, batch())
    assert narrow - wide == B * F * 2  # the cast is not stored beside it


def test_a_tpu_keeps_what_a_batch_norm_reads_in_float32():
    x, kernel = jnp.ones((B, D), jnp.bfloat16), jnp.ones((D, F), jnp.bfloat16)

    def normed(axes, x, kernel):
        wide = (x @ kernel).reshape(4, B // 4, F).astype(jnp.float32)
        return wide - jnp.mean(wide, axes, keepdims=True)

    for axes, itemsize in (((0, 1), 4), (1, 2)):  # as BatchNorm; of each example, as GroupNorm
        jaxpr = jax.make_jaxpr(functools.partial(normed, axes))(x, kernel).jaxpr
        product = jaxpr.eqns[0].outvars[0]
        assert [a.dtype.itemsize for a in memory.held([product], jaxpr, TPU)] == [itemsize]
        assert memory.held([product], jaxpr, GPU) == [product.aval]


def test_a_tpu_pads_the_channels_of_each_group():
    image, kernel = jnp.ones((2, 8, 8, 96)), jnp.ones((3, 3, 24, 192))

    def convolve(x, kernel):
        dims = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=dims, feature_group_count=4
        )

    jaxpr = jax.make_jaxpr(convolve)(image, kernel).jaxpr
    kept = [jaxpr.invars[0], jaxpr.invars[1], jaxpr.outvars[0]]
    shapes = [a.shape for a in memory.held(kept, jaxpr, TPU)]
    assert shapes == [(2, 8, 8, 4 * 128), (3, 3, 24, 192), (2, 8, 8, 4 * 128)]
    assert [a.shape for a in memory.held(kept, jaxpr, GPU)] == [v.aval.shape for v in kept]


def test_a_tensor_axis_cuts_heads_and_hidden_values():
    params = {
        "qkv": {"kernel": jax.ShapeDtypeStruct((D, 3 * D), jnp.float32)},
        "fc1": {"kernel": jax.ShapeDtypeStruct((D, F), jnp.float32)},
    }
    count = memory.counter(params, {"data": 1, "fsdp": 1, "tensor": 2})

    def size(*shape):
        return count(jax.ShapeDtypeStruct(shape, jnp.float32)) // 4

    assert size(B, D) == B * D  # the tokens, whole
    assert size(B, F) == B * F // 2
    assert size(2, 4, 7, 2) == 2 * 4 * 7 * 2 // 2  # [B, h, N, d]
    assert size(2, 4, 7, D) == 2 * 4 * 7 * D  # a Swin's map of tokens


def test_prng_keys_count_by_their_data():
    key = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 3))
    assert memory.device_bytes({"rng": key}) == 3 * 8
