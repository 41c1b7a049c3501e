# SPDX-License-Identifier: Apache-2.0
"""A trained model on a dataset: which images, at which sizes."""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from vit_jax import data, evals, models, sharding
from vit_jax.data import DataConfig, split_of
from vit_jax.data.config import Crop
from vit_jax.errors import UserError
from vit_jax.evals import ClassifyEval, EvalConfig, Predict, classes, classify
from vit_jax.inference.forward import Forward, make_apply
from vit_jax.inference.trained import Trained, read_weights
from vit_jax.models import pair

_BATCH_SIZE = 128  # for a published file, which has no run


class Target(NamedTuple):
    """What a model is evaluated on: its images, and how they are read and brought to size."""

    evaluation: ClassifyEval
    reading: DataConfig
    source: data.Source


def open_target(
    trained: Trained,
    *,
    dataset: str = "",
    split: str = "",
    data_dir: str = "",
    batch_size: int = 0,
    own_transform: bool = True,
) -> Target:
    """Open a split for a model; its labels are the model's class ids.

    Args:
        trained: the model.
        dataset: as `DataConfig.name`; "" is the run's.
        split: "" is that of the run's last evaluation, or, of another dataset, "test".
        data_dir: "" is the run's.
        batch_size: over all processes; 0 is the run's.
        own_transform: where the run evaluates on this split itself, do to the images what it does
            there; else `trained.transform`.

    Raises UserError: no such dataset or split, or classes that are not the model's.
    """
    cfg = trained.config
    if cfg is None and not dataset:
        advice = "add --dataset=NAME or --dataset=folder:DIR"
        raise UserError(f"{trained.ref} names no dataset to evaluate on; {advice}")
    reading = dataclasses.replace(cfg.data) if cfg else DataConfig(batch_size=_BATCH_SIZE)
    evaluation = ClassifyEval(dataset=dataset, split=split or "test", transform=trained.transform)
    for own in cfg.evals.values() if cfg else ():
        if dataset in ("", own.dataset or reading.name) and split in ("", own.split):
            shared = {
                field.name: getattr(own, field.name) for field in dataclasses.fields(EvalConfig)
            }
            evaluation = ClassifyEval(**shared)
            if not own_transform:
                evaluation.transform = trained.transform
    reading.data_dir = data_dir or reading.data_dir
    evaluation.batch_size = batch_size or evaluation.batch_size
    with split_of("--split"):
        source = evals.open_splits(evaluation, reading)[""]
    return Target(evaluation, reading, classes.align(source, trained.class_names))


def make_evaluator(trained: Trained, target: Target, mesh: Mesh) -> evals.Classify:
    """Build the evaluator of a split, of images of the model's size."""
    context = evals.Context(
        data=target.reading,
        sources={"": target.source},
        image_size=trained.image_size,
        channels=trained.channels,
        mesh=mesh,
        loss=trained.loss,
    )
    return classify.create(target.evaluation, context)


def make_predict(trained: Trained) -> Predict:
    """Return (variables, batch with "image" [B, H, W, C]) -> logits [B, K]."""
    return _logits(make_apply(trained))


@functools.lru_cache  # one function object a program, by which the evaluator's jit finds it
def _logits(apply: Forward) -> Predict:
    return lambda variables, batch: apply(variables, batch["image"]).logits


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
    if transform.crop is Crop.NONE:
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
