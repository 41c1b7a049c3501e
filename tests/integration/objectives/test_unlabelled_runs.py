# SPDX-License-Identifier: Apache-2.0
"""Runs without labels go on to the bit, and what is fine-tuned from them starts as they end."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.unit.test_configs import CONFIGS, load, shrink
from vit_jax import weights
from vit_jax.__main__ import main
from vit_jax.checkpoints.reader import find
from vit_jax.checkpoints.reader import load as read
from vit_jax.config.tree import Config
from vit_jax.evals import FeaturesEval, FewShotEval, LinearEval
from vit_jax.objectives import Dino, GramConfig
from vit_jax.train.loop import fit
from vit_jax.train.report.writers import read_jsonl
from vit_jax.workdir.folder import CHECKPOINTS


def _config(run: str) -> Config:
    cfg = shrink(load(CONFIGS / "unlabelled_digits.py", run))
    cfg.duration, cfg.optim.warmup = "4 steps", "1 steps"
    cfg.checkpoint.every, cfg.checkpoint.keep, cfg.checkpoint.keep_best = "2 steps", 9, 0
    near = cfg.evals["knn"]
    if run in ("mae", "dino"):
        cfg.evals["features"] = FeaturesEval(split=near.split, transform=near.transform)
    if run == "dino":
        cfg.objective.gram = GramConfig(weight=1.0, start="1 steps", every="2 steps", copies=2)
        shared = {"split": near.split, "train_split": "train[:60]", "transform": near.transform}
        cfg.evals["few"] = FewShotEval(shots=(1,), seeds=1, **shared)
        cfg.evals["linear"] = LinearEval(**shared)
    for each in cfg.evals.values():
        each.every = ""
    return cfg


def _arrays(path: Path) -> dict[str, np.ndarray]:
    saved = find(str(path), "4")
    kinds = ("params/", "ema/", "objective/")
    names = [name for name in saved.manifest.leaves if name.startswith(kinds)]
    return {name: np.asarray(value) for name, value in read(saved, names).items()}


def _check_drift(
    rows: list[dict[str, Any]],
    measured: dict[str, float],
    again: dict[str, float],
    *,
    kept: bool,
) -> None:
    """The start is step 0 of the log, and a run that goes on is compared with it too."""
    assert rows[0]["step"] == 0
    assert rows[0]["features/cka"] == pytest.approx(1)
    assert rows[0]["features/overlap"] == 1
    names = ["features/rank", "features/similarity", "features/cka", "features/overlap"]
    assert 0 < measured["features/cka"] < 1 - 1e-6
    assert 0 < measured["features/overlap"] <= 1
    for name in names if kept else names[:2]:
        assert again[name] == measured[name], name
    assert ("features/cka" in again) == kept


def test_a_probe_that_gets_no_better_ends_a_run(tmp_path: Path) -> None:
    cfg = _config("mae")
    del cfg.evals["val"]
    cfg.optim.lr = 1e-12  # nothing is learned, and neighbours stay as they are
    cfg.duration, cfg.evals["knn"].every = "8 steps", "1 steps"
    cfg.checkpoint.metric, cfg.checkpoint.keep_best, cfg.checkpoint.patience = "knn/knn2", 1, 2
    result = fit(cfg, tmp_path / "run")
    assert (result.status, result.step) == (0, 3)


@pytest.mark.parametrize("run", ["mae", "dino", "lejepa", "ijepa"])
def test_a_run_goes_on_to_the_bit_and_starts_another(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Dino, "alarm", lambda self, metrics: f"rank {metrics['feature_rank'] > 0}")
    whole, rest = tmp_path / "whole", tmp_path / "rest"
    measured = fit(_config(run), whole).metrics
    # A run of DINO warns of its collapse.
    assert ("warning: step 4: rank True" in "".join(capfd.readouterr())) == (run == "dino")
    shutil.copytree(whole / CHECKPOINTS / "2", rest / CHECKPOINTS / "2")
    if run == "mae":  # of the other the start's features are lost
        shutil.copytree(whole / "features", rest / "features")
    again = fit(_config(run), rest).metrics
    if run in ("mae", "dino"):
        _check_drift(read_jsonl(whole / "metrics.jsonl"), measured, again, kept=run == "mae")
    lost = "start.npy is not what the run wrote at its start" in "".join(capfd.readouterr())
    assert lost == (run == "dino")
    before, after = _arrays(whole), _arrays(rest)
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(value, after[name], err_msg=name)
    cfg = _config(run)
    average = cfg.objective.needs_average
    if run == "dino":  # the probes of the student and of the teacher
        names = {"knn/knn2", "few/1shot", "linear/linear"}
        names |= {name.replace("/", "_ema/") for name in names}
        assert names <= measured.keys()
        assert all(0 <= measured[name] <= 1 for name in names)
    assert any(name.startswith("objective/") for name in before) == (run == "dino")
    if run == "dino":  # the second copy of the teacher is the average after three steps
        assert any(
            name.startswith("objective/gram/") and value.any() for name, value in after.items()
        )
    classifier = dataclasses.replace(cfg.model, num_classes=10)
    found = weights.load(f"ckpt:{whole}", classifier, skip=("^head/",))
    kernel = found["params"]["patch_embed"]["kernel"]
    prefix = "ema/params/" if average else "params/"
    np.testing.assert_array_equal(kernel, before[f"{prefix}patch_embed/kernel"])
    own = {"dino_head", "decoder_pred", "patch_head", "mask_token", "projector", "predictor_proj"}
    assert not set(found["params"]) & own
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))
    # What leaves the run is the encoder, and of DINO the teacher's.
    file = tmp_path / "encoder.safetensors"
    assert main(["vit_jax", "convert", f"--from={whole}@latest", f"--to=timm:{file}"]) == 0
    kept = load_file(file)
    first = {name.split(".")[0] for name in kept}
    assert first == {"blocks", "cls_token", "norm", "patch_embed", "pos_embed"}
    np.testing.assert_array_equal(kept["cls_token"], before[f"{prefix}cls_token"])
