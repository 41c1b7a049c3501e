# SPDX-License-Identifier: Apache-2.0
"""RegNet and its ResNet baselines on ImageNet-1k: facebookresearch/pycls."""

from vit_jax.config import CheckpointConfig
from vit_jax.config.tree import Config, LogConfig
from vit_jax.data import Crop, DataConfig, Resize, TransformConfig
from vit_jax.models import DType, RegNetConfig, ResNetConfig
from vit_jax.optim import OptimConfig, Optimizer
from vit_jax.recipes import MEAN, STD, val


def imagenet(
    model: RegNetConfig | ResNetConfig, *, batch_size: int, warmup_epochs: int = 5
) -> Config:
    """RegNet and its baselines on ImageNet-1k: arXiv:2003.13678 section 5, pycls' dds_baselines.

    100 epochs, SGD with Nesterov momentum 0.9, lr 0.1 x batch / 128 (batch 1,024 up to 1.6 GF, 512
    up to 12 GF, 256 for 16 GF, 32 GF and ResNet-50), cosine by epochs with 5 epochs of warmup from
    a tenth of it (ResNet-50: none), weight decay 5e-5 on all parameters, coupled, flips and random
    crops.
    """
    # Differs from paper: BatchNorm's statistics cover the whole batch, not one GPU's share of it.
    # Differs from paper: no jitter of the colours along their principal components (AlexNet's).
    # Differs from paper: its warmup multiplies the cosine, 0.4 % less in epochs 1 to 4 at most.
    # Differs from paper: pycls cuts half of an odd margin a pixel further down or right.
    # Differs from paper: evaluated by BatchNorm's moving averages, where pycls takes the mean over
    # 8,192 training images anew (PRECISE_STATS).
    # Differs from paper: bfloat16 matmuls; --config.model.dtype=float32 undoes it.
    model.dtype = DType.BFLOAT16
    model.zero_init_last = False
    lr = 0.1 * batch_size / 128
    optim = OptimConfig(
        name=Optimizer.SGD,
        lr=lr,
        schedule_every="1 epoch",
        nesterov=True,
        weight_decay=5e-5,
        coupled_decay=True,
        decay=".",
        clip_norm=0.0,
    )
    if warmup_epochs:
        optim.warmup, optim.warmup_lr = f"{warmup_epochs} epochs", 0.1 * lr
        optim.warmup_overlap = True
    return Config(
        model=model,
        data=DataConfig(
            name="imagenet2012",
            train_split="train",
            batch_size=batch_size,
            transform=TransformConfig(crop=Crop.RANDOM_RESIZED, flip=True),
            mean=MEAN,
            std=STD,
        ),
        optim=optim,
        duration="100 epochs",
        evals=val("5 epochs", resize=Resize.BILINEAR),
        checkpoint=CheckpointConfig(every="1 epoch", keep_best=0),  # nothing is held out
        log=LogConfig(every="50 steps"),
    )
