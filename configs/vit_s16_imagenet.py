# SPDX-License-Identifier: Apache-2.0
r"""ViT-S/16 on ImageNet-1k from scratch, AugReg with medium augmentation.

    python main.py --config=configs/vit_s16_imagenet.py --workdir=DIR

Hardware: batch 4,096; a TPU v3-32 slice or 8 GPUs of 80 GB.
Published: 78.84 % top-1 at 224 after a fine-tuning of 20k steps (arXiv:2106.10270, checkpoint
S_16-i1k-300ep-lr_0.001-aug_medium2-wd_0.1-do_0.0-sd_0.0; timm's vit_small_patch16_224.augreg_in1k).
"""

from vit_jax import Config, models
from vit_jax.recipes import google


def get_config() -> Config:
    return google.augreg(models.variant("vit_s16"), "medium2")
