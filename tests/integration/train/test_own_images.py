# SPDX-License-Identifier: Apache-2.0
"""One's own images in one command: classes, batch, duration and splits come from them."""

import csv
import json
import re
from pathlib import Path

import cv2
import numpy as np
import pytest

import vit_jax
from tests.photos import write_images
from tests.refusals import refused_by
from vit_jax import config as config_lib
from vit_jax import errors, evals
from vit_jax.cli.parsing import flags
from vit_jax.cli.train import main
from vit_jax.data import DataConfig
from vit_jax.train.build import open_train
from vit_jax.train.report.writers import read_jsonl

SMALL = (
    *("--config.model=vit_mu16", "--config.model.image_size=16", "--config.model.patch=4"),
    *("--config.log.tensorboard=false", "--config.data.transform=resize", "--config.mesh.data=1"),
)


@pytest.fixture(scope="module")
def glyphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three letters of several sizes and formats, 30 images each, in class folders alone."""
    root, rng = tmp_path_factory.mktemp("glyphs"), np.random.default_rng(0)
    for letter in "AIO":
        (root / letter).mkdir()
        for i in range(30):
            side = int(rng.integers(24, 48))
            image = np.full((side, side, 3), 255, np.uint8)
            cv2.putText(image, letter, (side // 4, side * 3 // 4), 0, side / 32, (0, 0, 0), 2)
            cv2.imwrite(str(root / letter / f"{i}.{('jpg', 'png', 'webp')[i % 3]}"), image)
    return root


@pytest.mark.slow
def test_a_folder_of_classes_trains(
    glyphs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    words = ["vit_jax train", "--config=finetune_folder", f"--config.data.name={glyphs}"]
    words += [*SMALL, f"--workdir={run}", "--config.duration=90 steps", "--config.optim.lr=3e-3"]
    assert main(words) == 0
    saved = json.loads((run / "config.json").read_text())
    assert saved["model"]["num_classes"] == 3
    assert saved["data"]["batch_size"] == 8
    assert saved["data"]["name"] == f"folder:{glyphs}"
    best = max(r["val/top1"] for r in read_jsonl(run / "metrics.jsonl") if "val/top1" in r)
    assert best > 0.6
    with (run / "splits.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 90
    assert {row["split"] for row in rows} == {"train", "val", "test"}
    model = vit_jax.load(run)
    assert model.class_names == ("A", "I", "O")
    # The table that a run leaves is a dataset with the same splits.
    table = flags.read_config(["", *words[1:2], f"--config.data.name={run}/splits.csv"])
    assert table.data.name == f"csv:{run}/splits.csv"
    capsys.readouterr()
    assert main(words) == 0
    assert "has finished its 90 steps" in capsys.readouterr().out
    other = [w for w in words if "workdir" not in w] + ["--config.init.weights=ckpt:" + str(run)]
    other += ["--config.data.classes=0,2", "--config.duration=2 steps", f"--workdir={tmp_path}/b"]
    other = [w for w in other if w != "--config.duration=90 steps"]
    assert main(other) == 0
    # "A" and "O" of the three letters: their rows move with their names.
    assert "head: 2 of 2 classes keep their rows by name; dropped: 'I'" in capsys.readouterr().out


def test_what_is_left_to_the_data_fits_it() -> None:
    cfg = vit_jax.get_config("finetune_folder")
    sizes = {}
    for images in (20, 100, 1_000, 10_000, 1_000_000):
        own = config_lib.fitted(cfg, images, 7)
        sizes[images] = (own.data.batch_size, own.duration)
        assert own.model.num_classes == 7
    assert sizes == {
        20: (8, "1000 steps"),
        100: (8, "1000 steps"),
        1_000: (64, "1000 steps"),
        10_000: (128, "2343 steps"),
        1_000_000: (128, "20000 steps"),
    }
    assert (cfg.model.num_classes, cfg.data.batch_size, cfg.duration) == (0, 0, "auto")
    set_all = vit_jax.get_config("vit_mu_digits")
    assert config_lib.fitted(set_all, 5, 5) is set_all


def test_a_batch_above_the_data_is_warned_of(
    glyphs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["vit_jax train", "--config=finetune_folder", f"--config.data.name={glyphs}", *SMALL]
    words += ["--config.data.batch_size=128", "--config.duration=1 steps", f"--workdir={tmp_path}"]
    words += ["--config.evals.val=none", "--config.checkpoint.keep_best=0"]
    assert main([*words, "--config.checkpoint.metric="]) == 0
    told = capsys.readouterr().out
    (count,) = re.findall(r"3 classes in 3 splits \(train (\d+), ", told)
    assert f"data.batch_size=128 exceeds the {count} images" in told


def test_no_name_is_one_line() -> None:
    cfg = vit_jax.get_config("finetune_folder")
    with refused_by("data.sources.records.open_tfds", "data.name"):
        vit_jax.fit(cfg, "nowhere")


def test_a_run_names_the_setting_of_a_split_that_is_not_there(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_images(tmp_path, f"{split}/a/1.png")
    data = DataConfig(name=f"folder:{tmp_path}")
    cases = (
        (evals.ClassifyEval(split="val"), "evals.mine.split=SPLIT"),
        (evals.KNNEval(split="test", train_split="tr"), "evals.mine.train_split=SPLIT"),
    )
    code = "data.sources.partition.absolute_slices"
    for evaluation, setting in cases:
        with refused_by(code) as caught:
            evals.open_splits(evaluation, data, "evals.mine")
        assert f" {setting}" in str(caught.value)
    cfg = vit_jax.get_config("finetune_folder", {"data.name": data.name, "data.train_split": "x"})
    with errors.of_command_line(), refused_by(code) as caught:
        open_train(cfg)
    assert "--config.data.train_split=SPLIT" in str(caught.value)
