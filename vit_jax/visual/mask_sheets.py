# SPDX-License-Identifier: Apache-2.0
"""Images beside their masks, true and predicted, one colour a class."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt8

from vit_jax.data.sources.dense.masks import IGNORED
from vit_jax.figures.contact_sheet import Tile, render, wrapped
from vit_jax.figures.masks import palette
from vit_jax.inference.dense_probing import Shown


def draw(
    shown: Sequence[Shown], names: Sequence[str], captions: Sequence[str], title: str
) -> bytes:
    """Draw a row for each image: the image, its mask, what was predicted; below, the classes.

    Args:
        shown: the images; they have the same methods.
        names: of the classes.
        captions: of the predictions, such as their scores.
        title: of the sheet.

    Returns:
        A PNG.
    """
    colours = palette(len(names))
    rows = []
    for each in shown:
        masks = [Tile(colours[each.truth], "truth")]
        masks += [
            Tile(colours[mask], caption)
            for mask, caption in zip(each.predicted.values(), captions, strict=True)
        ]
        image = each.image
        image = np.repeat(image, 3, axis=-1) if image.shape[-1] == 1 else image
        rows.append([Tile(image, "image"), *masks])
    seen = np.unique(np.concatenate([mask.ravel() for x in shown for mask in _masks(x)]))
    swatches = [
        Tile(np.full((8, 24, 3), colours[k], np.uint8), names[int(k)]) for k in seen if k != IGNORED
    ]
    note = "; white: no class" if IGNORED in seen else ""
    return render([*rows, *wrapped(swatches, len(rows[0]))], f"{title}{note}")


def _masks(shown: Shown) -> list[UInt8[np.ndarray, "H W"]]:
    return [shown.truth, *shown.predicted.values()]
