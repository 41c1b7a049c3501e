# SPDX-License-Identifier: Apache-2.0
"""What an export's folder holds and says, and what it never does to other files."""

import dataclasses
import json
import os
import re
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.inference.exported import assert_close, images, of_family, run_alone, trained
from tests.models.tiny import TINY
from tests.photos import write_folder
from tests.weights.runs import save
from vit_jax import files, weights
from vit_jax.__main__ import main as verb_main
from vit_jax.config import Config
from vit_jax.data import Resize, TransformConfig
from vit_jax.errors import UserError
from vit_jax.evals import ClassifyEval
from vit_jax.inference import export, export_check, export_folder, model_card
from vit_jax.inference.export import Format
from vit_jax.inference.forward import make_forward
from vit_jax.inference.quantize import WeightDType, pack, unpack
from vit_jax.inference.trained import Trained, load
from vit_jax.objectives import DistillConfig

NOTHING = export_check.Change(images="", count=0, largest=0.0, scale=0.0, same_top1=0)
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
    with pytest.raises(UserError, match=r"holds files already; .*--force"):
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
        with pytest.raises(UserError, match=f"cannot write {folder}: No space left on device"):
            export_folder.write(folder, {**FILES, "README.md": b"newer"}, force=True)
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
    with pytest.raises(UserError, match="Input/output error"):
        export_folder.write(tmp_path / "out", FILES, force=True)
    assert "export.json" not in contents(tmp_path / "out")
    assert os.listdir(tmp_path) == ["out"]


def test_names_that_cannot_be_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a file; name a folder"):
        files.check_folder(tmp_path / "file", "--to", force=False)
    with pytest.raises(UserError, match="file is no directory; name another folder"):
        files.check_folder(tmp_path / "file" / "out", "--to", force=False)


def test_here_is_a_folder_and_the_root_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    export_folder.write(Path("."), FILES)
    assert contents(tmp_path / "here") == FILES
    assert os.listdir(tmp_path) == ["here"]
    with pytest.raises(UserError, match=r"^--to=/ has no name of its own; name a folder below it"):
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
    _, name = export_check.sample_images(dataclasses.replace(model, config=cfg))
    subset = ", 2 of 2 classes" if classes else ""
    assert name == f"images of birds[val[:90%]]{subset}"


def test_what_changed_is_measured_on_photographs() -> None:
    model = trained(dataclasses.replace(TINY["mixer"], channels=1))
    forward = make_forward(model)
    views, name = export_check.sample_images(model)
    assert name == "views of two photographs"
    assert len({view.tobytes() for view in views}) == len(views) == 16
    sizes = []

    def moved(batch: np.ndarray) -> np.ndarray:
        sizes.append(len(batch))
        logits = np.array(forward(batch).logits)
        if len(batch) == 1:
            logits[0, logits.argmin()] = 100.0
        return logits

    change = export_check.compare(model, moved)
    logits = np.asarray(forward(views).logits)
    assert sizes == [1, 15]
    assert change.same_top1 == 15
    assert change.largest == pytest.approx(100 - logits[0].min())
    assert change.scale == pytest.approx(np.abs(logits).max())


def test_logits_that_are_not_finite_are_refused() -> None:
    model = trained(dataclasses.replace(TINY["mixer"], channels=1))
    broken = np.full((1, model.model.num_classes), np.nan)
    with pytest.raises(UserError, match=r"the export's logits are not finite.*--dtype"):
        export_check.compare(model, lambda batch: broken.repeat(len(batch), axis=0))
    head = {name: x * np.inf for name, x in model.variables["params"]["head"].items()}
    diverged = {"params": {**model.variables["params"], "head": head}}
    with pytest.raises(UserError, match=r"made_up.npz: on views of two photographs its logits"):
        export_check.compare(dataclasses.replace(model, variables=diverged), lambda _: broken)


def test_the_card_names_what_is_not_the_runs(run: Path) -> None:
    nothing = export_check.Change(images="", count=0, largest=0.0, scale=0.0, same_top1=0)
    about = {"dtype": "float32", "vit_jax": "", "config": {"data": {"name": "digits"}}}
    own = load(str(run))
    other = dataclasses.replace(own, mean=(0.1,))
    cards = [model_card.card(each, "onnx", nothing, about, "tiny") for each in (own, other)]
    assert ["changed since to `mean=(0.1,)`" in card for card in cards] == [False, True]
    assert ["this export and without the changes named" in x for x in cards] == [False, True]
    assert ["before this export:\n\n|" in card for card in cards] == [True, False]


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


