# SPDX-License-Identifier: Apache-2.0
"""Every family through the one train step: in place, every layout, remat and bfloat16."""

from tests.unit.models.tiny import TINY
from vit_jax import models


def test_every_family_is_here() -> None:
    families = {type(cfg) for cfg in models.VARIANTS.values()}
    assert {type(cfg) for cfg in TINY.values()} == families
