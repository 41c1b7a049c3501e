# SPDX-License-Identifier: Apache-2.0
"""Settings of the initial weights that do nothing, or cannot be read, are refused."""

import pytest

from tests.refusals import Told, refused_as
from vit_jax.weights.config import InitConfig


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"skip": ("^head",)}, "need init.weights"),
        ({"weights": "npz:f", "ema": True}, "set init.weights=ckpt:DIR"),
        ({"weights": "npz:f", "skip": ("(",)}, ("settings.fields.regex", "init.skip")),
        (
            {"weights": "zip:f"},
            "^unknown kind of weights in 'zip:f'; valid: ckpt:DIR, hf:USER/NAME, hub:USER/NAME, "
            "npz:FILE, timm:FILE",
        ),
        ({"weights": "ckpt:"}, "^'ckpt:' names no file: give ckpt:DIR$"),
        ({"weights": "timm:"}, "^'timm:' names no file: give timm:FILE$"),
        ({"weights": "hub:"}, "^'hub:' names no repository: give hub:USER/NAME$"),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict, message: Told) -> None:
    with refused_as(message):
        InitConfig(**fields).check()


def test_what_makes_sense_is_not() -> None:
    InitConfig().check()
    InitConfig(weights="ckpt:runs/x@best", ema=True, skip=("^head/",)).check()
