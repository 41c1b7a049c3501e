# SPDX-License-Identifier: Apache-2.0
r"""Distilled DeiT-B fine-tuned on ImageNet-1k at 384, from distilled DeiT-B at 224, untaught.

    curl -L -o deit_base_distilled_patch16_224.fb_in1k.safetensors \
    https://huggingface.co/timm/deit_base_distilled_patch16_224.fb_in1k/resolve/main/model.safetensors
    python main.py --config=configs/deit_b16_distilled_384_imagenet.py --workdir=DIR

From a run of one's own: --config.init.weights=ckpt:runs/deit_b16_distilled_imagenet.
Hardware: batch 512; 16 GPUs of 32 GB or a TPU v3-16 (the authors: 16 V100).
Published: 84.5 % top-1 (arXiv:2012.12877, taught at 224 for 300 epochs; 85.2 % after 1,000 epochs,
facebookresearch/deit README_deit).
"""

from configs.recipes import deit
from vit_jax import models
from vit_jax.config import Config


def get_config() -> Config:
    weights = "timm:deit_base_distilled_patch16_224.fb_in1k.safetensors"
    return deit.finetune(models.variant("deit_b16_distilled_384"), weights)
