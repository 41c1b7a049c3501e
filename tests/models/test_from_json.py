# SPDX-License-Identifier: Apache-2.0
"""A model's config survives the way through config.json."""

import dataclasses
import json

import pytest

from tests.models.tiny import TINY
from vit_jax import config_json, models
from vit_jax.config import Config
from vit_jax.errors import UserError
from vit_jax.models.layers.pool import Pool

CONFIGS = {**models.VARIANTS, **TINY}


@pytest.mark.parametrize("name", CONFIGS)
def test_round_trip(name: str) -> None:
    cfg = CONFIGS[name]
    tree = json.loads(json.dumps(config_json.to_json(Config(model=cfg))))["model"]
    again = models.from_json(tree)
    assert type(again) is type(cfg)
    assert again == cfg
    for field in dataclasses.fields(cfg):  # a StrEnum equals its text: the types must, too
        assert type(getattr(again, field.name)) is type(getattr(cfg, field.name)), field.name


def test_what_cannot_be_read_is_named() -> None:
    assert models.from_json({"family": "ViTConfig", "pool": "gap"}).pool is Pool.GAP
    with pytest.raises(UserError, match="did you mean 'ViTConfig'"):
        models.from_json({"family": "VitConfig"})
    with pytest.raises(UserError, match="unknown family of models 'None'"):
        models.from_json({})
    with pytest.raises(UserError, match="unknown field of ViTConfig 'dimm'; did you mean 'dim'"):
        models.from_json({"family": "ViTConfig", "dimm": 3})
    with pytest.raises(UserError, match=r"unknown model\.pool 'gpa'"):
        models.from_json({"family": "ViTConfig", "pool": "gpa"})
