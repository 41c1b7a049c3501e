# SPDX-License-Identifier: Apache-2.0
r"""A masked autoencoder (MAE) on ImageNet-1k without labels.

    python main.py --config=configs/mae_imagenet.py:b16 --workdir=runs/mae_b16

Then configs/mae_finetune.py and configs/mae_linear.py.
Runs: b16, l16, h14
Hardware: batch 4,096; the authors: 64 V100, 42 hours for L and 800 epochs.
Published: as in configs/mae_finetune.py, of 1,600 epochs (--config.duration="1600 epochs").
"""

from vit_jax import Config
from vit_jax.recipes import masked

RUNS = masked.SIZES


def get_config(run: str = "b16") -> Config:
    return masked.pretrain(run)
