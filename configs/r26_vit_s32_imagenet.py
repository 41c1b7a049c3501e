# SPDX-License-Identifier: Apache-2.0
r"""R26+ViT-S/32 on ImageNet-1k from scratch, AugReg with medium augmentation.

    python main.py --config=configs/r26_vit_s32_imagenet.py --workdir=DIR

Hardware: batch 4,096; a TPU v3-32 slice or 8 GPUs of 80 GB.
Published: none for ImageNet-1k alone; 81.86 % top-1 at 224 after ImageNet-21k pretraining (timm's
vit_small_r26_s32_224.augreg_in21k_ft_in1k). The augmentation is that of ViT-S/16, of equal
cost: big_vision names none for a hybrid.
"""

from vit_jax import Config, models
from vit_jax.recipes import google


def get_config() -> Config:
    return google.augreg(models.variant("r26_vit_s32"), "medium2")
