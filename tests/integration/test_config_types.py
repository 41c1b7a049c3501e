# SPDX-License-Identifier: Apache-2.0
"""A value of the wrong kind: one line, and the same one, from a config file and from Python."""

import dataclasses
import inspect
from typing import Any

import pytest

from tests.refusals import refused_by
from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.config.tree import Config
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig, ViTConfig


def vit(**fields: Any) -> ViTConfig:
    """Set fields one by one: pytest checks the arguments of calls here, Python does not."""
    cfg = ViTConfig()
    for name, value in fields.items():
        setattr(cfg, name, value)
    return cfg


def test_a_model_from_python_takes_what_a_flag_takes() -> None:
    cfg = models.variant("vit_s16", image_size=384, patch=16, pool="gap", class_token=False)
    assert (cfg.image_size, cfg.patch) == ((384,), (16,))
    assert models.abstract(cfg)["params"]["pos_embed"].shape == (1, 576, 384)
    plain = vit(image_size=64, patch=16)
    models.create(plain)
    assert (plain.image_size, plain.patch) == ((64,), (16,))


@dataclasses.dataclass
class Unknown(ModelConfig):
    """A config that no family has."""


@pytest.mark.parametrize(
    "wrong, code, field",
    [
        ("vit_s16", "models.refuse_name", ""),
        ("vit_s166", "models.variant", ""),
        (Unknown(), "models.family", ""),
        (None, "models.family", ""),
        (vit(depth="12"), "settings.fields._wrong", "model.depth"),
    ],
)
def test_a_model_of_no_config_is_named(wrong: Any, code: str, field: str) -> None:
    with refused_by(code, field):
        inspect.unwrap(models.create)(wrong)  # without pytest's own check of arguments
    with pytest.raises(UserError):
        config_lib.check(Config(model=wrong))
