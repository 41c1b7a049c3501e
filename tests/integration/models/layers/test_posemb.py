# SPDX-License-Identifier: Apache-2.0
"""Positions of arXiv:2010.11929 appendix D.4 in a whole ViT, against numpy."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from vit_jax import models, trees
from vit_jax.models import Remat, ViTConfig
from vit_jax.models.layers.posemb import PosEmbed, PosEmbedAt

D, HEADS, DEPTH, GRID, CLASSES = 8, 2, 2, (2, 3), 5
N = GRID[0] * GRID[1]
TINY: dict[str, Any] = {"dim": D, "depth": DEPTH, "num_heads": HEADS, "mlp_dim": 12}
TINY |= {"image_size": (4, 6), "patch": (2, 2), "num_classes": CLASSES}


def cfg(kind: PosEmbed, at: PosEmbedAt = PosEmbedAt.STEM, **fields: Any) -> ViTConfig:
    return ViTConfig(**{**TINY, "pos_embed": kind, "pos_embed_at": at, **fields})


def draw(model: ViTConfig) -> Any:
    """Return variables of which none is zero."""
    rng = np.random.default_rng(0)
    shapes = models.abstract(model)
    return jax.tree.map(lambda x: rng.normal(0, 0.3, x.shape).astype(np.float32), shapes)


def norm(x: np.ndarray, p: Any) -> np.ndarray:
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * p["scale"] + p["bias"]


def dense(x: np.ndarray, p: Any) -> np.ndarray:
    return x @ p["kernel"] + p["bias"]


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def attention(x: np.ndarray, p: Any) -> np.ndarray:
    width = D // HEADS
    out = np.zeros_like(x)
    for head in range(HEADS):
        columns = [head * 3 * width + part * width for part in range(3)]
        q, k, v = (dense(x, p["qkv"])[:, c : c + width] for c in columns)
        logits = np.zeros((len(x), len(x)))
        for i in range(len(x)):
            for j in range(len(x)):
                logits[i, j] = q[i] @ k[j]
                if "rel_embed" in p:
                    logits[i, j] += q[i] @ p["rel_embed"][i - j + len(x) - 1]
        weights = np.exp(logits / np.sqrt(width))
        weights /= weights.sum(-1, keepdims=True)
        out[:, head * width : (head + 1) * width] = weights @ v
    return dense(out, p["proj"])


def table(params: Any, layer: int, prefixed: bool) -> np.ndarray:
    """Return what is added before a block, for the class token and the patches."""
    if "pos_embed" in params:
        own = params["pos_embed"]
        own = own[layer if len(own) > 1 else 0]
        return own if prefixed else np.concatenate([np.zeros((1, D)), own])
    x, y = (params[f"pos_embed_{axis}"] for axis in "xy")
    x, y = (each[layer if len(each) > 1 else 0] for each in (x, y))
    rows = [np.concatenate([x[c], y[r]]) for r in range(GRID[0]) for c in range(GRID[1])]
    return np.stack([np.zeros(D), *rows])


def forward(model: ViTConfig, params: Any, image: np.ndarray) -> np.ndarray:
    """Return the logits of one image."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    kernel = params["patch_embed"]["kernel"].reshape(-1, D)
    patches = image.reshape(GRID[0], 2, GRID[1], 2, 3).transpose(0, 2, 1, 3, 4).reshape(N, -1)
    x = patches @ kernel + params["patch_embed"]["bias"]
    x = np.concatenate([params["cls_token"][0], x])
    placed = model.pos_embed not in (PosEmbed.NONE, PosEmbed.RELATIVE)
    for layer in range(DEPTH):
        if placed and (layer == 0 or model.pos_embed_at is not PosEmbedAt.STEM):
            x = x + table(params, layer, model.pos_embed_prefix)
        block = jax.tree.map(lambda leaf, i=layer: leaf[i], params["blocks"])
        x = x + attention(norm(x, block["norm1"]), block["attn"])
        hidden = gelu(dense(norm(x, block["norm2"]), block["mlp"]["fc1"]))
        x = x + dense(hidden, block["mlp"]["fc2"])
    return dense(norm(x[0], params["norm"]), params["head"])


CASES = [
    (cfg(PosEmbed.LEARNED), (1 + N) * D),
    (cfg(PosEmbed.LEARNED, PosEmbedAt.LAYERS), DEPTH * (1 + N) * D),
    (cfg(PosEmbed.LEARNED, PosEmbedAt.LAYERS, pos_embed_prefix=False), DEPTH * N * D),
    (cfg(PosEmbed.LEARNED, PosEmbedAt.SHARED), (1 + N) * D),
    (cfg(PosEmbed.LEARNED2D), sum(GRID) * D // 2),
    (cfg(PosEmbed.LEARNED2D, PosEmbedAt.LAYERS), DEPTH * sum(GRID) * D // 2),
    (cfg(PosEmbed.LEARNED2D, PosEmbedAt.SHARED), sum(GRID) * D // 2),
    (cfg(PosEmbed.RELATIVE), DEPTH * (2 * (1 + N) - 1) * D // HEADS),
]


@pytest.mark.parametrize(
    "model, added", CASES, ids=[f"{x.pos_embed}-{x.pos_embed_at}-{n}" for x, n in CASES]
)
def test_logits_are_those_of_numpy(model: ViTConfig, added: int) -> None:
    variables = draw(model)
    none = trees.num_params(models.abstract(cfg(PosEmbed.NONE))["params"])
    assert trees.num_params(variables["params"]) - none == added
    image = np.random.default_rng(1).normal(size=(2, 4, 6, 3)).astype(np.float32)
    found = np.asarray(jax.jit(models.create(model).apply)(variables, image).logits)
    expected = [forward(model, variables["params"], each) for each in image]
    np.testing.assert_allclose(found, expected, atol=5e-5)


@pytest.mark.parametrize(
    "kind, at", [(PosEmbed.LEARNED, PosEmbedAt.LAYERS), (PosEmbed.RELATIVE, PosEmbedAt.STEM)]
)
def test_a_step_that_recomputes_has_the_same_gradients(kind: PosEmbed, at: PosEmbedAt) -> None:
    model = cfg(kind, at)
    variables = draw(model)
    image = np.random.default_rng(1).normal(size=(2, 4, 6, 3))
    image = jax.numpy.asarray(image, np.float32)

    def gradients(model: ViTConfig) -> Any:
        def loss(variables: Any) -> jax.Array:
            return (models.create(model).apply(variables, image, train=True).logits ** 2).sum()

        return jax.jit(jax.grad(loss))(variables)["params"]

    plain = gradients(model)
    again = gradients(dataclasses.replace(model, remat=Remat.FULL, scan_unroll=1))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), plain, again)
    own = plain["pos_embed"] if kind is PosEmbed.LEARNED else plain["blocks"]["attn"]["rel_embed"]
    assert np.abs(own).max(axis=(1, 2)).min() > 0  # every layer learns its own
