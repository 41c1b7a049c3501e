# SPDX-License-Identifier: Apache-2.0
"""FlexiViT at every size against timm, which resizes a published .npz when it loads it."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.parity.harness import TOLERANCE, images, to_torch
from tests.parity.torch_models import timm, torch
from tests.unit.weights import google_writer
from vit_jax import models, weights
from vit_jax.models import patch_sizes
from vit_jax.models.resample import antialiased, pseudo_inverse
from vit_jax.weights.resize import ResizeRule, resize_grid

SIDES = (8, 10, 12, 15, 16, 20, 24, 30, 40, 48)
SHAPE: dict[str, Any] = {"depth": 1, "num_heads": 3, "num_classes": 7}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[models.ViTConfig, Path]:
    """Write random weights in the published layout: big_vision's, prefix and all."""
    cfg = models.variant("flexivit_s", dim=48, mlp_dim=192, gelu="erf", **SHAPE)
    params = google_writer.random_variables(models.abstract(cfg))["params"]
    flat = google_writer.vit(params, cfg.num_heads, table="pos_embedding")
    assert flat["embedding/kernel"].shape == (32, 32, 3, 48)
    assert flat["pos_embedding"].shape == (1, 49, 48)
    file = tmp_path_factory.mktemp("published") / "flexivit_s_i1k.npz"
    arrays: Any = {f"params/{key}": value for key, value in flat.items()}
    np.savez(file, **arrays)
    return cfg, file


@pytest.mark.parametrize("side", [8, 16, 30])  # in grids of 7 and less timm does not antialias
def test_logits(published: tuple[models.ViTConfig, Path], side: int) -> None:
    cfg, file = published
    there: Any = timm.create_model(
        "flexivit_small", patch_size=side, embed_dim=48, num_heads=3, depth=1, num_classes=7
    ).eval()
    there.load_pretrained(str(file))
    cfg = patch_sizes.at(cfg, side)
    image, variables = images(cfg, 0), weights.load(f"npz:{file}", cfg)
    with torch.no_grad():
        expected = there(to_torch(image)).numpy()
    # The plain ViT of one size, whose kernel and table the loader resizes, is the same.
    plain = models.with_fields(cfg, {"base_patch": (), "base_grid": ()})
    loaded = weights.load(f"npz:{file}", plain, resize=ResizeRule.TIMM_NPZ)
    with jax.default_matmul_precision("highest"):
        found = [
            jax.jit(models.create(one).apply)(values, image).logits
            for one, values in ((cfg, variables), (plain, loaded))
        ]
    scale = max(1.0, float(np.abs(expected).max()))
    for logits in found:
        np.testing.assert_allclose(logits / scale, expected / scale, atol=TOLERANCE, rtol=0)
    assert expected.std() > 1e-3


def test_kernels() -> None:
    kernel = np.random.default_rng(0).normal(size=(32, 32, 3, 2)).astype(np.float32)
    given = torch.from_numpy(kernel.transpose(3, 2, 0, 1).copy())
    for side in SIDES:
        there = timm.layers.resample_patch_embed(
            given, [side, side], interpolation="bilinear", antialias=False
        )
        out = resize_grid(kernel.reshape(32, 32, 6), (side, side), pseudo_inverse)
        expected = there.numpy().transpose(2, 3, 1, 0).reshape(side, side, 6)
        scale = max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(out / scale, expected / scale, atol=TOLERANCE, rtol=0)


def test_positions_of_a_smaller_grid() -> None:
    # jax.image antialiases, with which big_vision trained.
    table = np.random.default_rng(0).normal(size=(7, 7, 4)).astype(np.float32)
    given = torch.from_numpy(table.reshape(1, 49, 4))
    for side in (5, 6, 8, 30):
        there = timm.layers.resample_abs_pos_embed(
            given, [side, side], num_prefix_tokens=0, interpolation="bilinear", antialias=True
        )
        out = resize_grid(table, (side, side), antialiased).reshape(1, side**2, 4)
        np.testing.assert_allclose(out, there.numpy(), atol=TOLERANCE, rtol=0)
