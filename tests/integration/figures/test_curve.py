# SPDX-License-Identifier: Apache-2.0

import dataclasses

import numpy as np
import pytest
from PIL import Image

from configs.vit_mu_digits import get_config
from tests.unit.figures.test_curve import _write, learning_curve, saved_axes
from vit_jax.figures import plots
from vit_jax.inference import load
from vit_jax.inference.trained import title
from vit_jax.train import ending
from vit_jax.train.loop import fit
from vit_jax.train.report.writers import read_jsonl


@pytest.fixture
def axes(monkeypatch):
    return saved_axes(monkeypatch)


def _rows():
    rows = [{"step": s, "train/loss": 2 - s / 100, "train/top1": s / 110} for s in range(1, 101)]
    tops = (0.3, 0.9, 0.7)
    rows += [{"step": 30 * i, "val/top1": t, "val/loss": 1 - t} for i, t in enumerate(tops, 1)]
    rows += [{"step": 30 * i, "val_ema/top1": t + 0.05} for i, t in enumerate(tops, 1)]
    return rows


def test_curves_labels_and_values(tmp_path, axes):
    source = _write(tmp_path / "m.jsonl", _rows())
    marked = {"kept": 60, "metric": "val/top1"}
    assert learning_curve(source, tmp_path / "curve.png", "a run", **marked)
    assert [a.get_ylabel() for a in axes] == ["loss", "top-1 accuracy (%)"]
    assert {a.get_xlabel() for a in axes} == {"step"}
    loss, top1 = ([t.get_text() for t in a.get_legend().get_texts()] for a in axes)
    best = "step 60, best by val/top1"
    assert loss == ["train  1.000", "val  0.300  (0.100 at step 60)", best]
    assert top1 == [
        "train  90.9%",
        "val  70.0%  (90.0% at step 60)",
        "val_ema  75.0%  (95.0% at step 60)",
        best,
    ]
    lines = {x.get_label().split("  ")[0]: x for x in axes[1].lines}
    np.testing.assert_allclose(lines["val"].get_xydata(), [[30, 30], [60, 90], [90, 70]])
    for look in ("get_color", "get_marker"):
        assert len({getattr(lines[name], look)() for name in ("train", "val", "val_ema")}) == 3
    assert lines["val"].get_linestyle() != lines["val_ema"].get_linestyle()
    assert sorted(f.name for f in tmp_path.iterdir()) == ["curve.png", "m.jsonl"]
    pixels = np.asarray(Image.open(tmp_path / "curve.png").convert("RGB"))
    assert pixels.shape[1] > 1200
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 50


def test_the_run_the_curve_and_evaluate_name_one_step(tmp_path, axes, capsys, monkeypatch):
    monkeypatch.setattr(ending, "learning_curve", plots.learning_curve)
    cfg = get_config()
    cfg.model = dataclasses.replace(cfg.model, dim=16, depth=1, num_heads=2, mlp_dim=32)
    cfg.duration, cfg.log.tensorboard, cfg.data.batch_size = "40 steps", False, 16
    cfg.optim.lr, cfg.optim.warmup, cfg.evals["val"].every = 0.3, "1 steps", "8 steps"
    cfg.mesh.data = 1
    run = tmp_path / "run"
    fit(cfg, run)
    kept = load(str(run))
    lines = [each for each in axes[-1].lines if str(each.get_label()).startswith("step ")]
    assert [each.get_label() for each in lines] == [f"step {kept.step:,}, best by val/top1"]
    assert lines[0].get_xdata()[0] == kept.step
    assert kept.step is not None
    assert title(kept).endswith(f"step {kept.step:,}, best by val/top1")
    rows = [row for row in read_jsonl(run / "metrics.jsonl") if "val/top1" in row]
    best = max(row["val/top1"] for row in rows)
    assert kept.step == max(row["step"] for row in rows if row["val/top1"] == best)
    if kept.step < 40:
        assert f"as weights is step {kept.step}, the best by val/top1" in capsys.readouterr().out


def test_long_run_is_thinned_to_its_end(tmp_path, axes):
    rows = [{"step": s, "train/loss": 1.0 / s} for s in range(1, 50_001)]
    assert learning_curve(_write(tmp_path / "m.jsonl", rows), tmp_path / "c.png", "long")
    (line,) = axes[0].lines
    assert len(line.get_xdata()) <= 2000
    assert line.get_xdata()[-1] == 50_000
