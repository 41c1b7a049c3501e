# SPDX-License-Identifier: Apache-2.0
"""What a run leaves is of the step that it stands for, and an evaluation that fails loses none."""

import csv
from pathlib import Path

import pytest

from tests.unit.train.test_early_stop import config
from vit_jax.checkpoints import reader
from vit_jax.devices.sharding import MeshConfig, make_mesh
from vit_jax.errors import UserError
from vit_jax.evals import report
from vit_jax.evals.classify import Classify
from vit_jax.inference import evaluate, load
from vit_jax.settings import measures
from vit_jax.train.loop import fit


def test_the_confusion_in_a_run_is_of_its_best_step(tmp_path: Path, monkeypatch, capsys) -> None:
    titles: list[str] = []
    draw = report.draw_confusion

    def drawn(matrix, names, title):
        titles.append(title)
        return draw(matrix, names, title)

    monkeypatch.setattr(report, "draw_confusion", drawn)
    cfg = config(patience=0)
    cfg.duration, cfg.optim.lr = "6 steps", 5.0  # as steep as in 30
    cfg.evals["val"].report = True
    run = tmp_path / "run"
    fit(cfg, run)
    assert reader.find(run, "").step == 3  # as weights the run is this step; the last is 6
    assert "(val/, test/) are of step 3 too" in capsys.readouterr().out
    ends = {title.partition(", ")[2] for title in titles}
    assert ends == {"step 6, the last", "step 3, best by val/loss"}
    assert all(title.endswith("best by val/loss") for title in titles[-2:])
    trained = load(str(run))
    measuring = evaluate.Measuring(
        trained, evaluate.open_target(trained, split="test"), make_mesh(MeshConfig(data=1))
    )
    scores, _ = evaluate.measure(measuring)
    wanted = measuring.evaluation.report(scores, tmp_path / "again")
    assert wanted
    for file in ("confusion.csv", "per_class.csv"):
        assert (run / "test" / file).read_text() == (tmp_path / "again" / file).read_text()
    with (run / "test" / "confusion.csv").open(newline="") as stream:
        assert len(list(csv.reader(stream))) == 11


def test_an_evaluation_that_fails_saves_first(tmp_path: Path, monkeypatch, capsys) -> None:
    cfg = config(patience=0)
    cfg.duration, cfg.optim.lr, cfg.checkpoint.every = "6 steps", 5.0, "6 steps"
    reference = fit(cfg, tmp_path / "whole")
    original = Classify.scores

    def broken(self, *args):
        raise UserError("an image that cannot be read")

    monkeypatch.setattr(Classify, "scores", broken)
    run = tmp_path / "run"
    with pytest.raises(UserError, match="read; step 3 is saved, and the same command continues"):
        fit(cfg, run)
    assert reader.find(run, "latest").step == 3
    # Another kind of failure, a line before its own message.
    monkeypatch.setattr(Classify, "scores", lambda *_: (_ for _ in ()).throw(KeyError("x")))
    with pytest.raises(KeyError):
        fit(cfg, run)
    assert "step 6 is saved, and the same command continues" in capsys.readouterr().out
    monkeypatch.setattr(Classify, "scores", original)
    result = fit(cfg, run)
    assert (result.step, result.status) == (6, 0)
    assert result.metrics["test/loss"] == reference.metrics["test/loss"]


def test_the_smallest_loss_is_kept_by_default(tmp_path: Path) -> None:
    cfg = config(patience=0)
    assert cfg.checkpoint.mode is measures.Mode.AUTO
    cfg.duration, cfg.optim.lr = "6 steps", 5.0  # as steep as in 30
    fit(cfg, tmp_path / "run")
    found = {step: reader.find(tmp_path / "run", str(step)).manifest for step in (3, 6)}
    assert found[3].metrics["val/loss"] < found[6].metrics["val/loss"]
    assert found[3].metadata["config"]["checkpoint"]["mode"] == "min"
    assert reader.find(tmp_path / "run", "best").step == 3
