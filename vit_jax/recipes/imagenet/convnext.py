# SPDX-License-Identifier: Apache-2.0
"""ConvNeXt on ImageNet-1k: arXiv:2201.03545 appendix A, facebookresearch/ConvNeXt's TRAINING.md."""

from vit_jax.config.tree import Config
from vit_jax.data import Crop, MixConfig, Resize
from vit_jax.models import ModelConfig
from vit_jax.optim import OptimConfig
from vit_jax.recipes import val
from vit_jax.recipes.imagenet import deit
from vit_jax.weights.config import InitConfig

# The blocks of S, B and L fall in 12 groups of three, after the stem's, before the head's.
_GROUPS = 12


def imagenet(model: ModelConfig, *, drop_path_rate: float) -> Config:
    """ConvNeXt from scratch: table 5, main.py.

    300 epochs, batch 4,096, AdamW lr 4e-3, weight decay 0.05 on matrices only, cosine to 1e-6 after
    20 epochs of warmup from 0, no clipping, stochastic depth, label smoothing 0.1, an average of
    the weights of decay 0.9999; DeiT's data with one copy of an image.
    """
    config = deit.imagenet(model, drop_path_rate=drop_path_rate)
    config.data.repeats, config.data.batch_size = 1, 4096
    config.optim = OptimConfig(
        lr=4e-3, weight_decay=0.05, warmup="20 epochs", min_lr=1e-6, clip_norm=0.0
    )
    config.ema_decay = 0.9999
    return config


def finetune(model: ModelConfig, weights: str, *, drop_path_rate: float) -> Config:
    """Fine-tune at 384 pixels: table 6, TRAINING.md.

    30 epochs, batch 512, lr 5e-5, cosine to 1e-6, weight decay 1e-8, rates that fall by 0.7 from
    each group of three blocks to the one before; neither mixup nor cutmix, no average; tested on
    the whole image, squashed.
    """
    config = imagenet(model, drop_path_rate=drop_path_rate)
    config.duration, config.data.batch_size = "30 epochs", 512
    config.data.mix = MixConfig()
    config.optim = OptimConfig(
        lr=5e-5, weight_decay=1e-8, min_lr=1e-6, clip_norm=0.0, lr_multipliers=_by_group(0.7)
    )
    config.ema_decay = 0.0
    config.init = InitConfig(weights=weights)
    config.evals = val("1 epoch", crop=Crop.RESIZE, resize=Resize.BICUBIC)
    return config


def _by_group(factor: float) -> tuple[tuple[str, float], ...]:
    """Return the learning rates' factors of three blocks each (its optim_factory.py)."""
    third = [f"^stage2/blocks/({3 * i}|{3 * i + 1}|{3 * i + 2})/" for i in range(9)]
    third[0] += "|^stage2/downsample/"
    groups = ["^stem/", "^stage0/", "^stage1/", *third, "^stage3/"]
    return tuple((each, factor ** (_GROUPS + 1 - i)) for i, each in enumerate(groups))
