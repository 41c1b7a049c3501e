# SPDX-License-Identifier: Apache-2.0
"""RegNet and its ResNet baselines on ImageNet-1k: facebookresearch/pycls."""

from configs.recipes import imagenet as data
from vit_jax.config import CheckpointConfig, Config, LogConfig
from vit_jax.data import Crop, DataConfig, Resize, TransformConfig
from vit_jax.models import DType, RegNetConfig, ResNetConfig
from vit_jax.optim import OptimConfig, Optimizer


def imagenet(model: RegNetConfig | ResNetConfig, *, batch_size: int) -> Config:
    """RegNet and its baselines on ImageNet-1k: arXiv:2003.13678 section 5, pycls' MODEL_ZOO.

    100 epochs, SGD with Nesterov momentum 0.9, lr 0.1 x batch / 128 (batch 1,024 up to 1.6 GF, 512
    up to 16 GF, 256 for 32 GF and the ResNets), cosine after 5 epochs of warmup from a tenth of it,
    weight decay 5e-5 on all parameters, flips and random crops.
    """
    # Differs from paper: decay apart from the momentum, where a decay of 5e-5 adds up to 5e-4.
    # Differs from paper: BatchNorm's statistics are of the whole batch, not of a GPU's share of it.
    # Differs from paper: no jitter of the colours along their principal components (AlexNet's).
    # Differs from paper: its warmup multiplies the cosine, 0.4 % less in epochs 1 to 4 at most.
    # Differs from paper: pycls cuts half of an odd margin a pixel further down or right.
    # Differs from paper: bfloat16 matmuls; --config.model.dtype=float32 undoes it.
    model.dtype = DType.BFLOAT16
    model.zero_init_last = False
    lr = 0.1 * batch_size / 128
    return Config(
        model=model,
        data=DataConfig(
            name="imagenet2012",
            train_split="train",
            batch_size=batch_size,
            transform=TransformConfig(crop=Crop.RANDOM_RESIZED, flip=True),
            mean=data.MEAN,
            std=data.STD,
        ),
        optim=OptimConfig(
            name=Optimizer.SGD,
            lr=lr,
            warmup="5 epochs",
            warmup_lr=0.1 * lr,
            schedule_every="1 epoch",
            warmup_overlap=True,
            nesterov=True,
            weight_decay=5e-4,
            decay=".",
            clip_norm=0.0,
        ),
        duration="100 epochs",
        evals=data.val("5 epochs", resize=Resize.BILINEAR),
        checkpoint=CheckpointConfig(every="1 epoch", keep_best=0),  # nothing is held out
        log=LogConfig(every="50 steps"),
    )