def test_the_card_of_a_runs_artifact_loads_it(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "tiny"
    target = [f"--from={run}", f"--to={folder}", "--format=stablehlo"]
    status, told = call(capsys, *target, "--dtype=int8")
    assert status == 0, told
    files = contents(folder)
    assert set(files) == {"model.stablehlo", "classes.json", "export.json", "README.md"}
    size = f"{len(files['model.stablehlo']):,} bytes"
    assert re.search(rf"^{re.escape(str(folder))}/model.stablehlo +{size}$", told, re.MULTILINE)
    assert re.search(r"on 16 views of two .* change by at most 0\.\d+, the first guess", told)
    card = files["README.md"].decode()
    assert told.splitlines()[-1] in card
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    ours = load(str(run))
    np.save(folder / "images.npy", images(ours))
    more = "\nimages = np.load('images.npy')\nnp.save('logits.npy', model(images))\n"
    run_alone(f"{code}\nassert logits.shape == (2, 3){more}", folder)
    rounded = dataclasses.replace(ours, variables=unpack(pack(ours.variables, WeightDType.INT8)))
    expected = np.asarray(make_forward(rounded)(images(ours)).logits)
    assert_close(np.load(folder / "logits.npy"), expected)
    about = json.loads(files["export.json"])
    assert (about["format"], about["dtype"], about["step"]) == ("stablehlo", "int8", 1)
    assert about["metrics"] == {"val/top1": 0.9}
    assert "| val/top1 | 90.00% |" in card
    assert json.loads(files["classes.json"]) == ["class 0", "class 1", "class 2"]
    # Once more, in its own folder, among others' files and not.
    (folder / "logits.npy").unlink()
    status, told = call(capsys, *target, "--force")
    assert status == 0, told
    assert (folder / "images.npy").exists()
    status, told = call(capsys, *target)
    assert (status, "add --force" in told) == (2, True)


def test_timms_folder_holds_the_weights_in_half_the_size(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_check, "compare", lambda *_: NOTHING)  # it compiles
    sizes = {}
    for dtype in ("float32", "bfloat16"):
        folder = tmp_path / dtype
        args = [f"--from={run}", f"--to={folder}", "--format=timm", f"--dtype={dtype}"]
        status, told = call(capsys, *args)
        assert status == 0, told
        sizes[dtype] = (folder / "model.safetensors").stat().st_size
    ours = load(str(run))
    found = weights.load(f"timm:{tmp_path}/float32/model.safetensors", ours.model)
    jax.tree.map(np.testing.assert_array_equal, found, dict(ours.variables))
    half = weights.load(f"timm:{tmp_path}/bfloat16/model.safetensors", ours.model)
    rounded = unpack(pack(ours.variables, WeightDType.BFLOAT16))
    jax.tree.map(np.testing.assert_array_equal, half, dict(rounded))
    assert sizes["bfloat16"] < 0.62 * sizes["float32"]


BAD = {
    "format": ([], "add --format=stablehlo|onnx|timm"),
    "unknown format": (["--format=onx"], "unknown --format 'onx'; did you mean 'onnx'?"),
    "unknown dtype": (["--format=timm", "--dtype=int4"], "did you mean 'int8'?"),
    "target": (["--format=timm", "--to="], "add --to=DIR"),
    "int8 of timm": (["--format=timm", "--dtype=int8"], "is for --format=stablehlo; timm's"),
    "public": (["--format=timm", "--public"], "add --push=USER/REPO"),
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


def described(model: Trained) -> dict:
    """Return export.json as `make` writes it."""
    return json.loads(export._json(export._description(model, Format.TIMM, WeightDType.FLOAT32)))


def test_no_folder_of_the_machine_is_published() -> None:
    cfg = Config(model=TINY["vit"])
    cfg.data.name, cfg.data.data_dir = "folder:/home/me/photos", "/home/me/tfds"
    cfg.evals["val"] = ClassifyEval(dataset="folder:~/others")
    cfg.init.weights, cfg.log.wandb_project = "npz:/home/me/b16.npz", "mine"
    cfg.objective = DistillConfig()
    cfg.objective.distill.weights = "ckpt:/home/me/teacher@best"
    cfg.objective.distill.cache = "/home/me/logits"
    metrics = {"val/loss": float("nan"), "val/top1": 0.5}
    fields = {"config": cfg, "step": 1616, "metrics": metrics}
    model = trained(TINY["vit"], ref="ckpt:/home/me/runs/digits@best", **fields)
    found = described(model)
    assert found["from"] == "digits, step 1616"
    assert found["metrics"] == {"val/loss": None, "val/top1": 0.5}
    config = found["config"]
    assert config["data"]["name"] == "folder:photos"
    assert config["evals"]["val"]["dataset"] == "folder:others"
    assert config["init"]["weights"] == "npz:b16.npz"
    assert config["objective"]["distill"]["weights"] == "ckpt:teacher@best"
    card = model_card.card(model, "timm", NOTHING, found, "digits")
    assert "trained on `folder:photos` [" in card
    for text in (json.dumps(found), card):
        assert not re.search('/home|others/|tfds|logits"|mine', text)
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


@pytest.mark.parametrize("dtype", [WeightDType.BFLOAT16, WeightDType.INT8])
def test_onnx_is_float32(dtype: WeightDType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vit_jax.inference.export_onnx.require", lambda: None)
    with pytest.raises(UserError, match=f"--dtype={dtype} is for"):
        export.check(of_family("vit")[0], Format.ONNX, dtype)
