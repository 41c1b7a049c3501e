# SPDX-License-Identifier: Apache-2.0
"""Hiera fine-tuned on ImageNet-1k from its masked pretraining (arXiv:2306.00989 section 3)."""

from vit_jax import models
from vit_jax.config.tree import Config
from vit_jax.optim import OptimConfig
from vit_jax.recipes import choose, deit
from vit_jax.weights.config import InitConfig

# By size: timm's name, and epochs, lr over 256 images, layer decay and stochastic depth of MAE's
# fine-tuning of a ViT of that kind, of B, L and H (arXiv:2111.06377 table 9).
_B, _L, _H = (100, 5e-4, 0.65, 0.1), (50, 1e-3, 0.75, 0.2), (50, 1e-3, 0.75, 0.3)
SIZES = {
    "t": ("tiny", *_B),
    "s": ("small", *_B),
    "b": ("base", *_B),
    "b_plus": ("base_plus", *_B),
    "l": ("large", *_L),
    "h": ("huge", *_H),
}


def finetune(size: str) -> Config:
    """Fine-tune Hiera's published encoder as MAE's are: arXiv:2111.06377 table 9.

    Batch 1,024, AdamW, weight decay 0.05, cosine to 1e-6 after 5 epochs of warmup, RandAugment,
    mixup 0.8, cutmix 1.0, erasing 0.25, smoothing 0.1. It starts from timm's file of the pretrained
    encoder, hiera_base_224.mae and so on, without its head.

    Raises UserError: no such size.
    """
    name, epochs, rate, layer_decay, drop_path = SIZES[choose("size", size, SIZES)]
    # Differs from paper: it has epochs, rates, layer decay and stochastic depth of its own for each
    # size, which its code does not have; these are MAE's.
    model = models.variant(f"hiera_{size}")
    config = deit.imagenet(model, epochs=epochs, drop_path_rate=drop_path)
    config.data.repeats, config.ema_decay = 1, 0.0
    config.optim = OptimConfig(
        lr=4 * rate,
        min_lr=1e-6,
        weight_decay=0.05,
        layer_decay=layer_decay,
        warmup="5 epochs",
        clip_norm=0.0,
    )
    config.init = InitConfig(weights=f"timm:hiera_{name}_224.mae.safetensors")
    return config
