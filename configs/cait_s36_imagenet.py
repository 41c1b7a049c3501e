# SPDX-License-Identifier: Apache-2.0
r"""CaiT-S36 on ImageNet-1k from scratch, taught by RegNetY-16GF, and its fine-tuning at 384.

    curl -L -o regnety_160.deit_in1k.safetensors \
    https://huggingface.co/timm/regnety_160.deit_in1k/resolve/main/model.safetensors
    python main.py --config=configs/cait_s36_imagenet.py --workdir=runs/cait_s36_imagenet
    python main.py --config=configs/cait_s36_imagenet.py:384 \
        --workdir=runs/cait_s36_imagenet_384

Hardware: batch 1,024; 16 GPUs of 32 GB or a TPU v3-32.
Published: 85.4 % top-1 at 384 with the teacher (facebookresearch/deit README_cait), 84.8 % without
(arXiv:2103.17239); 85.46 % timm's cait_s36_384.fb_dist_in1k.
"""

from configs.recipes import deit
from vit_jax.config import Config


def get_config(stage: str = "") -> Config:
    return deit.cait("cait_s36", stage)
