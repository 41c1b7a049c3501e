# SPDX-License-Identifier: Apache-2.0
"""Maximal update parametrisation: what a ViT tuned at one width does at another."""

import dataclasses
import json
from typing import Any

import pytest

from benchmarks import mup
from tests.refusals import RANGE, Told, refused_as, refused_by
from tests.unit.models.tiny import TINY, shrink
from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.config.tree import Config
from vit_jax.models.layers.pool import Pool
from vit_jax.models.layers.rope import Rope
from vit_jax.optim import OptimConfig, Optimizer
from vit_jax.weights import export


def everything(**fields: Any) -> models.ViTConfig:
    """Return a ViT with a parameter of each kind, four times as wide as its base."""
    base = {"mup_base_dim": 4, "mup_base_heads": 1}
    more = {"qk_norm": True, "layer_scale": 0.1, "num_registers": 1, "pre_norm": True}
    cfg = TINY["vit"]
    return dataclasses.replace(cfg, **{"pool": Pool.MAP, **base, **more, **fields})


@pytest.mark.parametrize(
    ("fields", "optim", "message"),
    [
        ({"mup_base_dim": -1}, {}, (RANGE, "model.mup_base_dim")),
        ({"mup_base_heads": 2}, {}, "model.mup_base_heads=2 has no effect without model.mup_base"),
        (
            {"mup_base_dim": 8, "mup_base_heads": 3},
            {},
            "model.mup_base_heads=3 does not divide model.mup_base_dim=8",
        ),
        (
            {"mup_base_dim": 8, "pre_logits_dim": 16},
            {},
            "model.mup_base_dim has no rule for model.pre_logits_dim; set that to 0",
        ),
        (
            {"mup_base_dim": 8, "rope": Rope.MIXED},
            {},
            "no rule for what model.rope=mixed learns",
        ),
        (
            {"mup_base_dim": 8},
            {"name": Optimizer.LAMB},
            ("optim.rules.check_width", "model.mup_base_dim"),
        ),
        ({"mup_base_dim": 8}, {"sam_rho": 0.1}, ("optim.rules.check_width", "model.mup_base_dim")),
        (
            {"mup_base_dim": 8},
            {"name": Optimizer.SGD},
            ("optim.rules.check_width", "model.mup_base_dim"),
        ),
        (
            {"mup_base_dim": 8},
            {
                "name": Optimizer.SGD,
                "clip_norm": 0.0,
                "weight_decay": 0.1,
                "coupled_decay": True,
            },
            ("optim.rules.check_width", "model.mup_base_dim"),
        ),
    ],
)
def test_what_has_no_rule_is_refused(
    fields: dict[str, Any], optim: dict[str, Any], message: Told
) -> None:
    cfg = Config(model=shrink(models.variant("vit_b16"), **fields), optim=OptimConfig(**optim))
    with refused_as(message):
        config_lib.check(cfg)


def test_what_is_refused_is_taken_without_a_base() -> None:
    for optim in (OptimConfig(name=Optimizer.LAMB), OptimConfig(sam_rho=0.1)):
        config_lib.check(Config(model=shrink(models.variant("vit_b16")), optim=optim))
    with refused_by("models.with_fields") as caught:
        models.variant("swin_t", mup_base_dim=48)
    assert "mup_base_dim" in str(caught.value)


def test_an_export_without_a_factor_changes_no_bit() -> None:
    cfg = everything(mup_base_heads=0)
    assert export.standard(cfg) is cfg


def test_the_tables_of_the_page_are_the_ones_measured() -> None:
    page = (mup.IMAGES.parent / "mup.md").read_text().splitlines()
    content = json.loads(mup.RESULTS.read_text())
    checked = content["coordinates"].pop("widths")
    table = mup.powers(checked, content["coordinates"])
    found = [
        *table.splitlines(),
        *mup.markdown(mup.read(mup.RESULTS), content["widths"]).splitlines(),
    ]
    assert [line for line in found if line not in page] == []
