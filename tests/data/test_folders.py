# SPDX-License-Identifier: Apache-2.0
import pickle

import pytest

from tests.data.conftest import encode
from vit_jax.data import open_source
from vit_jax.data.decode import decode
from vit_jax.errors import UserError


def test_class_ids_come_from_the_union_of_the_splits(folder):
    train, val = (open_source(f"folder:{folder}", split=split) for split in ("train", "val"))
    assert train.class_names == val.class_names == ("cat", "dog", "emu", "owl")
    assert sorted(label for _, label in map(val.read, range(5))) == [1, 1, 1, 3, 3]
    assert not train.multi_label


def test_validation_is_val(folder):
    name = f"folder:{folder}"
    val, other = (open_source(name, split=split) for split in ("val[:2]", "validation[:2]"))
    assert [val.example_id(i) for i in range(2)] == [other.example_id(i) for i in range(2)]


def test_every_file_type_is_found_and_read_back(folder):
    source = open_source(f"folder:{folder}", split="train")
    assert len(source) == 24
    ids = [source.example_id(i) for i in range(24)]
    assert {i.rsplit(".")[-1] for i in ids} == {"jpg", "JPEG", "png", "webp"}
    for i in range(24):
        data, label = source.read(i)
        assert f"/{source.class_names[label]}/" in ids[i]
        assert decode(data, 3).shape[2] == 3


def test_slices_are_mixed_over_classes_and_make_a_partition(folder):
    whole, head, tail = (
        open_source(f"folder:{folder}", split=split)
        for split in ("train", "train[:50%]", "train[50%:]")
    )
    ids = [[source.example_id(i) for i in range(len(source))] for source in (whole, head, tail)]
    assert ids[0] == ids[1] + ids[2]
    assert len(head) == 12
    assert {label for _, label in map(head.read, range(12))} == {0, 1, 2}
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
