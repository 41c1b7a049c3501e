# SPDX-License-Identifier: Apache-2.0
"""From encoded bytes to the model's input pixels, by `TransformConfig`: one array for each view."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float, Int

from vit_jax.data.augment import Policy, parse
from vit_jax.data.checks import check_colors, check_pad
from vit_jax.data.config import (
    AS_SHOWN,
    Crop,
    Reading,
    Resize,
    TransformConfig,
    cover_size,
    crop_ranges,
    has_affine,
    is_native,
    zoom_range,
)
from vit_jax.data.images import ops
from vit_jax.data.images.decode import decode
from vit_jax.data.images.header import check_size, jpeg_size, orientation
from vit_jax.data.order import ExampleRng, uniforms
from vit_jax.errors import UserError

_BOXES = {Crop.INCEPTION: ops.inception_box, Crop.RANDOM_RESIZED: ops.random_resized_box}
PLAIN_CROPS = (Crop.NONE, Crop.RESIZE, Crop.CENTER, Crop.SQUASH_CENTER)
# These average over all the pixels that an output pixel stands for; the others skip some.
_AVERAGING = (Resize.BILINEAR_ANTIALIAS, Resize.BICUBIC, Resize.AREA)


class Encoded(NamedTuple):
    """A JPEG that may be decoded in part."""

    data: bytes
    size: tuple[int, int]  # (height, width), upright if it is to be
    turn: int  # `image_header.orientation`


# Pixels (h, w, C), or what they may be decoded from.
Loaded: TypeAlias = np.ndarray | Encoded
Pixels: TypeAlias = ops.Image
# Whether an image is mirrored, and the matrix of `ops.warp`.
Motion: TypeAlias = tuple[bool, np.ndarray | None]


def evaluation_place(
    full: tuple[int, int], cfg: TransformConfig, size: tuple[int, int]
) -> ops.Geometry:
    """Return what `evaluation_view` does to an image of `full` (height, width)."""
    scaled, box = size, ops.Box(0, 0, *size)
    if cfg.crop is Crop.CENTER:
        scaled, box = ops.center_place(full, size, cfg.crop_ratio, cfg.crop_rule)
    elif cfg.crop is Crop.SQUASH_CENTER:
        scaled = cover_size(size, cfg.crop_ratio)
        box = ops.middle_box(scaled, size)
    return ops.Geometry(scaled, 0, box, size)


def evaluation_view(image: Pixels, cfg: TransformConfig, size: tuple[int, int]) -> ops.Resized:
    """Bring an image to `size` by a crop that draws nothing.

    Raises UserError: the crop is "none" and the image has another size.
    """
    if cfg.crop is Crop.CENTER:
        return ops.center_crop(image, size, cfg.crop_ratio, cfg.resize, cfg.crop_rule)
    if cfg.crop is Crop.SQUASH_CENTER:
        return ops.squash_center(image, size, cfg.crop_ratio, cfg.resize)
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

    Raises UserError: padding that the resized image is too small to mirror.
    """

    cfg: TransformConfig
    image_size: tuple[int, int]  # (height, width) of the output
    channels: int  # 1 or 3
    exact: bool  # decode JPEG accurately and at full size (evaluation) instead of fast (training)
    reading: Reading = AS_SHOWN
    # What `auto_augment` leaves where the image does not reach: one level, or one per channel.
    fill: tuple[int, ...] = (128,)
    # Decode a JPEG once, at full size, for several draws; else a box decodes what it needs of it.
    shared: bool = False

    def __post_init__(self) -> None:
        check_pad(self.cfg, self.image_size)
        object.__setattr__(self, "_policy", parse(self.cfg.auto_augment, self.fill))
        affine = has_affine(self.cfg)
        count = int(self.cfg.flip) + ops.AFFINE_UNIFORMS * affine
        object.__setattr__(self, "_affine", affine)
        object.__setattr__(self, "_num_uniforms", count)

    _policy: Policy | None = dataclasses.field(init=False, repr=False, compare=False)
    _affine: bool = dataclasses.field(init=False, repr=False, compare=False)
    _num_uniforms: int = dataclasses.field(init=False, repr=False, compare=False)  # flip, affine

    def __call__(self, data: bytes, rng: np.random.Generator) -> Pixels:
        """Decode and transform one image, drawing from `rng` in a fixed order.

        Raises ValueError: no image. Raises UserError: another size, where the crop is "none".
        """
        return self.vary(self.view(self.load(data)), rng)

    def variations(
        self, seed: int, positions: Int[np.ndarray, " n"], view: int = 0
    ) -> Iterator[Callable[[Any], Pixels]]:
        """Give, for each position of the stream, `vary` with the generator of (position, view).

        Each is valid until the next is requested, as they share one generator. Where flip and
        affine are all that is drawn, their numbers are computed for all positions at once, and are
        the same.
        """
        colors = self._policy is not None or self.cfg.color_jitter
        if self.cfg.crop in PLAIN_CROPS and not colors:
            motions = self._motions(uniforms(seed, positions, self._num_uniforms, view))
            return (functools.partial(self._move, motion=motion) for motion in motions)
        rng = ExampleRng(seed, view)
        return (functools.partial(self.vary, rng=rng(i)) for i in positions.tolist())

    def load(self, data: bytes, name: Callable[[], str] = str) -> Loaded:
        """Decode an image, unless how much of it is wanted is yet to be drawn: a JPEG's box.

        `name` is for a warning.

        Raises ValueError: the bytes are no image, or one of too many pixels.
        """
        partly = self.cfg.crop in _BOXES and not self.exact and not self.shared
        if partly and not self.reading.bands:
            size = jpeg_size(data)
            if size is not None:
                check_size(*size, times=4)  # whichever box is cut
                turn = orientation(data) if self.reading.upright else 1
                return Encoded(data, (size[1], size[0]) if turn > 4 else size, turn)
        return decode(data, self.channels, self.reading, exact=self.exact, name=name)

    def view(self, image: Loaded) -> Loaded:
        """Apply the deterministic steps of the crop.

        Raises UserError: the crop is "none" and the image has another size.
        """
        cfg = self.cfg
        if cfg.crop in _BOXES or cfg.crop is Crop.SCALE_JITTER or isinstance(image, Encoded):
            return image
        if cfg.crop is Crop.RANDOM:
            return ops.resize_cover(image, self.image_size, cfg.crop_ratio, cfg.resize)
        if cfg.crop is Crop.SQUASH_RANDOM:
            return ops.resize(image, cover_size(self.image_size, cfg.crop_ratio), cfg.resize)
        return evaluation_view(image, cfg, self.image_size)

    def vary(self, image: Loaded, rng: np.random.Generator) -> Pixels:
        """Apply the random operations to an image that `view` returned, which is not changed.

        Raises ValueError: the bytes are no image.
        """
        return self.drawn(image, rng)[0]

    def drawn(self, image: Loaded, rng: np.random.Generator) -> tuple[Pixels, ops.Geometry]:
        """Do what `vary` does, and return also what was drawn, for a target to follow.

        Where the crop draws nothing, what it did is `evaluation_place` but for flip and matrix.
        """
        cfg, size = self.cfg, self.image_size
        full = image.size if isinstance(image, Encoded) else (image.shape[0], image.shape[1])
        scaled, pad, box = full, 0, ops.Box(0, 0, *full)
        if cfg.crop in _BOXES or isinstance(image, Encoded):
            box = _BOXES[cfg.crop](rng, *full, *crop_ranges(cfg))
            image = self._cut(image, box)
        elif cfg.crop is Crop.SCALE_JITTER:
            low, high = zoom_range(cfg)
            scaled = ops.zoomed(full, size, rng.uniform(low, high), cfg.zoom_side)
            reach = max(scaled[0], size[0]), max(scaled[1], size[1])
            box = ops.random_place(rng, reach, size)
            image = ops.cut_filled(ops.resize(image, scaled, cfg.resize), box)
        elif cfg.crop not in PLAIN_CROPS:
            pad = cfg.pad
            box = ops.random_place(rng, (full[0] + 2 * pad, full[1] + 2 * pad), size)
            image = ops.cut(ops.mirrored(image, pad), box)
        motion: Motion = (False, None)
        if self._num_uniforms:
            (motion,) = self._motions(rng.random((1, self._num_uniforms)))
            image = self._move(image, motion)
        if self._policy is not None:
            image = self._policy(np.ascontiguousarray(image), rng)
        if cfg.color_jitter:
            from vit_jax.data.augment.pillow import jitter  # late: few runs need Pillow's colours

            image = jitter(np.ascontiguousarray(image), cfg.color_jitter, rng)
        return image, ops.Geometry(scaled, pad, box, size, *motion)

    def _motions(self, drawn: Float[np.ndarray, "n count"]) -> Iterator[Motion]:
        """Yield for each image whether to mirror it, and the matrix to warp it by."""
        cfg = self.cfg
        flips = drawn[:, 0] < 0.5 if cfg.flip else np.zeros(len(drawn), bool)
        if not self._affine:
            return zip(flips.tolist(), itertools.repeat(None))
        matrices = ops.affine_matrices(
            drawn[:, int(cfg.flip) :],
            *self.image_size,
            degrees=cfg.degrees,
            translate=cfg.translate,
            scale=cfg.scale,
            shear=cfg.shear,
        )
        return zip(flips.tolist(), matrices, strict=True)

    def _move(self, image: Pixels, motion: Motion) -> Pixels:
        flip, matrix = motion
        if flip:
            image = ops.flip(image)
        return image if matrix is None else ops.warp(np.ascontiguousarray(image), matrix)

    def _cut(self, image: Loaded, box: ops.Box) -> Pixels:
        """Cut a box and resize it, decoding what is needed for it."""
        cfg, size = self.cfg, self.image_size
        if not isinstance(image, Encoded):
            return ops.crop_resize(image, box, size, cfg.resize)
        full = image.size
        # An antialiased resize averages pixels anyway, so libjpeg may average 2x2 of them (or 4x4,
        # 8x8) in the inverse DCT, for less work, as long as it leaves twice what is needed: then
        # rounding the box moves it by a quarter of an output pixel at most. A resize that skips
        # pixels instead must skip the ones it always did.
        rows = math.ceil(2 * full[0] * size[0] / box.height)
        needed = (rows, math.ceil(2 * full[1] * size[1] / box.width))
        spare = all(2 * least <= side + 1 for least, side in zip(needed, full, strict=True))
        stored = (full[1], full[0]) if image.turn > 4 else full
        known = {"turn": image.turn, "size": stored}
        read = functools.partial(decode, image.data, self.channels, self.reading, **known)
        if cfg.resize not in _AVERAGING or not spare:
            pixels = read(exact=False, num_rows=box.top + box.height)
        else:
            pixels = read(exact=False, min_size=needed)
        if pixels.shape[1] != full[1]:  # halved, as also the largest are
            y, x = pixels.shape[0] / full[0], pixels.shape[1] / full[1]
            top, left = round(box.top * y), round(box.left * x)
            bottom, right = round((box.top + box.height) * y), round((box.left + box.width) * x)
            box = ops.Box(top, left, bottom - top, right - left)
        return ops.crop_resize(pixels, box, size, cfg.resize)


