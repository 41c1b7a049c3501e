# SPDX-License-Identifier: Apache-2.0
r"""ViT-S of 4 x 4 patches on CIFAR-10 from scratch, in 45 minutes of one H100.

    vit_jax prepare cifar10
    python main.py --config=configs/vit_cifar10.py --workdir=runs/vit_cifar10

docs/cifar10.md has the source of every setting, and the price by the compilers; on an A100 add
--config.duration="300 epochs".
Hardware: batch 1,024; one H100 and 10 CPU cores. 252 PFLOP, 10.3 GB: 20 to 36 minutes of steps by
the cost model (docs/scale.md). It has not been run: here is neither a GPU nor CIFAR-10.
Published: none of these settings. From scratch, DeiT-B has 97.5 % test top-1 in up to 7,200 epochs
at 224 pixels (arXiv:2012.12877, section 5.3), ViT-Lite-7/4 of 3.7M parameters 91.4 % in 200 epochs
at 32 (SHI-Labs/Compact-Transformers README).
"""

from vit_jax import Config
from vit_jax.recipes import cifar


def get_config() -> Config:
    return cifar.scratch(cifar.vit())
