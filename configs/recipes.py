# SPDX-License-Identifier: Apache-2.0
"""Published recipes as fragments of configs; each names its paper's table or its code."""

import math

from vit_jax.config import CheckpointConfig, Config, LogConfig
from vit_jax.data import Crop, DataConfig, Resize, TransformConfig
from vit_jax.evals import EvalConfig
from vit_jax.losses import Loss
from vit_jax.models import DType, ViTConfig
from vit_jax.objectives import ObjectiveConfig
from vit_jax.optim import MomentDtype, OptimConfig, Schedule

# RandAugment (layers, magnitude) and mixup's alpha of AugReg's seven settings, arXiv:2106.10270
# section 3 under the names of big_vision's configs.
AUGREG = {
    "none": ("", 0.0),
    "light1": ("randaug(2,0)", 0.0),
    "light2": ("randaug(2,10)", 0.2),
    "medium1": ("randaug(2,15)", 0.2),
    "medium2": ("randaug(2,15)", 0.5),
    "strong1": ("randaug(2,20)", 0.5),
    "strong2": ("randaug(2,20)", 0.8),
}


def inception(augmentation: str = "none") -> tuple[TransformConfig, float]:
    """Return Google's training transform with an AugReg augmentation, and its mixup alpha."""
    policy, mixup_alpha = AUGREG[augmentation]
    return TransformConfig(crop=Crop.INCEPTION, flip=True, auto_augment=policy), mixup_alpha


def imagenet_evals(every: str) -> dict[str, EvalConfig]:
    """Evaluate on the held-out 1 % of train while training, and on validation.

    The images are big_vision's: short side to 256 by area, centre 224.
    """
    plain = TransformConfig(crop=Crop.CENTER, crop_ratio=0.875, resize=Resize.AREA)
    return {
        "minival": EvalConfig(split="train[99%:]", every=every, transform=plain),
        "val": EvalConfig(split="validation", every=every, transform=plain, report=True),
    }


def imagenet(model: ViTConfig, optim: OptimConfig, duration: str, augmentation: str) -> Config:
    """Compose a from-scratch ImageNet-1k run of batch 4,096 at 224 pixels."""
    transform, mixup_alpha = inception(augmentation)
    return Config(
        model=model,
        data=DataConfig(
            name="imagenet2012",
            train_split="train[:99%]",
            batch_size=4096,
            transform=transform,
            mixup_alpha=mixup_alpha,
        ),
        optim=optim,
        duration=duration,
        evals=imagenet_evals("10 epochs"),
        checkpoint=CheckpointConfig(every="1000 steps"),
        log=LogConfig(every="50 steps"),
    )


def vit_paper_imagenet(model: ViTConfig) -> Config:
    """ViT on ImageNet-1k from scratch: arXiv:2010.11929 table 3.

    300 epochs, Adam (0.9, 0.999) with decoupled weight decay 0.3, lr 3e-3 cosine after 10k steps
    of warmup, dropout 0.1, clipping at global norm 1.
    """
    model.dropout_rate = 0.1
    # Differs from paper: a linear head; the hidden layer of its pretraining head (section 3.1) is
    # --config.model.pre_logits_dim, which AugReg found no use for.
    # Differs from paper: bfloat16 matmuls; --config.model.dtype=float32 undoes it.
    model.dtype = DType.BFLOAT16
    optim = OptimConfig(lr=3e-3, weight_decay=0.3, warmup="10_000 steps", clip_norm=1.0)
    return imagenet(model, optim, "300 epochs", "none")


def augreg_imagenet(model: ViTConfig, augmentation: str, regularised: bool) -> Config:
    """AugReg on ImageNet-1k from scratch: arXiv:2106.10270 section 3, big_vision's vit_i1k.

    300 epochs, Adam with decoupled weight decay 0.1, lr 1e-3 cosine after 10k steps of warmup,
    sigmoid loss with the head's bias at -log(1000) = -6.9; `regularised`: dropout 0.1 and
    stochastic depth 0.1.
    """
    if regularised:
        model.dropout_rate = model.drop_path_rate = 0.1
    model.head_bias = -math.log(1000)
    model.dtype = DType.BFLOAT16
    optim = OptimConfig(
        lr=1e-3,
        schedule=Schedule.COSINE,
        weight_decay=0.1,
        warmup="10_000 steps",
        clip_norm=1.0,
        mu_dtype=MomentDtype.BFLOAT16,
    )
    config = imagenet(model, optim, "300 epochs", augmentation)
    config.objective = ObjectiveConfig(loss=Loss.SIGMOID)
    return config
