# SPDX-License-Identifier: Apache-2.0
"""What a run reads and what happens to each image before and after it is batched."""

import dataclasses
import enum
import math
from typing import NamedTuple

from vit_jax.settings.fields import group, value


class Background(enum.StrEnum):
    """What lies behind transparent pixels. DROP shows the colours stored there, often black."""

    WHITE = "white"
    BLACK = "black"
    GRAY = "gray"
    DROP = "drop"


class PixelType(enum.StrEnum):
    """What kind of numbers the pixels of a file are, and so those of a batch."""

    UINT8 = "uint8"
    UINT16 = "uint16"
    FLOAT32 = "float32"


# The number that counts as 1 in `data.mean` and `data.std`: white, or of floats their own unit.
WHITE = {PixelType.UINT8: 255, PixelType.UINT16: 65535, PixelType.FLOAT32: 1}


class Reading(NamedTuple):
    """By which rules files become pixels (docs/data.md, "How an image is read").

    With `bands` images are arrays of bands (docs/channels.md), else pictures, grey or RGB.
    """

    background: Background = Background.WHITE
    upright: bool = True
    bands: tuple[str, ...] = ()
    dtype: PixelType = PixelType.UINT8
    bands_shown: tuple[int, ...] = ()


# The array of a batch with the (rows, columns) of patches of each image, (0, 0) for no image.
GRIDS = "grids"
AS_SHOWN = Reading()  # as programs that show images do
# How versions trained and evaluated that had no choice: runs begun by them go on so.
OLD_READING = Reading(Background.DROP, upright=False)


class CropRule(enum.StrEnum):
    """Whose rounding CENTER has; on most images the two are up to a pixel apart.

    TF is big_vision's resize_small and central_crop: the long side is rounded and the offset
    floored. TORCH is torchvision's Resize and CenterCrop, and so timm's: the long side is truncated
    and the offset rounded, half to even.
    """

    TF = "tf"
    TORCH = "torch"


class ZoomSide(enum.StrEnum):
    """Which side of an image SCALE_JITTER compares with the model's.

    SHORT is mmsegmentation's and DINOv3's RandomResize: at a zoom of 1 the image covers the
    output. LONG is torchvision's ScaleJitter, EoMT's: at a zoom of 1 the image lies within it.
    """

    SHORT = "short"
    LONG = "long"


class Resize(enum.StrEnum):
    """How pixels are interpolated; each is the library whose function the recipe was born with.

    BILINEAR is OpenCV's INTER_LINEAR: four taps, no antialiasing, half-pixel centres, as
    tf.image.resize does by default. BILINEAR_ANTIALIAS is Pillow's: a triangle as wide as an output
    pixel's footprint, torchvision's default. BICUBIC is Pillow's: antialiased, a = -0.5, as
    torchvision and timm do. BICUBIC_NO_ANTIALIAS is OpenCV's INTER_CUBIC: 16 taps, a = -0.75, as
    torch's interpolate does by default. AREA is OpenCV's INTER_AREA: the mean over each output
    pixel's footprint, as tf.image.resize(method="area") does (big_vision's evaluation).
    """

    BILINEAR = "bilinear"
    BILINEAR_ANTIALIAS = "bilinear_antialias"
    BICUBIC = "bicubic"
    BICUBIC_NO_ANTIALIAS = "bicubic_no_antialias"
    AREA = "area"


