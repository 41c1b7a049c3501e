# SPDX-License-Identifier: Apache-2.0
"""A trained model of pixels on a dataset: the metrics of what it was trained for."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from vit_jax import data, evals, models
from vit_jax.data import Crop, TransformConfig
from vit_jax.devices import hardware
from vit_jax.evals.config import (
    DepthEval,
    EvalConfig,
    InstanceEval,
    PanopticEval,
    SegmentationEval,
)
from vit_jax.inference import dense
from vit_jax.inference.evaluate import open_split, placed
from vit_jax.inference.pixels import PixelTask, task_of
from vit_jax.inference.trained import Trained, changes

KINDS: dict[PixelTask, type[EvalConfig]] = {
    PixelTask.CLASSES: SegmentationEval,
    PixelTask.SEGMENTS: PanopticEval,
    PixelTask.OBJECTS: InstanceEval,
    PixelTask.DEPTH: DepthEval,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PixelSplit:
    """What a model of pixels is measured on, and how."""

    evaluation: EvalConfig
    reading: data.DataConfig
    source: data.Source
    names: tuple[str, ...] = ()  # the run's evaluations of pixels, first the one it is measured as


def open_target(
    trained: Trained,
    task: PixelTask | None = None,
    *,
    dataset: str = "",
    split: str = "",
    data_dir: str = "",
    batch_size: int = 0,
    own_transform: bool = True,
) -> PixelSplit:
    """Open a split for a model of pixels; arguments are as of `evaluate.open_target`.

    It is measured as the run's first evaluation of the kind does; a run that has one of another
    kind only as that does, where no `task` is given.

    Raises UserError: no such dataset or split, or one without such targets.
    """
    every = trained.config.evals if trained.config else {}
    own = {name: cfg for name, cfg in every.items() if isinstance(cfg, tuple(KINDS.values()))}
    first = next(map(type, own.values()), None)
    kind = KINDS[task_of(trained, task)] if task or first is None else first
    place = {"dataset": dataset, "split": split, "data_dir": data_dir, "batch_size": batch_size}
    evaluation, reading, source = open_split(trained, kind, **place, own_transform=own_transform)
    shared = {field.name for field in dataclasses.fields(EvalConfig)}
    same = [name for name, cfg in own.items() if type(cfg) is kind][:1]
    for name in same:
        more = [x.name for x in dataclasses.fields(kind) if x.name not in shared]
        settings = {field: getattr(own[name], field) for field in more}
        evaluation = dataclasses.replace(evaluation, **settings)
    whole = TransformConfig(crop=Crop.RESIZE, resize=evaluation.transform.resize)
    evaluation = dataclasses.replace(evaluation, transform=whole)
    evaluation.check("the evaluation")
    evaluation.check_sources("the evaluation", {"": source})
    names = tuple(same + [name for name in own if same and name not in same])
    return PixelSplit(evaluation=evaluation, reading=reading, source=source, names=names)


@hardware.explained("lower the batch size, --batch_size=N")
def measure(
    trained: Trained, target: PixelSplit, mesh: Mesh, folder: Path | None = None
) -> dict[str, Any]:
    """Measure a model that has its weights; returns the metrics and what they are of.

    With a `folder` the table of classes and pictures are written there.

    Raises UserError: images or targets that cannot be read, or classes that are not the model's.
    """
    evaluation = target.evaluation
    if folder is not None and hasattr(evaluation, "report"):
        evaluation = dataclasses.replace(evaluation, report=True)  # pyright: ignore[reportCallIssue]
    context = evals.EvalContext(
        data=target.reading,
        sources={"": target.source},
        image_size=trained.image_size,
        channels=trained.channels,
        patch=models.native_patch(trained.model),
        mesh=mesh,
        loss=None,
        name=target.source.name,
    )
    evaluator = evals.create(evaluation, context)
    with jax.set_mesh(mesh):
        metrics = evaluator.run(
            dense.predictors(trained), placed(trained, mesh), folder, trained.checkpoint
        )
    return {
        "from": trained.ref,
        "step": trained.step,
        "ema": trained.ema,
        "changes": changes(trained),
        "dataset": target.source.name,
        "evaluation": type(evaluation).__name__,
        "image_size": list(trained.image_size),
        **metrics,
    }
