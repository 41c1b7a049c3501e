# SPDX-License-Identifier: Apache-2.0
"""Predictions are those of the run's own evaluation, in order, whatever is broken on the way."""

import csv
import dataclasses
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image

from tests.unit.inference.test_prediction import MODEL, NAMES, predict
from tests.unit.weights import runs
from vit_jax import data, inference, models
from vit_jax.checkpoints.checkpointer import Checkpointer
from vit_jax.cli import predict as predict_verb
from vit_jax.config import saved as config_json
from vit_jax.config.tree import Config
from vit_jax.data import Crop, TransformConfig
from vit_jax.devices import hardware, sharding
from vit_jax.errors import UserError
from vit_jax.evals import ClassifyEval, EvalContext, create
from vit_jax.inference import prediction
from vit_jax.inference.trained import Trained
from vit_jax.models.losses import Loss

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden"


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
def trained(run: Path) -> Trained:
    return inference.load(str(run))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, digits: data.Source) -> Path:
    """Write the test split as 0.png, 1.png, ..., and a broken image after 40.png."""
    place = tmp_path_factory.mktemp("digits")
    for i in range(len(digits)):
        (place / f"{i}.png").write_bytes(digits.read(i)["image"])
    (place / "40b.png").write_bytes(b"")
    return place


