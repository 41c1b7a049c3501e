# SPDX-License-Identifier: Apache-2.0
"""One example's way from encoded bytes to the model's input pixels, as `TransformConfig` says."""

import dataclasses
import math

import numpy as np
from jaxtyping import UInt8

from vit_jax.data import ops
from vit_jax.data.augment import Policy, parse
from vit_jax.data.augment.color import jitter
from vit_jax.data.config import (
    Crop,
    Resize,
    TransformConfig,
    check_pad,
    cover_size,
    crop_ranges,
    has_affine,
)
from vit_jax.data.decode import decode, jpeg_size
from vit_jax.errors import UserError

_BOXES = {Crop.INCEPTION: ops.inception_box, Crop.RANDOM_RESIZED: ops.random_resized_box}
# These average over all the pixels that an output pixel stands for; the others skip some.
_AVERAGING = (Resize.BILINEAR_ANTIALIAS, Resize.BICUBIC, Resize.AREA)


def evaluation_view(
    image: UInt8[np.ndarray, "H W C"], cfg: TransformConfig, size: tuple[int, int]
) -> UInt8[np.ndarray, "P Q C"]:
    """Bring an image to `size` by a crop that draws nothing: center, resize or none.

    Raises:
        UserError: the crop is "none" and the image has another size.
    """
    if cfg.crop is Crop.CENTER:
        image = ops.resize_cover(image, size, cfg.crop_ratio, cfg.resize)
        return ops.cut(image, ops.center_box(image.shape[0], image.shape[1], size))
    if cfg.crop is Crop.RESIZE:
        return ops.resize(image, size, cfg.resize)
    if image.shape[:2] != size:
        raise UserError(
            "the image is {}x{}, the model takes {}x{}; ".format(*image.shape[:2], *size)
            + "choose transform.crop 'resize' or 'center'"
        )
    return image


@dataclasses.dataclass(frozen=True, kw_only=True)
class Transform:
    """A transform made ready to run; can be pickled.

    Attributes:
        cfg: what to do.
        image_size: (height, width) of the output.
        channels: 1 or 3.
        exact: decode JPEG accurately and at full size (evaluation) instead of fast (training).
        fill: what `auto_augment` leaves where the image does not reach; one level, or one per
            channel.

    Raises:
        UserError: padding that the resized image is too small to mirror.
    """

    cfg: TransformConfig
    image_size: tuple[int, int]
    channels: int
    exact: bool
    fill: tuple[int, ...] = (128,)

    def __post_init__(self) -> None:
        check_pad(self.cfg, self.image_size)
        object.__setattr__(self, "_policy", parse(self.cfg.auto_augment, self.fill))
        object.__setattr__(self, "_affine", has_affine(self.cfg))

    _policy: Policy | None = dataclasses.field(init=False, repr=False, compare=False)
    _affine: bool = dataclasses.field(init=False, repr=False, compare=False)

    def __call__(self, data: bytes, rng: np.random.Generator) -> UInt8[np.ndarray, "H W C"]:
        """Decode and transform one image, drawing from `rng` in a fixed order.

        Raises:
            ValueError: the bytes are no image.
            UserError: the crop is "none" and the image has another size.
        """
        cfg = self.cfg
        image = self._cropped(data, rng)
        if cfg.flip and rng.random() < 0.5:
            image = image[:, ::-1]
        if self._affine:
            matrix = ops.affine_matrix(
                rng,
                *self.image_size,
                degrees=cfg.degrees,
                translate=cfg.translate,
                scale=cfg.scale,
                shear=cfg.shear,
            )
            image = ops.warp(np.ascontiguousarray(image), matrix)
        if self._policy is not None:
            image = self._policy(np.ascontiguousarray(image), rng)
        if cfg.color_jitter:
            image = jitter(np.ascontiguousarray(image), cfg.color_jitter, rng)
        return image

    def _cropped(self, data: bytes, rng: np.random.Generator) -> UInt8[np.ndarray, "H W C"]:
        cfg, size = self.cfg, self.image_size
        if cfg.crop in _BOXES:
            return self._random_box(data, rng)
        image = decode(data, self.channels, exact=self.exact)
        if cfg.crop is Crop.RANDOM:
            image = ops.resize_cover(image, size, cfg.crop_ratio, cfg.resize)
            return ops.random_cut(rng, image, size, cfg.pad)
        if cfg.crop is Crop.SQUASH_RANDOM:
            image = ops.resize(image, cover_size(size, cfg.crop_ratio), cfg.resize)
            return ops.random_cut(rng, image, size, pad=0)
        return evaluation_view(image, cfg, size)

    def _random_box(self, data: bytes, rng: np.random.Generator) -> UInt8[np.ndarray, "H W C"]:
        cfg, size = self.cfg, self.image_size
        area, aspect = crop_ranges(cfg)
        known = jpeg_size(data) if not self.exact and cfg.resize in _AVERAGING else None
        if known is None:
            image = decode(data, self.channels, exact=self.exact)
            box = _BOXES[cfg.crop](rng, image.shape[0], image.shape[1], area, aspect)
            return ops.crop_resize(image, box, size, cfg.resize)
        # An antialiased resize averages pixels anyway, so libjpeg may average 2x2 of them (or 4x4,
        # 8x8) in the inverse DCT, for less work, as long as it leaves twice what is needed: then
        # rounding the box moves it by a quarter of an output pixel at most. A resize that skips
        # pixels instead must skip the ones it always did.
        box = _BOXES[cfg.crop](rng, *known, area, aspect)
        needed = (
            math.ceil(2 * known[0] * size[0] / box.height),
            math.ceil(2 * known[1] * size[1] / box.width),
        )
        image = decode(data, self.channels, exact=False, min_size=needed)
        if image.shape[:2] != known:
            y, x = image.shape[0] / known[0], image.shape[1] / known[1]
            top, left = round(box.top * y), round(box.left * x)
            bottom, right = round((box.top + box.height) * y), round((box.left + box.width) * x)
            box = ops.Box(top, left, bottom - top, right - left)
        return ops.crop_resize(image, box, size, cfg.resize)
