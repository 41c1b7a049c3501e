# SPDX-License-Identifier: Apache-2.0
"""COCO's panoptic JSON: a PNG of each image, whose colours are the ids of its segments.

The id of a segment is R + 256 G + 65536 B; 0 is no segment. The format, section 4:
https://cocodataset.org/#format-data
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int32

from vit_jax.data.images import header
from vit_jax.data.images.decode import decode
from vit_jax.data.images.target_ops import painted
from vit_jax.data.sources.dense.annotated import Checked, counted
from vit_jax.data.sources.dense.facts import measured
from vit_jax.data.sources.dense.raster import box_of
from vit_jax.data.sources.dense.segments import EMPTY
from vit_jax.data.sources.dense.shape import Shape
from vit_jax.data.sources.sharded import shards
from vit_jax.data.targets import PixelTarget, TargetKind
from vit_jax.errors import UserError, shown
from vit_jax.storage import foreign, remote

UNLISTED = "with pixels of segments that the JSON does not list"
OTHER_SIZE = "with a mask of another size"
UNREADABLE = "with a mask that cannot be read"
LACKING = "without a mask"


def is_panoptic(tree: Mapping[str, Any]) -> bool:
    """Return whether a COCO JSON is a panoptic one."""
    return any("segments_info" in each for each in tree["annotations"][:1])


def id_of(value: Any) -> int | str | None:
    """Return an id of an image or a category, None for what can be none, such as a list."""
    return value if isinstance(value, int | str) else None


def of_no_image(place: str, count: int) -> list[str]:
    """Return a note on so many annotations in a file that are of no image; of 0 none."""
    are = f"{count:,} annotations are" if count > 1 else "1 annotation is"
    name = shown(shards.base_name(place))
    return [f"{name}: {are} of no image that is used"] if count else []


class PanopticFiles:
    """The segments of images with a PNG each; see `Annotations`.

    Attributes:
        names: of the images, for messages.
    """

    def __init__(self, rows: Sequence[tuple[str, list[tuple[int, int, bool]]]]) -> None:
        """Take each image's PNG, and (id, class, crowd) of its segments."""
        texts = [json.dumps(each).encode() for each in rows]
        self._data, self._ends = b"".join(texts), np.cumsum([0, *map(len, texts)])
        self.classes: tuple[str, ...] = ()
        self.things: tuple[bool, ...] = ()
        self.names: Sequence[str] = ()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "names": ()}

    def _row(self, row: int) -> tuple[str, list[tuple[int, int, bool]]]:
        place, segments = json.loads(self._data[self._ends[row] : self._ends[row + 1]])
        return place, [(number, k, crowd) for number, k, crowd in segments]

    def check(self, rows: Sequence[int], shapes: Mapping[int, Shape], kind: TargetKind) -> Checked:
        """See `Annotations`."""
        del kind
        bad: dict[int, str] = {}
        told: list[tuple[str, str]] = []
        listed = {row: self._row(row) for row in rows}
        bad |= {row: LACKING for row, (place, _) in listed.items() if not place}
        near = [row for row in rows if row in shapes and row not in bad]
        places = [listed[row][0] for row in near]
        name = f"the segments of {os.path.dirname(places[0])}" if places else ""
        for row, text in zip(near, measured(places, name, facts), strict=True):
            size, _, values = text.partition(" ")
            fit = {"{}x{}".format(*s) for s in (shapes[row].size, shapes[row].stored)}
            ids = {number for number, _, _ in listed[row][1]}
            if text.startswith("!"):
                bad[row] = LACKING if text == "!gone" else UNREADABLE
            elif size not in fit:
                bad[row] = OTHER_SIZE
            elif {*map(int, values.split())} - ids - {0}:
                bad[row] = UNLISTED
            else:
                lacking = len(ids - {*map(int, values.split())})
                told += [(EMPTY, shown(self.names[row]))] * lacking
        return Checked(bad, counted(told, "segment"))

    def target(self, row: int, kind: TargetKind, shape: Shape) -> PixelTarget:
        """See `Annotations`."""
        del shape
        place, segments = self._row(row)
        found = ids_in(remote.read(place) if remote.is_remote(place) else header.read_file(place))
        height, width = found.shape
        numbers = {number for number, _, _ in segments} | {0}
        if strange := {*np.unique(found).tolist()} - numbers:
            raise ValueError(
                f"{shown(place)} has pixels of segment {min(strange)}, not in its JSON"
            )
        masks = [found == number for number, _, _ in segments]
        kept = [i for i, mask in enumerate(masks) if mask.any()]
        stack = np.array([masks[i] for i in kept], bool).reshape(-1, height, width)
        target = PixelTarget(
            size=(height, width),
            boxes=np.array([box_of(mask) for mask in stack], np.float32).reshape(-1, 4),
            masks=stack,
            classes=np.array([segments[i][1] for i in kept], np.int32),
            crowd=np.array([segments[i][2] for i in kept], bool),
        )
        if kind is TargetKind.PIXELS:
            return PixelTarget(size=target.size, label_map=painted(target))
        return target

    def digest(self, row: int) -> bytes:
        """See `Annotations`."""
        place, segments = self._row(row)
        text = json.dumps([place.rpartition("/")[2], segments]).encode()
        return hashlib.blake2b(text, digest_size=16).digest()


