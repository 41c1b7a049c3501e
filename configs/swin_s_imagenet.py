# SPDX-License-Identifier: Apache-2.0
r"""Swin-S on ImageNet-1k from scratch.

    python main.py --config=configs/swin_s_imagenet.py --workdir=DIR

Hardware: batch 1,024; 8 GPUs of 40 GB or a TPU v3-16.
Published: 83.2 % top-1 at 224 (microsoft/Swin-Transformer; 83.23 % timm's
swin_small_patch4_window7_224.ms_in1k).
"""

from configs.recipes import swin
from vit_jax import models
from vit_jax.config import Config


def get_config() -> Config:
    return swin.imagenet(models.variant("swin_s"), drop_path_rate=0.3)
