# SPDX-License-Identifier: Apache-2.0
"""What a run reads and what happens to each image before it is batched."""

import dataclasses
import enum
import math

from vit_jax.data.mix_config import MixConfig, Partner, check_mix, is_on
from vit_jax.data.resize import CropRule, Resize, cover_size
from vit_jax.errors import UserError


class Crop(enum.StrEnum):
    """Which part of an image becomes the model's input.

    NONE takes the image as it is: it must have the size already. RESIZE squashes the whole image.
    CENTER resizes the short side to floor(size / crop_ratio) and cuts the centre, both rounded as
    `CropRule` says. SQUASH_CENTER squashes to floor(size / crop_ratio) and cuts the centre (timm's
    crop_mode "squash"). RANDOM resizes like CENTER, mirrors `pad` pixels outwards at every edge,
    and cuts anywhere (CIFAR's crop, and DeiT III's simple one); SQUASH_RANDOM squashes to
    floor(size / crop_ratio) and cuts anywhere (BiT-HyperRule). INCEPTION draws a box as
    TensorFlow's sample_distorted_bounding_box does (the JAX-born recipes), RANDOM_RESIZED as
    torchvision's RandomResizedCrop does (the PyTorch-born ones).
    """

    NONE = "none"
    RESIZE = "resize"
    CENTER = "center"
    SQUASH_CENTER = "squash_center"
    RANDOM = "random"
    SQUASH_RANDOM = "squash_random"
    INCEPTION = "inception"
    RANDOM_RESIZED = "random_resized"


# Each sampler's published ranges of (area, aspect): TensorFlow's op as big_vision calls it, and
# torchvision's defaults. 1.33 against 4/3 is not a typo.
_CROP_RANGES = {
    Crop.INCEPTION: ((0.05, 1.0), (0.75, 1.33)),
    Crop.RANDOM_RESIZED: ((0.08, 1.0), (3 / 4, 4 / 3)),
}
_LEAST_RATIO = 0.001  # an image is resized to the size over it
_RANDOM_CROPS = (*_CROP_RANGES, Crop.RANDOM, Crop.SQUASH_RANDOM)


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class TransformConfig:
    """What happens to one image, in the order of the attributes below.

    Attributes:
        crop: which part of the image is taken.
        crop_ratio: CENTER, RANDOM and those that squash: size of the cut over that of the resized
            image.
        crop_rule: CENTER only: whose rounding.
        pad: RANDOM only: mirrored pixels at every edge.
        area: random crops only: range of the box's share of the image; () is the sampler's own.
        aspect: random crops only: range of width over height; () is the sampler's own.
        resize: the interpolation.
        flip: mirror left to right, one image in two.
        degrees: rotate by an angle uniform in +-degrees. This and the next three are
            torchvision's RandomAffine, bilinear, with 0 where the image does not reach.
        translate: largest shift along x and y as a share of the width and height.
        scale: range of the zoom factor.
        shear: shear along x by an angle uniform in +-shear degrees.
        auto_augment: "" or an augmentation policy: "randaug(2,10)" (big_vision's RandAugment, two
            operations of magnitude 10), "rand-m9-mstd0.5-inc1" (timm's), "3-augment" (DeiT III's),
            "autoaugment(imagenet)" or "autoaugment(cifar10)"; data/augment has them.
        color_jitter: brightness, contrast and saturation, in random order, each by a factor uniform
            in 1 +- this (torchvision's ColorJitter); after the policy.
    """

    crop: Crop = Crop.CENTER
    crop_ratio: float = 0.875
    crop_rule: CropRule = CropRule.TF  # as all runs had it before there was a choice
    pad: int = 0
    area: tuple[float, ...] = ()
    aspect: tuple[float, ...] = ()
    resize: Resize = Resize.BILINEAR
    flip: bool = False
    degrees: float = 0.0
    translate: tuple[float, ...] = (0.0, 0.0)
    scale: tuple[float, ...] = (1.0, 1.0)
    shear: float = 0.0
    auto_augment: str = ""
    color_jitter: float = 0.0


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class DataConfig:
    """What a run trains on.

    Attributes:
        name: "digits", a TFDS dataset prepared as ArrayRecord ("imagenet2012", "name/config",
            "name:1.2.3"), or "folder:DIR" with DIR/{train,val}/<class>/*.{jpg,jpeg,png,webp}.
        data_dir: where TFDS datasets lie; "" is $TFDS_DATA_DIR or ~/tensorflow_datasets.
        train_split: a split with an optional slice, as in TFDS: "train", "train[:99%]".
        batch_size: examples per step, over all processes.
        transform: what happens to each training image.
        mean: of the input, in units where white is 1; one value, or one per channel.
        std: likewise.
        num_threads: decoding threads per process; 0 is 2 per core, or 1 where images are so small
            that Python, not decoding, is the work.
        num_workers: worker processes besides this one; 0 is threads alone.
        prefetch: batches prepared ahead (per worker process where there are any).
        cache: keep the encoded examples in memory after the first read.
        repeats: how many augmented copies of an image come together (repeated augmentation,
            arXiv:1901.09335); an epoch is as long as ever, of 1 / repeats of the images.
        classes: ids of the classes to keep, renumbered in this order; () is all. Evaluations on
            the same dataset follow.
        mix: mixup and cutmix.
        erasing_prob: how often a box of an image is replaced by noise (random erasing,
            arXiv:1708.04896).
        max_broken: how many training examples may turn out to be unreadable, each then replaced by
            the next one that can be read; one more ends the run. 0 is none: a run never learns from
            other images than it was told to unless its config says so. Evaluations allow none.
    """

    name: str = "digits"
    data_dir: str = ""
    train_split: str = "train"
    batch_size: int = 128
    transform: TransformConfig = dataclasses.field(default_factory=TransformConfig)
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    num_threads: int = 0
    num_workers: int = 0
    prefetch: int = 2
    cache: bool = False
    repeats: int = 1
    classes: tuple[int, ...] = ()
    mix: MixConfig = dataclasses.field(default_factory=MixConfig)
    erasing_prob: float = 0.0
    max_broken: int = 0