def test_top1_is_that_of_the_runs_evaluation(
    run: Path,
    trained: Trained,
    digits: data.Source,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert trained.config is not None
    cfg = trained.config
    context = EvalContext(
        data=cfg.data,
        sources={"": digits},
        image_size=trained.image_size,
        channels=1,
        mesh=sharding.make_mesh(sharding.MeshConfig(data=1), jax.devices()[:1]),
    )
    evaluator = create(cfg.evals["test"], context)
    module = models.create(MODEL)

    def logits(variables, batch):
        image = data.normalize(batch["image"], cfg.data.mean, cfg.data.std)
        return module.apply(variables, image).logits

    expected = evaluator.scores(logits, trained.variables)
    assert len(set(expected.prediction)) > 3
    out = tmp_path / "digits.csv"
    assert predict(f"--from={run}", folder, f"--out={out}", "--top=2", "--batch_size=40") == 1
    with out.open() as file:
        rows = list(csv.DictReader(file))
    files = [str(folder / f"{i}.png") for i in range(len(digits)) for _ in range(2)]
    assert [row["file"] for row in rows] == files
    assert [row["rank"] for row in rows[:4]] == ["1", "2", "1", "2"]
    first = rows[::2]
    assert [int(row["class"]) for row in first] == expected.prediction.tolist()
    assert [row["name"] for row in first] == [NAMES[k] for k in expected.prediction]
    printed = capsys.readouterr()
    assert printed.out == ""
    skipped, last = printed.err.splitlines()
    assert skipped == f"skipped {folder}/40b.png: the file is empty"
    assert last.startswith("360 of 361 images in ")
    assert last.endswith(" images/s")


def test_probabilities_are_of_the_loss_and_ordered(trained: Trained, folder: Path) -> None:
    image = np.asarray(Image.open(folder / "0.png"))
    view = data.evaluation_view(image[..., None], trained.transform, (8, 8))
    logits = np.asarray(inference.make_forward(trained)(view[None]).logits)[0]
    softmax = np.exp(logits) / np.exp(logits).sum()
    for loss, expected in [(Loss.SOFTMAX, softmax), (Loss.BCE, 1 / (1 + np.exp(-logits)))]:
        model = dataclasses.replace(trained, loss=loss)
        (found,) = inference.predict(model, [folder / "0.png"], top=99)
        assert [p.class_id for p in found] == np.argsort(-logits).tolist()
        assert [p.name for p in found] == [NAMES[k] for k in np.argsort(-logits)]
        np.testing.assert_allclose([p.probability for p in found], -np.sort(-expected), rtol=1e-4)


def test_from_python_images_are_files_bytes_or_arrays(trained: Trained, folder: Path) -> None:
    files = [folder / f"{i}.png" for i in range(9)]
    expected = inference.predict(trained, files, 3)
    assert [len(found) for found in expected] == [3] * 9
    assert len({found[0].class_id for found in expected}) > 1

    def same(images, chosen=expected, **options) -> None:
        found = inference.predict(trained, images, 3, **options)
        assert [[p.class_id for p in a] for a in found] == [[p.class_id for p in a] for a in chosen]

    arrays = np.stack([np.asarray(Image.open(file)) for file in files])
    same([str(file) for file in files])
    same([file.read_bytes() for file in files])
    same(list(arrays))
    same(arrays[..., None])
    same(files, batch_size=4)
    for one in (files[2], str(files[2]), files[2].read_bytes(), arrays[2], arrays[2, ..., None]):
        same(one, expected[2:3])
    compiled = prediction._rank._cache_size()
    inference.predict(inference.load(trained.ref), files, 3)
    assert prediction._rank._cache_size() == compiled
    assert inference.predict(trained, []) == []


def test_from_python_a_broken_image_is_an_error(trained: Trained, folder: Path) -> None:
    with pytest.raises(UserError, match=r"40b.png: the file is empty"):
        inference.predict(trained, [folder / "1.png", folder / "40b.png"])
    with pytest.raises(UserError, match=r"it takes uint8 \(H, W, 1\)"):
        inference.predict(trained, [np.zeros((8, 8, 3), np.uint8)])
    with pytest.raises(UserError, match=r"an array of float64"):
        inference.predict(trained, [np.zeros((8, 8, 1))])
    deep = dataclasses.replace(trained, model=dataclasses.replace(MODEL, channels=4))
    with pytest.raises(UserError, match="4 channels; images have 1 or 3"):
        inference.predict(deep, [folder / "1.png"])


def test_only_a_few_batches_are_held(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    monkeypatch.setattr(
        prediction,
        "read_view",
        lambda _, source: read.append(source) or np.zeros((8, 8, 1), np.uint8),
    )
    names = [f"{i}.png" for i in range(400)]
    batches = prediction.stream(trained, names, batch_size=8)
    first = next(batches)
    assert [result.source for result in first] == names[:8]
    assert len(read) <= 8 * 4
    batches.close()


def test_json_has_a_line_for_every_image(
    run: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = [folder / name for name in ("1.png", "40b.png", "2.png")]
    assert predict(f"--from={run}", *images, "--format=jsonl", "--top=2") == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["file"] for line in lines] == [str(image) for image in images]
    assert lines[1] == {"file": str(images[1]), "error": f"{images[1]}: the file is empty"}
    best, second = lines[0]["predictions"]
    assert best["probability"] >= second["probability"] > 0
    assert best["name"] == NAMES[best["class"]]


def test_json_writes_no_number_as_null_and_out_may_be_at_home(
    run: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    nothing = prediction.Prediction(0, "zero", float("nan"))

    def stream(*_, **__) -> Iterator[list[prediction.Answer]]:
        yield [prediction.Answer("x", [nothing])]

    monkeypatch.setattr(predict_verb, "stream", stream)
    assert predict(f"--from={run}", folder / "1.png", "--out=~/found.jsonl") == 0
    (line,) = (tmp_path / "found.jsonl").read_text().splitlines()
    assert json.loads(line)["predictions"] == [{"class": 0, "name": "zero", "probability": None}]
    assert "NaN" not in line


def test_the_suffix_says_the_format_in_any_case(run: Path, folder: Path, tmp_path: Path) -> None:
    for name, start in {"a.JSONL": "{", "a.CSV": "file,rank", "a.Txt": str(folder)}.items():
        (tmp_path / name).write_text("older")
        words = [folder / "1.png", f"--out={tmp_path / name}", "--force"]
        assert predict(f"--from={run}", *words) == 0
        assert (tmp_path / name).read_text().startswith(start)


def test_the_table_names_each_image_once(
    run: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert predict(f"--from={run}", folder / "1.png", folder / "10.png", "--top=20") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 20
    assert [i for i, line in enumerate(lines) if line.startswith(str(folder))] == [0, 10]
    assert len({line.index("%") for line in lines}) == 1
    assert {line.split("%  ")[1] for line in lines[:10]} == set(NAMES)


def test_a_file_name_may_be_any_bytes(
    run: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9\n1.png")
    Path(odd).write_bytes((folder / "1.png").read_bytes())
    out = tmp_path / "x.jsonl"
    assert predict(f"--from={run}", tmp_path, f"--out={out}") == 0
    assert json.loads(out.read_text())["file"] == odd
    for form, shown in {"table": "caf\\udce9\\n1.png'  ", "csv": 'caf\\udce9\n1.png",1,'}.items():
        assert predict(f"--from={run}", tmp_path, f"--format={form}", "--top=1") == 0
        assert shown in capsys.readouterr().out


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_never_among_the_results(
    run: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"--from={run}", folder / "1.png", folder / "40b.png", "--format=csv", "--top=1"]
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert predict(*words) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[1].startswith(f"{folder}/1.png,1,")
    shown = sys.stderr.getvalue()
    assert "the file is empty" in shown
    assert "1 of 2 images in " in shown.splitlines()[-1]
    assert shown.endswith(" images/s, compilation included\n")
    # Where the results go to the terminal, they are the progress.
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert predict(*words) == 1
    assert sys.stdout.getvalue().splitlines() == lines
    assert "%" not in sys.stderr.getvalue()


def test_bfloat16_is_slower_without_amx_and_predict_says_so(
    run: Path,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hardware, "_cpu_info", frozenset)
    assert predict(f"--from={run}", folder / "0.png", "--model.dtype=bfloat16") == 0
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith("float32 is faster than bfloat16 on this CPU: ")
    assert first.endswith("model.dtype=float32")


def test_a_log_ends_with_the_time_that_it_took(
    run: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = [folder / f"{i}.png" for i in range(16)]
    words = [f"--from={run}", *images, "--batch_size=8", "--format=csv"]
    assert predict(*words) == 0
    (last,) = capsys.readouterr().err.splitlines()
    assert last.startswith("16 images in ")
    assert last.endswith(" images/s")
    words[-2] = "--batch_size=16"  # one batch, which compiles
    assert predict(*words) == 0
    (last,) = capsys.readouterr().err.splitlines()
    assert last.endswith(" images/s, compilation included")


def test_a_published_file_is_a_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    golden = np.load(GOLDEN / "google_vit_prelogits.golden.npz")
    fields = {
        "image_size": 32,
        "patch": 8,
        "dim": 48,
        "depth": 2,
        "num_heads": 3,
        "mlp_dim": 96,
        "num_classes": 7,
        "pre_logits_dim": 24,
    }
    flags = [f"--model.{name}={value}" for name, value in fields.items()]
    # What the reference saw is in [-1, 1], not of 256 levels.
    pixels = np.clip(np.round((golden["input"] + 1) * 127.5), 0, 255).astype(np.uint8)
    files = [tmp_path / f"{i}.png" for i in range(len(pixels))]
    for file, image in zip(files, pixels, strict=True):
        Image.fromarray(image).save(file)
    source = f"--from=npz:{GOLDEN}/google_vit_prelogits.weights.npz"
    assert predict(source, "--model=vit_b16", *flags, *files, "--format=csv", "--top=7") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    found = np.zeros(golden["logits"].shape)
    for row in rows:
        found[files.index(Path(row["file"])), int(row["class"])] = float(row["probability"])
    logits = golden["logits"] - golden["logits"].max(-1, keepdims=True)
    expected = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=2e-3)


def test_what_the_transform_refuses_is_said_of_the_image(
    run: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size = "--model.image_size=16"
    assert predict(f"--from={run}", size, "--transform.crop=none", folder / "1.png") == 1
    said = capsys.readouterr().err.splitlines()[0]
    assert said.startswith(f"skipped {folder}/1.png: the image is 8x8, the model takes 16x16")


def process(*words: str | Path, **options) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "vit_jax", "predict", *map(str, words)],
        cwd=ROOT,
        env={**os.environ, "JAX_NUM_CPU_DEVICES": "1", "PYTHONUNBUFFERED": ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.mark.usefixtures("ctrl_c")
def test_names_come_from_stdin_until_it_is_interrupted(
    run: Path, folder: Path, tmp_path: Path
) -> None:
    # What they print is more than a pipe holds: the last one's never comes.
    last = tmp_path / "last.png"
    last.write_bytes((folder / "0.png").read_bytes())
    names = [folder / "0.png", folder / "gone.png", "", folder, last]
    child = process(f"--from={run}", "-", "--top=10", "--batch_size=1", "--format=csv")
    child.stdin.write("\n".join(map(str, names)))
    child.stdin.close()
    child.stdin = None
    assert child.stdout.readline().startswith("file,")
    assert child.stdout.readline().startswith(f"{folder}/0.png")
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert err.splitlines() in (
        [f"skipped {folder}/gone.png: no such file or directory", "interrupted"],
        ["interrupted"],  # before that batch was waited for
    )
    assert "last.png" not in out


def test_a_reader_that_has_enough_ends_it_silently(run: Path, folder: Path) -> None:
    child = process(f"--from={run}", folder, "--top=1", "--batch_size=1")
    child.stdout.readline()
    child.stdout.close()
    child.stdout = None
    _, err = child.communicate(timeout=60)
    assert child.returncode == 141
    assert "Error" not in err
