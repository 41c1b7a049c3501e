# SPDX-License-Identifier: Apache-2.0
"""What a run evaluates on, how often, and by which measure: one config class for each kind."""

import dataclasses
import enum
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from vit_jax import data, models
from vit_jax.data import classes
from vit_jax.data.checks import check_labels
from vit_jax.data.sources.base import gives_numbers
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig
from vit_jax.settings import durations
from vit_jax.settings.fields import group, value


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
    needs_captions: ClassVar[bool] = False  # its images have captions
    needs_target: ClassVar[str] = ""  # the `TargetKind` of its images' pixels

    split: str = "val"
    every: str = value("", unit="duration")
    batch_size: int = value(0, least=0, note="0 is the training batch size", unit="examples")
    dataset: str = ""
    transform: data.TransformConfig = group(data.TransformConfig)
    patch: int = value(0, least=0, note="0 is the model's", unit="pixels")

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

    def check_model(self, where: str, model: ModelConfig) -> None:
        """Raise UserError for what the model cannot be evaluated on."""

    def check_sources(self, where: str, sources: Mapping[str, data.Source]) -> list[str]:
        """Check what can be known of the opened splits before the first step.

        Args:
            where: the evaluation's field, "evals.val".
            sources: by the names of `splits`, their classes numbered as the evaluator has them.

        Returns lines for the reader about what is odd and no mistake.

        Raises UserError: splits that the evaluation cannot use.
        """
        for source in sources.values():
            if not len(source):
                raise UserError(f"{where}: {source.name} has no examples to evaluate on")
        return []


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

    def check_sources(self, where: str, sources: Mapping[str, data.Source]) -> list[str]:
        EvalConfig.check_sources(self, where, sources)
        check_labels(sources[""], f"set another {where}.split")
        if self.macro and sources[""].multi_label:
            has = f"{sources[''].name} has several labels per image"
            raise UserError(f"{where}.macro: {has}; set macro=False")
        return []


