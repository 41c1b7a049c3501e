# SPDX-License-Identifier: Apache-2.0
"""Crops, resizing, flips and affine warps of one image on the host, in the image's own dtype.

Pure functions of the image and a NumPy generator. Boxes are (top, left, height, width) in pixels.
Images of other channels than pictures have, or of more bits, come out as their channels by
themselves do: libraries have different code for several.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import cv2
import numpy as np
from jaxtyping import Float, Float32, UInt8, UInt16

from vit_jax.data.config import CropRule, Resize, ZoomSide, cover_size

Image = UInt8[np.ndarray, "H W C"] | UInt16[np.ndarray, "H W C"] | Float32[np.ndarray, "H W C"]
Operation = Callable[[Image, np.random.Generator], Image]
Resized = (
    UInt8[np.ndarray, "H_out W_out C"]
    | UInt16[np.ndarray, "H_out W_out C"]
    | Float32[np.ndarray, "H_out W_out C"]
)
Range = tuple[float, ...]  # (low, high)

# How many numbers `affine_matrices` takes for each.
AFFINE_UNIFORMS = 5
_INCEPTION_TRIES = 100
_RANDOM_RESIZED_TRIES = 10
_OPENCV = {
    Resize.BILINEAR: cv2.INTER_LINEAR,
    Resize.BICUBIC_NO_ANTIALIAS: cv2.INTER_CUBIC,
    Resize.AREA: cv2.INTER_AREA,
}
_PILLOW = {Resize.BILINEAR_ANTIALIAS: "BILINEAR", Resize.BICUBIC: "BICUBIC"}


@runtime_checkable  # beartype checks annotations with isinstance
class Policy(Protocol):
    """An augmentation of one image of 1 or 3 channels; can be pickled."""

    def __call__(self, image: Image, rng: np.random.Generator) -> Image:
        """Return an image of the same shape; all randomness comes from `rng`."""
        ...

    def parts(self) -> dict[str, Operation]:
        """Return by name what the policy chooses from, each part always applied when called."""
        ...


class Box(NamedTuple):
    """A part of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


class Geometry(NamedTuple):
    """Where the pixels of one output image come from, in the order of the attributes.

    Attributes:
        scaled: (height, width) that the whole image is resized to.
        mirrored: pixels that are mirrored outwards at every edge then.
        box: what is cut of that; where it reaches beyond the bottom or the right there is nothing.
        size: (height, width) that the box is resized to.
        flip: whether it is mirrored left to right.
        matrix: what `warp` then moves it by, or None.
    """

    scaled: tuple[int, int]
    mirrored: int
    box: Box
    size: tuple[int, int]
    flip: bool = False
    matrix: np.ndarray | None = None


