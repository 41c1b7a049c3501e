# SPDX-License-Identifier: Apache-2.0
"""Images beside depth maps: DIR/images/<split>/x.jpg, DIR/depth/<split>/x.{png,tif,npy}.

Whole numbers of 16 bits are millimetres, so that depth is in metres, unless `?scale=` says what one
of them is: KITTI's are `?scale=0.00390625`, TUM's `?scale=0.0002`. Floats are taken as they are.
0, what is below it, and what is no finite number is not known.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Shaped

from vit_jax.data.account import Said
from vit_jax.data.images import header
from vit_jax.data.images.bands import numpy_array
from vit_jax.data.sources import layouts, look
from vit_jax.data.sources.dense import annotated, pairs
from vit_jax.data.sources.dense.annotated import AnnotatedSource, Checked, FoundImages
from vit_jax.data.sources.dense.facts import measured
from vit_jax.data.sources.dense.pairs import PathTable
from vit_jax.data.sources.dense.shape import Shape
from vit_jax.data.sources.partition import SplitDraw, draw_of
from vit_jax.data.targets import PixelTarget, TargetKind
from vit_jax.errors import UserError, shown

MILLIMETRES = 0.001
OTHER_SIZE = "with a depth map of another size"
UNREADABLE = "with a depth map that cannot be read"
UNKNOWN = "without a pixel whose depth is known"


class DepthFacts(NamedTuple):
    """What a map holds.

    Attributes:
        bits: of whole numbers 8 or 16, else float.
        least: the least number that is a known depth, 0 where there is none.
        most: likewise.
    """

    bits: str
    least: float
    most: float


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
        bad, facts = {}, {}
        texts = measured([self._files.name(row) for row in near], self._name, depth_facts)
        for row, text in zip(near, texts, strict=True):
            if text.startswith("!"):
                bad[row] = UNREADABLE
                continue
            size, bits, least, most = text.split()
            if size not in {"{}x{}".format(*s) for s in (shapes[row].size, shapes[row].stored)}:
                bad[row] = OTHER_SIZE
            else:
                facts[row] = DepthFacts(bits, float(least), float(most))
        found = judged(facts, self._scale, self._name, lambda row: shown(self._files.name(row)))
        return Checked({**bad, **found.bad}, found.notes)

    def target(self, row: int, kind: TargetKind, shape: Shape) -> PixelTarget:
        """See `Annotations`."""
        del kind, shape
        name = self._files.name(row)
        try:
            return target_of(read_depth(self._files.read(row), name), self._scale)
        except (ValueError, OSError, SyntaxError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise ValueError(f"{shown(name)}: {why}") from error

    def digest(self, row: int) -> bytes:
        """See `Annotations`."""
        return self._files.digest(row) + f" {self._scale}".encode()


def judged(
    facts: Mapping[int, DepthFacts], scale: float | None, where: str, name: Callable[[int], str]
) -> Checked:
    """Judge maps by what they hold.

    Args:
        facts: of each map of its image's size.
        scale: what a stored number is; None is the usual.
        where: the dataset in messages.
        name: returns what a map is called in messages.

    Raises UserError: maps of 8 bits without a scale; floats and whole numbers with one.
    """
    bad = {row: UNKNOWN for row, each in facts.items() if each.most <= 0}
    used = {row: each for row, each in facts.items() if row not in bad}
    bits = {each.bits for each in used.values()}
    if "8" in bits and scale is None:
        coarse = [row for row, each in used.items() if each.bits == "8"]
        what = f"{len(coarse):,} depth maps have 8 bits (first: {name(coarse[0])})"
        raise UserError(f"{what}; end the dataset's name by ?scale=X, what one of them is")
    if "float" in bits and len(bits) > 1 and scale is not None:
        raise UserError(
            f"{where} has floats and whole numbers, and ?scale= is of one kind; "
            "write them in one format"
        )
    notes = []
    if bits - {"float"} and scale is None:
        notes.append(Said("depth of 16 bits is taken as millimetres; ?scale= says otherwise"))
    if used:
        factors = {row: _factor(each.bits == "float", scale) for row, each in used.items()}
        low = min(each.least * factors[row] for row, each in used.items())
        high = max(each.most * factors[row] for row, each in used.items())
        notes.append(Said(f"depth is from {low:.4g} to {high:.4g}"))
    return Checked(bad, notes)


def target_of(stored: Shaped[np.ndarray, "h w"], scale: float | None) -> PixelTarget:
    """Return a stored map as a target, 0 where depth is not known; `scale` is as of `judged`.

    Raises ValueError: 8 bits without a scale.
    """
    if stored.dtype == np.uint8 and scale is None:
        raise ValueError("has 8 bits, and no ?scale= says what one of them is")
    found = stored.astype(np.float32) * np.float32(_factor(stored.dtype.kind == "f", scale))
    depth = np.where(np.isfinite(found) & (found > 0), found, np.float32(0))
    height, width = depth.shape
    return PixelTarget(size=(height, width), depth=depth)


def _factor(is_float: bool, scale: float | None) -> float:
    return scale if scale is not None else 1.0 if is_float else MILLIMETRES


def read_depth(data: bytes, name: str) -> Shaped[np.ndarray, "h w"]:
    """Decode a depth map as it is stored: uint8, uint16, int32 or floats.

    Raises ValueError: it cannot be read, or is no array (h, w) of numbers.
    """
    if name.lower().endswith(".npy"):
        found = numpy_array(data)
        found = found[..., 0] if found.ndim == 3 and found.shape[-1] == 1 else found
        if found.ndim != 2:
            raise ValueError(f"holds {found.dtype} of {found.ndim} axes, and no depth (h, w)")
        return found
    with header.open_image(data) as image:
        header.check_size(image.height, image.width)
        if image.mode not in ("L", "I", "F") and not image.mode.startswith("I;16"):
            raise ValueError(f"holds colours or a palette (mode {image.mode}), and no depth")
        return np.asarray(image)


def facts_of(stored: Shaped[np.ndarray, "h w"]) -> DepthFacts:
    """Return what a map holds."""
    there = stored[np.isfinite(stored) & (stored > 0)]
    least, most = (float(there.min()), float(there.max())) if there.size else (0.0, 0.0)
    bits = "float" if stored.dtype.kind == "f" else "8" if stored.dtype == np.uint8 else "16"
    return DepthFacts(bits, least, most)


def depth_facts(place: str) -> str:
    """Return "HxW bits least most" of a map, as `facts_of` has them."""
    try:
        found = read_depth(header.read_file(place), place)
    except SyntaxError as error:  # Pillow's, of a broken PNG
        raise ValueError(str(error)) from error
    return "{}x{} {} {!r} {!r}".format(*found.shape, *facts_of(found))


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
