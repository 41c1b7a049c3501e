# SPDX-License-Identifier: Apache-2.0
import json

import matplotlib.figure
import pytest

from vit_jax.figures import plots
from vit_jax.train.report.writers import read_jsonl


def _write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def saved_axes(monkeypatch):
    """Return a list that takes the axes of each figure as it is saved."""
    found = []
    original = matplotlib.figure.Figure.savefig

    def savefig(self, *args, **kwargs):
        found.extend(self.axes)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", savefig)
    return found


@pytest.fixture
def axes(monkeypatch):
    return saved_axes(monkeypatch)


def learning_curve(source, out, title, **marked):
    return plots.learning_curve(read_jsonl(source), out, title, **marked)


def test_null_and_torn_lines_are_left_out(tmp_path, axes):
    path = _write(tmp_path / "m.jsonl", [{"step": 1, "train/loss": 1.0}, {"step": 2}])
    with path.open("a") as file:
        file.write('{"step": 3, "train/loss": null}\n{"step": 4, "train/lo')
    assert learning_curve(path, tmp_path / "c.png", "short")
    assert len(axes) == 1
    assert axes[0].lines[0].get_xdata().tolist() == [1]


def test_nothing_to_draw(tmp_path):
    assert not learning_curve(tmp_path / "none.jsonl", tmp_path / "c.png", "empty")
    assert not (tmp_path / "c.png").exists()


def test_dollars_in_names_are_no_formula(tmp_path):
    rows = [{"step": 1, r"$\no{$/top1": 0.5}]
    assert learning_curve(_write(tmp_path / "m.jsonl", rows), tmp_path / "c.png", r"$\no{$")
