# SPDX-License-Identifier: Apache-2.0
"""A run that no longer gets better stops with its best parameters, killed in between or not."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from configs import vit_mu_digits
from tests.refusals import RANGE, refused_by
from tests.unit.train.test_early_stop import config, digests, scores
from vit_jax import config as config_lib
from vit_jax import weights
from vit_jax.checkpoints import CheckpointConfig, reader
from vit_jax.checkpoints.checkpointer import Checkpointer
from vit_jax.optim import OptimConfig, Optimizer
from vit_jax.train.loop import Result, fit
from vit_jax.train.report.writers import read_jsonl
from vit_jax.workdir import folder as workdir

ROOT = Path(__file__).parents[3]


RANKING = "checkpoints.config.check_ranking"


@pytest.mark.parametrize(
    "settings, code, field",
    [
        ({"patience": -1}, RANGE, "patience"),
        ({"patience": 2, "keep_best": 0}, RANKING, "patience"),
        ({"patience": 2, "metric": "test/top1"}, RANKING, "metric"),
        ({"patience": 2, "metric": ""}, RANKING, "metric"),
        ({"patience": 2, "metric": "val_ema/top1"}, RANKING, "metric"),
    ],
)
def test_patience_that_could_not_act_is_refused(settings, code, field):
    cfg = vit_mu_digits.get_config()
    cfg.checkpoint = CheckpointConfig(**settings)
    with refused_by(code, f"checkpoint.{field}"):
        config_lib.check(cfg)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    place = tmp_path_factory.mktemp("early") / "run"
    return place, fit(config(), place)


def test_stops_and_ends_with_the_best(stopped, capsys):
    place, result = stopped
    assert (result.step, result.status, int(result.state.step)) == (9, 0, 3)
    assert workdir.finished_step(place) == 9
    rows = read_jsonl(place / workdir.METRICS)
    loss = {row["step"]: row["val/loss"] for row in rows if "val/loss" in row}
    assert list(loss) == [3, 6, 9]
    assert loss[3] < min(loss[6], loss[9])
    # Every final evaluation is of the restored parameters; step 9 has its own in the log, too.
    assert result.metrics["val/loss"] == loss[3]
    assert result.metrics["val_ema/loss"] == next(r["val_ema/loss"] for r in rows if r["step"] == 3
                                                  and "val_ema/loss" in r)  # fmt: skip
    assert [(r["step"], r["test/loss"]) for r in rows if "test/loss" in r] == [
        (9, result.metrics["test/loss"])
    ]
    assert (place / "test" / "confusion.csv").exists()
    assert (place / workdir.CURVE).exists()
    # The same command has nothing to do, and says so.
    again = fit(config(), place)
    assert (again.state, again.step, again.status) == (None, 9, 0)
    assert again.metrics == result.metrics
    assert "stopped early at step 9; nothing to do" in capsys.readouterr().out


def test_patience_that_ends_with_the_run_counts(tmp_path):
    cfg = config()
    cfg.duration, cfg.optim.lr = "9 steps", 7.5
    result = fit(cfg, tmp_path / "run")
    assert (result.step, result.status, int(result.state.step)) == (9, 0, 3)
    evaluated = [n for s, n, _ in scores(tmp_path / "run") if s == 9 and n.endswith("/loss")]
    assert sorted(evaluated) == sorted(set(evaluated))
    assert {"val/loss", "test/loss"} <= set(evaluated)


def test_its_weights_are_the_best_ones_by_default(stopped):
    place, result = stopped
    assert [reader.find(place, which).step for which in ("", "best", "latest")] == [3, 3, 9]
    params = weights.load(f"ckpt:{place}", config().model)["params"]
    jax.tree.map(np.testing.assert_array_equal, params, result.state.params)


def kill_at(moment: str) -> None:
    """Have SIGKILL sent at the very moment: to be called in a process of its own."""
    real_save = Checkpointer.save

    def die(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGKILL)

    def save(self, step, state, **kwargs):
        return die() if step == 9 else real_save(self, step, state, **kwargs)

    if moment == "decided, not saved":
        Checkpointer.save = save
    else:
        assert moment == "saved, not restored"
        Checkpointer.restore_step = die


@pytest.mark.slow
def test_kills_around_the_decision_change_nothing(stopped, tmp_path, capsys):
    place, reference = tmp_path / "run", stopped[1]
    code = "import sys; from tests.integration.train import test_early_stop as test; "
    code += "test.kill_at(sys.argv[1]); test.fit(test.config(), sys.argv[2])"
    for moment, saved in (("decided, not saved", False), ("saved, not restored", True)):
        died = subprocess.run(
            [sys.executable, "-c", code, moment, str(place)],
            cwd=ROOT,
            env={**os.environ, "JAX_NUM_CPU_DEVICES": "8"},
            capture_output=True,
            timeout=180,
            text=True,
        )
        assert died.returncode == -signal.SIGKILL, died.stderr
        assert (place / "checkpoints" / "9").exists() == saved
        assert workdir.finished_step(place) is None
    result = fit(config(), place)
    told = "stopped early at step 9: no better val/loss than {:.6g} of step 3 in 2 evaluations"
    assert told.format(reference.metrics["val/loss"]) in capsys.readouterr().out
    assert digests(result) == digests(reference)
    assert result.metrics == reference.metrics
    assert scores(place) == scores(stopped[0])
    # Killed after all is written but the mark.
    (place / "finished.json").unlink()
    assert digests(fit(config(), place)) == digests(reference)
    assert scores(place) == scores(stopped[0])
    assert workdir.finished_step(place) == 9
    # More patience goes on from the step where it stopped.
    result = fit(config(patience=3), place)
    assert (result.step, int(result.state.step)) == (12, 3)


@pytest.mark.slow
def test_goes_back_behind_damaged_checkpoints(tmp_path, capsys):
    cfg = config()
    cfg.checkpoint.keep_best = 2
    place = tmp_path / "run"
    fit(cfg, place)
    (place / "finished.json").unlink()
    for step in ("3", "9"):
        for file in (place / "checkpoints" / step).rglob("*"):
            if file.is_file() and file.parent.name == "d":
                file.write_bytes(b"")
    # From step 6, with one measurement counted since the best, whose checkpoint is lost.
    result = fit(cfg, place)
    told = capsys.readouterr().out
    assert "continuing" in told
    assert "checkpoints/3 is unusable" in told
    assert (result.step, int(result.state.step)) == (9, 6)
    assert result.metrics["val/loss"] == reader.find(place, "6").manifest.metrics["val/loss"]


def test_the_end_says_of_which_step_its_metrics_are(tmp_path, capsys):
    place = tmp_path / "run"
    cfg = config(patience=0)
    cfg.duration, cfg.optim.lr = "6 steps", 5.0
    fit(cfg, place)
    told = f"the metrics above are of step 6, the last; {place} as weights is step 3, the best by "
    assert told + f"val/loss, and {place}@latest this one" in capsys.readouterr().out
    assert reader.find(place, "").step == 3
    cfg.optim = OptimConfig(name=Optimizer.SGD, lr=0.1, momentum=0.0)  # which learns
    fit(cfg, tmp_path / "better")
    assert "the metrics above" not in capsys.readouterr().out
