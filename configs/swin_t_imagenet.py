# SPDX-License-Identifier: Apache-2.0
r"""Swin-T on ImageNet-1k from scratch.

    python main.py --config=configs/swin_t_imagenet.py --workdir=DIR

Hardware: batch 1,024; 8 GPUs of 32 GB or a TPU v3-8 (the authors: 8 V100).
Published: 81.2 % top-1 at 224 (microsoft/Swin-Transformer; 81.39 % timm's
swin_tiny_patch4_window7_224.ms_in1k).
"""

from configs.recipes import swin
from vit_jax import models
from vit_jax.config import Config


def get_config() -> Config:
    return swin.imagenet(models.variant("swin_t"), drop_path_rate=0.2)
