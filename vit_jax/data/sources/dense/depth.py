# SPDX-License-Identifier: Apache-2.0
"""Images beside depth maps: DIR/images/<split>/x.jpg, DIR/depth/<split>/x.{png,tif,npy}.

Whole numbers of 16 bits are millimetres, so that depth is in metres, unless `?scale=` says what one
of them is: KITTI's are `?scale=0.00390625`, TUM's `?scale=0.0002`. Floats are taken as they are.
0, what is below it, and what is no finite number is not known.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Shaped

from vit_jax.data.account import Said
from vit_jax.data.images import header
from vit_jax.data.sources import layouts, look
from vit_jax.data.sources.dense import annotated, pairs
from vit_jax.data.sources.dense.annotated import AnnotatedSource, Checked, FoundImages
from vit_jax.data.sources.dense.facts import measured
from vit_jax.data.sources.dense.ids import array_of
from vit_jax.data.sources.dense.pairs import PathTable
from vit_jax.data.sources.dense.shape import Shape
from vit_jax.data.sources.partition import SplitDraw, draw_of
from vit_jax.data.targets import PixelTarget, TargetKind
from vit_jax.errors import UserError, shown

MILLIMETRES = 0.001
OTHER_SIZE = "with a depth map of another size"
UNREADABLE = "with a depth map that cannot be read"
UNKNOWN = "without a pixel whose depth is known"


class DepthFiles:
    """The depth maps of a folder; see `Annotations`."""

    classes: tuple[str, ...] = ()
    things: tuple[bool, ...] = ()

    def __init__(self, files: PathTable, scale: float | None, name: str) -> None:
        """Take the files, what a stored number is (None is the usual), and the dataset's name."""
        self._files, self._scale, self._name = files, scale, name

    def check(self, rows: Sequence[int], shapes: Mapping[int, Shape], kind: TargetKind) -> Checked:
        """See `Annotations`.

        Raises UserError: maps of 8 bits without a scale.
        """
        del kind
        near = [row for row in rows if row in shapes]
        bad, bits, low, high = {}, set(), math.inf, -math.inf
        texts = measured([self._files.name(row) for row in near], self._name, depth_facts)
        coarse = 0
        for row, text in zip(near, texts, strict=True):
            if text.startswith("!"):
                bad[row] = UNREADABLE
                continue
            size, stored, least, most = text.split()
            if size not in {"{}x{}".format(*s) for s in (shapes[row].size, shapes[row].stored)}:
                bad[row] = OTHER_SIZE
            elif float(most) <= 0:
                bad[row] = UNKNOWN
            else:
                coarse += stored == "8"
                bits.add(stored)
                factor = self._factor(stored != "float")
                low, high = min(low, float(least) * factor), max(high, float(most) * factor)
        if coarse and self._scale is None:
            first = next(row for row, text in zip(near, texts, strict=True) if " 8 " in text)
            what = f"{coarse:,} depth maps have 8 bits (first: {shown(self._files.name(first))})"
            raise UserError(f"{what}; end the dataset's name by ?scale=X, what one of them is")
        if "float" in bits and len(bits) > 1 and self._scale is not None:
            raise UserError(
                f"{self._name} has floats and whole numbers, and ?scale= is of one kind; "
                "write them in one format"
            )
        notes = []
        if bits - {"float"} and self._scale is None:
            notes.append(Said("depth of 16 bits is taken as millimetres; ?scale= says otherwise"))
        if high > 0:
            notes.append(Said(f"depth is from {low:.4g} to {high:.4g}"))
        return Checked(bad, notes)

    def target(self, row: int, kind: TargetKind, shape: Shape) -> PixelTarget:
        """See `Annotations`."""
        del kind, shape
        name = self._files.name(row)
        try:
            found = read_depth(self._files.read(row), name)
        except (ValueError, OSError, SyntaxError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise ValueError(f"{shown(name)}: {why}") from error
        height, width = found.shape
        factor = self._factor(found.dtype.kind != "f")
        return PixelTarget(size=(height, width), depth=known(found, factor))

    def digest(self, row: int) -> bytes:
        """See `Annotations`."""
        return self._files.digest(row) + f" {self._scale}".encode()

    def _factor(self, is_whole: bool) -> float:
        return self._scale if self._scale is not None else MILLIMETRES if is_whole else 1.0


def known(stored: Shaped[np.ndarray, "h w"], factor: float) -> Float32[np.ndarray, "h w"]:
    """Return depth where it is known, else 0."""
    found = stored.astype(np.float32) * np.float32(factor)
    return np.where(np.isfinite(found) & (found > 0), found, np.float32(0))


def read_depth(data: bytes, name: str) -> Shaped[np.ndarray, "h w"]:
    """Decode a depth map as it is stored: uint8, uint16, int32 or floats.

    Raises ValueError: it cannot be read, or is no array (h, w) of numbers.
    """
    if name.lower().endswith(".npy"):
        found = array_of(data)
        found = found[..., 0] if found.ndim == 3 and found.shape[-1] == 1 else found
        if found.ndim != 2 or found.dtype.kind not in "iuf":
            raise ValueError(f"holds {found.dtype} of {found.ndim} axes, and no depth (h, w)")
        return found
    with header.open_image(data) as image:
        header.check_size(image.height, image.width)
        if image.mode not in ("L", "I", "F") and not image.mode.startswith("I;16"):
            raise ValueError(f"holds colours or a palette (mode {image.mode}), and no depth")
        return np.asarray(image)


def depth_facts(place: str) -> str:
    """Return "HxW bits least most" of a map; bits are 8, 16 or float; 0 0 where none is known."""
    try:
        found = read_depth(header.read_file(place), place)
    except SyntaxError as error:  # Pillow's, of a broken PNG
        raise ValueError(str(error)) from error
    there = found[np.isfinite(found) & (found > 0)]
    least, most = (float(there.min()), float(there.max())) if there.size else (0.0, 0.0)
    bits = "float" if found.dtype.kind == "f" else "8" if found.dtype == np.uint8 else "16"
    return "{}x{} {} {!r} {!r}".format(*found.shape, bits, least, most)


def open_depth(name: str, split: str, target: TargetKind = TargetKind.NONE) -> AnnotatedSource:
    """Open one split of "DIR?scale=0.001", with slices such as train[:10%].

    Raises UserError: another layout, no such split, most images without a map that fits.
    """
    path, chosen = annotated.options_of(name, "depth", ("scale", "images", "depth"))
    draw, scale = draw_of(chosen), scale_of(chosen)
    root, where = annotated.open_root(path, "depth")
    kind = annotated.kind_of(target, (TargetKind.DEPTH,), where)
    found = look.kept(("depth", name), lambda: _find(root, where, chosen, scale, draw))
    return annotated.choose(found, where, split, kind, draw)


def scale_of(chosen: Mapping[str, str]) -> float | None:
    """Return what `?scale=` says a stored number is; raises UserError: it is no number above 0."""
    if "scale" not in chosen:
        return None
    try:
        scale = float(chosen["scale"])
    except ValueError:
        scale = 0.0
    if not 0 < scale < math.inf:
        raise UserError(f"?scale={shown(chosen['scale'])}: give a number above 0, such as 0.001")
    return scale


def _find(
    root: annotated.Root,
    where: str,
    chosen: Mapping[str, str],
    scale: float | None,
    draw: SplitDraw,
) -> FoundImages:
    others = (chosen["depth"],) if "depth" in chosen else layouts.DEPTHS
    folders = (chosen.get("images", "images"), others)
    listed = pairs.find(root, where, folders, layouts.DEPTH_SUFFIXES, "depth map")
    if not listed.items:
        why = "no image has a depth map" if listed.left_out else "there are no images"
        raise UserError(f"{where}: {why}{annotated.why(listed.left_out)}")
    name = f"the depth maps of {root.absolute() if isinstance(root, Path) else root}"
    return annotated.find(
        root,
        where,
        listed.items,
        DepthFiles(PathTable(root, listed.targets), scale, name),
        TargetKind.DEPTH,
        draw,
        left_out=listed.left_out,
        notes=listed.notes,
        in_order=True,
    )
