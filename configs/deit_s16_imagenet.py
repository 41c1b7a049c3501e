# SPDX-License-Identifier: Apache-2.0
r"""DeiT-S on ImageNet-1k from scratch, without distillation.

    python main.py --config=configs/deit_s16_imagenet.py --workdir=DIR

Hardware: batch 1,024; 8 GPUs of 40 GB or a TPU v3-8 (the authors: 4 V100, 2 to 3 days).
Published: 79.8 % top-1 at 224 (arXiv:2012.12877; 79.9 % the authors' README; 79.86 % timm's
deit_small_patch16_224.fb_in1k). The authors report the raw weights, not their average.
"""

from configs.recipes import deit
from vit_jax import models
from vit_jax.config import Config


def get_config() -> Config:
    return deit.imagenet(models.variant("deit_s16"))
