# SPDX-License-Identifier: Apache-2.0
"""I-JEPA's blocks of patches, the pieces of its loss, what it refuses."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.refusals import Told, refused_as
from vit_jax import models
from vit_jax.data import DataConfig
from vit_jax.objectives import IJepaConfig
from vit_jax.objectives.ijepa import block_sizes, draw, normalized, smooth_l1

GRID = (16, 16)


def _model(**fields: Any) -> Any:
    small = {"num_classes": 0, "image_size": (16, 16), "patch": (4, 4), "dim": 16, "num_heads": 2}
    return models.variant("vit_mu8", **{**small, "pool": "gap", **fields})


def test_sizes_of_blocks_are_the_authors() -> None:
    sizes = block_sizes(GRID, (0.15, 0.2), (0.75, 1.5))
    for share in np.linspace(0.01, 0.99, 9):
        area, aspect = int(256 * (0.15 + share * 0.05)), 0.75 + share * 0.75
        wanted = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        assert tuple(sizes[int(share * len(sizes))]) == wanted
    assert {*map(tuple, sizes)} >= {(5, 7), (9, 6)}  # low and wide, high and narrow
    # A square of the whole is cut below the grid's sides; of few patches one is left.
    assert {*map(tuple, block_sizes(GRID, (0.85, 1.0), (1.0, 1.0)))} == {(15, 15)}
    assert {*map(tuple, block_sizes((2, 2), (0.0, 0.1), (1.0, 1.0)))} == {(1, 1)}


def test_where_few_patches_are_free_others_follow() -> None:
    cfg = IJepaConfig(targets=1, target_scale=(0.2, 0.2), context_scale=(0.3, 0.3))
    found = draw(jax.random.key(3), 8, (4, 4), 15, cfg)
    for kept, block, real in zip(found.kept, found.targets[:, 0], found.real, strict=True):
        inside = np.isin(np.asarray(kept), np.asarray(block)[np.asarray(real)])
        # Those of the block come last.
        assert inside.sum() == 15 - (16 - real.sum())
        assert not inside[: 16 - int(real.sum())].any()


def test_loss_and_targets_are_pytorchs() -> None:
    torch = pytest.importorskip("torch").nn.functional
    import torch as pt

    rng = np.random.default_rng(0)
    x, y = (rng.normal(0, 2, (2, 3, 4, 5)).astype(np.float32) for _ in range(2))
    wanted = torch.smooth_l1_loss(pt.tensor(x), pt.tensor(y), reduction="none").mean(-1)
    np.testing.assert_allclose(smooth_l1(jnp.asarray(x), jnp.asarray(y)), wanted, rtol=1e-6)
    wanted = torch.layer_norm(pt.tensor(x[0]), (5,))
    np.testing.assert_allclose(normalized(jnp.asarray(x[0])), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("fields", "model", "named"),
    [
        ({"target_scale": (0.3, 0.2)}, {}, r"objective\.target_scale=\(0\.3, 0\.2\)"),
        ({"context_share": 0.05}, {}, ("objectives.hiding.counted", "objective.context_share")),
        (
            {"predictor_dim": 30},
            {},
            ("objectives.ijepa.IJepaConfig.check", "objective.predictor_dim"),
        ),
        ({"predictor_heads": 7}, {}, ("models.base.check_heads", "objective.predictor_heads")),
        ({}, {"fc_norm": True}, ("objectives.hiding.check_part", "model.fc_norm")),
        ({}, {"pos_embed": "none", "rope": "dinov3"}, ("objectives.hiding.check_part", "")),
    ],
)
def test_refusals(fields: dict, model: dict, named: Told) -> None:
    with refused_as(named):
        IJepaConfig(**fields).check(_model(**model), DataConfig())
