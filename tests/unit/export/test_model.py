# SPDX-License-Identifier: Apache-2.0
"""What an export's folder holds and says, and what it never does to other files."""

import dataclasses
import json
import os
import re
from pathlib import Path

import pytest

from tests.photos import write_folder
from tests.refusals import refused_by
from tests.unit.inference.exported import trained
from tests.unit.models.tiny import TINY
from tests.unit.weights.runs import save
from vit_jax.__main__ import main as verb_main
from vit_jax.config.tree import Config
from vit_jax.data import Resize, TransformConfig
from vit_jax.evals import ClassifyEval
from vit_jax.export import card as model_card
from vit_jax.export import folder as export_folder
from vit_jax.export import hub
from vit_jax.export import model as export
from vit_jax.export.model import Format
from vit_jax.export.quantize import WeightDType
from vit_jax.inference.trained import Trained
from vit_jax.objectives import DistillConfig
from vit_jax.storage import files

NOTHING = export_folder.Change(images="", count=0, largest=0.0, scale=0.0, same_top1=0)
FILES = {"export.json": b'{"vit_jax": "1"}', "README.md": b"new", "model.onnx": b"weights"}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_new_folder_and_a_later_export_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    export_folder.write(folder, FILES)
    assert contents(folder) == FILES
    (folder / "notes.txt").write_bytes(b"mine")
    later = {"export.json": b'{"vit_jax": "2"}', "model.stablehlo": b"others"}
    export_folder.write(folder, later, force=True)
    assert contents(folder) == {**later, "notes.txt": b"mine"}
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("mark", [None, b"[]", b"{}", b"\xff", b"3"])
def test_files_of_others_stay(mark: bytes | None, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"theirs")
    (tmp_path / "README.md").write_bytes(b"theirs")
    if mark is not None:
        (tmp_path / "export.json").write_bytes(mark)
    before = contents(tmp_path)
    with refused_by("storage.files.check_folder", "--to"):
        export_folder.write(tmp_path, FILES)
    assert contents(tmp_path) == before
    export_folder.write(tmp_path, FILES, force=True)
    assert contents(tmp_path) == {"config.json": b"theirs", **FILES}


def test_an_empty_folder_is_anybodys(tmp_path: Path) -> None:
    export_folder.write(tmp_path, FILES)
    assert contents(tmp_path) == FILES


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    export_folder.write(old, FILES)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for folder in (old, new):
        with refused_by("storage.files.refused") as caught:
            export_folder.write(folder, {**FILES, "README.md": b"newer"}, force=True)
        assert str(folder) in str(caught.value)
    assert contents(old) == FILES
    assert os.listdir(tmp_path) == ["old"]


def test_the_mark_is_gone_until_the_last_file_has_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_folder.write(tmp_path / "out", FILES)
    replace = Path.replace

    def fails(self: Path, target: Path) -> Path:
        if self.name == "model.onnx":
            raise OSError(5, "Input/output error")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", fails)
    with refused_by("storage.files.refused"):
        export_folder.write(tmp_path / "out", FILES, force=True)
    assert "export.json" not in contents(tmp_path / "out")
    assert os.listdir(tmp_path) == ["out"]


def test_names_that_cannot_be_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with refused_by("storage.files.check_folder", "--to"):
        files.check_folder(tmp_path / "file", "--to", force=False)
    with refused_by("storage.files.check_folder", "--to"):
        files.check_folder(tmp_path / "file" / "out", "--to", force=False)


def test_here_is_a_folder_and_the_root_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    export_folder.write(Path("."), FILES)
    assert contents(tmp_path / "here") == FILES
    assert os.listdir(tmp_path) == ["here"]
    with refused_by("storage.files.check_folder", "--to"):
        files.check_folder(Path("/"), "--to", force=False)


def test_a_folder_is_made_with_those_above_it(tmp_path: Path) -> None:
    export_folder.write(tmp_path / "exports" / "digits", FILES)
    assert contents(tmp_path / "exports" / "digits") == FILES


@pytest.mark.parametrize("classes", [(), (1, 0)])
def test_what_changed_is_told_without_the_folders_of_this_machine(
    classes: tuple[int, ...], tmp_path: Path
) -> None:
    write_folder(tmp_path / "birds", {"train": 2, "val": 2}, ("robin", "wren"))
    model = trained(TINY["vit"])
    cfg = Config(model=TINY["vit"], evals={"val": ClassifyEval(split="val[:90%]")})
    cfg.data.name, cfg.data.classes = f"folder:{tmp_path}/birds/", classes
    _, name = export_folder.sample_images(dataclasses.replace(model, config=cfg))
    subset = ", 2 of 2 classes" if classes else ""
    assert name == f"images of birds[val[:90%]]{subset}"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workdir = tmp_path_factory.mktemp("run")
    save(workdir, dataclasses.replace(TINY["vit"], dim=64, mlp_dim=128), {1: 0.9, 2: 0.1})
    return workdir


