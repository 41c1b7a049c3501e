# SPDX-License-Identifier: Apache-2.0
r"""DeiT III L/16 on ImageNet-1k from scratch, and its fine-tuning at a higher resolution.

    python main.py --config=configs/deit3_l16_imagenet.py --workdir=runs/deit3_l16_imagenet
    python main.py --config=configs/deit3_l16_imagenet.py:224 \
        --workdir=runs/deit3_l16_imagenet_224
    python main.py --config=configs/deit3_l16_imagenet.py:384 \
        --workdir=runs/deit3_l16_imagenet_384

Each line starts from the workdir of the line before; --config.init.weights names another.
Hardware: batch 2,048; 32 GPUs of 32 GB, 64 images each, as the authors.
Published: 84.9 % top-1 at 224, 85.8 % at 384 (facebookresearch/deit README_revenge);
84.77 % and 85.82 % timm's deit3_large_patch16_224 and 384.fb_in1k.
"""

from configs.recipes import deit3
from vit_jax.config import Config


def get_config(stage: str = "") -> Config:
    return deit3.imagenet("deit3_l16", stage)