def crop_ranges(cfg: TransformConfig) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the ranges of (area, aspect) of a random crop, the sampler's own where unset."""
    (low, high), (narrow, wide) = _CROP_RANGES[cfg.crop]
    if cfg.area:
        low, high = cfg.area
    if cfg.aspect:
        narrow, wide = cfg.aspect
    return (low, high), (narrow, wide)


def is_random(cfg: TransformConfig) -> bool:
    """Say whether the transform draws anything at random."""
    colors = bool(cfg.auto_augment) or cfg.color_jitter > 0
    return cfg.crop in _RANDOM_CROPS or cfg.flip or has_affine(cfg) or colors


def has_affine(cfg: TransformConfig) -> bool:
    """Say whether the affine part is anything but the identity."""
    moved = cfg.degrees or cfg.shear or any(cfg.translate)
    return bool(moved) or tuple(cfg.scale) != (1.0, 1.0)


def _require(ok: bool, message: str) -> None:
    if not ok:
        raise UserError(message)


def _check_range(name: str, value: tuple[float, ...], low: float, high: float) -> None:
    ok = len(value) == 2 and low < value[0] <= value[1] <= high
    bounds = f"{low:g} < low <= high" + (f" <= {high:g}" if math.isfinite(high) else "")
    _require(ok, f"{name}={value!r} must be two numbers (low, high) with {bounds}")


