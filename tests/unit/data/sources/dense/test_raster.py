# SPDX-License-Identifier: Apache-2.0
"""Polygons and run lengths become the masks that COCO's own tools make of them."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from vit_jax.data.sources.dense import raster

# 60 random polygons (of halves, of whole numbers, with corners outside) and what pycocotools 2.0
# makes of them: `mask.frPyObjects([corners], h, w)`.
GOLDEN = Path(__file__).parents[4] / "golden" / "next3" / "coco_polygons.json"


def test_polygons_are_those_of_pycocotools() -> None:
    rows = json.loads(GOLDEN.read_text())
    assert len(rows) == 60
    for row in rows:
        size = tuple(row["size"])
        drawn = raster.mask_of([row["corners"]], size)
        given = raster.mask_of({"size": row["size"], "counts": row["counts"]}, size)
        np.testing.assert_array_equal(drawn, given)
        assert raster.packed(given) == raster.unpacked(row["counts"]).tolist()
        assert raster.packed_text(given) == row["counts"]
        listed = {"size": row["size"], "counts": raster.packed(given)}
        np.testing.assert_array_equal(raster.mask_of(listed, size), given)


def test_several_polygons_are_one_mask() -> None:
    one, two = [1, 1, 4, 1, 4, 4, 1, 4], [3, 3, 8, 3, 8, 6, 3, 6]
    both = raster.mask_of([one, two], (8, 10))
    apart = [raster.mask_of([each], (8, 10)) for each in (one, two)]
    np.testing.assert_array_equal(both, apart[0] | apart[1])
    assert [mask.sum() for mask in apart] == [9, 15]
    assert raster.box_of(both) == (1, 1, 8, 6)
    assert raster.box_of(both & False) == (0, 0, 0, 0)


def test_what_is_no_mask_is_refused() -> None:
    for given, why in (
        ([[1, 2, 3, 4]], "2 corners"),
        ([[1, 2, 3]], "no list of numbers"),
        ([[1, 2, 3, 4, 5, float("nan")]], "no finite numbers"),
        ({"size": [3, 4], "counts": [12]}, "a mask is 4x3, and its image 5x4"),
        ({"counts": [12]}, "12 pixels in all, and the image 5x4"),
        ({"counts": [21, -1]}, "20 pixels in all"),
        ({"counts": 7}, "has no run lengths"),
        ({"counts": "\x7f\x10"}, "no text that COCO's tools write"),
        ({"counts": [0.5, 19.5]}, "no list of whole numbers"),
        ("polygon", "no list of numbers"),
    ):
        with pytest.raises(ValueError, match=re.escape(why)):
            raster.mask_of(given, (4, 5))
