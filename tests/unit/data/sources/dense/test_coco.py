# SPDX-License-Identifier: Apache-2.0
"""COCO's JSON: what is read of it, what is counted, and what is refused in one line."""

import json
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.counted import account
from vit_jax import data
from vit_jax.data.sources.dense import raster
from vit_jax.data.targets import PixelTarget, TargetKind
from vit_jax.errors import UserError

SIZE = (40, 50)
SQUARE = [2, 3, 12, 3, 12, 15, 2, 15]


def write(folder: Path, count: int = 4, name: str = "all.json", **changes: Any) -> dict[str, Any]:
    """Write images of noise, each with a cat (a polygon) and dogs (a crowd, packed)."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    crowd = np.zeros(SIZE, bool)
    crowd[5:9, 20:30] = True
    images, annotations = [], []
    for i in range(count):
        pixels = rng.integers(0, 255, (*SIZE, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{i}.png")
        image = {"id": 100 + i, "file_name": f"{i}.png", "height": SIZE[0], "width": SIZE[1]}
        images.append(image)
        shared = {"image_id": 100 + i}
        cat = {"bbox": [2, 3, 10, 12], "segmentation": [SQUARE], "category_id": 7}
        counts = {"size": list(SIZE), "counts": raster.packed(crowd)}
        dogs = {"bbox": [20, 5, 10, 4], "segmentation": counts, "category_id": 3, "iscrowd": 1}
        annotations += [{**shared, **cat}, {**shared, **dogs}]
    kinds = [{"id": 7, "name": "cat"}, {"id": 3, "name": "dog"}]
    tree = {"images": images, "annotations": annotations, "categories": kinds, **changes}
    (folder / name).write_text(json.dumps(tree))
    return tree


def target_of(source: data.Source, name: str) -> PixelTarget:
    ids = [Path(source.example_id(i)).name for i in range(len(source))]
    return data.target_of(source, ids.index(name))


def test_instances_are_read(tmp_path: Path) -> None:
    write(tmp_path)
    source = data.open_source(f"coco:{tmp_path}/all.json", split="whole")
    assert (len(source), source.class_names) == (4, ("dog", "cat"))
    assert data.target_kind(source) is TargetKind.SEGMENTS
    assert account(source).notes == ()
    assert account(source).said == (
        "the category ids 3 to 7 are the classes 0 to 1, in their order",
    )
    for each in (source, pickle.loads(pickle.dumps(source))):
        found = target_of(each, "2.png")
        assert found.size == SIZE
        assert found.boxes is not None
        assert found.boxes.tolist() == [[2, 3, 12, 15], [20, 5, 30, 9]]
        assert found.classes is not None
        assert found.classes.tolist() == [1, 0]
        assert found.crowd is not None
        assert found.crowd.tolist() == [False, True]
        assert found.masks is not None
        assert [raster.box_of(mask) for mask in found.masks] == [(2, 3, 12, 15), (20, 5, 30, 9)]
    digest = source.digest()
    tree = write(tmp_path)
    tree["annotations"][0]["segmentation"] = [[2, 3, 11, 3, 11, 15]]
    (tmp_path / "all.json").write_text(json.dumps(tree))
    assert data.open_source(f"coco:{tmp_path}/all.json", split="whole").digest() != digest


def test_pixels_are_painted_of_instances(tmp_path: Path) -> None:
    write(tmp_path)
    name = f"coco:{tmp_path}/all.json?images=images"
    source = data.open_source(name, split="whole", target="pixels")
    assert source.class_names == ("dog", "cat", "background")
    found = target_of(source, "0.png").label_map
    assert found is not None
    assert {value: int((found == value).sum()) for value in (0, 1, 2)} == {0: 40, 1: 120, 2: 1840}
    with pytest.raises(UserError, match=r"or a class for each pixel, and not a dep"):
        data.open_source(name, split="whole", target="depth")


def test_faults_of_boxes_are_counted(tmp_path: Path) -> None:
    tree = write(tmp_path)
    base = {"image_id": 101, "category_id": 3, "segmentation": [SQUARE]}
    extra = [
        {**base, "bbox": [45, 5, 10, 4], "segmentation": [[45, 5, 55, 5, 55, 9, 45, 9]]},
        {**base, "bbox": [60, 5, 10, 4]},
        {**base, "bbox": [6, 5, 0, 4]},
        {**base, "bbox": [6, 5, 4, 4], "segmentation": [[1, 2, 3, 4]]},
        {**base, "bbox": [6, 5, 4, 4], "segmentation": []},
        {**base, "bbox": [6, 5, 4, 4], "segmentation": {"size": [4, 4], "counts": [16]}},
        {**base, "bbox": [6, 5, 4, 4], "image_id": 9},
    ]
    tree["annotations"] += extra
    (tmp_path / "all.json").write_text(json.dumps(tree))
    source = data.open_source(f"coco:{tmp_path}/all.json", split="whole")
    assert account(source).notes == (
        "all.json: 1 annotation is of no image that is used",
        "2 segments are of a mask that cannot be drawn, and left out (first: 1.png)",
        "1 segment is empty, and left out (first: 1.png)",
        "1 segment is partly outside of its image, and clipped (first: 1.png)",
        "1 segment is wholly outside of its image, and left out (first: 1.png)",
        "1 segment is without a mask, where others have one, and left out (first: 1.png)",
    )
    found = target_of(source, "1.png")
    assert found.boxes is not None
    assert found.boxes.tolist() == [[2, 3, 12, 15], [20, 5, 30, 9], [45, 5, 50, 9]]


def test_images_that_do_not_fit_are_left_out(tmp_path: Path) -> None:
    tree = write(tmp_path, 6)
    tree["images"][0]["width"] = 51
    tree["images"].append({**tree["images"][1], "id": 999})
    (tmp_path / "images" / "2.png").unlink()
    (tmp_path / "all.json").write_text(json.dumps(tree))
    source = data.open_source(f"coco:{tmp_path}/all.json", split="whole")
    assert account(source).why_left_out() == (
        "3 of 7 images left out: 1 annotated at another size (images/0.png), "
        "1 listed twice (images/1.png), 1 of files that are not there (images/2.png)"
    ).replace("images/", "")
    for i in (3, 4):
        (tmp_path / "images" / f"{i}.png").unlink()
    with pytest.raises(UserError, match=r"2 of 6 images can be used .*3 of files that are not"):
        data.open_source(f"coco:{tmp_path}/all.json", split="whole")


def test_files_of_splits_are_matched_by_names(tmp_path: Path) -> None:
    for split, ids in (("train", (7, 3)), ("val", (1, 2))):
        tree = write(tmp_path / split)
        for each in tree["annotations"]:
            each["category_id"] = ids[0] if each["category_id"] == 7 else ids[1]
        tree["categories"] = [{"id": ids[0], "name": "cat"}, {"id": ids[1], "name": "dog"}]
        (tmp_path / split / "all.json").unlink()
        (tmp_path / "annotations").mkdir(exist_ok=True)
        place = tmp_path / "annotations" / f"instances_{split}2017.json"
        place.write_text(json.dumps(tree))
        (tmp_path / split / "images").rename(tmp_path / f"{split}2017")
    for name in (f"coco:{tmp_path}", f"coco:{tmp_path}/annotations/instances_*.json"):
        source = data.open_source(name, split="val")
        assert len(source) == 4
        assert source.class_names == ("dog", "cat")
        classes = target_of(source, "0.png").classes
        assert classes is not None
        assert classes.tolist() == [1, 0]
        assert account(source).used == {"train": 4, "val": 4}
        assert "matched by name" in account(source).said[0]


def test_a_mask_of_no_image_s_size_is_not_drawn(tmp_path: Path) -> None:
    tree = write(tmp_path)
    del tree["annotations"][0]["bbox"]
    bomb = {"size": [10**6, 10**6], "counts": [10**12]}
    far = [[1, 2, 10**400, 4, 5, 6]]
    tree["annotations"][0]["segmentation"] = bomb
    tree["annotations"][1]["segmentation"] = far
    (tmp_path / "all.json").write_text(json.dumps(tree))
    notes = account(data.open_source(f"coco:{tmp_path}/all.json", split="whole")).notes
    assert any("1 segment is empty, and left out" in note for note in notes)
    assert any("1 segment is of a mask that cannot be drawn" in note for note in notes)


def test_what_is_no_coco_is_refused(tmp_path: Path) -> None:
    def refused(**changes: Any) -> str:
        write(tmp_path, **changes)
        with pytest.raises(UserError) as error:
            data.open_source(f"coco:{tmp_path}/all.json")
        assert len(str(error.value).splitlines()) == 1
        return str(error.value)

    image = {"id": 1, "file_name": "0.png"}
    for changes, why in (
        ({"categories": []}, "lists no categories"),
        ({"categories": None}, "is no COCO JSON: it needs images, annotations and categories"),
        ({"categories": [{"id": 1, "name": "a"}] * 2}, "two categories have the id 1"),
        ({"categories": [{"id": k, "name": "a"} for k in (1, 2)]}, "are called 'a'"),
        ({"categories": [{"id": 3, "name": "a"}]}, "4 of 8 annotations have a category_id that"),
        ({"images": [{**image, "file_name": "../0.png"}]}, "is not followed"),
        ({"images": [{**image, "file_name": "/etc/passwd"}]}, "names a place of its own"),
        ({"images": [image, image]}, "two images have the id 1"),
        ({"images": [{**image, "height": -1, "width": 3}]}, "has the size 3 x -1"),
        ({"images": [{**image, "height": 60000, "width": 60000}]}, "at most 89 million in all"),
        ({"images": [{**image, "file_name": "x.png"}]}, "say where they are, coco:FILE.json?"),
        ({"images": []}, "has no images with targets"),
    ):
        assert why in refused(**changes), why
    for box in ([1, 2, 3], [1, 2, 3, "4"], {"x": 1}, [1, 2, 3, 10**400]):
        bad = [{"image_id": 100, "category_id": 3, "bbox": box}]
        assert "is not [x, y, width, height]" in refused(annotations=bad)
    bad = [{"image_id": [1], "category_id": ["\x1b[2J"], "bbox": [1, 2, 3, 4]}]
    told = refused(annotations=bad)
    assert "1 of 1 annotations have a category_id that categories do not list" in told
    assert "\x1b" not in told
    (tmp_path / "all.json").write_text('{"images": [')
    with pytest.raises(UserError, match="is no JSON"):
        data.open_source(f"coco:{tmp_path}/all.json")
    with pytest.raises(UserError, match="there is no file"):
        data.open_source(f"coco:{tmp_path}/none.json")
    with pytest.raises(UserError, match=re.escape("has no ?scale=; it has ?images=")):
        data.open_source(f"coco:{tmp_path}/all.json?scale=1")
