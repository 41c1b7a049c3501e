# SPDX-License-Identifier: Apache-2.0
"""The published sizes of DPT and Depth Anything, and heads that cannot be."""

import dataclasses

import pytest

from vit_jax import models
from vit_jax.errors import UserError
from vit_jax.models.dense import dpt
from vit_jax.models.dense.dpt import DptConfig, Readout

# Depth Anything (V2) has the published counts, 24.8, 97.5 and 335.3 M, without DINOv2's mask token;
# DPT those of the paper's layers over DINOv2's published encoders.
COUNTS = {
    "depth_anything_s": 24_785_089 - 384,
    "depth_anything_v2_b": 97_470_785 - 768,
    "depth_anything_v2_indoor_l": 335_315_649 - 1024,
    "dpt_dinov2_s": 37_197_217,
}


def test_published_sizes() -> None:
    found = {name: dpt.num_parameters(dpt.variant(name)) for name in COUNTS}
    assert found == COUNTS
    for name in dpt.names():
        head = dpt.variant(name).head
        assert (head.norm, head.to_next) == (name.startswith("depth_anything"),) * 2


def test_versions_read_other_layers() -> None:
    taps = {name: dpt.variant(name).head.taps for name in dpt.names()}
    assert taps["depth_anything_l"] == (20, 21, 22, 23)
    assert taps["depth_anything_v2_l"] == taps["dpt_dinov2_l"] == (4, 11, 17, 23)
    metric = dpt.variant("depth_anything_v2_outdoor_s").head
    assert (metric.output, metric.scale) == ("sigmoid", 80.0)
    with pytest.raises(UserError, match="depth_anything_v2_s"):
        dpt.variant("depth_anything_v3_s")


def test_heads_that_cannot_be() -> None:
    model = models.variant("vit_s14_dinov2")
    wrong = {
        "taps": (dataclasses.replace(DptConfig(), taps=(2, 5, 8, 12)), model),
        "readout": (DptConfig(), models.with_fields(model, {"class_token": False, "pool": "gap"})),
        "factors": (dataclasses.replace(DptConfig(), factors=(4.0, 1.5, 1.0, 0.5)), model),
    }
    for field, (head, encoder) in wrong.items():
        with pytest.raises(UserError) as error:
            dpt.check(head, encoder)
        assert error.value.field == f"objective.dpt.{field}"
    with pytest.raises(UserError, match="is for a ViT"):
        dpt.check(DptConfig(readout=Readout.IGNORE), models.variant("convnext_t"))
