# SPDX-License-Identifier: Apache-2.0
"""What an export's folder holds and says, and what it never does to other files."""

import dataclasses
import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.unit.export.test_model import NOTHING, call, contents
from tests.unit.inference.exported import assert_close, images, of_family, run_alone, trained
from tests.unit.models.tiny import TINY
from tests.unit.weights.runs import save
from vit_jax import weights
from vit_jax.__main__ import main as verb_main
from vit_jax.errors import UserError
from vit_jax.export import card as model_card
from vit_jax.export import folder as folder_lib
from vit_jax.export import model as export
from vit_jax.export import stablehlo as export_stablehlo
from vit_jax.export.model import Format
from vit_jax.export.quantize import WeightDType, pack, unpack
from vit_jax.inference.forward import make_forward
from vit_jax.inference.trained import load

PAGE = Path(__file__).parents[3] / "docs/images/digits"
STABLEHLO = ("model.stablehlo", "weights.npz")


def test_what_changed_is_measured_on_photographs() -> None:
    model = trained(dataclasses.replace(TINY["mixer"], channels=1))
    forward = make_forward(model)
    views, name = folder_lib.sample_images(model)
    assert name == "views of two photographs"
    assert len({view.tobytes() for view in views}) == len(views) == 16
    sizes = []

    def moved(batch: np.ndarray) -> np.ndarray:
        sizes.append(len(batch))
        logits = np.array(forward(batch).logits)
        if len(batch) == 1:
            logits[0, logits.argmin()] = 100.0
        return logits

    change = folder_lib.compare(model, moved)
    logits = np.asarray(forward(views).logits)
    assert sizes == [1, 15]
    assert change.same_top1 == 15
    assert change.largest == pytest.approx(100 - logits[0].min())
    assert change.scale == pytest.approx(np.abs(logits).max())


def test_logits_that_are_not_finite_are_refused() -> None:
    model = trained(dataclasses.replace(TINY["mixer"], channels=1))
    broken = np.full((1, model.model.num_classes), np.nan)
    with pytest.raises(UserError, match=r"the export's logits are not finite.*--dtype"):
        folder_lib.compare(model, lambda batch: broken.repeat(len(batch), axis=0))
    head = {name: x * np.inf for name, x in model.variables["params"]["head"].items()}
    diverged = {"params": {**model.variables["params"], "head": head}}
    with pytest.raises(UserError, match=r"made_up.npz: on views of two photographs its logits"):
        folder_lib.compare(dataclasses.replace(model, variables=diverged), lambda _: broken)


def test_the_card_names_what_is_not_the_runs(run: Path) -> None:
    nothing = folder_lib.Change(images="", count=0, largest=0.0, scale=0.0, same_top1=0)
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


def test_the_card_of_a_runs_artifact_loads_it(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "tiny"
    target = [f"--from={run}", f"--to={folder}", "--format=stablehlo"]
    status, told = call(capsys, *target, "--dtype=int8")
    assert status == 0, told
    files = contents(folder)
    assert set(files) == {*STABLEHLO, "classes.json", "export.json", "README.md"}
    for name in STABLEHLO:
        line = rf"^{re.escape(f'{folder}/{name}')} +{len(files[name]):,} bytes$"
        assert re.search(line, told, re.MULTILINE)
    assert re.search(r"on 16 views of two .* change by at most 0\.\d+, the first guess", told)
    card = files["README.md"].decode()
    assert told.splitlines()[-1] in card
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    ours = load(str(run))
    np.save(folder / "images.npy", images(ours))
    more = "\nimages = np.load('images.npy')\nnp.save('logits.npy', model(weights, images))\n"
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
    monkeypatch.setattr(folder_lib, "compare", lambda *_: NOTHING)  # it compiles
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


def test_a_model_without_a_head_returns_its_features(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = dataclasses.replace(TINY["vit"], num_classes=0)
    save(tmp_path / "run", model, {1: 0.9})
    folder = tmp_path / "encoder"
    args = [f"--from={tmp_path}/run", f"--to={folder}", "--format=stablehlo"]
    status, told = call(capsys, *args)
    assert status == 0, told
    assert " features (up to " in told
    assert "guess" not in told
    files = contents(folder)
    assert set(files) == {*STABLEHLO, "export.json", "README.md"}
    card, about = files["README.md"].decode(), json.loads(files["export.json"])
    shape = {"shape": ["batch", model.dim], "dtype": "float32", "name": "features"}
    assert about["output"] == shape
    assert "pipeline_tag: image-feature-extraction" in card
    assert "class" not in card
    assert f"features = model(weights, images)  # float32 [2, {model.dim}]" in card
    ours = load(str(tmp_path / "run"), headless=True)
    run = export_stablehlo.runner(*(files[name] for name in STABLEHLO))
    assert_close(run(images(ours)), np.asarray(make_forward(ours)(images(ours)).features))
    # An encoder file of timm's names, too.
    file = tmp_path / "encoder.safetensors"
    assert verb_main(["vit_jax", "convert", f"--from={tmp_path}/run", f"--to=timm:{file}"]) == 0
    again = weights.load(f"timm:{file}", model)
    jax.tree.map(np.testing.assert_array_equal, again, dict(ours.variables))
    capsys.readouterr()
    for verb in (["evaluate"], ["predict", str(PAGE)], ["serve"]):
        assert verb_main(["vit_jax", verb[0], f"--from={tmp_path}/run", *verb[1:]]) == 2
        assert "a network without a head, and so no classes" in capsys.readouterr().err


def test_onnx_is_float32_or_int8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vit_jax.export.onnx.require", lambda: None)
    export.check(of_family("vit")[0], Format.ONNX, WeightDType.INT8)
    with pytest.raises(UserError, match="--dtype=bfloat16 is for"):
        export.check(of_family("vit")[0], Format.ONNX, WeightDType.BFLOAT16)
