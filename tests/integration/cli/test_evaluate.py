# SPDX-License-Identifier: Apache-2.0
"""`evaluate` on a run: the run's own numbers, its files, sizes, corruptions, one-line errors."""

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from configs import vit_mu_digits
from tests.refusals import refused_by
from tests.unit.cli.test_evaluate import call
from vit_jax import data, models, weights
from vit_jax.cli import evaluate, predict
from vit_jax.data import classes
from vit_jax.devices import hardware
from vit_jax.inference import load
from vit_jax.inference.evaluate import open_target
from vit_jax.models.layers.posemb import PosEmbed
from vit_jax.optim import OptimConfig, Optimizer
from vit_jax.train.loop import fit
from vit_jax.train.report.writers import read_jsonl


@pytest.fixture(scope="module", autouse=True)
def undrawn() -> None:
    """Draw pictures, which tests here look at."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train on four of the digits, with a position table and a transform of the test's own."""
    cfg = vit_mu_digits.get_config()
    cfg.model = dataclasses.replace(
        cfg.model,
        pos_embed=PosEmbed.LEARNED,
        dim=16,
        depth=1,
        num_heads=2,
        mlp_dim=32,
        num_classes=4,
    )
    cfg.data.classes, cfg.data.train_split, cfg.data.batch_size = (7, 1, 4, 0), "train[:400]", 40
    cfg.data.transform, cfg.data.mix = cfg.evals["val"].transform, data.MixConfig()
    cfg.optim = OptimConfig(name=Optimizer.ADAMW, lr=1e-2, clip_norm=0.0)
    cfg.duration, cfg.log.tensorboard = "30 steps", False
    cfg.evals = {name: cfg.evals[name] for name in ("val", "test")}
    cfg.evals["val"].split, cfg.evals["test"].split = "train[1293:]", "test[:200]"
    cfg.evals["test"].transform = data.TransformConfig(crop=data.Crop.CENTER, crop_ratio=0.8)
    cfg.evals["test"].batch_size = 24
    place = tmp_path_factory.mktemp("evaluate") / "run"
    fit(cfg, place)
    return place


def rows(file: Path) -> list[list[str]]:
    with file.open(newline="") as text:
        return list(csv.reader(text))


def picture(file: Path) -> np.ndarray:
    image = cv2.imread(str(file))
    assert image is not None
    assert min(image.shape[:2]) > 150
    return image


