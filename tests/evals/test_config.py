# SPDX-License-Identifier: Apache-2.0
"""A bad evaluation is refused when the run starts, not when its turn comes."""

import pytest

from vit_jax import data
from vit_jax.errors import UserError
from vit_jax.evals import EvalConfig, validate


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        (EvalConfig(every="soon"), "soon"),
        (EvalConfig(batch_size=-1), "batch_size=-1"),
        (EvalConfig(transform=data.TransformConfig(flip=True)), "at random"),
        (EvalConfig(transform=data.TransformConfig(crop_ratio=2.0)), "crop_ratio"),
    ],
)
def test_validate_names_the_field(cfg, message):
    with pytest.raises(UserError, match=message):
        validate(cfg, "val")
    validate(EvalConfig(every="5 epochs"), "val")
