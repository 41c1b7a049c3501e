# SPDX-License-Identifier: Apache-2.0
"""What layers record of a pass is what they compute."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.unit.models.tiny import block_config
from tests.unit.weights.runs import make_state
from vit_jax import models
from vit_jax.models.families import cait, convit
from vit_jax.models.layers import pool, window
from vit_jax.models.layers.init import Init


def softmax(x: np.ndarray) -> np.ndarray:
    x = np.exp(x - x.max(axis=-1, keepdims=True))
    return x / x.sum(axis=-1, keepdims=True)


def test_a_vit_block_with_class_token_records_its_attention():
    cfg = models.variant(
        "vit_mu16", patch=(4, 4), image_size=(8, 12), channels=1, num_classes=3, dim=8, depth=1
    )
    variables = {"params": jax.tree.map(lambda leaf: 0.3 * leaf, make_state(cfg, 0).params)}
    image = np.random.default_rng(0).normal(size=(1, 8, 12, 1)).astype(np.float32)
    look = jax.jit(lambda v, x: models.captured(models.create(cfg), v, x))
    _, seen = look(variables, jnp.asarray(image))

    params = jax.tree.map(np.asarray, variables["params"])
    block = jax.tree.map(lambda leaf: leaf[0], params["blocks"])
    cuts = [
        image[0, y : y + 4, x : x + 4].reshape(-1) for y in range(0, 8, 4) for x in range(0, 12, 4)
    ]
    kernel = params["patch_embed"]["kernel"].reshape(16, 8)
    x = np.stack(cuts) @ kernel + params["patch_embed"]["bias"]
    x = np.concatenate([params["cls_token"][0], x]) + params["pos_embed"][0]
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + cfg.norm_eps)
    x = x * block["norm1"]["scale"] + block["norm1"]["bias"]
    qkv = x @ block["attn"]["qkv"]["kernel"] + block["attn"]["qkv"]["bias"]
    for head in range(2):
        q, k, _ = qkv[:, 12 * head : 12 * (head + 1)].reshape(7, 3, 4).transpose(1, 0, 2)
        found = seen["blocks/attn/weights"][0, 0, head]
        np.testing.assert_allclose(found, softmax(q @ k.T / 2), rtol=2e-5, atol=1e-6)


def test_map_pooling_records_the_attention_of_its_query():
    rng = np.random.default_rng(0)
    layer = pool.MapPool(block_config(num_heads=2, init=Init.JAX))
    x = rng.normal(size=(1, 5, 8)).astype(np.float32)
    shapes = jax.eval_shape(layer.init, jax.random.key(0), jnp.asarray(x))["params"]
    params = jax.tree.map(lambda s: rng.normal(size=s.shape).astype(np.float32) / 2, shapes)
    held = {"params": jax.tree.map(jnp.asarray, params)}
    _, state = layer.apply(held, jnp.asarray(x), mutable=["intermediates"])
    q = params["latent"][0] @ params["q"]["kernel"] + params["q"]["bias"]
    kv = x[0] @ params["kv"]["kernel"] + params["kv"]["bias"]
    for head in range(2):
        k = kv[:, 8 * head : 8 * head + 4]
        expected = softmax(q[:, 4 * head : 4 * head + 4] @ k.T / 2)
        found = state["intermediates"]["weights"][0][0, head]
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def shifted_window_attention(
    x: np.ndarray, params: dict, side: int, shift: int, heads: int
) -> np.ndarray:
    """Return attention [h, N, N] among the tokens of a grid, one pair at a time.

    Computed from the definition: each token's window, which zeros fill it, who may see whom.
    """
    rows, columns, dim = x.shape
    padded = [n + -n % side for n in (rows, columns)]
    table = np.asarray(params["rel_pos_bias"]).reshape(2 * side - 1, 2 * side - 1, heads)
    kernel, bias = (np.asarray(params["qkv"][name]) for name in ("kernel", "bias"))
    places = [(r, c) for r in range(padded[0]) for c in range(padded[1])]

    def token(r: int, c: int) -> tuple[int, int] | None:
        return ((r + shift) % rows, (c + shift) % columns) if r < rows and c < columns else None

    def part(r: int, c: int) -> tuple[int, int, bool, bool]:
        return r // side, c // side, r >= padded[0] - shift, c >= padded[1] - shift

    out = np.zeros((heads, rows * columns, rows * columns))
    for qr, qc in places:
        query = token(qr, qc)
        if query is None:
            continue
        same = [p for p in places if part(*p) == part(qr, qc)]
        for head in range(heads):
            columns_of = (
                kernel.reshape(dim, heads, 3, -1)[:, head],
                bias.reshape(heads, 3, -1)[head],
            )
            q = x[query] @ columns_of[0][:, 0] + columns_of[1][0]
            logits = []
            for r, c in same:
                at = token(r, c)
                key = np.zeros(dim) if at is None else x[at]
                k = key @ columns_of[0][:, 1] + columns_of[1][1]
                offset = table[qr - r + side - 1, qc - c + side - 1, head]
                logits.append(q @ k / np.sqrt(len(q)) + offset)
            for place, weight in zip(same, softmax(np.asarray(logits)), strict=True):
                at = token(*place)
                if at is not None:
                    out[head, query[0] * columns + query[1], at[0] * columns + at[1]] = weight
    return out


@pytest.mark.parametrize("grid", [(5, 7), (6, 6), (4, 9)])
def test_shifted_windows_record_attention_that_lies_right_on_the_grid(grid):
    from vit_jax.visual import attention as analysis

    rng = np.random.default_rng(0)
    fitted, shift = window.fit_window(grid, (3, 3), shifted=True)
    assert (fitted, shift) == ((3, 3), (1, 1))
    layer = window.WindowAttention(
        window=fitted,
        shift=shift,
        num_heads=2,
        init_rules=Init.TIMM,
        dtype=jnp.float32,
        qkv_bias=True,
        dropout_rate=0.0,
        train=False,
    )
    x = rng.normal(size=(1, *grid, 8)).astype(np.float32)
    shapes = jax.eval_shape(layer.init, jax.random.key(0), jnp.asarray(x))["params"]
    params = jax.tree.map(lambda s: rng.normal(size=s.shape).astype(np.float32) / 2, shapes)
    _, state = layer.apply({"params": params}, jnp.asarray(x), mutable=["intermediates"])
    weights = np.asarray(state["intermediates"]["weights"][0][0])

    full = shifted_window_attention(x[0], params, 3, 1, 2)
    tokens = analysis.window_tokens(grid, fitted, shift)
    spread = np.zeros_like(full)
    for w, places in enumerate(tokens):
        for i, query in enumerate(places):
            for j, key in enumerate(places):
                if query >= 0 and key >= 0:
                    spread[:, query, key] = weights[w, :, i, j]
    np.testing.assert_allclose(spread, full, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        analysis.received(weights, tokens), full.sum(axis=1), rtol=1e-4, atol=1e-6
    )
    places = [(2.0 * (i // grid[1]), 5.0 * (i % grid[1])) for i in range(grid[0] * grid[1])]
    far = [[np.hypot(a - c, b - d) for c, d in places] for a, b in places]
    expected = ((full * np.asarray(far)).sum(-1) / full.sum(-1)).mean(-1)
    found = analysis.attention_distance(weights, tokens, grid, (2.0, 5.0))
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_gpsa_records_what_goes_by_position_by_content_and_in_all():
    rng = np.random.default_rng(0)
    cfg = block_config(num_heads=2)
    layer = convit.GatedPositionalAttention(cfg, locality_strength=1.0, train=False)
    x = rng.normal(size=(1, 9, 8)).astype(np.float32)
    shapes = jax.eval_shape(layer.init, jax.random.key(0), jnp.asarray(x))["params"]
    params = jax.tree.map(lambda s: rng.normal(size=s.shape).astype(np.float32) / 2, shapes)
    _, state = layer.apply({"params": params}, jnp.asarray(x), mutable=["intermediates"])
    seen = {name: np.asarray(leaf[0]) for name, leaf in state["intermediates"].items()}

    qk = (x[0] @ params["qk"]["kernel"] + params["qk"]["bias"]).reshape(9, 2, 2, 4)
    offsets = np.zeros((9, 9, 3))
    for i in range(9):
        for j in range(9):
            dy, dx = j // 3 - i // 3, j % 3 - i % 3
            offsets[i, j] = dx, dy, dx * dx + dy * dy
    by_position = offsets @ params["pos_proj"]["kernel"] + params["pos_proj"]["bias"]
    for head in range(2):
        content = softmax(qk[:, head, 0] @ qk[:, head, 1].T / 2)
        position = softmax(by_position[..., head])
        gate = 1 / (1 + np.exp(-params["gating_param"][head]))
        np.testing.assert_allclose(seen["content"][0, head], content, rtol=1e-4)
        np.testing.assert_allclose(seen["position"][head], position, rtol=1e-4)
        mixed = gate * position + (1 - gate) * content
        np.testing.assert_allclose(seen["weights"][0, head], mixed, rtol=1e-4)


def test_talking_heads_record_weights_as_they_are_after_mixing():
    rng = np.random.default_rng(0)
    layer = cait.TalkingHeads(block_config(num_heads=2), train=False)
    x = rng.normal(size=(1, 6, 8)).astype(np.float32)
    shapes = jax.eval_shape(layer.init, jax.random.key(0), jnp.asarray(x))["params"]
    params = jax.tree.map(lambda s: rng.normal(size=s.shape).astype(np.float32) / 2, shapes)
    _, state = layer.apply({"params": params}, jnp.asarray(x), mutable=["intermediates"])
    p = SimpleNamespace(**params)
    qkv = (x[0] @ p.qkv["kernel"] + p.qkv["bias"]).reshape(6, 2, 3, 4)
    logits = [qkv[:, h, 0] @ qkv[:, h, 1].T / 2 for h in range(2)]

    def mix(heads: list[np.ndarray], by: dict) -> list[np.ndarray]:
        return [
            sum(heads[g] * by["kernel"][g, h] for g in range(2)) + by["bias"][h] for h in range(2)
        ]

    expected = mix([softmax(each) for each in mix(logits, p.proj_l)], p.proj_w)
    found = state["intermediates"]["weights"][0][0]
    np.testing.assert_allclose(found, np.stack(expected), rtol=1e-4, atol=1e-6)
    assert found.min() < 0
