# SPDX-License-Identifier: Apache-2.0
"""A plain ViT on CIFAR-10 from scratch: DeiT's recipe, cut to 45 minutes of one H100."""

import dataclasses

from vit_jax import models
from vit_jax.config.tree import Config
from vit_jax.data import Crop, TransformConfig
from vit_jax.evals import ClassifyEval
from vit_jax.models import ModelConfig
from vit_jax.models.layers.pool import Pool
from vit_jax.models.layers.posemb import PosEmbed
from vit_jax.recipes import transform
from vit_jax.recipes.imagenet import deit

# Mean and deviation of the training images, for each channel. Source: the repository
# SHI-Labs/Compact-Transformers, configs/datasets/cifar10.yml.
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def vit() -> ModelConfig:
    """Return DeiT-S for 32 x 32 pixels: 64 patches of 4 x 4, as ViT-Lite has them.

    A mean instead of a class token, and fixed positions: arXiv:2205.01580; without the
    token, ViT-Lite rose from 91.4 to 92.4 % (CVT, in the README of Compact-Transformers).
    """
    # An even number of tokens is what cuDNN's attention takes as it is.
    return models.variant(
        "deit_s16",
        image_size=(32, 32),
        patch=(4, 4),
        num_classes=10,
        class_token=False,
        pool=Pool.GAP,
        pos_embed=PosEmbed.SINCOS2D,
    )


def scratch(model: ModelConfig) -> Config:
    """Train on all 50,000 images for 600 epochs and test: DeiT's section 5.3 at 32 pixels.

    Batch, rate, decay, warmup, stochastic depth, smoothing, mixing, erasing and copies of an image
    are `deit.imagenet`'s. Its code pads images of 32 pixels by 4 and cuts (datasets.py), as
    `padded` does. The last checkpoint counts: nothing is held out to choose another by, and the
    test images choose none.
    """
    config = deit.imagenet(model, epochs=600)
    config.ema_decay = 0.0  # its average of 25,000 steps would be of the whole run
    config.data = dataclasses.replace(
        config.data,
        name="cifar10",
        # Differs from DeiT's: 4 mirrored pixels around, where it has black ones.
        transform=transform("padded"),
        mean=MEAN,
        std=STD,
        cache=True,
        num_workers=8,  # one process augments some 5,000 images/s; docs/cifar10.md
    )
    config.data.transform.auto_augment = "rand-m9-mstd0.5-inc1"
    plain = TransformConfig(crop=Crop.RESIZE)
    config.evals = {"test": ClassifyEval(split="test", every="10%", transform=plain, report=True)}
    config.checkpoint.every = "10%"
    return config
