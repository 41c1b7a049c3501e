# SPDX-License-Identifier: Apache-2.0
"""Images without splits get some: every class in each, the same ones for the same seed."""

import os
from pathlib import Path

import pytest

from tests.photos import write_images
from vit_jax import data
from vit_jax.data import open_source
from vit_jax.data.sources.partition import (
    SplitDraw,
    SplitError,
    absolute_slices,
    as_in_run,
    check_no_archive,
    check_no_seed,
    draw_of,
    full_name,
    options,
    partition,
    same_dataset,
    same_draw,
    split_draw,
    with_rules,
    without_rules,
)
from vit_jax.errors import UserError

PATHS = [f"{name}/{i}.png" for name in ("cat", "dog") for i in range(20)]
LABELS = [0] * 20 + [1] * 20


def test_every_image_is_in_one_split_and_each_has_its_share() -> None:
    names = [f"{k}/{i}.png" for k in range(5) for i in range(400)]
    labels = [k for k in range(5) for _ in range(400)]
    found = partition(names, labels, 0)
    assert sorted(i for members in found.values() for i in members) == list(range(2000))
    for name, share in (("train", 320), ("val", 40), ("test", 40)):
        counts = [[labels[i] for i in found[name]].count(k) for k in range(5)]
        assert all(abs(count - share) < 25 for count in counts), (name, counts)


def test_the_seed_and_the_paths_decide() -> None:
    assert partition(PATHS, LABELS, 0) == partition(PATHS, LABELS, 0)
    assert partition(PATHS, LABELS, 0) != partition(PATHS, LABELS, 1)
    backwards = partition(PATHS[::-1], LABELS[::-1], 0)
    same = {name: [PATHS[::-1][i] for i in m] for name, m in backwards.items()}
    assert same == {name: [PATHS[i] for i in m] for name, m in partition(PATHS, LABELS, 0).items()}


def test_none_moves_when_others_come_and_copies_stay_together() -> None:
    for seed in range(30):
        names = [f"cat/{i}.png" for i in range(120)]
        contents = [f"{i % 110}" for i in range(120)]  # ten copies
        before = partition(names[:100], [0] * 100, seed, contents[:100])
        after = partition(names, [0] * 120, seed, contents)
        where = {i: name for name, members in after.items() for i in members}
        assert all(where[i] == name for name, members in before.items() for i in members)
        assert all(where[i] == where[i + 110] for i in range(10))


def test_few_images_still_have_a_val_and_a_test() -> None:
    for count in (1, 2, 3, 4, 10, 20):
        for seed in range(20):
            found = partition([f"{i}" for i in range(count)], [0] * count, seed)
            sizes = [len(found[name]) for name in ("train", "val", "test")]
            assert sum(sizes) == count
            assert sizes[0] > 0
            assert count < 3 or min(sizes) > 0


@pytest.mark.parametrize("count, held", [(1, 0), (2, 0), (3, 1), (10, 1), (15, 2), (100, 10)])
def test_by_rules_1_classes_have_exact_shares(count: int, held: int) -> None:
    found = partition([f"{i}" for i in range(count)], [0] * count, SplitDraw(0, 1))
    assert (len(found["val"]), len(found["test"])) == (held, held)
    # As the version before had it.
    assert partition(PATHS, LABELS, SplitDraw(3, 1))["val"] == [3, 15, 36, 35]


def test_a_name_has_the_rules_of_a_run() -> None:
    assert with_rules("/data/x", "folder:?rules=1") == "folder:/data/x?rules=1"
    assert with_rules("x.csv?split_seed=2", "a?rules=1") == "csv:x.csv?split_seed=2&rules=1"
    assert split_draw("x?split_seed=2&rules=1") == ("x", SplitDraw(2, 1))
    assert with_rules("x.csv?rules=2", "folder:?rules=1") == "csv:x.csv?rules=2"
    assert with_rules("digits", "folder:?rules=1") == "digits"
    assert with_rules("/data/x", "folder:/data/x") == "folder:/data/x"
    run = "folder:/x?rules=1&split_seed=3"
    assert without_rules(run) == "folder:/x?split_seed=3"
    assert as_in_run("/x?split_seed=3", "digits", run) == run
    assert as_in_run("/x?split_seed=3&rules=2", run) == "/x?split_seed=3&rules=2"
    assert as_in_run("/y", run) == "/y"
    for spelled in ("folder:/x/?split_seed=3", "/a/../x?split_seed=3", os.path.relpath("/x")):
        name = spelled if "?" in spelled else f"folder:{spelled}?split_seed=3"
        assert as_in_run(name, run) == run, spelled
    run = "csv:/x.csv?captions=half&rules=1"
    assert as_in_run("/x.csv", run) == as_in_run("/x.csv?captions=half", run) == run
    assert as_in_run("/x.csv?captions=name", run) == "csv:/x.csv?captions=name&rules=1"


