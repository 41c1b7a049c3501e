# SPDX-License-Identifier: Apache-2.0
r"""MAE's encoder fine-tuned on ImageNet-1k.

    python main.py --config=configs/mae_finetune.py:b16 --workdir=DIR

    curl -O https://dl.fbaipublicfiles.com/mae/pretrain/mae_pretrain_vit_base.pth
    python main.py --config=configs/mae_finetune.py:b16 \
        --config.init.weights=timm:mae_pretrain_vit_base.pth --workdir=DIR

The first starts from runs/mae_b16 (configs/mae_imagenet.py), the second from the authors' weights.
Runs: b16, l16, h14
Hardware: batch 1,024; the authors: 32 V100.
Published: top-1 B 83.66 %, L 85.95 %, H 86.93 % (facebookresearch/mae FINETUNE.md).
"""

from vit_jax import Config
from vit_jax.recipes import masked

RUNS = masked.SIZES


def get_config(run: str = "b16") -> Config:
    return masked.finetune(run)
