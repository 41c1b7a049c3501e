# SPDX-License-Identifier: Apache-2.0
"""A branch ends as the run would have that cooled down from there, to the bit, killed or not."""

import copy
import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from configs import vit_mu_digits
from tests.refusals import refused_by
from tests.unit.train.test_early_stop import digests
from vit_jax.checkpoints import CheckpointConfig
from vit_jax.cli.dry_run import dry_run
from vit_jax.config.tree import Config
from vit_jax.optim import OptimConfig, Optimizer, Schedule
from vit_jax.train.loop import fit
from vit_jax.train.report.writers import read_jsonl

FOUND, RATE = "checkpoints.reader.find", "train.branch._check_rate"


def config(**optim: object) -> Config:
    """Build a run of 6 steps, with all that a checkpoint may hold."""
    cfg = vit_mu_digits.get_config()
    cfg.model.dim, cfg.model.depth, cfg.model.num_heads, cfg.model.mlp_dim = 16, 1, 2, 32
    cfg.model.dropout_rate = 0.1
    cfg.data.batch_size, cfg.duration, cfg.mesh.data = 16, "6 steps", 1
    cfg.optim = OptimConfig(
        name=Optimizer.ADAMUON, schedule=Schedule.CONSTANT, lr=3e-3, warmup="2 steps", **optim
    )
    cfg.ema_decay, cfg.faults.skip_spikes, cfg.evals = 0.9, True, {}
    cfg.checkpoint = CheckpointConfig(every="2 steps", keep=9, keep_best=0)
    cfg.log.every, cfg.log.tensorboard = "1 steps", False
    return cfg


def test_a_branch_is_a_run_that_cools_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trunk, whole, place = tmp_path / "trunk", tmp_path / "whole", tmp_path / "branch"
    trunk_config = config()
    trunk_config.duration = "4 steps"
    fit(trunk_config, trunk)
    shape = {"cooldown_shape": "sqrt", "min_lr": 1e-4}
    want = digests(fit(config(cooldown="4 steps", **shape), whole))
    branch = config(branch=f"ckpt:{trunk}@2", **shape)
    assert "from step 2 of" in dry_run(copy.deepcopy(branch))[0]
    capsys.readouterr()
    assert digests(fit(copy.deepcopy(branch), place)) == want
    out = capsys.readouterr().out
    assert f"branching off from {trunk}" in out
    assert "at step 2 of 6" in out
    rows = {row["step"]: row for row in read_jsonl(place / "metrics.jsonl") if "train/lr" in row}
    assert list(rows) == [3, 4, 5, 6]
    assert rows[3]["train/lr"] == pytest.approx(3e-3)
    # Killed after step 4; by then the trunk may be gone.
    (place / "finished.json").unlink()
    shutil.rmtree(place / "checkpoints" / "6")
    trunk = trunk.rename(tmp_path / "moved")
    assert digests(fit(copy.deepcopy(branch), place)) == want
    branch.optim.branch = f"ckpt:{trunk}@2"
    check_refusals(branch, whole, place, tmp_path / "refused")


def check_refusals(branch: Config, whole: Path, place: Path, to: Path) -> None:
    """Expect what cannot be continued to be refused, before anything is written."""

    def refused(code: str, field: str, change: Callable[[Config], object], words: str) -> None:
        cfg = copy.deepcopy(branch)
        change(cfg)
        with refused_by(code, field) as error:
            fit(cfg, to)
        assert words in str(error.value)
        assert not (to / "checkpoints").exists() or not list((to / "checkpoints").iterdir())

    def leaves(ref: str) -> Callable[[Config], object]:
        return lambda cfg: setattr(cfg.optim, "branch", ref)

    name = "optim.branch"
    ref = branch.optim.branch
    refused(FOUND, name, leaves(ref.replace("@2", "@3")), "there: 2, 4")
    refused("checkpoints.reader._checkpoints", name, leaves("ckpt:nowhere@2"), "is no directory")
    refused(RATE, name, leaves(f"ckpt:{whole}@4"), "cools down itself from step 2")
    refused(RATE, name, leaves(f"ckpt:{place}@4"), "is a branch itself")
    of_config = "train.metadata.check_unchanged"
    refused(of_config, name, lambda cfg: setattr(cfg.optim, "lr", 1e-3), "optim.lr: 0.003 -> 0.001")
    refused(of_config, name, lambda cfg: setattr(cfg, "seed", 1), "seed: 0 -> 1")
    refused(
        "train.branch.metadata",
        "ema_decay_end",
        lambda cfg: setattr(cfg, "ema_decay_end", 0.99),
        "goes by the length of the run",
    )
    other = dataclasses.replace(branch, seed=1)  # another part of the data's order, by permission
    assert fit(other, to, allow_config_change=True).step == 6
