# SPDX-License-Identifier: Apache-2.0
"""Which heads and units go, by their scores, and which rows and columns with them."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from tests.refusals import refused_by
from tests.unit.models.tiny import TINY
from tests.unit.weights.runs import make_state
from vit_jax import models, trees
from vit_jax.errors import UserError
from vit_jax.models import pruning
from vit_jax.models.layers.pool import Pool
from vit_jax.models.pruning import Shares

VIT = dataclasses.replace(TINY["vit"], num_heads=4)  # of 16, two layers, 32 MLP units
MAP = dataclasses.replace(VIT, pool=Pool.MAP, class_token=False)


@pytest.mark.parametrize(
    "shares, sizes",
    [
        (Shares(), (4, 32, 0)),
        (Shares(mlp=0.5), (4, 16, 0)),
        (Shares(heads=0.25), (3, 32, 4)),
        (Shares(0.7, 0.1), (1, 29, 4)),  # 2.8 and 3.2, rounded
    ],
)
def test_the_config_has_what_is_left(shares: Shares, sizes: tuple[int, int, int]) -> None:
    small = pruning.pruned(VIT, shares)
    assert (small.num_heads, small.mlp_dim, small.head_dim) == sizes
    again = pruning.pruned(small, Shares(mlp=0.25))
    assert (again.num_heads, again.head_dim) == (sizes[0], sizes[2])


@pytest.mark.parametrize(
    "cfg, shares, message",
    [
        (TINY["swin"], Shares(mlp=0.5), "a Swin cannot be pruned: only ViT, DeiT and hybrids"),
        (VIT, Shares(heads=0.1), "--heads=0.1 removes 0 of 4 heads; give a share between 0.25 and"),
        (VIT, Shares(heads=0.9), "--heads=0.9 removes 4 of 4 heads"),
        (dataclasses.replace(VIT, mup_base_dim=8), Shares(mlp=0.5), "model.mup_base_dim=8 has no"),
        (
            dataclasses.replace(VIT, mlp_norm=True),
            Shares(mlp=0.5),
            "model.mlp_norm=True normal",
        ),
    ],
)
def test_what_cannot_be_removed_is_named(cfg: Any, shares: Shares, message: str) -> None:
    with pytest.raises(UserError, match=message):
        pruning.pruned(cfg, shares)


def test_heads_of_a_width_of_their_own_have_no_rule_of_width() -> None:
    with refused_by("models.mup.check_mup", "model.mup_base_dim") as caught:
        models.create(dataclasses.replace(VIT, head_dim=4, mup_base_dim=8))
    assert "model.head_dim" in str(caught.value)


def test_the_highest_stay_in_each_layer() -> None:
    small = pruning.pruned(VIT, Shares(heads=0.5))
    scores = {"blocks/attn/proj/kernel": np.array([[1, 4, 2, 3], [5, 5, 5, 1]])}
    kept = pruning.keep(scores, VIT, small)
    np.testing.assert_array_equal(kept["blocks/attn/proj/kernel"], [[1, 3], [0, 1]])


@pytest.mark.parametrize("cfg", [VIT, MAP], ids=["cls", "map"])
def test_rows_and_columns_go_together(cfg: Any) -> None:
    small = pruning.pruned(cfg, Shares(0.25, 0.5))
    params = make_state(cfg, 1).params
    gates = pruning.open_gates(params, cfg)
    rng = np.random.default_rng(0)
    kept = pruning.keep({k: rng.random(v.shape) for k, v in gates.items()}, cfg, small)
    cut = dict(trees.named_leaves(pruning.cut(params, kept, cfg)))
    wanted = {n: x.shape for n, x in trees.named_leaves(models.abstract(small)["params"])}
    assert {name: leaf.shape for name, leaf in cut.items()} == wanted
    whole = dict(trees.named_leaves(params))
    for i in range(cfg.depth):
        heads = kept["blocks/attn/proj/kernel"][i]
        for name, columns in (("qkv/kernel", (16, 4, 12)), ("qkv/bias", (4, 12))):
            split = whole[f"blocks/attn/{name}"][i].reshape(columns)
            left = np.asarray(split)[..., heads, :]
            np.testing.assert_array_equal(
                cut[f"blocks/attn/{name}"][i], left.reshape(*left.shape[:-2], -1)
            )
        units = kept["blocks/mlp/fc2/kernel"][i]
        np.testing.assert_array_equal(
            cut["blocks/mlp/fc1/bias"][i], whole["blocks/mlp/fc1/bias"][i][units]
        )
    np.testing.assert_array_equal(cut["blocks/attn/proj/bias"], whole["blocks/attn/proj/bias"])


def test_everything_stays_to_the_bit_where_all_is_kept() -> None:
    params = make_state(VIT, 1).params
    gates = pruning.open_gates(params, VIT)
    kept = pruning.keep({name: np.asarray(gate) for name, gate in gates.items()}, VIT, VIT)
    cut = dict(trees.named_leaves(pruning.cut(params, kept, VIT)))
    for name, leaf in trees.named_leaves(params):
        np.testing.assert_array_equal(cut[name], leaf, err_msg=name)
