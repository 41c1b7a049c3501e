# SPDX-License-Identifier: Apache-2.0
"""One's own images: settings that fit hundreds or hundreds of thousands of them."""

import dataclasses
import re

import numpy as np

from vit_jax import data, models
from vit_jax.config import CheckpointConfig
from vit_jax.config.tree import Config, LogConfig
from vit_jax.data import DataConfig, MixConfig
from vit_jax.data.sources.base import gives_numbers
from vit_jax.data.sources.dense import layout_of
from vit_jax.data.targets import TargetKind
from vit_jax.errors import UserError
from vit_jax.evals import (
    ClassifyEval,
    DepthEval,
    EvalConfig,
    InstanceEval,
    MultiLabelEval,
    PanopticEval,
    RegressionEval,
    SegmentationEval,
)
from vit_jax.models import ModelConfig
from vit_jax.models.layers.pool import Pool
from vit_jax.models.layers.posemb import PosEmbed
from vit_jax.models.losses import Loss
from vit_jax.objectives import (
    DepthConfig,
    EomtConfig,
    MaskLossConfig,
    ObjectiveConfig,
    RegressionConfig,
    SegmentConfig,
    SupervisedConfig,
)
from vit_jax.optim import OptimConfig, Optimizer
from vit_jax.process import waiting
from vit_jax.recipes import choose, transform
from vit_jax.weights.config import InitConfig

RUNS = ("s16", "small")
_KINDS = ("csv:", "tar:", "parquet:", "hf:")  # of datasets that may have either


def model(run: str) -> ModelConfig:
    """Return a ViT-S/16 or, for a CPU, one of 0.5 million parameters for images of 64 pixels.

    Raises UserError: no such run.
    """
    if choose("run", run, RUNS) == "s16":
        return models.variant("vit_s16", num_classes=0, drop_path_rate=0.1)
    return models.variant(
        "vit_mu8",
        num_classes=0,
        image_size=(64, 64),
        dim=96,
        depth=4,
        num_heads=3,
        mlp_dim=384,
        class_token=False,
        pool=Pool.GAP,
        pos_embed=PosEmbed.SINCOS2D,
    )


def fractals(run: str) -> Config:
    """Pretrain on drawn images alone, as arXiv:2101.08515: 100 classes, 20 epochs.

    Random boxes, flips and rotations make each drawing new. Values are not tuned. Raises
    UserError: no such run.
    """
    config = images(run)
    config.model = dataclasses.replace(config.model, num_classes=100, drop_path_rate=0.0)
    config.data.name, config.data.batch_size = "fractals/100", 128
    config.data.mix = MixConfig()
    config.data.transform.degrees = 180.0
    config.duration, config.init = "20 epochs", InitConfig()
    if run == "s16":
        config.optim.lr = 1e-3
    return config


def optim(run: str) -> OptimConfig:
    """Return AdamW, or for the small model Muon as on the digits, by which it learns sooner."""
    shared = {"weight_decay": 0.05, "warmup": "10%", "clip_norm": 1.0}
    if run == "s16":
        return OptimConfig(lr=5e-4, **shared)
    return OptimConfig(name=Optimizer.MUON, lr=4e-3, momentum=0.95, nesterov=True, **shared)


def images(run: str = "s16") -> Config:
    """Train on a folder or a table of images, from published weights where init.weights has some.

    The dataset decides the number of classes, the batch and the duration (`config.fitted`). Random
    boxes, flips, mixup; the best checkpoint on val is kept. Values common for ViTs, not
    tuned: letters want data.transform.flip=false, published weights a lower optim.lr.

    Raises UserError: no such run.
    """
    train = transform("random_resized")
    plain = transform("resize")
    train.area = (0.35, 1.0)  # small sets of objects, not ImageNet's scenes
    return Config(
        model=model(run),
        data=DataConfig(
            name="",
            batch_size=0,
            transform=train,
            mix=MixConfig(mixup_alpha=0.2),
            cache=True,
        ),
        optim=optim(run),
        objective=SupervisedConfig(label_smoothing=0.1),
        init=InitConfig(new_head=True),
        duration="auto",
        evals={
            "val": ClassifyEval(split="val", every="5%", transform=plain, report=True, macro=True)
        },
        checkpoint=CheckpointConfig(every="5%"),
        log=LogConfig(every="1%"),
    )


def found_out(config: Config, name: str, data_dir: str = "", bands: str = "") -> Config:
    """Return a recipe's config for what a dataset's images have, and say so in one line.

    One label an image leaves it as it is. What is wrong with the targets is said when the run
    opens them. `bands` is `data.bands` as a command line has it: "all" or "B02,B03".

    Raises UserError: a folder of two layouts.
    """
    layout = layout_of(name)
    if layout.kind is TargetKind.NONE:
        chosen = re.findall(r"[^\s,()\[\]'\"]+", bands)
        return _of_labels(config, name, data_dir, tuple(chosen))
    objective, kind, what = _learned(config, layout.name, layout.kind)
    if waiting.is_first():
        print(f"{layout.name}: {layout.what}; the run learns {what}", flush=True)
    return for_targets(config, objective, kind)


def _of_labels(config: Config, name: str, data_dir: str, bands: tuple[str, ...]) -> Config:
    """Return a recipe's config for what the images of a dataset have, and say so in one line.

    A dataset of one label an image, or one that cannot be opened, leaves it as it is: what is wrong
    with it is said when the run opens it.
    """
    if not data.full_name(name).startswith(_KINDS):
        return config
    try:
        source = data.open_source(name, data_dir, config.data.train_split, bands=bands)
    except UserError:
        return config
    if gives_numbers(source):
        found, what = for_numbers(config), "numbers: squared error, judged by the mean error (mae)"
    elif source.multi_label:
        found, what = for_several(config), "several labels: sigmoid loss, judged by mAP (map)"
    else:
        return config
    if waiting.is_first():
        print(f"{source.name}: an image has {what}", flush=True)
    return found


def for_several(config: Config) -> Config:
    """Return a config with a sigmoid loss and average precision in place of top-1."""
    objective = SupervisedConfig(loss=Loss.SIGMOID)
    return _judged(config, objective, MultiLabelEval, "map")


def for_numbers(config: Config) -> Config:
    """Return a config with a squared error, and errors of numbers in place of top-1."""
    return _judged(config, RegressionConfig(), RegressionEval, "mae")


def _judged(config: Config, objective: object, kind: type[EvalConfig], metric: str) -> Config:
    """Replace the objective and what its classes are judged by; the rest stays."""
    evals = {}
    for name, each in config.evals.items():
        shared = {f.name: getattr(each, f.name) for f in dataclasses.fields(EvalConfig)}
        evals[name] = kind(**shared) if isinstance(each, ClassifyEval) else each
    ranking = config.checkpoint.metric.partition("/")[0]
    checkpoint = dataclasses.replace(config.checkpoint, metric=f"{ranking}/{metric}")
    changed = {"objective": objective, "evals": evals, "checkpoint": checkpoint}
    return dataclasses.replace(config, **changed)


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
