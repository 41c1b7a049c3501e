# SPDX-License-Identifier: Apache-2.0
"""Evaluations over a split, each example counted once: a config of `EVALUATORS` for each kind."""

from collections.abc import Callable
from typing import Any, cast

from vit_jax import errors
from vit_jax.evals import classify
from vit_jax.evals.base import EvalContext, EvalStream, Evaluator, Predict, Predictors, open_splits
from vit_jax.evals.classify import Classify, MeanLoss, Scores
from vit_jax.evals.config import (
    ClassifyEval,
    DepthEval,
    EvalConfig,
    FeaturesEval,
    FewShotEval,
    InstanceEval,
    KNNEval,
    LinearEval,
    LossEval,
    MultiLabelEval,
    PanopticEval,
    ProbeEval,
    RegressionEval,
    RetrievalEval,
    SegmentationEval,
    ThresholdRule,
    ZeroShotEval,
)
from vit_jax.settings.measures import is_accuracy


def _probe(cfg: ProbeEval, context: EvalContext) -> Evaluator:
    from vit_jax.evals.probes import frozen  # late: most runs fit no probe

    return frozen.create(cfg, context)


def _drift(cfg: FeaturesEval, context: EvalContext) -> Evaluator:
    from vit_jax.evals import drift  # late: most runs do not compare their features

    return drift.create(cfg, context)


def _texts(cfg: EvalConfig, context: EvalContext) -> Evaluator:
    from vit_jax.evals import retrieval, zero_shot  # late: most runs have no texts

    if isinstance(cfg, RetrievalEval):
        return retrieval.create(cfg, context)
    return zero_shot.create(cast(ZeroShotEval, cfg), context)


def _depth(cfg: DepthEval, context: EvalContext) -> Evaluator:
    from vit_jax.evals.dense import depth  # late: most runs have no depths

    return depth.create(cfg, context)


def _several(cfg: EvalConfig, context: EvalContext) -> Evaluator:
    from vit_jax.evals import several  # late: most runs have one label an image

    return several.create(cfg, context)


def _segments(cfg: EvalConfig, context: EvalContext) -> Evaluator:
    from vit_jax.evals.dense import evaluators  # late: most runs tell images, not pixels

    return evaluators.create(cfg, context)


# What builds the evaluator of each kind of config.
EVALUATORS: dict[type[EvalConfig], Callable[[Any, EvalContext], Evaluator]] = {
    ClassifyEval: classify.create,
    LossEval: lambda cfg, context: MeanLoss(EvalStream(cfg, context), context.mesh),
    KNNEval: _probe,
    FewShotEval: _probe,
    LinearEval: _probe,
    FeaturesEval: _drift,
    ZeroShotEval: _texts,
    RetrievalEval: _texts,
    DepthEval: _depth,
    MultiLabelEval: _several,
    RegressionEval: _several,
    SegmentationEval: _segments,
    PanopticEval: _segments,
    InstanceEval: _segments,
}


def config_class(name: str) -> type[EvalConfig]:
    """Return the class of an evaluation's config by its name.

    Raises UserError: an unknown name, with the nearest valid one.
    """
    found = {kind.__name__: kind for kind in EVALUATORS}
    if name not in found:
        raise errors.unknown("family of evaluations", name, found)
    return found[name]


def create(cfg: EvalConfig, context: EvalContext) -> Evaluator:
    """Build the evaluator of a config."""
    return EVALUATORS[type(cfg)](cfg, context)
