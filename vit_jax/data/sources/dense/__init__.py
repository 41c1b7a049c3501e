# SPDX-License-Identifier: Apache-2.0
"""Sources of images whose pixels have targets: classes, segments, boxes, depth."""

from vit_jax.data.sources.base import Source
from vit_jax.data.sources.layouts import WORDS, TargetLayout
from vit_jax.data.sources.partition import full_name
from vit_jax.data.targets import TargetKind


def open_dense(kind: str, path: str, split: str, target: str = "") -> Source:
    """Open one split of "kind:path", as `data.open_source` does.

    Raises UserError: no such dataset or split, targets that no image has, or of another kind.
    """
    wanted = TargetKind(target)
    if kind == "masks":
        from vit_jax.data.sources.dense.masks import open_masks

        return open_masks(path, split, wanted)
    if kind == "coco":
        from vit_jax.data.sources.dense.coco import open_coco

        return open_coco(path, split, wanted)
    if kind == "voc":
        from vit_jax.data.sources.dense.voc import open_voc

        return open_voc(path, split, wanted)
    if kind == "yolo":
        from vit_jax.data.sources.dense.yolo import open_yolo

        return open_yolo(path, split, wanted)
    from vit_jax.data.sources.dense.depth import open_depth

    return open_depth(path, split, wanted)


def layout_of(name: str) -> TargetLayout:
    """Return what a dataset is, by its name; of a folder on this machine its files tell.

    Raises UserError: a folder of two layouts.
    """
    full = full_name(name)
    return TargetLayout(full, *WORDS.get(full.partition(":")[0], (TargetKind.NONE, "")))
