# SPDX-License-Identifier: Apache-2.0
r"""CaiT-XXS24 on ImageNet-1k from scratch, taught by RegNetY-16GF, and its fine-tuning at 384.

    curl -L -o regnety_160.deit_in1k.safetensors \
    https://huggingface.co/timm/regnety_160.deit_in1k/resolve/main/model.safetensors
    python main.py --config=configs/cait_xxs24_imagenet.py --workdir=runs/cait_xxs24_imagenet
    python main.py --config=configs/cait_xxs24_imagenet.py:384 \
        --workdir=runs/cait_xxs24_imagenet_384

Hardware: batch 1,024; 8 GPUs of 40 GB or a TPU v3-8.
Published: 78.4 % top-1 at 224 and 80.9 % at 384 with the teacher, 77.6 % and 80.4 % without
(arXiv:2103.17239; 78.40 % and 80.95 % timm's cait_xxs24_224 and 384.fb_dist_in1k).
"""

from configs.recipes import deit
from vit_jax.config import Config


def get_config(stage: str = "") -> Config:
    return deit.cait("cait_xxs24", stage)
