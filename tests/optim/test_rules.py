# SPDX-License-Identifier: Apache-2.0
"""Regex rules over the layers of a ViT."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.tiny import TINY
from vit_jax import models
from vit_jax.durations import Clock
from vit_jax.errors import UserError
from vit_jax.optim import OptimConfig, Optimizer, Row, describe, make_optimizer
from vit_jax.optim.rules import make_rules


def shape(*dims):
    return jax.ShapeDtypeStruct(dims, jnp.float32)


def vit(depth=12, **more):
    return {
        "patch_embed": {"kernel": shape(2, 2, 3, 8), "bias": shape(8)},
        "cls_token": shape(1, 1, 8),
        "pos_embed": shape(1, 5, 8),
        "blocks": {
            "norm1": {"scale": shape(depth, 8)},
            "attn": {"qkv": {"kernel": shape(depth, 8, 24), "bias": shape(depth, 24)}},
        },
        "norm": {"scale": shape(8)},
        "head": {"kernel": shape(8, 5), "bias": shape(5)},
        **more,
    }


def test_layer_decay_of_a_12_layer_vit():
    rules = make_rules(OptimConfig(layer_decay=0.75), vit())
    for name in ("patch_embed/kernel", "patch_embed/bias", "cls_token", "pos_embed"):
        np.testing.assert_allclose(rules.lr[name], 0.75**13, rtol=1e-6)
    for name in ("norm/scale", "head/kernel", "head/bias"):
        assert rules.lr[name] == 1
    kernel = rules.lr["blocks/attn/qkv/kernel"]
    assert kernel.shape == (12, 1, 1)
    assert rules.lr["blocks/norm1/scale"].shape == (12, 1)
    # BEiT, MAE: the first block 0.75**12, the last 0.75.
    np.testing.assert_allclose(kernel.ravel(), 0.75 ** np.arange(12, 0, -1), rtol=1e-6)


def test_layer_decay_takes_a_backbone_for_an_embedding():
    params = models.abstract(TINY["hybrid"])["params"]
    rules = make_rules(OptimConfig(layer_decay=0.5), params)
    depth = TINY["hybrid"].depth
    for name in ("backbone/stem/conv/kernel", "patch_embed/kernel", "cls_token"):
        np.testing.assert_allclose(rules.lr[name], 0.5 ** (depth + 1))


def test_multipliers_and_layer_decay_multiply():
    rules = make_rules(OptimConfig(layer_decay=0.5, lr_multipliers=((r"blocks/1\D", 4.0),)), vit(2))
    np.testing.assert_allclose(rules.lr["blocks/norm1/scale"].ravel(), [0.25, 2.0])
    np.testing.assert_allclose(rules.lr["norm/scale"], 1.0)


@pytest.mark.parametrize(
    "params",
    [
        {"stage": {"kernel": shape(8, 8)}},
        vit(token_blocks={"norm1": {"scale": shape(2, 8)}}),
    ],
)
def test_layer_decay_refuses_what_is_not_one_stack(params):
    with pytest.raises(UserError, match="layer_decay"):
        make_rules(OptimConfig(layer_decay=0.9), params)


def test_decay_by_layer():
    rules = make_rules(OptimConfig(weight_decay=0.1, decay=r"blocks/[01]/.*kernel$"), vit(4))
    assert rules.decayed["blocks/attn/qkv/kernel"].ravel().tolist() == [True, True, False, False]
    assert not rules.decayed["head/kernel"].any()


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"freeze": "blcoks/0"}, ["optim.freeze", "blocks/0/"]),
        # Layers are named with their index: this matches none.
        ({"freeze": "blocks/attn"}, ["optim.freeze", "'blocks/0/attn/qkv/kernel'"]),
        ({"freeze": "blocks/12/"}, ["optim.freeze"]),
        ({"weight_decay": 0.1, "decay": "weight$"}, ["optim.decay"]),
        ({"name": Optimizer.LAMB, "decay": "weight$"}, ["optim.decay"]),
        ({"lr_multipliers": (("haed/kernel", 2.0),)}, ["optim.lr_multipliers", "'head/kernel'"]),
        ({"lr_multipliers": (("head", 2.0), ("head/bias", 3.0))}, ["'head/bias'", "first"]),
        ({"freeze": "("}, ["optim.freeze", "not a regex"]),
        ({"freeze": "."}, ["optim.freeze", "no parameter to train"]),
    ],
)
def test_patterns_that_cannot_act_are_user_errors(settings, words):
    clock = Clock(batch_size=1, num_examples=1, total_steps=1)
    with pytest.raises(UserError) as error:
        make_optimizer(OptimConfig(**settings), vit(), clock)
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_describe():
    cfg = OptimConfig(
        weight_decay=0.1, freeze="embed|token|blocks/0/", lr_multipliers=(("head|blocks/3/", 10.0),)
    )
    assert describe(cfg, vit(4)) == [
        Row("blocks/attn/qkv/bias", "4x24", "no", "1 to 10 (1 of 4 layers frozen)"),
        Row("blocks/attn/qkv/kernel", "4x8x24", "3 of 4 layers", "1 to 10 (1 of 4 layers frozen)"),
        Row("blocks/norm1/scale", "4x8", "no", "1 to 10 (1 of 4 layers frozen)"),
        Row("cls_token", "1x1x8", "no", "frozen"),
        Row("head/bias", "5", "no", "10"),
        Row("head/kernel", "8x5", "yes", "10"),
        Row("norm/scale", "8", "no", "1"),
        Row("patch_embed/bias", "8", "no", "frozen"),
        Row("patch_embed/kernel", "2x2x3x8", "no", "frozen"),
        Row("pos_embed", "1x5x8", "no", "frozen"),
    ]
