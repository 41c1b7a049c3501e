# SPDX-License-Identifier: Apache-2.0
"""Token merging beside the algorithm written out in loops over NumPy arrays (arXiv:2210.09461)."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from tests.unit.models.layers.test_token_merging import small
from tests.unit.models.tiny import TINY
from vit_jax import models
from vit_jax.cost.flops import forward_flops
from vit_jax.errors import UserError
from vit_jax.models.layers import attention
from vit_jax.models.layers.drop import DropPathRule
from vit_jax.models.layers.pool import Pool
from vit_jax.models.layers.posemb import PosEmbed
from vit_jax.models.layers.token_merging import log_sizes, merge

RNG = np.random.default_rng(0)
MERGE = jax.jit(merge, static_argnums=(3, 4))


def merged_by_loops(
    x: np.ndarray, sizes: np.ndarray, keys: np.ndarray, r: int, num_prefix: int
) -> tuple[np.ndarray, np.ndarray]:
    """Merge the tokens [N, D] of one image."""
    patches = range(num_prefix, len(x))
    a = [i for i in patches if i % 2 == 0]
    b = [i for i in patches if i % 2 == 1]
    unit = keys / np.sqrt((keys**2).sum(axis=1, keepdims=True))
    edges = []
    for i in a:
        cosines = [unit[i] @ unit[j] for j in b]
        best = max(range(len(b)), key=lambda place: cosines[place])
        edges.append((cosines[best], i, b[best]))
    edges.sort(key=lambda edge: -edge[0])  # stable
    r = min(r, len(patches) // 2)
    into: dict[int, list[int]] = {j: [j] for j in b}
    for _, i, j in edges[:r]:
        into[j].append(i)
    left = [i for _, i, _ in edges[r:]]
    alone = [*range(num_prefix), *sorted(left)] if num_prefix else left
    groups = [[i] for i in alone] + [into[j] for j in b]
    total = [sizes[group].sum() for group in groups]
    mean = [
        (x[group] * sizes[group, None]).sum(axis=0) / size
        for group, size in zip(groups, total, strict=True)
    ]
    return np.stack(mean), np.array(total)


@pytest.mark.parametrize(
    "num_tokens, num_prefix, r",
    [(17, 1, 8), (17, 2, 3), (17, 2, 100), (12, 0, 4), (13, 5, 3), (3, 1, 1)],
)
def test_merging_is_that_of_the_loops(num_tokens: int, num_prefix: int, r: int) -> None:
    x = RNG.normal(size=(3, num_tokens, 6)).astype(np.float32)
    keys = RNG.normal(size=(3, num_tokens, 4)).astype(np.float32)
    sizes = RNG.integers(1, 5, (3, num_tokens)).astype(np.float32)
    sizes[:, :num_prefix] = 1
    got, got_sizes = MERGE(jnp.asarray(x), jnp.asarray(sizes), jnp.asarray(keys), r, num_prefix)
    for i in range(3):
        want, want_sizes = merged_by_loops(x[i], sizes[i], keys[i], r, num_prefix)
        np.testing.assert_allclose(got[i], want, atol=1e-6)
        np.testing.assert_array_equal(got_sizes[i], want_sizes)
    np.testing.assert_array_equal(got[:, :num_prefix], x[:, :num_prefix])
    np.testing.assert_array_equal(got_sizes.sum(axis=1), sizes.sum(axis=1))
    assert got.shape[1] == num_tokens - min(r, (num_tokens - num_prefix) // 2)


def test_of_equals_the_first_merges_and_the_first_receives() -> None:
    x = np.arange(8, dtype=np.float32)[:, None]
    # The cosines are exactly 1 or 0; the prefix is as alike, and stays.
    keys = np.eye(3, dtype=np.float32)[[0, 0, 0, 0, 0, 0, 1, 2]] * 3
    for num_prefix in (0, 2):
        got, sizes = MERGE(jnp.asarray(x)[None], None, jnp.asarray(keys)[None], 2, num_prefix)
        want, want_sizes = merged_by_loops(x, np.ones(8), keys, 2, num_prefix)
        np.testing.assert_array_equal(got[0], want)
        assert sizes is not None
        np.testing.assert_array_equal(sizes[0], want_sizes)


def norm(x: np.ndarray, p: dict[str, np.ndarray]) -> np.ndarray:
    centred = x - x.mean(axis=-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-6)
    return centred / deviation * p["scale"] + p["bias"]


def dense(x: np.ndarray, p: dict[str, np.ndarray]) -> np.ndarray:
    return x @ p["kernel"] + p["bias"]


def encoded_by_loops(
    x: np.ndarray, blocks: Any, cfg: models.ViTConfig, num_prefix: int
) -> tuple[np.ndarray, np.ndarray]:
    """Run the blocks over the tokens [N, D] of one image."""
    erf = np.vectorize(math.erf)
    sizes, width = np.ones(len(x)), cfg.dim // cfg.num_heads
    for layer in range(cfg.depth):
        p = jax.tree.map(lambda leaf, layer=layer: leaf[layer], blocks)
        qkv = dense(norm(x, p["norm1"]), p["attn"]["qkv"])
        heads, keys = [], []
        for h in range(cfg.num_heads):
            q, k, v = (qkv[:, (3 * h + i) * width :][:, :width] for i in range(3))
            # A token of size s is s tokens.
            weights = np.exp(q @ k.T / math.sqrt(width)) * sizes
            heads.append(weights / weights.sum(axis=1, keepdims=True) @ v)
            keys.append(k)
        x = x + dense(np.concatenate(heads, axis=1), p["attn"]["proj"])
        x, sizes = merged_by_loops(x, sizes, np.mean(keys, axis=0), cfg.token_merging, num_prefix)
        y = dense(norm(x, p["norm2"]), p["mlp"]["fc1"])
        x = x + dense(y * (1 + erf(y / math.sqrt(2))) / 2, p["mlp"]["fc2"])
    return x, sizes


def embedded(image: np.ndarray, params: Any) -> np.ndarray:
    """Return the tokens [N, D] of an image of 3 x 5 patches, class and other tokens first."""
    patches = image.reshape(3, 4, 5, 4, 3).transpose(0, 2, 1, 3, 4).reshape(15, 48)
    kernel = params["patch_embed"]["kernel"].reshape(48, -1)
    x = dense(patches, {"kernel": kernel, "bias": params["patch_embed"]["bias"]})
    names = ("cls_token", "dist_token", "reg_token")
    prefix = [params[name][0] for name in names if name in params]
    return np.concatenate([*prefix, x]) + params["pos_embed"][0]


def drawn(cfg: models.ViTConfig, batch: int = 2) -> tuple[Any, jax.Array]:
    """Return parameters of some size everywhere, and images."""
    shapes = models.abstract(cfg)["params"]
    params = jax.tree.map(lambda s: jnp.asarray(RNG.normal(0, 0.3, s.shape), jnp.float32), shapes)
    image = RNG.normal(size=(batch, *models.input_shape(cfg))).astype(np.float32)
    return params, jnp.asarray(image)


@pytest.mark.parametrize(
    "fields, num_prefix",
    [
        ({"token_merging": 2, "num_registers": 2}, 3),
        ({"token_merging": 7, "distilled": True}, 2),
        ({"token_merging": 3, "num_registers": 1, "class_token": False, "pool": Pool.GAP}, 1),
        ({"token_merging": 3, "class_token": False, "pool": Pool.GAP}, 0),
    ],
    ids=["cls", "distilled", "register", "gap"],
)
def test_forward_pass_is_that_of_the_loops(fields: dict[str, Any], num_prefix: int) -> None:
    cfg = small(**fields)
    params, image = drawn(cfg)
    out = jax.jit(models.create(cfg).apply)({"params": params}, image)
    params = jax.tree.map(np.asarray, params)
    for i in range(2):
        x = embedded(np.asarray(image[i], np.float64), params)
        x, sizes = encoded_by_loops(x, params["blocks"], cfg, num_prefix)
        x = norm(x, params["norm"])
        np.testing.assert_allclose(out.tokens[i], x, atol=2e-4)
        assert sizes.sum() == num_prefix + 15
        if cfg.pool is Pool.GAP:
            mean = sizes[num_prefix:] @ x[num_prefix:] / 15
            np.testing.assert_allclose(out.features[i], mean, atol=2e-4)
        elif not cfg.distilled:
            np.testing.assert_array_equal(out.features[i], out.tokens[i, 0])


def test_sizes_are_never_left_to_a_kernel_that_ignores_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    q, k, v = (jnp.asarray(RNG.normal(size=(1, 2, 3, 4)), jnp.float32) for _ in range(3))
    sizes = jnp.asarray([[1.0, 3, 2]])
    want = attention.attend(q, k, v, bias=log_sizes(sizes))
    monkeypatch.setattr(attention, "_choose", lambda *_: attention.AttentionImpl.CUDNN)
    np.testing.assert_array_equal(attention.attend(q, k, v, bias=log_sizes(sizes)), want)


def test_attention_pooling_counts_merged_twins_as_two() -> None:
    cfg = small(image_size=(4, 32), depth=1, pool=Pool.MAP, class_token=False)
    cfg.pos_embed = PosEmbed.NONE
    params, _ = drawn(cfg)
    patches = np.repeat(RNG.normal(size=(2, 4, 4, 4, 3)), 2, axis=1).astype(np.float32)
    # Two of a kind but for one patch, which stands alone in B: not all sizes are equal.
    patches[:, 0] = RNG.normal(size=(2, 4, 4, 3))
    image = jnp.asarray(patches.transpose(0, 2, 1, 3, 4).reshape(2, 4, 32, 3))
    want = jax.jit(models.create(cfg).apply)({"params": params}, image)
    cfg.token_merging = 3
    got = jax.jit(models.create(cfg).apply)({"params": params}, image)
    assert got.tokens.shape == (2, 5, 16)
    np.testing.assert_allclose(got.logits, want.logits, atol=1e-5)


def test_without_merging_no_operation_of_it_is_traced() -> None:
    def operations(cfg: models.ViTConfig) -> str:
        image = jnp.zeros((2, *models.input_shape(cfg)))
        return str(jax.make_jaxpr(models.create(cfg).apply)(models.abstract(cfg), image))

    for pool in (Pool.CLS, Pool.GAP, Pool.MAP):
        with_merging = operations(small(pool=pool, token_merging=2))
        without = operations(small(pool=pool))
        for name in (" sort[", " argmax[", " log ", " gather["):
            assert name in with_merging
            assert name not in without
        assert " scan[" in without
        assert " scan[" not in with_merging


def test_blocks_in_a_loop_that_merge_nothing_are_the_plain_stack() -> None:
    cfg = small(
        dynamic_image_size=True, token_merging=1, pos_embed=PosEmbed.SINCOS2D, layer_scale=0.5
    )
    cfg.qk_norm, cfg.qkv_bias = True, False
    params, image = drawn(cfg)
    plain = models.create(dataclasses.replace(cfg, token_merging=0))
    one_patch = image[:, :4, :4]
    want = jax.jit(plain.apply)({"params": params}, one_patch)
    got = jax.jit(models.create(cfg).apply)({"params": params}, one_patch)
    np.testing.assert_allclose(got.logits, want.logits, atol=1e-5)


def test_parameters_are_the_plain_models_own() -> None:
    cfg = small(distilled=True)
    merging = dataclasses.replace(cfg, token_merging=3)
    key = jax.random.key(0)
    a, b = (jax.jit(lambda c=c: models.init(models.create(c), c, key)[0])() for c in (cfg, merging))
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_flops_are_those_of_the_tokens_that_are_left() -> None:
    cfg, r = small(token_merging=4), 4
    dim, hidden = cfg.dim, cfg.mlp_dim
    total, tokens = 2 * 15 * 48 * dim + 2 * dim * 5, 16  # patches and head
    for left in (12, 8, 5):  # half of seven patches is three
        merged = min(r, (tokens - 1) // 2)
        in_b = tokens // 2
        in_a = tokens - 1 - in_b
        total += 2 * tokens * dim * 4 * dim + 2 * 2 * tokens**2 * dim  # attention
        total += 2 * in_a * in_b * dim // cfg.num_heads + 2 * in_b * merged * dim
        total += 2 * left * dim * 2 * hidden
        tokens -= merged
        assert tokens == left
    assert forward_flops(models.create(cfg), (12, 20)) == total
    assert total < forward_flops(models.create(small()), (12, 20))


def test_training_reaches_every_parameter_and_draws_each_layer_apart() -> None:
    cfg = small(drop_path_rate=0.5, drop_path_rule=DropPathRule.CONSTANT, token_merging=2, depth=2)
    cfg.remat = models.Remat.DOTS
    params, image = drawn(cfg)

    module = models.create(cfg)

    def loss(params: Any) -> jax.Array:
        many = jnp.broadcast_to(image[:1], (32, *image.shape[1:]))
        rngs = {"dropout": jax.random.key(1)}
        logits = module.apply({"params": params}, many, train=True, rngs=rngs).logits
        return jnp.square(logits).mean(), logits

    grads, logits = jax.jit(jax.grad(loss, has_aux=True))(params)
    for path, leaf in jax.tree_util.tree_leaves_with_path(grads):
        assert np.isfinite(leaf).all()
        assert np.abs(leaf).max() > 0, path
    # Two branches of one layer, or of both alike, would leave four kinds of outputs.
    assert len(np.unique(np.asarray(logits).round(4), axis=0)) > 4


def test_gradient_is_the_slope() -> None:
    x = jnp.asarray(RNG.normal(size=(1, 7, 3)), jnp.float32)
    keys = jnp.asarray(RNG.normal(size=(1, 7, 3)), jnp.float32)
    sizes = jnp.asarray([[1.0, 2, 1, 3, 1, 1, 2]])
    step = jnp.asarray(RNG.normal(size=x.shape), jnp.float32)

    @jax.jit
    def total(x: jax.Array) -> jax.Array:
        return jnp.sin(merge(x, sizes, keys, 2, 1)[0]).sum()

    slope = (total(x + 1e-2 * step) - total(x - 1e-2 * step)) / 2e-2
    np.testing.assert_allclose((jax.grad(total)(x) * step).sum(), slope, rtol=1e-3)


def test_exports_with_a_symbolic_batch() -> None:
    cfg = small(token_merging=3, depth=2)
    params, image = drawn(cfg, batch=3)
    module = models.create(cfg)
    (batch,) = export.symbolic_shape("b")
    shape = jax.ShapeDtypeStruct((batch, *image.shape[1:]), jnp.float32)
    forward = jax.jit(lambda image: module.apply({"params": params}, image).logits)
    exported = export.export(forward)(shape)
    np.testing.assert_allclose(exported.call(image), forward(image), atol=1e-4)
    np.testing.assert_allclose(exported.call(image[:1]), forward(image)[:1], atol=1e-4)


def test_hybrids_merge_too() -> None:
    cfg = dataclasses.replace(TINY["hybrid"], image_size=(32, 32), token_merging=3)
    image = jax.ShapeDtypeStruct((2, *models.input_shape(cfg)), jnp.float32)
    out = jax.eval_shape(models.create(cfg).apply, models.abstract(cfg), image)
    plain = dataclasses.replace(cfg, token_merging=0)
    before = jax.eval_shape(models.create(plain).apply, models.abstract(cfg), image)
    assert out.tokens.shape[1] < before.tokens.shape[1]
    with pytest.raises(UserError, match="half of the"):
        models.create(dataclasses.replace(cfg, token_merging=100))


def test_attention_weights_of_merged_tokens_are_refused() -> None:
    cfg = small(token_merging=2)
    params, image = drawn(cfg)
    with pytest.raises(UserError, match="token_merging=0"):
        models.captured(models.create(cfg), {"params": params}, image)
