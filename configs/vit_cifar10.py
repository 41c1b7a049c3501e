# SPDX-License-Identifier: Apache-2.0
r"""ViT-S of 4 x 4 patches on CIFAR-10 from scratch, within 45 minutes of one H100.

    vit_jax prepare cifar10
    python main.py --config=configs/vit_cifar10.py --workdir=runs/vit_cifar10 \
        --config.data.num_workers=14

TODO
Hardware: batch 1,024
Published: none
"""

from vit_jax.config import Config
from vit_jax.recipes import cifar


def get_config() -> Config:
    return cifar.scratch(cifar.vit())