def center_box(height: int, width: int, size: tuple[int, int]) -> Box:
    """Cut `size` from the middle; of an odd margin the larger half is at the bottom and right."""
    return Box((height - size[0]) // 2, (width - size[1]) // 2, *size)


def inception_box(
    rng: np.random.Generator, height: int, width: int, area: Range, aspect: Range
) -> Box:
    """Draw a box as TensorFlow's sample_distorted_bounding_box does with no bounding boxes given.

    The aspect ratio is uniform, then the height is uniform over the whole numbers for which area
    and image allow it. Against torchvision's sampler this favours small boxes. After 100 tries
    the whole image is taken.
    """
    lowest, highest = area[0] * height * width, area[1] * height * width
    for _ in range(_INCEPTION_TRIES):
        ratio = rng.uniform(aspect[0], aspect[1])
        least = round(math.sqrt(lowest / ratio))
        most = min(round(math.sqrt(highest / ratio)), height)
        if round(most * ratio) > width:
            most = math.floor((width + 0.5 - 1e-7) / ratio)  # the last that rounds to <= width
        least = min(least, most)
        rows = least + int(rng.integers(most - least + 1))
        # Rounding may leave the range by one row; step back into it before giving up.
        if rows * round(rows * ratio) < lowest:
            rows += 1
        elif rows * round(rows * ratio) > highest:
            rows -= 1
        columns = round(rows * ratio)
        fits = 0 < rows <= height and 0 < columns <= width
        if fits and lowest <= rows * columns <= highest:
            # TensorFlow never draws the last offset, unless it is the only one.
            top = int(rng.integers(max(height - rows, 1)))
            left = int(rng.integers(max(width - columns, 1)))
            return Box(top, left, rows, columns)
    return Box(0, 0, height, width)


def random_resized_box(
    rng: np.random.Generator, height: int, width: int, area: Range, aspect: Range
) -> Box:
    """Draw a box as torchvision's RandomResizedCrop does: area uniform, aspect log-uniform.

    After 10 tries the largest central box within the range of aspects is taken.
    """
    for _ in range(_RANDOM_RESIZED_TRIES):
        pixels = rng.uniform(area[0], area[1]) * height * width
        ratio = math.exp(rng.uniform(math.log(aspect[0]), math.log(aspect[1])))
        rows, columns = round(math.sqrt(pixels / ratio)), round(math.sqrt(pixels * ratio))
        if 0 < rows <= height and 0 < columns <= width:
            top = int(rng.integers(height - rows + 1))
            left = int(rng.integers(width - columns + 1))
            return Box(top, left, rows, columns)
    ratio = min(max(width / height, aspect[0]), aspect[1])
    rows = height if width / height >= ratio else round(width / ratio)
    columns = width if width / height <= ratio else round(height * ratio)
    return center_box(height, width, (rows, columns))


def resize(image: Image, size: tuple[int, int], method: Resize) -> Resized:
    """Resize to (height, width); see `Resize` for which library does it and why."""
    channels = image.shape[2]
    if image.shape[:2] == tuple(size):
        return image
    if not _is_picture(image):
        return _by_channel(image, lambda one: _resize_one(one, size, method))
    if method in _PILLOW:
        from PIL import Image as PillowImage

        pixels = PillowImage.fromarray(image if channels == 3 else image[..., 0])
        kernel = PillowImage.Resampling[_PILLOW[method]]
        out = np.asarray(pixels.resize((size[1], size[0]), kernel))
    else:
        out = cv2.resize(image, (size[1], size[0]), interpolation=_OPENCV[method])
    return out.reshape(*size, channels)  # both libraries drop a channel axis of one


def _is_picture(image: np.ndarray) -> bool:
    return image.dtype == np.uint8 and image.shape[2] in (1, 3)


def _by_channel(image: np.ndarray, operation: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Apply an operation on [H, W] to every channel."""
    each = [operation(np.ascontiguousarray(one)) for one in np.moveaxis(image, 2, 0)]
    return np.stack(each, axis=2)


def _resize_one(channel: np.ndarray, size: tuple[int, int], method: Resize) -> np.ndarray:
    """Resize one channel of any dtype; of 16 bits as floats, rounded, half to even."""
    if method not in _PILLOW:
        return cv2.resize(channel, size[::-1], interpolation=_OPENCV[method])
    from PIL import Image as PillowImage

    deep = channel if channel.dtype == np.uint8 else channel.astype(np.float32)
    kernel = PillowImage.Resampling[_PILLOW[method]]
    found = np.asarray(PillowImage.fromarray(deep).resize((size[1], size[0]), kernel))
    if channel.dtype == np.uint16:  # cubic kernels overshoot
        found = np.rint(found).clip(0, np.iinfo(np.uint16).max)
    return found.astype(channel.dtype)


def crop_resize(image: Image, box: Box, size: tuple[int, int], method: Resize) -> Resized:
    """Cut a box and resize it to (height, width)."""
    return resize(cut(image, box), size, method)


def resize_cover(image: Image, size: tuple[int, int], ratio: float, method: Resize) -> Resized:
    """Resize so that (height, width) is `ratio` of what just covers it, keeping the aspect.

    For a square size the short side becomes floor(size / ratio): 256 for 224 at 0.875. Sizes are
    computed in float32, as big_vision's resize_small does: it decides where halves are rounded to.
    """
    return resize(image, covering((image.shape[0], image.shape[1]), size, ratio), method)


def covering(full: tuple[int, int], size: tuple[int, int], ratio: float) -> tuple[int, int]:
    """Return what `resize_cover` resizes an image of `full` (height, width) to."""
    sides = np.array(full, np.float32)
    cover = np.array(cover_size(size, ratio), np.float32)
    height, width = np.maximum(np.round(sides * (cover / sides).max()), cover).astype(int).tolist()
    return height, width


def center_crop(
    image: Image, size: tuple[int, int], ratio: float, method: Resize, rule: CropRule
) -> Resized:
    """Resize until (height, width) is `ratio` of what just covers it, and cut it from the centre.

    TORCH equals torchvision's Resize and CenterCrop, and timm's evaluation, pixel by pixel where
    `method` is Pillow's; TF equals big_vision's resize_small and central_crop in size and place.
    """
    scaled, box = center_place((image.shape[0], image.shape[1]), size, ratio, rule)
    return cut(resize(image, scaled, method), box)


def center_place(
    full: tuple[int, int], size: tuple[int, int], ratio: float, rule: CropRule
) -> tuple[tuple[int, int], Box]:
    """Return what `center_crop` resizes an image of `full` (height, width) to, and its box."""
    if rule is CropRule.TF:
        scaled = covering(full, size, ratio)
        return scaled, center_box(*scaled, size)
    (height, width), cover = full, cover_size(size, ratio)
    if cover[0] == cover[1]:  # torchvision's Resize of the short side
        side = cover[0]
        long = int(side * max(height, width) / min(height, width))
        scaled = (side, long) if height <= width else (long, side)
    else:  # timm's ResizeKeepRatio
        factor = min(height / cover[0], width / cover[1])
        scaled = (round(height / factor), round(width / factor))
    return scaled, middle_box(scaled, size)


def squash_center(image: Image, size: tuple[int, int], ratio: float, method: Resize) -> Resized:
    """Squash an image until (height, width) is `ratio` of it, and cut it as torchvision does."""
    cover = cover_size(size, ratio)
    return cut(resize(image, cover, method), middle_box(cover, size))


def middle_box(full: tuple[int, int], size: tuple[int, int]) -> Box:
    """Cut as torchvision's CenterCrop does: half of an odd margin goes to the even number."""
    top, left = (round((there - here) / 2) for there, here in zip(full, size, strict=True))
    return Box(top, left, *size)


def cut(image: Image, box: Box) -> Resized:
    """Cut a box out."""
    return image[box.top : box.top + box.height, box.left : box.left + box.width]


def random_cut(rng: np.random.Generator, image: Image, size: tuple[int, int], pad: int) -> Resized:
    """Cut `size` at a place uniform over all, after mirroring `pad` pixels at every edge.

    The outermost pixel is not repeated (NumPy's and torchvision's "reflect"); `pad` must be less
    than the image's sides.
    """
    box = random_place(rng, (image.shape[0] + 2 * pad, image.shape[1] + 2 * pad), size)
    return cut(mirrored(image, pad), box)


def random_place(rng: np.random.Generator, full: tuple[int, int], size: tuple[int, int]) -> Box:
    """Draw where `size` is cut, uniform over all places of a (height, width) that holds it."""
    top = int(rng.integers(full[0] - size[0] + 1))
    left = int(rng.integers(full[1] - size[1] + 1))
    return Box(top, left, *size)


def mirrored(image: Image, pad: int) -> Resized:
    """Mirror `pad` pixels outwards at every edge, as `random_cut` does."""
    if not pad:
        return image
    if not _is_picture(image):
        return np.pad(image, ((pad, pad), (pad, pad), (0, 0)), "reflect")
    border = cv2.copyMakeBorder(image, pad, pad, pad, pad, cv2.BORDER_REFLECT_101)
    return np.atleast_3d(border)


def zoomed(
    full: tuple[int, int], size: tuple[int, int], zoom: float, side: ZoomSide
) -> tuple[int, int]:
    """Return what an image of `full` (height, width) is resized to before SCALE_JITTER's cut.

    Its short or its long side becomes `zoom` times that of `size`, so that it covers it or lies
    within it at a zoom of 1; sides are rounded down, as torchvision's ScaleJitter has it.
    """
    ratios = [there / here for there, here in zip(size, full, strict=True)]
    factor = zoom * (max(ratios) if side is ZoomSide.SHORT else min(ratios))
    height, width = (max(1, math.floor(here * factor + 1e-6)) for here in full)
    return height, width


def cut_filled(image: Image, box: Box, fill: int = 0) -> Resized:
    """Cut a box that may reach beyond the bottom and the right, where it has the level `fill`."""
    found = cut(image, box)
    if found.shape[:2] == (box.height, box.width):
        return found
    out = np.full((box.height, box.width, image.shape[2]), fill, image.dtype)
    out[: found.shape[0], : found.shape[1]] = found
    return out


def flip(image: Image) -> Image:
    """Mirror left to right; OpenCV's copy takes a twentieth of NumPy's with a negative stride."""
    return cv2.flip(image, 1).reshape(image.shape)


def affine_matrices(
    drawn: Float[np.ndarray, "n 5"],
    height: int,
    width: int,
    *,
    degrees: float,
    translate: tuple[float, ...],
    scale: tuple[float, ...],
    shear: float,
) -> Float[np.ndarray, "n 2 3"]:
    """Make the matrices, from input to output (x, y), of torchvision's RandomAffine.

    About the centre: shear along x, then zoom and rotate, then shift. Differs from torchvision:
    the shift is not rounded to whole pixels, which at 8x8 would leave three places to be.

    `drawn` is uniform in [0, 1), for the angle, the shifts along x and y, zoom and shear;
    `degrees` and the rest are as `TransformConfig` has them.
    """
    angle, dx, dy, zoom, lean = (drawn * 2 - 1).T
    zoom = scale[0] + (zoom + 1) / 2 * (scale[1] - scale[0])
    # The C library's functions: NumPy's differ in the last bit from one processor to another.
    angles = [math.radians(value) for value in (angle * degrees).tolist()]
    leans = [math.radians(value) for value in (lean * shear).tolist()]
    cos, sin = zoom * np.array([list(map(math.cos, angles)), list(map(math.sin, angles))])
    lean = np.array(list(map(math.tan, leans)))
    a, b, c, d = cos, -cos * lean - sin, sin, -sin * lean + cos
    x, y = (width - 1) / 2, (height - 1) / 2
    shift_x = x + dx * translate[0] * width - a * x - b * y
    shift_y = y + dy * translate[1] * height - c * x - d * y
    return np.stack([a, b, shift_x, c, d, shift_y], axis=1).reshape(-1, 2, 3)


def warp(
    image: Image, matrix: Float[np.ndarray, "2 3"], *, fill: int = 0, nearest: bool = False
) -> Image:
    """Move pixels by a matrix from input to output (x, y); outside the image is `fill`."""
    height, width, channels = image.shape
    if channels > 1 and not _is_picture(image):
        alone = functools.partial(warp, matrix=matrix, fill=fill, nearest=nearest)
        return _by_channel(image, lambda one: alone(one[..., None])[..., 0])
    out = cv2.warpAffine(
        image,
        matrix,
        (width, height),
        flags=cv2.INTER_NEAREST if nearest else cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_CONSTANT,
        borderValue=(fill,) * channels,
    )
    return out.reshape(height, width, channels)
