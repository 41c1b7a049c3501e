# SPDX-License-Identifier: Apache-2.0
"""The same images in a folder, tars, Parquet files and ArrayRecord give the same batches."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from tests.shards import as_parquet, as_tars
from tests.unit.data.test_pipeline import RANDOM, same
from vit_jax.data import (
    DataConfig,
    Source,
    copy_records,
    eval_batches,
    one_view,
    open_source,
    train_batches,
)
from vit_jax.data.config import Crop, TransformConfig

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


@pytest.mark.parametrize("form", ["tar", "parquet"])
def test_nor_do_they_depend_on_worker_processes(stored, expected, form: str) -> None:
    source = open_source(*stored[form], split="train")
    source.read(0)  # what has been read stays in this process
    same(take(source, 4, start=2, num_workers=2, num_threads=2), expected[2:])
