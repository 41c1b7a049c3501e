# SPDX-License-Identifier: Apache-2.0
"""`finetune_folder` finds out from the files what is to be learned, and says it in a line."""

from pathlib import Path

import numpy as np
import pytest

from tests import layouts
from vit_jax.config import Config, check, saved
from vit_jax.data.targets import TargetKind
from vit_jax.errors import UserError
from vit_jax.evals import ClassifyEval, DepthEval, InstanceEval, SegmentationEval
from vit_jax.objectives import (
    DepthConfig,
    EomtConfig,
    MaskLossConfig,
    RegressionConfig,
    SegmentConfig,
    SupervisedConfig,
)
from vit_jax.settings import config_files

OBJECTS = EomtConfig(
    target=TargetKind.SEGMENTS, blocks=2, loss=MaskLossConfig(points=128)
)  # of images of 64 pixels


def config_for(name: str, run: str | None = "small", *more: str) -> Config:
    file, _ = config_files.find("finetune_folder")
    found = saved.load(file, run, [f"--config.data.name={name}", *more])
    found.data.name = name
    return found


def test_numbers_of_images_of_bands_are_found(tmp_path: Path) -> None:
    for k in range(4):
        np.save(tmp_path / f"{k}.npy", np.full((4, 4, 5), k, np.uint16))
    rows = "".join(f"{k}.npy,{k},train\n" for k in range(4))
    (tmp_path / "t.csv").write_text(f"path,height,split\n{rows}")
    name = f"csv:{tmp_path}/t.csv?target=height"
    for bands in ("all", "3,2", "('0',)"):
        config = config_for(name, "small", f"--config.data.bands={bands}")
        assert isinstance(config.objective, RegressionConfig)
        assert config.checkpoint.metric == "val/mae"


def touch(root: Path, *paths: str) -> str:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    return str(root)


def test_targets_choose_what_is_learned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = layouts.write(tmp_path)
    masks = f"{root}/scenes"
    for run in (None, "small"):
        config = config_for(masks, run)
        assert config.objective == SegmentConfig(frozen=False)
        assert not config.data.mix.mixup_alpha
        check(config)
        assert config.data.name == f"masks:{masks}"
        told = capsys.readouterr().out
        assert told.startswith(f"masks:{masks}: images and masks; the run learns the class of each")
        assert len(told.splitlines()) == 1
    assert isinstance(config.evals["val"], SegmentationEval)
    assert config.checkpoint.metric == "val/miou"
    boxes = config_for(f"{root}/VOC")
    assert boxes.objective == OBJECTS
    assert "Pascal VOC's XML; the run learns objects by EoMT of boxes" in capsys.readouterr().out
    assert boxes.checkpoint.metric == "val/box_ap"
    polygons = config_for(f"{root}/coco/instances.json?images={root}/coco/images")
    assert polygons.checkpoint.metric == "val/mask_ap"
    assert isinstance(polygons.evals["val"], InstanceEval)
    depth = config_for(f"{root}/rooms")
    assert depth.objective == DepthConfig()
    assert isinstance(depth.evals["val"], DepthEval)
    assert depth.checkpoint.metric == "val/rmse"
    capsys.readouterr()
    classes = config_for(touch(tmp_path / "classes", "cat/1.jpg", "dog/2.jpg"))
    assert isinstance(classes.objective, SupervisedConfig)
    assert isinstance(classes.evals["val"], ClassifyEval)
    assert capsys.readouterr().out == ""


def test_a_folder_of_two_layouts_is_refused(tmp_path: Path) -> None:
    root = touch(tmp_path, "images/1.jpg", "masks/1.png", "data.yaml")
    with pytest.raises(UserError, match="name the one that is meant, masks:"):
        config_for(root)
    assert config_for(f"yolo:{root}").objective == OBJECTS
