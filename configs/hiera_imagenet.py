# SPDX-License-Identifier: Apache-2.0
r"""Hiera's encoder, pretrained as a masked autoencoder, fine-tuned on ImageNet-1k.

    curl -L -o hiera_base_224.mae.safetensors \
    https://huggingface.co/timm/hiera_base_224.mae/resolve/main/model.safetensors
    python main.py --config=configs/hiera_imagenet.py:b --workdir=DIR

The settings are MAE's fine-tuning of the nearest size (arXiv:2111.06377 table 9): those of Hiera's
own are not in its code. The weights are for non-commercial use (CC BY-NC 4.0).
Runs: t, s, b, b_plus, l, h
Hardware: batch 1,024; T and S 8 GPUs of 40 GB, B and B+ 16, L and H 32 GPUs of 80 GB.
Published: top-1 at 224 by the authors' own settings, T 82.8 %, S 83.8 %, B 84.5 %, B+ 85.2 %,
L 86.1 %, H 86.9 % (facebookresearch/hiera README.md).
"""

from vit_jax import Config
from vit_jax.recipes import masked

RUNS = tuple(masked.HIERA)


def get_config(run: str = "b") -> Config:
    return masked.finetune_hiera(run)
