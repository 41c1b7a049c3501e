# SPDX-License-Identifier: Apache-2.0
"""Images without splits get some: every class in each, the same ones for the same seed."""

from pathlib import Path

import pytest

from vit_jax import data
from vit_jax.data import open_source
from vit_jax.data.partition import full_name, options, partition, split_draw
from vit_jax.errors import UserError

PATHS = [f"{name}/{i}.png" for name in ("cat", "dog") for i in range(20)]
LABELS = [0] * 20 + [1] * 20


def test_every_class_is_in_every_split_and_no_image_in_two() -> None:
    found = partition(PATHS, LABELS, 0)
    assert {name: len(members) for name, members in found.items()} == {
        "train": 32,
        "val": 4,
        "test": 4,
    }
    for members in found.values():
        assert [LABELS[i] for i in members].count(0) * 2 == len(members)
    assert sorted(i for members in found.values() for i in members) == list(range(40))


def test_the_seed_and_the_paths_decide() -> None:
    assert partition(PATHS, LABELS, 0) == partition(PATHS, LABELS, 0)
    assert partition(PATHS, LABELS, 0) != partition(PATHS, LABELS, 1)
    backwards = partition(PATHS[::-1], LABELS[::-1], 0)
    same = {name: [PATHS[::-1][i] for i in m] for name, m in backwards.items()}
    assert same == {name: [PATHS[i] for i in m] for name, m in partition(PATHS, LABELS, 0).items()}


@pytest.mark.parametrize("count, held", [(1, 0), (2, 0), (3, 1), (10, 1), (15, 2), (100, 10)])
def test_small_classes(count: int, held: int) -> None:
    found = partition(PATHS[:1] * 0 + [f"{i}" for i in range(count)], [0] * count, 0)
    assert (len(found["val"]), len(found["test"])) == (held, held)


@pytest.mark.parametrize(
    "name, full",
    [
        ("digits", "digits"),
        ("imagenet_resized/8x8", "imagenet_resized/8x8"),
        ("/data/birds", "folder:/data/birds"),
        ("./birds", "folder:./birds"),
        ("~/birds?split_seed=3", "folder:~/birds?split_seed=3"),
        ("folder:birds", "folder:birds"),
        ("birds.csv", "csv:birds.csv"),
        ("birds.csv?split_seed=1", "csv:birds.csv?split_seed=1"),
        ("csv:birds.txt", "csv:birds.txt"),
        ("b/{00..12}.tar?label=kind", "tar:b/{00..12}.tar?label=kind"),
        ("gs://b/train-*.parquet", "parquet:gs://b/train-*.parquet"),
        ("hf://datasets/a/b/data/x.parquet", "parquet:hf://datasets/a/b/data/x.parquet"),
        ("hf:a/b", "hf:a/b"),
    ],
)
def test_a_path_is_a_dataset(name: str, full: str) -> None:
    assert full_name(name) == full
    assert split_draw("birds?split_seed=12") == ("birds", (12, 2))


def test_options_at_the_end_of_a_name() -> None:
    name = "gs://b/?.tar?label=a b&split_seed=3&image=seg.png"
    found = {"label": "a b", "split_seed": "3", "image": "seg.png"}
    assert options(name) == ("gs://b/?.tar", found)
    for name in ("https://h/a.tar?sig=x&y=1", "a?split_seed=x", "?.tar"):
        assert options(name) == (name, {})


def test_a_relative_folder_with_a_slash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my" / "birds").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert full_name("my/birds") == "folder:my/birds"
    assert full_name("my/fish") == "my/fish"


def write(root: Path, *names: str) -> None:
    for name in names:
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x")


def test_a_folder_of_classes_alone(tmp_path: Path) -> None:
    write(tmp_path, *PATHS)
    sources = {s: open_source(str(tmp_path), split=s) for s in ("train", "val", "test", "whole")}
    assert {name: len(source) for name, source in sources.items()} == {
        "train": 32,
        "val": 4,
        "test": 4,
        "whole": 40,
    }
    ids = [s.example_id(i) for n, s in sources.items() if n != "whole" for i in range(len(s))]
    assert len(set(ids)) == 40
    assert all(source.class_names == ("cat", "dog") for source in sources.values())
    assert all(source.drawn for source in sources.values())
    other = open_source(f"{tmp_path}?split_seed=1", split="validation")
    mine = sources["val"]
    assert {other.example_id(i) for i in range(4)} != {mine.example_id(i) for i in range(4)}
    assert other.name.endswith("[val], split seed 1")
    assert len(open_source(str(tmp_path), split="train[:50%]")) == 16
    for path, name in sources["val"].rows():  # type: ignore[attr-defined]
        assert Path(path).parent.name == name
        assert Path(path).is_file()


def test_splits_of_any_name(tmp_path: Path) -> None:
    write(tmp_path, *(f"{s}/{c}/1.png" for s in ("training", "valid", "extra") for c in "ab"))
    name = f"folder:{tmp_path}"
    for split in ("train", "training", "val", "validation", "valid[:50%]"):
        assert not open_source(name, split=split).drawn
    with pytest.raises(UserError, match=r"unknown split of .* 'test'"):
        open_source(name, split="test")
    (tmp_path / "valid").rename(tmp_path / "VAL")
    assert [len(open_source(name, split=s)) for s in ("validation", "Train")] == [2, 2]
    (tmp_path / "VAL").rename(tmp_path / "valid")
    for folder in ("training", "valid"):
        (tmp_path / folder).rename(tmp_path / f"my_{folder}")
    assert len(open_source(name, split="my_training+extra")) == 4


def test_runs_beside_the_splits_and_classes_with_their_names(tmp_path: Path) -> None:
    write(tmp_path / "a", "train/cat/1.png", "val/cat/1.png", "run/learning_curve.png")
    assert not open_source(str(tmp_path / "a")).drawn
    write(tmp_path / "b", *(f"{c}/{i}.png" for c in ("bus", "train") for i in range(5)))
    vehicles = open_source(str(tmp_path / "b"), split="whole")
    assert (vehicles.class_names, len(vehicles)) == (("bus", "train"), 10)


def test_a_subset_of_the_classes_is_drawn_too(tmp_path: Path) -> None:
    write(tmp_path, *PATHS)
    assert data.open_source(str(tmp_path), classes=(1,), cache=True).drawn
