# SPDX-License-Identifier: Apache-2.0
"""A model's config survives the way through config.json."""

import pytest

from tests.refusals import refused_by
from vit_jax import models
from vit_jax.errors import UserError
from vit_jax.models.layers.pool import Pool


def test_what_cannot_be_read_is_named() -> None:
    assert models.from_json({"family": "ViTConfig", "pool": "gap"}).pool is Pool.GAP
    with pytest.raises(UserError, match="did you mean 'ViTConfig'"):
        models.from_json({"family": "VitConfig"})
    with pytest.raises(UserError, match="unknown family of models 'None'"):
        models.from_json({})
    with pytest.raises(UserError, match="unknown field of ViTConfig 'dimm'; did you mean 'dim'"):
        models.from_json({"family": "ViTConfig", "dimm": 3})
    with refused_by("settings.fields._read_choice", "model.pool"):
        models.from_json({"family": "ViTConfig", "pool": "gpa"})
