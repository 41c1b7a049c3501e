# SPDX-License-Identifier: Apache-2.0
"""What is not finite never reaches the parameters or a checkpoint."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.faults.painted import arrays, changed, get_config, paint, seed_for
from tests.refusals import refused_by
from vit_jax.config.tree import FaultsConfig
from vit_jax.data.augment import mix
from vit_jax.errors import NonFinite
from vit_jax.optim import OptimConfig
from vit_jax.train.loop import fit
from vit_jax.train.report.writers import read_jsonl


@pytest.fixture
def white_is_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    normalize = mix.normalize

    def broken(images: jax.Array, mean: tuple, std: tuple) -> jax.Array:
        return jnp.where(images == 255, jnp.nan, normalize(images, mean, std))

    monkeypatch.setattr(mix, "normalize", broken)


@pytest.mark.usefixtures("white_is_nan")
def test_one_batch_is_skipped_and_counted(tmp_path: Path) -> None:
    paint(tmp_path / "train" / "a", [0] * 19)
    paint(tmp_path / "train" / "b", [255])
    cfg = get_config(str(tmp_path))
    cfg.seed, _ = seed_for(tmp_path, "b/0.png", [3])
    cfg.duration = "4 steps"
    run = tmp_path / "run"
    assert fit(cfg, run).status == 0
    rows = [row for row in read_jsonl(run / "metrics.jsonl") if "train/nonfinite" in row]
    assert [row["train/nonfinite"] for row in rows] == [0, 0, 1, 0]
    counters = {"step", "opt_state/adamw/count", "opt_state/lr/count"}
    assert changed(run, 2, 3) == counters
    assert {"params/head/bias", "ema/params/head/bias"} < changed(run, 3, 4)
    assert all(np.isfinite(leaf).all() for leaf in arrays(run, 4).values())


@pytest.mark.usefixtures("white_is_nan")
def test_too_many_in_a_row_end_the_run_and_leave_finite_checkpoints(tmp_path: Path) -> None:
    for name in ("a", "b"):
        paint(tmp_path / "train" / name, [255])
    cfg = get_config(str(tmp_path))
    cfg.faults = FaultsConfig(max_nonfinite=3)
    with refused_by("train.report.metric_buffer.MetricBuffer._fetch", kind=NonFinite) as error:
        fit(cfg, tmp_path / "run")
    assert error.value.status == 70
    assert all(np.isfinite(leaf).all() for leaf in arrays(tmp_path / "run", 1).values())


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_parameters_that_overflow_are_not_saved(tmp_path: Path) -> None:
    for name in ("a", "b"):
        paint(tmp_path / "train" / name, [128])
    cfg = get_config(str(tmp_path))
    cfg = dataclasses.replace(cfg, optim=OptimConfig(lr=1e39))  # infinite in float32
    with refused_by("checkpoints.manifest.describe", kind=NonFinite) as error:
        fit(cfg, tmp_path / "run")
    assert error.value.status == 70
    assert not list((tmp_path / "run" / "checkpoints").iterdir())
