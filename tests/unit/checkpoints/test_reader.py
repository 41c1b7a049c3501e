# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of a run is found by its step, as the latest or as the best."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vit_jax.checkpoints import CheckpointConfig, reader
from vit_jax.checkpoints.checkpointer import Checkpointer
from vit_jax.errors import UserError

LOSSES = {1: 0.9, 2: 0.2, 3: 0.4}


def saved(run: Path, **settings: Any) -> Path:
    checkpoints = Checkpointer(run / "checkpoints", CheckpointConfig(keep=3))
    metadata = {"config": {"checkpoint": {"metric": "val/loss", "mode": "min", **settings}}}
    for step, loss in LOSSES.items():
        state = {"x": np.full(3, step, np.float32)}
        checkpoints.save(step, state, metadata=metadata, metrics={"val/loss": loss})
    checkpoints.wait()
    return run


def test_which_is_found(tmp_path: Path) -> None:
    kept = saved(tmp_path / "kept", keep_best=1)
    for place in (kept, kept / "checkpoints"):
        found = {which: reader.find(place, which).step for which in ("", "best", "latest", "1")}
        assert found == {"": 2, "best": 2, "latest": 3, "1": 1}
    assert reader.find(kept).path == kept / "checkpoints" / "2"
    assert reader.load(reader.find(kept, "1"), ["x"])["x"].tolist() == [1, 1, 1]
    latest = saved(tmp_path / "latest")
    found = {which: reader.find(latest, which).step for which in ("", "best", "latest")}
    assert found == {"": 3, "best": 2, "latest": 3}
    other = saved(tmp_path / "other", keep_best=1, metric="val/top1")
    assert reader.find(other).step == 3


def test_what_is_not_there(tmp_path: Path) -> None:
    run = saved(tmp_path / "run", metric="val/top1", mode="max")
    for place, which, why in (
        (run, "4", r"no checkpoint of step 4 in .*; there: 1, 2, 3"),
        (run, "best", "has the metric 'val/top1'; name a step"),
        (tmp_path, "", "has no finished checkpoint; name the workdir of a run"),
        (tmp_path / "none", "", "is no directory; name the workdir of a run"),
    ):
        with pytest.raises(UserError, match=why):
            reader.find(place, which)
