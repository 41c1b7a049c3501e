# SPDX-License-Identifier: Apache-2.0
"""A small dataset of each layout of targets, under the names that docs/own_data.md has for them."""

import json
import shutil
from pathlib import Path

import numpy as np
from PIL import Image

from tests.shapes import write_shapes

OBJECT = (
    "<annotation><object><name>{}</name><bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax>"
    "<ymax>{}</ymax></bndbox></object></annotation>"
)
NAMES = ("circle", "square", "triangle")


def write(root: Path) -> Path:
    """Write shapes on textures as scenes, coco, VOC, insects and rooms below a folder."""
    scenes = write_shapes(root / "scenes", {"train": 12, "val": 4})
    (root / "VOC" / "Annotations").mkdir(parents=True)
    (root / "coco").mkdir()
    shutil.copytree(scenes / "images", root / "rooms" / "images")
    shutil.copytree(scenes / "images", root / "insects" / "images")
    shutil.copytree(scenes / "images" / "train", root / "coco" / "images")
    shutil.copytree(scenes / "images" / "train", root / "VOC" / "JPEGImages")
    tree: dict[str, list[dict[str, object]]] = {"images": [], "annotations": [], "categories": []}
    tree["categories"] = [{"id": k + 1, "name": name} for k, name in enumerate(NAMES)]
    for number, path in enumerate(sorted((scenes / "masks").rglob("*.png"))):
        mask, split, stem = np.asarray(Image.open(path)), path.parent.name, path.stem
        height, width = mask.shape
        rows, columns = np.nonzero((mask > 0) & (mask < 255))
        left, top = int(columns.min()), int(rows.min())
        right, bottom = int(columns.max()) + 1, int(rows.max()) + 1
        kind = int(mask[rows[0], columns[0]])
        for folder in ("rooms/depth", "insects/labels"):
            (root / folder / split).mkdir(parents=True, exist_ok=True)
        depth = np.where(mask > 0, 1500, 4000).astype(np.uint16)
        Image.fromarray(depth).save(root / "rooms/depth" / split / f"{stem}.png")
        x, y = (left + right) / 2 / width, (top + bottom) / 2 / height
        box = f"{kind - 1} {x} {y} {(right - left) / width} {(bottom - top) / height}\n"
        (root / "insects/labels" / split / f"{stem}.txt").write_text(box)
        if split == "train":
            text = OBJECT.format(NAMES[kind - 1], left + 1, top + 1, right, bottom)
            (root / "VOC/Annotations" / f"{stem}.xml").write_text(text)
            image = {"id": number, "file_name": f"{stem}.jpg", "height": height, "width": width}
            corners = [left, top, right, top, right, bottom, left, bottom]
            segment = {"image_id": number, "category_id": kind, "segmentation": [corners]}
            tree["images"].append(image)
            tree["annotations"].append(
                {**segment, "bbox": [left, top, right - left, bottom - top], "iscrowd": 0}
            )
    (root / "coco" / "instances.json").write_text(json.dumps(tree))
    names = f"train: images/train\nval: images/val\nnames: [{', '.join(NAMES)}]\n"
    (root / "insects" / "data.yaml").write_text(names)
    return root
