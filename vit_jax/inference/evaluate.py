# SPDX-License-Identifier: Apache-2.0
"""A trained model on a dataset: accuracy and calibration, at several sizes, and corrupted."""

import dataclasses
import itertools
from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Num

from vit_jax import data, evals, models
from vit_jax.data import DataConfig, account, split_of
from vit_jax.data.config import Crop
from vit_jax.data.sources.base import account_of, gives_numbers
from vit_jax.data.sources.partition import as_in_run, same_dataset, same_draw
from vit_jax.devices import hardware, sharding
from vit_jax.errors import UserError
from vit_jax.evals import ClassifyEval, EvalConfig, classes, classify, corruptions
from vit_jax.evals.calibration import expected_error, reliability, wilson
from vit_jax.evals.classify import Classify, Scores
from vit_jax.evals.passes import watched
from vit_jax.inference.forward import make_predict
from vit_jax.inference.trained import Trained, changes, read_weights
from vit_jax.inference.views import read_view
from vit_jax.models import pair

_BATCH_SIZE = 128  # for a published file, which has no run
_explained = hardware.explained("lower the batch size, --batch_size=N")


class EvalTarget(NamedTuple):
    """What a model is evaluated on: its images, and how they are read and brought to size."""

    evaluation: ClassifyEval
    reading: DataConfig
    source: data.Source
    groups: classes.Groups = ()  # the classes to choose among, where not all (`classes.rule`)


def open_split(
    trained: Trained,
    kind: type[EvalConfig],
    *,
    dataset: str = "",
    split: str = "",
    data_dir: str = "",
    batch_size: int = 0,
    own_transform: bool = True,
) -> tuple[Any, DataConfig, data.Source]:
    """Open a split for an evaluation of a kind; returns that, how images are read, the split.

    Arguments are as of `open_target`.

    Raises UserError: no such dataset or split.
    """
    cfg = trained.config
    if cfg is None and not dataset:
        advice = "add --dataset=NAME or --dataset=folder:DIR"
        raise UserError(f"{trained.ref} names no dataset to evaluate on; {advice}")
    reading = dataclasses.replace(cfg.data) if cfg else DataConfig(batch_size=_BATCH_SIZE)
    if cfg and dataset:
        dataset = as_in_run(dataset, reading.name, *(own.dataset for own in cfg.evals.values()))
    evaluation = kind(dataset=dataset, split=split or "test", transform=trained.transform)
    for own in cfg.evals.values() if cfg else ():
        if dataset in ("", own.dataset or reading.name) and split in ("", own.split):
            shared = {
                field.name: getattr(own, field.name) for field in dataclasses.fields(EvalConfig)
            }
            evaluation = kind(**shared)
            if not own_transform:
                evaluation.transform = trained.transform
    reading = dataclasses.replace(reading, **trained.reading._asdict())
    reading.data_dir = data_dir or reading.data_dir
    evaluation.batch_size = batch_size or evaluation.batch_size
    with split_of("--split"):
        source = evals.open_splits(evaluation, reading)[""]
    account.tell(source.name, account_of(source), strict=reading.strict)
    is_other = bool(cfg and dataset) and not same_draw(dataset, reading.name)
    if is_other and getattr(source, "drawn", False) and same_dataset(dataset, reading.name):
        draw = "another draw of splits than the run's, and has images on which it was trained"
        print(f"warning: {source.name} is of {draw}", flush=True)
    return evaluation, reading, source


def open_target(
    trained: Trained,
    *,
    dataset: str = "",
    split: str = "",
    data_dir: str = "",
    batch_size: int = 0,
    own_transform: bool = True,
) -> EvalTarget:
    """Open a split for a model; its labels are the model's class ids, or `EvalTarget.groups`.

    Args:
        dataset: as `DataConfig.name`; "" is the run's.
        split: "" is that of the run's last evaluation, or, of another dataset, "test".
        data_dir: "" is the run's.
        batch_size: over all processes; 0 is the run's.
        own_transform: where the run evaluates on this split itself, do to the images what it does
            there; else `trained.transform`.

    Raises UserError: no such dataset or split, or classes that are not the model's.
    """
    evaluation, reading, source = open_split(
        trained,
        ClassifyEval,
        dataset=dataset,
        split=split,
        data_dir=data_dir,
        batch_size=batch_size,
        own_transform=own_transform,
    )
    if gives_numbers(source) != trained.gives_numbers:
        has, wants = ("numbers", "classes")[:: 1 if gives_numbers(source) else -1]
        advice = "evaluate on another: --dataset=NAME, with ?target=COLUMN,COLUMN for numbers"
        raise UserError(f"{source.name} has {has}, and {trained.ref} gives {wants}; {advice}")
    if not source.num_classes:
        advice = "put its images in folders of classes, or evaluate on another: --dataset=NAME"
        raise UserError(f"{source.name} has no labels; {advice}")
    return EvalTarget(evaluation, reading, *classes.rule(source, trained.class_names))


