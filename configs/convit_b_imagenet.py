# SPDX-License-Identifier: Apache-2.0
r"""ConViT-B on ImageNet-1k from scratch.

    python main.py --config=configs/convit_b_imagenet.py --workdir=DIR

Hardware: batch 1,024; 16 GPUs of 40 GB (the authors: 16).
Published: 82.4 % top-1 at 224 (arXiv:2103.10697 table 1; 82.30 % timm's convit_base.fb_in1k).
"""

from configs.recipes import deit
from vit_jax import models
from vit_jax.config import Config


def get_config() -> Config:
    return deit.convit(models.variant("convit_b"))
