# SPDX-License-Identifier: Apache-2.0
"""transformers' preprocessor_config.json: how images are prepared, read and written."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from vit_jax.data import Crop, CropRule, Resize, TransformConfig
from vit_jax.errors import UserError, shown
from vit_jax.weights.published import table as published
from vit_jax.weights.published.table import Preprocessing

FILE = "preprocessor_config.json"
_RESAMPLE = {2: Resize.BILINEAR_ANTIALIAS, 3: Resize.BICUBIC}  # Pillow's numbers
# By the name of the processor, where the file does not say: what cuts the centre, and whose one
# number for a size is the short side's.
_CROPPING, _SHORT = ("CLIP", "Bit", "DeiT"), ("CLIP", "Bit")
_MOST = 2**16
# What else a processor may do to an image, and what is done here instead.
_UNKNOWN = {
    "do_flip_channel_order": "gives blue before red; images here have red first",
    "rescale_offset": "moves pixels after scaling; say it by image_mean",
    "offset": "moves pixels after scaling; say it by image_mean",
    "do_pad": "pads images, which is not done here",
    "do_thumbnail": "makes thumbnails, which is not done here",
    "do_align_long_axis": "turns images, which is not done here",
    "keep_aspect_ratio": "leaves images of any shape, which no model here takes",
    "do_grayscale": "takes colours away, which model.channels decides here",
}

_KEPT = ("do_pad", "keep_aspect_ratio")


def read(tree: Mapping[str, Any], source: str) -> Preprocessing:
    """Return the preprocessing of a preprocessor_config.json; `source` is its name in messages.

    Raises UserError: a value that cannot be, or a way to prepare images that is not here.
    """
    found = _Values(tree, source)
    # What the images of pixels' models become is their evaluations', and `inference.depth`'s.
    dense = _processor(found).startswith("Eomt")
    shaped = ("do_pad",) if dense else _KEPT if _processor(found).startswith("DPT") else ()
    for key, why in _UNKNOWN.items():
        if key not in shaped and found.tree.get(key) not in (None, False, 0):
            raise found.wrong(key, why)
    transform, size = _eomt(found) if dense else _transform(found)
    factor = (
        found.number("rescale_factor", 1 / 255) * 255 if found.flag("do_rescale", True) else 255
    )
    if not factor:
        raise found.wrong("rescale_factor", "must not be 0")
    mean, std = (0.0,), (1.0,)
    if found.flag("do_normalize", True):
        mean, std = found.numbers("image_mean"), found.numbers("image_std")
        if min(std) <= 0:
            raise found.wrong("image_std", "must be greater than 0")
        published.check_normalisation(
            [value / factor for value in mean],
            [value / factor for value in std],
            f"{source}: image_mean={shown(str(list(mean)))} and image_std={shown(str(list(std)))} "
            f"with a pixel of at most {255 if factor == 255 else factor:g}",
        )
    # Theirs are of pixel * factor / 255, ours of pixel / 255.
    mean, std = (tuple(value / factor for value in values) for values in (mean, std))
    return Preprocessing(mean, std, transform, size, source)


def _transform(found: "_Values") -> tuple[TransformConfig, tuple[int, int] | None]:
    """Return how images are sized, and the size that the model sees where they are."""
    name = _processor(found)
    if name.startswith("ConvNext"):
        return _convnext(found)
    if name.startswith("DPT") and not found.flag("do_resize", True):
        rule = {"crop_rule": CropRule.TORCH, "resize": found.resample(3)}
        return TransformConfig(crop=Crop.RESIZE, **rule), None
    crop = None
    if found.flag("do_center_crop", name.startswith(_CROPPING)):
        crop = found.size("crop_size", short=False)[1]
    if not found.flag("do_resize", True):
        raise found.wrong("do_resize", "leaves images of any size, which no model here takes")
    short, size = found.size("size", short=name.startswith(_SHORT))
    if crop is None and short:
        raise found.wrong("size", "leaves images of any shape; it needs do_center_crop")
    resize = found.resample(2)
    if crop is None or (crop == size and not short):
        return TransformConfig(crop=Crop.RESIZE, crop_rule=CropRule.TORCH, resize=resize), size
    ratios = {_ratio(cut, side) for cut, side in zip(crop, size, strict=True)}
    if len(ratios) > 1 or max(ratios) > 1:
        raise found.wrong("crop_size", f"must be the same part of both sides of {size}")
    kind = Crop.CENTER if short else Crop.SQUASH_CENTER
    ratio = ratios.pop()
    return TransformConfig(
        crop=kind, crop_ratio=ratio, crop_rule=CropRule.TORCH, resize=resize
    ), crop


def _processor(found: "_Values") -> str:
    return str(found.tree.get("image_processor_type") or found.tree.get("feature_extractor_type"))


def _eomt(found: "_Values") -> tuple[TransformConfig, tuple[int, int]]:
    """Return what EoMT's processor does to a square; its windows and its padding are evaluations'.

    One that splits an image cuts windows along its longer side, one that does not pads.
    """
    _, size = found.size("size", short=True)
    rule = CropRule.TORCH
    return TransformConfig(crop=Crop.RESIZE, crop_rule=rule, resize=found.resample(2)), size


def _convnext(found: "_Values") -> tuple[TransformConfig, tuple[int, int]]:
    """Return what ConvNextImageProcessor does: below 384 pixels it cuts the centre by crop_pct."""
    if not found.flag("do_resize", True):
        raise found.wrong("do_resize", "leaves images of any size, which no model here takes")
    _, size = found.size("size", short=True)
    if size[0] != size[1]:
        raise found.wrong("size", "must hold shortest_edge")
    resize = found.resample(3)
    rule, part = CropRule.TORCH, found.number("crop_pct", 224 / 256)
    if size[0] >= 384:
        return TransformConfig(crop=Crop.RESIZE, crop_rule=rule, resize=resize), size
    if not 0.01 <= part <= 1:
        raise found.wrong("crop_pct", "must be a number from 0.01 to 1")
    ratio = _ratio(size[0], int(size[0] / part))
    return TransformConfig(crop=Crop.CENTER, crop_ratio=ratio, crop_rule=rule, resize=resize), size


def _ratio(cut: int, side: int) -> float:
    """Return the crop_ratio by which an image is resized to `side` before `cut` of it is taken."""
    exact = cut / side
    return exact if math.floor(cut / exact) == side else cut / (side + 0.5)


class _Values:
    """Values of a file, each checked as it is asked for."""

    def __init__(self, tree: Mapping[str, Any], source: str) -> None:
        self.tree, self.source = tree, source

    def wrong(self, key: str, must: str) -> UserError:
        value = shown(repr(self.tree.get(key))[:80])
        return UserError(f"{self.source}: {key}={value} {must}")

    def flag(self, key: str, default: bool) -> bool:
        value = self.tree.get(key)
        if not isinstance(value, bool | None):
            raise self.wrong(key, "must be true or false")
        return default if value is None else value

    def number(self, key: str, default: float) -> float:
        value = self.tree.get(key, default)
        if type(value) not in (int, float) or not 0 <= value <= 1e6:
            raise self.wrong(key, "must be a number from 0 to 1e6")
        return float(value)

    def numbers(self, key: str) -> tuple[float, ...]:
        value = self.tree.get(key)
        values: list[Any] = value if isinstance(value, list) else [value]
        fit = all(type(n) in (int, float) and -1e6 <= n <= 1e6 for n in values)
        if not fit or not 1 <= len(values) <= 1024:
            raise self.wrong(key, "must be numbers, one a channel")
        return tuple(map(float, values))

    def resample(self, default: int) -> Resize:
        value = self.tree.get("resample", default)
        if type(value) is not int or value not in _RESAMPLE:
            raise self.wrong("resample", "must be 2 (bilinear) or 3 (bicubic)")
        return _RESAMPLE[value]

    def size(self, key: str, *, short: bool) -> tuple[bool, tuple[int, int]]:
        """Return whether a size is the short side's, and (height, width)."""
        value = self.tree.get(key)
        sides: list[Any] = [value, value]
        if isinstance(value, dict):
            short = "height" not in value
            sides = [
                value.get(n) for n in (("shortest_edge",) * 2 if short else ("height", "width"))
            ]
        if not all(type(n) is int and 1 <= n <= _MOST for n in sides):
            must = f"must hold height and width, or shortest_edge, from 1 to {_MOST:,}"
            raise self.wrong(key, must)
        return short, (sides[0], sides[1])


