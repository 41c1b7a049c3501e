# SPDX-License-Identifier: Apache-2.0
"""Images that change while a run is down: it says what differs, and does not go on by itself."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
import pytest

from tests.faults import painted
from tests.photos import write_images
from tests.refusals import refused_by
from vit_jax import data
from vit_jax.data.sources.base import Labelled
from vit_jax.errors import DataError, UserError
from vit_jax.train import data_identity
from vit_jax.train.loop import fit
from vit_jax.train.report.writers import read_jsonl

SPLIT = {"name": "x[train]", "examples": 4, "digest": "aa", "sample": ["ab"]}


def renamed_class(images: Path) -> None:
    (images / "train" / "a").rename(images / "train" / "z")


def renamed_image(images: Path) -> None:
    file = next((images / "train" / "a").iterdir())
    file.rename(file.with_name(f"other{file.suffix}"))


def removed_image(images: Path) -> None:
    next((images / "train" / "b").iterdir()).unlink()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory of images and of a run on them, stopped before its end."""
    root = tmp_path_factory.mktemp("data")
    for name, level in (("a", 0), ("b", 255)):
        painted.paint(root / "images" / "train" / name, [level] * 4)
    cfg = painted.get_config(str(root / "images"))
    fit(cfg, root / "run")
    (root / "run" / "finished.json").unlink()
    shutil.rmtree(max((root / "run" / "checkpoints").iterdir(), key=lambda e: int(e.name)))
    return root


@pytest.mark.parametrize(
    "change, told",
    [
        (renamed_class, r"classes: 'a' is now 'b'"),
        (renamed_image, r"train: other files than before"),
        (removed_image, r"train: 8 examples before, 7 now"),
    ],
)
def test_what_differs_is_said_and_a_flag_accepts_it(
    stopped: Path, change: Callable[[Path], None], told: str, tmp_path: Path
) -> None:
    shutil.copytree(stopped / "run", tmp_path / "run")
    shutil.copytree(stopped / "images", tmp_path / "before")
    cfg = painted.get_config(str(stopped / "images"))
    try:
        change(stopped / "images")
        with pytest.raises(UserError, match=rf"was trained on other data \({told}.*add allow_data"):
            fit(cfg, tmp_path / "run")
        assert fit(cfg, tmp_path / "run", allow_data_change=True).status == 0
    finally:
        shutil.rmtree(stopped / "images")
        shutil.copytree(tmp_path / "before", stopped / "images")
    rows = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    assert [row["run/data_changed"] for row in rows if "run/data_changed" in row] == [
        pytest.approx(2 if change is renamed_class else 1)
    ]


def test_a_split_of_another_config_is_left_to_the_comparison_of_configs() -> None:
    saved = {"class_names": ["a"], data_identity.KEY: {"train": SPLIT, "evals.val": SPLIT}}
    other = {**SPLIT, "digest": "bb"}
    assert data_identity.changes(saved, ["a"], {"train": SPLIT, "evals.val": other}) == [
        "evals.val: other files than before (their names, or sizes of shards)"
    ]
    elsewhere = {**other, "name": "y[train]"}
    assert data_identity.changes(saved, ["b", "c"], {"train": elsewhere}) == []
    assert data_identity.changes({}, ["b"], {"train": other}) == []  # of an earlier version


def test_shards_that_went_to_a_bucket_are_the_same_data() -> None:
    before = {"name": "./x/a-*.tar[train]", "examples": 2, "digest": "1", "sample": ["1"]}
    saved = {"data": {"train": before}}
    here = {"train": {**before, "name": "gs://bucket/x/a-*.tar[train]"}}
    assert data_identity.moved(saved, here) == ["data.name"]
    assert data_identity.changes(saved, [], here) == []
    here["train"]["digest"] = "2"
    (line,) = data_identity.changes(saved, [], here)
    assert "other files" in line


def test_a_folder_that_moved_is_the_same_data_and_one_that_changed_on_the_way_is_not(
    stopped: Path, tmp_path: Path
) -> None:
    shutil.copytree(stopped / "images", tmp_path / "moved")
    shutil.copytree(stopped / "run", tmp_path / "run")
    file = next((tmp_path / "moved" / "train" / "a").iterdir())
    image = file.read_bytes()
    file.write_bytes(next((tmp_path / "moved" / "train" / "b").iterdir()).read_bytes())
    cfg = painted.get_config(str(tmp_path / "moved"))
    with pytest.raises(UserError, match=r"train: files of the same names and other contents"):
        fit(cfg, tmp_path / "run")
    file.unlink()
    with refused_by("train.metadata.check_unchanged") as caught:
        fit(cfg, tmp_path / "run")
    assert "train: 8 examples before, 7 now" in str(caught.value)
    file.write_bytes(image)
    assert fit(cfg, tmp_path / "run").status == 0


class Source(Labelled):
    """Eight examples of one label, of which one may be broken."""

    name, class_names, labels = "x[train]", ("a", "b", "c"), None
    spec: ClassVar = {"label": jax.ShapeDtypeStruct((), np.int32)}

    def __init__(self, label: int, broken: int = -1, caption: str = "") -> None:
        self.label, self.broken, self.caption = label, broken, caption

    def __len__(self) -> int:
        return 8

    def read(self, index: int) -> dict[str, Any]:
        if index == self.broken:
            raise DataError("broken")
        texts = {"captions": (self.caption,)} if self.caption else {}
        return {"image": b"image", "label": self.label, **texts}

    def example_id(self, index: int) -> str:
        return f"x {index}"

    def digest(self) -> str:
        return "aa"


def test_labels_that_changed_are_seen_and_an_example_that_broke_is_left_to_the_reader() -> None:
    saved = {data_identity.KEY: data_identity.describe(Source(1), {})}

    def changes(source: Source) -> list[str]:
        return data_identity.changes(saved, [], data_identity.describe(source, {}))

    assert changes(Source(1)) == changes(Source(1, broken=3)) == []
    (line,) = changes(Source(2))
    assert line == "train: files of the same names and other contents (image or label)"
    saved = {data_identity.KEY: data_identity.describe(Source(1, caption="a"), {})}
    assert changes(Source(1, caption="a")) == []
    assert changes(Source(1, caption="b")) == [line]


def test_the_table_of_drawn_splits_has_the_captions(tmp_path: Path) -> None:
    table = tmp_path / "mine.csv"
    table.write_text("path,caption\n" + "".join(f"{i}.png,no. {i}\n" for i in range(12)))
    write_images(tmp_path, *(f"{i}.png" for i in range(12)))
    for split in ("train", "val", "test"):
        source = data.open_source(f"{table}", split=split, captions=data.Captions.NEEDED)
        data_identity.write_splits(f"{table}", source, tmp_path)
        written = data.open_source(
            f"{tmp_path}/splits.csv", split=split, captions=data.Captions.NEEDED
        )
        assert data.all_captions(written) == data.all_captions(source)
        assert not written.drawn
