# SPDX-License-Identifier: Apache-2.0
"""DeiT III on ImageNet-1k: arXiv:2204.07118, facebookresearch/deit README_revenge.md."""

from vit_jax import models
from vit_jax.config.tree import Config
from vit_jax.data import Resize
from vit_jax.models import ModelConfig
from vit_jax.models.losses import Loss
from vit_jax.objectives import SupervisedConfig
from vit_jax.optim import OptimConfig, Optimizer
from vit_jax.recipes import val
from vit_jax.recipes.imagenet import deit
from vit_jax.weights.config import InitConfig, ResizeRule

# Side, lr, stochastic depth (in every block alike) of pretraining. Differs from paper: H/14 sees
# the whole crop at 154 pixels; the authors' patches cover the top left 154 of 160.
_PRETRAINED = {
    "deit3_s16": (224, 4e-3, 0.05),
    "deit3_b16": (192, 3e-3, 0.2),
    "deit3_l16": (192, 3e-3, 0.45),
    "deit3_h14": (154, 3e-3, 0.6),
}
# Stochastic depth of the fine-tunings, by image side.
_FINETUNED = {
    "deit3_s16": {"384": 0.0},
    "deit3_b16": {"224": 0.2, "384": 0.15},
    "deit3_l16": {"224": 0.45, "384": 0.4},
    "deit3_h14": {"224": 0.55},
}
# "s16", "s16_384", "b16", ...: every pretraining, followed by its fine-tunings.
RUNS = tuple(
    run.removeprefix("deit3_")
    for name, rates in _FINETUNED.items()
    for run in (name, *(f"{name}_{stage}" for stage in rates))
)


def pretrain(name: str) -> Config:
    """Train from scratch.

    800 epochs, batch 2,048, LAMB lr 3e-3 (S: 4e-3), weight decay 0.05, cosine to 1e-5 by epochs
    after 5 epochs of warmup from 1e-6, a binary cross-entropy per class with every mixed label at
    1, no smoothing, mixup 0.8 or cutmix 1.0, 3-Augment with colour jitter 0.3, no random erasing, 3
    copies of each image, stochastic depth; tested on the central square.
    """
    side, lr, rate = _PRETRAINED[name]
    model = models.variant(name, image_size=(side, side))
    return scratch(model, lr=lr, drop_path_rate=rate)


def scratch(model: ModelConfig, *, lr: float, drop_path_rate: float, epochs: int = 800) -> Config:
    """Train a model of any size as `pretrain`; ViT-5's recipe is the same."""
    config = deit.imagenet(model, epochs=epochs, drop_path_rate=drop_path_rate, crop_ratio=1.0)
    config.data.batch_size = 2048
    config.data.transform.auto_augment, config.data.transform.color_jitter = "3-augment", 0.3
    config.data.erasing_prob = 0.0
    config.objective = SupervisedConfig(loss=Loss.BCE, binarize=True)
    # Apex's FusedLAMB clips by default.
    optim = OptimConfig(name=Optimizer.LAMB, lr=lr, weight_decay=0.05, min_lr=1e-5, clip_norm=1.0)
    config.optim = deit.by_epochs(optim)
    return config


def finetune(name: str, stage: str) -> Config:
    """Fine-tune at a higher resolution, the side `stage`, from the run of the stage before.

    Stage "224" starts from runs/<name>_imagenet, "384" from runs/<name>_imagenet_224 (S:
    runs/deit3_s16_imagenet). 20 epochs, batch 512, AdamW at a constant lr of 1e-5 after 5 epochs of
    warmup from 1e-6, weight decay 0.1, cross-entropy with smoothing 0.1, RandAugment, mixup 0.8 or
    cutmix 1.0, no random erasing, one copy of an image, stochastic depth.
    """
    side = int(stage)
    model = models.variant(name, image_size=(side, side))
    before = "_224" if stage == "384" and "224" in _FINETUNED[name] else ""
    weights = f"ckpt:runs/{name}_imagenet{before}"
    return tuned(model, weights, drop_path_rate=_FINETUNED[name][stage])


def tuned(model: ModelConfig, weights: str, *, drop_path_rate: float) -> Config:
    """Fine-tune a model of any size from other weights as `finetune`."""
    config = deit.imagenet(model, epochs=20, drop_path_rate=drop_path_rate)
    config.data.batch_size, config.data.repeats, config.data.erasing_prob = 512, 1, 0.0
    optim = OptimConfig(lr=1e-5, weight_decay=0.1, min_lr=1e-5, clip_norm=0.0)
    config.optim = deit.by_epochs(optim)
    config.init = InitConfig(weights=weights, resize=ResizeRule.OFFICIAL)
    config.evals = val("1 epoch", crop_ratio=1.0, resize=Resize.BICUBIC)
    return config
