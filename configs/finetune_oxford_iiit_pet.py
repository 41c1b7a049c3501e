# SPDX-License-Identifier: Apache-2.0
r"""ViT-B/16 of ImageNet-21k fine-tuned on Oxford-IIIT Pets at 384, as the ViT paper does.

    curl -O https://storage.googleapis.com/vit_models/imagenet21k/ViT-B_16.npz
    python main.py --config=configs/finetune_oxford_iiit_pet.py --workdir=DIR

A file without the old head's first layer, such as AugReg's, needs --config.init.skip="('^head/',)".
Hardware: batch 512 at 384; 8 GPUs of 40 GB or a TPU v3-8 (--config.accum_steps=8 on 8 of 16 GB).
Published: 94.43 % test top-1 (arXiv:2010.11929 table 5).
"""

from configs.recipes import finetune
from vit_jax.config import Config


def get_config() -> Config:
    return finetune.vit("oxford_iiit_pet")
