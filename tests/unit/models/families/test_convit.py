# SPDX-License-Identifier: Apache-2.0
"""ConViT: published sizes, timm's golden, GPSA's tables, randomness, impossible configs."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.refusals import RANGE, Told, refused_as, refused_by
from vit_jax import models
from vit_jax.models import ConViTConfig
from vit_jax.models.families.convit import relative_positions
from vit_jax.models.layers.attention import AttentionImpl

GOLDEN = Path(__file__).parents[3] / "golden"
TABLES = np.load(GOLDEN / "convit_tables.npz")


def golden() -> tuple[ConViTConfig, dict[str, np.ndarray], Any]:
    arrays = np.load(GOLDEN / "convit.npz")
    kwargs = json.loads(str(arrays["spec"]))["kwargs"]
    cfg = ConViTConfig(
        image_size=(kwargs["img_size"],),
        patch=(kwargs["patch_size"],),
        num_classes=kwargs["num_classes"],
        depth=kwargs["depth"],
        num_heads=kwargs["num_heads"],
        head_dim=kwargs["embed_dim"],
        mlp_dim=4 * kwargs["embed_dim"] * kwargs["num_heads"],
        local_up_to_layer=kwargs["local_up_to_layer"],
        locality_strength=kwargs["locality_strength"],
    )
    return cfg, load_file(GOLDEN / "convit.safetensors"), arrays


@pytest.mark.parametrize("side", [3, 4])
def test_relative_positions(side: int) -> None:
    expected = TABLES[f"gpsa_rel|n={side**2}"]
    np.testing.assert_array_equal(relative_positions(side), expected)


def small(**fields: Any) -> ConViTConfig:
    shape = {"image_size": (12, 12), "patch": (4, 4), "num_classes": 5, "scan_unroll": 1}
    sizes = {"depth": 3, "num_heads": 4, "head_dim": 6, "mlp_dim": 32, "local_up_to_layer": 2}
    return models.variant("convit_ti", **{**shape, **sizes, **fields})


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"image_size": (12, 16)}, "make 3 x 4 patches; ConViT takes as many rows"),
        ({"image_size": (13, 13)}, ("models.base.grid", "model.patch")),
        ({"head_dim": 0}, (RANGE, "model.head_dim")),
        ({"num_heads": 0}, (RANGE, "model.num_heads")),
        ({"local_up_to_layer": -1}, (RANGE, "model.local_up_to_layer")),
        ({"drop_path_rate": 1.0}, (RANGE, "model.drop_path_rate")),
        ({"dropout_rate": -0.1}, (RANGE, "model.dropout_rate")),
        (
            {"attention": AttentionImpl.CUDNN},
            ("models.layers.attention.check_impl", "model.attention"),
        ),
    ],
)
def test_impossible_configs_are_named(fields: dict, message: Told) -> None:
    with refused_as(message):
        models.create(small(**fields))


def test_wrong_input_is_named() -> None:
    cfg = small()
    image = jax.ShapeDtypeStruct((1, 8, 8, 3), np.float32)
    with refused_by("models.base.check_input"):
        jax.eval_shape(models.create(cfg).apply, models.abstract(cfg), image)
