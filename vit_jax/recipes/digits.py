# SPDX-License-Identifier: Apache-2.0
"""Small models of every family on scikit-learn's handwritten digits, and one recipe for them."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from vit_jax import models
from vit_jax.config import CheckpointConfig
from vit_jax.config.tree import Config, LogConfig
from vit_jax.data import Crop, DataConfig, MixConfig, TransformConfig
from vit_jax.evals import ClassifyEval
from vit_jax.models import ModelConfig
from vit_jax.models.layers.pool import Pool
from vit_jax.models.layers.posemb import PosEmbed
from vit_jax.optim import OptimConfig, Optimizer
from vit_jax.recipes import choose

_FIELDS: dict[str, Any] = {"num_classes": 10, "image_size": (32, 32), "channels": 1}
SHAPE: dict[str, Any] = {"dim": 64, "depth": 4, "num_heads": 4, "mlp_dim": 256}
# Settings of a short run of a small ViT, for the sweeps of the ViT paper's studies.
# What an image of `benchmarks.several_labels` may have.
SEVERAL = ("several", "numbers")
STUDY: dict[str, Any] = {
    **{"duration": "20 epochs", "optim.warmup": "10%", "data.mix.mixup_alpha": 0.0},
    **{"log.every": "50%", "log.tensorboard": False, "evals.val.every": "50%"},
    **{"checkpoint.every": "100%", "checkpoint.keep_best": 0, "evals.test.report": False},
    **{"model.dim": 32, "model.mlp_dim": 128},
}


def small(name: str, **fields: Any) -> ModelConfig:
    """Return a variant for scans of 32 x 32 pixels, with other fields changed to make it small."""
    return models.variant(name, **{**_FIELDS, **fields})


def vit() -> ModelConfig:
    """Return a ViT of 8 x 8 pixels a patch, without a class token."""
    fields = {"class_token": False, "pool": Pool.GAP, "pos_embed": PosEmbed.SINCOS2D}
    return small("vit_mu8", **SHAPE, **fields)


def deit() -> ModelConfig:
    """Return a DeiT with a class and a distillation token."""
    return small("deit_ti16_distilled", patch=(8, 8), **SHAPE)


def convit() -> ModelConfig:
    """Return a ConViT as large as `deit`."""
    shape = {"depth": 4, "num_heads": 4, "head_dim": 16, "mlp_dim": 256, "local_up_to_layer": 3}
    return small("convit_ti", patch=(8, 8), **shape)


def regnet() -> ModelConfig:
    """Return a RegNetY of five blocks in three stages: 32, 64 and three of 128 channels."""
    return small("regnety_200mf", depth=5, w0=32, wa=32.0, wm=2.0, group_width=32)


def resnet() -> ModelConfig:
    """Return a ResNet of two stages."""
    return small("resnet50", depths=(1, 1), widths=(64, 128), stem_width=32)


def muon(warmup: str) -> OptimConfig:
    """Return the optimizer of the digits; `digits` says how it was tuned."""
    return OptimConfig(
        name=Optimizer.MUON,
        lr=4e-3,
        momentum=0.95,
        nesterov=True,
        weight_decay=0.05,
        warmup=warmup,
        clip_norm=1.0,
    )


def digits(model: ModelConfig) -> Config:
    """Train on the first 1,293 scans, validate on the next 144, test on other writers' scans.

    80 epochs, batch 64, Muon lr 4e-3, weight decay 0.05, cosine after 5 epochs of warmup, warps and
    mixup. Tuned for the ViT by cross-validation over blocks of the training scans only.
    """
    # Scans are enlarged four times: a warp at 8x8 pixels would blur the strokes away.
    plain = TransformConfig(crop=Crop.RESIZE)
    return Config(
        model=model,
        data=DataConfig(
            name="digits",
            train_split="train[:1293]",
            batch_size=64,
            transform=TransformConfig(
                crop=Crop.RESIZE, degrees=15.0, translate=(0.1, 0.1), scale=(0.85, 1.15), shear=10.0
            ),
            mix=MixConfig(mixup_alpha=1.0),
            cache=True,
        ),
        optim=muon("5 epochs"),
        duration="80 epochs",
        evals={
            "val": ClassifyEval(split="train[1293:]", every="5 epochs", transform=plain),
            "test": ClassifyEval(split="test", transform=plain, report=True),
        },
        checkpoint=CheckpointConfig(every="10 epochs"),
        log=LogConfig(every="50 steps"),
    )


def five(classes: Iterable[int]) -> Config:
    """Train a ViT on five of the classes, in 60 epochs."""
    config = digits(dataclasses.replace(deit(), distilled=False, num_classes=5))
    config.data.classes = tuple(classes)
    config.duration, config.optim.warmup = "60 epochs", "5%"
    return config


def by_sgd(model: ModelConfig) -> Config:
    """Train as `digits` in 40 epochs by RegNet's SGD."""
    config = digits(model)
    # The decay is the sum of RegNet's 5e-5 over the momentum.
    config.optim = OptimConfig(
        name=Optimizer.SGD, lr=0.05, warmup="5%", nesterov=True, weight_decay=5e-4
    )
    config.duration = "40 epochs"
    return config


def several(run: str) -> Config:
    """Learn several labels of scikit-learn's digits, or numbers, from `benchmarks.several_labels`.

    Raises UserError: no such run.
    """
    from vit_jax.recipes.folder import for_numbers, for_several  # late: other digits need neither

    config = digits(vit())
    config.model.num_classes = 0
    config.data.train_split, config.data.mix = "train", MixConfig()
    config.duration, config.optim.warmup = "20 epochs", "10%"
    name = "csv:runs/digits_tables"
    if choose("run", run, SEVERAL) == "several":
        config = for_several(config)
        config.data.name = f"{name}/several.csv"
        config.evals["val"].split = "val"
        config.evals["test"] = dataclasses.replace(
            config.evals["test"], split="test", chosen_on="val"
        )
        return config
    config = for_numbers(config)
    config.data.name = f"{name}/numbers.csv?target=ink,slant"
    config.data.transform = TransformConfig(crop=Crop.RESIZE)  # a warp would change both numbers
    for name in ("val", "test"):
        config.evals[name].split = name
    return config
