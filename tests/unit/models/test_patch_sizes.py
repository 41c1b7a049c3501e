# SPDX-License-Identifier: Apache-2.0
"""The draw of a step's patch size, and what of a FlexiViT does not depend on it."""

from collections import Counter
from typing import Any

import pytest

from tests.refusals import refused_by
from vit_jax import models, trees
from vit_jax.cost.flops import forward_flops
from vit_jax.errors import UserError
from vit_jax.models import patch_sizes

DRAWN = (48, 40, 30, 24, 20, 16, 15, 12, 10, 8)
FIRST = [30, 12, 30, 20, 24, 40, 30, 24]
SMALL: dict[str, Any] = {"dim": 8, "depth": 1, "num_heads": 2, "mlp_dim": 16, "num_classes": 3}


def flexi(**fields: Any) -> models.ViTConfig:
    return models.variant("flexivit_s", **{**SMALL, "drawn_patches": DRAWN, **fields})


def side(cfg: models.ViTConfig, seed: int, step: int) -> int:
    return patch_sizes.sides(cfg)[patch_sizes.drawn(cfg, seed, step)]


def test_draws_are_a_function_of_seed_and_step() -> None:
    # Any host and any resumed run computes the same; these numbers never change.
    cfg = flexi()
    assert [side(cfg, 0, step) for step in range(8)] == FIRST
    assert [side(cfg, 1, step) for step in range(8)] != FIRST
    assert side(cfg, -1, 10**6) in DRAWN


def test_draws_are_uniform() -> None:
    counts = Counter(side(flexi(), 3, step) for step in range(2500))
    assert set(counts) == set(DRAWN)
    assert max(abs(count - 250) for count in counts.values()) < 5 * 15  # 5 standard deviations
    twice = flexi(drawn_patches=(8, 8, 16))
    assert patch_sizes.sides(twice) == (8, 16)
    assert Counter(side(twice, 0, step) for step in range(400))[8] > 240


def test_a_model_of_one_size_draws_nothing() -> None:
    for cfg in (models.variant("vit_mu16"), models.variant("mixer_b16"), flexi(drawn_patches=())):
        assert patch_sizes.sides(cfg) == patch_sizes.draws(cfg) == (0,)
        assert patch_sizes.drawn(cfg, 0, 7) == 0
        assert patch_sizes.at(cfg, 0) is cfg
    with pytest.raises(UserError, match="only a FlexiViT"):
        patch_sizes.at(models.variant("mixer_b16"), 8)


def test_every_size_has_the_same_parameters() -> None:
    shapes = models.abstract(flexi())
    for side in DRAWN:
        assert models.abstract(patch_sizes.at(flexi(), side)) == shapes


@pytest.mark.parametrize(
    "name, like", [("flexivit_s", "vit_s16"), ("flexivit_b", "vit_b16"), ("flexivit_l", "vit_l16")]
)
def test_parameters_of_the_published(name: str, like: str) -> None:
    cfg, plain = models.variant(name), models.variant(like)
    counts = [trees.num_params(models.abstract(each)["params"]) for each in (cfg, plain)]
    # A kernel of 32 x 32 for one of 16 x 16, positions of 7 x 7 for those of 14 x 14 and a token.
    assert counts[0] - counts[1] == cfg.dim * (3 * (32**2 - 16**2) + 7**2 - 14**2 - 1)


def test_the_resize_counts_no_flops_of_an_image() -> None:
    for side in (48, 8):
        plain = models.variant("vit_mu16", **SMALL, patch=(side, side), image_size=(240,))
        module = models.create(patch_sizes.at(flexi(), side))
        assert forward_flops(module, 240) == forward_flops(models.create(plain), 240)


@pytest.mark.parametrize(
    "fields, field",
    [({"base_grid": ()}, ""), ({"base_patch": (), "base_grid": ()}, "model.drawn_patches")],
)
def test_refusals(fields: dict[str, Any], field: str) -> None:
    with refused_by("models.families.vit_config.validate", field):
        models.create(flexi(**fields))


def test_a_hybrid_has_one_size() -> None:
    with refused_by("models.families.hybrid.validate", "model.base_patch"):
        models.create(models.variant("r_vit_ti16", base_patch=(2,), base_grid=(4,)))
