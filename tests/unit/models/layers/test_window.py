# SPDX-License-Identifier: Apache-2.0
"""Windows of a grid: their size and shift, who sees whom, and the bias of each pair."""

import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.models.layers.window import MASKED, fit_window, relative_bias, shift_mask


@pytest.mark.parametrize(
    "grid, window, shifted, found",
    [
        ((8, 8), (4, 4), False, ((4, 4), (0, 0))),
        ((8, 8), (4, 4), True, ((4, 4), (2, 2))),
        ((8, 4), (4, 4), True, ((4, 4), (2, 0))),
        ((3, 8), (7, 7), True, ((3, 7), (0, 3))),
    ],
)
def test_a_grid_no_longer_than_the_window_is_one_window(
    grid: tuple, window: tuple, shifted: bool, found: tuple
) -> None:
    assert fit_window(grid, window, shifted=shifted) == found


def test_each_pair_has_the_bias_of_its_offset() -> None:
    rows, columns = 2, 3
    table = jnp.arange((2.0 * rows - 1) * (2 * columns - 1))[:, None]
    bias = np.asarray(relative_bias(table, (rows, columns)))[0]
    tokens = [(y, x) for y in range(rows) for x in range(columns)]
    for i, (y, x) in enumerate(tokens):
        for j, (v, u) in enumerate(tokens):
            offset = (y - v + rows - 1) * (2 * columns - 1) + (x - u + columns - 1)
            assert bias[i, j] == offset


def test_what_the_shift_made_neighbours_is_masked() -> None:
    mask = shift_mask((4, 4), (2, 2), (1, 0))
    assert mask.shape == (4, 4, 4)
    np.testing.assert_array_equal(mask[:2], 0)  # the upper windows hold no wrapped row
    # In the lower ones the second row came from the top.
    expected = np.full((4, 4), MASKED)
    expected[:2, :2] = expected[2:, 2:] = 0
    np.testing.assert_array_equal(mask[2], expected)
