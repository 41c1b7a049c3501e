# SPDX-License-Identifier: Apache-2.0
r"""ConViT-S on ImageNet-1k from scratch.

    python main.py --config=configs/convit_s_imagenet.py --workdir=DIR

Hardware: batch 1,024; 8 GPUs of 40 GB.
Published: 81.3 % top-1 at 224 (arXiv:2103.10697 table 1; 81.41 % timm's convit_small.fb_in1k).
"""

from configs.recipes import deit
from vit_jax import models
from vit_jax.config import Config


def get_config() -> Config:
    return deit.convit(models.variant("convit_s"))
