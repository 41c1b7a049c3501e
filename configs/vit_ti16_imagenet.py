# SPDX-License-Identifier: Apache-2.0
r"""ViT-Ti/16 on ImageNet-1k from scratch, AugReg with light augmentation.

    python main.py --config=configs/vit_ti16_imagenet.py --workdir=DIR

Hardware: batch 4,096; a TPU v3-8 or 8 GPUs.
Published: none for ImageNet-1k alone; 75.45 % top-1 at 224 after ImageNet-21k pretraining (timm's
vit_tiny_patch16_224.augreg_in21k_ft_in1k). DeiT-Ti, the same network, reaches 72.2 % on
ImageNet-1k alone in 300 epochs with its own recipe (arXiv:2012.12877 table 5).

The augmentation is big_vision's choice for Ti/16 (its configs/vit_i1k.py): light1, RandAugment of
magnitude 0 without mixup.
"""

from vit_jax import Config, models
from vit_jax.recipes import google


def get_config() -> Config:
    return google.augreg(models.variant("vit_ti16"), "light1")