class ThresholdRule(enum.StrEnum):
    """What a class's probability must reach for the class to count as seen."""

    GLOBAL = "global"  # one number for all classes, of the best overall F1
    PER_CLASS = "per_class"  # one for each class, of its best F1


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class MultiLabelEval(EvalConfig):
    """Average precision of several labels an image, and F1 at a threshold (`evals.multi_label`).

    Attributes:
        threshold: one for all classes, or one for each.
        chosen_on: the split that it is chosen on, of the same dataset, such as "val" where `split`
            is "test"; "" is `split` itself.
        report: write the thresholds and the table of the classes at the end of the run; `predict`
            and `evaluate` take the thresholds from there.
    """

    predictor: ClassVar[str] = "logits"

    threshold: ThresholdRule = ThresholdRule.GLOBAL
    chosen_on: str = ""
    report: bool = True

    @property
    def metrics(self) -> tuple[str, ...]:
        averages = ("map", "micro_map", "f1", "macro_f1")
        return (*averages, "cp", "cr", "cf1", "op", "or", "of1", "loss")

    @property
    def splits(self) -> Mapping[str, str]:
        """The split to measure on, and the one to choose thresholds on if it is another."""
        return {"": self.split, **({"chosen": self.chosen_on} if self.chosen_on else {})}

    def check_sources(self, where: str, sources: Mapping[str, data.Source]) -> list[str]:
        EvalConfig.check_sources(self, where, sources)
        for source in sources.values():
            if not source.multi_label:
                has = f"{source.name} has one label per image, or none"
                raise UserError(f"{where}: {has}; set evals.NAME to a ClassifyEval")
        return []


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class RegressionEval(EvalConfig):
    """Errors of numbers, in their units: MAE, RMSE and R2 (`evals.regression`).

    With several outputs these are means, and each output's own are "mae_NAME" and so on.
    """

    predictor: ClassVar[str] = "value"

    @property
    def metrics(self) -> tuple[str, ...]:
        return ("mae", "rmse", "r2")

    def check_sources(self, where: str, sources: Mapping[str, data.Source]) -> list[str]:
        EvalConfig.check_sources(self, where, sources)
        if not gives_numbers(sources[""]):
            has = f"{sources[''].name} has no numbers"
            raise UserError(f"{where}: {has}; name their columns in data.name, ?target=COLUMN")
        return []


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
        where_labelled: leave the evaluation out where the run's images have no labels, or all the
            same one; without it they are refused.
    """

    predictor: ClassVar[str] = "features"

    train_split: str = "train"
    where_labelled: bool = False

    @property
    def splits(self) -> Mapping[str, str]:
        """The split to test on, and the one to fit to."""
        return {"": self.split, "train": self.train_split}

    def check_sources(self, where: str, sources: Mapping[str, data.Source]) -> list[str]:
        EvalConfig.check_sources(self, where, sources)
        for name, source in sources.items():
            if source.multi_label:
                has = f"{source.name} has several labels per image"
                raise UserError(f"{where}: {has}; probes tell one from one")
            field = f"{where}.{f'{name}_split' if name else 'split'}"
            check_labels(source, f"set another {field}")
        train, test = sources["train"], sources[""]
        if train.num_classes < 2 or (train.labels is not None and len(np.unique(train.labels)) < 2):
            raise UserError(
                f"{where}: {train.name} holds images of a single class; a probe needs two"
            )
        if train.labels is None or test.labels is None:
            return []
        unseen = np.setdiff1d(test.labels, train.labels)
        lost = int(np.isin(test.labels, unseen).sum())
        names = classes.shown([test.class_names[k] for k in unseen.tolist()])
        what = f"{where}: {train.name} has no image of {names}; the {lost:,} of {test.name}"
        return [f"{what} count as wrong"] if lost else []


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

    def check_sources(self, where: str, sources: Mapping[str, data.Source]) -> list[str]:
        lines, train = ProbeEval.check_sources(self, where, sources), sources["train"]
        if max(self.k) > len(train):
            only = f"{train.name} has only {len(train):,} images; choose a smaller k"
            raise UserError(f"{where}.k={max(self.k)}: {only}")
        return lines


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

    def check_sources(self, where: str, sources: Mapping[str, data.Source]) -> list[str]:
        lines, train = ProbeEval.check_sources(self, where, sources), sources["train"]
        if train.labels is None:
            return lines
        counts = np.bincount(train.labels, minlength=train.num_classes)
        if max(self.shots) > counts.max():
            most = f"the largest class of {train.name} has {counts.max():,} images"
            raise UserError(f"{where}.shots={max(self.shots)}: {most}; choose fewer")
        few = int((counts < max(self.shots)).sum())
        has = f"of {len(counts):,} classes of {train.name} have fewer images, and give all"
        return [*lines, *([f"{where}.shots={max(self.shots)}: {few:,} {has}"] if few else [])]


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class LinearEval(ProbeEval):
    """Logistic regression, its strength chosen within the training split (`evals.logistic`)."""

    @property
    def metrics(self) -> tuple[str, ...]:
        return ("linear",)

    def check_sources(self, where: str, sources: Mapping[str, data.Source]) -> list[str]:
        lines, train = ProbeEval.check_sources(self, where, sources), sources["train"]
        if train.labels is not None and np.bincount(train.labels).max() < 2:
            why = "some are held out to choose its strength by"
            raise UserError(f"{where}: {train.name} has one image a class, and {why}; use more")
        return lines


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class FeaturesEval(EvalConfig):
    """How many directions the features use, and how far they are from the start's (`evals.drift`).

    It needs no labels. A run that has one takes its probes before the first step, too.

    Attributes:
        neighbours: how many nearest images of each are compared with the start's.
    """

    predictor: ClassVar[str] = "features"

    neighbours: int = value(10, least=1)

    @property
    def metrics(self) -> tuple[str, ...]:
        return ("rank", "similarity", "cka", "overlap")

    def check_sources(self, where: str, sources: Mapping[str, data.Source]) -> list[str]:
        lines, count = EvalConfig.check_sources(self, where, sources), len(sources[""])
        if count < 3:
            few = f"{sources[''].name} has {count} of the three images that a comparison takes"
            raise UserError(f"{where}: {few}; set another {where}.split")
        return lines


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class ZeroShotEval(EvalConfig):
    """Classes told by their names, for an objective of images and texts (`evals.zero_shot`).

    Attributes:
        templates: "openai80", "openai7", "photo", "plain", a file with one template a line, or one
            template itself; {} is the place of the class's name.
        names: a JSON file of what each class is called, one name or several, from the class to a
            name or a list; "" is the dataset's own name of it.
    """

    predictor: ClassVar[str] = "image_embedding"

    templates: str = "openai80"
    names: str = ""

    @property
    def metrics(self) -> tuple[str, ...]:
        return ("top1", "top5")

    def check_sources(self, where: str, sources: Mapping[str, data.Source]) -> list[str]:
        EvalConfig.check_sources(self, where, sources)
        check_labels(sources[""], f"set another {where}.split")
        return []


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class RetrievalEval(EvalConfig):
    """Images and their captions found by each other (`evals.retrieval`).

    Attributes:
        k: numbers of results among which the right one may be.
    """

    predictor: ClassVar[str] = "image_embedding"
    needs_captions: ClassVar[bool] = True

    k: tuple[int, ...] = value((1, 5, 10), least=1)

    @property
    def metrics(self) -> tuple[str, ...]:
        ways = ("image_to_text", "text_to_image")
        return tuple(f"{way}_r{k}" for way in ways for k in self.k)


def _check_whole(transform: data.TransformConfig, where: str) -> None:
    if transform.crop is not data.Crop.RESIZE:
        why = "leaves out pixels that are measured; set it to resize"
        raise UserError(f"{where}.transform.crop={transform.crop} {why}")


class DepthCrop(enum.StrEnum):
    """Which pixels of an image are measured."""

    NONE = "none"  # all
    EIGEN = "eigen"  # NYU's: rows 45 to 470 and columns 41 to 600 of 480x640 (Eigen et al. 2014)


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class DepthEval(EvalConfig):
    """Errors of depths at each image's own size (`evals.dense.depth`).

    `transform.crop` must be resize: the whole image is seen, and its depths brought back.

    Attributes:
        min_depth, max_depth: pixels with a depth beyond them are left out, and predictions brought
            into them.
        crop: the part of an image that is measured.
        flip: average with the mirrored image's depths.
        image_size: (H, W) that images are brought to; () is the model's. Another needs
            `model.dynamic_image_size`.
    """

    predictor: ClassVar[str] = "depth"
    needs_target: ClassVar[str] = "depth"

    min_depth: float = value(0.001, above=0, unit="of the depths")
    max_depth: float = value(10.0, above=0, unit="of the depths")
    crop: DepthCrop = DepthCrop.NONE
    flip: bool = False
    image_size: tuple[int, ...] = value((), lengths=(0, 1, 2), least=1, unit="pixels")

    @property
    def metrics(self) -> tuple[str, ...]:
        return ("rmse", "abs_rel", "log10", "delta1", "delta2", "delta3")

    def check(self, where: str) -> None:
        EvalConfig.check(self, where)
        _check_whole(self.transform, where)
        if self.min_depth >= self.max_depth:
            raise UserError(f"{where}.min_depth={self.min_depth} must be below {where}.max_depth")

    def check_model(self, where: str, model: ModelConfig) -> None:
        own = models.input_shape(model)[:2]
        size, field = self.size(own), f"{where}.image_size"
        if size == own:
            return
        if not getattr(model, "dynamic_image_size", False):
            why = f"is another than the model's, {own}; set model.dynamic_image_size=True"
            raise UserError(f"{field}={self.image_size} {why}", field=field)
        try:
            models.patch_grid(model, size)
        except UserError as error:
            raise UserError(f"{field}={self.image_size}: {error}", field=field) from None

    def size(self, own: tuple[int, int]) -> tuple[int, int]:
        """Return (H, W) that images are brought to; `own` is the model's."""
        given = self.image_size or own
        return given[0], given[-1]


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class SegmentationEval(EvalConfig):
    """Classes of pixels at each image's own size (`evals.dense.evaluators`).

    An image is resized until it just covers the model's size; windows of that size are laid over
    it. Of `transform`, whose crop must be resize, the interpolation is used. `batch_size` counts
    windows.

    Attributes:
        stride: from one window to the next, such as 341 for windows of 512 (DINOv2, DINOv3); 0
            spreads as few as cover the image evenly (EoMT).
        report: write the table of classes and pictures at the end of the run.
    """

    predictor: ClassVar[str] = "segmentation"
    needs_target: ClassVar[str] = "pixels"

    stride: int = value(0, least=0, note="0 spreads windows evenly", unit="pixels")
    report: bool = False

    @property
    def metrics(self) -> tuple[str, ...]:
        return ("miou", "accuracy")

    def check(self, where: str) -> None:
        EvalConfig.check(self, where)
        _check_whole(self.transform, where)


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class PanopticEval(EvalConfig):
    """Things and stuff at each image's own size (`evals.dense.evaluators`).

    The whole image is seen, padded to the model's size. Of `transform`, whose crop must be resize,
    the interpolation is used.

    Attributes:
        score: how probable the class of a query must be.
        overlap: the share of its mask that a query must win.
        report: write the table of classes and pictures at the end of the run.
    """

    predictor: ClassVar[str] = "segments"
    needs_target: ClassVar[str] = "segments"

    score: float = value(0.8, least=0, below=1)
    overlap: float = value(0.8, least=0, below=1)
    report: bool = False

    @property
    def metrics(self) -> tuple[str, ...]:
        return ("pq", "sq", "rq")

    def check(self, where: str) -> None:
        EvalConfig.check(self, where)
        _check_whole(self.transform, where)


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class InstanceEval(EvalConfig):
    """Objects, their masks and boxes, at each image's own size (`evals.dense.evaluators`).

    Images are seen as by `PanopticEval`.

    Attributes:
        masks: measure masks besides boxes; False for data that have boxes alone.
        top: how many of an image's objects count, the likeliest.
        report: write the table of classes and pictures at the end of the run.
    """

    predictor: ClassVar[str] = "segments"
    needs_target: ClassVar[str] = "segments"

    masks: bool = True
    top: int = value(100, least=1, most=100)
    report: bool = False

    @property
    def metrics(self) -> tuple[str, ...]:
        kinds = ("mask_", "box_") if self.masks else ("box_",)
        return tuple(f"{kind}{name}" for kind in kinds for name in ("ap", "ap50"))

    def check(self, where: str) -> None:
        EvalConfig.check(self, where)
        _check_whole(self.transform, where)
