# SPDX-License-Identifier: Apache-2.0

import matplotlib.figure
import numpy as np
import pytest
from PIL import Image

from tests.unit.visual.test_curve import _write, learning_curve
from vit_jax.checkpoints.config import Mode, ranked


@pytest.fixture
def axes(monkeypatch):
    """The axes of the figure that was saved."""
    found = []
    original = matplotlib.figure.Figure.savefig

    def savefig(self, *args, **kwargs):
        found.extend(self.axes)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", savefig)
    return found


def _rows():
    rows = [{"step": s, "train/loss": 2 - s / 100, "train/top1": s / 110} for s in range(1, 101)]
    tops = (0.3, 0.9, 0.7)
    rows += [{"step": 30 * i, "val/top1": t, "val/loss": 1 - t} for i, t in enumerate(tops, 1)]
    rows += [{"step": 30 * i, "val_ema/top1": t + 0.05} for i, t in enumerate(tops, 1)]
    return rows


def test_curves_labels_and_values(tmp_path, axes):
    source = _write(tmp_path / "m.jsonl", _rows())
    assert learning_curve(source, tmp_path / "curve.png", "a run")
    assert [a.get_ylabel() for a in axes] == ["loss", "top-1 accuracy (%)"]
    assert {a.get_xlabel() for a in axes} == {"step"}
    loss, top1 = ([t.get_text() for t in a.get_legend().get_texts()] for a in axes)
    assert loss == ["train  1.000", "val  0.300  (best 0.100 at step 60)"]
    assert top1 == [
        "train  90.9%",
        "val  70.0%  (best 90.0% at step 60)",
        "val_ema  75.0%  (best 95.0% at step 60)",
    ]
    lines = {x.get_label().split("  ")[0]: x for x in axes[1].lines}
    np.testing.assert_allclose(lines["val"].get_xydata(), [[30, 30], [60, 90], [90, 70]])
    assert len({lines[name].get_color() for name in ("train", "val", "val_ema")}) == 3
    assert sorted(f.name for f in tmp_path.iterdir()) == ["curve.png", "m.jsonl"]
    pixels = np.asarray(Image.open(tmp_path / "curve.png").convert("RGB"))
    assert pixels.shape[1] > 1200
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 50


def test_of_equal_bests_the_last_is_marked(tmp_path, axes):
    tops = (0.5, 0.75, 0.75, 0.25)
    rows = [{"step": i, "val/top1": t, "val/loss": 1 - t} for i, t in enumerate(tops, 1)]
    assert learning_curve(_write(tmp_path / "m.jsonl", rows), tmp_path / "c.png", "equals")
    for each in axes:
        (text,) = each.get_legend().get_texts()
        assert text.get_text().endswith("at step 3)")
        assert each.lines[0].get_xdata().tolist() == [3]
    ranks = {row["step"]: row for row in rows}
    assert ranked(ranks, "val/top1", Mode.MAX)[0] == ranked(ranks, "val/loss", Mode.MIN)[0] == 3


def test_long_run_is_thinned_to_its_end(tmp_path, axes):
    rows = [{"step": s, "train/loss": 1.0 / s} for s in range(1, 50_001)]
    assert learning_curve(_write(tmp_path / "m.jsonl", rows), tmp_path / "c.png", "long")
    (line,) = axes[0].lines
    assert len(line.get_xdata()) <= 2000
    assert line.get_xdata()[-1] == 50_000