class Crop(enum.StrEnum):
    """Which part of an image becomes the model's input.

    NONE takes the image as it is: it must have the size already. RESIZE squashes the whole image.
    CENTER resizes the short side to floor(size / crop_ratio) and cuts the centre, both rounded as
    `CropRule` says. SQUASH_CENTER squashes to floor(size / crop_ratio) and cuts the centre (timm's
    crop_mode "squash"). RANDOM resizes like CENTER, mirrors `pad` pixels outwards at every edge,
    and cuts anywhere (CIFAR's crop, and DeiT III's simple one); SQUASH_RANDOM squashes to
    floor(size / crop_ratio) and cuts anywhere (BiT-HyperRule). INCEPTION draws a box as
    TensorFlow's sample_distorted_bounding_box does (the JAX-born recipes), RANDOM_RESIZED as
    torchvision's RandomResizedCrop does (the PyTorch-born ones). SCALE_JITTER resizes the whole
    image by a factor uniform in `zoom`, fills with 0 at the bottom and the right what is smaller
    than the output, and cuts anywhere (the recipes of segmentation).

    NATIVE and NATIVE_RANDOM keep each image's shape, for models of images of any size
    (docs/naflex.md): the whole image, or a box drawn as RANDOM_RESIZED does, its aspect relative to
    the image's, is resized to as many patches as `lengths` allow; several images to a row
    (`data.pack`) keep their own size where that is smaller.
    """

    NONE = "none"
    RESIZE = "resize"
    CENTER = "center"
    SQUASH_CENTER = "squash_center"
    RANDOM = "random"
    SQUASH_RANDOM = "squash_random"
    INCEPTION = "inception"
    RANDOM_RESIZED = "random_resized"
    SCALE_JITTER = "scale_jitter"
    NATIVE = "native"
    NATIVE_RANDOM = "native_random"


