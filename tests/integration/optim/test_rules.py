# SPDX-License-Identifier: Apache-2.0
"""Regex rules over the layers of every family."""

import dataclasses
import re

import numpy as np
import pytest

from tests.unit.models.tiny import TINY
from vit_jax import models
from vit_jax.models.layers.pool import Pool
from vit_jax.optim import OptimConfig
from vit_jax.optim.rules import make_rules
from vit_jax.weights.names import timm

# More of what a ViT may hold: registers, scaled branches, norms of q and k, one before the blocks.
MORE = {
    "clip": dataclasses.replace(
        TINY["vit"], num_registers=2, layer_scale=0.1, qk_norm=True, pre_norm=True, patch_bias=False
    ),
    "map": dataclasses.replace(TINY["vit"], pool=Pool.MAP, class_token=False),
}


@pytest.mark.parametrize("family", TINY | MORE)
def test_default_decay_is_the_authors(family):
    # DeiT, CaiT, ConViT, Swin, timm: every tensor of theirs with more than one axis, but for
    # positions, tokens and bias tables. Google: kernels alone.
    cfg = {**TINY, **MORE}[family]
    rules = make_rules(OptimConfig(weight_decay=0.1), models.abstract(cfg)["params"])
    spared = re.compile(r"^(pos_embed|(cls|dist|reg)_token)$|relative_position_bias_table$")
    if family == "map":  # timm decays the probe as well; its authors, big_vision, do not
        spared = re.compile(rf"{spared.pattern}|^attn_pool\.latent$")
    authors = {}
    for entry in timm.entries(cfg):
        collection, name = entry.name.split("/", 1)
        if collection == "params":
            there = [len(p.shape) > 1 and not spared.search(p.key) for (p,) in entry.layers]
            authors[name] = there
    ours = {name: np.broadcast_to(rules.decayed[name].ravel(), len(there)).tolist()
            for name, there in authors.items()}  # fmt: skip
    assert ours == authors
    assert any(map(any, authors.values()))
