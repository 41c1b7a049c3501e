# SPDX-License-Identifier: Apache-2.0
r"""BiT-R50x1 on ImageNet-1k from scratch, the pretraining of BiT-S.

    python main.py --config=configs/bit_r50x1_imagenet.py --workdir=DIR

Hardware: batch 4,096; a TPU v3-32 slice or 8 GPUs of 80 GB.
Published: none for ImageNet-1k alone; 80.68 % top-1 after ImageNet-21k pretraining and fine-tuning
by BiT-HyperRule (google-research/big_transfer README, BiT-M-R50x1).
"""

from vit_jax import Config, models
from vit_jax.recipes import google


def get_config() -> Config:
    return google.bit(models.variant("bit_r50x1"))