@dataclasses.dataclass(frozen=True, kw_only=True)
class View:
    """One array of images: [B, H, W, C] uint8, or [B, count, H, W, C] where `count` is above 1.

    Images that are arrays of bands have the dtype of `reading`.

    What each draws at random depends on (seed, position in the stream, number of the view) alone.
    With `like`, the name of an earlier view, it draws what that one draws: with equal crops, flips
    and warps it shows the same part of the image, in another size or without its colours.
    """

    transform: TransformConfig
    size: tuple[int, int]  # (H, W)
    channels: int  # 1 or 3; of bands any
    reading: Reading = AS_SHOWN
    count: int = 1  # how many times the transform draws
    like: str = ""
    patch: tuple[int, int] = (0, 0)  # of a model of native images (docs/naflex.md)

    def __post_init__(self) -> None:
        if self.reading.bands:
            check_colors(self.transform)
        if is_native(self.transform) and not all(self.patch):
            raise UserError(
                f"transform.crop={self.transform.crop} gives images of any shape, which this model "
                "does not take; set model.native=True, or the crop 'resize' or 'center'",
                field="transform.crop",
            )

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the array."""
        return np.dtype(self.reading.dtype.value)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example's images; of native ones that of the longest row of patches."""
        if is_native(self.transform):
            return (max(self.transform.lengths), math.prod(self.patch) * self.channels)
        several = () if self.count == 1 else (self.count,)
        return (*several, *self.size, self.channels)


