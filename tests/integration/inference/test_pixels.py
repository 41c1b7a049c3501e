# SPDX-License-Identifier: Apache-2.0
"""Files of what a published EoMT says of pixels, read back as the truth of its evaluation."""

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image

from tests import dense_sets
from tests.integration.objectives.dense.test_steps import config
from vit_jax.cli import evaluate, predict, visualize
from vit_jax.data import Crop, TransformConfig
from vit_jax.data.sources.dense import raster
from vit_jax.evals import SegmentationEval
from vit_jax.evals.dense import decode
from vit_jax.inference import dense, pixels
from vit_jax.inference.pixels import PixelSettings, PixelTask
from vit_jax.train.loop import fit
from vit_jax.train.report.writers import read_jsonl

GOLDEN = Path(__file__).parents[2] / "golden/next3"


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("eomt")
    shutil.copy(GOLDEN / "eomt.safetensors", folder / "model.safetensors")
    shutil.copy(GOLDEN / "eomt.config.json", folder / "config.json")
    return f"hf:{folder}"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images") / "images" / "test"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name, size in (("a", (40, 32)), ("b", (32, 32)), ("c", (32, 50))):
        small = rng.integers(0, 256, (4, 4, 3), np.uint8)
        Image.fromarray(small).resize((size[1], size[0])).save(folder / f"{name}.png")
    return folder


def _told(text: str, name: str) -> float:
    found = re.search(rf"^{name} +([\d.]+)%", text, re.MULTILINE)
    assert found, text
    return float(found[1])


def test_classes(network: str, images: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    asked = [f"--from={network}", str(images), str(broken), f"--out={out}", "--format=jsonl"]
    assert predict.main(["predict", *asked]) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line[0] == "{"]
    assert [Path(line["file"]).name for line in lines] == ["a.png", "b.png", "c.png", "broken.png"]
    assert "error" in lines[3]
    assert sum(share for _, share in lines[0]["found"]) == pytest.approx(1, abs=1e-5)
    assert {path.name for path in (out / "overlays").iterdir()} == {"a.jpg", "b.jpg", "c.jpg"}
    rows = list(csv.DictReader((out / "images.csv").open()))
    assert [row["name"] for row in rows] == ["a", "b", "c", ""]
    assert [Path(row["file"]).name for row in rows] == ["a.png", "b.png", "c.png", "broken.png"]
    assert [bool(row["error"]) for row in rows] == [False, False, False, True]
    with Image.open(out / "masks" / "a.png") as mask:
        assert (mask.mode, mask.size) == ("P", (32, 40))
        own = np.asarray(mask)
    # What the functions say of the image.
    found = dense.load(network)
    windows = decode.covering(
        np.asarray(Image.open(images / "a.png")), (32, 32), found.transform.resize
    )
    scores = jax.jit(dense.predictors(found)["segmentation"])(
        found.variables, {"image": windows.pixels}
    )
    np.testing.assert_array_equal(
        own, decode.class_map(list(np.asarray(scores)), windows, (40, 32))
    )
    # It is all right if that is the truth, and less where the truth is another.
    root = images.parents[1]
    shutil.copytree(out / "masks", root / "masks" / "test", dirs_exist_ok=True)
    shutil.copy(out / "classes.txt", root)
    asked = [f"--from={network}", f"--dataset=masks:{root}", "--split=test"]
    report = tmp_path / "report"
    assert evaluate.main(["evaluate", *asked, f"--out={report}"]) == 0
    text = capsys.readouterr().out
    assert _told(text, "miou") == _told(text, "accuracy") == 100
    assert json.loads((report / "metrics.json").read_text())["num_examples"] == 3
    assert (report / "per_class.csv").exists()
    assert (report / "figures" / "masks.png").exists()
    Image.fromarray(np.roll(own, 5, axis=0)).save(root / "masks" / "test" / "a.png")
    assert evaluate.main(["evaluate", *asked]) == 0
    assert _told(capsys.readouterr().out, "miou") < 100


