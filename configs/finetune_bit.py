# SPDX-License-Identifier: Apache-2.0
r"""BiT-M-R50x1 fine-tuned on a dataset by BiT-HyperRule.

    curl -O https://storage.googleapis.com/bit_models/BiT-M-R50x1.npz
    python main.py --config=configs/finetune_bit.py:cifar100 --workdir=DIR

Runs: cifar10, cifar100, oxford_iiit_pet, oxford_flowers102, imagenet2012
Hardware: batch 512 at 128 (CIFAR) or 480; 8 GPUs of 40 GB (--config.accum_steps=4 on 8 of 16 GB).
Published: 97.3 % test top-1 on CIFAR-10, 86.4 % on CIFAR-100 (both with batch 128 and lr 0.001,
nearly identical according to the authors) and 80.68 % on ImageNet-1k (google-research/big_transfer
README).
"""

from vit_jax import Config
from vit_jax.recipes import finetune

RUNS = tuple(finetune.TASKS)


def get_config(run: str = "cifar10") -> Config:
    return finetune.bit(run)
