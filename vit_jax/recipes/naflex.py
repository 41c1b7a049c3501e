# SPDX-License-Identifier: Apache-2.0
"""Images of their own shapes: NaFlex (arXiv:2502.14786, timm) and NaViT's packing (2307.06304).

The rows of patches are the published ones: five lengths of which each step draws one, or rows of
one length that several images share. All else is DeiT's, whose values are not tuned for them.
"""

import dataclasses
from typing import Any

from vit_jax import models
from vit_jax.config.tree import Config
from vit_jax.data import Crop, MixConfig, Resize, TransformConfig
from vit_jax.models import ModelConfig
from vit_jax.recipes import choose, folder
from vit_jax.recipes.imagenet import deit
from vit_jax.weights.config import InitConfig

LENGTHS = (128, 256, 576, 784, 1024)  # timm's, and SigLIP 2's
# huggingface.co/timm/naflexvit_base_patch16_siglip.v2_webli's model.safetensors, renamed.
SIGLIP = "timm:naflexvit_base_patch16_siglip.v2_webli.safetensors"
IMAGENET = ("b16", "b16_packed", "siglip")
FOLDER = ("s16", "small", "small_packed")
_ROWS = {
    "b16_packed": 448,
    "small_packed": 16,
}  # for the batches here: nine patches of ten are used


def transform(crop: Crop, *lengths: int) -> TransformConfig:
    """Return a transform that keeps an image's shape; of random ones half are mirrored."""
    random = crop is Crop.NATIVE_RANDOM
    return TransformConfig(crop=crop, lengths=lengths, resize=Resize.BICUBIC, flip=random)


def imagenet(run: str) -> Config:
    """Train timm's naflexvit_base_patch16_gap, or fine-tune SigLIP 2's tower, on ImageNet-1k.

    Batch 1,024 at every length, where timm's has fewer images the longer they are: so a step is a
    function of its number, and the rate needs no scaling. Mixup as DeiT's, without cutmix, random
    erasing and repeated images; the packed run mixes none. Evaluated at 576 patches, as timm's are.

    Raises UserError: no such run.
    """
    choose("run", run, IMAGENET)
    if run == "siglip":
        config = deit.imagenet(models.variant("naflexvit_b16_siglip"), epochs=30)
        config.init = InitConfig(weights=SIGLIP, new_head=True)
        config.optim = deit.by_epochs(dataclasses.replace(config.optim, lr=5e-5))
    else:
        config = deit.imagenet(models.variant("naflexvit_b16_gap"))
    data = config.data
    data.repeats, data.erasing_prob, data.mean, data.std = 1, 0.0, (0.5,), (0.5,)
    data.mix = dataclasses.replace(data.mix, cutmix_alpha=0.0)
    lengths = LENGTHS
    if run in _ROWS:
        data.pack, data.mix, lengths = _ROWS[run], MixConfig(), (1024,)
    policy = data.transform.auto_augment
    data.transform = transform(Crop.NATIVE_RANDOM, *lengths)
    data.transform.auto_augment = policy
    for evaluation in config.evals.values():
        evaluation.transform = transform(Crop.NATIVE, 576)
    return config


def images(run: str) -> Config:
    """Train on images of one's own as `recipes.folder.images`, each in its own shape.

    Raises UserError: no such run.
    """
    choose("run", run, FOLDER)
    size, _, packed = run.partition("_")
    config = folder.images(size)
    config.model = _model(size)
    lengths = (128, 256) if size == "s16" else (32, 64)
    if packed:
        config.data.pack, config.data.batch_size, lengths = _ROWS[run], 32, (64,)
        config.data.mix = MixConfig()
    train = transform(Crop.NATIVE_RANDOM, *lengths)
    train.area = config.data.transform.area
    config.data.transform = train
    for evaluation in config.evals.values():
        evaluation.transform = transform(Crop.NATIVE, lengths[-1])
    return config


def _model(size: str) -> ModelConfig:
    """Return a ViT-S/16 or, for a CPU, the small model of `recipes.folder`, for any shapes."""
    plain: Any = folder.model(size)
    side = 16 if size == "s16" else 8
    own = {"native": True, "base_grid": (side, side), "pos_embed": "learned"}
    own |= {"pos_embed_prefix": False, "class_token": False, "pool": "gap"}
    return models.with_fields(plain, {**own, "image_size": (side * plain.patch[0],)})
