# SPDX-License-Identifier: Apache-2.0
r"""DeiT-B transferred to CIFAR-10.

    curl -L -o deit_base_patch16_224.fb_in1k.safetensors \
    https://huggingface.co/timm/deit_base_patch16_224.fb_in1k/resolve/main/model.safetensors
    python main.py --config=configs/deit_b16_cifar10.py --workdir=DIR

Hardware: batch 768; 8 GPUs of 40 GB or a TPU v3-8.
Published: 99.1 % test top-1 (arXiv:2012.12877, its table of transfer learning).
"""

from vit_jax import Config, models
from vit_jax.recipes import deit


def get_config() -> Config:
    weights = "timm:deit_base_patch16_224.fb_in1k.safetensors"
    return deit.transfer(models.variant("deit_b16", num_classes=10), weights, "cifar10")
