# SPDX-License-Identifier: Apache-2.0
r"""ViT-B/32 on ImageNet-1k from scratch, as the ViT paper trained it.

    python main.py --config=configs/vit_b32_imagenet.py --workdir=DIR

Hardware: batch 4,096; a TPU v3-32 slice or 8 GPUs of 80 GB.
Published: 73.38 % top-1 after fine-tuning at 384 (arXiv:2010.11929 table 5).
"""

from vit_jax import Config, models
from vit_jax.recipes import google


def get_config() -> Config:
    return google.vit_paper(models.variant("vit_b32"))
