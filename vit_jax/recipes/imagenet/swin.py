# SPDX-License-Identifier: Apache-2.0
"""Swin Transformer on ImageNet-1k: arXiv:2103.14030, microsoft/Swin-Transformer's configs."""

import dataclasses

from vit_jax.config.tree import Config
from vit_jax.data import Crop, Resize
from vit_jax.models import ModelConfig
from vit_jax.optim import OptimConfig
from vit_jax.recipes import val
from vit_jax.recipes.imagenet import deit
from vit_jax.weights.config import InitConfig, ResizeRule


def imagenet(model: ModelConfig, *, drop_path_rate: float) -> Config:
    """Swin from scratch: config.py, configs/swin/swin_*_patch4_window7_224.yaml.

    300 epochs, batch 1,024, AdamW lr 5e-4 x batch / 512, weight decay 0.05 on matrices only, cosine
    to 1e-5 after 20 epochs of warmup from 1e-6 (both scaled like lr), each step at the rate of the
    one before, clipping at global norm 5, stochastic depth, label smoothing 0.1; DeiT's data with
    one copy of an image, no average of the weights. The cosine begins after the warmup, as in its
    code since October 2022; in the published runs of 2021 it began with the run
    (--config.optim.warmup_overlap=True).
    """
    config = deit.imagenet(model, drop_path_rate=drop_path_rate)
    config.data.repeats = 1
    config.optim = OptimConfig(
        lr=1e-3,
        weight_decay=0.05,
        warmup="20 epochs",
        warmup_lr=1e-6,
        min_lr=1e-5,
        schedule_lag=True,
        clip_norm=5.0,
    )
    config.ema_decay = 0.0
    return config


def finetune(model: ModelConfig, weights: str, *, drop_path_rate: float) -> Config:
    """Fine-tune at 384, windows of 12: configs/swin/swin_base_patch4_window12_384_finetune.yaml.

    30 epochs, batch 1,024, lr 2e-5 x batch / 512 = 4e-5, cosine to 4e-7 after 5 epochs of warmup
    from 4e-8, weight decay 1e-8; tested on the whole image, squashed. Bias tables are resized by
    Swin's bicubic rule.
    """
    config = imagenet(model, drop_path_rate=drop_path_rate)
    config.duration = "30 epochs"
    config.optim = dataclasses.replace(
        config.optim, lr=4e-5, weight_decay=1e-8, warmup="5 epochs", warmup_lr=4e-8, min_lr=4e-7
    )
    config.init = InitConfig(weights=weights, resize=ResizeRule.OFFICIAL)
    config.evals = val("1 epoch", crop=Crop.RESIZE, resize=Resize.BICUBIC)
    return config
