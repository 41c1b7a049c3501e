# SPDX-License-Identifier: Apache-2.0
"""Pascal VOC's folders: boxes, classes of pixels, objects, splits."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.counted import account
from vit_jax import data
from vit_jax.data.sources.dense import voc
from vit_jax.errors import UserError

OBJECT = """<object><name>{}</name><difficult>{}</difficult><bndbox><xmin>{}</xmin>
<ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox></object>"""


def write(root: Path, names: tuple[str, str] = ("cat", "dog"), count: int = 6) -> Path:
    for folder in ("JPEGImages", "Annotations", "SegmentationClass", "SegmentationObject"):
        (root / folder).mkdir(parents=True)
    for kind in ("Main", "Segmentation"):
        (root / "ImageSets" / kind).mkdir(parents=True)
    for i in range(count):
        Image.new("RGB", (12, 10), (40 * i, 0, 0)).save(root / f"JPEGImages/{i}.jpg")
        objects = [OBJECT.format(names[0], 0, 3, 2, 6, 5), OBJECT.format(names[1], 1, 7, 6, 20, 9)]
        size = "<size><width>12</width><height>10</height><depth>3</depth></size>"
        text = f"<annotation><filename>{i}.jpg</filename>{size}{''.join(objects)}</annotation>"
        (root / f"Annotations/{i}.xml").write_text(text)
    for i in range(3):  # as in VOC, fewer have masks
        objects, classes = np.zeros((2, 10, 12), np.uint8)
        objects[1:5, 2:6], objects[5:9, 6:12], objects[5, 6:12] = 1, 2, 255
        classes[1:5, 2:6], classes[5:9, 6:12], classes[5, 6:12] = 8, 12, 255
        for name, array in (("SegmentationObject", objects), ("SegmentationClass", classes)):
            mask = Image.fromarray(array)
            mask.putpalette(list(range(256)) * 3)
            mask.save(root / name / f"{i}.png")
    (root / "ImageSets/Main/train.txt").write_text("\n".join(map(str, range(4))) + "\n")
    (root / "ImageSets/Main/val.txt").write_text("4\n5\n")
    (root / "ImageSets/Main/trainval.txt").write_text("\n".join(map(str, range(6))))
    (root / "ImageSets/Main/cat_train.txt").write_text("0  1\n1 -1\n")
    (root / "ImageSets/Segmentation/train.txt").write_text("0\n1\n")
    (root / "ImageSets/Segmentation/val.txt").write_text("2\n")
    return root


def test_boxes_count_pixels_from_one(tmp_path: Path) -> None:
    root = write(tmp_path / "voc")
    source = data.open_source(f"voc:{root}?masks=none", split="val")
    assert (len(source), source.num_classes) == (2, 20)
    assert account(source).used == {"train": 4, "val": 2}
    notes = account(source).notes
    assert "6 objects are difficult: they neither teach nor count" in account(source).said
    assert (
        "6 boxes are partly outside of their image, and clipped (first: JPEGImages/0.jpg)" in notes
    )
    target = data.target_of(source, 0)
    assert target.boxes.tolist() == [[2, 1, 6, 5], [6, 5, 12, 9]]
    assert [source.class_names[k] for k in target.classes] == ["cat", "dog"]
    assert target.crowd.tolist() == [False, True]
    assert target.masks is None
    with pytest.raises(UserError, match=r"has no \?masks=some; \?masks=none takes the boxes"):
        data.open_source(f"voc:{root}?masks=some")
    with pytest.raises(UserError, match="ignore= is of masks, and these are boxes"):
        data.open_source(f"voc:{root}?ignore=3&masks=none")


def test_pngs_give_pixels_and_objects(tmp_path: Path) -> None:
    root = write(tmp_path / "voc")
    pixels = data.open_source(f"voc:{root}", split="train", target="pixels")
    assert (len(pixels), pixels.num_classes, pixels.class_names[0]) == (2, 21, "background")
    found = data.target_of(pixels, 0).label_map
    assert {k: int((found == k).sum()) for k in (-1, 0, 8, 12)} == {-1: 6, 0: 80, 8: 16, 12: 18}
    source = data.open_source(f"voc:{root}", split="val")
    assert "3 without a mask" in account(source).line()
    target = data.target_of(source, 0)
    assert [source.class_names[k] for k in target.classes] == ["cat", "dog"]
    assert target.boxes.tolist() == [[2, 1, 6, 5], [6, 6, 12, 9]]
    assert target.masks.sum((1, 2)).tolist() == [16, 18]
    # Names without the background, of which no object is.
    (root / "classes.txt").write_text("\n".join(voc.NAMES))
    source = data.open_source(f"voc:{root}?zero=ignore", split="val")
    assert source.class_names == voc.NAMES
    found = data.target_of(source, 0)
    np.testing.assert_array_equal(found.classes, target.classes)
    np.testing.assert_array_equal(found.masks, target.masks)


def test_xml_beside_images_and_own_names(tmp_path: Path) -> None:
    root = write(tmp_path / "voc", ("red bird", "bee"))
    for split, numbers in (("train", range(4)), ("valid", range(4, 6))):
        (root / "export" / split).mkdir(parents=True)
        for i in numbers:
            for path in (root / f"JPEGImages/{i}.jpg", root / f"Annotations/{i}.xml"):
                path.rename(root / "export" / split / path.name)
    (root / "export/train/0.xml").unlink()
    (root / "export/train/1.xml").write_text("<annotation>")
    source = data.open_source(f"voc:{root}/export", split="val")
    assert source.class_names == ("bee", "red bird")
    assert account(source).used == {"train": 2, "valid": 2}
    why = account(source).why_left_out()
    assert "1 with XML that cannot be read (train/1.jpg)" in why
    assert "1 without XML (train/0.jpg)" in why
    with pytest.raises(UserError, match="and not a class for each pixel"):
        data.open_source(f"voc:{root}/export", target="pixels")
    (root / "export/classes.txt").write_text("bee\nant\n")
    with pytest.raises(UserError, match=r"4 of 8 objects are of classes that classes.txt lacks"):
        data.open_source(f"voc:{root}/export")
    (root / "export/classes.txt").write_text("bee\n\nred bird\n")
    with pytest.raises(UserError, match=r"classes.txt: the name of class 1 is ''; give a text"):
        data.open_source(f"voc:{root}/export")
    bomb = '<!DOCTYPE a [<!ENTITY x "y">]><annotation>&x;</annotation>'
    for path in (root / "export").rglob("*.xml"):
        path.write_text(bomb)
    with pytest.raises(UserError, match="no XML file has an object"):
        data.open_source(f"voc:{root}/export")
    with pytest.raises(UserError, match="has no XML; expected Annotations"):
        data.open_source(f"voc:{root}/ImageSets")