def call(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    capsys.readouterr()
    status = verb_main(["vit_jax", "export", *args])
    shown = capsys.readouterr()
    return status, shown.out + shown.err


BAD = {
    "format": ([], "add --format=stablehlo|onnx|timm"),
    "unknown format": (["--format=onx"], "unknown --format 'onx'; did you mean 'onnx'?"),
    "unknown dtype": (["--format=timm", "--dtype=int4"], "did you mean 'int8'?"),
    "target": (["--format=timm", "--to="], "add --to=DIR"),
    "int8 of timm": (["--format=timm", "--dtype=int8"], "is for stablehlo and onnx; timm's"),
    "public": (["--format=timm", "--public"], "add --push=USER/REPO"),
    "dry_run": (["--format=timm", "--dry_run"], "is of --push"),
    "positional": (["--format=timm", "x"], "unexpected argument 'x'"),
    "merging": (["--format=timm", "--model.token_merging=1"], "token_merging=1: its models"),
    "eps": (["--format=timm", "--model.norm_eps=1e-4"], "where the weights bear it, change it by"),
    "norm": (["--format=timm", "--model.norm_eps=1e-4"], "has model.norm_eps=1e-06, not 0.0001"),
    "no counterpart": (["--format=timm", "--model.pre_logits_dim=4"], "pre_logits_dim=4"),
}


@pytest.mark.parametrize("case", BAD)
def test_mistakes_are_one_line(
    case: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args, message = BAD[case]
    status, told = call(capsys, f"--from={run}", f"--to={tmp_path}/out", *args)
    assert status == 2
    assert told.startswith("error: ")
    assert told.count("\n") == 1
    assert message in told
    assert not (tmp_path / "out").exists()


def test_a_dry_run_of_a_push_says_what_would_be_uploaded(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a token, a client or the Hub, which are not asked."""
    monkeypatch.setattr(export, "make", lambda *_, **__: (FILES, NOTHING))
    for name in ("check", "push"):
        monkeypatch.setattr(hub, name, lambda *_, **__: pytest.fail("asked the Hub"))
    words = [f"--from={run}", f"--to={tmp_path}/out", "--format=timm", "--push=me/x", "--dry_run"]
    status, told = call(capsys, *words)
    assert status == 0
    assert "would upload 3 files, 26 bytes to me/x, private" in told
    assert contents(tmp_path / "out") == FILES


def described(model: Trained) -> dict:
    """Return export.json as `make` writes it."""
    return json.loads(export._json(export._description(model, Format.TIMM, WeightDType.FLOAT32)))


def test_no_folder_of_the_machine_is_published() -> None:
    cfg = Config(model=TINY["vit"])
    cfg.data.name, cfg.data.data_dir = "folder:/home/me/photos", "/home/me/tfds"
    cfg.evals["val"] = ClassifyEval(dataset="folder:~/others")
    cfg.evals["tars"] = ClassifyEval(dataset="tar:/home/me/others/*.tar?label=kind")
    cfg.init.weights, cfg.log.wandb_project = "npz:/home/me/b16.npz", "mine"
    cfg.objective = DistillConfig()
    cfg.objective.distill.weights = "ckpt:/home/me/teacher@best"
    cfg.objective.distill.cache = "/home/me/kept_logits"
    metrics = {"val/loss": float("nan"), "val/top1": 0.5}
    fields = {"config": cfg, "step": 1616, "metrics": metrics}
    model = trained(TINY["vit"], ref="ckpt:/home/me/runs/digits@best", **fields)
    found = described(model)
    assert found["from"] == "digits, step 1616"
    assert found["metrics"] == {"val/loss": None, "val/top1": 0.5}
    config = found["config"]
    assert config["data"]["name"] == "folder:photos"
    assert config["evals"]["val"]["dataset"] == "folder:others"
    assert config["evals"]["tars"]["dataset"] == "tar:*.tar?label=kind"
    assert config["init"]["weights"] == "npz:b16.npz"
    assert config["objective"]["distill"]["weights"] == "ckpt:teacher@best"
    card = model_card.card(model, "timm", NOTHING, found, "digits")
    assert "trained on `folder:photos` [" in card
    for text in (json.dumps(found), card):
        assert not re.search("/home|others/|tfds|kept_logits|mine", text)
    assert cfg.data.name == "folder:/home/me/photos"
    assert described(trained(TINY["vit"], ref="npz:/home/me/x.npz"))["from"] == "x.npz"


@pytest.mark.parametrize(
    "resize, told",
    [
        (Resize.AREA, "the mean over each pixel's footprint"),
        (Resize.BILINEAR, "bilinearly without antialiasing"),
        (Resize.BICUBIC_NO_ANTIALIAS, "bicubically without antialiasing"),
        (Resize.BICUBIC, ""),
        (Resize.BILINEAR_ANTIALIAS, ""),
    ],
)
def test_the_card_says_where_timm_resizes_otherwise(resize: Resize, told: str) -> None:
    model = trained(TINY["vit"], transform=TransformConfig(resize=resize))
    card = model_card.card(model, "timm", NOTHING, described(model), "x")
    limits = card.split("## Limits")[1]
    assert ("timm's transform has none such" in limits) == bool(told)
    assert told in limits
    assert "timm" not in model_card.card(model, "onnx", NOTHING, described(model), "x")
