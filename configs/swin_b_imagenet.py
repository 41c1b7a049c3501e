# SPDX-License-Identifier: Apache-2.0
r"""Swin-B on ImageNet-1k from scratch.

    python main.py --config=configs/swin_b_imagenet.py --workdir=DIR

Hardware: batch 1,024; 16 GPUs of 32 GB or a TPU v3-16.
Published: 83.5 % top-1 at 224 (microsoft/Swin-Transformer; 83.60 % timm's
swin_base_patch4_window7_224.ms_in1k).
"""

from configs.recipes import swin
from vit_jax import models
from vit_jax.config import Config


def get_config() -> Config:
    return swin.imagenet(models.variant("swin_b"), drop_path_rate=0.5)
