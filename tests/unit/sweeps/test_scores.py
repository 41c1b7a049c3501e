# SPDX-License-Identifier: Apache-2.0
import pytest

from tests.unit.sweeps import synthetic
from vit_jax.cli.sweep import main
from vit_jax.recipes import vtab
from vit_jax.sweeps import point as point_lib
from vit_jax.sweeps import results


def test_published_scores_have_the_published_mean():
    mean = sum(vtab.PUBLISHED.values()) / 19
    assert mean == pytest.approx(vtab.MEANS["ViT-L/16, ImageNet-21k"], abs=0.02)
    groups = [task.group for task in vtab.TASKS.values()]
    assert [groups.count(name) for name in dict.fromkeys(groups)] == [7, 4, 8]


def test_cases_of_several_seeds_are_averaged_with_their_error():
    grouped = {"stem": {"1-D": [0.5, 0.7], "2-D": [0.9]}, "none": {"none": [0.1, 0.1]}}
    header, *rows = results.table(grouped, "test/top1")
    assert header == ("group", "case", "test/top1", "+-", "runs")
    assert rows == [
        ("stem", "1-D", "60.00", "10.00", "2"),
        ("stem", "2-D", "90.00", "", "1"),
        ("none", "none", "10.00", "0.00", "2"),
        ("stem", "mean of 2", "75.00", "", ""),
        ("none", "mean of 1", "10.00", "", ""),
        ("all", "mean of 3", "53.33", "", ""),
    ]
    assert results.table({"a": {"b": [0.5]}}, "val/loss")[1][2] == "0.5000"


def test_vtabs_report_has_published_scores_beside(tmp_path, capsys):
    model = synthetic.points()[0]
    made = [
        synthetic.renamed(model, run=f"{i:012d}", name=f"{task.group}/{name}", overrides={})
        for i, (name, task) in enumerate(vtab.TASKS.items())
    ]
    point_lib.write_manifest(tmp_path, made)
    for i, point in enumerate(made[:18]):
        synthetic.finish(tmp_path, point, 0.5 + i)
    assert main(["vit_jax sweep", "report", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["Natural", "caltech101", "0.5000", "1", "90.8"]
    means = [line.split() for line in lines if "mean of" in line]
    assert [row[3] for row in means] == ["7", "4", "7", "18"]
    natural = sum(list(vtab.PUBLISHED.values())[:7]) / 7
    assert means[0][-2:] == ["3.5000", f"{natural:.2f}"]
    assert not any("published," in line for line in lines)  # of all 19 only
    synthetic.finish(tmp_path, made[18], 0.5)
    assert main(["vit_jax sweep", "report", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "published, ViT-H/14, JFT" in out
    assert "mean of 19" in out