def ids_in(data: bytes) -> Int32[np.ndarray, "h w"]:
    """Return the segment of each pixel of a PNG; raises ValueError: it cannot be read."""
    if not data.startswith(header.PNG):
        raise ValueError("is no PNG, whose colours are ids of segments")
    red, green, blue = (decode(data, 3)[..., i].astype(np.int32) for i in range(3))
    return red + 256 * green + 65536 * blue


def facts(place: str) -> str:
    """Return "HxW id id ..." of a PNG; raises ValueError, OSError."""
    found = ids_in(header.read_file(place))
    values = " ".join(map(str, np.unique(found).tolist()))
    return "{}x{} {}".format(*found.shape, values)


def read(
    files: Sequence[tuple[str, str, Mapping[str, Any]]],
    images: Sequence[Sequence[Mapping[str, Any]]],
    classes: Sequence[Mapping[int, int]],
    given: str,
) -> tuple[PanopticFiles, list[str]]:
    """Return the annotations of some files' images, and notes.

    Args:
        files: place, name in messages and JSON of each.
        images: of each file, those that are used.
        classes: of each file, the class of a category's id.
        given: the folder of the PNGs; "" is one beside the file that has its name.

    Raises UserError: a name that leads out of its folder, a category that is not listed, no folder.
    """
    rows: list[tuple[str, list[tuple[int, int, bool]]]] = []
    notes: list[str] = []
    for (place, where, tree), kept, class_of in zip(files, images, classes, strict=True):
        folder = _folder(place, where, given)
        of_image: dict[Any, tuple[str, list[tuple[int, int, bool]]]] = {}
        unknown = Counter[Any]()
        for each in tree["annotations"]:
            name = foreign.checked(each.get("file_name"), where)
            segments = each.get("segments_info")
            if not isinstance(segments, list) or not all(isinstance(s, dict) for s in segments):
                raise UserError(f"{where}: {shown(name)} has no segments_info, a list of objects")
            found = []
            for s in segments:
                if type(s.get("id")) is not int:
                    raise UserError(f"{where}: a segment of {shown(name)} has no id")
                if id_of(s.get("category_id")) not in class_of:
                    unknown[shown(str(s.get("category_id"))[:200])] += 1
                    continue
                found.append((s["id"], class_of[s["category_id"]], bool(s.get("iscrowd"))))
            of_image[id_of(each.get("image_id"))] = f"{folder}/{name}", found
        if unknown:
            what = f"{unknown.total():,} segments have a category_id that categories do not list"
            raise UserError(f"{where}: {what} ({next(iter(unknown))}); add it to categories")
        notes += of_no_image(place, len(of_image.keys() - {image["id"] for image in kept}))
        rows += [of_image.get(image["id"], ("", [])) for image in kept]
    return PanopticFiles(rows), notes


def _folder(place: str, where: str, given: str) -> str:
    above = place.rpartition("/")[0] or "."
    beside = place.rpartition(".")[0]
    if remote.is_remote(place):
        return f"{above}/{given}" if given else beside
    tried = [f"{above}/{given}", given] if given else [beside]
    for folder in tried:
        if os.path.isdir(os.path.expanduser(folder)):
            return os.path.abspath(os.path.expanduser(folder))
    how = "say where it is, coco:FILE.json?images=DIR&masks=DIR"
    raise UserError(f"{where}: no folder {shown(tried[0])} with a PNG for each image; {how}")
