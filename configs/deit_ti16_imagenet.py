# SPDX-License-Identifier: Apache-2.0
r"""DeiT-Ti on ImageNet-1k from scratch, without distillation.

    python main.py --config=configs/deit_ti16_imagenet.py --workdir=DIR

Hardware: batch 1,024; 4 GPUs of 16 GB (the authors: 4, of 256 images each).
Published: 72.2 % top-1 at 224 (arXiv:2012.12877; 72.19 % timm's
deit_tiny_patch16_224.fb_in1k). The authors report the raw weights, not their average.
"""

from configs.recipes import deit
from vit_jax import models
from vit_jax.config import Config


def get_config() -> Config:
    return deit.imagenet(models.variant("deit_ti16"))
