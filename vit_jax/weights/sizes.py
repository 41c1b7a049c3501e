# SPDX-License-Identifier: Apache-2.0
"""The grids behind those parameters whose shape follows from the size of the images."""

from typing import Any

from vit_jax import models
from vit_jax.models import ModelConfig, swin

Grid = tuple[int, int]


def positions(cfg: Any) -> tuple[int, Grid]:
    """Return how many positions of a `pos_embed` come before the patches', and the patches' grid.

    `cfg` is of a family that has such a table; only those of the ViT's kind have some before.
    """
    covered = models.num_prefix(cfg) if getattr(cfg, "pos_embed_prefix", False) else 0
    return covered, models.patch_grid(cfg, models.pair(cfg.image_size, "image_size"))


def windows(cfg: ModelConfig) -> list[Grid]:
    """Return the (rows, columns) of each stage's windows, of whose offsets `rel_pos_bias` is."""
    assert isinstance(cfg, swin.SwinConfig)
    return swin.fitted_windows(cfg)
