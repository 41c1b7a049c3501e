# SPDX-License-Identifier: Apache-2.0
r"""CaiT-XXS24 on ImageNet-1k from scratch, without distillation.

    python main.py --config=configs/cait_xxs24_imagenet.py --workdir=DIR

Hardware: batch 1,024; 8 GPUs of 40 GB or a TPU v3-8.
Published: 77.6 % top-1 at 224 (arXiv:2103.17239; 78.4 % with a teacher, with which timm's
cait_xxs24_224.fb_dist_in1k measures 78.40 %). Tested on the whole image, crop ratio 1.
Where the data code differs from the authors' recipe is written in `recipes.deit_imagenet`.
"""

from configs import recipes
from vit_jax import models
from vit_jax.config import Config


def get_config() -> Config:
    return recipes.deit_imagenet(
        models.variant("cait_xxs24"), epochs=400, drop_path_rate=0.05, crop_ratio=1.0
    )
