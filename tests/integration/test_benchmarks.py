# SPDX-License-Identifier: Apache-2.0
"""Every benchmark runs, at tiny sizes and without judging a time, and writes rows of one shape."""

import dataclasses
import json
from pathlib import Path

import pytest

from benchmarks import (
    digits,
    input_pipeline,
    peft,
    recipes,
    record,
    startup,
    tables,
    train_step,
    turns,
)
from configs import finetune_digits, tenth_digits
from tests.conftest import CACHE
from tests.unit.models.tiny import shrink
from vit_jax import config as config_lib
from vit_jax import models


def _rows(directory: Path) -> list[dict]:
    (path,) = directory.glob("*.json")
    content = json.loads(path.read_text())
    assert {"device", "versions", "date", "rows"} == set(content)
    assert "jax" in content["versions"]
    fields = {field.name for field in dataclasses.fields(record.Row)} | {"date"}
    for row in content["rows"]:
        assert set(row) == fields
        assert row["ours"] > 0
    return content["rows"]


@pytest.mark.slow
def test_train_step_writes_a_row_for_each_work_and_peer(tmp_path):
    sizes = ["--batch=8", "--rounds=1", "--seconds=0"]
    train_step.main(["--variant=vit_mu_8x8", *sizes, f"--out={tmp_path}", "--peers", "plain Flax"])
    rows = _rows(tmp_path)
    assert [(row["work"], row["peer"]) for row in rows] == [
        (f"vit_mu_8x8 {work} batch=8 float32", "plain Flax") for work in ("forward", "train")
    ]
    for row in rows:
        assert row["ratio"] == pytest.approx(row["ours"] / row["peer_value"], rel=1e-2)


def test_every_family_has_a_row_beside_timm():
    measured = {type(train_step.model_config(c.variant, c.dtype)) for c in train_step.DEFAULT}
    assert measured == {type(cfg) for cfg in models.VARIANTS.values()}
    assert all(train_step.EAGER in case.peers for case in train_step.DEFAULT)


@pytest.mark.slow
def test_input_pipeline_writes_rows_for_threads_and_digits(tmp_path):
    sizes = ["--images=8", "--batch=4", "--batches=1", "--rounds=1", "--workers", "0"]
    input_pipeline.main(["--peer=none", *sizes, f"--out={tmp_path}"])
    works = [row["work"] for row in _rows(tmp_path)]
    assert len(works) == 2
    assert works[0].endswith("batch=4, threads")
    assert works[1].startswith("digits")


@pytest.mark.slow
def test_startup_times_a_real_run_to_its_first_step_and_to_its_end(tmp_path, monkeypatch):
    whole = startup._environment

    def environment(cache, data_dir):
        own = whole(cache, data_dir)
        # Python's bytecode is this process's: that of all modules anew is half a minute's work.
        assert Path(own.pop("PYTHONPYCACHEPREFIX")).parent == tmp_path
        return own

    monkeypatch.setattr(startup, "_environment", environment)
    first, end = startup.run_once(tmp_path / "run", CACHE, tmp_path / "data")
    assert 0 < first < end


@pytest.mark.slow
def test_peft_measures_every_way_beside_full_fine_tuning():
    found = peft.costs("vit_mu8_16", 4, 1)
    table = peft.costs_table(found).splitlines()
    assert [line.split(" | ")[0] for line in table[2:]] == [f"| {way}" for way in peft.WAYS]
    full, low = found["full"], found["LoRA"]
    assert found["biases"].trained < low.trained < full.trained  # the head is most of the model
    assert low.checkpoint < full.checkpoint
    assert low.flops < full.flops
    assert all(len(cost.seconds) == 1 for cost in found.values())


def test_startup_compares_a_warm_cache_with_an_empty_one(tmp_path):
    rows = startup.rows([1.0], cold=[(8.0, 10.0)], warm=[(4.0, 9.0)], load=0.0)
    record.save(rows, tmp_path, "cpu, 2 cores")
    assert [row["ratio"] for row in _rows(tmp_path)] == [0.9, 0.5, None]


def test_rows_are_merged_by_work_and_peer(tmp_path):
    alone = record.Row(work="a", unit="images/s", ours=1.0)
    other = record.Row(work="b", unit="images/s", ours=2.0)
    beside = record.Row(work="a", unit="images/s", ours=3.0, peer="p", peer_value=6.0, ratio=0.5)
    record.save([alone, other], tmp_path, "cpu, 2 cores")
    path = record.save([beside], tmp_path, "cpu, 2 cores", {"p": "1.0"})
    assert path.name == "cpu-2-cores.json"
    content = json.loads(path.read_text())
    assert [(r["work"], r["peer"], r["ours"]) for r in content["rows"]] == [
        ("a", "p", 3.0),
        ("b", None, 2.0),
    ]
    assert content["versions"]["p"] == "1.0"


