# SPDX-License-Identifier: Apache-2.0
r"""CaiT-S24 on ImageNet-1k from scratch, taught by RegNetY-16GF, and its fine-tuning at 384.

    curl -L -o regnety_160.deit_in1k.safetensors \
    https://huggingface.co/timm/regnety_160.deit_in1k/resolve/main/model.safetensors
    python main.py --config=configs/cait_s24_imagenet.py --workdir=runs/cait_s24_imagenet
    python main.py --config=configs/cait_s24_imagenet.py:384 \
        --workdir=runs/cait_s24_imagenet_384

Hardware: batch 1,024; 16 GPUs of 32 GB or a TPU v3-16.
Published: 83.5 % top-1 at 224 and 85.1 % at 384 with the teacher (facebookresearch/deit
README_cait), 82.7 % and 84.3 % without (arXiv:2103.17239).
"""

from configs.recipes import deit
from vit_jax.config import Config


def get_config(stage: str = "") -> Config:
    return deit.cait("cait_s24", stage)
