# SPDX-License-Identifier: Apache-2.0
import os
import pickle
import shutil

import pytest
from PIL import Image

from tests.faults.broken_files import png_bomb
from tests.photos import write_images
from tests.refusals import refused_by
from tests.unit.data.conftest import encode
from vit_jax.data import SplitError, open_source
from vit_jax.data.account import Account
from vit_jax.data.images.decode import decode
from vit_jax.data.images.header import SUFFIXES
from vit_jax.data.sources.base import account_of
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
    with refused_by("data.sources.partition.check_no_seed"):
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
    image, mode = Image.fromarray(photo[:9, :8]), {".pgm": "L", ".pbm": "1"}
    form = {".jif": "JPEG", ".dib": "BMP", ".apng": "PNG", ".avifs": "AVIF", ".mpo": "JPEG"}
    (tmp_path / "cat").mkdir()
    image.convert(mode.get(suffix, "RGB")).save(
        tmp_path / "cat" / f"1{suffix.upper()}", form.get(suffix)
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
    assert "has no images, in folders train, val, test or in itself; expected" in message()
    (root / "train" / "cat").mkdir(parents=True)
    (root / "train" / "cat" / "cat.txt").touch()
    (root / "train" / "cat" / "cat.HEIC").write_bytes(b"x")
    why = "2 of 2 files left out: 1 HEIC, which is not read here (train/cat/cat.HEIC), 1 not an "
    assert why in message()
    (root / "train" / "dog").mkdir()
    (root / "train" / "dog" / "dog.PNG").write_bytes(encode(photo[:8, :8], "PNG"))
    assert "train/cat holds no images; remove it or fill it" in message()
    (root / "train" / "cat" / "cat.PNG").write_bytes(b"none")
    assert "train/cat holds no images, but 1 that cannot be read; remove" in message()
    (root / "train" / "cat" / "cat.PNG").write_bytes(encode(photo[:9, :8], "PNG"))
    assert "unknown split" in message("val")
    inside = write_images(tmp_path / "w", "data/train/a/1.png", "data/val/a/2.png")
    with pytest.raises(UserError, match=r"data; if data is no split, name the folder .*/w/data"):
        open_source(inside)
    assert "2 of 4 files left out" in message("val")
    assert len(open_source(f"folder:{root}")) == 2
    for name in ("x.zip", "x.tar.gz"):
        (tmp_path / name).touch()
        for path in (f"{tmp_path}/{name}", f"folder:{tmp_path}/{name}"):
            with refused_by("data.sources.partition.check_no_archive"):
                open_source(path)
    with refused_by("data.sources.partition.check_no_archive") as caught:
        open_source("birds.7Z")
    assert "birds.7Z" in str(caught.value)
    with pytest.raises(UserError, match=r"dog\.PNG is a file, and no folder"):
        open_source(f"{root}/train/dog/dog.PNG")


def account(name: str) -> Account:
    found = account_of(open_source(name, split=splits_of(name)[0]))
    assert found is not None
    return found


def splits_of(name: str) -> tuple[str, ...]:
    with pytest.raises(SplitError) as caught:
        open_source(name, split="?")
    return caught.value.splits


def test_found_is_used_and_left_out_with_reasons(tmp_path):
    name = write_images(
        tmp_path,
        *(f"{c}/{i}.png" for c in ("cat", "dog") for i in range(10)),
        *("cat/more/deep/1.JFIF", "stray.png", "cat/photo", "cat/photo.JPG.1"),
        *(".DS_Store", "__MACOSX/cat/0.png", "cat/Thumbs.db", "dog/@eaDir/x.jpg", "dog/.x/y.png"),
    )
    (tmp_path / "dog" / "notes.txt").write_text("no image")
    (tmp_path / "dog" / "notes").write_text("no image")
    (tmp_path / "dog" / "empty.jpg").touch()
    (tmp_path / "dog" / "text.jpg").write_text("<html>404</html>")
    (tmp_path / "dog" / "bomb.png").write_bytes(png_bomb(20_000, 20_000))
    (tmp_path / "dog" / "phone.HEIC").write_bytes(b"x")
    (tmp_path / "dog" / "more.zip").write_bytes(b"x")
    (tmp_path / "dog" / "link.png").symlink_to("nowhere")
    (tmp_path / "dog" / "loop").symlink_to("..")
    (tmp_path / "dog" / "self").symlink_to("self")
    os.mkfifo(tmp_path / "dog" / "pipe.png")
    found = account(name)
    assert found.used.keys() == {"train", "val", "test"}
    assert sum(found.used.values()) == 21
    assert found.found == 21 + 19
    assert {why: each.count for why, each in found.left_out.items()} == {
        "hidden or of the system": 5,
        "not named as an image": 2,
        "not an image": 2,
        "link in a circle": 2,
        "beside the class folders": 1,
        "empty": 1,
        "without an image in it": 1,
        "of too many pixels": 1,
        "HEIC, which is not read here": 1,
        "archive, to be unpacked": 1,
        "dangling link": 1,
        "pipe, socket or device": 1,
    }
    assert found.left_out["beside the class folders"].first == ("stray.png",)
    assert not found.notes
    assert found.line().startswith("2 classes in 3 splits (train ")
    whole = open_source(name, split="whole")
    deep = next(i for i in range(21) if "deep" in whole.example_id(i))
    assert whole.class_names[whole.read(deep)["label"]] == "cat"


def test_splits_stay_splits_whatever_lies_beside(tmp_path):
    split = ("cat/0.png", "cat/1.png", "dog/0.png")
    inside = [f"{s}/{name}" for s in ("TRAIN", "test") for name in split]
    name = write_images(tmp_path, *inside, "TRAIN/stray.png", "test/stray.png", "run/curve.png")
    assert splits_of(name) == ("TRAIN", "test")
    assert open_source(name).class_names == ("cat", "dog")
    found = account(name)
    assert found.used == {"TRAIN": 3, "test": 3}
    assert {why: each.count for why, each in found.left_out.items()} == {
        "beside the class folders": 2,
        "outside the splits": 1,
    }


def test_a_split_of_images_alone_has_no_labels(tmp_path):
    train = [f"train/{c}/{i}.png" for c in ("cat", "dog") for i in range(3)]
    name = write_images(tmp_path, *train, *(f"val/{i}.png" for i in range(4)))
    val = open_source(name, split="validation")
    assert (val.class_names, val.labels.tolist()) == (("cat", "dog"), [-1] * 4)
    assert account(name).notes == ("val: no class folders in it, so its images have no labels",)
    # Both of them, and no others: splits without any class.
    name = write_images(tmp_path / "b", *(f"{s}/{i}.png" for s in ("train", "val") for i in (1, 2)))
    assert splits_of(name) == ("train", "val")
    assert open_source(name).class_names == ()
    # A vehicle among others is a class.
    name = write_images(tmp_path / "c", *(f"{s}/{i}.png" for s in ("bus", "train") for i in (1, 2)))
    assert open_source(name, split="whole").class_names == ("bus", "train")


def test_images_alone_and_one_class(tmp_path):
    name = write_images(tmp_path / "flat", *(f"{i}.png" for i in range(30)))
    whole = open_source(name, split="whole")
    assert (len(whole), whole.class_names, {*whole.labels.tolist()}) == (30, (), {-1})
    assert splits_of(name) == ("train", "val", "test", "whole")
    name = write_images(tmp_path / "one", *(f"cat/{i}.png" for i in range(30)))
    assert open_source(name, split="whole").class_names == ("cat",)


def test_names_that_look_alike_are_said(tmp_path):
    two = write_images(tmp_path / "a", "Cat/1.png", "cat/2.png")
    assert (
        "'Cat' and 'cat' are 2 classes; if they are one, give them one name" in account(two).notes
    )
    numbers = write_images(tmp_path / "n", "0/1.png", "00/2.png", "1/3.png")
    assert (
        "'0' and '00' are 2 classes; if they are one, give them one name" in account(numbers).notes
    )
    forms = [f"{x}/{i}.png" for i, x in enumerate(["caf\u00e9", "cafe\u0301", " caf\u00e9"])]
    one = write_images(tmp_path / "b", *forms)
    assert open_source(one, split="whole").class_names == ("caf\u00e9",)
    assert len(account(one).notes) == 2
    both = write_images(tmp_path / "c", "train/a/1.png", "training/a/2.png", "val/b/1.png")
    assert "'train' and 'training' are 2 splits, of one meaning" in account(both).notes
    (tmp_path / "c" / "train" / "b").mkdir()
    assert "train: no images of 'b'" in account(both).notes


def test_copies_are_counted_within_and_across(tmp_path, photo):
    name = write_images(tmp_path, *(f"{s}/{c}/1.png" for s in ("train", "val") for c in "ab"))
    large = encode(photo, "PNG")  # more than a look reads of it
    for path in ("train/a/2.png", "val/a/2.png", "train/b/3.png", "train/b/4.png"):
        (tmp_path / path).write_bytes(large)
    other = bytearray(large)
    other[-1000] ^= 1  # of the same size and beginning
    (tmp_path / "val" / "b" / "5.png").write_bytes(bytes(other))
    shutil.copy(tmp_path / "train/a/1.png", tmp_path / "val/a/9.png")
    assert account(name).notes == (
        "2 images lie in train and in val (by content), first: train/a/1.png = val/a/9.png",
        "1 image has two classes or more (by content), first: train/a/2.png = train/b/3.png",
        "1 image is there twice or more in a class (by content), first: "
        "train/a/2.png = train/b/3.png",
    )


def test_files_that_differ_in_their_suffix_alone_are_noted(tmp_path):
    names = ["a.jpg", "a.png", "b.jpg", "b.webp", "b.x.jpg", "c.png"]
    inside = (f"train/cat/{n}" for n in names)
    name = write_images(tmp_path, *inside, "train/dog/a.jpg", "val/cat/c.png", "val/dog/d.png")
    (note,) = account(name).notes
    assert note.startswith("train/cat/a.jpg and train/cat/a.png, and 1 more such: one photograph")


def test_a_class_spelled_in_two_cases_by_two_splits_is_refused(tmp_path):
    name = write_images(tmp_path, "train/Cat/a.png", "val/cat/a.png")
    with pytest.raises(UserError, match="the class 'Cat' of train is 'cat' in val"):
        open_source(name)
    # Accents in two encodings are one spelling; handwritten letters are two classes.
    name = write_images(tmp_path / "b", "train/caf\u00e9/a.png", "val/cafe\u0301/a.png")
    assert open_source(name).class_names == ("caf\u00e9",)
    name = write_images(tmp_path / "c", "train/a/1.png", "train/A/1.png", "val/a/1.png")
    assert open_source(name).class_names == ("A", "a")


def test_what_is_no_file_is_no_image(tmp_path):
    name = write_images(tmp_path, "train/cat/a.png", "train/cat/b.png/notes.txt")
    os.mkfifo(tmp_path / "train" / "cat" / "c.png")
    (tmp_path / "train" / "cat" / "d.png").symlink_to("a.png")
    (tmp_path / "train" / "cat" / "e.png").symlink_to("b.png")
    source = open_source(name)
    assert sorted(source.example_id(i)[-5:] for i in range(len(source))) == ["a.png", "d.png"]
    assert account(name).found == 5


def test_a_name_of_two_lines_is_told_in_one(tmp_path):
    source = open_source(write_images(tmp_path, "train/cat/two\nlines.png"))
    assert source.example_id(0) == repr(str(tmp_path / "train" / "cat" / "two\nlines.png"))
    assert source.read(0)["label"] == 0


def test_rules_1_read_as_before(tmp_path):
    inside = [f"{c}/{i}.png" for c in ("cat", "dog") for i in range(10)]
    name = write_images(tmp_path, *inside, "cat/deep/1.png", "dog/new.jfif", "stray.png")
    (tmp_path / "cat" / "empty.png").touch()
    before = open_source(f"{name}?rules=1", split="whole")
    assert (len(before), account_of(before)) == (21, None)
    sizes = [len(open_source(f"{name}?rules=1&split_seed=3", split=s)) for s in ("train", "val")]
    assert sizes == [17, 2]
    with refused_by("data.sources.partition.draw_of") as caught:
        open_source(f"{name}?rules=7")
    assert "rules=7" in str(caught.value)
