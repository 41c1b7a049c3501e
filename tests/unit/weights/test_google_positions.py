# SPDX-License-Identifier: Apache-2.0
"""Position tables with and without a row for the class token: the same outputs either way."""

import pytest

from vit_jax.weights.names.google import has_class_row


@pytest.mark.parametrize(
    "rows, num_patches, expected",
    [
        (197, 196, True),
        (196, 196, False),
        (577, 196, True),
        (576, 196, False),
        (7, 6, True),
        (6, 6, False),
        (5, 6, True),
        (4, 6, False),
        (8, 6, False),
        (2, 1, True),
        (1, 1, False),
        (1, 6, False),
        (0, 6, False),
    ],
)
def test_has_class_row(rows: int, num_patches: int, expected: bool) -> None:
    assert has_class_row(rows, num_patches) is expected
