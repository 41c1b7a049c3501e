# SPDX-License-Identifier: Apache-2.0
"""Points of VTAB's sweep, shrunk, train a step and are tested."""

import dataclasses

import numpy as np
import pytest

from tests.unit.data import vtab as small
from tests.unit.models.tiny import shrink
from vit_jax.recipes import vtab
from vit_jax.train.loop import fit
from vit_jax.train.report.writers import read_jsonl


@pytest.mark.parametrize("name", ["kitti_distance", "dsprites_orientation"])
def test_a_task_trains_and_is_tested(name, tmp_path):
    small.prepare(tmp_path / "data", only=vtab.TASKS[name].dataset.partition(":")[0])
    cfg = vtab.vit(name)
    cfg.model = dataclasses.replace(shrink(cfg.model, num_classes=cfg.model.num_classes))
    cfg.data.data_dir, cfg.init.weights, cfg.init.skip = str(tmp_path / "data"), "", ()
    cfg.data.train_split = cfg.data.train_split.replace("800", "8").replace("200", "2")
    cfg.data.batch_size, cfg.duration, cfg.optim.warmup = 10, "1 steps", "0 steps"
    cfg.log.tensorboard, cfg.mesh.data = False, 1
    result = fit(cfg, tmp_path / "run")
    test = small.COUNT if name == "kitti_distance" else small.COUNT // 10
    assert result.metrics["test/num_examples"] == test
    losses = [
        row["train/loss"]
        for row in read_jsonl(tmp_path / "run" / "metrics.jsonl")
        if "train/loss" in row
    ]
    np.testing.assert_allclose(
        losses, [np.log(cfg.model.num_classes)], rtol=1e-4
    )  # a head of zeros
