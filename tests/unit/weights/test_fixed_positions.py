# SPDX-License-Identifier: Apache-2.0
"""A stored table of positions is the one that the model computes, or is refused."""

import dataclasses

import numpy as np
import pytest

from tests.unit.models.tiny import TINY
from vit_jax.errors import UserError
from vit_jax.models.layers.posemb import FIXED, PosEmbed, sincos2d
from vit_jax.weights.apply import in_memory
from vit_jax.weights.resize import matched


@pytest.mark.parametrize("kind", sorted(FIXED))
def test_a_table_is_the_computed_one_or_refused(kind: PosEmbed) -> None:
    fixed = dataclasses.replace(TINY["vit"], pos_embed=kind, image_size=(8, 12))
    computed = sincos2d(2, 3, 16, kind)
    table = np.concatenate([np.zeros((1, 16), np.float32), computed])[None]
    file = in_memory({"pos_embed": table, "norm.bias": np.ones(16)})
    for prefix in (1, 0):
        cut = in_memory({"pos_embed": table[:, 1 - prefix :], "norm.bias": np.ones(16)})
        assert set(matched(cut, fixed).shapes) == {"norm.bias"}
    for at in (0, -1):  # of the class token, of a patch
        other = table.copy()
        other[0, at, 3] += 0.01
        with pytest.raises(UserError, match=f"other positions than model.pos_embed={kind}"):
            matched(in_memory({"pos_embed": other}), fixed)
    learned = dataclasses.replace(fixed, pos_embed=PosEmbed.LEARNED)
    there = in_memory({"norm.bias": np.ones(16)})
    given = matched(there, learned, fixed)
    np.testing.assert_array_equal(given.read("pos_embed"), table)
    np.testing.assert_array_equal(given.read("norm.bias"), np.ones(16))
    for old in (None, learned):
        assert matched(file, learned, old) is file
    assert matched(there, fixed) is there