def written(
    mean: Sequence[float],
    std: Sequence[float],
    transform: TransformConfig,
    size: tuple[int, int],
    channels: int,
) -> dict[str, Any]:
    """Return preprocessor_config.json of how a model of (height, width) `size` wants its images.

    Raises UserError: transformers has no such way to crop.
    """
    height, width = size
    cubic = transform.resize in (Resize.BICUBIC, Resize.BICUBIC_NO_ANTIALIAS)
    resized, cut = (
        {"height": height, "width": width},
        transform.crop
        in (
            Crop.CENTER,
            Crop.SQUASH_CENTER,
        ),
    )
    processor = "ViTImageProcessor"
    if cut:
        sides = [math.floor(side / transform.crop_ratio) for side in size]
        resized = {"height": sides[0], "width": sides[1]}
        processor = "DeiTImageProcessor"
        if transform.crop is Crop.CENTER:
            if height != width:
                why = "transformers cuts the centre of a resized short side as a square alone"
                raise UserError(f"{why}, not as {height}x{width}")
            resized, processor = {"shortest_edge": sides[0]}, "BitImageProcessor"
    crop = {"do_center_crop": True, "crop_size": {"height": height, "width": width}} if cut else {}
    return {
        "image_processor_type": processor,
        "do_resize": True,
        "size": resized,
        "resample": 3 if cubic else 2,
        **crop,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(mean) * (channels if len(mean) == 1 else 1),
        "image_std": list(std) * (channels if len(std) == 1 else 1),
    }
