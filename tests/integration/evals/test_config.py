# SPDX-License-Identifier: Apache-2.0
"""A bad evaluation is refused when the run starts, not when its turn comes."""

import pytest

from tests.refusals import RANGE, refused_as
from vit_jax import data
from vit_jax.evals import ClassifyEval, EvalConfig, FewShotEval, KNNEval
from vit_jax.settings.fields import conform


def check(cfg: EvalConfig) -> None:
    conform(cfg, "evals.val.")
    cfg.check("evals.val")


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        (ClassifyEval(every="soon"), ("settings.durations.parse", "")),
        (ClassifyEval(batch_size=-1), (RANGE, "evals.val.batch_size")),
        (KNNEval(k=()), "evals.val measures nothing"),
        (KNNEval(temperature=0.0), (RANGE, "evals.val.temperature")),
        (FewShotEval(shots=(0,)), (RANGE, "evals.val.shots")),
        (FewShotEval(l2=0.0), (RANGE, "evals.val.l2")),
        (ClassifyEval(transform=data.TransformConfig(flip=True)), ("data.checks.check_fixed", "")),
        (
            ClassifyEval(transform=data.TransformConfig(crop_ratio=2.0)),
            (RANGE, "evals.val.transform.crop_ratio"),
        ),
    ],
)
def test_validate_names_the_field(cfg, message):
    with refused_as(message):
        check(cfg)
    ClassifyEval(every="5 epochs").check("evals.val")
