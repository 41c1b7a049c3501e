# SPDX-License-Identifier: Apache-2.0
"""Targets in records of TFDS: a mask, objects with boxes and labels, a depth map.

`NAME?mask=FEATURE`, `?objects=FEATURE` or `?depth=FEATURE` chooses one; a run that learns from
pixels finds features of usual names by itself. Boxes of TFDS are shares of the sides, (top, left,
bottom, right). As of images in records, none is looked at before it is read.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from vit_jax.data.names import class_names
from vit_jax.data.sources.dense import depth
from vit_jax.data.sources.dense.columns import KINDS, USUAL, option_of
from vit_jax.data.sources.dense.ids import Ids, ids_of, read_mask
from vit_jax.data.sources.dense.segments import Record, SegmentRecords
from vit_jax.data.sources.dense.shape import Shape, fitted, shape_of
from vit_jax.data.targets import PixelTarget, TargetKind
from vit_jax.errors import UserError, unknown


@dataclasses.dataclass(frozen=True)
class RecordTargets:
    """Where the target of a record lies, and what it means.

    Attributes:
        key: the feature.
        kind: of the target.
        classes: their names.
        ids: of a mask, what its numbers are.
        scale: of a depth map, what a stored number is; None is the usual.
        parts: of objects, the features of box, label and crowd ("" for none).
    """

    key: str
    kind: TargetKind
    classes: tuple[str, ...] = ()
    ids: Ids | None = None
    scale: float | None = None
    parts: tuple[str, str, str] = ("", "", "")

    def of(self, value: Any, image: bytes, name: str) -> PixelTarget:
        """Return the target in a record's feature, in pixels of the upright image.

        Raises ValueError: it cannot be read, or is of an image of another size.
        """
        shape = shape_of(image)
        return fitted(self._read(value, shape, name), shape, name)

    def _read(self, value: Any, shape: Shape, name: str) -> PixelTarget:
        if self.kind is TargetKind.SEGMENTS:
            box, label, crowd = self.parts
            corners = np.asarray(value[box], np.float64).reshape(-1, 4)
            boxes = corners[:, [1, 0, 3, 2]].tolist()  # from (top, left, bottom, right)
            classes = np.asarray(value[label]).tolist()
            if wrong := [k for k in classes if not 0 <= k < len(self.classes)]:
                last = len(self.classes) - 1
                raise ValueError(f"has a segment of class {wrong[0]}; classes are 0 to {last}")
            crowds = np.asarray(value[crowd], bool).tolist() if crowd else ()
            record = Record(boxes, classes, crowds, shares=True)
            return SegmentRecords([record], self.classes, [name]).target(0, self.kind, shape)
        stored = value if isinstance(value, np.ndarray) and value.ndim > 1 else None
        stored = stored[..., 0] if stored is not None and stored.ndim == 3 else stored
        if self.ids is not None:
            mask = read_mask(bytes(value), name) if stored is None else stored
            classes_of = self.ids.classes_of(mask.astype(np.uint16))
            height, width = classes_of.shape
            return PixelTarget(size=(height, width), label_map=classes_of)
        found = depth.read_depth(bytes(value), name) if stored is None else stored
        return depth.target_of(found, self.scale)


def find(info: Any, chosen: Mapping[str, str], target: str, where: str) -> RecordTargets | None:
    """Return where the target that is chosen or wanted lies, None where neither is.

    Args:
        info: TFDS's, of the dataset.
        chosen: the options of its name.
        target: the `TargetKind` that is wanted, "" for none.
        where: the dataset in messages.

    Raises UserError: there is none such, or a mask whose classes nobody names.
    """
    option = option_of(chosen, target, where)
    if not option:
        return None
    fit = [key for key, feature in info.features.items() if _fits(feature, option)]
    key = chosen.get(option, "") or next((name for name in USUAL[option] if name in fit), "")
    if not key or key not in fit:
        if key:
            raise unknown(f"feature of {option} in {where}", key, fit)
        listed = f"; choose one by the end of the name: ?{option}={fit[0]}" if fit else ""
        raise UserError(f"{where} has no feature such as {USUAL[option][0]}{listed}")
    feature = info.features[key]
    kind = KINDS[option]
    if option == "depth":
        return RecordTargets(key, kind, scale=depth.scale_of(chosen))
    if option == "objects":
        inside = feature.feature
        box, label = _part(inside, "BBoxFeature"), _part(inside, "ClassLabel")
        crowd = next((name for name in ("is_crowd", "iscrowd") if name in inside), "")
        return RecordTargets(key, kind, class_names(inside[label].names), parts=(box, label, crowd))
    names = class_names(getattr(feature, "names", None) or ())
    if not names and "ids" not in chosen:
        what = f"the feature {key} of {where} names no classes"
        raise UserError(f"{what}; list their ids by the end of the name: ?mask={key}&ids=0,1,2")
    meaning, names = ids_of(chosen, names, (), where)
    return RecordTargets(key, kind, names, ids=meaning)


def _fits(feature: Any, option: str) -> bool:
    if option == "objects":
        inside = getattr(feature, "feature", None)
        if not isinstance(inside, tfds.features.FeaturesDict):
            return False
        return bool(_part(inside, "BBoxFeature") and _part(inside, "ClassLabel"))
    shape = getattr(feature, "shape", None)
    if not isinstance(feature, tfds.features.Tensor | tfds.features.Image) or not shape:
        return False
    return len(shape) == 2 or (len(shape) == 3 and shape[-1] == 1)


def _part(features: Any, kind: str) -> str:
    cls = getattr(tfds.features, kind)
    return next((name for name, each in features.items() if isinstance(each, cls)), "")