def test_one_dataset_and_one_draw_by_whatever_name() -> None:
    for one, two, dataset, draw in (
        ("/x", "folder:/x/", True, True),
        ("/x?rules=2&split_seed=0", "/y/../x", True, True),
        ("/x?split_seed=1", "/x", True, False),
        ("/x?rules=1", "/x", True, False),
        ("a.csv", f"csv:{os.getcwd()}/a.csv", True, True),
        ("tar:/a.tar?label=cls", "/a.tar", False, False),
        ("gs://b/x/", "folder:gs://b/x", True, True),
        ("hf:a/b", "hf:a/b?split_seed=2", True, False),
        ("digits", "digits", True, True),
        ("digits", "cifar10", False, False),
        ("", "", True, True),
    ):
        assert (same_dataset(one, two), same_draw(one, two)) == (dataset, draw), (one, two)


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


def test_a_folder_of_classes_alone(tmp_path: Path) -> None:
    write_images(tmp_path, *PATHS)
    sources = {s: open_source(str(tmp_path), split=s) for s in ("train", "val", "test", "whole")}
    assert all(map(len, sources.values()))
    ids = [s.example_id(i) for n, s in sources.items() if n != "whole" for i in range(len(s))]
    assert len(set(ids)) == 40
    assert all(source.class_names == ("cat", "dog") for source in sources.values())
    assert all(source.drawn for source in sources.values())
    other = open_source(f"{tmp_path}?split_seed=1", split="validation")
    mine = sources["val"]
    assert {other.example_id(i) for i in range(len(other))} != {
        mine.example_id(i) for i in range(len(mine))
    }
    assert other.name.endswith("[val], split seed 1")
    half = open_source(str(tmp_path), split="train[:50%]")
    assert abs(2 * len(half) - len(sources["train"])) <= 1
    for path, name in sources["val"].rows():  # type: ignore[attr-defined]
        assert Path(path).parent.name == name
        assert Path(path).is_file()


def test_splits_of_any_name(tmp_path: Path) -> None:
    write_images(
        tmp_path, *(f"{s}/{c}/1.png" for s in ("training", "valid", "extra") for c in "ab")
    )
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
    write_images(tmp_path / "a", "train/cat/1.png", "val/cat/1.png", "run/learning_curve.png")
    assert not open_source(str(tmp_path / "a")).drawn
    write_images(tmp_path / "b", *(f"{c}/{i}.png" for c in ("bus", "train") for i in range(5)))
    vehicles = open_source(str(tmp_path / "b"), split="whole")
    assert (vehicles.class_names, len(vehicles)) == (("bus", "train"), 10)


def test_a_subset_of_the_classes_is_drawn_too(tmp_path: Path) -> None:
    write_images(tmp_path, *PATHS)
    assert data.open_source(str(tmp_path), classes=(1,), cache=True).drawn


def test_what_is_no_draw_is_refused() -> None:
    with pytest.raises(UserError, match=r"^\?rules=7: rules are 2, or 1, those of runs begun"):
        draw_of({"rules": "7"})
    with pytest.raises(UserError, match=r"^\?split_seed=a&rules=2: give whole numbers$"):
        draw_of({"split_seed": "a"})
    check_no_seed(0, "x.csv")
    with pytest.raises(UserError, match=r"^x\.csv has splits of its own; leave out split_seed=2$"):
        check_no_seed(2, "x.csv")


def test_an_archive_is_to_be_unpacked() -> None:
    check_no_archive("birds.tar")
    for path in ("birds.7Z", "x.zip"):
        with pytest.raises(
            UserError, match=f"^{path} is an archive; unpack it and name the folder$"
        ):
            check_no_archive(path)
    with pytest.raises(UserError, match="is a packed archive; unpack it and name the folder, or"):
        check_no_archive("x.tar.gz")


def test_a_split_that_cannot_be_read_or_is_empty_is_refused() -> None:
    for split, told in (
        ("trian", "^unknown split of x 'trian'; did you mean 'train'"),
        ("", "^unknown split of x ''; valid: test, train$"),
        ("train[:y]", r"^cannot read the split 'train\[:y\]' of x \(Error parsing split"),
        ("train[5:2]", r"^the split 'train\[5:2\]' of x holds no examples; choose a larger slice$"),
        ("train[:0]", r"^the split 'train\[:0\]' of x holds no examples; choose a larger slice$"),
    ):
        with pytest.raises(SplitError, match=told):
            absolute_slices(split, {"train": 9, "test": 3}, "x")
