# SPDX-License-Identifier: Apache-2.0
import os
import pickle

import pytest
from PIL import Image

from tests.unit.data.conftest import encode
from vit_jax.data import open_source
from vit_jax.data.decode import decode
from vit_jax.data.image_header import SUFFIXES
from vit_jax.errors import UserError


def test_class_ids_come_from_the_union_of_the_splits(folder):
    train, val = (open_source(f"folder:{folder}", split=split) for split in ("train", "val"))
    assert train.class_names == val.class_names == ("cat", "dog", "emu", "owl")
    assert sorted(val.read(i)["label"] for i in range(5)) == [1, 1, 1, 3, 3]
    assert not train.multi_label


def test_validation_is_val(folder):
    name = f"folder:{folder}"
    val, other = (open_source(name, split=split) for split in ("val[:2]", "validation[:2]"))
    assert [val.example_id(i) for i in range(2)] == [other.example_id(i) for i in range(2)]
    with pytest.raises(UserError, match="has splits of its own; leave out split_seed=2"):
        open_source(f"{name}?split_seed=2", split="val")


def test_every_file_type_is_found_and_read_back(folder):
    source = open_source(f"folder:{folder}", split="train")
    assert len(source) == 24
    ids = [source.example_id(i) for i in range(24)]
    assert {i.rsplit(".")[-1] for i in ids} == {"jpg", "JPEG", "png", "webp"}
    for i in range(24):
        example = source.read(i)
        data, label = example["image"], example["label"]
        assert f"/{source.class_names[label]}/" in ids[i]
        assert decode(data, 3).shape[2] == 3


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_format_that_is_read_is_found(tmp_path, photo, suffix):
    image = Image.fromarray(photo[:9, :8])
    (tmp_path / "cat").mkdir()
    form = {".jif": "JPEG", ".dib": "BMP"}.get(suffix)  # which Pillow does not know by these
    (image.convert("L") if suffix == ".pgm" else image).save(
        tmp_path / "cat" / f"1{suffix.upper()}", form
    )
    source = open_source(f"folder:{tmp_path}", split="whole")
    assert [decode(source.read(i)["image"], 3).shape for i in range(len(source))] == [(9, 8, 3)]


def test_slices_are_mixed_over_classes_and_make_a_partition(folder):
    whole, head, tail = (
        open_source(f"folder:{folder}", split=split)
        for split in ("train", "train[:50%]", "train[50%:]")
    )
    ids = [[source.example_id(i) for i in range(len(source))] for source in (whole, head, tail)]
    assert ids[0] == ids[1] + ids[2]
    assert len(head) == 12
    assert {head.read(i)["label"] for i in range(12)} == {0, 1, 2}
    assert len(open_source(f"folder:{folder}", split="train+val[:2]")) == 26


def test_a_folder_source_survives_pickling(folder):
    source = open_source(f"folder:{folder}", split="train")
    copy = pickle.loads(pickle.dumps(source))
    assert all(copy.read(i) == source.read(i) for i in range(len(source)))


def test_each_wrong_layout_has_its_own_line(tmp_path, photo):
    root = tmp_path / "data"

    def message(split: str = "train") -> str:
        with pytest.raises(UserError) as caught:
            open_source(f"folder:{root}", split=split)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "no folder" in message()
    root.mkdir()
    assert "none of the folders train, val, test" in message()
    (root / "train").mkdir()
    assert "no class folders" in message()
    (root / "train" / "cat").mkdir()
    (root / "train" / "cat" / "cat.txt").touch()
    assert "train/cat holds no images" in message()
    (root / "train" / "cat" / "cat.PNG").write_bytes(encode(photo[:8, :8], "PNG"))
    assert "unknown split" in message("val")
    assert len(open_source(f"folder:{root}")) == 1


def write(root, *names):
    for name in names:
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x")
    return f"folder:{root}"


def test_files_that_differ_in_their_suffix_alone_are_told_once(tmp_path, capsys):
    names = ["a.jpg", "a.png", "b.jpg", "b.webp", "b.x.jpg", "c.png"]
    name = write(tmp_path, *(f"train/cat/{n}" for n in names), "train/dog/a.jpg", "val/cat/c.png")
    for _ in range(2):
        assert len(open_source(name)) == 7
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: {tmp_path}/train/cat has ")
    assert "/train/cat has a.jpg and a.png, and 1 more such: one photograph twice would" in line


def test_a_class_spelled_in_two_ways_by_two_splits_is_refused(tmp_path):
    for i, (one, two) in enumerate([("Cat", "cat"), ("caf\u00e9", "cafe\u0301")]):
        name = write(tmp_path / str(i), f"train/{one}/a.png", f"val/{two}/a.png")
        with pytest.raises(UserError, match=f"the class '{one}' of train is '{two}' in val"):
            open_source(name)
    # Handwritten letters: two classes.
    name = write(tmp_path / "letters", "train/a/1.png", "train/A/1.png", "val/a/1.png")
    assert open_source(name).class_names == ("A", "a")


def test_what_is_no_file_is_no_image(tmp_path):
    name = write(tmp_path, "train/cat/a.png", "train/cat/b.png/notes.txt")
    os.mkfifo(tmp_path / "train" / "cat" / "c.png")
    (tmp_path / "train" / "cat" / "d.png").symlink_to("a.png")
    source = open_source(name)
    assert sorted(source.example_id(i)[-5:] for i in range(len(source))) == ["a.png", "d.png"]


def test_a_name_of_two_lines_is_told_in_one(tmp_path):
    source = open_source(write(tmp_path, "train/cat/two\nlines.png"))
    assert source.example_id(0) == repr(str(tmp_path / "train" / "cat" / "two\nlines.png"))
    assert source.read(0) == {"image": b"x", "label": 0}
