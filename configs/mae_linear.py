# SPDX-License-Identifier: Apache-2.0
r"""A linear layer on MAE's frozen encoder, on ImageNet-1k.

    python main.py --config=configs/mae_linear.py:b16 --workdir=DIR

It starts from runs/mae_b16 (configs/mae_imagenet.py), or from the authors' weights by
--config.init.weights=timm:mae_pretrain_vit_base.pth.
Runs: b16, l16, h14
Hardware: batch 16,384; the authors: 32 V100.
Published: top-1 B 67.8 %, L 76.0 %, H 77.2 % (facebookresearch/mae FINETUNE.md).
"""

from vit_jax import Config
from vit_jax.recipes import masked

RUNS = masked.SIZES


def get_config(run: str = "b16") -> Config:
    return masked.linear(run)
