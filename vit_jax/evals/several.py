# SPDX-License-Identifier: Apache-2.0
"""Evaluators of images that have several labels, or numbers.

What of a class's probability counts as seen is chosen on one split and kept with the run, so that
other splits, and `predict`, use the same.
"""

import csv
import dataclasses
import functools
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float

from vit_jax.errors import UserError
from vit_jax.evals import classes, multi_label, regression
from vit_jax.evals.base import EvalContext, EvalStream, Evaluator, Folder, Predictors
from vit_jax.evals.classify import Classify, Scores
from vit_jax.evals.config import EvalConfig, MultiLabelEval, RegressionEval, ThresholdRule
from vit_jax.evals.passes import run_pass
from vit_jax.evals.probes.features import predict_batch
from vit_jax.models.losses import Loss
from vit_jax.process import escapes
from vit_jax.storage import files
from vit_jax.trees import PyTree

THRESHOLDS = "thresholds.json"  # in the evaluation's folder of the run
TABLE = "per_class.csv"
_COLUMNS = ("class", "images", "ap", "threshold", "precision", "recall", "f1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiLabel:
    """Evaluator of several labels; thresholds are chosen on `chosen`, or on the split itself."""

    own: Classify
    chosen: Classify | None
    rule: ThresholdRule
    report: bool

    def run(
        self, predictors: Predictors, variables: PyTree, report_dir: Folder = None, of: str = ""
    ) -> dict[str, float]:
        """Return what `evals.multi_label` measures, the loss, and a threshold for all classes.

        Raises UserError: an empty split, or one without any label.
        """
        predict = classes.grouped(predictors["logits"], self.own.groups)
        scores = self.own.scores(predict, variables)
        chosen = self.chosen or self.own
        there = scores if chosen is self.own else chosen.scores(predict, variables)
        every, hot = table_of(scores, self.own.name)
        thresholds = multi_label.choose(*table_of(there, chosen.name), self.rule)
        found = {**scores.several(), **multi_label.f1(every >= thresholds, hot)}
        if self.rule is ThresholdRule.GLOBAL:
            found["threshold"] = float(thresholds[0])
        if self.report and report_dir is not None and jax.process_index() == 0:
            kept: dict[str, Any] = {"rule": self.rule.value, "chosen_on": chosen.name, "of": of}
            names = self.own.class_names
            kept["thresholds"] = dict(zip(names, thresholds.tolist(), strict=True))
            folder = Path(report_dir)
            folder.mkdir(parents=True, exist_ok=True)
            files.write(folder / THRESHOLDS, json.dumps(kept, indent=1) + "\n")
            files.write(folder / TABLE, class_table(every, hot, thresholds, names))
        return {**found, "loss": scores.summary()["loss"], "num_examples": float(len(every))}


def table_of(scores: Scores, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the probabilities and labels [N, K] of all images.

    Raises UserError: no image has any label.
    """
    assert scores.every is not None, "Classify.several"
    assert scores.hot is not None
    if not (scores.hot > 0).any():
        raise UserError(f"{name} has no image with a label")
    return scores.every, scores.hot


def class_table(
    every: Float[np.ndarray, "N K"],
    hot: np.ndarray,
    thresholds: np.ndarray,
    names: Sequence[str],
) -> str:
    """Write what is measured of each class as CSV; a number of no image is empty."""
    hits, seen, there = multi_label.counts(every >= thresholds, hot)
    each = multi_label.average_precisions(every, hot)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for k, name in enumerate(names):
        pairs = ((hits[k], seen[k]), (hits[k], there[k]), (2 * hits[k], seen[k] + there[k]))
        ratios = [f"{part / whole:.6f}" if whole else "" for part, whole in pairs]
        ap = "" if np.isnan(each[k]) else f"{each[k]:.6f}"
        row = [escapes.cell(name), int(there[k]), ap, f"{thresholds[k]:.6f}", *ratios]
        writer.writerow(row)
    return text.getvalue()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Regress:
    """Evaluator of numbers, by the predictor "value"."""

    stream: EvalStream
    mesh: Mesh
    names: Sequence[str]  # of the outputs

    def run(
        self, predictors: Predictors, variables: PyTree, report_dir: Folder = None, of: str = ""
    ) -> dict[str, float]:
        """Return mae, rmse and r2, in the units of the data; raises UserError: an empty split."""
        del report_dir, of
        guess, truth = self.guesses(predictors["value"], variables)
        found = regression.summary(guess, truth, self.names)
        if "mae" not in found:
            raise UserError(f"{self.stream.name} has no number that is known")
        return {**found, "num_examples": float(len(truth))}

    def guesses(self, predict: Any, variables: PyTree) -> tuple[np.ndarray, np.ndarray]:
        """Return what is predicted of each image, and its numbers [N, K]."""
        done: list[tuple[np.ndarray, np.ndarray]] = []

        def score(batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
            rest = {"mask": batch["mask"], "value": batch["value"]}
            return predict_batch(variables, batch, rest, predict=predict, mesh=self.mesh)

        def take(result: Mapping[str, jax.Array]) -> None:
            real = np.asarray(result["mask"]) > 0
            done.append((np.asarray(result["features"])[real], np.asarray(result["value"])[real]))

        run_pass(self.stream.batches, self.stream.batch_size, self.mesh, score, take)
        guess, truth = (np.concatenate(each) for each in zip(*done, strict=True))
        return guess, truth


def create(cfg: EvalConfig, context: EvalContext) -> Evaluator:
    """Build the evaluator of a `MultiLabelEval` or a `RegressionEval`."""
    if isinstance(cfg, RegressionEval):
        stream = EvalStream(cfg, context)
        return Regress(stream=stream, mesh=context.mesh, names=stream.source.class_names)
    cfg = cast(MultiLabelEval, cfg)
    build = functools.partial(_classify, cfg, context)
    chosen = build("chosen") if cfg.chosen_on else None
    return MultiLabel(own=build(""), chosen=chosen, rule=cfg.threshold, report=cfg.report)


def _classify(cfg: MultiLabelEval, context: EvalContext, which: str) -> Classify:
    stream = EvalStream(cfg, context, which)
    return Classify(
        batches=stream.batches,
        batch_size=stream.batch_size,
        mesh=context.mesh,
        class_names=stream.source.class_names,
        loss=context.loss or Loss.SIGMOID,
        name=stream.source.name if which else stream.name,
        groups=classes.groups_of(stream.source),
        several=True,
    )


def read_thresholds(
    folders: Sequence[str | os.PathLike[str]], names: Sequence[str]
) -> Float[np.ndarray, " K"] | None:
    """Return the thresholds that a run keeps in one of some folders; None where none has any.

    Raises UserError: a file that is damaged, or of other classes.
    """
    from vit_jax.storage import remote  # late: an evaluation in training reads none

    for folder in folders:
        place = f"{str(folder).rstrip('/')}/{THRESHOLDS}"
        try:
            kept = json.loads(remote.read(place))["thresholds"]
            return np.array([float(kept[name]) for name in names])
        except (FileNotFoundError, remote.MissingError):
            continue
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{place} has no threshold for each class ({type(error).__name__}: {error}); bring "
                "the run's own back, or choose --threshold=0.5"
            ) from None
    return None