def test_objects_and_segments(network: str, images: Path, tmp_path: Path) -> None:
    found = dense.load(network)
    files = [str(images / f"{name}.png") for name in "ab"]
    settings = PixelSettings(task=PixelTask.OBJECTS, batch_size=2, score=0.0)
    answers = pixels.write(found, files, tmp_path / "objects", settings)
    content = json.loads((tmp_path / "objects" / "instances.json").read_text())
    assert [image["file_name"] for image in content["images"]] == files
    assert [len(x.found) for x in answers] == [
        sum(each["image_id"] == number for each in content["annotations"]) for number in (1, 2)
    ]
    sheet = tmp_path / "sheet"
    asked = ["visualize", "--pixels", f"--from={network}", *files, f"--out={sheet}"]
    assert visualize.main([*asked, "--task=objects"]) == 0
    with Image.open(sheet / "pixels.png") as picture:
        assert picture.width > 4 * 90
    one = content["annotations"][0]
    mask = raster.mask_of(one["segmentation"], (40, 32))
    assert mask.sum() == one["area"] > 0
    left, top, right, bottom = raster.box_of(mask)
    assert one["bbox"] == [left, top, right - left, bottom - top]
    assert found.class_names[one["category_id"] - 1] == answers[0].found[0][0]

    stuff = found.class_names[:1]
    settings = PixelSettings(task=PixelTask.SEGMENTS, batch_size=2, stuff=stuff, score=0.0)
    pixels.write(found, files, tmp_path / "segments", settings)
    content = json.loads((tmp_path / "segments" / "panoptic.json").read_text())
    assert [each["isthing"] for each in content["categories"]] == [0, 1, 1, 1]
    for own in content["annotations"]:
        colours = np.asarray(Image.open(tmp_path / "segments" / "panoptic" / own["file_name"]))
        ids = colours.astype(int) @ [1, 256, 65536]
        areas = {number: int((ids == number).sum()) for number in np.unique(ids[ids > 0]).tolist()}
        assert areas == {each["id"]: each["area"] for each in own["segments_info"]}


def test_names_and_refusals(network: str, images: Path, tmp_path: Path, capsys: Any) -> None:
    assert pixels._unique(["x/a.jpg", "y/a.png", "a-2.gif"]) == ["a", "a-2", "a-2-2"]
    first = f"--from={network}", str(images)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    for more, named in (
        ((), "--out"),
        ((f"--out={tmp_path / 'full'}",), "is not empty"),
        ((f"--out={tmp_path / 'o'}", "--pixels=depth"), "says no depth of pixels"),
        ((f"--out={tmp_path / 'o'}", "--stuff=x"), "add --pixels=segments"),
        ((f"--out={tmp_path / 'o'}", "--pixels=segments", "--stuff=x"), "class of stuff"),
        ((f"--out={tmp_path / 'o'}", "--score=0.3"), "leave it out"),
        ((f"--out={tmp_path / 'o'}", "--format=csv"), "--format=csv"),
    ):
        assert predict.main(["predict", *first, *more]) == 2
        assert named in capsys.readouterr().err
    for more, named in (("--tta=flip", "--tta is of"), ("--transform.crop=center", "whole images")):
        assert evaluate.main(["evaluate", first[0], "--dataset=masks:none", more]) == 2
        assert named in capsys.readouterr().err


def test_a_run_measures_what_evaluate_does(tmp_path: Path, capsys: Any) -> None:
    cfg = config("linear")
    cfg.data.name, cfg.duration = dense_sets.write_masks(tmp_path / "set"), "2 steps"
    cfg.data.num_workers, cfg.mesh.data, cfg.log.tensorboard = 0, 1, False
    whole = TransformConfig(crop=Crop.RESIZE)
    cfg.evals = {
        "val": SegmentationEval(transform=whole, stride=5, report=True),
        "other": SegmentationEval(transform=whole),
    }
    cfg.objective.num_classes = 0  # the data's
    run = tmp_path / "run"
    result = fit(cfg, run)
    assert result.status == 0
    assert (run / "val" / "per_class.csv").exists()
    assert (run / "val" / "figures" / "masks.png").exists()
    rows = read_jsonl(run / "metrics.jsonl")
    own = next(row for row in rows if "val/miou" in row)
    capsys.readouterr()
    assert evaluate.main(["evaluate", f"--from={run}", f"--out={tmp_path / 'again'}"]) == 0
    said = capsys.readouterr().out
    assert "measured by SegmentationEval, as evals.val, not as evals.other\n" in said
    assert "wrote per_class.csv, figures/masks.png, metrics.json in" in said
    again = json.loads((tmp_path / "again" / "metrics.json").read_text())
    for name in ("miou", "accuracy"):
        assert again[name] == pytest.approx(own[f"val/{name}"])