def make_evaluator(trained: Trained, target: EvalTarget, mesh: Mesh) -> Classify:
    """Build the evaluator of a split, of images of the model's size."""
    return classify.create(target.evaluation, make_context(trained, target, mesh))


def make_context(trained: Trained, target: EvalTarget, mesh: Mesh) -> evals.EvalContext:
    """Return what an evaluator of a split is built from, of images of the model's size."""
    return evals.EvalContext(
        data=target.reading,
        sources={"": target.source},
        image_size=trained.image_size,
        channels=trained.channels,
        patch=models.native_patch(trained.model),
        mesh=mesh,
        loss=trained.loss,
    )


def placed(trained: Trained, mesh: Mesh) -> Any:
    """Lay the model's variables over the devices, as training does."""
    variables = dict(trained.variables)
    return jax.device_put(variables, sharding.shardings(variables, mesh))


def native_size(trained: Trained) -> tuple[int, int]:
    """Return the (height, width) of training; of a published file, that of its variant."""
    model = trained.config.model if trained.config else trained.model
    return pair(model.image_size, "image_size")


def resized(trained: Trained, size: int) -> Trained:
    """Read the weights again for square images of another size, tables brought to it."""
    model = dataclasses.replace(trained.model, image_size=(size, size))
    return read_weights(dataclasses.replace(trained, model=model))


def check_sizes(trained: Trained, transform: data.TransformConfig, sizes: Sequence[int]) -> None:
    """Raise UserError, with the nearest valid sizes, for a size that the model cannot take."""
    height, width = native_size(trained)
    family = models.family(trained.model)
    if family.one_size:
        why = f"a {family.name} mixes the patches of {height}x{width} alone"
        raise UserError(f"--sizes: {why}")
    if height != width:
        raise UserError(f"--sizes are of squares, and this model was trained at {height}x{width}")
    if transform.crop is Crop.NONE or data.is_native(transform):
        raise UserError("--sizes needs --transform.crop=resize or center")
    for size in sizes:
        if not _takes(trained, size):
            near = sorted(range(1, 2 * max(size, height) + 1), key=lambda s: (abs(s - size), s))
            fit = sorted(itertools.islice(filter(lambda s: _takes(trained, s), near), 4))
            raise UserError(
                f"--sizes={size}: the model takes, near it, {', '.join(map(str, fit)) or 'none'}"
            )


def _takes(trained: Trained, size: int) -> bool:
    try:
        models.create(dataclasses.replace(trained.model, image_size=(size, size)))
    except UserError:
        return False
    return True


class Measuring:
    """A trained model, which has its weights, at its own size on the devices."""

    def __init__(self, trained: Trained, target: EvalTarget, mesh: Mesh) -> None:
        self.trained, self.target, self.mesh = trained, target, mesh
        self.predict = classes.grouped(make_predict(trained), target.groups)
        self.variables = placed(trained, mesh)
        self.evaluation = make_evaluator(trained, target, mesh)

    def view(self, index: int) -> Num[np.ndarray, "H W C"]:
        """Return what the model sees of an example; raises UserError: it cannot be read."""
        found = dataclasses.replace(self.trained, transform=self.target.evaluation.transform)
        view = read_view(found, self.target.source.read(index)["image"])
        if isinstance(view, str):
            raise UserError(view)
        return view


def _watch(evaluation: Classify, what: str, total: int, *, times: int = 1) -> Classify:
    if jax.process_index():
        return evaluation
    share = int(total * sharding.own_share(evaluation.mesh))  # what this process reads of it
    batches = watched(evaluation.batches, max(share, 1), what, times=times)
    return dataclasses.replace(evaluation, batches=batches)


@_explained
def measure(measuring: Measuring) -> tuple[Scores, dict[str, Any]]:
    """Score the split; returns the scores, and what metrics.json holds of them."""
    trained, source = measuring.trained, measuring.target.source
    watch = _watch(measuring.evaluation, "evaluating", len(source))
    scores = watch.scores(measuring.predict, measuring.variables)
    bins = reliability(scores.confidence, scores.top1)
    return scores, {
        "from": trained.ref,
        "step": trained.step,
        "ema": trained.ema,
        "changes": changes(trained),
        "dataset": source.name,
        **({"among_classes": len(measuring.target.groups)} if measuring.target.groups else {}),
        "image_size": list(trained.image_size),
        "num_examples": len(scores.top1),
        "unlabelled": len(source) - len(scores.top1),
        **_summary(scores),
        **scores.macro(),
        **several(trained, scores),
        "ece": expected_error(bins),
        "confidence": float(scores.confidence.mean(dtype="float64")),
    }


