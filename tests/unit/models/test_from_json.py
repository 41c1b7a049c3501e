# SPDX-License-Identifier: Apache-2.0
"""A model's config survives the way through config.json."""

import dataclasses
import json

import pytest

from tests.unit.models.tiny import TINY
from vit_jax import models
from vit_jax.config import saved as config_json
from vit_jax.config.tree import Config

CONFIGS = {**models.VARIANTS, **TINY}


def test_round_trip(subtests: pytest.Subtests) -> None:
    for name in CONFIGS:
        with subtests.test(name):
            cfg = CONFIGS[name]
            tree = json.loads(json.dumps(config_json.to_json(Config(model=cfg))))["model"]
            again = models.from_json(tree)
            assert type(again) is type(cfg)
            assert again == cfg
            for field in dataclasses.fields(cfg):  # a StrEnum equals its text: the types must, too
                assert type(getattr(again, field.name)) is type(getattr(cfg, field.name)), (
                    field.name
                )
