# SPDX-License-Identifier: Apache-2.0
"""ViT-5 on ImageNet-1k: arXiv:2602.08071, wangf3014/ViT-5 README.md; DeiT III's recipe."""

from vit_jax import models
from vit_jax.config.tree import Config
from vit_jax.recipes.imagenet import deit3

# Side, lr, stochastic depth (in every block alike) and epochs of pretraining.
_PRETRAINED = {
    "vit5_s16": (224, 4e-3, 0.05, 800),
    "vit5_b16": (192, 3e-3, 0.2, 800),
    "vit5_l16": (192, 3e-3, 0.35, 400),
}
# Stochastic depth of the fine-tunings, and the image sides.
_FINETUNED = {
    "vit5_s16": (0.05, ("224",)),
    "vit5_b16": (0.25, ("224", "384")),
    "vit5_l16": (0.5, ("224", "384")),
}
# "s16", "s16_224", "b16", ...: every pretraining, followed by its fine-tunings.
RUNS = tuple(
    run.removeprefix("vit5_")
    for name, (_, sides) in _FINETUNED.items()
    for run in (name, *(f"{name}_{side}" for side in sides))
)


def pretrain(name: str) -> Config:
    """Train from scratch as DeiT III, at other rates of stochastic depth; L for 400 epochs."""
    side, lr, rate, epochs = _PRETRAINED[name]
    model = models.variant(name, image_size=(side, side))
    return deit3.scratch(model, lr=lr, drop_path_rate=rate, epochs=epochs)


def finetune(name: str, side: str) -> Config:
    """Fine-tune as DeiT III from the averaged weights of runs/<name>_imagenet."""
    rate, _ = _FINETUNED[name]
    model = models.variant(name, image_size=(int(side), int(side)))
    config = deit3.tuned(model, f"ckpt:runs/{name}_imagenet", drop_path_rate=rate)
    config.init.ema = True
    return config
