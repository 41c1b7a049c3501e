# SPDX-License-Identifier: Apache-2.0
"""Datasets of the Hub and their snapshots: splits by the card or by names, configs by choice."""

from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

from tests.refusals import refused_by
from tests.shards import as_parquet, as_tars, write_tar
from vit_jax.data import open_source
from vit_jax.errors import DataError, UserError
from vit_jax.storage import remote

CARD = """---
license: mit
configs:
- config_name: small
  data_files:
  - split: fit
    path: small/*.parquet
  - split: held
    path:
    - big/val*.parquet
- config_name: big
  data_files: big/train-*
---
# Mine
"""


@pytest.fixture(scope="module")
def source(folder):
    return open_source(f"folder:{folder}", split="train")


@pytest.fixture(scope="module")
def snapshot(source, folder, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("snapshot")
    as_parquet(source, root / "small", "x", 2)
    as_parquet(source, root / "big", "train", 1)
    as_parquet(open_source(f"folder:{folder}", split="val"), root / "big", "val", 1)
    return root


def test_files_without_a_card(source, snapshot: Path) -> None:
    with refused_by("data.sources.partition.absolute_slices") as caught:
        open_source(f"hf:{snapshot}", split="test")
    assert "train, val, x" in str(caught.value)
    found = open_source(f"hf:{snapshot}", split="train")
    assert [found.read(i) for i in range(24)] == [source.read(i) for i in range(24)]
    assert len(open_source(f"hf:{snapshot}", split="x[:50%]")) == 12


def test_splits_and_configs_of_the_card(source, snapshot: Path) -> None:
    card = snapshot / "README.md"
    card.write_text(CARD)
    try:
        name = f"hf:{snapshot}?config=small"
        assert len(open_source(name, split="fit")) == 24
        assert len(open_source(name, split="held")) == 5
        assert open_source(f"hf:{snapshot}?config=big", split="train").read(5) == source.read(5)
        with pytest.raises(UserError, match=r"has several configs \(small, big\); choose one by"):
            open_source(f"hf:{snapshot}", split="train")
        with pytest.raises(UserError, match=r"unknown config of .* 'bog'; did you mean 'big'"):
            open_source(f"hf:{snapshot}?config=bog", split="train")
        card.write_text(CARD.replace("name: big", "name: default"))
        assert len(open_source(f"hf:{snapshot}", split="train")) == 24
        card.write_text("---\n: [\n---\n")
        assert len(open_source(f"hf:{snapshot}", split="train")) == 24
    finally:
        card.unlink()


def test_tars_and_nothing_to_read(source, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        open_source(f"hf:{tmp_path}", split="train")
    assert str(caught.value) == f"{tmp_path} has no Parquet or tar files"
    as_tars(source, tmp_path / "data", "train", 1)
    assert open_source(f"hf:{tmp_path}", split="train").read(7) == source.read(7)


class _Hub(DirFileSystem):
    """The Hub's files in a folder, by the names that its driver has."""

    protocol = "hf"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("hf://")


def test_a_dataset_of_the_hub(
    source, snapshot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "datasets" / "me").mkdir(parents=True)
    (tmp_path / "datasets" / "me" / "mine").symlink_to(snapshot)
    hub = _Hub(str(tmp_path), LocalFileSystem())
    monkeypatch.setattr(remote, "filesystem", lambda path: hub)
    found = open_source("hf:me/mine", split="train")
    assert found.name == "hf:me/mine[train]"
    assert [found.read(i) for i in range(24)] == [source.read(i) for i in range(24)]
    assert found.example_id(0) == "hf://datasets/me/mine/big/train-00000-of-00001.parquet row 0"
    with pytest.raises(UserError, match=r"hf:me/none has no Parquet or tar files; the Hub may"):
        open_source("hf:me/none", split="train")


INFO = """---
dataset_info:
  config_name: default
  splits:
  - name: train
    num_bytes: 100
    num_examples: {train}
  - name: {other}
    num_examples: 7
---
"""


def test_the_files_hold_what_the_card_tells(source, tmp_path: Path) -> None:
    as_parquet(source, tmp_path / "data", "train", 2)
    card, old = tmp_path / "README.md", tmp_path / "dataset_infos.json"
    name = f"hf:{tmp_path}"
    card.write_text(INFO.format(train=24, other="test"))
    notes = open_source(name, split="train").account.notes  # type: ignore[attr-defined]
    assert notes == ("the card lists the split test (7), of which no file is here",)
    for count in (23, 240):
        card.write_text(INFO.format(train=count, other="test"))
        with refused_by("data.sources.sharded.shards.compare", kind=DataError) as caught:
            open_source(name, split="train[:5]")
        assert f" {count} " in str(caught.value)
    assert len(open_source(f"parquet:{tmp_path}/data/*.parquet", split="train")) == 24
    card.write_text("# Mine\n")
    old.write_text('{"default": {"splits": {"train": {"num_examples": 25}}}}')
    with refused_by("data.sources.sharded.shards.compare", kind=DataError) as caught:
        open_source(name, split="train")
    assert " 25 " in str(caught.value)
    for odd in ("[", "[1]", '{"default": [1]}', '{"default": {"splits": [1, {"name": []}]}}'):
        old.write_text(odd)
        assert len(open_source(name, split="train")) == 24
    old.unlink()
    (tmp_path / "data" / "train-00001-of-00002.parquet").unlink()
    with refused_by("data.sources.sharded.shards._check_numbers", kind=DataError) as caught:
        open_source(name, split="train")
    assert "train-00001-of-00002.parquet" in str(caught.value)


def test_what_the_card_lists_and_is_not_there_or_there_twice_is_said(
    source, tmp_path: Path
) -> None:
    as_parquet(source, tmp_path / "data", "train", 1)
    as_parquet(source, tmp_path / "data", "test", 1)
    head = "---\nconfigs:\n- config_name: default\n  data_files:\n"
    lines = {name: f"  - split: {name}\n    path: data/{name}-*\n" for name in ("test", "val")}
    everything = "  - split: train\n    path: data/*\n"
    card = tmp_path / "README.md"
    card.write_text(f"{head}{everything}{lines['test']}{lines['val']}---\n")
    found: Any = open_source(f"hf:{tmp_path}", split="train")
    assert found.account.used == {"test": 24, "train": 24}
    assert found.account.notes[:2] == (
        "no file is there of the split val that its card lists, data/val-*",
        "test-00000-of-00001.parquet is of train and of test by the card, and is read as test",
    )
    card.write_text(f"{head}{lines['val']}---\n")
    with pytest.raises(UserError, match=r"no file is there that its card lists \(data/val-\*\)"):
        open_source(f"hf:{tmp_path}", split="val")
    with pytest.raises(UserError, match=r"there is no folder .*/gone"):
        open_source(f"hf:{tmp_path}/gone", split="val")
    card.unlink()
    write_tar(tmp_path / "train.tar", {"a.jpg": b"x"})
    found = open_source(f"hf:{tmp_path}", split="train")
    assert found.account.notes == ("1 tar files beside the Parquet files are not read",)
