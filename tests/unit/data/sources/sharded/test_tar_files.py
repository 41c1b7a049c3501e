# SPDX-License-Identifier: Apache-2.0
"""WebDataset's tars as a source; faults of a shard are told at the example, never trained on."""

import pickle
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.refusals import refused_by
from tests.shards import as_tars, write_tar
from vit_jax.data import DataConfig, TransformConfig, one_view, open_source, train_batches
from vit_jax.data.config import Crop
from vit_jax.errors import DataError, UserError


@pytest.fixture(scope="module")
def source(folder):
    return open_source(f"folder:{folder}", split="train")


@pytest.fixture
def tars(source, tmp_path: Path) -> Path:
    as_tars(source, tmp_path, "train", 3)
    return tmp_path


def test_it_is_the_source_that_it_was_written_from(source, tars: Path) -> None:
    found = open_source(f"{tars}/mine-train-*.tar", split="train")
    found = pickle.loads(pickle.dumps(found))
    assert found.class_names == source.class_names
    assert not found.drawn
    assert found.labels.tolist() == source.labels.tolist()
    assert [found.read(i) for i in range(24)] == [source.read(i) for i in range(24)]
    assert found.example_id(9) == f"{tars}/mine-train-001.tar: 00009.jpg"
    part = open_source(f"tar:{tars}/*.tar", split="train[:2]")
    assert len(part) == 2
    assert part.digest() != found.digest()
    two = open_source(f"tar:{tars}/*.tar", split="train", classes=(2, 0), cache=True)
    assert {two.read(i)["label"] for i in range(len(two))} == {0, 1}


def test_shards_without_labels_or_splits(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "00000.tar", {f"{i}.jpg": b"x%d" % i for i in range(20)})
    found = {s: open_source(str(path), split=s) for s in ("train", "val", "test", "whole")}
    assert sum(len(found[name]) for name in ("train", "val", "test")) == len(found["whole"]) == 20
    assert min(map(len, found.values())) > 0
    assert found["train"].class_names == ()
    assert found["whole"].read(3) == {
        "image": b"x3",
        "label": -1,
    }
    assert found["val"].digest() != found["test"].digest()
    other = open_source(f"tar:{path}?split_seed=3", split="val")
    assert other.name.endswith("00000.tar[val], split seed 3")


def test_a_missing_label_and_other_names_of_classes(tmp_path: Path) -> None:
    files = {"a.jpg": b"a", "a.json": b'{"kind": "owl"}', "b.jpg": b"b", "c.jpg": b"c"}
    name = f"tar:{write_tar(tmp_path / '0.tar', files | {'c.json': b'{}'})}?label=kind"
    found: Any = open_source(name, split="whole")
    assert found.class_names == ("owl",)
    assert found.labels.tolist() == [0, -1, -1]
    (tmp_path / "classnames.txt").write_text("cat\ndog\n")
    with refused_by("data.sources.sharded.shards.class_ids", kind=DataError) as caught:
        open_source(name, split="whole")
    assert "0.tar/a.jpg: the label is 'owl'" in str(caught.value)
    cfg = DataConfig(batch_size=3, transform=TransformConfig(crop=Crop.RESIZE))
    (tmp_path / "classnames.txt").unlink()
    batches = train_batches(found, cfg, views=one_view(cfg.transform, (8, 8), 3), seed=0)
    with batches, pytest.raises(DataError) as caught:
        next(batches)
    assert re.search(
        r"0\.tar: [bc]\.jpg: the label is -1: an example without a label", str(caught.value)
    )


def test_a_field_that_no_key_has(tmp_path: Path) -> None:
    name = f"tar:{write_tar(tmp_path / '0.tar', {'a.jpg': b'a', 'a.cls': b'1'})}"
    with pytest.raises(UserError, match=r"/0.tar: no image has a label KEY.clas or 'clas' in KEY."):
        open_source(f"{name}?label=clas", split="whole")
    with refused_by("data.sources.sharded.shards.find"):
        open_source(f"{name}?config=x", split="whole")


def test_a_shard_that_changes_during_the_run_is_told_at_the_example(source, tars: Path) -> None:
    found = open_source(f"tar:{tars}/*.tar", split="train")
    shard = tars / "mine-train-001.tar"
    with tarfile.open(shard) as tar:
        opened: Any = tar
        files = {m.name: opened.extractfile(m).read() for m in tar}
    write_tar(shard, files | {"00008.jpg": files["00008.jpg"] + bytes(1000)})  # a member grows
    for index in (8, 15):
        with pytest.raises(DataError) as caught:
            found.read(index)
        message = f"{shard}: {index:05}.jpg: the file has another header than when it was indexed"
        assert str(caught.value) == message
    assert found.read(7) == source.read(7)
    # Another start reads it anew, and resume notices by the digest.
    assert open_source(f"tar:{tars}/*.tar", split="train").digest() != found.digest()


def test_a_shard_that_is_cut(source, tars: Path) -> None:
    found = open_source(f"tar:{tars}/*.tar", split="train")
    shard = tars / "mine-train-002.tar"
    shard.write_bytes(shard.read_bytes()[:3000])
    with pytest.raises(DataError, match=r"002.tar: 00023.jpg: the file is shorter than when it"):
        found.read(23)
    with refused_by("data.sources.sharded.tar_index._index_shard", kind=DataError) as caught:
        open_source(f"tar:{tars}/*.tar", split="train")
    assert "mine-train-002.tar" in str(caught.value)
    shard.unlink()
    with refused_by("data.sources.partition.absolute_slices"):
        open_source(f"tar:{tars}/*.tar", split="val")
