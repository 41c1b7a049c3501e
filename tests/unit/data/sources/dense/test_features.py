# SPDX-License-Identifier: Apache-2.0
"""Masks, objects and depth maps in records of TFDS."""

import io
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from vit_jax import data
from vit_jax.data.targets import TargetKind
from vit_jax.errors import UserError


def png(array: np.ndarray) -> io.BytesIO:
    out = io.BytesIO()
    Image.fromarray(array).save(out, "PNG")
    out.seek(0)
    return out


class Scenes(tfds.core.GeneratorBasedBuilder):
    """Images with everything."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        of_one = {
            "bbox": tfds.features.BBoxFeature(),
            "label": tfds.features.ClassLabel(names=["cat", "dog"]),
            "is_crowd": np.bool_,
        }
        features = {
            "image": tfds.features.Image(encoding_format="png"),
            "segmentation_mask": tfds.features.Image(
                shape=(None, None, 1), encoding_format="png", use_colormap=True
            ),
            "depth": tfds.features.Image(
                shape=(None, None, 1), dtype=np.uint16, encoding_format="png"
            ),
            "objects": tfds.features.Sequence(of_one),
        }
        return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        return {"train": self._generate_examples()}

    def _generate_examples(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for i in range(3):
            mask = np.full((6, 8), 1 + i % 2, np.uint8)
            mask[0] = 3
            boxes = [tfds.features.BBox(ymin=0.5, xmin=0.25, ymax=1.0, xmax=0.75)]
            yield (
                i,
                {
                    "image": png(np.full((6, 8, 3), 50 * i, np.uint8)),
                    "segmentation_mask": png(mask),
                    "depth": png(np.full((6, 8), 1500 + i, np.uint16)),
                    "objects": [{"bbox": box, "label": 1, "is_crowd": i == 2} for box in boxes],
                },
            )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("tfds")
    Scenes(data_dir=str(root), file_format="array_record").download_and_prepare()
    return str(root)


def test_each_feature_is_a_target(place: str) -> None:
    masks = data.open_source("scenes?mask=segmentation_mask&ids=1,2,3", place)
    assert data.target_kind(masks) is TargetKind.PIXELS
    assert (masks.class_names, len(masks)) == (("1", "2", "3"), 3)
    ids = {int(v) for i in range(3) for v in np.unique(data.target_of(masks, i).label_map)}
    assert ids == {0, 1, 2}
    depth = data.open_source("scenes", place, target="depth")
    assert data.target_of(depth, 0).depth.min() == pytest.approx(1.5, abs=0.003)
    boxes = data.open_source("scenes", place, target="segments")
    assert boxes.class_names == ("cat", "dog")
    target = data.target_of(boxes, 0)
    assert target.boxes.tolist() == [[2, 3, 6, 6]]
    assert target.classes.tolist() == [1]
    assert sorted(bool(data.target_of(boxes, i).crowd[0]) for i in range(3)) == [False, False, True]
    assert boxes.read(0)["label"] == -1


def test_what_is_not_there_is_refused(place: str) -> None:
    for name, target, why in (
        ("scenes", "pixels", "names no classes; list their ids by the end of the name: ?mask=segm"),
        ("scenes?mask=image&ids=1", "", "unknown feature of mask in scenes"),
        ("scenes?depth=depth", "pixels", "has a depth for each pixel, and not a class"),
        ("scenes?depth=depth&objects=objects", "", "are two targets; choose one"),
        ("scenes?scale=2", "", "has no ?scale= without ?mask="),
        ("digits", "segments", "has no feature such as objects"),
    ):
        with pytest.raises(UserError, match=re.escape(why)):
            data.open_source(name, place if name != "digits" else "", target=target)
