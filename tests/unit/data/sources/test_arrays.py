# SPDX-License-Identifier: Apache-2.0
"""Folders, tables and Parquet files of bands: which files are an image, and which are unlike."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vit_jax import data
from vit_jax.data import inspection
from vit_jax.data.images import bands
from vit_jax.data.images.decode import decode
from vit_jax.data.sources.base import account_of
from vit_jax.errors import UserError

DEEP = np.random.default_rng(0).integers(0, 5000, (6, 8, 4)).astype(np.uint16)
RULES = data.Reading(bands=("all",), dtype=data.PixelType.UINT16)


def write(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bands.as_file(array))


def test_files_unlike_most_are_left_out_and_counted(tmp_path: Path) -> None:
    for name in ("cat/a", "cat/b", "dog/a", "dog/b"):
        write(tmp_path / f"set/train/{name}.npy", DEEP + len(name))
    write(tmp_path / "set/train/cat/other.npy", DEEP[..., :3])
    write(tmp_path / "set/train/cat/float.npy", DEEP.astype(np.float32))
    (tmp_path / "set/train/cat/photo.jpg").write_bytes(b"\xff\xd8\xff")
    (tmp_path / "set/train/cat/cut.npy").write_bytes(bands.as_file(DEEP)[:40])
    for _ in range(2):  # the second time from the cache
        source = data.open_source(f"folder:{tmp_path}/set", split="train", bands=("all",))
        assert len(source) == 4
        assert source.class_names == ("cat", "dog")
        account = account_of(source)
        assert account is not None
        assert account.num_left_out == 4
        line = account.line()
        assert "1 of 3 bands of uint16, where most are of 4 bands of uint16 (train/cat/" in line
        assert "1 of 4 bands of float32, where most are" in line
        assert "no file of bands" in line
        assert "broken header" in line
    with pytest.raises(UserError, match="holds no images"):
        data.open_source(f"folder:{tmp_path}/set", split="train")  # no pictures are there


def test_a_folder_of_bands_is_an_image(tmp_path: Path) -> None:
    for patch in ("cat/p1", "cat/p2", "dog/p3"):
        for band, name in enumerate(("B02", "B03", "B8A")):
            write(tmp_path / f"set/train/{patch}/S2_{name}.npy", DEEP[..., band] + len(patch))
    write(tmp_path / "set/train/dog/p4/S2_B02.npy", DEEP[..., 0])
    chosen = ("B8A", "B02")
    source = data.open_source(f"folder:{tmp_path}/set", split="train", bands=chosen)
    assert len(source) == 3
    assert source.class_names == ("cat", "dog")
    account = account_of(source)
    assert account is not None
    assert "lacks the band B8A; it has B02" in account.line()
    rules = RULES._replace(bands=chosen)
    found = decode(source.read(0)["image"], 2, rules)
    np.testing.assert_array_equal(found, DEEP[..., [2, 0]] + 6)
    sources = inspection.open_splits(f"folder:{tmp_path}/set", chosen=chosen)
    seen = inspection.inspect(sources, 1)
    assert seen.num_decoded == 3
    table = tmp_path / "table.csv"
    table.write_text("path,label\nset/train/cat/p1,cat\nset/train/dog/p3,dog\n")
    listed = data.open_source(f"csv:{table}", split="whole", bands=chosen)
    assert decode(listed.read(0)["image"], 2, rules).shape == (6, 8, 2)
    table.write_text("path,label,depth\nset/train/cat/p1,cat|far,3\nset/train/dog/p3,dog,5\n")
    listed = data.open_source(f"csv:{table}", split="whole", bands=chosen)
    assert listed.read(0)["label"].tolist() == [1, 0, 1]
    listed = data.open_source(f"csv:{table}?target=depth", split="whole", bands=chosen)
    assert listed.read(1)["value"].tolist() == [5]


def test_parquet_has_arrays_as_lists_or_as_files(tmp_path: Path, subtests: pytest.Subtests) -> None:
    nested = pa.array([DEEP.tolist()] * 3, pa.list_(pa.list_(pa.list_(pa.uint16()))))
    files = pa.array([bands.as_file(DEEP)] * 3)
    for kind, column in (("lists", nested), ("files", files)):
        with subtests.test(kind):
            table = pa.table({"image": column, "label": [0, 1, 0]})
            pq.write_table(table, tmp_path / f"{kind}-train.parquet")
            name = f"parquet:{tmp_path}/{kind}-train.parquet"
            source = data.open_source(name, split="train", bands=("all",))
            found = decode(source.read(1)["image"], 4, RULES)
            np.testing.assert_array_equal(found, DEEP)
            assert source.read(1)["label"] == 1
    with pytest.raises(UserError, match="no column of images"):
        data.open_source(f"parquet:{tmp_path}/lists-train.parquet", split="train")


def test_check_data_finds_what_is_not_finite_and_unlike(tmp_path: Path) -> None:
    floats = DEEP.astype(np.float32)
    floats[0, 0, 0] = np.nan
    arrays = [DEEP, DEEP + 1, DEEP[..., :2], floats, np.full_like(DEEP, 7)]
    column = pa.array([bands.as_file(array) for array in arrays])
    pq.write_table(
        pa.table({"image": column, "label": [0, 1, 0, 1, 0]}), tmp_path / "a-train.parquet"
    )
    sources = inspection.open_splits(f"parquet:{tmp_path}/a-train.parquet", chosen=("all",))
    found = inspection.inspect(sources, 1).findings
    kinds = [(each.found, each.index) for each in found]
    assert ("of other bands", 2) in kinds
    assert ("of one colour", 4) in kinds
    assert any("1 of 192 values are NaN" in each.why for each in found)
