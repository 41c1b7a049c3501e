# SPDX-License-Identifier: Apache-2.0
"""A loss that jumps is told with its examples; where it is skipped, nothing of it stays."""

import json
import shutil
from pathlib import Path

import pytest

from tests.faults.painted import changed, get_config, paint, seed_for
from tests.refusals import refused_by
from tests.unit.train.test_early_stop import digests
from vit_jax import config as config_lib
from vit_jax.config.tree import WINDOW, Config
from vit_jax.train.loop import fit
from vit_jax.train.report.writers import read_jsonl


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write black images of class a, and one that is labelled b."""
    root = tmp_path_factory.mktemp("images")
    paint(root / "train" / "a", [0] * 399)
    paint(root / "train" / "b", [0])
    return root


def config(images: Path, *, skip: bool) -> tuple[Config, int]:
    """Return a run that ends with the step of the image with the wrong label, and this step."""
    cfg = get_config(str(images))
    cfg.seed, step = seed_for(images, "b/0.png", range(WINDOW + 30, 200))
    cfg.duration, cfg.checkpoint.every = f"{step} steps", f"{step - 1} steps"
    cfg.faults.skip_spikes = skip
    return cfg, step


def test_nothing_to_skip_by_is_refused(images: Path) -> None:
    cfg, _ = config(images, skip=True)
    cfg.faults.spike_sigmas = 0.0
    with refused_by("config.tree.FaultsConfig.check", "faults.skip_spikes"):
        config_lib.check(cfg)


def check_told(run: Path, step: int, out: str) -> None:
    (row,) = [json.loads(line) for line in (run / "spikes.jsonl").read_text().splitlines()]
    assert (row["step"], len(row["examples"])) == (step, 2)
    assert any(name.endswith("train/b/0.png") for name in row["examples"])
    rows = {row["step"]: row for row in read_jsonl(run / "metrics.jsonl") if "train/loss" in row}
    assert [at for at, values in rows.items() if values["train/spikes"]] == [step]
    assert rows[step]["train/loss"] == row["loss"]
    assert f"of step {step} is a spike" in out


def test_a_wrong_label_is_told(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cfg, step = config(images, skip=False)
    fit(cfg, tmp_path / "run")
    check_told(tmp_path / "run", step, capsys.readouterr().out)
    assert "params/head/bias" in changed(tmp_path / "run", step - 1, step)


def test_a_skipped_spike_changes_nothing_also_in_a_run_that_goes_on(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cfg, step = config(images, skip=True)
    run = tmp_path / "run"
    whole = fit(cfg, run)
    check_told(run, step, capsys.readouterr().out)
    counters = {"step", "opt_state/adamw/count", "opt_state/lr/count"}
    assert changed(run, step - 1, step) == counters | {"losses/count", "losses/values"}
    shutil.rmtree(run / "checkpoints" / str(step))
    (run / "finished.json").unlink()
    assert digests(fit(cfg, run)) == digests(whole)
    check_told(run, step, capsys.readouterr().out)
