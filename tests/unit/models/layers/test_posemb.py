# SPDX-License-Identifier: Apache-2.0
"""Fixed position tables against their formula, and the resampling of learned ones."""

from typing import Any

import numpy as np
import pytest

from tests.refusals import Told, refused_as
from vit_jax import models
from vit_jax.devices import sharding
from vit_jax.models.layers.posemb import PosEmbed, placed, resample, sincos2d
from vit_jax.optim.rules import _EMBEDDING
from vit_jax.weights.resize import ResizeRule, resizer


@pytest.mark.parametrize("kind, intervals", [(PosEmbed.SINCOS2D, 3), (PosEmbed.SINCOS2D_MAE, 4)])
def test_the_table_is_sines_of_column_and_row(kind: PosEmbed, intervals: int) -> None:
    table = sincos2d(2, 3, 16, kind)
    omega = 10_000.0 ** -(np.arange(4) / intervals)
    y, x = 1, 2
    expected = [np.sin(x * omega), np.cos(x * omega), np.sin(y * omega), np.cos(y * omega)]
    np.testing.assert_allclose(table[y * 3 + x], np.concatenate(expected), rtol=1e-6)
    assert table.dtype == np.float32


def test_a_table_of_the_same_grid_is_left_alone() -> None:
    table = np.ones((1, 7, 2), np.float32)
    assert resample(table, 1, (2, 3), (2, 3)) is table


def test_the_prefix_stays_and_the_patches_are_resampled_by_row_and_column() -> None:
    rows = np.repeat(np.arange(4.0), 2).reshape(1, 8, 1)  # 4 rows of 2 columns
    table = np.concatenate([np.full((1, 1, 1), 9.0), rows], axis=1).astype(np.float32)
    found = np.asarray(resample(table, 1, (4, 2), (2, 4)))
    assert found.shape == (1, 9, 1)
    assert found[0, 0, 0] == 9
    grid = found[0, 1:].reshape(2, 4)
    assert np.ptp(grid, axis=1).max() < 1e-5, "a column moved into a row"
    assert grid[0, 0] < 1.5 < grid[1, 0]


@pytest.mark.parametrize(
    "fields, told",
    [
        (
            {"pos_embed": "relative", "window": 2},
            "pos_embed=relative is of all tokens; unset model.w",
        ),
        (
            {"pos_embed": "relative", "attention": "pallas"},
            "attention's logits; set attention=auto",
        ),
        (
            {"pos_embed": "relative", "mup_base_dim": 192},
            ("models.mup.check_mup", "model.mup_base_dim"),
        ),
        ({"pos_embed": "sincos2d", "pos_embed_at": "shared"}, "shared is of pos_embed=learned or"),
        (
            {"pos_embed_at": "layers", "dynamic_image_size": True},
            "layers is of one grid; unset model",
        ),
        (
            {"pos_embed_at": "shared", "patch_drop_rate": 0.5},
            ("models.families.vit_config.check_transformer", "model.patch_drop_rate"),
        ),
        (
            {"pos_embed_at": "shared", "token_merging": 2},
            "is of all tokens; unset model.token_merg",
        ),
    ],
)
def test_fields_that_do_not_go_together_are_one_line(fields: dict[str, Any], told: Told) -> None:
    with refused_as(told):
        models.create(models.with_fields(models.variant("vit_ti16"), fields))


def test_what_blocks_need_to_know_is_named_by_the_setting_that_ends_it() -> None:
    base = models.variant("vit_ti16")
    assert placed(base) == placed(models.with_fields(base, {"pos_embed": "learned2d"})) == ""
    for field, value, setting in (
        ("rope", "lang", "rope=none"),
        ("pos_embed", "relative", "pos_embed=learned"),
        ("pos_embed_at", "layers", "pos_embed_at=stem"),
    ):
        assert placed(models.with_fields(base, {field: value})) == setting


def test_tables_are_sharded_slowed_down_and_resized_as_one_is() -> None:
    sizes = {"data": 1, "fsdp": 2, "tensor": 1}
    for name in ("pos_embed", "pos_embed_x", "pos_embed_y"):
        assert sharding.spec(name, (12, 16, 64), sizes)[2] == "fsdp"
        assert _EMBEDDING.match(name)
    cfg = models.variant("vit_ti16", image_size=(64, 64), pos_embed_at="layers")
    file = np.random.default_rng(0).normal(size=(12, 1 + 9, 192)).astype(np.float32)
    resize = resizer(ResizeRule.TIMM, cfg)
    assert resize is not None
    found = resize("pos_embed", file, (12, 17, 192))
    assert found.shape == (12, 17, 192)
    for layer in (0, 11):
        one = resize("pos_embed", file[layer : layer + 1], (1, 17, 192))
        np.testing.assert_array_equal(found[layer], one[0])
