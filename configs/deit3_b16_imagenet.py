# SPDX-License-Identifier: Apache-2.0
r"""DeiT III B/16 on ImageNet-1k from scratch, and its fine-tuning at a higher resolution.

    python main.py --config=configs/deit3_b16_imagenet.py --workdir=runs/deit3_b16_imagenet
    python main.py --config=configs/deit3_b16_imagenet.py:224 \
        --workdir=runs/deit3_b16_imagenet_224
    python main.py --config=configs/deit3_b16_imagenet.py:384 \
        --workdir=runs/deit3_b16_imagenet_384

Each line starts from the workdir of the line before; --config.init.weights names another.
Hardware: batch 2,048; 8 GPUs of 32 GB, 256 images each, as the authors.
Published: 83.8 % top-1 at 224, 85.0 % at 384 (facebookresearch/deit README_revenge);
83.80 % and 85.09 % timm's deit3_base_patch16_224 and 384.fb_in1k.
"""

from configs.recipes import deit3
from vit_jax.config import Config


def get_config(stage: str = "") -> Config:
    return deit3.imagenet("deit3_b16", stage)