# Each sampler's published ranges of (area, aspect): TensorFlow's op as big_vision calls it, and
# torchvision's defaults. 1.33 against 4/3 is not a typo.
CROP_RANGES = {
    Crop.INCEPTION: ((0.05, 1.0), (0.75, 1.33)),
    Crop.RANDOM_RESIZED: ((0.08, 1.0), (3 / 4, 4 / 3)),
    Crop.NATIVE_RANDOM: ((0.08, 1.0), (0.8, 1.25)),  # timm's RandomResizedCropToSequence
}
NATIVE_CROPS = (Crop.NATIVE, Crop.NATIVE_RANDOM)
_RANDOM_CROPS = (*CROP_RANGES, Crop.RANDOM, Crop.SQUASH_RANDOM, Crop.SCALE_JITTER)


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
        zoom: SCALE_JITTER only: range of the size of the whole image over the model's; () is 0.5
            to 2.
        zoom_side: SCALE_JITTER only: of which of its sides.
        lengths: native crops only: the most patches of an image; of several a step of training
            draws one for all its images, an evaluation has one.
        resize: the interpolation.
        flip: mirror left to right, one image in two.
        degrees: rotate by an angle uniform in +-degrees. This and the next three are
            torchvision's RandomAffine, bilinear, with 0 where the image does not reach.
        translate: largest shift along x and y as a share of the width and height.
        scale: range of the zoom factor.
        shear: shear along x by an angle uniform in +-shear degrees.
        auto_augment: "" or an augmentation policy: "randaug(2,10)" (big_vision's RandAugment, two
            operations of magnitude 10), "rand-m9-mstd0.5-inc1" (timm's), "3-augment" (DeiT III's),
            "dino-blur0.1-solarize0.2" (of self-supervised views, with the probabilities of these
            two), "autoaugment(imagenet)" or "autoaugment(cifar10)"; data/augment has them.
        color_jitter: brightness, contrast and saturation, in random order, each by a factor uniform
            in 1 +- this (torchvision's ColorJitter); after the policy.
    """

    crop: Crop = Crop.CENTER
    crop_ratio: float = value(0.875, least=0.001, most=1)
    crop_rule: CropRule = CropRule.TF  # as all runs had it before there was a choice
    pad: int = value(0, least=0, unit="pixels")
    area: tuple[float, ...] = value((), lengths=(0, 2), above=0, most=1)
    aspect: tuple[float, ...] = value((), lengths=(0, 2), above=0)
    zoom: tuple[float, ...] = value((), lengths=(0, 2), above=0)
    zoom_side: ZoomSide = ZoomSide.SHORT
    lengths: tuple[int, ...] = value((), least=1, unit="patches")
    resize: Resize = Resize.BILINEAR
    flip: bool = False
    degrees: float = value(0.0, least=0, most=180, unit="degrees")
    translate: tuple[float, ...] = value((0.0, 0.0), lengths=(2,), least=0, most=1)
    scale: tuple[float, ...] = value((1.0, 1.0), lengths=(2,), above=0)
    shear: float = value(0.0, least=0, below=90, unit="degrees")
    auto_augment: str = ""
    color_jitter: float = value(0.0, least=0, most=1)


class Partner(enum.StrEnum):
    """Which example of the global batch another is mixed with.

    PREVIOUS is big_vision's: the one before; of mixup's two shares the example itself has the
    larger. REVERSED is timm's: the batch back to front, with the share as it is drawn.
    """

    PREVIOUS = "previous"
    REVERSED = "reversed"


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class MixConfig:
    """Mixup and cutmix, on the device.

    Attributes:
        mixup_alpha: blend an image with another's, lambda ~ Beta(alpha, alpha) (arXiv:1710.09412);
            0 is off.
        cutmix_alpha: paste a box of another image, of area 1 - lambda (arXiv:1905.04899); 0 is off.
        prob: how often anything is mixed.
        switch_prob: where both are on, how often it is cutmix.
        per_example: draw for every example of the batch, not once for all (timm's "elem").
        partner: which image is the other.
    """

    mixup_alpha: float = value(0.0, least=0, note="0 is off")
    cutmix_alpha: float = value(0.0, least=0, note="0 is off")
    prob: float = value(1.0, above=0, most=1)
    switch_prob: float = value(
        0.5, above=0, below=1, note="for one of the two alone, set the alpha of the other to 0"
    )
    per_example: bool = False
    partner: Partner = Partner.PREVIOUS


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class DataConfig:
    """What a run trains on.

    Attributes:
        name: "digits", a TFDS dataset prepared as ArrayRecord ("imagenet2012", "name/config",
            "name:1.2.3"), "folder:DIR" with DIR/[SPLIT/]CLASS/*.{jpg,png,webp,...}, "csv:FILE"
            with the columns path,label[,split], "tar:PATTERN" with members KEY.jpg and KEY.cls,
            "parquet:PATTERN" with columns image and label; or a path of these. "hf:USER/NAME" and
            "hf:./FOLDER" are datasets of the Hugging Face Hub. Images without splits are divided by
            "folder:DIR?split_seed=0"; "?rules=1" reads as runs did that were begun before there
            was a choice. "fractals/100" draws images of 100 classes.
        data_dir: where TFDS datasets lie; "" is $TFDS_DATA_DIR or ~/tensorflow_datasets.
        train_split: a split with an optional slice, as in TFDS: "train", "train[:99%]".
        batch_size: examples per step, over all processes; 0 fits it to the number of images.
        pack: rows of patches that hold all images of a batch, several to a row; 0 gives each image
            a row of its own. Native crops only (docs/naflex.md).
        transform: what happens to each training image.
        background: what lies behind transparent pixels; "drop" shows the colours stored there.
        upright: turn images as their files say (EXIF); False leaves them as the sensor lay.
        bands: of images that are arrays of any number of channels (docs/channels.md): "all", or
            which in the model's order, by their names in folders of bands, by their numbers, from
            0, in files that hold several; () reads pictures, grey or RGB.
        dtype: of what the files of bands hold, and so of the batches.
        bands_shown: which of the model's channels, from 0, pictures show as red, green and blue, or
            one as grey; () is the first three, of fewer the first.
        mean: of the input, in units where white is 1 (of float32, the files' own units); one value,
            or one per channel.
        std: likewise.
        statistics: a file of `vit_jax prepare --statistics` that gives mean and std instead.
        num_threads: decoding threads per process; 0 is one per core, or one where images are so
            small that Python, not decoding, is the work. Data in a bucket are read by others.
        num_workers: worker processes besides this one; 0 is threads alone, but where both are 0 and
            data lie in a bucket, 1 for every 8 cores of more than 8.
        prefetch: batches prepared ahead (per worker process where there are any).
        cache: keep the encoded examples in memory after the first read.
        repeats: how many augmented copies of an image come together (repeated augmentation,
            arXiv:1901.09335); an epoch is as long as ever, of 1 / repeats of the images.
        balance: how far rare classes are drawn more often than they occur: a class of n images in
            proportion to n^(1 - balance), so that at 1 all classes come alike.
        classes: ids of the classes to keep, renumbered in this order; () is all. Evaluations on
            the same dataset follow.
        mix: mixup and cutmix.
        erasing_prob: how often a box of an image is replaced by noise (random erasing,
            arXiv:1708.04896).
        max_segments: the most segments of an image in a batch, where it has some; the smallest of
            more are left out and counted.
        min_visible: the least share of a segment's area that a crop must leave of it, or the
            segment is dropped; of the least share one pixel must be left.
        redraws: how often a crop is drawn again that leaves nothing of an image's targets.
        max_broken: how many training examples may turn out to be unreadable, each then replaced by
            the next one that can be read; one more ends the run. Evaluations allow none.
        strict: refuse a dataset of which anything is left out, lies there twice or is noted.
    """

    name: str = "digits"
    data_dir: str = value("", free=True)
    train_split: str = "train"
    batch_size: int = value(128, least=0, note="0 fits it to the number of images", unit="examples")
    pack: int = value(0, least=0, note="0 gives each image a row of its own", unit="rows")
    transform: TransformConfig = group(TransformConfig)
    background: Background = Background.WHITE
    upright: bool = True
    bands: tuple[str, ...] = ()
    dtype: PixelType = PixelType.UINT8
    bands_shown: tuple[int, ...] = value((), lengths=(0, 1, 3), least=0, free=True)
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = value((0.5,), above=0)
    statistics: str = ""
    num_threads: int = value(0, least=0, free=True)
    num_workers: int = value(0, least=0, free=True)
    prefetch: int = value(2, least=1, unit="batches", free=True)
    cache: bool = value(False, free=True)
    repeats: int = value(1, least=1)
    balance: float = value(0.0, least=0, most=1, note="0 draws classes as often as they occur")
    classes: tuple[int, ...] = ()
    mix: MixConfig = group(MixConfig)
    erasing_prob: float = value(0.0, least=0, most=1)
    max_segments: int = value(100, least=1, unit="segments")
    min_visible: float = value(0.0, least=0, most=1, note="0 keeps what shows one pixel")
    redraws: int = value(0, least=0)
    max_broken: int = value(0, least=0, unit="examples", free=True)
    strict: bool = value(False, free=True)


def reading(cfg: DataConfig) -> Reading:
    """Return the rules by which a run reads images, everywhere."""
    return Reading(cfg.background, cfg.upright, cfg.bands, cfg.dtype, cfg.bands_shown)


def is_native(cfg: TransformConfig) -> bool:
    """Return whether images keep their shapes, and become rows of patches."""
    return cfg.crop in NATIVE_CROPS


def crop_ranges(cfg: TransformConfig) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the ranges of (area, aspect) of a random crop, the sampler's own where unset."""
    area, aspect = CROP_RANGES[cfg.crop]
    return cfg.area or area, cfg.aspect or aspect


def zoom_range(cfg: TransformConfig) -> tuple[float, ...]:
    """Return the range of SCALE_JITTER's factor, the commonest where it is unset."""
    return cfg.zoom or (0.5, 2.0)


def cover_size(size: tuple[int, int], ratio: float) -> tuple[int, int]:
    """Return the (height, width) of which `size` is the share `ratio`, rounded down.

    As timm and the authors of DeiT and Swin have it: 248 pixels for 224 at 0.9.
    """
    rows, columns = (math.floor(side / ratio + 1e-6) for side in size)  # 128 / 0.8 is 160
    return rows, columns


def is_random(cfg: TransformConfig) -> bool:
    """Return whether the transform draws anything at random."""
    colors = bool(cfg.auto_augment) or cfg.color_jitter > 0
    return cfg.crop in _RANDOM_CROPS or cfg.flip or has_affine(cfg) or colors


def has_affine(cfg: TransformConfig) -> bool:
    """Return whether the affine part is more than the identity."""
    moved = cfg.degrees or cfg.shear or any(cfg.translate)
    return bool(moved) or tuple(cfg.scale) != (1.0, 1.0)


def is_on(cfg: MixConfig) -> bool:
    """Return whether anything is mixed."""
    return cfg.mixup_alpha > 0 or cfg.cutmix_alpha > 0


def mean_color(cfg: DataConfig) -> tuple[int, ...]:
    """Return `mean` in levels of 0..255, with which timm fills what a policy leaves empty."""
    return tuple(min(max(round(255 * value), 0), 255) for value in cfg.mean)
