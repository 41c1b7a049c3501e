# SPDX-License-Identifier: Apache-2.0
"""What a folder of one's own holds, by the names of its files: classes, masks, boxes, depth."""

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from vit_jax.data.images.header import SUFFIXES
from vit_jax.data.names import KNOWN_SPLITS, alike, is_hidden
from vit_jax.data.targets import TargetKind
from vit_jax.errors import UserError, shown
from vit_jax.storage import remote

# Names that the folder of the targets may have, and the ends of their files.
MASKS, MASK_SUFFIXES = ("masks", "annotations"), (".png", ".tif", ".tiff", ".bmp", ".npy")
DEPTHS, DEPTH_SUFFIXES = ("depth", "depths"), (".png", ".tif", ".tiff", ".npy")
YOLO_FILES = ("data.yaml", "data.yml", "dataset.yaml")
COCO_KEYS = ("images", "annotations", "categories")

_MOST = 64  # names of a folder that are looked at
_HEAD = 1 << 16  # bytes of a JSON file


class TargetLayout(NamedTuple):
    """What a dataset is.

    Attributes:
        name: its full name, "masks:photos".
        kind: of targets; NONE for images of classes, or of whatever else its source reads.
        what: the layout in words, "images and masks".
    """

    name: str
    kind: TargetKind
    what: str


WORDS = {
    "masks": (TargetKind.PIXELS, "images and masks"),
    "depth": (TargetKind.DEPTH, "images and depth maps"),
    "coco": (TargetKind.SEGMENTS, "images and COCO's JSON"),
    "voc": (TargetKind.SEGMENTS, "images and Pascal VOC's XML"),
    "yolo": (TargetKind.SEGMENTS, "images and YOLO's text files"),
}


def kind_of(path: str) -> str:
    """Return the kind of the targets in a folder, "masks" or so; "" of images alone or of classes.

    Raises UserError: there are two.
    """
    root = Path(os.path.expanduser(path))
    if remote.is_remote(path) or not root.is_dir():
        return ""
    found = _layouts(root)
    if len(found) > 1:
        listed = " and ".join(f"{WORDS[each][1]} ({each}:{path})" for each in found)
        raise UserError(
            f"{shown(path)} holds {listed}; name the one that is meant, {found[0]}:{path}"
        )
    return "".join(found)


def _layouts(root: Path) -> list[str]:
    """Return the kinds of layouts in a folder."""
    tops = _folders(root)
    # The folders that may hold those of images and targets: the root, or each split's.
    places = [root, *(root / name for name in tops if alike(name) in KNOWN_SPLITS)]
    found = []
    if any(_has(place, MASKS, MASK_SUFFIXES) for place in places):
        found.append("masks")
    if any(_has(place, DEPTHS, DEPTH_SUFFIXES) for place in places):
        found.append("depth")
    if any(_has_json(place) for place in (root, root / "annotations", *places[1:])):
        found.append("coco")
    if any(_has(place, ("Annotations",), (".xml",)) for place in places) or any(
        _beside(place, ".xml") for place in places
    ):
        found.append("voc")
    if any((root / name).is_file() for name in YOLO_FILES) or any(
        _has(place, ("labels",), (".txt",)) for place in places
    ):
        found.append("yolo")
    return found


def _has(place: Path, names: Sequence[str], suffixes: Sequence[str]) -> bool:
    """Return whether a folder of images, and one of the names with files of a suffix, are there."""
    there = {*_folders(place)}
    if not there & {"images", "JPEGImages"}:
        return False
    return any(_some(place / name, suffixes) for name in names if name in there)


def _some(folder: Path, suffixes: Sequence[str], depth_left: int = 1) -> bool:
    """Return whether a folder, or one of those in it, has a file of a suffix."""
    if any(name.lower().endswith(tuple(suffixes)) for name in _files(folder)):
        return True
    return depth_left > 0 and any(_some(folder / f, suffixes, 0) for f in _folders(folder)[:_MOST])


def _beside(place: Path, suffix: str) -> bool:
    """Return whether files of a suffix lie beside images of the same names."""
    names = _files(place)
    stems = {os.path.splitext(name)[0] for name in names if name.lower().endswith(SUFFIXES)}
    return any(os.path.splitext(n)[0] in stems for n in names if n.lower().endswith(suffix))


def _has_json(place: Path) -> bool:
    """Return whether a folder has JSON that begins as COCO's does."""
    for name in _files(place):
        if name.lower().endswith(".json"):
            head = remote.read_range(str(place / name), 0, _HEAD)
            if sum(f'"{key}"'.encode() in head for key in COCO_KEYS) and b'"id"' in head:
                return True
    return False


def _folders(place: Path) -> list[str]:
    if not place.is_dir():
        return []
    with os.scandir(place) as entries:
        return sorted(e.name for e in entries if e.is_dir() and not is_hidden(e.name))


def _files(place: Path) -> list[str]:
    """Return the names of some files in a folder."""
    if not place.is_dir():
        return []
    with os.scandir(place) as entries:
        names = (e.name for e in entries if not is_hidden(e.name) and e.is_file())
        return sorted(itertools.islice(names, _MOST))
