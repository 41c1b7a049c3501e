# SPDX-License-Identifier: Apache-2.0
"""A record that is short or damaged, or has a label that is none, is named by its number."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from array_record.python import array_record_module
from sklearn.datasets import load_sample_image
from tensorflow_datasets.proto import tf_example_pb2

from tests.refusals import refused_by
from tests.unit.data.sources.test_records import Tagged
from vit_jax.data import (
    Crop,
    DataConfig,
    TransformConfig,
    eval_batches,
    one_view,
    open_source,
    train_batches,
)
from vit_jax.data.sources.digits import prepare
from vit_jax.errors import DataError

BAD = 7


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("tfds")
    prepare(root)
    return root


def the_file(root: Path) -> Path:
    (file,) = (root / "digits" / "1.0.0").glob("*test.array_record*")
    return file


def rewritten(digits: Path, root: Path, change: Callable[[bytes], bytes]) -> Path:
    """Copy the digits with one record of the test split changed."""
    shutil.copytree(digits, root, dirs_exist_ok=True)
    rewrite(the_file(root), BAD, change)
    return root


def rewrite(file: Path, index: int, change: Callable[[bytes], bytes]) -> None:
    """Change one record of a file."""
    reader = array_record_module.ArrayRecordReader(str(file))
    records = reader.read_all()
    reader.close()
    records[index] = change(records[index])
    writer = array_record_module.ArrayRecordWriter(str(file), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()


def labelled(*labels: int, feature: str = "label") -> Callable[[bytes], bytes]:
    def change(record: bytes) -> bytes:
        example = tf_example_pb2.Example.FromString(record)
        example.features.feature[feature].int64_list.value[:] = labels
        return example.SerializeToString()

    return change


def without_image(record: bytes) -> bytes:
    example = tf_example_pb2.Example.FromString(record)
    del example.features.feature["image"]
    return example.SerializeToString()


def cut_image(record: bytes) -> bytes:
    example = tf_example_pb2.Example.FromString(record)
    (image,) = example.features.feature["image"].bytes_list.value
    example.features.feature["image"].bytes_list.value[:] = [image[: len(image) // 2]]
    return example.SerializeToString()


CASES = {
    "short": (lambda record: record[: len(record) // 2], "cannot read the dataset in .*"),
    "empty": (lambda record: b"", "cannot read the dataset in .*"),
    "noise": (lambda record: bytes(range(255, 0, -1)), "cannot read the dataset in .*"),
    "no image": (without_image, "cannot read the dataset in .*"),
    "cut image": (cut_image, r"not a readable image \(.+\)"),
    "label beyond": (labelled(10), "the label is 10; classes are 0 to 9"),
    "label below": (labelled(-2), "the label is -2; classes are 0 to 9"),
    "no label": (labelled(-1), "the label is -1: an example without a label"),
}
PLAIN = TransformConfig(crop=Crop.RESIZE)


def one_epoch(root: Path, max_broken: int = 0, num_workers: int = 0):
    source = open_source("digits", str(root), "test[:40]")
    cfg = DataConfig(batch_size=20, transform=PLAIN, max_broken=max_broken, num_workers=num_workers)
    with train_batches(source, cfg, views=one_view(cfg.transform, (8, 8), 1), seed=0) as batches:
        return [next(batches), next(batches)]


@pytest.mark.parametrize("case", CASES)
def test_a_record_that_cannot_be_used_is_named_or_replaced(case, digits, tmp_path):
    change, reason = CASES[case]
    root = rewritten(digits, tmp_path, change)
    with pytest.raises(DataError, match=rf"^digits\[test\[:40\]\] record 7: {reason}") as caught:
        one_epoch(root)
    assert "\n" not in str(caught.value)
    one, two = one_epoch(root, max_broken=1)
    broken = np.concatenate([one["broken"], two["broken"]])
    index = np.concatenate([one["index"], two["index"]])
    assert broken[broken >= 0].tolist() == [BAD]
    assert index[broken >= 0].tolist() == [BAD + 1]
    assert np.isin(np.concatenate([one["label"], two["label"]]), range(10)).all()


@pytest.mark.slow
def test_a_worker_process_says_the_same(digits, tmp_path):
    root = rewritten(digits, tmp_path, CASES["short"][0])
    for here, there in zip(one_epoch(root, 1), one_epoch(root, 1, num_workers=1), strict=True):
        for key in here:
            np.testing.assert_array_equal(here[key], there[key])
    with refused_by("data.sources.records.TfdsSource.read", kind=DataError) as caught:
        one_epoch(root, num_workers=1)
    assert "record 7" in str(caught.value)
    assert caught.value.status == 65


def test_an_evaluation_takes_unlabelled_records_but_no_impossible_label(digits, tmp_path):
    for case, ends in (("no label", False), ("label beyond", True)):
        root = rewritten(digits, tmp_path / case, CASES[case][0])
        source = open_source("digits", str(root), "test[:40]")
        batches = eval_batches(source, one_view(PLAIN, (8, 8), 1), batch_size=40)
        with batches:
            if ends:
                with refused_by("data.sources.records.TfdsSource.read", kind=DataError) as caught:
                    next(batches)
                assert "record 7: the label is 10" in str(caught.value)
            else:
                assert next(batches)["label"][BAD] == -1


@pytest.mark.parametrize("tags, told", [((0, 3), 3), ((-1,), -1), ((2, -2, 1), -2)])
def test_of_several_labels_one_that_is_no_class_is_named(tags, told, tmp_path):
    Tagged.photo = load_sample_image("china.jpg")
    Tagged(data_dir=tmp_path, file_format="array_record").download_and_prepare()
    (file,) = (tmp_path / "tagged" / "2.1.0").glob("*.array_record*")
    rewrite(file, 1, labelled(*tags, feature="tags"))
    source = open_source("tagged", str(tmp_path), "train")
    assert source.read(3)["label"].tolist() == [0, 1, 1]
    expected = rf"record 1: the label is {told}; classes are 0 to 2$"
    with pytest.raises(DataError, match=expected):
        source.read(1)
    cfg = DataConfig(batch_size=4, transform=PLAIN, max_broken=1)
    with train_batches(source, cfg, views=one_view(cfg.transform, (8, 8), 3), seed=0) as batches:
        batch = next(batches)
    assert batch["broken"][batch["broken"] >= 0].tolist() == [1]
    assert batch["label"].shape == (4, 3)


def test_flipped_bytes_of_the_file_are_noticed(digits, tmp_path):
    """By ArrayRecord's own checksums; the other records of the file are not lost with them."""
    shutil.copytree(digits, tmp_path, dirs_exist_ok=True)
    file = the_file(tmp_path)
    content = bytearray(file.read_bytes())
    content[20_000:20_064] = bytes(64)
    file.write_bytes(content)
    source, intact = (open_source("digits", str(at), "test") for at in (tmp_path, digits))
    lost = {}
    for index in range(len(source)):
        try:
            assert source.read(index) == intact.read(index)
        except DataError as error:
            lost[index] = str(error)
    assert 0 < len(lost) < 4
    for index, line in lost.items():
        assert line.startswith(f"digits[test] record {index}: cannot read the dataset")
        assert "\n" not in line
