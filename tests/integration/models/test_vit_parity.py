# SPDX-License-Identifier: Apache-2.0
"""Logits of the ViT equal those of timm, vision_transformer and big_vision on their own weights."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import models, weights
from vit_jax.models.layers.mlp import Gelu
from vit_jax.models.layers.pool import Pool

GOLDEN = Path(__file__).parents[2] / "golden"
TOLERANCE = 5e-5  # float32 noise is below 7e-6, a wrong GELU is 9e-4


def _timm_config(kwargs: dict) -> models.ViTConfig:
    dim, size = kwargs["embed_dim"], kwargs["img_size"]
    average = kwargs.get("global_pool") == "avg"
    return models.ViTConfig(
        image_size=tuple(size) if isinstance(size, list) else (size,),
        patch=(kwargs["patch_size"],),
        dim=dim,
        depth=kwargs["depth"],
        num_heads=kwargs["num_heads"],
        mlp_dim=int(dim * kwargs.get("mlp_ratio", 4.0)),
        num_classes=kwargs["num_classes"],
        class_token=kwargs.get("class_token", True),
        pool=Pool.GAP if average else Pool.CLS,
        fc_norm=average,
        layer_scale=kwargs.get("init_values", 0.0),
        pos_embed_prefix=not kwargs.get("no_embed_class", False),
        qkv_bias=kwargs.get("qkv_bias", True),
        gelu=Gelu.ERF,
    )


def _apply(cfg: models.ViTConfig, variables: Any, image: np.ndarray, jit: bool) -> models.Output:
    forward = models.create(cfg).apply
    with jax.default_matmul_precision("highest"):
        return (jax.jit(forward) if jit else forward)(variables, jnp.asarray(image))


@pytest.mark.parametrize("unroll", [0, 1])
@pytest.mark.parametrize("name", ["vit_cls", "vit_gap", "vit_options"])
def test_equals_timm(name: str, unroll: int) -> None:
    golden = np.load(GOLDEN / f"{name}.npz")
    spec = json.loads(str(golden["spec"]))
    cfg = _timm_config(spec["kwargs"] if "kwargs" in spec else spec["timm_kwargs"])
    cfg.scan_unroll = unroll
    variables = weights.load(f"timm:{GOLDEN / f'{name}.safetensors'}", cfg)
    out = _apply(cfg, variables, golden["input"], jit=unroll == 0)
    np.testing.assert_allclose(out.logits, golden["logits"], atol=TOLERANCE, rtol=0)
    np.testing.assert_allclose(out.features, golden["pre_logits"], atol=TOLERANCE, rtol=0)
    np.testing.assert_allclose(out.tokens, golden["features"], atol=TOLERANCE, rtol=0)


_SMALL = {"dim": 48, "depth": 2, "num_heads": 3, "num_classes": 7, "gelu": "erf"}
_LATER = {
    "dinov2_swiglu": models.variant(
        "vit_g14_dinov2", **_SMALL, image_size=(28,), patch=(7,), mlp_dim=128
    ),
    "dinov3_gelu": models.variant(
        "vit_s16_dinov3", **_SMALL, image_size=(32,), patch=(8,), mlp_dim=192
    ),
    "rope_reg_gap": models.variant(
        "vit_b16_rope_reg1_gap",
        **{**_SMALL, "image_size": (32,), "patch": (8,), "mlp_dim": 192, "rope_grid": (4, 4)},
    ),
    "vit5": models.variant(
        "vit5_s16", **{**_SMALL, "num_classes": 5}, image_size=(32,), patch=(8,), mlp_dim=192
    ),
    "aimv2": models.variant(
        "vit_l14_aimv2",
        **{**_SMALL, "dim": 32, "num_heads": 4, "num_classes": 5},
        image_size=(28,),
        patch=(7,),
        mlp_dim=48,
    ),
}


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("name", _LATER)
def test_later_vits_equal_timm_and_their_authors(name: str, jit: bool) -> None:
    golden, cfg = np.load(GOLDEN / f"{name}.npz"), _LATER[name]
    variables = weights.load(f"timm:{GOLDEN / f'{name}.safetensors'}", cfg)
    out = _apply(cfg, variables, golden["input"], jit)
    np.testing.assert_allclose(out.logits, golden["logits"], atol=TOLERANCE, rtol=0)
    if "features" in golden:
        np.testing.assert_allclose(out.tokens, golden["features"], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", ["google_vit_prelogits", "bigvision_gap"])
def test_equals_google(name: str) -> None:
    golden = np.load(GOLDEN / f"{name}.golden.npz")
    spec = json.loads(str(golden["spec"]))
    gap = spec["pool"].startswith("gap")
    cfg = models.ViTConfig(
        image_size=(spec["image"],),
        patch=(spec["patch"],),
        dim=spec["width"],
        depth=spec["depth"],
        num_heads=spec["heads"],
        mlp_dim=spec["mlp"],
        num_classes=spec["num_classes"],
        pre_logits_dim=spec.get("representation_size", 0),
        pool=Pool.GAP if gap else Pool.CLS,
        class_token=not gap,
    )
    variables = weights.load(f"npz:{GOLDEN / f'{name}.weights.npz'}", cfg)
    out = _apply(cfg, variables, golden["input"], jit=True)
    np.testing.assert_allclose(out.logits, golden["logits"], atol=TOLERANCE, rtol=0)
