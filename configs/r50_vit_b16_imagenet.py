# SPDX-License-Identifier: Apache-2.0
r"""R50+ViT-B/16 on ImageNet-1k from scratch with the ViT paper's ImageNet recipe.

    python main.py --config=configs/r50_vit_b16_imagenet.py --workdir=DIR

Hardware: batch 4,096; a TPU v3-64 slice or 32 GPUs of 40 GB (--config.accum_steps=8 on 8).
Published: none for ImageNet-1k alone with this recipe; 84.99 % top-1 at 384 after ImageNet-21k
pretraining (timm's vit_base_r50_s16_384.orig_in21k_ft_in1k; 85.08 % the authors' README).
"""

from vit_jax import Config, models
from vit_jax.recipes import google


def get_config() -> Config:
    return google.vit_paper(models.variant("r50_vit_b16"))
