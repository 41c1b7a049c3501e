# SPDX-License-Identifier: Apache-2.0
"""An exported model of pixels says what its predictor says, under names that tell what it is."""

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.integration.objectives.dense.test_steps import config
from vit_jax import objectives
from vit_jax.cli.weights import export as command
from vit_jax.data import TransformConfig
from vit_jax.export import onnx as export_onnx
from vit_jax.export import outputs
from vit_jax.export import stablehlo as export_stablehlo
from vit_jax.inference import dense
from vit_jax.inference.trained import Trained

GOLDEN = Path(__file__).parents[2] / "golden/next3"
HAS_ONNX = importlib.util.find_spec("jax2onnx") is not None


def _published(name: str, folder: Path) -> str:
    shutil.copy(GOLDEN / f"{name}.safetensors", folder / "model.safetensors")
    shutil.copy(GOLDEN / f"{name}.config.json", folder / "config.json")
    return f"hf:{folder}"


def _linear() -> Trained:
    cfg = config("linear")
    learned: Any = objectives.create(cfg.objective, cfg.model, cfg.data)
    params, state = learned.init(jax.random.key(0))
    drawn = jax.tree.map(lambda x: x + 0.1, params)
    names = tuple(f"class {k}" for k in range(cfg.objective.num_classes))
    return Trained(
        ref="ckpt:linear",
        source="ckpt:linear",
        mean=(0.5,),
        std=(0.25,),
        transform=TransformConfig(),
        model=cfg.model,
        variables={"params": drawn, **state},
        class_names=names,
        config=cfg,
        head=cfg.objective.pixel_head,
    )


@pytest.mark.parametrize(
    ("name", "predictor", "names"),
    [
        ("linear", "segmentation", ["scores"]),
        ("eomt", None, None),
        ("depth_anything", "depth", ["depth"]),
    ],
)
@pytest.mark.parametrize("form", ["stablehlo", "onnx"])
def test_the_program_equals_the_predictor(
    name: str, predictor: str | None, names: list[str] | None, form: str, tmp_path: Path
) -> None:
    if form == "onnx" and not HAS_ONNX:
        pytest.skip("needs locks/onnx.txt")
    trained = _linear() if name == "linear" else dense.load(_published(name, tmp_path))
    shape = (2, *trained.image_size, trained.channels)
    images = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    if form == "onnx":
        found = export_onnx.runner(export_onnx.serialize(trained))(images)
    else:
        written = export_stablehlo.serialize(trained, trained.variables)
        found = export_stablehlo.runner(*written)(images)
    named = list(outputs.meanings(trained))
    if predictor is None:
        predictor = "segments" if named == ["classes", "masks"] else "segmentation"
    assert names is None or named == names
    expected = jax.tree.leaves(
        jax.jit(dense.predictors(trained)[predictor])(trained.variables, {"image": images})
    )
    several = found if isinstance(found, tuple) else (found,)
    assert len(several) == len(expected) == len(named)
    for ours, theirs in zip(several, expected, strict=True):
        scale = float(np.abs(np.asarray(theirs)).max())
        np.testing.assert_allclose(ours, theirs, atol=5e-5 * max(scale, 1), rtol=0)


def test_the_folder_says_what_comes_out(tmp_path: Path, capsys: Any) -> None:
    ref, out = _published("depth_anything", tmp_path), tmp_path / "out"
    asked = ["export", f"--from={ref}", f"--to={out}", "--format=stablehlo"]
    assert command.main(asked) in (None, 0)
    said = json.loads((out / "export.json").read_text())["output"]
    height, width = dense.load(ref).image_size
    assert (said["name"], said["shape"]) == ("depth", ["batch", height, width])
    assert said["means"].startswith("depths")
    card = (out / "README.md").read_text()
    assert "pipeline_tag: depth-estimation" in card
    assert f"depth = model(weights, images)  # float32 [2, {height}, {width}]" in card
    assert "depth (up to" in capsys.readouterr().out
