# SPDX-License-Identifier: Apache-2.0
r"""RegNetY-4GF on ImageNet-1k from scratch, RegNet's own plain recipe.

    python main.py --config=configs/regnety_4gf_imagenet.py --workdir=DIR

Hardware: batch 512; one GPU of 80 GB, or 8 of 16 GB (17.5 hours on 8 V100 to its authors).
Published: 79.4 % top-1 at 224 (arXiv:2003.13678 table 4, facebookresearch/pycls MODEL_ZOO; timm's
regnety_040.pycls_in1k).
"""

from configs.recipes import regnet
from vit_jax import models
from vit_jax.config import Config


def get_config() -> Config:
    return regnet.imagenet(models.variant("regnety_4gf"), batch_size=512)
