# SPDX-License-Identifier: Apache-2.0
"""What a model says of pixels, drawn over images, and masks beside those that were predicted."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from vit_jax.data.images import bands
from vit_jax.data.sources.dense.masks import IGNORED
from vit_jax.errors import shown
from vit_jax.figures.contact_sheet import Tile, render, wrapped, write
from vit_jax.figures.masks import as_rgb, palette
from vit_jax.inference import dense, pixels
from vit_jax.inference.dense_probing import Shown
from vit_jax.inference.images import read_image
from vit_jax.inference.pixels import PixelSettings, PixelTask
from vit_jax.inference.trained import Trained

_MOST = 12  # images of a sheet
_NAMED = 4  # of what is found in an image


def write_sheet(
    trained: Trained, images: Sequence[str], out: Path, task: PixelTask | None = None
) -> tuple[list[str], list[str]]:
    """Write pixels.png, each of the first images beside what is found in it.

    Returns the picture's path, nothing where all images are broken; and what is wrong with those.

    Raises UserError: the model does not say what is asked.
    """
    task = pixels.task_of(trained, task)
    found = pixels.overlays(dense.read_weights(trained), images[:_MOST], PixelSettings(task=task))
    tiles, rules = [], trained.reading
    for answer, drawn in found:
        if drawn is not None:
            image = read_image(answer.file, trained.channels, rules)
            image = bands.picture(image, rules.bands_shown) if rules.bands else image
            tiles.append(Tile(as_rgb(image), shown(Path(answer.file).name)))
            tiles.append(Tile(drawn, answer.told(task, _NAMED)))
    rest = f", the first {_MOST} of {len(images):,} images" if len(images) > _MOST else ""
    title = f"{trained.name}: {task}{rest}"
    sheet = [write(out, "pixels.png", render(wrapped(tiles, 4), title))] if tiles else []
    return sheet, [answer.error for answer, _ in found if answer.error]


def draw_masks(
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
