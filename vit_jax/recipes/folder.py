# SPDX-License-Identifier: Apache-2.0
"""One's own images: settings that fit hundreds or hundreds of thousands of them."""

import dataclasses

from vit_jax import models
from vit_jax.config import CheckpointConfig
from vit_jax.config.tree import Config, LogConfig
from vit_jax.data import DataConfig, MixConfig
from vit_jax.evals import ClassifyEval
from vit_jax.models import ModelConfig
from vit_jax.models.layers.pool import Pool
from vit_jax.models.layers.posemb import PosEmbed
from vit_jax.objectives import SupervisedConfig
from vit_jax.optim import OptimConfig, Optimizer
from vit_jax.recipes import choose
from vit_jax.recipes.transforms import transform
from vit_jax.weights.config import InitConfig

RUNS = ("s16", "small")


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
