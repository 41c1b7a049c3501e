# SPDX-License-Identifier: Apache-2.0
"""What a model says of pixels, drawn over images."""

from collections.abc import Sequence
from pathlib import Path

from vit_jax.data.images import bands
from vit_jax.errors import shown
from vit_jax.figures.contact_sheet import Tile, render, wrapped, write
from vit_jax.figures.masks import as_rgb
from vit_jax.inference import dense, pixels
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
