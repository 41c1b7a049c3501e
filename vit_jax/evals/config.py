# SPDX-License-Identifier: Apache-2.0
"""What a run evaluates on, how often, and by which measure: one config class for each kind."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from vit_jax import data, durations
from vit_jax.errors import UserError
from vit_jax.fields import group, value


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class EvalConfig:
    """Fields of every kind of evaluation; a run has evaluations of the kinds below.

    Attributes:
        split: what to evaluate on, as in `data.train_split`.
        every: how often, a duration; "" is once, at the end of the run.
        batch_size: over all processes; 0 is the training batch size.
        dataset: as `data.name`; "" is the training set's.
        transform: what happens to each image.
        patch: side of the patches of a FlexiViT; 0 is `model.patch`.
    """

    predictor: ClassVar[str] = ""  # which of the predictors of the objective it calls

    split: str = "val"
    every: str = ""
    batch_size: int = value(0, least=0, note="0 is the training batch size")
    dataset: str = ""
    transform: data.TransformConfig = group(data.TransformConfig)
    patch: int = value(0, least=0, note="0 is the model's")

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of its metrics, the main one first; `measures.declare` says how to read each."""
        raise NotImplementedError

    @property
    def splits(self) -> Mapping[str, str]:
        """The splits that it reads: the test images under "", others by name."""
        return {"": self.split}

    def check(self, where: str) -> None:
        """Raise UserError for wrong values; `where` is the evaluation's field, "evals.val"."""
        if self.every:
            durations.parse(self.every)
        if not self.metrics:
            raise UserError(f"{where} measures nothing; give it a number, such as k=(20,)")
        self.dataset = data.full_name(self.dataset)
        data.check_fixed(self.transform, f"{where}.transform")


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class ClassifyEval(EvalConfig):
    """Loss, top-1 and top-5 of the model's own head.

    Attributes:
        report: write the per-class table and the confusion matrix at the end of the run.
        macro: measure macro_top1 and macro_f1 too, means over the classes, for uneven ones.
    """

    predictor: ClassVar[str] = "logits"

    report: bool = False
    macro: bool = False

    @property
    def metrics(self) -> tuple[str, ...]:
        return ("loss", "top1", "top5", *(("macro_top1", "macro_f1") if self.macro else ()))


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class LossEval(EvalConfig):
    """The objective's own loss on images that it was not trained on."""

    predictor: ClassVar[str] = "loss"

    @property
    def metrics(self) -> tuple[str, ...]:
        return ("loss",)


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class ProbeEval(EvalConfig):
    """Fields of the probes: classifiers of frozen features, fitted to another split.

    Attributes:
        train_split: of the same dataset; a slice of it, "train[:10%]", takes less time.
    """

    predictor: ClassVar[str] = "features"

    train_split: str = "train"

    @property
    def splits(self) -> Mapping[str, str]:
        """The split to test on, and the one to fit to."""
        return {"": self.split, "train": self.train_split}


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class KNNEval(ProbeEval):
    """Weighted nearest neighbours (`evals.knn`).

    Attributes:
        k: numbers of neighbours.
        temperature: of their votes.
    """

    k: tuple[int, ...] = value((20,), least=1)
    temperature: float = value(0.07, above=0)

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(f"knn{k}" for k in self.k)


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class FewShotEval(ProbeEval):
    """Least squares on a few images a class (`evals.fewshot`).

    Attributes:
        shots: images a class.
        l2: strength of the regularisation.
        seeds: how many draws of the images the accuracy is averaged over.
    """

    shots: tuple[int, ...] = value((5,), least=1)
    l2: float = value(1024.0, above=0)
    seeds: int = value(3, least=1)

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(f"{shots}shot" for shots in self.shots)


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class LinearEval(ProbeEval):
    """Logistic regression, its strength chosen within the training split (`evals.logistic`)."""

    @property
    def metrics(self) -> tuple[str, ...]:
        return ("linear",)
