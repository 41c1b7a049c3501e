# SPDX-License-Identifier: Apache-2.0
"""How published networks want their images: a file of weights does not say."""

from typing import NamedTuple

from vit_jax.data import Crop, Resize, TransformConfig
from vit_jax.models import (
    BiTConfig,
    CaiTConfig,
    ConViTConfig,
    HybridConfig,
    MixerConfig,
    ModelConfig,
    RegNetConfig,
    ResNetConfig,
    SwinConfig,
    ViTConfig,
    pair,
)
from vit_jax.models.layers.init import Init

Channels = tuple[float, ...]
_HALF: tuple[Channels, Channels] = ((0.5,), (0.5,))
_IMAGENET: tuple[Channels, Channels] = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_CLIP: tuple[Channels, Channels] = (
    (0.48145466, 0.4578275, 0.40821073),
    (0.26862954, 0.26130258, 0.27577711),
)


class Preprocessing(NamedTuple):
    """What happens to an image before a network sees it."""

    mean: Channels
    std: Channels
    transform: TransformConfig


def preprocessing(scheme: str, cfg: ModelConfig) -> Preprocessing:
    """Return the published preprocessing of a file's network.

    Google's files (npz:): the image squashed to size, [-1, 1] (`resize` and `value_range(-1, 1)` of
    vision_transformer and big_vision). PyTorch files (timm:): the family's mean, deviation and
    centre crop in timm 1.0.31. Where a family has several, as RegNetY has, its commonest; the
    command line's flags change any of it.
    """
    if scheme == "npz":
        return Preprocessing(*_HALF, TransformConfig(crop=Crop.RESIZE))
    (mean, std), ratio = _family(cfg)
    # Fine-tuned at a higher resolution, all see the whole image but SigLIP, which is trained there.
    siglip = isinstance(cfg, ViTConfig) and not cfg.class_token
    ratio = 1.0 if max(pair(cfg.image_size, "image_size")) > 224 and not siglip else ratio
    bilinear = isinstance(cfg, BiTConfig | ResNetConfig)
    return Preprocessing(
        mean if cfg.channels == len(mean) else (sum(mean) / len(mean),),
        std if cfg.channels == len(std) else (sum(std) / len(std),),
        TransformConfig(
            crop=Crop.CENTER,
            crop_ratio=ratio,
            resize=Resize.BILINEAR_ANTIALIAS if bilinear else Resize.BICUBIC,
        ),
    )


def _family(cfg: ModelConfig) -> tuple[tuple[Channels, Channels], float]:
    if isinstance(cfg, HybridConfig):
        return _HALF, 0.9
    if isinstance(cfg, ViTConfig) and cfg.pre_norm:
        return _CLIP, 0.9
    if isinstance(cfg, ViTConfig):  # of those born in PyTorch, DeiT's; not so ViT's and SigLIP's
        return (_IMAGENET if cfg.init is Init.TIMM else _HALF), 0.9
    crops = {
        BiTConfig: (_HALF, 1.0),
        MixerConfig: (_HALF, 0.875),
        CaiTConfig: (_IMAGENET, 1.0),
        SwinConfig: (_IMAGENET, 0.9),
        ConViTConfig: (_IMAGENET, 0.875),
        ResNetConfig: (_IMAGENET, 0.875),
        RegNetConfig: (_IMAGENET, 0.875),
    }
    return crops[type(cfg)]
