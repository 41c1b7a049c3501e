# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path

import pytest

from tests.unit.sweeps import synthetic
from tests.unit.sweeps.test_laws import fit
from vit_jax.sweeps import laws as laws_lib
from vit_jax.sweeps import report as sweep_report
from vit_jax.sweeps import results


def test_runs_of_fewer_images_are_apart(tmp_path: Path) -> None:
    whole = synthetic.points()
    part = [
        synthetic.renamed(point, run=f"p{point.run}")
        for point in synthetic.points(split="train[:100]")[:9]
    ]
    synthetic.sweep(tmp_path, [*whole, *part])
    laws = fit(tmp_path)
    assert len(laws.runs) == len(whole)
    assert {label: len(runs) for label, runs in laws.others.items()} == {
        "train_split=train[:100]": 9
    }


def test_runs_of_several_seeds_are_one_of_their_mean(tmp_path: Path) -> None:
    made = []
    for seed in (0, 1):
        for point in synthetic.points():
            overrides = {**point.overrides, "seed": seed}
            made.append(synthetic.renamed(point, run=f"{seed}{point.run}", overrides=overrides))
    synthetic.sweep(tmp_path, made, noise=0.1)
    found = results.read(tmp_path, made)
    laws = laws_lib.fit(tmp_path, found)
    assert laws.others == {}
    assert len(laws.runs) == len(made) // 2
    first, second = (result.value for result in found if result.point.run[1:] == made[3].run[1:])
    assert first != second
    assert laws.runs[3].value == pytest.approx((first * second) ** 0.5)


def test_laws_of_an_accuracy_are_those_of_its_error(tmp_path: Path) -> None:
    made = synthetic.points()
    synthetic.sweep(tmp_path / "loss", made)
    probed = [synthetic.renamed(point, metric="knn_ema/knn5") for point in made]
    synthetic.sweep(tmp_path / "knn", probed)
    for point in probed:
        path = point.workdir(tmp_path / "knn") / "metrics.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows = [{**r, "knn_ema/knn5": 1 - r["val/loss"]} if "val/loss" in r else r for r in rows]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    of_loss = laws_lib.fit(tmp_path / "loss", results.read(tmp_path / "loss", made))
    of_error = laws_lib.fit(tmp_path / "knn", results.read(tmp_path / "knn", probed))
    assert laws_lib.measure("knn_ema/knn5") == "1 - knn_ema/knn5"
    assert laws_lib.measure("val/loss") == "val/loss"
    assert of_error.compute.b == pytest.approx(of_loss.compute.b, rel=1e-3)
    assert of_error.isoflop.a == pytest.approx(of_loss.isoflop.a, rel=1e-3)
    # An error of zero has no logarithm: a law is refused, not the report.
    for point in probed[:1]:
        path = point.workdir(tmp_path / "knn") / "metrics.jsonl"
        path.write_text(json.dumps({"step": 100, "knn_ema/knn5": 1.0}) + "\n")
    found = laws_lib.fit(tmp_path / "knn", results.read(tmp_path / "knn", probed))
    assert "above zero" in found.refused["joint"]


def test_the_figure_has_lettered_panels_and_the_laws_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synthetic.sweep(tmp_path, synthetic.points(), noise=0.005)
    laws, drawn = fit(tmp_path), []
    monkeypatch.setattr(sweep_report.figures, "save", lambda figure, _: drawn.append(figure))
    sweep_report.draw_laws(laws, "val/loss", "70 runs", tmp_path / "x.png")
    figure = drawn[0]
    panels = [axes for axes in figure.axes if axes.get_title()]
    assert [axes.get_title()[:3] for axes in panels] == ["(a)", "(b)", "(c)", "(d)"]
    caption = figure._supxlabel.get_text().replace("\n", " ")
    for law in (laws.compute, laws.isoflop, laws.joint):
        assert law.describe() in caption
        assert all(law.describe() not in text.get_text() for axes in panels for text in axes.texts)
    # In grey, runs of equal compute are told apart by their markers.
    markers = {line.get_marker() for line in panels[1].get_lines()} - {"None", "*", ""}
    assert len(markers) == len(laws.isoflop.budgets)
