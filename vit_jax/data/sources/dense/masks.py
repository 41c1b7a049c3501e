# SPDX-License-Identifier: Apache-2.0
"""Images beside masks, the class of every pixel: DIR/images/<split>/x.jpg, DIR/masks/<split>/x.png.

A mask is one channel, or a palette, whose numbers are class ids; classes.txt names the classes, and
255 is no class (`dense/ids.py` has the options). Without folders of splits these are drawn.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from vit_jax.data.account import Said
from vit_jax.data.config import AS_SHOWN, Reading
from vit_jax.data.images import header as image_header
from vit_jax.data.images.decode import decode, turned
from vit_jax.data.sources import layouts, look
from vit_jax.data.sources.base import Source
from vit_jax.data.sources.dense import annotated, ids, pairs
from vit_jax.data.sources.dense.annotated import (
    CLASSES,
    AnnotatedSource,
    Checked,
    FoundImages,
)
from vit_jax.data.sources.dense.facts import measured
from vit_jax.data.sources.dense.ids import Ids, ids_of, read_mask
from vit_jax.data.sources.dense.pairs import PathTable
from vit_jax.data.sources.dense.shape import Shape
from vit_jax.data.sources.partition import SplitDraw, draw_of
from vit_jax.data.targets import IGNORED as NOT_COUNTED
from vit_jax.data.targets import PixelTarget, TargetKind
from vit_jax.errors import UserError, shown

IGNORED = 255  # how the masks of a probe mark what neither teaches nor counts
OTHER_SIZE = "with a mask of another size"
UNREADABLE = "with a mask that cannot be read"
COLOURS = "with a mask of colours, not of ids in one channel or a palette"


class MaskFiles:
    """Masks in files; see `Annotations`."""

    things: tuple[bool, ...] = ()

    def __init__(self, files: PathTable, names: Sequence[str], chosen: Mapping[str, str]) -> None:
        self._files, self._chosen, self.classes = files, chosen, tuple(names)
        self._ids = Ids(len(names), ())
        self._sizes: list[str] = []  # "48x32" or "!" and why it cannot be read; only for `check`

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sizes": []}

    def look(self, root: annotated.Root, where: str) -> list[str]:
        """Look at all masks of a folder, and decide which class each id is.

        Those in a bucket are not looked at. Returns what is to be said.

        Raises UserError: an id of no class.
        """
        facts: dict[int, set[int]] = {}  # the ids in each mask that can be read
        if isinstance(root, Path):
            places = [self._files.name(row) for row in range(len(self._files))]
            told = measured(places, f"the masks of {root.absolute()}", mask_facts)
            for row, text in enumerate(told):
                size, _, values = text.partition(" ")
                bad = text.startswith("!")
                self._sizes.append(text if bad else size)
                if not bad:
                    facts[row] = set(map(int, values.split()))
        there = set().union(*facts.values())
        self._ids, names = ids_of(self._chosen, self.classes, there, where)
        if there == {0, 255} and 255 in self._ids.ignored and "ids" not in self._chosen:
            what = f"{where}: its masks hold the ids 0 and 255 alone, and 255 is no class"
            raise UserError(f"{what}; if it is one, end the name by ?ids=0,255")
        if unknown := self._ids.unknown(there):
            bad = [row for row, values in facts.items() if values & {*unknown}]
            first = shown(self._files.name(bad[0]))
            have = f"{len(bad):,} of {len(facts):,} masks have pixels of class {max(unknown)}"
            text = f"{where}: {have} (first: {first})"
            named = f"; {CLASSES} names {len(self.classes)}" if self.classes else ""
            raise UserError(f"{text}{named}; {self._ids.advice()}")
        notes = []
        if not self.classes:
            notes.append(Said(f"no {CLASSES}: classes are the ids {names[0]} to {names[-1]}"))
        self.classes = names
        return notes

    def class_of(self, value: int) -> int:
        """Return the class of an id, below 0 for an id of none."""
        return int(self._ids.table()[value])

    def check(self, rows: Sequence[int], shapes: Mapping[int, Shape], kind: TargetKind) -> Checked:
        """See `Annotations`; the masks were looked at in `look`."""
        del kind
        bad = {}
        for row in filter(shapes.__contains__, rows):
            size = self._sizes[row]
            fit = {"{}x{}".format(*s) for s in (shapes[row].size, shapes[row].stored)}
            if size.startswith("!"):
                bad[row] = COLOURS if "colours" in size else UNREADABLE
            elif size not in fit:
                bad[row] = OTHER_SIZE
        return Checked(bad)

    def target(self, row: int, kind: TargetKind, shape: Shape) -> PixelTarget:
        """See `Annotations`."""
        del kind, shape
        name = self._files.name(row)
        try:
            classes = self._ids.classes_of(read_mask(self._files.read(row), name))
        except (ValueError, OSError, SyntaxError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise ValueError(f"{shown(name)}: {why}") from error
        height, width = classes.shape
        return PixelTarget(size=(height, width), label_map=classes)

    def digest(self, row: int) -> bytes:
        """See `Annotations`."""
        return self._files.digest(row)


def mask_facts(place: str) -> str:
    """Return "HxW id id ..." of a mask; raises ValueError, OSError: it cannot be read."""
    try:
        mask = read_mask(image_header.read_file(place), place)
    except SyntaxError as error:  # Pillow's, of a broken PNG
        raise ValueError(str(error)) from error
    counts = np.bincount(mask.ravel(), minlength=1)
    values = " ".join(map(str, np.flatnonzero(counts).tolist()))
    return "{}x{} {}".format(*mask.shape, values)


def open_masks(name: str, split: str, target: TargetKind = TargetKind.NONE) -> AnnotatedSource:
    """Open one split of "DIR?ignore=255", with slices such as train[:10%], in the order of names.

    Raises UserError: another layout, no such split, most images without a mask that fits, an id of
    no class.
    """
    path, chosen = annotated.options_of(name, "masks", (*ids.OPTIONS, "images", "masks"))
    draw = draw_of(chosen)
    root, where = annotated.open_root(path, "masks")
    kind = annotated.kind_of(target, (TargetKind.PIXELS,), where)
    found = look.kept(("masks", name), lambda: _find(root, where, chosen, draw))
    return annotated.choose(found, where, split, kind, draw)


def _find(
    root: annotated.Root, where: str, chosen: Mapping[str, str], draw: SplitDraw
) -> FoundImages:
    others = (chosen["masks"],) if "masks" in chosen else layouts.MASKS
    listed = pairs.find(
        root, where, (chosen.get("images", "images"), others), layouts.MASK_SUFFIXES, "mask"
    )
    names = annotated.class_names_in(root, where)
    masks = MaskFiles(PathTable(root, listed.targets), names, chosen)
    if not listed.items:
        why = "no image has a mask" if listed.left_out else "there are no images"
        raise UserError(f"{where}: {why}{annotated.why(listed.left_out)}")
    notes = [*listed.notes, *masks.look(root, where)]
    return annotated.find(
        root,
        where,
        listed.items,
        masks,
        TargetKind.PIXELS,
        draw,
        left_out=listed.left_out,
        notes=notes,
        in_order=True,
    )


def pixels_of(
    source: Source, index: int, channels: int, reading: Reading = AS_SHOWN
) -> tuple[UInt8[np.ndarray, "H W C"], UInt8[np.ndarray, "H W"]]:
    """Decode an image to grey (`channels` 1) or RGB (3), and its mask with `IGNORED` for no class.

    Both are as `reading` has the image, upright or as it is stored.

    Raises DataError: a file that cannot be read, a mask of another size; UserError: more classes
    than a mask of 8 bits has beside `IGNORED`.
    """
    if source.num_classes > IGNORED:
        what = f"{source.name} has {source.num_classes:,} classes"
        raise UserError(f"{what}, and a probe tells at most {IGNORED} from each other")
    name = source.example_id(index)
    try:
        data = source.read(index)["image"]
        turn = image_header.orientation(data)
        image = decode(data, channels, reading, turn=turn if reading.upright else 1)
    except (ValueError, OSError) as error:
        raise UserError(f"{name}: {error}") from error
    classes = source.target(index).label_map  # type: ignore[attr-defined]
    if not reading.upright and turn > 1:
        back = {6: 8, 8: 6}.get(turn, turn)
        classes = turned(classes[..., None], back)[..., 0]
    mask = np.where(classes == NOT_COUNTED, IGNORED, classes).astype(np.uint8)
    return image, mask
