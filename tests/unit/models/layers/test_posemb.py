# SPDX-License-Identifier: Apache-2.0
"""Fixed position tables against their formula, and the resampling of learned ones."""

import numpy as np
import pytest

from vit_jax.models.layers.posemb import PosEmbed, resample, sincos2d


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
