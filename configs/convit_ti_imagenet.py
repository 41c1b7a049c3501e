# SPDX-License-Identifier: Apache-2.0
r"""ConViT-Ti on ImageNet-1k from scratch.

    python main.py --config=configs/convit_ti_imagenet.py --workdir=DIR

Hardware: batch 1,024; 4 GPUs of 40 GB (the authors: 4, of 256 images each).
Published: 73.1 % top-1 at 224 (arXiv:2103.10697 table 1; 73.116 % facebookresearch/convit, 73.14 %
timm's convit_tiny). Its authors train as DeiT's, but keep no average of the weights.
Where the data code differs from the authors' recipe is written in `recipes.deit_imagenet`.
"""

from configs import recipes
from vit_jax import models
from vit_jax.config import Config


def get_config() -> Config:
    config = recipes.deit_imagenet(models.variant("convit_ti"))
    config.ema_decay = 0.0
    return config
