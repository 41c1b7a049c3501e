# SPDX-License-Identifier: Apache-2.0
"""What was counted of the targets of many images: pixels of each class, segments, depths."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from vit_jax.data.targets import IGNORED, PixelTarget, TargetKind
from vit_jax.errors import shown

_SHOWN = 4  # classes that a line names


class Counted(NamedTuple):
    """What one target holds.

    Attributes:
        pixels: of each class that is there; {} of other kinds.
        ignored: pixels of no class, or of unknown depth.
        known: pixels of known depth.
        segments: of each class.
        crowds: segments that stand for many.
        depth: (least, most, sum) of the known depths; () of other kinds.
    """

    pixels: dict[int, int] = {}  # noqa: RUF012  (never changed)
    ignored: int = 0
    known: int = 0
    segments: dict[int, int] = {}  # noqa: RUF012
    crowds: int = 0
    depth: tuple[float, float, float] | tuple[()] = ()


def count(target: PixelTarget) -> Counted:
    """Count what a target holds."""
    if target.label_map is not None:
        values, times = np.unique(target.label_map, return_counts=True)
        pixels = dict(zip(values.tolist(), times.tolist(), strict=True))
        return Counted(ignored=pixels.pop(IGNORED, 0), pixels=pixels)
    if target.depth is not None:
        known = target.depth[target.depth > 0]
        depth = (float(known.min()), float(known.max()), float(known.sum())) if known.size else ()
        return Counted(ignored=target.depth.size - known.size, depth=depth, known=known.size)
    classes = target.classes if target.classes is not None else np.zeros(0, np.int32)
    values, times = np.unique(classes, return_counts=True)
    crowds = 0 if target.crowd is None else int(target.crowd.sum())
    return Counted(segments=dict(zip(values.tolist(), times.tolist(), strict=True)), crowds=crowds)


def line(found: Iterable[Counted], kind: TargetKind, class_names: Sequence[str]) -> str:
    """Return a summary of many targets of a kind, "" of none.

    "pixels: 71.0 % texture, 9.2 % circle, ...; 3.1 % ignored", "27 segments in 9 images, 3.0 an
    image: 14 cat, 13 dog; 2 stand for many" or "depth is known of 97.1 % of the pixels: 0.5 to 9.8,
    mean 3.2".
    """
    found = list(found)
    if not found:
        return ""
    if kind is TargetKind.PIXELS:
        sums = _sums([each.pixels for each in found])
        ignored = sum(each.ignored for each in found)
        total = sum(sums.values()) + ignored
        if not sums:
            return f"pixels: all {total:,} are ignored"
        shares = {k: f"{value / total:.1%}".replace("%", " %") for k, value in sums.items()}
        text = f"pixels: {_listed(shares, sums, class_names)}"
        return text + (f"; {ignored / total:.1%} ignored".replace("%", " %") if ignored else "")
    if kind is TargetKind.DEPTH:
        known, unknown = sum(each.known for each in found), sum(each.ignored for each in found)
        if not known:
            return f"depth is known of none of the {unknown:,} pixels"
        depths = [each.depth for each in found if each.depth]
        low, high = min(each[0] for each in depths), max(each[1] for each in depths)
        mean = math.fsum(each[2] for each in depths) / known
        share = f"{known / (known + unknown):.1%}".replace("%", " %")
        return f"depth is known of {share} of the pixels: {low:.3g} to {high:.3g}, mean {mean:.3g}"
    sums = _sums([each.segments for each in found])
    total, crowds = sum(sums.values()), sum(each.crowds for each in found)
    counts = {k: f"{value:,}" for k, value in sums.items()}
    text = f"{total:,} segments in {len(found):,} images, {total / len(found):.1f} an image"
    text += f": {_listed(counts, sums, class_names)}" if sums else ""
    return text + (f"; {crowds:,} stand for many" if crowds else "")


def _sums(each: Iterable[dict[int, int]]) -> dict[int, int]:
    found: dict[int, int] = {}
    for counts in each:
        for k, value in counts.items():
            found[k] = found.get(k, 0) + value
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def _listed(texts: dict[int, str], sums: dict[int, int], class_names: Sequence[str]) -> str:
    first = [f"{texts[k]} {shown(class_names[k])}" for k in list(sums)[:_SHOWN]]
    return ", ".join(first) + (", ..." if len(sums) > _SHOWN else "")
