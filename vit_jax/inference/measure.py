# SPDX-License-Identifier: Apache-2.0
"""What `evaluate` measures of a trained model: accuracy and calibration, at sizes, corrupted."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from vit_jax import sharding
from vit_jax.evals import Classify, Predict, Scores, calibration, corruptions, robustness
from vit_jax.evals.intervals import wilson
from vit_jax.evals.pass_progress import watched
from vit_jax.inference.evaluate import (
    Target,
    make_evaluator,
    make_predict,
    native_size,
    placed,
    resized,
)
from vit_jax.inference.trained import Trained, changes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measuring:
    """A trained model at its own size, ready to be measured."""

    trained: Trained
    target: Target
    mesh: Mesh
    predict: Predict
    variables: Any
    evaluation: Classify


def start(trained: Trained, target: Target, mesh: Mesh) -> Measuring:
    """Put a model that has its weights on the devices."""
    return Measuring(
        trained=trained,
        target=target,
        mesh=mesh,
        predict=make_predict(trained),
        variables=placed(trained, mesh),
        evaluation=make_evaluator(trained, target, mesh),
    )


def _watch(evaluation: Classify, what: str, total: int, *, times: int = 1) -> Classify:
    if jax.process_index():
        return evaluation
    share = int(total * sharding.own_share(evaluation.mesh))  # what this process reads of it
    batches = watched(evaluation.batches, max(share, 1), what, times=times)
    return dataclasses.replace(evaluation, batches=batches)


def measure(measuring: Measuring) -> tuple[Scores, dict[str, Any]]:
    """Score the split; returns the scores, and what metrics.json holds of them."""
    trained, source = measuring.trained, measuring.target.source
    watch = _watch(measuring.evaluation, "evaluating", len(source))
    scores = watch.scores(measuring.predict, measuring.variables)
    bins = calibration.reliability(scores.confidence, scores.top1)
    return scores, {
        "from": trained.ref,
        "step": trained.step,
        "ema": trained.ema,
        "changes": changes(trained),
        "dataset": source.name,
        "image_size": list(trained.image_size),
        "num_examples": len(scores.top1),
        "unlabelled": len(source) - len(scores.top1),
        **_summary(scores),
        "ece": calibration.expected_error(bins),
        "confidence": float(scores.confidence.mean(dtype="float64")),
    }


def _summary(scores: Scores) -> dict[str, Any]:
    summary = scores.summary()
    interval = wilson(int(scores.top1.sum()), len(scores.top1))
    return {
        "top1": summary["top1"],
        "top1_interval": list(interval),
        "top5": summary["top5"],
        "loss": summary["loss"],
    }


def at_sizes(
    measuring: Measuring, sizes: Sequence[int], at_own: Scores
) -> list[dict[str, int | float]]:
    """Score the split at other sizes of the input, the model's own and that of its training."""
    trained, target, mesh = measuring.trained, measuring.target, measuring.mesh
    found, (height, width) = [], trained.image_size
    wanted = {*sizes, native_size(trained)[0], *([height] if height == width else [])}
    for size in sorted(wanted):
        scores = at_own
        if (size, size) != trained.image_size:
            other = resized(trained, size)
            evaluation = make_evaluator(other, target, mesh)
            watch = _watch(evaluation, f"at {size}x{size}", len(target.source))
            scores = watch.scores(make_predict(other), placed(other, mesh))
        row = _summary(scores)
        low, high = row.pop("top1_interval")
        top1 = {"top1": row.pop("top1"), "top1_low": low, "top1_high": high}
        found.append({"size": size, **top1, **row})
    return found


def under_corruption(
    measuring: Measuring, variants: Sequence[robustness.Variant]
) -> dict[str, Any]:
    """Score the split under corruptions; returns their accuracy by name and severity."""
    total = len(measuring.target.source)
    watch = _watch(measuring.evaluation, "corrupted images", total, times=len(variants))
    found = robustness.score(watch, measuring.predict, measuring.variables, variants)
    table: dict[str, dict[str, float]] = {}
    for (name, severity), scores in found.items():
        table.setdefault(name, {})[str(severity)] = scores.summary()["top1"]
    columns = zip(*(row.values() for row in table.values()), strict=True)
    return {
        "severities_of": corruptions.benchmark(measuring.trained.image_size),
        "mean_top1": mean(mean(column) for column in columns),
        "top1": table,
    }


def mean(values: Iterable[float]) -> float:
    """Return the mean, summed without error."""
    numbers = list(values)
    return math.fsum(numbers) / len(numbers)
