# SPDX-License-Identifier: Apache-2.0
r"""ViT-S/16 on ImageNet-1k from scratch, AugReg with medium augmentation.

    python main.py --config=configs/vit_s16_imagenet.py --workdir=DIR

Hardware: batch 4,096; a TPU v3-32 slice or 8 GPUs of 80 GB.
Published: 78.84 % top-1 at 224 after a fine-tuning of 20k steps (arXiv:2106.10270, best of its
grid of 28 as released: timm's vit_small_patch16_224.augreg_in1k; its cell is not documented).
"""

from configs import recipes
from vit_jax import models
from vit_jax.config import Config


def get_config() -> Config:
    return recipes.augreg_imagenet(models.variant("vit_s16"), "medium2", regularised=False)
