# SPDX-License-Identifier: Apache-2.0
"""A ViT for images of any size: timm's and transformers' goldens, padded, packed and as squares."""

import functools
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from vit_jax import inference, models, weights
from vit_jax.models import ViTConfig

GOLDEN = Path(__file__).parents[3] / "golden" / "naflex"
TOLERANCE = 5e-5  # of the largest number


def small(name: str, grid: int = 4, **fields: Any) -> ViTConfig:
    """Shrink a named network to the size of the goldens."""
    sizes = {"patch": (4,), "image_size": (16, 16), "base_grid": (grid,), "num_classes": 7}
    sizes |= {"dim": 32, "depth": 2, "num_heads": 4, "mlp_dim": 64}
    return models.variant(name, **sizes, **fields)


TIMM = {
    "learned": small("naflexvit_b16_gap", num_registers=2, layer_scale=0.0),
    "map": small("naflexvit_b16_siglip"),
    "parfac": small("naflexvit_b16_parfac_gap", num_registers=1, layer_scale=0.0),
    "radio": small("naflexvit_l16_radio_v3", 8, num_registers=3, final_norm=True),
}


def near(found: Any, wanted: np.ndarray) -> None:
    found = np.asarray(found)
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() <= TOLERANCE * np.abs(wanted).max()


@functools.cache
def golden(name: str) -> dict[str, np.ndarray]:
    with np.load(GOLDEN / f"{name}.npz") as found:
        return dict(found)


@pytest.mark.parametrize("name", TIMM)
def test_equals_timm_padded_packed_and_alone(name: str) -> None:
    found, cfg = golden(f"naflexvit_{name}"), TIMM[name]
    state = load_file(GOLDEN / f"naflexvit_{name}.safetensors")
    variables = weights.from_timm(state, cfg)
    back = weights.to_timm(variables, cfg)
    variables = jax.tree.map(jnp.asarray, variables)
    assert back.keys() == state.keys()
    assert all(np.array_equal(back[key], state[key]) for key in state)
    apply = models.create(cfg).apply
    prefix, grids = models.num_prefix(cfg), jnp.asarray(found["in_grids"], jnp.int32)
    valid = np.concatenate([np.ones((4, prefix), bool), found["in_patch_valid"]], axis=1)
    cotangents = {key: jnp.asarray(found[f"ct_{key}"]) for key in ("logits", "tokens")}

    @jax.jit
    def run(patches: jax.Array, images: jax.Array) -> Any:
        def loss(patches: jax.Array) -> Any:
            out: Any = apply(variables, patches, grids=grids)
            tokens = out.tokens * valid[..., None]
            total = (out.logits * cotangents["logits"]).sum()
            return total + (tokens * cotangents["tokens"]).sum(), (out.logits, tokens)

        (_, out), gradient = jax.value_and_grad(loss, has_aux=True)(patches)
        alone: Any = apply(variables, images)
        return out, gradient, (alone.logits, alone.tokens)

    images = found["in_image"].transpose(0, 2, 3, 1)
    (logits, tokens), gradient, alone = run(found["in_patches"], images)
    near(logits, found["out_logits"])
    near(tokens, found["out_tokens"])
    near(gradient, found["grad_patches"])
    assert not np.asarray(gradient)[~found["in_patch_valid"]].any()
    near(alone[0], found["out_image_logits"])
    near(alone[1], found["out_image_tokens"])
    # Several images a row: the goldens number them over the whole batch.
    segments, slots = found["in_packed_segment"], 3
    of_row = [list(dict.fromkeys(row[row >= 0].tolist())) for row in segments]
    packed = np.zeros((len(of_row), slots, 2), np.int32)
    for row, held in enumerate(of_row):
        packed[row, : len(held)] = found["in_grids"][held]
    rows: Any = jax.jit(lambda x, g: apply(variables, x, grids=g))
    out = rows(found["in_packed_patches"], packed)
    assert out.logits.shape == (len(of_row), slots, 7)
    for row, held in enumerate(of_row):
        near(out.logits[row, : len(held)], found["out_logits"][held])
        for image in held:
            mine = np.flatnonzero(segments[row] == image) + slots * prefix
            there = found["out_tokens"][image, prefix : prefix + len(mine)]
            near(np.asarray(out.tokens)[row, mine], there)


def test_equals_siglip2_of_transformers(tmp_path: Path) -> None:
    found, name = golden("siglip2_vision"), "siglip2_vision"
    shutil.copy(GOLDEN / f"{name}.json", tmp_path / "config.json")
    shutil.copy(GOLDEN / f"{name}.safetensors", tmp_path / "model.safetensors")
    trained = inference.load(f"hub:{tmp_path}", headless=True)
    cfg = trained.model
    assert isinstance(cfg, ViTConfig)
    assert (cfg.native, cfg.pos_embed_resize, cfg.base_grid) == (True, "linear", (4, 4))
    module = models.create(cfg)
    grids = jnp.asarray(found["in_spatial_shapes"], jnp.int32)
    variables = jax.tree.map(jnp.asarray, dict(trained.variables))

    @jax.jit
    def run(patches: jax.Array) -> Any:
        out: Any = module.apply(variables, patches, grids=grids)
        return out.features, out.tokens

    pooled, tokens = run(found["in_pixel_values"])
    near(pooled, found["out_pooler_output"])
    near(tokens * found["in_pixel_attention_mask"][..., None], found["out_last_hidden_state"])


def test_goes_on_from_a_plain_vit() -> None:
    """On an image of the table's own grid, the two compute the same."""
    sizes = {"patch": (4,), "image_size": (16,), "dim": 32, "depth": 1, "num_heads": 4}
    plain = models.variant("deit_s16", **sizes, mlp_dim=64, num_classes=7)
    own = {"native": True, "base_grid": (4,), "pos_embed_prefix": False}
    cfg = models.with_fields(plain, own)
    key = jax.random.key(0)
    params, _ = models.init(models.create(plain), plain, key)
    state = weights.to_timm(jax.device_get({"params": params}), plain)
    image = jax.random.normal(key, (2, 16, 16, 3))

    @jax.jit
    def run(ours: Any, theirs: Any) -> Any:
        one: Any = models.create(plain).apply(ours, image)
        other: Any = models.create(cfg).apply(theirs, image)
        return one.logits, other.logits

    one, other = run({"params": params}, jax.tree.map(jnp.asarray, weights.from_timm(state, cfg)))
    near(other, np.asarray(one))
