# SPDX-License-Identifier: Apache-2.0
r"""Mixer-B/16 on ImageNet-1k from scratch.

    python main.py --config=configs/mixer_b16_imagenet.py --workdir=DIR

Hardware: batch 4,096; a TPU v3-32 slice or 8 GPUs of 80 GB (the authors: TPU v3-128, 2 h 11 min).
Published: 76.3 % top-1 at 224 (google-research/big_vision configs/mlp_mixer_i1k.py); 76.44 %
(arXiv:2105.01601 table 2).
"""

from vit_jax import Config, models
from vit_jax.recipes import google


def get_config() -> Config:
    return google.mixer(models.variant("mixer_b16"))
