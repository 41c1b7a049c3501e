# SPDX-License-Identifier: Apache-2.0
"""What a step moves between devices: sums in the dtype that was chosen, one layer's weights."""

import pytest

from vit_jax import config as config_lib
from vit_jax.config.tree import Config
from vit_jax.errors import UserError


def test_an_unknown_dtype_is_refused() -> None:
    cfg = Config()
    cfg.reduce_dtype = "float16"  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(UserError, match=r"reduce_dtype .float16.*float32"):
        config_lib.check(cfg)
