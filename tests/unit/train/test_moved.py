# SPDX-License-Identifier: Apache-2.0
"""What a step moves between devices: sums in the dtype that was chosen, one layer's weights."""

from tests.refusals import refused_by
from vit_jax import config as config_lib
from vit_jax.config.tree import Config


def test_an_unknown_dtype_is_refused() -> None:
    cfg = Config()
    cfg.reduce_dtype = "float16"  # pyright: ignore[reportAttributeAccessIssue]
    with refused_by("settings.fields._read_choice", "reduce_dtype"):
        config_lib.check(cfg)
