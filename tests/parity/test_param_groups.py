# SPDX-License-Identifier: Apache-2.0
"""Layer-wise decay and weight decay group parameters as timm's optimizers do, for every family."""

import dataclasses

import numpy as np
import pytest

from tests.parity import (
    test_bit,
    test_cait,
    test_convit,
    test_convnext,
    test_hiera,
    test_hybrid,
    test_mixer,
    test_regnet,
    test_resnet,
    test_swin,
    test_vit,
)
from tests.parity.torch_models import timm
from tests.unit.models.tiny import TINY
from vit_jax import models
from vit_jax.models.layers.pool import Pool
from vit_jax.optim import OptimConfig
from vit_jax.optim.rules import make_rules
from vit_jax.weights.names.timm import entries

from timm.optim import param_groups_weight_decay  # isort: skip  (torch_models makes timm importable)

# timm's have four stages.
CONFIGS = {
    **TINY,
    "map": dataclasses.replace(TINY["vit"], pool=Pool.MAP),
    "regnet": models.variant("regnety_200mf"),
    "convnext": test_convnext.UNEVEN,
    "resnet": dataclasses.replace(
        TINY["resnet"], depths=(1, 2, 1, 1), widths=(16, 32, 64, 128), image_size=(32, 32)
    ),
}
BUILD = {
    "vit": test_vit.build,
    "map": test_vit.build,
    "deit": test_vit.build,
    "cait": test_cait.build,
    "convit": test_convit.build,
    "regnet": test_regnet.timm_model,
    "resnet": test_resnet.timm_model,
    "swin": test_swin.build,
    "convnext": test_convnext.build,
    "hiera": test_hiera.build,
    "mixer": test_mixer.build,
    "hybrid": test_hybrid.build,
    "bit": test_bit.build,
}


def by_timm_name(family, values):
    """Spread our values, one a parameter or one a layer, over timm's names."""
    found = {}
    for entry in entries(CONFIGS[family]):
        collection, name = entry.name.split("/", 1)
        if collection == "params":
            layers = np.broadcast_to(values[name].ravel(), len(entry.layers))
            found |= {part.key: layers[i].item() for i, (part,) in enumerate(entry.layers)}
    return found


def rules(family, **settings):
    return make_rules(OptimConfig(**settings), models.abstract(CONFIGS[family])["params"])


@pytest.mark.parametrize("family", CONFIGS)
def test_layer_decay_groups_as_timm(family):
    model = BUILD[family](CONFIGS[family])
    expected = timm.models.group_parameters(model, model.group_matcher(), reverse=True)
    # The exceptions that optim/rules.py names: the last norm is one with what follows it, not with
    # the last block, and CaiT's token blocks come after the patch blocks, not beside the last ones.
    own = CONFIGS["cait"].token_depth if family == "cait" else 0
    last = max(expected.values())
    for name in expected:
        if name.startswith("norm."):
            assert expected[name] == last - 1, name
            expected[name] = last + own
        elif name.startswith(("blocks_token_only.", "head.")):
            expected[name] += own
    ours = by_timm_name(family, rules(family, layer_decay=0.5).lr)
    layers = {name: last + own + round(np.log2(factor)) for name, factor in ours.items()}
    assert layers == expected


@pytest.mark.parametrize("family", CONFIGS)
def test_default_decay_is_timms_but_for_the_pools_query(family):
    ours = by_timm_name(family, rules(family, weight_decay=0.1).decayed)
    theirs = decayed_by_timm(family)
    differing = {name for name in theirs if ours[name] != theirs[name]}
    assert differing == ({"attn_pool.latent"} if family == "map" else set())
    if family == "map":
        documented = rules(family, weight_decay=0.1, decay="kernel$|map_pool/latent").decayed
        assert by_timm_name(family, documented) == theirs


def decayed_by_timm(family):
    model = BUILD[family](CONFIGS[family])
    spared = getattr(model, "no_weight_decay", set)()
    groups = param_groups_weight_decay(model, 0.1, no_weight_decay_list=spared)
    decayed = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    return {name: id(p) in decayed for name, p in model.named_parameters()}
