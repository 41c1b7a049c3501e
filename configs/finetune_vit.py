# SPDX-License-Identifier: Apache-2.0
r"""ViT-B/16 pretrained on ImageNet-21k, fine-tuned on a dataset at 384 as in the ViT paper.

    curl -O https://storage.googleapis.com/vit_models/imagenet21k/ViT-B_16.npz
    python main.py --config=configs/finetune_vit.py:cifar10 --workdir=DIR

A file without the old head's first layer, such as AugReg's, needs --config.init.skip="('^head/',)".
The ImageNet rows of the paper's table 2 also average the weights: --config.ema_decay=0.9999.
Runs: cifar10, cifar100, oxford_iiit_pet, oxford_flowers102, imagenet2012
Hardware: batch 512 at 384; 8 GPUs of 40 GB or a TPU v3-8 (--config.accum_steps=8 on 8 of 16 GB).
Published: top-1 on the test split (arXiv:2010.11929 table 5), CIFAR-10 98.95 %, CIFAR-100 91.67 %,
Oxford-IIIT Pets 94.43 %, Oxford Flowers-102 99.38 %, ImageNet-1k 83.97 % (99.02 %, 92.06 % and
84.53 % google-research/vision_transformer README, in 2.2, 2.2 and 6.5 hours on A100s).
"""

from vit_jax import Config
from vit_jax.recipes import finetune

RUNS = tuple(finetune.TASKS)


def get_config(run: str = "cifar10") -> Config:
    return finetune.vit(run)
