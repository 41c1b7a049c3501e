# SPDX-License-Identifier: Apache-2.0
"""What lies in a bucket is the dataset that lies on the disk, to the bit."""

import itertools
import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.bucket import Bucket
from tests.photos import write_images
from tests.refusals import refused_by
from vit_jax.data import (
    Crop,
    DataConfig,
    Source,
    TransformConfig,
    one_view,
    open_source,
    select_classes,
    train_batches,
)
from vit_jax.data.sources import look
from vit_jax.data.sources.base import account_of, balance_of
from vit_jax.errors import DataError
from vit_jax.storage import remote


@pytest.fixture
def served(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    bucket.set()
    return bucket


def same(far: Source, near: Source, indices: Sequence[int] | None = None) -> None:
    assert (len(far), far.class_names, far.digest()) == (len(near), near.class_names, near.digest())
    far = pickle.loads(pickle.dumps(far))  # as worker processes get it
    for index in indices or range(len(near)):
        assert far.read(index) == near.read(index)


def test_tfds(served: Bucket, tfds_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served.put_tree(tfds_dir / "digits", "data/tfds/scans")
    near = open_source("digits", str(tfds_dir), "train[10%:]")
    far = open_source("scans", "gs://data/tfds", "train[10%:]")
    same(far, near, [0, 7, len(near) - 1])
    monkeypatch.setenv("TFDS_DATA_DIR", "gs://data/tfds/")
    assert open_source("scans:1.0.0", split="test").read(3) == open_source(
        "digits", str(tfds_dir), "test"
    ).read(3)
    served.stats()
    served.set(latency_ms=20)
    far_part = open_source("scans", split="train[:300]")
    kept = select_classes(far_part, (3, 1), cache=True)  # reads all labels
    assert served.stats()["most"] > 16
    near_part = open_source("digits", str(tfds_dir), "train[:300]")
    assert len(kept) == len(select_classes(near_part, (3, 1), cache=False))
    served.set()
    with refused_by("data.sources.records._find") as caught:
        open_source("none")
    assert "'none' in gs://data/tfds (there: digits)" in str(caught.value)
    served.set(forbidden="data/")
    for ask in (lambda: open_source("scans"), lambda: far.read(9)):
        with refused_by("storage.remote.trying", kind=remote.RemoteError):
            ask()


@pytest.mark.parametrize("split", ["train", "val[:3]"])
def test_a_folder(served: Bucket, folder: Path, split: str) -> None:
    served.put_tree(folder, "data/photos")
    far = open_source("gs://data/photos", split=split)
    same(far, open_source(f"folder:{folder}", split=split))
    assert far.example_id(0).startswith(f"gs://data/photos/{split[:3]}")
    with refused_by("data.sources.folders._open") as caught:
        open_source("folder:gs://data/none")
    assert "gs://data/none" in str(caught.value)


def test_a_folder_is_read_by_the_same_rules(
    served: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{c}/{i}.png" for c in ("cat", "dog") for i in range(12)]
    more = ("cat/deep/er/1.JFIF", "stray.png", ".x/1.png", "dog/Thumbs.db", "dog/notes.txt")
    write_images(tmp_path, *names, *more)
    (tmp_path / "dog" / "empty.png").touch()
    (tmp_path / "dog" / "copy.png").write_bytes((tmp_path / "cat" / "3.png").read_bytes())
    served.put_tree(tmp_path, "data/mine")
    near, far = (open_source(name, split="train") for name in (str(tmp_path), "gs://data/mine"))
    same(far, near)  # the draw, too
    found = account_of(far)
    assert found == account_of(near)
    assert found is not None
    assert (found.found, found.num_left_out, len(found.notes)) == (31, 5, 1)
    monkeypatch.setattr(look, "MOST_FAR", 20)
    found = account_of(open_source("gs://data/mine", split="train"))
    assert found is not None
    assert found.notes == (
        "nobody looked into the 28 images: in a bucket more than 20 are believed",
    )


def test_a_table(served: Bucket, folder: Path, tmp_path: Path) -> None:
    paths = sorted(p.relative_to(folder) for p in (folder / "train").rglob("*.*"))
    (folder / "labels.csv").write_text(
        "path,label\n" + "".join(f"{path},{path.parts[1]}\n" for path in paths)
    )
    served.put_tree(folder, "data/table")
    near = open_source(f"csv:{folder}/labels.csv", split="train")
    for address in ("gs://data/table/labels.csv", f"{served.url}/data/table/labels.csv"):
        far = open_source(address, split="train")
        same(far, near)
    assert balance_of(far, 1.0) is not None
    np.testing.assert_array_equal(far.labels, near.labels)
    listed = tmp_path / "splits.csv"  # as a run on a folder in a bucket leaves it
    rows = "".join(f"{path},{name}\n" for path, name in far.rows())  # type: ignore[attr-defined]
    listed.write_text(f"path,label\n{rows}")
    again = open_source(str(listed), split="whole")
    assert [again.example_id(i) for i in range(3)] == [far.example_id(i) for i in range(3)]
    assert again.read(1) == far.read(1)
    gone = far.example_id(0).removeprefix(f"{served.url}/")
    served.set(forbidden=gone)
    with refused_by("storage.remote.trying", kind=remote.RemoteError):
        far.read(0)
    served.put("data/table/gone.csv", b"path,label\nx.jpg,1\ny.jpg,2\n")
    with refused_by("data.sources.csv_files.open_csv") as caught:
        open_source("gs://data/table/gone.csv", split="whole")
    assert "2 images" in str(caught.value)
    source = open_source("gs://data/table/gone.csv?rules=1", split="whole")
    with refused_by("storage.remote.trying", kind=DataError):  # may be replaced
        source.read(0)


def test_many_reads_are_in_flight_and_no_batch_depends_on_it(served: Bucket, folder: Path) -> None:
    served.put_tree(folder, "data/photos")
    served.set(latency_ms=20)
    cfg = DataConfig(batch_size=16, transform=TransformConfig(crop=Crop.INCEPTION, flip=True))
    taken = []
    for name in (f"folder:{folder}", "gs://data/photos"):
        views = one_view(cfg.transform, (16, 16), 3)
        with train_batches(open_source(name), cfg, views=views, seed=0) as batches:
            taken.append(list(itertools.islice(batches, 12)))
    assert served.stats()["most"] >= 16  # of 24 images; the loader has 4 threads
    for near, far in zip(*taken, strict=True):
        for key in near:
            np.testing.assert_array_equal(near[key], far[key])
