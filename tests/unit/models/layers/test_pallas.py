# SPDX-License-Identifier: Apache-2.0
"""Attention by JAX's Pallas kernel for TPUs, interpreted on a CPU; tests/aot compiles it."""

import dataclasses
from typing import Any

import pytest

from tests.unit.models.tiny import TINY
from vit_jax import models
from vit_jax.errors import UserError
from vit_jax.models.layers.attention import AttentionImpl


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"attention_dropout_rate": 0.1}, "attention=pallas cannot drop weights"),
        ({"token_merging": 1}, "attention=pallas cannot weigh merged tokens"),
    ],
)
def test_what_the_kernel_cannot_compute_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        models.create(dataclasses.replace(TINY["vit"], attention=AttentionImpl.PALLAS, **fields))
