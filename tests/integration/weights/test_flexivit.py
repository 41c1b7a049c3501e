# SPDX-License-Identifier: Apache-2.0
"""A published FlexiViT, and a run's, at any patch size; and as ViTs of one size."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import vit_jax
from tests.refusals import refused_by
from tests.unit.train import teachers
from tests.unit.weights import google_writer
from vit_jax import models, weights
from vit_jax.__main__ import main
from vit_jax.models import patch_sizes

PHOTO = Path(__file__).parents[3] / "docs" / "images" / "china.jpg"
SMALL: dict[str, Any] = {"dim": 16, "depth": 1, "num_heads": 2, "mlp_dim": 32}
FLAGS = [f"--model.{name}={value}" for name, value in SMALL.items()]


def logits(cfg: Any, variables: Any, image: np.ndarray) -> np.ndarray:
    return np.asarray(jax.jit(models.create(cfg).apply)(variables, image).logits)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Write random weights as big_vision's flexivit_s_i1k.npz, but small."""
    cfg = models.variant("flexivit_s", **SMALL)
    variables = google_writer.random_variables(models.abstract(cfg))
    flat = google_writer.vit(variables["params"], cfg.num_heads, table="pos_embedding")
    file = tmp_path_factory.mktemp("published") / "flexivit_s_i1k.npz"
    arrays: Any = {f"params/{key}": value for key, value in flat.items()}
    np.savez(file, **arrays)
    return file, variables


def test_it_predicts_at_any_size(
    published: tuple[Path, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    file, variables = published
    source = ["vit_jax", "predict", f"--from=npz:{file}", "--model=flexivit_s", *FLAGS]
    assert main([*source, "--model.patch=30", str(PHOTO)]) == 0
    assert "china.jpg" in capsys.readouterr().out
    image = 3 * np.random.default_rng(0).normal(size=(2, 240, 240, 3)).astype(np.float32)
    found = []
    for side in (16, 48):
        model = vit_jax.load(f"npz:{file}", model="flexivit_s", patch=(side,), **SMALL)
        cfg = models.variant("flexivit_s", **SMALL, patch=(side, side))
        found.append(np.asarray(model(image, normalised=True)))
        np.testing.assert_allclose(found[-1], logits(cfg, variables, image), atol=1e-5)
    assert np.abs(found[0] - found[1]).max() > 1e-2
    with refused_by("models.base.grid", "model.patch"):
        vit_jax.load(f"npz:{file}", model="flexivit_s", patch=(14,), **SMALL)


def test_a_run_is_a_vit_of_one_size_to_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cfg = models.variant(
        "flexivit_s", **SMALL, num_classes=3, image_size=(64, 64), base_patch=(16,), base_grid=(5,)
    )
    cfg = dataclasses.replace(cfg, patch=(8, 8), drawn_patches=(4, 8, 16))
    run = teachers.save(tmp_path / "run", cfg)
    image = np.random.default_rng(0).normal(size=(2, 64, 64, 3)).astype(np.float32)
    flexi = weights.load(run, cfg)
    alone = {"base_patch": (), "base_grid": (), "drawn_patches": ()}
    for side in (4, 8):
        there = patch_sizes.at(cfg, side)
        plain = models.with_fields(there, alone)
        expected = logits(there, flexi, image)
        found = logits(plain, weights.load(run, plain), image)
        np.testing.assert_allclose(found, expected, atol=2e-5)
    to = tmp_path / "flexi.safetensors"
    command = ["vit_jax", "convert", f"--from={run}", f"--to=timm:{to}"]
    assert main(command) == 2
    assert "timm has no counterpart of model.base_patch=(16,)" in capsys.readouterr().err
    fields = [f"--model.{name}=()" for name in alone]
    assert main([*command, *fields]) == 0
    plain = models.with_fields(cfg, alone)
    found = logits(plain, weights.load(f"timm:{to}", plain), image)
    np.testing.assert_allclose(found, logits(cfg, flexi, image), atol=2e-5)
