# SPDX-License-Identifier: Apache-2.0
"""The kernel that sees the image goes to another number of channels by timm's rule."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.refusals import refused_by
from tests.unit.models.tiny import TINY
from tests.unit.weights.test_grids import state_of
from vit_jax import models, trees, weights
from vit_jax.weights import apply


def by_timm(kernel: np.ndarray, count: int) -> np.ndarray:
    """Do as timm's adapt_input_conv, for [H, W, 3, D]."""
    if count == 1:
        return kernel.sum(2, keepdims=True)
    return np.concatenate([kernel] * 3, axis=2)[:, :, :count] * (3 / count)


def test_the_rule(caplog: pytest.LogCaptureFixture) -> None:
    kernel = np.random.default_rng(0).normal(size=(4, 4, 3, 5)).astype(np.float32)
    for count in (1, 2, 4, 6, 7):
        out = apply.adapted(kernel, count, "x")
        np.testing.assert_allclose(out, by_timm(kernel, count), atol=1e-6, err_msg=str(count))
    assert "x sees 3 channels, this model 1: the kernel that sees them is summed" in caplog.text
    # A grey network sees the mean of three equal channels as it saw the one.
    grey = kernel[:, :, :1]
    np.testing.assert_allclose(apply.adapted(grey, 3, "x").sum(2), grey[:, :, 0], atol=1e-6)
    allowed = {(old, new) for old in range(1, 8) for new in range(1, 8) if apply.fits(old, new)}
    assert (2, 1) in allowed
    assert not {(4, 1), (4, 3)} & allowed


def test_the_stem_is_what_depends_on_the_channels() -> None:
    for name, cfg in TINY.items():
        shapes = [
            {path: leaf.shape for path, leaf in trees.named_leaves(models.abstract(each))}
            for each in (cfg, dataclasses.replace(cfg, channels=5))
        ]
        differs = [path for path in shapes[0] if shapes[0][path] != shapes[1][path]]
        assert differs == [f"params/{models.family(cfg).stem}/kernel"], name


def test_files_of_every_kind_of_stem(tmp_path: Path) -> None:
    for name in ("vit", "swin", "bit"):  # the others' are patches as a ViT's
        cfg, file = TINY[name], tmp_path / f"{name}.safetensors"
        save_file(state_of(cfg), file)
        path = f"params/{models.family(cfg).stem}/kernel"
        kernel = dict(trees.named_leaves(weights.load(f"timm:{file}", cfg)))[path]
        for count in (1, 4):
            other = dataclasses.replace(cfg, channels=count)
            found = dict(trees.named_leaves(weights.load(f"timm:{file}", other)))[path]
            np.testing.assert_allclose(found, by_timm(kernel, count), atol=1e-5, err_msg=name)


def test_flattened_patches_too(tmp_path: Path) -> None:
    state = state_of(TINY["vit"])
    key = "patch_embed.proj.weight"
    flat = state | {key: state[key].reshape(len(state[key]), -1)}
    save_file(flat, tmp_path / "x.safetensors")
    cfg = dataclasses.replace(TINY["vit"], channels=1)
    found = weights.load(f"timm:{tmp_path}/x.safetensors", cfg)["params"]["patch_embed"]["kernel"]
    np.testing.assert_allclose(found[:, :, 0], state[key].sum(1).transpose(1, 2, 0), atol=1e-5)


def test_channels_that_no_rule_knows(tmp_path: Path) -> None:
    cfg = dataclasses.replace(TINY["vit"], channels=4)
    save_file(state_of(cfg), tmp_path / "x.safetensors")
    with refused_by("weights.apply._check_keys"):
        weights.load(f"timm:{tmp_path}/x.safetensors", TINY["vit"])
