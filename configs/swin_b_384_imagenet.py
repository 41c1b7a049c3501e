# SPDX-License-Identifier: Apache-2.0
r"""Swin-B fine-tuned on ImageNet-1k at 384 with windows of 12, from Swin-B at 224.

    curl -L -o swin_base_patch4_window7_224.ms_in1k.safetensors \
    https://huggingface.co/timm/swin_base_patch4_window7_224.ms_in1k/resolve/main/model.safetensors
    python main.py --config=configs/swin_b_384_imagenet.py --workdir=DIR

From a run of one's own: --config.init.weights=ckpt:runs/swin_b_imagenet.
Hardware: batch 1,024; 32 GPUs of 40 GB or a TPU v3-32.
Published: 84.5 % top-1 (microsoft/Swin-Transformer; 84.48 % timm's
swin_base_patch4_window12_384.ms_in1k).
"""

from configs.recipes import swin
from vit_jax import models
from vit_jax.config import Config


def get_config() -> Config:
    weights = "timm:swin_base_patch4_window7_224.ms_in1k.safetensors"
    return swin.finetune(models.variant("swin_b_384"), weights, drop_path_rate=0.5)
