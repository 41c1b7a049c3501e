# SPDX-License-Identifier: Apache-2.0
"""A run on images of twelve bands of 16 bits, from the files to predictions and an export."""

import json
from pathlib import Path

import numpy as np
import pytest

import vit_jax
from tests.banded import COUNT, write_folder, write_image
from vit_jax import api, inference, models
from vit_jax.__main__ import main
from vit_jax.config import CheckpointConfig
from vit_jax.config.tree import Config, LogConfig
from vit_jax.data import Crop, DataConfig, PixelType, TransformConfig
from vit_jax.devices.sharding import MeshConfig
from vit_jax.errors import UserError
from vit_jax.evals import ClassifyEval
from vit_jax.export import stablehlo
from vit_jax.optim import OptimConfig
from vit_jax.train.loop import fit
from vit_jax.train.report.writers import read_jsonl


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the dataset and a run on it; in the last bands lie the classes."""
    root = tmp_path_factory.mktemp("bands")
    write_folder(root / "set")
    given = ("--statistics", "--bands=all", f"--out={root}/statistics.json")
    assert main(["vit_jax", "prepare", f"folder:{root}/set", *given]) == 0
    fit(config(root), root / "run")
    return root


def config(root: Path) -> Config:
    plain = TransformConfig(crop=Crop.RESIZE)
    model = models.variant("vit_mu8", channels=COUNT, num_classes=2, image_size=(16, 16))
    small = {"depth": 1, "dim": 16, "num_heads": 2, "mlp_dim": 16}
    return Config(
        model=models.with_fields(model, small),
        data=DataConfig(
            name=f"folder:{root}/set",
            bands=("all",),
            dtype=PixelType.UINT16,
            bands_shown=(3, 2, 1),
            statistics=str(root / "statistics.json"),
            batch_size=16,
            transform=TransformConfig(crop=Crop.RANDOM_RESIZED, area=(0.5, 1.0), flip=True),
            num_threads=1,
        ),
        optim=OptimConfig(lr=0.02, warmup="1 steps"),
        duration="5 steps",
        evals={"val": ClassifyEval(split="val", every="5 steps", transform=plain)},
        checkpoint=CheckpointConfig(every="5 steps"),
        log=LogConfig(every="1 steps", tensorboard=False),
        mesh=MeshConfig(data=1),
    )


def test_the_run_learns_and_is_saved_with_its_statistics(root: Path) -> None:
    rows = read_jsonl(root / "run" / "metrics.jsonl")
    losses = [row["train/loss"] for row in rows if "train/loss" in row]
    assert losses[-1] < losses[0]
    found = json.loads((root / "statistics.json").read_text())
    assert len(found["mean"]) == COUNT
    trained = inference.describe(f"ckpt:{root}/run")
    assert trained.mean == tuple(found["mean"])
    assert trained.dtype == np.uint16
    assert trained.config is not None
    assert trained.config.data.statistics == ""


def test_it_predicts_files_arrays_and_folders(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(root / "set/val/sea/0.tif")
    assert main(["vit_jax", "predict", f"--from={root}/run", str(root / "set/val/sea")]) == 0
    assert capsys.readouterr().out.count(".tif") == 3
    model = vit_jax.load(str(root / "run"))
    view = model.preprocess(file)
    assert view.dtype == np.uint16
    logits = np.asarray(model(view[None]))[0]
    best = model.predict(file, top=1)[0][0]
    assert best.class_id == int(logits.argmax())
    again = np.asarray(model(np.asarray(api.normalize(view[None], model))))
    np.testing.assert_allclose(again[0], logits, rtol=1e-5, atol=1e-6)
    write_image(root / "grey.tif", np.zeros((16, 16, COUNT), np.uint8))
    with pytest.raises(UserError, match=r"holds uint8, where data\.dtype is uint16"):
        model.preprocess(str(root / "grey.tif"))
    program, arrays = stablehlo.serialize(model.trained, model.trained.variables)
    run = stablehlo.runner(program, arrays)
    np.testing.assert_allclose(np.asarray(run(view[None]))[0], logits, rtol=1e-5, atol=1e-6)


def test_pictures_show_the_chosen_bands(root: Path, tmp_path: Path) -> None:
    from vit_jax.inference.views import picture, read_view

    trained = inference.load(f"ckpt:{root}/run")
    view = read_view(trained, str(root / "set/val/sea/0.tif"))
    assert isinstance(view, np.ndarray)
    shown = picture(trained, view)
    assert shown.shape == (16, 16, 3)
    assert shown.dtype == np.uint8
    assert shown.min() == 0
    assert shown.max() == 255
