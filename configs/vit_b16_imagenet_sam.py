# SPDX-License-Identifier: Apache-2.0
r"""ViT-B/16 on ImageNet-1k by sharpness-aware minimisation, without strong augmentation.

    python main.py --config=configs/vit_b16_imagenet_sam.py --workdir=DIR

Hardware: batch 4,096, two passes a step; a TPU v3-64 slice (as its author) or 32 GPUs of 40 GB.
Published: 79.9 % top-1 at 224, 5.3 % more than without (arXiv:2106.01548).
"""

from vit_jax import Config, models
from vit_jax.recipes import google


def get_config() -> Config:
    return google.sam(models.variant("vit_b16"), rho=0.2)
