# SPDX-License-Identifier: Apache-2.0
"""A ViT with the later options computes the same however it is laid out, looped or recomputed."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import models
from vit_jax.devices import sharding
from vit_jax.devices.sharding import MeshConfig

CFG = models.variant(
    "vit_s16_rope_mixed",
    dim=16,
    depth=2,
    num_heads=2,
    mlp_dim=32,
    patch=(4, 4),
    image_size=(8, 12),
    num_classes=3,
    num_registers=1,
    key_bias=False,
    qk_norm=True,
    norm="rms",
    mlp="swiglu",
    mlp_norm=True,
    layer_scale=0.5,
    scan_unroll=1,
)
IMAGE = np.random.default_rng(0).normal(size=(8, 8, 12, 3)).astype(np.float32)


def params(cfg: models.ViTConfig) -> Any:
    shapes = models.abstract(cfg)["params"]
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda s: rng.normal(0.3, 0.3, s.shape).astype(np.float32), shapes)


def gradients(cfg: models.ViTConfig, given: Any, image: Any) -> Any:
    module = models.create(cfg)
    weights = jnp.arange(3.0)[None]

    def loss(params: Any, image: jax.Array) -> jax.Array:
        out: Any = module.apply({"params": params}, image)
        return (out.logits * weights).sum()

    with jax.default_matmul_precision("highest"):
        return jax.jit(jax.grad(loss))(given, image)


@pytest.fixture(scope="module")
def plain() -> Any:
    return gradients(CFG, params(CFG), jnp.asarray(IMAGE))


def assert_same(found: Any, expected: Any) -> None:
    def compare(path: Any, a: jax.Array, b: jax.Array) -> None:
        scale = max(1.0, float(np.abs(b).max()))
        name = jax.tree_util.keystr(path)
        np.testing.assert_allclose(a / scale, b / scale, atol=2e-5, err_msg=name)

    jax.tree_util.tree_map_with_path(compare, found, expected)
    assert all(np.abs(leaf).max() > 1e-4 for leaf in jax.tree.leaves(expected)), "all are used"


@pytest.mark.parametrize("fields", [{"scan_unroll": 0}, {"remat": "dots"}, {"remat": "full"}])
def test_loops_and_remat_change_nothing(fields: dict[str, Any], plain: Any) -> None:
    cfg = models.with_fields(CFG, fields)
    assert_same(gradients(cfg, params(cfg), jnp.asarray(IMAGE)), plain)


def test_tensor_parallelism_changes_nothing(plain: Any) -> None:
    mesh = sharding.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    whole = params(CFG)
    shapes = models.abstract(CFG)["params"]
    with jax.set_mesh(mesh):
        places = sharding.shardings(shapes, mesh)
        split = jax.device_put(whole, places)
        image = jax.device_put(IMAGE, sharding.batch_sharding(mesh))
        found = gradients(CFG, split, image)
    attention = split["blocks"]["attn"]
    for leaf in (attention["qkv"]["kernel"], attention["qkv"]["bias"], attention["rope_freqs"]):
        assert "tensor" in leaf.sharding.spec
    assert_same(jax.device_get(found), jax.device_get(plain))


def test_maps_of_attention_are_those_of_turned_queries() -> None:
    """The first block's, from the parameters by the formula of the mixed form."""
    cfg = dataclasses.replace(CFG, depth=1, num_registers=0)
    given = params(cfg)
    module = models.create(cfg)
    image = jnp.asarray(IMAGE[:1])
    look = jax.jit(lambda p, x: models.captured(module, {"params": p}, x))
    _, seen = look(given, image)

    p = jax.tree.map(lambda leaf: leaf[0].astype(np.float64), given["blocks"])
    kernel = given["patch_embed"]["kernel"].reshape(48, 16).astype(np.float64)
    cuts = [IMAGE[0, y : y + 4, x : x + 4].ravel() for y in (0, 4) for x in (0, 4, 8)]
    x = np.concatenate([given["cls_token"][0], cuts @ kernel + given["patch_embed"]["bias"]])

    def rms(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + cfg.norm_eps) * scale

    qkv = rms(x, p["norm1"]["scale"]) @ p["attn"]["qkv"]["kernel"]
    qkv = qkv.reshape(7, 2, 3, 8)
    qkv[:, :, [0, 2]] += p["attn"]["qkv"]["bias"].reshape(2, 2, 8)
    column, row = np.tile(np.arange(3), 2), np.repeat(np.arange(2), 3)
    fx, fy = p["attn"]["rope_freqs"]
    for head in range(2):
        angles = np.zeros((7, 4))
        angles[1:] = column[:, None] * fx[head] + row[:, None] * fy[head]
        turned = []
        for part, name in ((0, "q_norm"), (1, "k_norm")):
            one = rms(qkv[:, head, part], p["attn"][name]["scale"])
            pairs = (one[:, ::2] + 1j * one[:, 1::2]) * np.exp(1j * angles)
            turned.append(pairs)
        logits = (turned[0] @ turned[1].conj().T).real / np.sqrt(8)
        expected = np.exp(logits - logits.max(-1, keepdims=True))
        expected /= expected.sum(-1, keepdims=True)
        np.testing.assert_allclose(seen["blocks/attn/weights"][0, 0, head], expected, atol=1e-5)
