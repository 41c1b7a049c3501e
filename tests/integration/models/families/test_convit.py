# SPDX-License-Identifier: Apache-2.0
"""ConViT: published sizes, timm's golden, GPSA's tables, randomness, impossible configs."""

import dataclasses
import json
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import PartitionSpec as P

from tests.integration.models.families.test_cait import run, variables
from tests.unit.models.families.test_convit import GOLDEN, TABLES, golden, small
from tests.unit.models.sizes import params_and_flops
from tests.unit.models.tiny import block_config
from vit_jax import models, trees, weights
from vit_jax.devices import hardware, sharding
from vit_jax.models import ConViTConfig
from vit_jax.models.families.convit import GatedPositionalAttention, local_init
from vit_jax.models.layers.attention import AttentionImpl

TOLERANCE = 5e-5  # float32 noise is below 7e-6, swapped axes are 0.5
PUBLISHED = {
    name: row
    for name, row in json.loads((GOLDEN / "param_counts.json").read_text()).items()
    if name.startswith("convit_")
}
OURS = {"convit_tiny": "convit_ti", "convit_small": "convit_s", "convit_base": "convit_b"}


def num_params(cfg: ConViTConfig) -> int:
    return trees.num_params(models.abstract(cfg)["params"])


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_size(name: str) -> None:
    row, cfg = PUBLISHED[name], models.variant(OURS[name])
    params, flops = params_and_flops(cfg)
    assert params == row["params"]
    assert flops == pytest.approx(2e9 * row["gmacs"], rel=0.01)


@pytest.mark.parametrize("size, heads", [("ti", 4), ("s", 9), ("b", 16)])
def test_plus_has_64_per_head(size: str, heads: int) -> None:
    cfg = models.variant(f"convit_{size}_plus")
    dim = 64 * heads
    assert cfg.dim == dim
    blocks = 12 * (12 * dim**2 + 10 * dim)
    gates = 10 * (4 * heads + heads)  # pos_proj with its bias, and the gate
    embeddings = (768 + 1 + 196 + 1) * dim
    assert num_params(cfg) == blocks + gates + embeddings + 2 * dim + 1000 * dim + 1000


@pytest.mark.parametrize("scan_unroll", [0, 1])
def test_equals_timm(scan_unroll: int) -> None:
    cfg, state, arrays = golden()
    cfg.scan_unroll = scan_unroll
    apply, image = models.create(cfg).apply, jnp.asarray(arrays["input"])
    with jax.default_matmul_precision("highest"):
        out = jax.jit(apply)(weights.from_timm(state, cfg), image)
    np.testing.assert_allclose(out.logits, arrays["logits"], atol=TOLERANCE, rtol=0)
    np.testing.assert_allclose(out.features, arrays["pre_logits"], atol=TOLERANCE, rtol=0)
    np.testing.assert_allclose(out.tokens, arrays["features"], atol=TOLERANCE, rtol=0)


def test_imports_what_no_logit_shows() -> None:
    # A softmax takes away what is equal for all keys: this bias changes no output.
    cfg, state, _ = golden()
    attention = weights.from_timm(state, cfg)["params"]["local_blocks"]["attn"]
    for i in range(2):
        bias = state[f"blocks.{i}.attn.pos_proj.bias"]
        np.testing.assert_array_equal(attention["pos_proj"]["bias"][i], bias)


@pytest.mark.parametrize("heads, strength", [(4, 1.0), (9, 1.0), (4, 0.5), (11, 3.0), (3, 2.0)])
def test_local_init(heads: int, strength: float) -> None:
    key, normal = jax.random.key(0), nn.initializers.normal(0.02)
    kernel = np.asarray(local_init(normal, strength)(key, (3, heads)))
    side = math.isqrt(heads)
    if side > 1:
        expected = strength * TABLES[f"gpsa_local_init|heads={side**2},strength=1.0"]
        np.testing.assert_array_equal(kernel[:, : side**2].T, expected)
    else:
        np.testing.assert_array_equal(kernel[:, 0], [0, 0, -strength])
    # The heads past the square stay random, and are scaled like the others.
    rest = strength * normal(key, (3, heads), np.float32)[:, side**2 :]
    np.testing.assert_array_equal(kernel[:, side**2 :], rest)


def test_initial_values() -> None:
    params = variables(small(head_dim=24))["params"]
    local = params["local_blocks"]["attn"]
    np.testing.assert_array_equal(local["v"]["kernel"], np.stack([np.eye(96)] * 2))
    np.testing.assert_array_equal(local["gating_param"], np.ones((2, 4)))
    taps = TABLES["gpsa_local_init|heads=4,strength=1.0"].T
    np.testing.assert_array_equal(local["pos_proj"]["kernel"], np.stack([taps] * 2))
    for module in (local["qk"], local["proj"], params["blocks"]["attn"]["qkv"]):
        assert np.std(module["kernel"]) == pytest.approx(0.02, rel=0.05)
    for name in ("qk", "v"):
        assert "bias" not in local[name]
    assert params["pos_embed"].shape == (1, 9, 96)  # no position for the class token


