# SPDX-License-Identifier: Apache-2.0
r"""RegNetY-16GF on ImageNet-1k from scratch, RegNet's own plain recipe.

    python main.py --config=configs/regnety_16gf_imagenet.py --workdir=DIR

Hardware: batch 256; one GPU of 80 GB, or 8 of 16 GB (50.8 hours on 8 V100 to its authors).
Published: 80.4 % top-1 at 224 (arXiv:2003.13678 table 4, facebookresearch/pycls MODEL_ZOO; timm's
regnety_160.pycls_in1k). DeiT's teacher is this network trained by DeiT's data and augmentation,
82.9 % (arXiv:2012.12877 section 5): timm's regnety_160.deit_in1k.
"""

from configs.recipes import regnet
from vit_jax import models
from vit_jax.config import Config


def get_config() -> Config:
    return regnet.imagenet(models.variant("regnety_16gf"), batch_size=256)
