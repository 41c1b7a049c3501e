# SPDX-License-Identifier: Apache-2.0
"""What the numbers of an array of images mean: pixels by their dtype, or normalised, by range."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from vit_jax.data import normalize
from vit_jax.errors import UserError

_SLACK = 0.25  # of the normalised range, on either side: cubic resizing overshoots
_AS_PIXELS = "give uint8 pixels, which are normalised as the model asks for"
_ANY_IMAGE = "`preprocess` brings one of any kind to size, `predict` takes files and any size"


def as_input(
    images: Any,
    shape: tuple[int, int, int],
    mean: Sequence[float],
    std: Sequence[float],
    *,
    normalised: bool = False,
    dtype: str = "uint8",
) -> Array:
    """Return a batch as uint8 pixels or as normalised floats; what is neither is refused.

    Integers are pixels, whatever their width, within 0 to 255. Floats are normalised: they must lie
    in the range that (pixel / 255 - mean) / std has, and look neither like 0 to 1 nor like dark
    pixels. While a function is traced there are no values to look at, and the dtype alone decides.

    Args:
        images: (B, H, W, C), an array of any library that NumPy or JAX takes in.
        shape: (H, W, C) of the model.
        mean, std: of the model, one value or C.
        normalised: take floats as they are.
        dtype: of the pixels of a model of bands (docs/channels.md): uint16, of 0 to 65535; or
            float32, in the unit of its data, which are normalised here.

    Raises UserError: no array, another shape or dtype, values that are no pixels and not
        normalised, integers that are said to be.
    """
    want = ", ".join(map(str, shape))
    if not isinstance(images, jax.Array):
        try:
            images = as_numpy(images)
        except UserError as error:
            raise UserError(f"{error}: the model takes (B, {want}); {_ANY_IMAGE}") from None
    found = tuple(images.shape)
    if found[1:] != shape or images.ndim != 4:
        hint = ""
        if found == shape:
            hint = "; one image is images[None]"
        elif found[1:] == (shape[2], *shape[:2]):
            hint = "; channels come last here: transpose by (0, 2, 3, 1)"
        raise UserError(f"images of shape {found}: the model takes (B, {want}){hint}; {_ANY_IMAGE}")
    traced = isinstance(images, Tracer)
    if dtype == "float32" and not normalised:
        return normalize(jnp.asarray(images, jnp.float32), tuple(mean), tuple(std))
    if jnp.issubdtype(images.dtype, jnp.floating):
        images = images if isinstance(images, jax.Array) else _float(images)
        if not (normalised or traced or not images.size):
            _check_normalised(images, mean, std)
        return images
    pixels = images if images.dtype == jnp.dtype(dtype) else _as_pixels(images, traced, dtype)
    if normalised:
        raise UserError(
            f"normalised=True, but images of {images.dtype} are pixels; leave it out: the model "
            "normalises them"
        )
    return jnp.asarray(pixels)


def as_numpy(images: Any) -> np.ndarray:
    """Return any array as NumPy's; raises UserError: it is none."""
    if hasattr(images, "detach"):  # a tensor of torch, which may want a gradient or lie elsewhere
        images = images.detach().cpu()
    try:
        found = np.asarray(images)
    except Exception as error:  # other libraries' objects may raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{type(images).__name__} is no array of pixels ({reason})") from None
    if found.dtype != bool and not jnp.issubdtype(found.dtype, jnp.number):
        raise UserError(f"{type(images).__name__} is no array of pixels")
    return found


def as_pixels(images: np.ndarray) -> np.ndarray:
    """Return an array of integers as uint8; raises UserError: another dtype, or no values of it."""
    kind = "uint8"
    return images if images.dtype == kind else np.asarray(_as_pixels(images, False, kind))


def _float(images: np.ndarray) -> Array:
    """Bring NumPy's floats to what JAX computes with; float64 becomes float32 without a word."""
    return jnp.asarray(images.astype(np.float32) if images.dtype == np.float64 else images)


def _as_pixels(images: Any, traced: bool, dtype: str) -> Any:
    """Return integers as uint8, or as uint16."""
    kind = images.dtype
    if not jnp.issubdtype(kind, jnp.integer) or kind == jnp.int8:
        raise UserError(f"images of {kind} have no pixels; {_AS_PIXELS}")
    if traced:
        raise UserError(f"images of {kind}, inside a traced function; {_AS_PIXELS}")
    if images.size:
        low, high = int(images.min()), int(images.max())
        white = np.iinfo(dtype).max
        if low < 0 or high > white:
            is_off = f"images of {kind} from {low} to {high}, not 0 to {white}"
            raise UserError(f"{is_off}; {_AS_PIXELS}")
    return images.astype(dtype)


def _check_normalised(images: Array, mean: Sequence[float], std: Sequence[float]) -> None:
    low, high = float(images.min()), float(images.max())
    centre, spread = np.asarray(mean), np.asarray(std)
    black, white = float(np.min(-centre / spread)), float(np.max((1 - centre) / spread))
    slack = _SLACK * (white - black)
    within = black - slack <= low and high <= white + slack
    # An image of a single value, such as zeros, tells nothing.
    unit = black < 0 <= low < high <= 1
    # Dark pixels of 0 to 255: a normalised image is of whole numbers by no chance.
    dark = black < 0 <= low < high and bool((images == jnp.round(images)).all())
    if within and not (unit or dark):
        return
    why = "look like 0 to 1" if within and unit else "are not normalised"
    raise UserError(
        f"floats from {low:.4g} to {high:.4g} {why}; normalised ones lie from {black:.3g} to "
        f"{white:.3g}: {_AS_PIXELS} (`preprocess` makes them), or normalised=True if these are"
    )
