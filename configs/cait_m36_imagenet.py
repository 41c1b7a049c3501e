# SPDX-License-Identifier: Apache-2.0
r"""CaiT-M36 on ImageNet-1k from scratch, taught by RegNetY-16GF, and its fine-tuning at 384.

    curl -L -o regnety_160.deit_in1k.safetensors \
    https://huggingface.co/timm/regnety_160.deit_in1k/resolve/main/model.safetensors
    python main.py --config=configs/cait_m36_imagenet.py --workdir=runs/cait_m36_imagenet
    python main.py --config=configs/cait_m36_imagenet.py:384 \
        --workdir=runs/cait_m36_imagenet_384

Hardware: batch 1,024; 32 GPUs of 40 GB or a TPU v3-64 (--config.model.remat=dots).
Published: 86.1 % top-1 at 384 with the teacher (facebookresearch/deit README_cait), 84.9 % without
(arXiv:2103.17239); 86.06 % timm's cait_m36_384.fb_dist_in1k.
"""

from configs.recipes import deit
from vit_jax.config import Config


def get_config(stage: str = "") -> Config:
    return deit.cait("cait_m36", stage)
