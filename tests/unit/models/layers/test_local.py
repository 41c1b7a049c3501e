# SPDX-License-Identifier: Apache-2.0
"""Windows of a grid of patches: who sees whom, and what does not fit together."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from tests.refusals import refused_by
from tests.unit.models.tiny import TINY
from vit_jax import models
from vit_jax.data import DataConfig
from vit_jax.errors import UserError
from vit_jax.models.base import DType
from vit_jax.models.layers.attention import AttentionImpl
from vit_jax.models.layers.local import WindowLayout, pattern
from vit_jax.objectives import MaeConfig

VIT = dataclasses.replace(TINY["vit"], depth=4, image_size=(20, 12))  # 5 x 3 patches


def test_split_and_join_are_each_others_inverse() -> None:
    layout = WindowLayout((5, 3), (2, 2), 0)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 15, 4)), jnp.float32)
    windows = layout.split(x)
    assert windows.shape == (2, 3 * 6, 4, 4)
    np.testing.assert_array_equal(layout.join(windows, 3), x)
    # Head 1, the window in row 1 and column 0: patches of rows 2 and 3, columns 0 and 1.
    np.testing.assert_array_equal(windows[:, 6 + 2], x[:, 1, jnp.array([6, 7, 9, 10])])


def test_who_sees_whom() -> None:
    sees = WindowLayout((2, 3), (2, 2), 1).sees()
    expected = np.ones((7, 7), bool)
    left, right = [1, 2, 4, 5], [3, 6]
    expected[np.ix_(left, right)] = expected[np.ix_(right, left)] = False
    np.testing.assert_array_equal(sees, expected)


def test_the_last_block_of_a_period_is_global() -> None:
    cfg = dataclasses.replace(VIT, window=2, global_blocks=2)
    assert pattern(cfg, (5, 3)) == ((2, 2), None)
    assert pattern(dataclasses.replace(VIT, window=4), (5, 3)) == ((4, 3),)
    assert pattern(dataclasses.replace(VIT, axial=True), (5, 3)) == ((1, 3), (5, 1))
    assert pattern(VIT, (5, 3)) == ()


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"global_blocks": 2}, "model.global_blocks=2 stand between blocks of windows"),
        ({"window": 2, "global_blocks": 3}, "must divide model.depth=4: 1, 2, 4"),
        ({"window": 2, "axial": True}, "set model.window=0"),
        ({"axial": True, "depth": 3}, "an even model.depth, not 3"),
        ({"window": 2, "token_merging": 1}, "model.token_merging leaves no grid"),
        (
            {"window": 2, "attention": AttentionImpl.CUDNN, "dtype": DType.BFLOAT16},
            "cannot hide the padding of model.window=2, which does not divide 5x3 patches",
        ),
    ],
)
def test_what_does_not_fit_together_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        models.create(dataclasses.replace(VIT, **fields))


def test_a_masked_autoencoder_has_no_grid() -> None:
    for field, value in (("window", 2), ("axial", True)):
        cfg = dataclasses.replace(VIT, **{field: value}, num_classes=0)
        with refused_by("objectives.hiding.check_part", f"model.{field}"):
            MaeConfig().check(cfg, DataConfig())
