# SPDX-License-Identifier: Apache-2.0
"""Predictions are those of the run's own evaluation, in order, whatever is broken on the way."""

from pathlib import Path

import pytest

from tests.unit.weights import runs
from vit_jax import data, models
from vit_jax.__main__ import main as verb_main
from vit_jax.checkpoints.checkpointer import Checkpointer
from vit_jax.config import saved as config_json
from vit_jax.config.tree import Config
from vit_jax.data import Crop, TransformConfig
from vit_jax.evals import ClassifyEval

MODEL = models.variant(
    "vit_mu16", patch=(4, 4), image_size=(8, 8), channels=1, num_classes=10, dim=8, mlp_dim=16
)
NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine, 9"]


@pytest.fixture(scope="module")
def digits() -> data.Source:
    return data.open_source("digits", "", "test")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("run")
    cfg = Config(model=MODEL)
    cfg.evals = {"test": ClassifyEval(transform=TransformConfig(crop=Crop.CENTER, crop_ratio=0.6))}
    metadata = {"config": config_json.to_json(cfg), "class_names": NAMES}
    checkpoints = Checkpointer(place / "checkpoints", cfg.checkpoint)
    checkpoints.save(3, runs.make_state(MODEL, 3), metadata=metadata, metrics={})
    checkpoints.wait()
    return place


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, digits: data.Source) -> Path:
    """Write the test split as 0.png, 1.png, ..., and a broken image after 40.png."""
    place = tmp_path_factory.mktemp("digits")
    for i in range(len(digits)):
        (place / f"{i}.png").write_bytes(digits.read(i)["image"])
    (place / "40b.png").write_bytes(b"")
    return place


def predict(*words: str | Path) -> int:
    return verb_main(["vit_jax", "predict", *map(str, words)])


BAD = {
    "no image": ([], "error: which images? name files, folders or patterns"),
    "nothing there": (["nope.png"], "error: nope.png: no such file or folder"),
    "format": (["{image}", "--format=jason"], "did you mean 'jsonl'"),
    "top": (["{image}", "--top=0"], "top=0"),
    "batch": (["{image}", "--batch_size=0"], "batch_size=0"),
    "no place": (["{image}", "--out={image}/x.csv"], "1.png is no directory; make it first"),
    "there": (
        ["{image}", "--out={there}"],
        "is there already; choose another name, or add --force",
    ),
    "force": (["{image}", "--force"], "--force is of a file; add --out=FILE"),
    "suffix": (["{image}", "--out=x.xlsx"], "name it .csv, .jsonl or .txt (a table), or add"),
    "an image": (
        ["{image}", "--out={image}", "--format=csv"],
        "is one of the images; nothing was written",
    ),
    "flag": (["{image}", "--topp=1"], "did you mean '--top'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_usage_is_one_line(
    case: str, run: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, message = BAD[case]
    image = folder / "1.png"
    before, there = image.read_bytes(), tmp_path / "there.csv"
    there.write_text("results")
    words = [word.format(image=image, there=there) for word in words]
    assert predict(f"--from={run}", *words) == 2
    assert there.read_text() == "results"
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert message in line
    assert image.read_bytes() == before
