# SPDX-License-Identifier: Apache-2.0
"""Images beside masks, the class of every pixel: DIR/images/<split>/x.jpg, DIR/masks/<split>/x.png.

A mask is a PNG of one channel, or of a palette, whose numbers are class ids; 255 is no class.
"""

import dataclasses
import functools
import logging
import os
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from vit_jax.data.config import AS_SHOWN, Reading
from vit_jax.data.images import header as image_header
from vit_jax.data.images.decode import decode
from vit_jax.data.images.opened import turned
from vit_jax.data.names import read_class_names, with_known_names
from vit_jax.data.sources.base import absolute_slices
from vit_jax.errors import UserError, shown
from vit_jax.storage import foreign

_log = logging.getLogger(__name__)

IGNORED = 255  # the id of pixels that neither teach nor count
CLASSES = "classes.txt"
_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
_LAYOUT = "images/<split>/NAME.{jpg,jpeg,png,webp} and masks/<split>/NAME.png"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedImages:
    """The images of a split and their masks.

    Attributes:
        name: for messages.
        paths: of the images.
        masks: of their masks.
        class_names: from classes.txt; () where there is none.
    """

    name: str
    paths: tuple[Path, ...]
    masks: tuple[Path, ...]
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def read(
        self, index: int, channels: int, reading: Reading = AS_SHOWN
    ) -> tuple[UInt8[np.ndarray, "H W C"], UInt8[np.ndarray, "H W"]]:
        """Decode an image to grey (`channels` 1) or RGB (3), and its mask.

        The mask is turned as its image is, where the file of the image says how; one of the upright
        image's shape is taken as it is, as programs write it that show images upright.

        Raises UserError: a file that cannot be read, a mask of another size or kind.
        """
        image_file, mask_file = self.paths[index], self.masks[index]
        try:
            data = image_header.read_file(image_file)
            turn = image_header.orientation(data) if reading.upright else 1
            image = decode(data, channels, reading, turn=turn, name=lambda: str(image_file))
        except (ValueError, OSError) as error:
            raise UserError(f"{shown(str(image_file))}: {error}") from error
        mask = read_mask(mask_file)
        if turn > 4 and mask.shape != image.shape[:2]:
            mask = turned(mask[..., None], turn)[..., 0]
        elif turn > 1:
            _say_upright(image_file.parent)
        if image.shape[:2] != mask.shape:
            sizes = "{}x{}, its mask {}x{}".format(*image.shape[:2], *mask.shape)
            raise UserError(f"{shown(str(image_file))} is {sizes}")
        return image, mask


@functools.cache  # once
def _say_upright(folder: Path) -> None:
    what = "images that are stored turned (EXIF), with masks of their upright shape"
    _log.warning("%s has %s: these are taken as upright", shown(str(folder)), what)


def read_mask(file: Path) -> UInt8[np.ndarray, "H W"]:
    """Read the class ids of a mask.

    Raises UserError: a file that cannot be read, or one that holds colours.
    """
    try:
        with image_header.open_image(image_header.read_file(file)) as image:
            image_header.check_size(image.height, image.width)
            if image.mode not in ("L", "P", "1"):
                raise ValueError("holds colours, and no class ids of one channel or a palette")
            return np.asarray(image, np.uint8)
    except (ValueError, OSError, SyntaxError) as error:
        raise UserError(f"{shown(str(file))}: {error}") from error


def open_masks(path: str, split: str) -> MaskedImages:
    """Open one split, with slices such as train[:10%]; images come in the order of their names.

    Raises UserError: another layout, no such split, an image without a mask.
    """
    root = Path(os.path.expanduser(path))
    where = shown(str(root) if root.is_absolute() else f"./{root}")
    folders = root / "images", root / "masks"
    if not path or not all(folder.is_dir() for folder in folders):
        raise UserError(f"{where} holds no folders images and masks; expected {where}/{_LAYOUT}")
    found = {each.name: _images(each) for each in sorted(folders[0].iterdir()) if each.is_dir()}
    found = {name: paths for name, paths in found.items() if paths}
    if not found:
        raise UserError(f"{where}/images has no split with images; expected {where}/{_LAYOUT}")
    sizes = {name: len(paths) for name, paths in found.items()}
    split = with_known_names(split, list(sizes))
    slices = absolute_slices(split, sizes, where)
    paths = [path for name, start, stop in slices for path in found[name][start:stop]]
    masks = [(folders[1] / path.relative_to(folders[0])).with_suffix(".png") for path in paths]
    for image, mask in zip(paths, masks, strict=True):
        if not mask.is_file():
            raise UserError(f"{shown(str(image))} has no mask {shown(str(mask))}")
    names, file = (), root / CLASSES
    if file.is_file():
        try:
            names = read_class_names(foreign.read(file).decode())
        except ValueError as error:
            raise UserError(f"{shown(str(file))}: {error}") from None
    return MaskedImages(
        name=f"{where}[{split}]", paths=tuple(paths), masks=tuple(masks), class_names=names
    )


def _images(folder: Path) -> list[Path]:
    files = (path for path in folder.rglob("*") if not path.name.startswith("."))
    return sorted(path for path in files if path.suffix.lower() in _SUFFIXES)
