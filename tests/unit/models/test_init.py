# SPDX-License-Identifier: Apache-2.0
"""A model, a family or a field of another name is refused, with the nearest there is."""

import dataclasses

import pytest

from tests.refusals import refused_by
from vit_jax import models
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig
from vit_jax.models.layers.pool import Pool


@dataclasses.dataclass
class Unknown(ModelConfig):
    """A config that no family has."""


@pytest.mark.parametrize(
    "name, told",
    [
        ("vit_b17", "unknown model 'vit_b17'; did you mean 'vit_b16'"),
        ("swin_x", "unknown model 'swin_x'; did you mean 'swin_"),
        ("vit_b16_x", "unknown model 'vit_b16_x'; did you mean 'vit_b16"),
    ],
)
def test_an_unknown_variant_is_refused(name: str, told: str) -> None:
    with pytest.raises(UserError, match=f"^{told}"):
        models.variant(name)


def test_an_unknown_field_of_a_variant_is_refused() -> None:
    with pytest.raises(UserError, match=r"^unknown field of vit_b16 'dpth'; did you mean 'depth'"):
        models.variant("vit_b16", dpth=3)


def test_what_was_saved_and_cannot_be_read_is_named() -> None:
    assert models.from_json({"family": "ViTConfig", "pool": "gap"}).pool is Pool.GAP
    with pytest.raises(UserError, match="'VitConfig'; did you mean 'ViTConfig'"):
        models.from_json({"family": "VitConfig"})
    with pytest.raises(UserError, match="unknown family of models 'None'"):
        models.from_json({})
    with pytest.raises(UserError, match="unknown field of ViTConfig 'dimm'; did you mean 'dim'"):
        models.from_json({"family": "ViTConfig", "dimm": 3})
    with refused_by("settings.fields._read_choice", "model.pool"):
        models.from_json({"family": "ViTConfig", "pool": "gpa"})


def test_a_name_is_no_config() -> None:
    told = r"^'vit_s16' is a model's name; give its config, models\.variant\('vit_s16'\)$"
    with pytest.raises(UserError, match=told):
        models.refuse_name("vit_s16", "'vit_s16'")


def test_a_config_of_no_family_is_named() -> None:
    told = "^Unknown is the config of no family in models.FAMILIES; valid: ViTConfig, "
    with pytest.raises(UserError, match=told):
        models.family(Unknown())
