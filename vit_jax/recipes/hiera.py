# SPDX-License-Identifier: Apache-2.0
"""Hiera fine-tuned on ImageNet-1k from its masked pretraining (arXiv:2306.00989 section 3)."""

from vit_jax import models
from vit_jax.config.tree import Config
from vit_jax.recipes import choose, masked
from vit_jax.weights.config import InitConfig

# By size: timm's name, and MAE's ViT of that kind, whose settings it takes.
SIZES = {
    "t": ("tiny", "b16"),
    "s": ("small", "b16"),
    "b": ("base", "b16"),
    "b_plus": ("base_plus", "b16"),
    "l": ("large", "l16"),
    "h": ("huge", "h14"),
}


def finetune(size: str) -> Config:
    """Fine-tune Hiera's published encoder as MAE's are: arXiv:2111.06377 table 9.

    Batch 1,024, AdamW, weight decay 0.05, cosine to 1e-6 after 5 epochs of warmup, RandAugment,
    mixup 0.8, cutmix 1.0, erasing 0.25, smoothing 0.1. It starts from timm's file of the pretrained
    encoder, hiera_base_224.mae and so on, without its head.

    Raises UserError: no such size.
    """
    name, of_vit = SIZES[choose("size", size, SIZES)]
    # Differs from paper: it has epochs, rates, layer decay and stochastic depth of its own for each
    # size, which its code does not have; these are MAE's.
    config = masked.finetuned(models.variant(f"hiera_{size}"), of_vit)
    config.init = InitConfig(weights=f"timm:hiera_{name}_224.mae.safetensors")
    return config
