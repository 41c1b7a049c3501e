# SPDX-License-Identifier: Apache-2.0
r"""ViT-H/14 on ImageNet-1k from scratch with the ViT paper's ImageNet recipe.

    python main.py --config=configs/vit_h14_imagenet.py --workdir=DIR

Hardware: batch 4,096; a TPU v3-256 slice or 64 GPUs of 80 GB, --config.mesh.fsdp=8.
Published: none for ImageNet-1k alone with this recipe; the paper reports 85.13 % after pretraining
on ImageNet-21k and fine-tuning at 384 (arXiv:2010.11929 table 5).
"""

from vit_jax import Config, models
from vit_jax.recipes import google


def get_config() -> Config:
    return google.vit_paper(models.variant("vit_h14"))
