# SPDX-License-Identifier: Apache-2.0
r"""DeiT-B on ImageNet-1k from scratch, without distillation.

    python main.py --config=configs/deit_b16_imagenet.py --workdir=DIR

Hardware: batch 1,024; 16 GPUs of 32 GB or a TPU v3-16 (the authors: 16 V100).
Published: 81.8 % top-1 at 224 (arXiv:2012.12877; 81.98 % timm's
deit_base_patch16_224.fb_in1k). The authors report the raw weights, not their average.
"""

from configs.recipes import deit
from vit_jax import models
from vit_jax.config import Config


def get_config() -> Config:
    return deit.imagenet(models.variant("deit_b16"))
