# SPDX-License-Identifier: Apache-2.0
"""Attention by JAX's Pallas kernel for TPUs, interpreted on a CPU; tests/aot compiles it."""

import dataclasses
from typing import Any

import pytest

from tests.refusals import refused_by
from tests.unit.models.tiny import TINY
from vit_jax import models
from vit_jax.models.layers.attention import AttentionImpl


@pytest.mark.parametrize(
    "fields, code",
    [
        ({"attention_dropout_rate": 0.1}, "models.layers.attention.check_impl"),
        ({"token_merging": 1}, "models.layers.token_merging.check_merging"),
    ],
)
def test_what_the_kernel_cannot_compute_is_refused(fields: dict[str, Any], code: str) -> None:
    with refused_by(code, "model.attention"):
        models.create(dataclasses.replace(TINY["vit"], attention=AttentionImpl.PALLAS, **fields))
