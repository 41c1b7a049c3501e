# SPDX-License-Identifier: Apache-2.0
"""Runs on several labels and on numbers, from a table to what is predicted and exported."""

import csv
import dataclasses
import json
import shutil
from pathlib import Path

import cv2
import jax
import numpy as np
import pytest

from tests.unit.models.tiny import TINY
from vit_jax.cli import evaluate as evaluate_verb
from vit_jax.cli import predict as predict_verb
from vit_jax.config import CheckpointConfig
from vit_jax.config.tree import Config, LogConfig
from vit_jax.data import Crop, DataConfig, MixConfig, TransformConfig
from vit_jax.devices import sharding
from vit_jax.evals import ClassifyEval
from vit_jax.inference import labels as meanings
from vit_jax.inference.forward import make_forward
from vit_jax.inference.trained import load
from vit_jax.optim import OptimConfig
from vit_jax.recipes import folder as recipes
from vit_jax.train import build as build_lib
from vit_jax.train.loop import fit
from vit_jax.train.report.writers import read_jsonl

PLAIN = TransformConfig(crop=Crop.RESIZE)
SIDE = TINY["vit"].image_size[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write squares of a side and a brightness, a table of both, and one of labels."""
    made = tmp_path_factory.mktemp("squares")
    rng = np.random.default_rng(0)
    numbers, several = [], []
    for k in range(48):
        side, level = int(rng.integers(2, SIDE)), int(rng.integers(60, 256))
        image = np.zeros((SIDE, SIDE, 3), np.uint8)
        image[:side, :side] = level
        cv2.imwrite(str(made / f"{k}.png"), image)
        split = "val" if k % 4 == 0 else "train"
        numbers.append((f"{k}.png", side, "" if k % 7 == 1 else level / 100, split))
        words = ["large"] * (side > SIDE // 2) + [("?" if k % 7 == 1 else "") + "bright"] * (
            level > 150
        )
        several.append((f"{k}.png", "|".join(words), split))
    for name, head, rows in (
        ("numbers", ("path", "side [px]", "light", "split"), numbers),
        ("several", ("path", "label", "split"), several),
    ):
        with (made / f"{name}.csv").open("w", newline="") as stream:
            csv.writer(stream).writerows([head, *rows])
    return made


def config(folder: Path, kind: str) -> Config:
    base = Config(
        model=dataclasses.replace(TINY["vit"], num_classes=0),
        data=DataConfig(
            batch_size=8, transform=PLAIN, mix=MixConfig(mixup_alpha=0.2, prob=0.5), num_threads=1
        ),
        optim=OptimConfig(lr=1e-3),
        duration="4 steps",
        evals={"val": ClassifyEval(every="2 steps", transform=PLAIN)},
        checkpoint=CheckpointConfig(every="2 steps", keep=2),
        log=LogConfig(every="1 steps", tensorboard=False),
    )
    options = "?target=side,light" if kind == "numbers" else ""
    base.data.name = f"csv:{folder}/{kind}.csv{options}"
    return recipes.found_out(base, base.data.name)


@pytest.fixture(scope="module")
def runs(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for kind in ("several", "numbers"):
        found[kind] = tmp_path_factory.mktemp("runs") / kind
        fit(config(folder, kind), found[kind])
    return found


def losses(run: Path) -> list[float]:
    rows = read_jsonl(run / "metrics.jsonl")
    return [row["train/loss"] for row in rows if "train/loss" in row]


@pytest.mark.parametrize("kind", ["several", "numbers"])
def test_a_run_that_stopped_goes_on_with_the_same_bits(
    folder: Path, runs: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    shutil.copytree(runs[kind], other := tmp_path / "run")
    shutil.rmtree(other / "checkpoints" / "4")
    (other / "finished.json").unlink()
    metrics = fit(config(folder, kind), other).metrics
    rows = read_jsonl(runs[kind] / "metrics.jsonl")
    last = {
        k: x for row in rows if row["step"] == 4 for k, x in row.items() if k.startswith("val/")
    }
    assert last
    assert {k: metrics[k] for k in last} == last
    whole, again = (load(f"{path}@4").variables for path in (runs[kind], other))
    jax.tree.map(np.testing.assert_array_equal, whole, again)


@pytest.mark.parametrize("kind", ["several", "numbers"])
def test_losses_do_not_depend_on_the_devices(folder: Path, kind: str) -> None:
    cfg = config(folder, kind)
    source = build_lib.open_train(cfg)
    cfg.model.num_classes = source.num_classes
    cfg.objective = cfg.objective.fitted(source)
    field = "value" if kind == "numbers" else "label"
    rng = np.random.default_rng(0)
    batch = {
        "image": rng.integers(0, 256, (8, SIDE, SIDE, 3)).astype(np.uint8),
        field: np.stack([source.read(k)[field] for k in range(8)]),
    }
    found = []
    for count in (1, 8):
        mesh = sharding.make_mesh(cfg.mesh, jax.devices()[:count])
        parts = build_lib.build(cfg, num_examples=1000)
        state = build_lib.init_state(cfg, parts, mesh)
        with jax.set_mesh(mesh):
            placed = sharding.global_batch(batch, mesh, batch_size=8)
            _, metrics = build_lib.compile_steps(parts, mesh)[0](state, {}, placed)
        found.append(float(metrics["loss"]))
    assert found[0] == pytest.approx(found[1], rel=1e-6)
    assert np.isfinite(found[0])


def test_numbers_come_back_in_their_units(
    folder: Path, runs: dict[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trained = load(str(runs["numbers"]))
    assert trained.config is not None
    mean = trained.config.objective.mean
    assert trained.class_names == ("side [px]", "light")
    assert abs(mean[0] - SIDE / 2) < SIDE / 4
    image = cv2.imread(str(folder / "4.png"))[None, :, :, ::-1]
    values = np.asarray(make_forward(trained)(image).logits)[0]
    raw = trained.config.objective
    assert abs(values[0] - raw.mean[0]) < 5 * raw.std[0]
    out = tmp_path / "found.csv"
    args = [f"--from={runs['numbers']}", str(folder / "4.png")]
    assert predict_verb.main(["predict", *args, f"--out={out}"]) == 0
    rows = list(csv.DictReader(out.open()))
    assert [row["name"] for row in rows] == ["side [px]", "light"]
    np.testing.assert_allclose([float(row["value"]) for row in rows], values, rtol=1e-4)
    assert predict_verb.main(["predict", *args, "--format=jsonl"]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [each["name"] for each in said["numbers"]] == ["side [px]", "light"]
    place = tmp_path / "evaluated"
    assert evaluate_verb.main(["evaluate", f"--from={runs['numbers']}", f"--out={place}"]) == 0
    measured = json.loads((place / "metrics.json").read_text())
    for key in ("mae", "rmse_light", "r2_side_px"):
        assert measured[key] == pytest.approx(trained.metrics[f"val/{key}"], rel=1e-4)


def test_labels_above_the_thresholds_that_the_run_chose(
    folder: Path, runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = json.loads((runs["several"] / "val" / "thresholds.json").read_text())
    trained = load(str(runs["several"]))
    assert meanings.thresholds(trained) == tuple(kept["thresholds"].values())
    assert meanings.thresholds(trained, 0.25) == (0.25, 0.25)
    (changed := tmp_path / "run").mkdir()
    shutil.copytree(runs["several"], changed, dirs_exist_ok=True)
    (file := changed / "val" / "thresholds.json").write_text(
        json.dumps({**kept, "thresholds": {"bright": 0.0, "large": 0.999}})
    )
    args = [f"--from={changed}", str(folder / "4.png"), "--format=jsonl"]
    assert predict_verb.main(["predict", *args]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [each["name"] for each in said["predictions"]] == ["bright"]
    file.write_text("{}")
    assert predict_verb.main(["predict", *args]) == 2
    assert "thresholds.json has no threshold for each class" in capsys.readouterr().err
    file.unlink()
    assert meanings.thresholds(load(str(changed))) == (0.5, 0.5)
    assert (
        evaluate_verb.main(["evaluate", f"--from={runs['several']}", f"--out={tmp_path / 'out'}"])
        == 0
    )
    measured = json.loads((tmp_path / "out" / "metrics.json").read_text())
    for key in ("map", "f1", "cf1", "of1"):
        assert measured[key] == pytest.approx(trained.metrics[f"val/{key}"], rel=1e-5)
    told = capsys.readouterr().out
    assert "average precision, mean over the classes" in told
    assert "more have no label and count from map on)" in told
