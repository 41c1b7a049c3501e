# SPDX-License-Identifier: Apache-2.0
"""CaiT: published sizes, timm's golden, initial values, randomness, impossible configs."""

from typing import Any

import pytest
from jax.sharding import PartitionSpec as P

from tests.refusals import RANGE, Told, refused_as
from vit_jax import models
from vit_jax.devices import sharding
from vit_jax.models import CaiTConfig


def small(**fields: Any) -> CaiTConfig:
    shape = {"image_size": (8, 12), "patch": (4, 4), "num_classes": 5, "scan_unroll": 1}
    sizes = {"dim": 24, "depth": 2, "num_heads": 3, "mlp_dim": 32, "token_mlp_dim": 16}
    return models.variant("cait_xxs24", **{**shape, **sizes, **fields})


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"image_size": (9, 12)}, ("models.base.grid", "model.patch")),
        ({"num_heads": 5}, ("models.base.check_heads", "model.num_heads")),
        ({"token_depth": 0}, (RANGE, "model.token_depth")),
        ({"token_mlp_dim": 0}, (RANGE, "model.token_mlp_dim")),
        ({"depth": 0}, (RANGE, "model.depth")),
        ({"drop_path_rate": 1.0}, (RANGE, "model.drop_path_rate")),
        ({"attention_dropout_rate": -0.1}, (RANGE, "model.attention_dropout_rate")),
    ],
)
def test_impossible_configs_are_named(fields: dict, message: Told) -> None:
    with refused_as(message):
        models.create(small(**fields))


@pytest.mark.parametrize(
    "name, shape, spec",
    [
        ("token_blocks/attn/q/kernel", (2, 64, 64), P(None, "fsdp", "tensor")),
        ("token_blocks/attn/k/kernel", (2, 64, 64), P(None, "fsdp", "tensor")),
        ("token_blocks/attn/v/bias", (2, 64), P(None, "tensor")),
        ("token_blocks/attn/proj/kernel", (2, 64, 64), P(None, "tensor", "fsdp")),
        ("blocks/attn/proj_l/kernel", (24, 4, 4), P()),
        ("blocks/attn/proj_w/bias", (24, 4), P()),
    ],
)
def test_layout_over_devices(name: str, shape: tuple, spec: P) -> None:
    assert sharding.spec(name, shape, {"data": 2, "fsdp": 2, "tensor": 2}) == spec