def test_the_fastest_setting_of_each_round_counts():
    slow, fast = turns.Turn(10, 2.0, 2.0), turns.Turn(10, 1.0, 1.0)
    best = turns.fastest([[slow, fast], [fast, slow]])
    assert best == [fast, fast]
    assert turns.ratios([slow, fast], best) == [0.5, 1.0]
    assert turns.cpu_ratio([slow, slow], best) == 0.5


def test_the_tables_of_recipes_are_those_measured():
    page = (recipes.PICTURE.parent.parent / "reproduce.md").read_text().splitlines()
    rows = recipes.read(record.RESULTS / "recipes_digits.json", [0, 1, 2])
    assert [row.method for row in rows] == [run.row for run in recipes.RUNS]
    for line in [*digits.markdown(rows).splitlines(), *recipes.judge(rows).splitlines()]:
        assert line in page


def test_a_claim_holds_where_every_seed_is_above():
    top1 = {"plain": (0.6, 0.5), "augmented": (0.7, 0.8), "teacher": (0.9, 0.65)}
    top1["convit"] = (0.75, 0.74)
    rows = [
        digits.Row(method=run.row, num_train=1, top1=top1[run.arm], seconds=(1.0, 1.0))
        for run in recipes.RUNS
        if run.arm in top1
    ]
    lines = dict(line.strip("| ").split(" | ", 2)[1:] for line in recipes.judge(rows).splitlines())
    assert lines["`augmented`, `plain`"] == "+20.0 | yes: every seed above every other"
    assert lines["`teacher`, `augmented`"] == "+2.5 | on average: the seeds overlap"
    assert lines["`convit`, `augmented`"] == "-0.5 | no"
    assert "`finetune`, `scratch`" not in lines


@pytest.mark.slow
def test_recipes_measure_the_chosen_ones_and_keep_the_others(tmp_path, monkeypatch):
    whole = recipes.Run.load

    def small(run, seed, root):
        cfg = whole(run, seed, root)
        cfg.model, cfg.mesh.data = shrink(cfg.model, num_classes=cfg.model.num_classes), 1
        return cfg

    monkeypatch.setattr(recipes.Run, "load", small)
    out, picture = tmp_path / "recipes.json", tmp_path / "recipes.png"
    rows = [
        digits.Row(method=run.row, num_train=1, top1=(0.5,), seconds=(1.0,))
        for run in recipes.RUNS
        if run.arm in ("plain", "probe")
    ]
    digits.save(rows, [7], out)
    trial = ["--seeds=7", "--duration=1 steps", f"--out={out}", f"--picture={picture}"]
    recipes.main([*trial, "--only", "finetune_digits_pretrain", "probe"])
    plain, pretrained, probe = recipes.read(out, [7])
    assert plain == rows[0]
    assert (pretrained.num_train, probe.num_train) == (649, 47)
    assert probe.seconds != rows[1].seconds
    assert picture.is_file()
    assert recipes.read(out, [7, 8]) == []


def test_recipes_name_every_arm_once_and_what_it_needs_before_it(tmp_path):
    done = set()
    for run in recipes.RUNS:
        cfg = run.load(5, tmp_path)
        config_lib.check(cfg)
        assert cfg.seed == 5
        taught = getattr(cfg.objective, "distill", None)
        needed = {cfg.init.weights, taught.weights if taught else ""} - {""}
        assert needed <= {f"ckpt:{tmp_path}/{workdir}" for workdir in done}
        done.add(run.workdir)
    for module in (tenth_digits, finetune_digits):
        name = module.__name__.rpartition(".")[2]
        assert {f"{name}:{arm}" for arm in module.RUNS} <= {run.config for run in recipes.RUNS}
    assert {arm for pair in recipes.CLAIMS.values() for arm in pair} <= {
        r.arm for r in recipes.RUNS
    }


def test_the_tables_of_the_pages_are_those_measured():
    for page, (start, end), text in tables.placed():
        assert f"{start}\n\n{text}\n\n{end}" in page.read_text()


def test_a_table_has_training_beside_forward_and_marks_no_peer():
    row = {"unit": "images/s", "ours": 1.0, "peer": "p", "peer_value": 2.0, "ratio": 0.5}
    step = row | {"ratio_range": [0.4, 0.6]}
    lines = tables.markdown(
        "cpu",
        [
            step | {"work": "vit_s16 forward batch=16 float32", "ratio": 1.25},
            step | {"work": "vit_s16 train batch=16 float32"},
            step | {"work": "vit_s16 forward batch=1 float32"},
            row | {"work": "w", "peer": None, "peer_value": None, "ratio": None, "unit": "ms"},
        ],
    ).splitlines()
    assert lines[2] == "| vit_s16 | 16 float32 | p | 0.50 (0.40-0.60) | 1.25 (0.40-0.60) |"
    assert lines[3] == "| vit_s16 | 1 float32 | p |  | 0.50 (0.40-0.60) |"
    assert lines[4] == ""
    assert lines[-1] == "| w | 1 ms |  |  |  |"