@pytest.mark.slow
def test_numbers_are_the_runs_own_and_the_files_agree(run, tmp_path, capsys):
    out = tmp_path / "new" / "out"
    args = ("--sizes=24,40", "--corruptions=contrast,brightness", "--severities=5,1")
    assert call(f"--from={run}@latest", f"--out={out}", *args) == 0
    told = capsys.readouterr()
    (logged,) = [row for row in read_jsonl(run / "metrics.jsonl") if "test/top1" in row]
    found = json.loads((out / "metrics.json").read_text())
    assert found["top1"] == logged["test/top1"]
    assert found["top5"] == logged["test/top5"]
    assert found["loss"] == pytest.approx(logged["test/loss"], rel=1e-6)
    assert found["num_examples"] == logged["test/num_examples"]
    assert found["step"] == 30
    low, high = found["top1_interval"]
    assert 0.5 < low < found["top1"] < high < 1

    matrix = [[int(cell) for cell in row[1:]] for row in rows(out / "confusion.csv")[1:]]
    assert np.sum(matrix) == found["num_examples"]
    assert np.trace(matrix) / np.sum(matrix) == pytest.approx(found["top1"])
    assert [row[0] for row in rows(out / "per_class.csv")[1:]] == ["7", "1", "4", "0"]

    sizes = {int(row[0]): float(row[1]) for row in rows(out / "sizes.csv")[1:]}
    assert list(sizes) == [24, 32, 40]  # the model's own is always there
    assert sizes[32] == pytest.approx(found["top1"], abs=1e-6)
    assert [row["size"] for row in found["sizes"]] == list(sizes)
    at_40 = load(f"{run}@latest", overrides={"image_size": (40, 40)})
    assert sizes[40] == pytest.approx(top1(at_40), abs=1e-6)
    assert top1(at_40) != found["top1"]

    table = {row[0]: [float(cell) for cell in row[1:]] for row in rows(out / "corruptions.csv")[1:]}
    assert rows(out / "corruptions.csv")[0] == ["top1", "severity 1", "severity 5", "mean"]
    assert table["contrast"][2] == pytest.approx(np.mean(table["contrast"][:2]), abs=1e-6)
    both = np.mean([table["contrast"][:2], table["brightness"][:2]])
    assert table["mean"][2] == pytest.approx(both, abs=1e-6)
    assert found["corruptions"]["mean_top1"] == pytest.approx(both, abs=1e-6)
    assert found["corruptions"]["severities_of"] == "CIFAR-10-C"
    assert table["contrast"][1] < found["top1"]
    assert table["clean"] == pytest.approx([found["top1"]] * 3, abs=1e-6)

    wrong = rows(out / "mistakes.csv")
    assert len(wrong) - 1 == round(found["num_examples"] * (1 - found["top1"]))
    columns = dict(zip(wrong[0], zip(*wrong[1:], strict=True), strict=True))
    assert list(columns["loss"]) == sorted(columns["loss"], key=float, reverse=True)
    confused = sum(matrix[i][j] for i in range(4) for j in range(4) if i != j)
    assert len(columns["true"]) == confused
    source = data.open_source("digits", "", "test[:200]", classes=(7, 1, 4, 0))
    for index, true, image in zip(*(columns[x] for x in ("index", "true", "image")), strict=True):
        assert source.example_id(int(index)) == image
        assert source.class_names[source.read(int(index))["label"]] == true
    recalls = [matrix[i][i] / sum(matrix[i]) for i in range(4)]
    assert found["macro_top1"] == pytest.approx(np.mean(recalls))

    for name in ("confusion", "mistakes", "reliability", "sizes", "corruptions", "corrupted"):
        picture(out / f"{name}.png")
    assert f"{found['top1']:.2%}  95 % interval {low:.2%} to {high:.2%}" in told.out
    assert all(file.name in told.out for file in out.iterdir())
    assert told.err == ""  # too quick for progress


def test_bfloat16_is_slower_without_amx_and_evaluate_says_so(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(hardware, "_cpu_info", frozenset)
    assert call(f"--from={run}", f"--out={tmp_path}", "--model.dtype=bfloat16") == 0
    line = "float32 is faster than bfloat16 on this CPU: --model.dtype=float32"
    assert capsys.readouterr().err.splitlines() == [line]


def test_augmented_images_are_copies_of_which_predict_makes_the_same(run, tmp_path, capsys):
    here = (f"--from={run}@latest", "--tta=shift,flip")
    assert call(*here, f"--out={tmp_path / 'a'}") == call(here[0], f"--out={tmp_path / 'b'}") == 0
    found, plain = (
        json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("a", "b")
    )
    assert (found["changes"], plain["changes"]) == (["tta=shift,flip"], [])
    assert found["loss"] != plain["loss"]
    assert capsys.readouterr().out.splitlines()[1].endswith(", with tta=shift,flip")
    wrong = rows(tmp_path / "a" / "mistakes.csv")[1]
    source = data.open_source("digits", "", "test[:200]", classes=(7, 1, 4, 0))
    image = tmp_path / "wrong.png"
    image.write_bytes(source.read(int(wrong[5]))["image"])
    flags = ("--transform.crop=center", "--transform.crop_ratio=0.8", "--top=1", "--format=csv")
    assert predict.main(["vit_jax predict", *here, str(image), *flags]) == 0
    name, chance = capsys.readouterr().out.splitlines()[1].split(",")[-2:]
    assert name == wrong[2]
    assert float(chance) == pytest.approx(float(wrong[3]), abs=2e-6)


def top1(trained: Any) -> float:
    """Measure the accuracy on the test's images one by one, without any of the machinery."""
    module: Any = models.create(trained.model)
    apply = jax.jit(lambda image: module.apply(trained.variables, image).logits)
    cfg = trained.config
    source = data.open_source("digits", "", "test[:200]", classes=cfg.data.classes)
    hits = []
    for i in range(len(source)):
        example = source.read(i)
        encoded, label = example["image"], example["label"]
        pixels = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_GRAYSCALE)[..., None]
        view = data.evaluation_view(pixels, cfg.evals["test"].transform, trained.image_size)
        image = (view[None].astype(np.float32) / 255 - 0.5) / 0.5
        hits.append(int(np.argmax(apply(image)[0])) == label)
    return float(np.mean(hits))