def one_view(
    transform: TransformConfig,
    size: tuple[int, int],
    channels: int,
    reading: Reading = AS_SHOWN,
    patch: tuple[int, int] = (0, 0),
) -> dict[str, View]:
    """Return the views of a batch that holds each image once, as "image".

    Raises UserError: a native crop for a model that has no `patch` of native images.
    """
    return {
        "image": View(
            transform=transform, size=size, channels=channels, reading=reading, patch=patch
        )
    }


class Draw(NamedTuple):
    """One image of a view."""

    array: str  # name of the view
    index: int | None  # which of the view's images; None where it has one
    number: int  # of this draw among all of an example's; 0 is the first
    transform: Any  # a `Transform`, or of native images their own


def draws(views: Mapping[str, View], *, exact: bool, fill: tuple[int, ...] = (128,)) -> list[Draw]:
    """List every image that a batch holds of an example; see `Transform` for the arguments.

    Where they are several they share the decoded image.
    """
    shared = sum(view.count for view in views.values()) > 1
    found: list[Draw] = []
    for name, view in views.items():
        transform = Transform(
            cfg=view.transform,
            image_size=view.size,
            channels=view.channels,
            exact=exact,
            reading=view.reading,
            fill=fill,
            shared=shared,
        )
        number = len(found)
        if view.like:
            number = next(draw.number for draw in found if draw.array == view.like)
        for i, index in enumerate(range(view.count) if view.count > 1 else (None,)):
            found.append(Draw(name, index, number + i, transform))
    return found
