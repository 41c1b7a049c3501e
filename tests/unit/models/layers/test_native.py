# SPDX-License-Identifier: Apache-2.0
"""Where patches lie in their rows, and what a model of images of any size refuses."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import models
from vit_jax.errors import UserError
from vit_jax.models.layers.native import places


def test_patches_lie_image_after_image_row_by_row() -> None:
    grids = jnp.array([[[2, 3], [0, 0], [1, 2]], [[0, 0], [0, 0], [0, 0]]], jnp.int32)
    found = places(grids, 10)
    assert np.asarray(found.segment).tolist() == [[0] * 6 + [2] * 2 + [3] * 2, [3] * 10]
    at = [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2], [0, 0], [0, 1], [0, 0], [0, 0]]
    assert np.asarray(found.at[0]).tolist() == at
    assert np.asarray(found.grid[0]).tolist() == [[2, 3]] * 6 + [[1, 2]] * 2 + [[1, 1]] * 2


@pytest.mark.parametrize(
    "fields, text",
    [
        ({"rope": "dinov3"}, "needs model.rope=none"),
        ({"pos_embed_prefix": True}, "pos_embed_prefix=False"),
        ({"pos_embed": "sincos2d"}, "no pos_embed=sincos2d"),
        (
            {"distilled": True, "fc_norm": False, "pool": "cls", "class_token": True},
            "distilled=False",
        ),
        ({"patch_drop_rate": 0.5}, "patch_drop_rate=0"),
        ({"dynamic_image_size": True}, "which native includes"),
        ({"pos_embed": "factorized", "pos_embed_resize": "linear"}, "pos_embed_resize=cubic"),
        ({"native": False, "pos_embed_square": True}, "pos_embed_square is of images of any size"),
        ({"native": False, "final_norm": False}, "final_norm is of images of any size"),
        ({"native": False, "base_grid": (), "pos_embed": "factorized"}, "needs model.native"),
    ],
)
def test_what_has_no_rule_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(UserError, match=text):
        models.create(models.variant("naflexvit_b16_gap", **fields))
