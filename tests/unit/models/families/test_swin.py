# SPDX-License-Identifier: Apache-2.0
"""Swin: published sizes, timm's golden, window tables, options, initial values, bad configs."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.refusals import RANGE, Told, refused_as, refused_by
from vit_jax import config as config_lib
from vit_jax import models, weights
from vit_jax.models import SwinConfig
from vit_jax.models.families import swin
from vit_jax.models.layers.window import fit_window, shift_mask

GOLDEN = Path(__file__).parents[3] / "golden"
TABLE = json.loads((GOLDEN / "param_counts.json").read_text())
NAMES = {
    "swin_t": "swin_tiny_patch4_window7_224",
    "swin_s": "swin_small_patch4_window7_224",
    "swin_b": "swin_base_patch4_window7_224",
    "swin_l": "swin_large_patch4_window7_224",
    "swin_b_384": "swin_base_patch4_window12_384",
    "swin_l_384": "swin_large_patch4_window12_384",
    "swin_s3_t": "swin_s3_tiny_224",
    "swin_s3_s": "swin_s3_small_224",
    "swin_s3_b": "swin_s3_base_224",
}


def test_every_row_and_variant_is_compared() -> None:
    assert set(NAMES) == set(swin.FAMILY.variants)
    assert set(NAMES.values()) == {name for name in TABLE if name.startswith("swin_")}


def test_imported_values_that_no_output_shows() -> None:
    # A bias of the keys moves all logits of a query alike, so that softmax doesn't see it.
    state = load_file(GOLDEN / "swin.safetensors")
    cfg = SwinConfig(
        image_size=(64,), num_classes=10, dim=24, depths=(2, 2), num_heads=(2, 4), window=(4,)
    )
    params = weights.from_timm(state, cfg)["params"]
    for stage, heads in enumerate(cfg.num_heads):
        ours = params[f"stage{stage}"]["block1"]["attn"]["qkv"]["bias"].reshape(heads, 3, -1)
        theirs = state[f"layers.{stage}.blocks.1.attn.qkv.bias"].reshape(3, heads, -1)
        np.testing.assert_array_equal(ours[:, 1], theirs[1])


def test_mask_of_one_shifted_axis() -> None:
    # Six columns rolled by one, in windows of three: the last column came from the left.
    mask = shift_mask((2, 6), (2, 3), (0, 1))
    assert not mask[0].any()
    wrapped = np.array([False, False, True] * 2)
    np.testing.assert_array_equal(mask[1] == -100, wrapped[:, None] != wrapped[None])


@pytest.mark.parametrize(
    "grid, window, expected",
    [
        ((14, 14), (7, 7), ((7, 7), (3, 3))),
        ((7, 7), (7, 7), ((7, 7), (0, 0))),
        ((5, 9), (7, 4), ((5, 4), (0, 2))),
        ((9, 3), (4, 4), ((4, 3), (2, 0))),
    ],
)
def test_a_window_is_fitted_to_its_grid(grid: Any, window: Any, expected: Any) -> None:
    assert fit_window(grid, window, shifted=True) == expected
    assert fit_window(grid, window, shifted=False) == (expected[0], (0, 0))


def small(**fields: object) -> SwinConfig:
    base = {"image_size": (20, 28), "patch": (4, 4), "num_classes": 5, "dim": 12, "window": (3,)}
    return SwinConfig(**{**base, "depths": (2, 1), "num_heads": (2, 3), **fields})


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"image_size": (18, 24)}, ("models.base.grid", "model.patch")),
        ({"num_heads": (2, 5)}, r"5 does not divide the width of stage 1, model.dim=12 \* 2"),
        ({"num_heads": (2,)}, r"one number for each stage"),
        ({"depths": (), "num_heads": ()}, r"one number for each stage"),
        ({"depths": (2, 0)}, (RANGE, "model.depths")),
        ({"window": (3, 3, 3)}, r"each of the 2 stages"),
        ({"window": ()}, r"model.window=\(\)"),
        ({"window": (0,)}, (RANGE, "model.window")),
        ({"mlp_ratio": 0.05}, "mlp_ratio=0.05"),
        ({"drop_path_rate": 1.0}, (RANGE, "model.drop_path_rate")),
        ({"attention_dropout_rate": -0.1}, (RANGE, "model.attention_dropout_rate")),
    ],
)
def test_impossible_configs_are_named(fields: dict, message: Told) -> None:
    with refused_as(message):
        models.create(small(**fields))


def test_wrong_input_is_named() -> None:
    with refused_by("models.base.check_input"):
        models.create(small()).init(jax.random.key(0), jnp.zeros((1, 28, 20, 3)))


def test_a_tensor_axis_divides_the_heads_of_every_stage() -> None:
    cfg = config_lib.Config(model=small(num_heads=(2, 3)))
    cfg.mesh.tensor = 2
    with refused_by("config.checks.check_batch", "mesh.tensor"):
        config_lib.check_batch(cfg, 1)
    cfg.model.num_heads = (2, 4)
    config_lib.check_batch(cfg, 1)