def check_transform(cfg: TransformConfig, name: str = "transform") -> None:
    """Check what needs no data to be checked.

    Raises:
        UserError: a value out of its range, or a setting that the chosen crop never reads.
    """
    from vit_jax.data.augment import parse  # late: it needs OpenCV, which a config does not

    _require(
        _LEAST_RATIO <= cfg.crop_ratio <= 1,
        f"{name}.crop_ratio={cfg.crop_ratio} must be from {_LEAST_RATIO} to 1",
    )
    if cfg.crop in _CROP_RANGES:
        for key, high in (("area", 1.0), ("aspect", math.inf)):
            if getattr(cfg, key):
                _check_range(f"{name}.{key}", getattr(cfg, key), 0.0, high)
    else:
        unread = [key for key in ("area", "aspect") if getattr(cfg, key)]
        _require(
            not unread,
            f"{name}.{(unread or [''])[0]} is set, but {name}.crop={cfg.crop.value!r} draws no "
            "box; leave it () or choose the crop 'inception' or 'random_resized'",
        )
    _require(0 <= cfg.degrees <= 180, f"{name}.degrees={cfg.degrees} must be in [0, 180]")
    _require(0 <= cfg.shear < 90, f"{name}.shear={cfg.shear} must be in [0, 90) degrees")
    _require(
        len(cfg.translate) == 2 and all(0 <= t <= 1 for t in cfg.translate),
        f"{name}.translate={cfg.translate!r} must be two shares (x, y) in [0, 1]",
    )
    _check_range(f"{name}.scale", cfg.scale, 0.0, math.inf)
    _require(
        cfg.pad >= 0 and (not cfg.pad or cfg.crop is Crop.RANDOM),
        f"{name}.pad={cfg.pad} must not be negative, and 0 unless {name}.crop is 'random'",
    )
    _require(
        0 <= cfg.color_jitter <= 1, f"{name}.color_jitter={cfg.color_jitter} must be in [0, 1]"
    )
    try:
        parse(cfg.auto_augment)
    except UserError as error:
        raise UserError(f"{name}.{error}") from None


def mean_color(cfg: DataConfig) -> tuple[int, ...]:
    """Return `mean` in levels of 0..255, with which timm fills what a policy leaves empty."""
    return tuple(min(max(round(255 * value), 0), 255) for value in cfg.mean)


def check_pad(cfg: TransformConfig, size: tuple[int, int], name: str = "transform") -> None:
    """Check that images resized for a model's (height, width) can be mirrored at their edges.

    Raises:
        UserError: `pad` reaches beyond the resized image's far side.
    """
    short = min(cover_size(size, cfg.crop_ratio))
    _require(
        cfg.pad < short,
        f"{name}.pad={cfg.pad} must be smaller than the resized image, whose short side is {short}",
    )


def check(cfg: DataConfig) -> None:
    """Check what needs neither the dataset nor the model to be checked.

    Raises:
        UserError: a value out of its range.
    """
    check_transform(cfg.transform, "data.transform")
    _require(cfg.batch_size > 0, f"data.batch_size={cfg.batch_size} must be positive")
    for key in ("num_threads", "num_workers"):
        value = getattr(cfg, key)
        _require(value >= 0, f"data.{key}={value} must not be negative")
    _require(cfg.prefetch >= 1, f"data.prefetch={cfg.prefetch} must be at least 1")
    check_mix(cfg.mix)
    _require(0 <= cfg.erasing_prob <= 1, f"data.erasing_prob={cfg.erasing_prob} must be in [0, 1]")
    _require(cfg.max_broken >= 0, f"data.max_broken={cfg.max_broken} must not be negative")
    _require(cfg.repeats >= 1, f"data.repeats={cfg.repeats} must be at least 1")
    _require(
        cfg.repeats == 1 or not is_on(cfg.mix) or cfg.mix.partner is not Partner.PREVIOUS,
        f"data.repeats={cfg.repeats} puts copies of an image next to each other, and "
        "data.mix.partner='previous' would mix it with itself; set data.mix.partner=reversed",
    )
    for key in ("mean", "std"):
        value = getattr(cfg, key)
        _require(
            len(value) in (1, 3),
            f"data.{key}={value!r} must hold one value, or one per channel",
        )
    _require(all(s > 0 for s in cfg.std), f"data.std={cfg.std!r} must be positive")