def test_which_images(run):
    trained = load(str(run))

    def chosen(**kwargs):
        target = open_target(trained, **kwargs)
        return target.source.name, target.evaluation.transform.crop, target.evaluation.batch_size

    subset = ", 4 of 10 classes"
    assert chosen() == (f"digits[test[:200]]{subset}", "center", 24)
    assert chosen(split="test[:200]") == chosen()
    assert chosen(own_transform=False) == (f"digits[test[:200]]{subset}", "resize", 24)
    assert chosen(split="train[1293:]") == (f"digits[train[1293:]]{subset}", "resize", 0)
    assert chosen(split="train[:9]") == (f"digits[train[:9]]{subset}", "resize", 0)
    assert chosen(dataset="digits", batch_size=8) == (f"digits[test[:200]]{subset}", "center", 8)
    assert open_target(trained).source.class_names == ("7", "1", "4", "0")
    assert trained.config is not None
    assert trained.config.evals["test"].batch_size == 24  # the run's own config stays


def test_a_folder_with_the_classes_in_another_order(run, tmp_path, capsys):
    source = data.open_source("digits", "", "train[400:440]")
    for i in range(len(source)):
        example = source.read(i)
        encoded, label = example["image"], example["label"]
        if label in (0, 1, 4):
            file = tmp_path / "d" / "test" / str(label) / f"{i}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(encoded)
    sizes = ("--model.image_size=40", "--sizes=24")
    folder = f"--dataset=folder:{tmp_path}/d"
    assert call(f"--from={run}", folder, f"--out={tmp_path}/o", *sizes) == 0
    found = json.loads((tmp_path / "o" / "metrics.json").read_text())
    table = {row[0]: row for row in rows(tmp_path / "o" / "per_class.csv")[1:]}
    assert list(table) == ["7", "1", "4", "0"]
    assert table["7"][1] == "0"
    assert [row["size"] for row in found["sizes"]] == [24, 32, 40]  # asked for, trained at, its own
    assert found["sizes"][1]["top1"] > 0.5  # by the folder's ids it would be about none
    assert found["sizes"][2]["top1"] == found["top1"]
    assert "folder:" not in found["dataset"]
    assert found["changes"] == ["model.image_size=(40,)"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("/d: 3 classes in 1 split (test 11); all 11 files used")
    assert lines[1].endswith(", with model.image_size=(40,)")


@pytest.mark.parametrize(
    "args, told",
    [
        ((), "which model? add --from=DIR"),
        (("--from={run}", "--sizes=30"), "--sizes=30: the model takes, near it, 16, 24, 32, 40"),
        (("--from={run}", "--sizes=24,x"), "--sizes=24,x must be whole numbers, such as"),
        (("--from={run}", "--sizes=0"), "--sizes=0 must be at least 1"),
        (("--from={run}", "--sizes=24", "--transform.crop=none"), "--transform.crop=resize"),
        (("--from={run}", "--corruptions=fog"), "unknown corruption 'fog'; valid: all, brightness"),
        (("--from={run}", "--corruptions=all", "--severities=6"), "severity 6 must be in 1..5"),
        (("--from={run}", "--severities=1"), "add --corruptions=all"),
        (("--from={run}", "--tta=mirror"), "unknown --tta 'mirror'; valid: flip, shift"),
        (("--from={run}", "--split=tset"), "unknown split of digits 'tset'; did you mean 'test'"),
        (("--from={run}", "--dataset=folder:/nowhere"), "no folder '/nowhere'"),
        (("--from={run}", "--mesh.dat=1"), "key --mesh.dat; did you mean --mesh.data?"),
        (("--from={run}", "--mesh.data=9"), "does not fit 8 device(s)"),
        (("--from={run}", "--batch_size=-1"), "--batch_size"),
        (("--from={run}", "--out={run}/config.json"), "--out="),
        (("--from={run}", "--out=/proc"), "--out=/proc: "),
        (("--from={run}", "images"), "unexpected argument 'images'"),
        (("--from={run}", "--model.num_classes=7"), "which is none of the model's 7 (class 0"),
    ],
)
def test_mistakes_are_one_line(run, args, told, capsys):
    assert call(*(arg.format(run=run) for arg in args)) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ")
    assert "\n" not in error
    assert told in error


def test_a_folder_that_cannot_be_written_is_told_before_any_work(
    run, tmp_path, monkeypatch, capsys
):
    writer = evaluate._Writer(tmp_path / "out")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with refused_by("storage.files.refused", "--out"):
            writer.write("x.png", b"")
    monkeypatch.setattr(Path, "touch", full)
    monkeypatch.setattr(evaluate, "read_weights", lambda _: pytest.fail("weights were read"))
    assert call(f"--from={run}", f"--out={tmp_path / 'new'}") == 2
    error = capsys.readouterr().err
    assert error == f"error: --out={tmp_path / 'new'}: No space left on device\n"


def test_a_test_set_of_imagenets_classes_is_guessed_among_them(tmp_path, capsys):
    model = models.variant("vit_ti16", image_size=(32, 32), depth=1, dim=24, mlp_dim=48)
    module = models.create(model)
    params, _ = models.init(module, model, jax.random.key(0))
    params["head"]["kernel"] = np.random.default_rng(0).normal(size=(24, 1000)).astype(np.float32)
    save_file(weights.to_timm({"params": params}, model), f"{tmp_path}/vit.safetensors")
    mapped = classes.groups_of("objectnet")
    rng, losses = np.random.default_rng(1), []
    apply = jax.jit(lambda image: module.apply({"params": params}, image).logits[0])
    for name in (*mapped, "air_freshener", "zipper"):
        pixels = rng.integers(0, 256, (32, 32, 3), np.uint8)
        place = tmp_path / "images" / name
        place.mkdir(parents=True)
        cv2.imwrite(str(place / "0.png"), pixels[..., ::-1])
        if name in mapped:
            logits = np.asarray(apply(jnp.asarray(pixels[None] / 127.5 - 1, jnp.float32)))
            of_groups = {group: logits[list(ids)].max() for group, ids in mapped.items()}
            losses.append(np.log(sum(map(np.exp, of_groups.values()))) - of_groups[name])
    fields = {"image_size": 32, "depth": 1, "dim": 24, "mlp_dim": 48}
    source = [
        f"--from=timm:{tmp_path}/vit.safetensors",
        "--model=vit_ti16",
        "--transform.crop=resize",
    ]
    source += [f"--model.{field}={value}" for field, value in fields.items()]
    args = [f"--dataset=folder:{tmp_path}/images", "--split=whole", f"--out={tmp_path}/out"]
    assert call(*source, *args, "--batch_size=64") == 0
    told = capsys.readouterr().out
    assert "images[whole], 113 of 115 classes: 113 images, guesses among its 113 classes" in told
    measured = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert measured["among_classes"] == 113
    assert measured["loss"] == pytest.approx(np.mean(losses), rel=1e-4)
