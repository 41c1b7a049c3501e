# SPDX-License-Identifier: Apache-2.0
"""Runs of segmentation go on to the bit, and are read again with what stands beside the encoder."""

import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from tests import dense_sets
from tests.integration.objectives.dense.test_steps import config
from tests.refusals import refused_as
from vit_jax import weights
from vit_jax.checkpoints.reader import find
from vit_jax.checkpoints.reader import load as read
from vit_jax.config.tree import Config
from vit_jax.data import Crop, Resize, TransformConfig
from vit_jax.inference import dense
from vit_jax.train.loop import fit
from vit_jax.workdir.folder import CHECKPOINTS


def _config(run: str, name: str) -> Config:
    cfg = config(run)
    cfg.data.name, cfg.duration, cfg.data.num_workers = name, "4 steps", 0
    resize = Resize.BILINEAR_ANTIALIAS
    cfg.data.transform = TransformConfig(crop=Crop.SCALE_JITTER, resize=resize, flip=True)
    cfg.checkpoint.every, cfg.checkpoint.keep, cfg.checkpoint.keep_best = "2 steps", 9, 0
    cfg.log.tensorboard, cfg.mesh.data = False, 1
    cfg.objective.num_classes = 0  # the data's
    return cfg


@pytest.mark.parametrize("run", ["linear", "instances"])
def test_a_run_goes_on_to_the_bit_and_is_read_again(run: str, tmp_path: Path) -> None:
    write = dense_sets.write_masks if run == "linear" else dense_sets.write_coco
    name = write(tmp_path / "set")
    whole, rest = tmp_path / "whole", tmp_path / "rest"
    assert fit(_config(run, name), whole).status == 0
    shutil.copytree(whole / CHECKPOINTS / "2", rest / CHECKPOINTS / "2")
    assert fit(_config(run, name), rest).status == 0
    found = []
    for path in (whole, rest):
        saved = find(str(path), "4")
        kinds = ("params/", "model_state/")
        names = [name for name in saved.manifest.leaves if name.startswith(kinds)]
        found.append({name: np.asarray(value) for name, value in read(saved, names).items()})
    assert found[0].keys() == found[1].keys()
    for key, value in found[0].items():
        np.testing.assert_array_equal(value, found[1][key], err_msg=key)
    again = dense.load(f"ckpt:{whole}")
    assert again.class_names == dense_sets.NAMES
    said = dense.predictors(again)
    image = jnp.zeros((2, *again.image_size, 3), jnp.uint8)
    scores = said["segmentation"](again.variables, {"image": image})
    assert scores.shape == ((2, 3, 4, 4) if run == "linear" else (2, 3, 16, 16))
    if run == "instances":
        classes, masks = said["segments"](again.variables, {"image": image})
        assert (classes.shape, masks.shape) == ((2, 4, 4), (2, 4, 8, 8))
    else:
        mean = again.variables["batch_stats"]["segment"]["norm"]["mean"]
        assert np.any(np.asarray(mean) != 0)
    # The encoder alone starts other runs.
    plain = weights.load(f"ckpt:{whole}", again.model)["params"]
    assert not [key for key in plain if key.startswith(("eomt", "segment"))]


def test_data_of_other_classes_are_refused(tmp_path: Path) -> None:
    cfg = _config("linear", dense_sets.write_masks(tmp_path / "set"))
    cfg.objective.num_classes = 5
    with refused_as(("objectives.dense.segment.check_classes", "objective.num_classes")):
        fit(cfg, tmp_path / "run")
