# SPDX-License-Identifier: Apache-2.0
"""Where a model looked, by its attention or its head; a pass that shows it computes the same."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from tests.unit.models.tiny import TINY, shrink
from vit_jax import models
from vit_jax.data import TransformConfig
from vit_jax.errors import UserError
from vit_jax.figures.overlay import colors, overlay, spread
from vit_jax.inference.trained import Trained
from vit_jax.visual import saliency


def trained(cfg: models.ModelConfig, variables: dict) -> Trained:
    return Trained(
        ref="ckpt:tiny",
        source="ckpt:tiny",
        model=cfg,
        variables=variables,
        mean=(0.25,),
        std=(0.5,),
        transform=TransformConfig(),
        class_names=("a", "b", "c"),
    )


def attending(rng: np.random.Generator, *shape: int) -> np.ndarray:
    weights = rng.random(shape).astype(np.float32) ** 3
    return weights / weights.sum(axis=-1, keepdims=True)


def heat_of(
    cfg: models.ModelConfig, seen: dict[str, np.ndarray], size: tuple[int, int]
) -> np.ndarray:
    models.create(cfg)
    seen = {name: jnp.asarray(leaf) for name, leaf in seen.items()}
    unused: models.Output = models.Output(logits=None, features=None, tokens=None)
    return np.asarray(saliency.heat_map(cfg, {}, unused, seen, size))


def test_the_map_of_a_cait_is_its_class_attention():
    cfg = shrink(models.variant("cait_xxs24", patch=(4, 4)), image_size=(8, 12))
    weights = attending(np.random.default_rng(0), 2, 1, 2, 1, 7)
    heat = heat_of(cfg, {"token_blocks/attn/weights": weights}, (8, 12))
    np.testing.assert_allclose(heat.ravel(), weights[:, 0, :, 0, 1:].mean(axis=(0, 1)), rtol=1e-5)


def test_merged_tokens_have_no_place_to_show():
    cfg = dataclasses.replace(TINY["vit"], token_merging=1)
    with pytest.raises(UserError, match=r"model.token_merging=1 merges patches"):
        saliency.make_saliency(trained(cfg, {}))


def test_an_overlay_puts_the_light_where_the_map_is_large():
    image = np.full((40, 60, 3), 100, np.uint8)
    heat = np.zeros((2, 3), np.float32)
    heat[1, 2] = 7.0
    drawn = overlay(image, heat)
    assert drawn.shape == (40, 60, 3)
    assert drawn.dtype == np.uint8
    light = drawn.astype(int).sum(axis=-1)
    assert np.unravel_index(light.argmax(), light.shape) == (30, 50)  # or beyond: the corner
    np.testing.assert_array_equal(drawn[0, 0], overlay(image, np.zeros((1, 1)))[0, 0])
    np.testing.assert_array_equal(drawn, overlay(image[..., :1], 3 * heat - 5))  # grey, any range
    contrast = overlay(image // 50 * np.arange(1, 61, dtype=np.uint8)[None, :, None], heat * 0)
    assert (np.diff(contrast[0, :, 0].astype(int)) >= 0).all()
    assert contrast[0, -1, 0] > contrast[0, 0, 0]


def test_colours_rise_in_lightness_and_a_flat_map_is_cold():
    ramp = colors(np.linspace(0, 1, 101)[None]).astype(float) @ (0.299, 0.587, 0.114)
    assert (np.diff(ramp[0]) > 0).all()
    assert not spread(np.full((2, 2), 3.0)).any()
    np.testing.assert_allclose(spread(np.asarray([-1.0, 0.0, 3.0])), [0, 0.25, 1])
