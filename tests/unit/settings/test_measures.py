# SPDX-License-Identifier: Apache-2.0
"""A metric says which direction is better and how it is written; one of one's own is declared."""

import pytest

from vit_jax import evals
from vit_jax.errors import UserError
from vit_jax.settings import measures
from vit_jax.settings.measures import Measure, Mode


def test_every_metric_of_every_evaluation_is_declared() -> None:
    for kind in evals.EVALUATORS:
        for metric in kind().metrics:
            assert measures.of(f"val/{metric}") is not None, metric
    assert [measures.resolved(m, Mode.AUTO) for m in ("val/loss", "knn/knn20")] == ["min", "max"]


def test_a_direction_that_is_not_the_metrics_own_is_refused() -> None:
    assert measures.direction("val/loss", Mode.AUTO) is Mode.MIN
    assert measures.direction("val_ema/macro_f1", Mode.MAX) is Mode.MAX
    for metric, mode in (("val/loss", Mode.MAX), ("val/5shot", Mode.MIN)):
        with pytest.raises(
            UserError, match=rf"checkpoint.mode={mode}, but a .* {metric} is better"
        ):
            measures.direction(metric, mode)
    with pytest.raises(UserError, match=r"Nobody has declared it: set checkpoint\.mode"):
        measures.direction("val/wer", Mode.AUTO)


def test_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "_DECLARED", dict(measures._DECLARED))
    measures.declare(r"mae|rmse", Measure(Mode.MIN, "error", "mm"))
    assert measures.direction("val/mae", Mode.AUTO) is Mode.MIN
    assert not measures.is_better_larger("val/rmse")
    assert measures.Measure(Mode.MIN, "error", "mm").written(1.5) == "1.5000 mm"
    assert not measures.is_accuracy("mae")
    with pytest.raises(UserError, match=r"must be Mode\.MAX or Mode\.MIN"):
        measures.declare("x", Measure(Mode.AUTO, "x"))
