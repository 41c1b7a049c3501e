# SPDX-License-Identifier: Apache-2.0
r"""DeiT III H/14 on ImageNet-1k from scratch, and its fine-tuning at a higher resolution.

    python main.py --config=configs/deit3_h14_imagenet.py --workdir=runs/deit3_h14_imagenet
    python main.py --config=configs/deit3_h14_imagenet.py:224 \
        --workdir=runs/deit3_h14_imagenet_224

Each line starts from the workdir of the line before; --config.init.weights names another.
Hardware: batch 2,048; 32 GPUs of 32 GB, 64 images each, as the authors (--config.mesh.fsdp=8).
Published: 85.2 % top-1 at 224 (facebookresearch/deit README_revenge);
85.20 % timm's deit3_huge_patch14_224.fb_in1k.
"""

from configs.recipes import deit3
from vit_jax.config import Config


def get_config(stage: str = "") -> Config:
    return deit3.imagenet("deit3_h14", stage)
