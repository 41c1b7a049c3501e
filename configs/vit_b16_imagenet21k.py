# SPDX-License-Identifier: Apache-2.0
r"""ViT-B/16 pretrained on ImageNet-21k: AugReg (arXiv:2106.10270), medium augmentation.

    python main.py --config=configs/vit_b16_imagenet21k.py --workdir=DIR \
        --config.data.name=folder:/data/imagenet21k --config.data.train_split="train[51200:]"

Hardware: batch 4,096, 300 epochs of 12.7 million images; a TPU v3-256 slice for about 3 days.
ImageNet-21k is not redistributed by TFDS: point data.name at a folder of images, one sub-folder a
class, or at your own TFDS dataset; the class count is checked before anything starts.
Published: 84.53 % top-1 at 224 and 86.01 % at 384 after fine-tuning on ImageNet-1k, from the
checkpoint B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0
(timm's vit_base_patch16_{224,384}.augreg_in21k_ft_in1k; 85.49 % at 384 in the authors' README).
"""

import math

from vit_jax import models
from vit_jax.config import CheckpointConfig, Config, LogConfig
from vit_jax.data import DataConfig, MixConfig
from vit_jax.evals import ClassifyEval
from vit_jax.losses import Loss
from vit_jax.models import DType
from vit_jax.objectives import SupervisedConfig
from vit_jax.optim import MomentDtype, OptimConfig
from vit_jax.recipes import google


def get_config() -> Config:
    transform, mixup_alpha = google.inception("medium1")
    evals = google.imagenet_evals("10 epochs")
    return Config(
        model=models.variant(
            "vit_b16",
            num_classes=21843,
            head_bias=-math.log(21843),
            dtype=DType.BFLOAT16,
        ),
        data=DataConfig(
            name="imagenet21k",
            train_split="train[51200:]",
            batch_size=4096,
            transform=transform,
            mix=MixConfig(mixup_alpha=mixup_alpha),
        ),
        optim=OptimConfig(
            lr=1e-3,
            weight_decay=0.1,
            warmup="10_000 steps",
            clip_norm=1.0,
            mu_dtype=MomentDtype.BFLOAT16,
        ),
        objective=SupervisedConfig(loss=Loss.SIGMOID),
        duration="300 epochs",
        evals={
            "val": ClassifyEval(
                split="train[:51200]", every="10 epochs", transform=evals["val"].transform
            )
        },
        checkpoint=CheckpointConfig(every="1000 steps"),
        log=LogConfig(every="50 steps"),
    )
