# SPDX-License-Identifier: Apache-2.0
"""Accuracy and loss over a split: every example counted once, whatever the layout.

Top-1 of a multi-label set is whether the first guess is among the labels, and an image without any
is not counted, as in big_vision and the ReaL paper (arXiv:2006.07159).
"""

import dataclasses
import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from vit_jax import data
from vit_jax.data.augment import mix
from vit_jax.errors import UserError
from vit_jax.evals import classes, report
from vit_jax.evals.base import EvalContext, EvalStream, Folder, Predict, Predictors
from vit_jax.evals.config import ClassifyEval
from vit_jax.evals.passes import Start, run_pass
from vit_jax.evals.probes.features import predict_batch
from vit_jax.models.losses import Loss, example_loss
from vit_jax.trees import PyTree

Rows = dict[str, np.ndarray]  # the fields of Scores, for some examples
_OF_ALL = ("every", "hot")  # fields of Scores that images without a label have too
_MOST = 1 << 25  # probabilities of a split that are kept without being asked for, 128 MiB


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scores:
    """One number per example of a split, in the order of its batches, padding removed."""

    nll: Float[np.ndarray, " M"]  # float32, the loss without smoothing
    top1: np.ndarray  # [M] bool, whether a label is the first guess
    top5: np.ndarray  # [M] bool, whether a label is among the first min(5, K)
    prediction: Int[np.ndarray, " M"]  # int32, the first guess
    # float32, the probability of the first guess: softmax over all classes, or the sigmoid of that
    # class alone if trained by sigmoid or bce.
    confidence: Float[np.ndarray, " M"]
    label: Int[np.ndarray, " M"] | None  # int32; None for multi-hot labels
    # Where they were asked for, of all N images, those without any label too: the probability of
    # each class, and 1, 0 or -1, not known.
    every: Float[np.ndarray, "N K"] | None = None
    hot: Int[np.ndarray, "N K"] | None = None

    def summary(self) -> dict[str, float]:
        """Return loss, top1, top5 (means over the examples, in [0, 1] but the loss)."""
        count = len(self.nll)
        return {
            # fsum rounds once, so that the order and size of the batches have no effect.
            "loss": math.fsum(self.nll.tolist()) / count,
            "top1": int(self.top1.sum()) / count,
            "top5": int(self.top5.sum()) / count,
            "num_examples": float(count),
        }

    def several(self) -> dict[str, float]:
        """Return what `evals.multi_label` measures without a threshold, and at 0.5; {} of others.

        Raises UserError: no image has a label.
        """
        if self.every is None or self.hot is None:
            return {}
        from vit_jax.evals import multi_label  # late: most sets have one label an image

        ranked = multi_label.ranking(self.every, self.hot)
        return {**ranked, **multi_label.at_threshold(self.every >= 0.5, self.hot)}

    def macro(self) -> dict[str, float]:
        """Return macro_top1 and macro_f1 in [0, 1] (`report.macro`); {} with multi-hot labels."""
        return {} if self.label is None else report.macro(self.label, self.prediction)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classify:
    """Evaluator of loss, top-1 and top-5 over one split; batches are as `run_pass` takes them."""

    batches: Start
    batch_size: int
    mesh: Mesh
    class_names: Sequence[str]  # of the split, for the report
    loss: Loss = Loss.SOFTMAX  # of the training; here without smoothing
    name: str = ""  # of the split, for messages and pictures
    macro: bool = False  # `run` measures macro_top1 and macro_f1 too
    folder: bool = True  # `run` writes a report into the directory it is given
    groups: classes.Groups = ()  # the classes to choose among, where not all (`classes.rule`)
    several: bool = False  # `run` measures average precision too, of images of several labels

    def run(
        self, predictors: Predictors, variables: PyTree, report_dir: Folder = None, of: str = ""
    ) -> dict[str, float]:
        """Return loss, top1, top5, num_examples, what `macro` or `several` adds; fill `report_dir`.

        Raises UserError: labels that the model has no output for, or an empty split.
        """
        scores = self.scores(classes.grouped(predictors["logits"], self.groups), variables)
        if self.folder and report_dir is not None and jax.process_index() == 0:
            self.report(scores, report_dir, of)
        more = {**(scores.macro() if self.macro else {}), **scores.several()}
        return {**scores.summary(), **more}

    def report(self, scores: Scores, folder: str | os.PathLike[str], of: str = "") -> list[str]:
        """Write the per-class table and the confusion matrix; returns the names of the files.

        The picture's title is the split and, where given, `of`.
        """
        if scores.label is None:
            print(f"no report for {self.name}: its images have several labels each")
            return []
        names = self.names(scores)
        title = ", ".join(filter(None, (data.short_name(self.name), of)))
        return report.write_report(folder, scores.label, scores.prediction, names, title)

    def names(self, scores: Scores) -> list[str]:
        """Name every class id that occurs; a model may have more outputs than the split names."""
        ids = (scores.prediction, *([] if scores.label is None else [scores.label]))
        extra = range(len(self.class_names), max(int(array.max()) for array in ids) + 1)
        return [*self.class_names, *(f"class {k}" for k in extra)]

    def scores(self, predict: Predict, variables: PyTree) -> Scores:
        """Score every example of the split once; `predict` must be one function object per run.

        Raises UserError: labels that the model has no output for, or an empty split.
        """
        done: list[Rows] = []
        self.each_batch(predict, variables, done.append)
        return self.join(done)

    def each_batch(self, predict: Predict, variables: PyTree, take: Callable[[Rows], None]) -> None:
        """Call `take` with the fields of `Scores` of each batch, in order."""

        def score(batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
            how = {"predict": predict, "loss": self.loss, "mesh": self.mesh}
            return score_batch(variables, batch, several=self.several, **how)

        run_pass(self.batches, self.batch_size, self.mesh, score, lambda x: take(self._fetch(x)))

    def join(self, rows: Sequence[Rows]) -> Scores:
        """Join the rows of `each_batch`; raises UserError: there is no example."""
        if not sum(len(each["nll"]) for each in rows):
            raise UserError(f"{self.name or 'the split'} has no examples to evaluate on")
        joined = {key: np.concatenate([each[key] for each in rows]) for key in rows[0]}
        return Scores(label=joined.pop("label", None), **joined)

    def _fetch(self, result: dict[str, jax.Array]) -> Rows:
        """Fetch a batch's results without the padding."""
        values = {key: np.asarray(value) for key, value in result.items()}
        real, whole = values.pop("mask") > 0, values.pop("whole") > 0
        if not values.pop("valid")[real].all():
            raise UserError(
                f"{self.name or 'the split'} has labels that the model has no output for; check "
                "model.num_classes, and that the split is labelled (test splits often hold -1)"
            )
        return {key: value[whole if key in _OF_ALL else real] for key, value in values.items()}


def create(cfg: ClassifyEval, context: EvalContext) -> Classify:
    """Build the evaluator of a split, with the training set's reading options.

    Where the decoded split fits into `data.MAX_CACHED_BYTES` of each process, it is read and
    decoded once, however often the evaluator runs.
    """
    stream = EvalStream(cfg, context)
    return Classify(
        batches=stream.batches,
        batch_size=stream.batch_size,
        mesh=context.mesh,
        class_names=stream.source.class_names,
        loss=context.loss or Loss.SOFTMAX,
        name=stream.name,
        macro=cfg.macro,
        folder=cfg.report,
        groups=classes.groups_of(stream.source),
        several=stream.source.multi_label
        and len(stream.source) * stream.source.num_classes <= _MOST,
    )


@dataclasses.dataclass(frozen=True)
class MeanLoss:
    """Evaluator of the mean of the predictor "loss"."""

    stream: EvalStream
    mesh: Mesh

    def run(
        self, predictors: Predictors, variables: Any, report_dir: Folder = None, of: str = ""
    ) -> dict[str, float]:
        """Return loss and num_examples; raises UserError: an empty split."""
        del report_dir, of
        losses: list[float] = []

        def score(batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
            mask = {"mask": batch["mask"]}
            return predict_batch(variables, batch, mask, predict=predictors["loss"], mesh=self.mesh)

        def take(result: dict[str, jax.Array]) -> None:
            losses.extend(np.asarray(result["features"])[np.asarray(result["mask"]) > 0].tolist())

        run_pass(self.stream.batches, self.stream.batch_size, self.mesh, score, take)
        if not losses:
            raise UserError(f"{self.stream.name} has no examples to evaluate on")
        return {"loss": math.fsum(losses) / len(losses), "num_examples": float(len(losses))}


@functools.partial(jax.jit, static_argnames=("predict", "loss", "mesh", "several"))
def score_batch(
    variables: PyTree,
    batch: Mapping[str, Array],
    *,
    predict: Predict,
    loss: Loss,
    mesh: Mesh,
    several: bool = False,
) -> dict[str, Array]:
    """Score a batch of B: the fields of `Scores`, two masks, and whether each label is valid.

    Every process gets the whole result: it is a few bytes per example, with `several` also each
    class's probability. "mask" is of the examples with a label, "whole" of all.
    """
    logits = predict(variables, batch).astype(jnp.float32)
    label, num_classes = batch["label"], logits.shape[-1]
    known = mix.known(label)
    result = {"mask": batch["mask"], "whole": batch["mask"]}
    if label.ndim == 1:
        result["label"] = label
        result["valid"] = (label >= 0) & (label < num_classes)
        label = jax.nn.one_hot(label, num_classes)
    elif label.shape[-1] != num_classes:
        sizes = f"{label.shape[-1]} classes wide and the model's output {num_classes}"
        raise UserError(f"the labels are {sizes}; set model.num_classes")
    else:
        result["valid"] = jnp.ones(label.shape[:1], bool)
        result["mask"] *= label.max(axis=-1) > 0
    # Ties go to the lower class id, as in argmax.
    ranked = jax.lax.top_k(logits, min(5, num_classes))[1]
    hits = jnp.take_along_axis(label, ranked, axis=-1) > 0
    result["top1"], result["top5"] = hits[:, 0], hits.any(axis=-1)
    result["prediction"] = ranked[:, 0]
    normalized = jax.nn.softmax if loss is Loss.SOFTMAX else jax.nn.sigmoid
    result["confidence"] = normalized(logits).max(axis=-1)
    if several:
        result |= {"every": normalized(logits), "hot": label.astype(jnp.int8)}
    label = label.astype(jnp.float32) if known is None else jnp.maximum(label, 0.0)
    result["nll"] = example_loss(logits, label, loss, known)
    return jax.lax.with_sharding_constraint(result, NamedSharding(mesh, PartitionSpec()))
