# SPDX-License-Identifier: Apache-2.0
r"""DeiT III S/16 on ImageNet-1k from scratch, and its fine-tuning at a higher resolution.

    python main.py --config=configs/deit3_s16_imagenet.py --workdir=runs/deit3_s16_imagenet
    python main.py --config=configs/deit3_s16_imagenet.py:384 \
        --workdir=runs/deit3_s16_imagenet_384

Each line starts from the workdir of the line before; --config.init.weights names another.
Hardware: batch 2,048; 8 GPUs of 32 GB, 256 images each, as the authors.
Published: 81.4 % top-1 at 224, 83.4 % at 384 (facebookresearch/deit README_revenge);
81.38 % and 83.43 % timm's deit3_small_patch16_224 and 384.fb_in1k.
"""

from configs.recipes import deit3
from vit_jax.config import Config


def get_config(stage: str = "") -> Config:
    return deit3.imagenet("deit3_s16", stage)
