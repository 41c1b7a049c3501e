# SPDX-License-Identifier: Apache-2.0
"""The same images in a folder, tars, Parquet files and ArrayRecord give the same batches."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from tests.bucket import Bucket
from tests.conftest import needs_s3fs
from tests.refusals import refused_by
from tests.shards import as_parquet, as_tars
from tests.unit.data.stream.test_pipeline import RANDOM, same
from vit_jax.data import DataConfig, Source, eval_batches, one_view, open_source, train_batches
from vit_jax.data.config import Crop, TransformConfig
from vit_jax.data.sources import copy_records
from vit_jax.errors import DataError

VIEW = one_view(RANDOM, (32, 32), 3)
FORMATS = ("tar", "parquet", "hf", "arrayrecord")


@pytest.fixture(scope="module")
def stored(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """Write the photographs of `folder` in every format; returns name and data_dir."""
    root = tmp_path_factory.mktemp("stored")
    for split, count in (("train", 3), ("val", 1)):
        source = open_source(f"folder:{folder}", split=split)
        as_tars(source, root / "tar", split, count)
        as_parquet(source, root / "hf" / "data", split, count, rows=4)
    names = {
        "tar": (f"tar:{root}/tar/*-{{train,val}}-*.tar", ""),
        "parquet": (f"parquet:{root}/hf/data/*.parquet", ""),
        "hf": (f"hf:{root}/hf", ""),
    }
    sources = {split: open_source(names["tar"][0], split=split) for split in ("train", "val")}
    before, copy_records._SHARD_BYTES = copy_records._SHARD_BYTES, 20_000
    copy_records.write(root / "copy", sources, 2, print)
    copy_records._SHARD_BYTES = before
    return {**names, "arrayrecord": ("copy", str(root))}


def take(source: Source, steps: int, start: int = 0, rows=None, **changes):
    cfg = DataConfig(**{"batch_size": 10, "transform": RANDOM, **changes})
    given = {"views": VIEW, "seed": 3, "start_step": start, "rows": rows}
    with train_batches(source, cfg, **given) as batches:
        return list(itertools.islice(batches, steps))


@pytest.fixture(scope="module")
def expected(folder: Path):
    return take(open_source(f"folder:{folder}", split="train"), 6, num_threads=1)


@pytest.mark.parametrize("form", FORMATS)
def test_batches_are_those_of_the_folder_for_any_threads_hosts_and_start(
    stored, expected, folder: Path, form: str
) -> None:
    source = open_source(*stored[form], split="train")
    same(take(source, 6, num_threads=3), expected)
    same(take(source, 3, start=3, num_threads=1), expected[3:])  # another run goes on
    for hosts in (2, 4):
        for owned in np.array_split(np.arange(10), hosts):
            mine = [{key: x[owned] for key, x in batch.items()} for batch in expected[2:4]]
            same(take(source, 2, start=2, rows=owned, num_threads=2), mine)
    view = one_view(TransformConfig(crop=Crop.RESIZE), (32, 32), 3)
    plain = open_source(f"folder:{folder}", split="val")
    with (
        eval_batches(open_source(*stored[form], split="val"), view, batch_size=4) as found,
        eval_batches(plain, view, batch_size=4) as wanted,
    ):
        same(list(found), list(wanted))


def test_a_bucket_holds_what_the_disk_does(
    stored, expected, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    bucket.set()
    root = Path(stored["arrayrecord"][1])
    bucket.put_tree(root, "data")
    bucket.set(readonly="data/")
    open_source("tar:gs://data/tar/*.tar", split="train")
    assert list((tmp_path / "vit_jax" / "tar").rglob("*.npz"))  # the cache, if not beside them
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another_host"))
    bucket.set()
    before = bucket.stats()["requests"]
    tars = f"{bucket.url}/data/tar/mine-{{train-{{000..002}},val-000}}.tar"
    for name in ("tar:gs://data/tar/*.tar", "gs://data/tar/mine-{train,val}-*.tar", tars):
        source = open_source(name, split="train")
        near = open_source(stored["tar"][0], split="train")
        assert source.class_names == near.class_names
        assert source.digest() == near.digest()
        assert [source.read(i) for i in range(24)] == [near.read(i) for i in range(24)]
    # The last took 4 sizes, 4 shards of one request each, the names of classes, 24 images.
    assert bucket.stats()["requests"] - before < 3 * 40
    assert len([name for name in bucket.names("data/tar") if name.endswith(".npz")]) == 1
    bucket.set(latency_ms=5, refused=0.05, seed=1)
    for name, data_dir in (("copy", "gs://data"), ("tar:gs://data/tar/*.tar", "")):
        same(take(open_source(name, data_dir, "train"), 6), expected)
    bucket.set()
    source = open_source("gs://data/hf/data/*.parquet", split="train")
    bucket.put("data/hf/data/train-00001-of-00003.parquet", b"cut")
    with refused_by(
        "data.sources.sharded.parquet_files.ParquetSource._value", kind=DataError
    ) as caught:
        source.read(8)
    assert "-00001-of-00003.parquet row 0" in str(caught.value)
    with refused_by("data.sources.sharded.parquet_files._reading", kind=DataError) as caught:
        open_source("gs://data/hf/data/*.parquet", split="train")
    assert "00001-of-00003.parquet" in str(caught.value)
    source = open_source("gs://data/tar/*.tar", split="train")
    bucket.put("data/tar/mine-train-001.tar", bytes(30_000))
    with refused_by("data.sources.sharded.tar_files.TarSource._member", kind=DataError) as caught:
        source.read(8)
    assert "gs://data/tar/mine-train-001.tar: 00008.jpg" in str(caught.value)


def test_s3_holds_what_the_disk_does(stored, expected, bucket: Bucket) -> None:
    needs_s3fs()
    bucket.set()
    bucket.put_tree(Path(stored["arrayrecord"][1]), "data")
    bucket.set(latency_ms=5, refused=0.05, seed=1)
    name = "parquet:s3://data/hf/data/train-{00000..00002}-of-00003.parquet"
    same(take(open_source(name, "", "train"), 6), expected)


@pytest.mark.parametrize("form", ["tar", "parquet"])
def test_nor_do_they_depend_on_a_worker_process(stored, expected, form: str) -> None:
    source = open_source(*stored[form], split="train")
    source.read(0)  # what has been read stays in this process
    same(take(source, 4, start=2, num_workers=1, num_threads=2), expected[2:])
