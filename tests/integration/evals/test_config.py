# SPDX-License-Identifier: Apache-2.0
"""A bad evaluation is refused when the run starts, not when its turn comes."""

import pytest

from vit_jax import data
from vit_jax.errors import UserError
from vit_jax.evals import ClassifyEval, EvalConfig, FewShotEval, KNNEval
from vit_jax.settings.fields import conform


def check(cfg: EvalConfig) -> None:
    conform(cfg, "evals.val.")
    cfg.check("evals.val")


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        (ClassifyEval(every="soon"), "soon"),
        (ClassifyEval(batch_size=-1), "batch_size=-1"),
        (KNNEval(k=()), "evals.val measures nothing"),
        (KNNEval(temperature=0.0), "evals.val.temperature"),
        (FewShotEval(shots=(0,)), "evals.val.shots"),
        (FewShotEval(l2=0.0), "evals.val.l2"),
        (ClassifyEval(transform=data.TransformConfig(flip=True)), "at random"),
        (ClassifyEval(transform=data.TransformConfig(crop_ratio=2.0)), "crop_ratio"),
    ],
)
def test_validate_names_the_field(cfg, message):
    with pytest.raises(UserError, match=message):
        check(cfg)
    ClassifyEval(every="5 epochs").check("evals.val")
