# SPDX-License-Identifier: Apache-2.0
"""What follows from one's own data where every pixel counts: masks, boxes, depth."""

import dataclasses

import numpy as np

from vit_jax import data
from vit_jax.config.tree import Config
from vit_jax.data import MixConfig
from vit_jax.data.sources.dense.layouts import layout_of
from vit_jax.data.targets import TargetKind
from vit_jax.errors import UserError
from vit_jax.evals import DepthEval, EvalConfig, InstanceEval, PanopticEval, SegmentationEval
from vit_jax.objectives import (
    DepthConfig,
    EomtConfig,
    MaskLossConfig,
    ObjectiveConfig,
    SegmentConfig,
)
from vit_jax.process import waiting


def found_out(config: Config, name: str) -> Config:
    """Return a recipe's config for the targets of a dataset, and say so in one line.

    Images without targets leave it as it is. What is wrong with the targets is said when the run
    opens them.

    Raises UserError: a folder of two layouts.
    """
    layout = layout_of(name)
    if layout.kind is TargetKind.NONE:
        return config
    objective, kind, what = _learned(config, layout.name, layout.kind)
    if waiting.is_first():
        print(f"{layout.name}: {layout.what}; the run learns {what}", flush=True)
    return for_targets(config, objective, kind)


def for_targets(config: Config, objective: ObjectiveConfig, judge: EvalConfig) -> Config:
    """Return a config with another objective, whose evaluations are like `judge`.

    Images are not mixed nor erased, which their targets could not follow.
    """
    evals: dict[str, EvalConfig] = {}
    for key, each in config.evals.items():
        shared = {f.name: getattr(each, f.name) for f in dataclasses.fields(EvalConfig)}
        evals[key] = dataclasses.replace(judge, **shared)
    reading = dataclasses.replace(config.data, mix=MixConfig(), erasing_prob=0.0)
    ranking = config.checkpoint.metric.partition("/")[0]
    checkpoint = dataclasses.replace(config.checkpoint, metric=f"{ranking}/{judge.metrics[0]}")
    changed = {"objective": objective, "data": reading, "evals": evals, "checkpoint": checkpoint}
    return dataclasses.replace(config, **changed)


def _learned(
    config: Config, name: str, kind: TargetKind
) -> tuple[ObjectiveConfig, EvalConfig, str]:
    """Return what is learned of a dataset, what it is judged by, and both in words."""
    if kind is TargetKind.DEPTH:
        what = "the depth of each pixel by a linear layer, judged by rmse"
        return DepthConfig(), DepthEval(), what
    if kind is TargetKind.PIXELS:
        what = "the class of each pixel by a linear layer, judged by miou"
        return SegmentConfig(frozen=False), SegmentationEval(report=True), what
    # Queries take part in a third of the blocks of a ViT-B, as published, and in half of few.
    blocks = min(EomtConfig().blocks, max(1, getattr(config.model, "depth", 1) // 2))
    # Masks of a quarter of the image's side are compared at half as many points as they have
    # pixels, as the published 12,544 are about of 640 pixels.
    height, width = (int(side) for side in np.broadcast_to(config.model.image_size, 2))
    points = min(MaskLossConfig().points, height * width // 32)
    loss = MaskLossConfig(points=points)
    objective = EomtConfig(target=TargetKind.SEGMENTS, blocks=blocks, loss=loss)
    try:
        source = data.open_source(name, split=config.data.train_split, target=kind)
    except UserError:
        source = None
    if getattr(source, "things", ()):
        return objective, PanopticEval(report=True), "things and stuff by EoMT, judged by pq"
    if source is None or getattr(source, "has_masks", True):
        return objective, InstanceEval(report=True), "objects by EoMT, judged by mask_ap"
    what = "objects by EoMT of boxes alone, judged by box_ap"
    return objective, InstanceEval(masks=False, report=True), what
