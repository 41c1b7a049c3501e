# SPDX-License-Identifier: Apache-2.0
"""A file of records that is cut, or another, is refused before the first step."""

import shutil
from pathlib import Path

from tests.refusals import refused_by
from vit_jax.data import open_source


def test_a_shard_holds_as_many_records_as_the_metadata_tell(tfds_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(tfds_dir, tmp_path, dirs_exist_ok=True)
    (folder,) = (tmp_path / "digits").iterdir()
    (train,), (test,) = folder.glob("*train*-of-*"), folder.glob("*test*-of-*")
    data = train.read_bytes()
    for bad, why in (
        (data[: len(data) // 2], "holds no records that can be read, not 1,437"),
        (data[:-1], "holds no records that can be read"),
        (b"", "holds no records that can be read"),
        (test.read_bytes(), "holds 360 records, not 1,437"),
    ):
        train.write_bytes(bad)
        with refused_by("data.sources.records._unreadable") as caught:
            open_source("digits", str(tmp_path), "train")
        assert f"{train.name} {why}" in str(caught.value)
    assert len(open_source("digits", str(tmp_path), "test")) == 360  # which is whole
    train.write_bytes(data)
    (folder / train.name.replace("-of-00001", "-of-00002")).write_bytes(b"old")
    source = open_source("digits", str(tmp_path), " Training")
    account = source.account  # type: ignore[attr-defined]
    assert (account.used, account.unit) == ({"train": 1437, "test": 360}, "records")
    assert "of no split, and not read: digits-train.array_record-00000-of-00002" in account.notes