def several(trained: Trained, scores: Scores) -> dict[str, Any]:
    """Return what is measured of several labels, F1 at the thresholds that the run chose; or {}.

    Raises UserError: thresholds of the run that are damaged.
    """
    if scores.every is None or scores.hot is None:
        return {}
    from vit_jax.evals import multi_label  # late: most sets have one label an image
    from vit_jax.inference import labels

    found: dict[str, Any] = scores.several()
    chosen = labels.thresholds(trained) or (0.5,) * scores.every.shape[1]
    if len(chosen) == scores.every.shape[1]:  # of all classes, not of groups of them
        found |= multi_label.f1(scores.every >= np.array(chosen), scores.hot)
        found |= {"threshold": chosen[0]} if len({*chosen}) == 1 else {"thresholds": list(chosen)}
    return found


@_explained
def measure_numbers(trained: Trained, target: EvalTarget, mesh: Mesh) -> dict[str, Any]:
    """Measure a model of numbers; returns what metrics.json holds of it."""
    from vit_jax.evals.several import Regress  # late: most models give classes

    context = make_context(trained, target, mesh)
    stream = evals.EvalStream(target.evaluation, context)
    evaluator = Regress(stream=stream, mesh=mesh, names=target.source.class_names)
    found = evaluator.run({"value": make_predict(trained)}, placed(trained, mesh))
    return {
        "from": trained.ref,
        "step": trained.step,
        "ema": trained.ema,
        "changes": changes(trained),
        "dataset": target.source.name,
        "image_size": list(trained.image_size),
        **found,
        "num_examples": int(found["num_examples"]),
    }


def _summary(scores: Scores) -> dict[str, Any]:
    found = scores.summary()
    interval = list(wilson(int(scores.top1.sum()), len(scores.top1)))
    first = {"top1": found["top1"], "top1_interval": interval}
    return {**first, "top5": found["top5"], "loss": found["loss"]}


class Mistake(NamedTuple):
    """An example that the model gets wrong."""

    image: str  # its file, or its record in the dataset
    true: str
    predicted: str
    confidence: float  # probability of the first guess
    loss: float  # nats
    index: int  # in the split


def mistakes(measuring: Measuring, scores: Scores) -> list[Mistake]:
    """List the mistakes, those of the largest loss first; [] with several labels per image."""
    if scores.label is None:
        return []
    source, names = measuring.target.source, measuring.evaluation.names(scores)
    wrong = np.flatnonzero(~scores.top1)
    return [
        Mistake(
            image=source.example_id(index),
            true=names[scores.label[index]],
            predicted=names[scores.prediction[index]],
            confidence=float(scores.confidence[index]),
            loss=float(scores.nll[index]),
            index=index,
        )
        for index in wrong[np.argsort(-scores.nll[wrong], kind="stable")].tolist()
    ]


@_explained
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
            predict = classes.grouped(make_predict(other), target.groups)
            scores = watch.scores(predict, placed(other, mesh))
        row = _summary(scores)
        low, high = row.pop("top1_interval")
        top1 = {"top1": row.pop("top1"), "top1_low": low, "top1_high": high}
        found.append({"size": size, **top1, **row})
    return found


@_explained
def under_corruption(
    measuring: Measuring, variants: Sequence[corruptions.Variant]
) -> dict[str, Any]:
    """Score the split under corruptions; returns their accuracy by name and severity.

    Raises UserError: images of any size, whose corruptions are not defined.
    """
    if measuring.trained.reading.bands:
        raise UserError("corruptions are of pictures, grey or RGB; leave them out for bands")
    if data.is_native(measuring.target.evaluation.transform):
        raise UserError(
            "corruptions are of images of one size; set --transform.crop=resize or center"
        )
    total = len(measuring.target.source)
    watch = _watch(measuring.evaluation, "corrupted images", total, times=len(variants))
    found = corruptions.score(watch, measuring.predict, measuring.variables, variants)
    table: dict[str, dict[str, float]] = {}
    for (name, severity), scores in found.items():
        table.setdefault(name, {})[str(severity)] = scores.summary()["top1"]
    columns = zip(*(row.values() for row in table.values()), strict=True)
    return {
        "severities_of": corruptions.benchmark(measuring.trained.image_size),
        "mean_top1": fmean(fmean(column) for column in columns),
        "top1": table,
    }
