# SPDX-License-Identifier: Apache-2.0
r"""ViT-B/16 on ImageNet-1k from scratch, as the ViT paper trained it.

    python main.py --config=configs/vit_b16_imagenet.py --workdir=DIR

Hardware: batch 4,096; a TPU v3-64 slice or 32 GPUs of 40 GB (--config.accum_steps=8 on 8).
Published: 77.91 % top-1 after fine-tuning at 384 (arXiv:2010.11929 table 5); big_vision finds
66.8 % for the original recipe in 90 epochs and 76.5 % for vit_s16_imagenet_90ep's (arXiv:2205.01580
table 1, ViT-S/16), so prefer the latter unless you need the original.
"""

from vit_jax import Config, models
from vit_jax.recipes import google


def get_config() -> Config:
    return google.vit_paper(models.variant("vit_b16"))
