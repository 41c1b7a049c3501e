# SPDX-License-Identifier: Apache-2.0
"""How published networks want their images: a file of weights does not say."""

from typing import NamedTuple

from vit_jax.data import Crop, CropRule, Resize, TransformConfig
from vit_jax.inference import timm_facts
from vit_jax.inference.timm_facts import Facts
from vit_jax.models import (
    BiTConfig,
    CaiTConfig,
    HybridConfig,
    MixerConfig,
    ModelConfig,
    ResNetConfig,
    SwinConfig,
    ViTConfig,
    pair,
)
from vit_jax.models.layers.init import Init
from vit_jax.weights.load import split

Channels = tuple[float, ...]
_HALF: tuple[Channels, Channels] = ((0.5,), (0.5,))
_IMAGENET: tuple[Channels, Channels] = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_CLIP: tuple[Channels, Channels] = (
    (0.48145466, 0.4578275, 0.40821073),
    (0.26862954, 0.26130258, 0.27577711),
)


class Preprocessing(NamedTuple):
    """What happens to an image before a network sees it.

    Attributes:
        mean, std: of the input, in units where white is 1.
        transform: how it is brought to size.
        size: the (height, width) that the network was published for, where that is known.
        source: who says so.
    """

    mean: Channels
    std: Channels
    transform: TransformConfig
    size: tuple[int, int] | None
    source: str


def preprocessing(ref: str, cfg: ModelConfig) -> Preprocessing:
    """Return the published preprocessing of a file's network.

    Google's files (npz:): the image squashed to size, [-1, 1] (`resize` and `value_range(-1, 1)` of
    vision_transformer and big_vision). PyTorch files (timm:): what a config.json beside the file
    says, or timm's table by the file's name; else the family's commonest, which is a guess.

    Raises:
        UserError: a config.json that cannot be used.
    """
    scheme, path = split(ref)
    if scheme == "npz":
        plain = TransformConfig(crop=Crop.RESIZE)
        return Preprocessing(*_HALF, plain, None, "Google's code, the same for every npz: file")
    facts = timm_facts.find(path)
    found = _guess(cfg) if facts is None else _published(facts, cfg)
    return found._replace(mean=_of_channels(found.mean, cfg), std=_of_channels(found.std, cfg))


def _of_channels(values: Channels, cfg: ModelConfig) -> Channels:
    return values if cfg.channels == len(values) else (sum(values) / len(values),)


def _published(facts: Facts, cfg: ModelConfig) -> Preprocessing:
    size = pair(cfg.image_size, "image_size")
    tested = facts.test_size is not None and min(size) >= min(facts.test_size)
    ratio = facts.test_crop if tested and facts.test_crop else facts.crop
    crop = Crop.CENTER
    if facts.mode == "squash":
        crop = Crop.RESIZE if ratio == 1 else Crop.SQUASH_CENTER
    transform = _transform(crop, ratio, bilinear=facts.interpolation == "bilinear")
    return Preprocessing(
        facts.mean,
        facts.std,
        transform,
        facts.test_size if tested else facts.size,
        facts.source,
    )


def _transform(crop: Crop, ratio: float, *, bilinear: bool) -> TransformConfig:
    """Return what timm does: by Pillow, rounded as torchvision does."""
    return TransformConfig(
        crop=crop,
        crop_ratio=ratio,
        crop_rule=CropRule.TORCH,
        resize=Resize.BILINEAR_ANTIALIAS if bilinear else Resize.BICUBIC,
    )


def _guess(cfg: ModelConfig) -> Preprocessing:
    """Return the commonest of timm 1.0.31's files of a family."""
    (mean, std), ratio = _family(cfg)
    # Fine-tuned at a higher resolution, all see the whole image but SigLIP, which is trained there.
    siglip = isinstance(cfg, ViTConfig) and not cfg.class_token
    ratio = 1.0 if max(pair(cfg.image_size, "image_size")) > 224 and not siglip else ratio
    bilinear = isinstance(cfg, BiTConfig | ResNetConfig)
    told = (
        "a guess by the family: no config.json lies beside the file, and timm publishes none of "
        "its name"
    )
    return Preprocessing(mean, std, _transform(Crop.CENTER, ratio, bilinear=bilinear), None, told)


def _family(cfg: ModelConfig) -> tuple[tuple[Channels, Channels], float]:
    if isinstance(cfg, HybridConfig):
        return _HALF, 0.9
    if isinstance(cfg, ViTConfig) and cfg.pre_norm:
        return _CLIP, 1.0
    if isinstance(cfg, ViTConfig):  # of those born in PyTorch, DeiT's; not so ViT's and SigLIP's
        return (_IMAGENET if cfg.init is Init.TIMM else _HALF), 0.9
    crops = {
        BiTConfig: (_HALF, 1.0),
        MixerConfig: (_HALF, 0.875),
        CaiTConfig: (_IMAGENET, 1.0),
        SwinConfig: (_IMAGENET, 0.9),
    }
    return crops.get(type(cfg), (_IMAGENET, 0.875))  # timm's own default
