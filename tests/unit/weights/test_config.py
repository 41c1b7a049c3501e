# SPDX-License-Identifier: Apache-2.0
"""Settings of the initial weights that do nothing, or cannot be read, are refused."""

import pytest

from vit_jax.errors import UserError
from vit_jax.weights.config import InitConfig


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"skip": ("^head",)}, "need init.weights"),
        ({"weights": "npz:f", "ema": True}, "set init.weights=ckpt:DIR"),
        ({"weights": "npz:f", "skip": ("(",)}, "init.skip"),
        ({"weights": "zip:f"}, "zip"),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        InitConfig(**fields).check()


def test_what_makes_sense_is_not() -> None:
    InitConfig().check()
    InitConfig(weights="ckpt:runs/x@best", ema=True, skip=("^head/",)).check()
