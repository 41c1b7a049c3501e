# SPDX-License-Identifier: Apache-2.0
"""Token merging beside the algorithm written out in loops over NumPy arrays (arXiv:2210.09461)."""

from typing import Any

import jax.numpy as jnp
import pytest

from vit_jax import models
from vit_jax.errors import UserError
from vit_jax.models.layers.attention import AttentionImpl
from vit_jax.models.layers.mlp import Gelu
from vit_jax.models.layers.token_merging import merge


def test_one_patch_has_nothing_to_merge_with() -> None:
    x = jnp.ones((1, 2, 3))
    same, sizes = merge(x, None, x, 4, 1)
    assert same is x
    assert sizes is None


def small(**fields: Any) -> models.ViTConfig:
    base = {"image_size": (12, 20), "patch": (4, 4), "dim": 16, "depth": 3, "mlp_dim": 24}
    rest = {"num_heads": 2, "num_classes": 5, "gelu": Gelu.ERF, "zero_head": False}
    return models.variant("vit_mu8", **{**base, **rest, **fields})


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"token_merging": 8}, r"token_merging=8 must be 0 \(off\) to 7, half of the 15 patches"),
        ({"token_merging": -1}, "token_merging=-1 must be"),
        (
            {"token_merging": 1, "attention": AttentionImpl.CUDNN, "dtype": models.DType.BFLOAT16},
            "choose auto",
        ),
    ],
)
def test_what_cannot_merge_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        models.create(small(**fields))
