# SPDX-License-Identifier: Apache-2.0
"""Which ConvNeXt of transformers' a config becomes, read again, and what none of them is."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from tests.unit.export.test_transformers import read_again
from tests.unit.inference.exported import trained
from tests.unit.models.tiny import TINY
from vit_jax import models, trees
from vit_jax.errors import UserError
from vit_jax.export import transformers, transformers_convnext
from vit_jax.models.layers.mlp import Gelu

V1: Any = dataclasses.replace(TINY["convnext"], grn=False)
V2: Any = dataclasses.replace(TINY["convnext"], layer_scale=0.0)
ENCODER: Any = dataclasses.replace(V1, num_classes=0)
APART = dataclasses.replace(ENCODER, head_norm_eps=1e-12, gelu=Gelu.TANH)
KINDS = [
    ("convnext", V1, "convnext.encoder.stages.1.layers.1.layer_scale_parameter"),
    ("convnextv2", V2, "convnextv2.encoder.stages.1.layers.1.grn.weight"),
    ("dinov3_convnext", ENCODER, "stages.1.layers.1.pointwise_conv2.bias"),
    ("convnext", APART, "encoder.stages.1.downsampling_layer.0.weight"),
    ("convnext", dataclasses.replace(V1, layer_scale=0.0), "convnext.layernorm.bias"),
]


def test_each_is_read_again() -> None:
    for kind, cfg, key in KINDS:
        variables = trained(cfg).variables
        state = transformers.to_hf(variables, cfg)
        assert key in state
        assert transformers.config(cfg, ["a", "b", "c"])["model_type"] == kind
        found, read = read_again(cfg, variables)
        assert found == dataclasses.replace(cfg, scan_unroll=0)
        for name, value in trees.named_leaves(variables):
            np.testing.assert_array_equal(read[name], value, err_msg=name)


def test_an_encoder_gets_the_layer_scale_that_is_always_there() -> None:
    cfg = dataclasses.replace(ENCODER, layer_scale=0.0)
    assert transformers_convnext.standard(cfg).layer_scale == 1.0
    _, read = read_again(cfg, trained(cfg).variables)
    np.testing.assert_array_equal(read["params/stage0/blocks/ls/gamma"], np.ones((1, 8)))


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"stem": "overlap"}, "no ConvNeXt of transformers' has model.stem=overlap"),
        ({"pre_logits_dim": 4}, "has model.pre_logits_dim=4"),
        ({"norm": "rms"}, "has model.norm=rms"),
        ({"image_size": (16, 20)}, r"for squares, not model.image_size=\(16, 20\)"),
        ({"grn": True}, "convnextv2 has model.layer_scale=0.0 beside model.grn"),
        ({"norm_eps": 1e-5}, "transformers' convnext has model.norm_eps=1e-06, not 1e-05"),
    ],
)
def test_what_none_of_them_computes_is_named(fields: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        transformers.config(models.with_fields(V1, fields), ())
