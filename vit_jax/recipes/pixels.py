# SPDX-License-Identifier: Apache-2.0
"""What follows from one's own data where every pixel counts: masks, boxes, depth."""

import dataclasses

from vit_jax.config.tree import Config
from vit_jax.data import MixConfig
from vit_jax.data.sources.dense.layouts import layout_of
from vit_jax.data.targets import TargetKind
from vit_jax.evals import DepthEval, EvalConfig
from vit_jax.objectives import DepthConfig, EomtConfig, ObjectiveConfig, SegmentConfig
from vit_jax.process import waiting

_LEARNED: dict[TargetKind, tuple[ObjectiveConfig, str]] = {
    TargetKind.PIXELS: (
        SegmentConfig(frozen=False),
        "the class of each pixel, by a linear layer over the patches (EoMT: objective=eomt)",
    ),
    TargetKind.SEGMENTS: (
        EomtConfig(target=TargetKind.SEGMENTS),
        "segments, each a mask and a class, by EoMT",
    ),
    TargetKind.DEPTH: (DepthConfig(), "the depth of each pixel, by a linear layer"),
}


def found_out(config: Config, name: str) -> Config:
    """Return a recipe's config for the targets of a dataset, and say so in one line.

    Images without targets leave it as it is.

    Raises UserError: a folder of two layouts.
    """
    layout = layout_of(name)
    if layout.kind is TargetKind.NONE:
        return config
    objective, what = _LEARNED[layout.kind]
    if waiting.is_first():
        print(f"{layout.name}: {layout.what}; the run learns {what}", flush=True)
    return for_targets(config, layout.kind, objective)


def for_targets(config: Config, kind: TargetKind, objective: ObjectiveConfig) -> Config:
    """Return a config with another objective, and what goes with the `kind` of targets.

    Images are not mixed, and keep their colours; nothing of the model is dropped at random where
    the head alone is trained.
    """
    evals: dict[str, EvalConfig] = {}
    for key, each in config.evals.items():
        shared = {f.name: getattr(each, f.name) for f in dataclasses.fields(EvalConfig)}
        if kind is TargetKind.DEPTH:
            evals[key] = DepthEval(**shared)
    data = dataclasses.replace(config.data, mix=MixConfig(), erasing_prob=0.0)
    checkpoint = config.checkpoint
    if kind is TargetKind.DEPTH:
        metric = f"{checkpoint.metric.partition('/')[0]}/rmse"
        checkpoint = dataclasses.replace(checkpoint, metric=metric)
    changed = {"objective": objective, "data": data, "evals": evals, "checkpoint": checkpoint}
    return dataclasses.replace(config, **changed)