def test_starts_as_a_convolution() -> None:
    # Open gates and a sharp centre leave one tap a head: head dx, dy of 3 x 3 sees the token at
    # that offset, whose values pass unchanged through v; proj is set to pass them too.
    cfg = block_config(num_heads=9, qkv_bias=False)
    module = GatedPositionalAttention(cfg, locality_strength=30.0, train=False)
    tokens = jax.random.normal(jax.random.key(0), (2, 25, 18))
    params = jax.jit(module.init)(jax.random.key(1), tokens)["params"]
    params = {**params, "gating_param": jnp.full(9, 40.0)}
    params["proj"] = {"kernel": jnp.eye(18), "bias": jnp.zeros(18)}
    out = jax.jit(module.apply)({"params": params}, tokens)
    before, after = (x.reshape(2, 5, 5, 9, 2) for x in (tokens, out))
    for head in range(9):
        dx, dy = head // 3 - 1, head % 3 - 1
        shifted = before[:, 1 + dy : 4 + dy, 1 + dx : 4 + dx, head]
        np.testing.assert_allclose(after[:, 1:4, 1:4, head], shifted, atol=1e-5)


def gpsa(impl: AttentionImpl, dtype: Any) -> tuple[Any, Any, jax.Array]:
    """Return GPSA's loss of its parameters and tokens, which weigh all outputs differently."""
    cfg = block_config(num_heads=2, dtype=dtype, attention=impl)
    module = GatedPositionalAttention(cfg, locality_strength=0.5, train=True)
    tokens = jax.random.normal(jax.random.key(0), (3, 9, 16))
    params = jax.tree.map(
        lambda x: jax.random.normal(jax.random.key(x.size), x.shape) / 2,
        jax.eval_shape(module.init, jax.random.key(1), tokens)["params"],
    )
    cotangent = jax.random.normal(jax.random.key(2), tokens.shape)

    def loss(params: Any, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = module.apply({"params": params}, tokens)
        assert isinstance(out, jax.Array)
        return (out * cotangent).sum(), out

    return loss, params, tokens


def test_content_and_position_apart_equal_their_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    # The kernel itself needs a GPU; what surrounds it does not.
    kernel, called = jax.nn.dot_product_attention, []

    def attend(*args: Any, implementation: str, **kwargs: Any) -> jax.Array:
        called.append(implementation)
        return kernel(*args, implementation="xla", **kwargs)

    monkeypatch.setattr(jax.nn, "dot_product_attention", attend)
    found = []
    for impl in (AttentionImpl.XLA, AttentionImpl.CUDNN):
        here = hardware.Target("gpu", capability=(9, 0))  # which cuDNN's kernel is meant for
        with jax.default_matmul_precision("highest"), hardware.tracing_for(here):
            loss, params, tokens = gpsa(impl, jnp.float32)
            found.append(jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(params, tokens))
    assert set(called) == {"cudnn"}
    ((_, mixed), gradients), ((_, apart), others) = found
    np.testing.assert_allclose(mixed, apart, atol=1e-5)
    assert np.abs(gradients[0]["gating_param"]).min() > 0.01
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4, rtol=1e-4), gradients, others
    )


def test_half_precision_has_no_weights_of_an_image() -> None:
    # Chosen by itself: an array [B, h, N, N] to mix in float32, none in bfloat16 but the kernel's.
    programs = []
    for dtype in (jnp.float32, jnp.bfloat16):
        loss, params, tokens = gpsa(AttentionImpl.AUTO, dtype)
        programs.append(str(jax.make_jaxpr(lambda p, x, loss=loss: loss(p, x)[1])(params, tokens)))
    by_position = "2,9,24"  # [h, N, B * d]
    assert [by_position in program for program in programs] == [False, True]


@pytest.mark.parametrize("local, stacks, tokens", [(0, {"blocks"}, 10), (7, {"local_blocks"}, 9)])
def test_one_kind_of_block_only(local: int, stacks: set, tokens: int) -> None:
    cfg = small(local_up_to_layer=local)
    tree = models.abstract(cfg)
    assert {name for name in tree["params"] if "blocks" in name} == stacks
    assert "cls_token" in tree["params"]
    image = jax.ShapeDtypeStruct((2, 12, 12, 3), np.float32)
    out = jax.eval_shape(models.create(cfg).apply, tree, image)
    assert out.tokens.shape == (2, tokens, 24)


def test_drop_path_grows_over_both_stacks() -> None:
    # Two blocks: the local one is never dropped, the last one always.
    cfg = small(depth=2, local_up_to_layer=1)
    tree = variables(cfg)
    dropped = run(dataclasses.replace(cfg, drop_path_rate=0.99999), tree, train=True)
    silent = trees.map_named(
        lambda name, x: x * 0 if "/blocks/" in name and ("proj" in name or "fc2" in name) else x,
        tree,
    )
    np.testing.assert_allclose(dropped.tokens, run(cfg, silent).tokens, atol=1e-5)


@pytest.mark.parametrize(
    "name, shape, spec",
    [
        ("local_blocks/attn/qk/kernel", (10, 64, 128), P(None, "fsdp", "tensor")),
        ("local_blocks/attn/v/kernel", (10, 64, 64), P(None, "fsdp", "tensor")),
        ("local_blocks/attn/pos_proj/kernel", (10, 3, 4), P()),
        ("local_blocks/attn/gating_param", (10, 4), P()),
    ],
)
def test_layout_over_devices(name: str, shape: tuple, spec: P) -> None:
    assert sharding.spec(name, shape, {"data": 2, "fsdp": 2, "tensor": 2}) == spec
