# SPDX-License-Identifier: Apache-2.0
"""Regex rules over the layers of every family."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.refusals import refused_by
from tests.unit.models.tiny import TINY
from vit_jax import models
from vit_jax.errors import UserError
from vit_jax.optim import MatrixScale, OptimConfig, Optimizer, Row, describe, make_optimizer
from vit_jax.optim.rules import check_width, make_rules
from vit_jax.settings.durations import Clock


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


# By family: parameters and the power of the factor on their learning rate, a number for each layer
# of a stack. All before the blocks stands depth + 1 below what comes after them, which has 1.
POWERS = {
    "vit": {"patch_embed/kernel": 3, "cls_token": 3, "blocks/norm1/scale": [2, 1], "norm/scale": 0},
    "deit": {"dist_token": 3, "blocks/mlp/fc1/bias": [2, 1], "head_dist/kernel": 0},
    "cait": {
        "pos_embed": 4, "cls_token": 4, "blocks/attn/proj_l/kernel": [3, 2],
        "token_blocks/attn/q/kernel": [1], "norm/scale": 0, "head/bias": 0,
    },
    "convit": {
        "cls_token": 3, "local_blocks/attn/gating_param": [2], "blocks/attn/qkv/kernel": [1],
        "norm/bias": 0,
    },
    "swin": {
        "patch_embed/kernel": 4, "patch_norm/scale": 4, "stage0/block0/attn/rel_pos_bias": 3,
        "stage0/block1/norm2/scale": 2, "stage1/merge/norm/scale": 1,
        "stage1/merge/reduction/kernel": 1, "stage1/block0/mlp/fc2/kernel": 1, "norm/scale": 0,
    },
    "hiera": {
        "patch_embed/kernel": 4, "pos_embed": 4, "stage0/block0/attn/qkv/kernel": 3,
        "stage1/block0/expand/kernel": 2, "stage1/block1/mlp/fc2/bias": 1, "fc_norm/scale": 0,
    },
    "mixer": {"patch_embed/bias": 3, "blocks/mlp_tokens/fc1/kernel": [2, 1], "head/kernel": 0},
    "hybrid": {
        "backbone/stem/conv/kernel": 3, "backbone/stage1/block0/conv1/kernel": 3,
        "patch_embed/kernel": 3, "cls_token": 3, "blocks/attn/proj/bias": [2, 1],
    },
    "bit": {
        "stem/conv/kernel": 4, "stage0/block0/downsample/conv/kernel": 3,
        "stage1/block0/downsample/conv/kernel": 2, "stage1/block1/norm1/scale": 1, "norm/scale": 0,
    },
    "resnet": {
        "stem/bn/scale": 3, "stage0/block0/conv2/bn/bias": 2, "stage1/block0/conv1/conv/kernel": 1,
        "stage1/block0/downsample/bn/scale": 1, "head/kernel": 0,
    },
    "convnext": {
        "stem/conv1/kernel": 4, "stem/norm/scale": 4, "stage0/blocks/conv_dw/kernel": [3],
        "stage1/downsample/norm/scale": 2, "stage1/downsample/conv/kernel": 2,
        "stage1/blocks/mlp/fc2/kernel": [2, 1], "stage1/blocks/ls/gamma": [2, 1], "norm/scale": 0,
    },
    "regnet": {"stem/conv/kernel": 3, "stage0/block0/se/fc1/bias": 2, "head/bias": 0},
}  # fmt: skip


@pytest.mark.parametrize("family", TINY)
def test_layer_decay_of_every_family(family):
    rules = make_rules(OptimConfig(layer_decay=0.5), models.abstract(TINY[family])["params"])
    for name, powers in POWERS[family].items():
        np.testing.assert_allclose(rules.lr[name].ravel(), 0.5 ** np.array(powers), err_msg=name)


def test_layer_decay_counts_ten_blocks_by_number():
    params = {f"stage{i}": {f"block{j}": {"kernel": shape(2)} for j in range(11)} for i in (0, 1)}
    lr = make_rules(OptimConfig(layer_decay=0.5), params).lr
    assert lr["stage0/block2/kernel"] == 2.0 ** -(22 - 2)
    assert lr["stage0/block10/kernel"] == 2.0 ** -(22 - 10)
    assert lr["stage1/block10/kernel"] == 0.5


def test_layer_decay_of_what_precedes_clips_blocks():
    clip = dataclasses.replace(TINY["vit"], pre_norm=True, patch_bias=False, num_registers=2)
    lr = make_rules(OptimConfig(layer_decay=0.5), models.abstract(clip)["params"]).lr
    assert lr["norm_pre/scale"] == lr["reg_token"] == 0.125


def test_multipliers_and_layer_decay_multiply():
    rules = make_rules(OptimConfig(layer_decay=0.5, lr_multipliers=((r"blocks/1\D", 4.0),)), vit(2))
    np.testing.assert_allclose(rules.lr["blocks/norm1/scale"].ravel(), [0.25, 2.0])
    np.testing.assert_allclose(rules.lr["norm/scale"], 1.0)


@pytest.mark.parametrize(
    "params, named",
    [
        ({"layer": {"kernel": shape(8, 8)}}, "no blocks"),
        (vit(other_blocks={"norm1": {"scale": shape(2, 8)}}), "'other_blocks'"),
    ],
)
def test_layer_decay_refuses_what_it_cannot_count(params, named):
    with pytest.raises(UserError, match=f"optim.layer_decay .*{named}.*lr_multipliers"):
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
    with refused_by("settings.fields.regex", "optim.freeze"):
        make_optimizer(OptimConfig(freeze="("), vit(), clock)


def test_describe_what_is_held():
    cfg = OptimConfig(weight_decay_end=0.1, layer_decay=0.5, hold="head|blocks", hold_for="1 epoch")
    rows = {row.parameter: row for row in describe(cfg, vit(2))}
    assert rows["head/kernel"] == Row("head/kernel", "8x5", "yes", "1 (held for 1 epoch)")
    assert rows["blocks/norm1/scale"].lr == "0.25 to 0.5 (held for 1 epoch)"
    assert rows["norm/scale"].lr == "1"


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


@pytest.mark.parametrize(
    "settings, told",
    [
        (
            {"name": Optimizer.LAMB},
            "lamb; choose optim.name from adamw, lion, adafactor, muon, sgd",
        ),
        (
            {"name": Optimizer.NORMUON},
            "normuon; choose optim.name from adamw, lion, adafactor, muon, sgd",
        ),
        (
            {"name": Optimizer.MUON, "muon_scale": MatrixScale.JORDAN},
            "muon's own scale; set optim.muon_scale=adamw",
        ),
        ({"sam_rho": 0.1}, "sharpness-aware minimisation; set optim.sam_rho=0"),
        (
            {"name": Optimizer.SGD},
            "sgd with clipping by the global norm, which grows; set optim.clip_norm=0",
        ),
        (
            {"name": Optimizer.SGD, "clip_norm": 0.0, "coupled_decay": True},
            "sgd with coupled decay; set optim.coupled_decay=False and a weight decay of its own",
        ),
    ],
)
def test_what_does_not_carry_over_to_another_width(settings, told):
    check_width(OptimConfig())
    with pytest.raises(UserError) as error:
        check_width(OptimConfig(**settings))
    assert str(error.value) == f"model.mup_base_dim has no rule for {told}"
