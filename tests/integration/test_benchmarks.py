# SPDX-License-Identifier: Apache-2.0
"""Every benchmark runs, at tiny sizes and without judging a time, and writes rows of one shape."""

import dataclasses
import io
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from benchmarks import (
    classical,
    digits,
    glyphs,
    growth,
    input_pipeline,
    limits,
    peft,
    recipes,
    record,
    scenes,
    self_supervised,
    startup,
    tables,
    train_step,
    turns,
    unlabelled_curves,
)
from configs import finetune_digits, tenth_digits
from tests.conftest import CACHE
from tests.unit.models.tiny import shrink
from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.cli.parsing import flags
from vit_jax.data import open_source


def _rows(directory: Path) -> list[dict]:
    (path,) = directory.glob("*.json")
    content = json.loads(path.read_text())
    assert {"device", "versions", "date", "rows"} == set(content)
    assert "jax" in content["versions"]
    fields = {field.name for field in dataclasses.fields(record.Row)} | {"date", "head"}
    for row in content["rows"]:
        assert set(row) == fields
        assert row["ours"] > 0
    return content["rows"]


class Here:
    """A side in this process; those of input_pipeline have processes of their own."""

    def __init__(self, make: turns.Make, **settings: Any) -> None:
        self.facts, self.turn = make(**settings)

    def __enter__(self) -> "Here":
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.slow
def test_train_step_writes_a_row_for_each_work_and_peer(tmp_path, monkeypatch):
    monkeypatch.setattr(turns, "Side", Here)
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
    input_pipeline.main(["--peer=none", *sizes, "--formats=tar", f"--out={tmp_path}"])
    assert [row["work"] for row in _rows(tmp_path)] == [
        "500x375 JPEG to 224x224, inception crop, batch=4, threads",
        "digits, 8x8, batch=128",
        "tar in a bucket of 20 ms, batch=4, threads",
        "tar on the disk, batch=4, threads",
    ]


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
def test_peft_measures_ways_beside_full_fine_tuning(monkeypatch, tmp_path):
    ways = {name: peft.WAYS[name] for name in ("full", "LoRA", "biases")}
    monkeypatch.setattr(peft, "WAYS", ways)  # each is a step to compile
    found = peft.costs("vit_mu8_16", 4, 1)
    rows = peft.compared(found)
    table = peft.costs_table(rows).splitlines()
    assert [line.split(" | ")[0] for line in table[2:]] == [f"| {way}" for way in peft.WAYS]
    peft.save(rows, "vit_mu8_16", 4, tmp_path)
    assert json.loads((tmp_path / "peft.json").read_text())["rows"] == rows
    assert (rows[0]["flops"], rows[0]["time"]) == (1, [1, 1, 1])
    full, low = found["full"], found["LoRA"]
    assert found["biases"].trained < low.trained < full.trained  # the head is most of the model
    assert low.checkpoint < full.checkpoint
    assert low.flops < full.flops
    assert all(len(cost.seconds) == 1 for cost in found.values())


def test_startup_compares_a_warm_cache_with_an_empty_one(tmp_path):
    rows = startup.rows([1.0], cold=[(8.0, 10.0)], warm=[(4.0, 9.0)], load=0.0)
    record.save(rows, tmp_path, "cpu, 2 cores")
    assert [row["ratio"] for row in _rows(tmp_path)] == [0.9, 0.5, None]


@pytest.mark.parametrize(
    ("listed", "named"),
    [
        ("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", "Intel Xeon Platinum 8481C"),
        ("AMD EPYC 7B13 64-Core Processor", "AMD EPYC 7B13 64-Core"),
        ("", "cpu"),  # as on ARM
    ],
)
def test_a_cpu_is_named_with_its_cores(listed, named, tmp_path, monkeypatch):
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor\t: 0\nmodel name\t: {listed}\nflags\t: fpu\n")
    monkeypatch.setattr(record, "_CPU_INFO", file)
    monkeypatch.setattr(record, "num_cores", lambda: 1)
    assert record.device() == f"{named}, 1 core"
    monkeypatch.setattr(record, "num_cores", lambda: 2)
    assert record.device() == f"{named}, 2 cores"


def test_a_row_says_the_commit_of_the_package_it_measured(tmp_path, monkeypatch):
    def commit(file: str) -> None:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(file)
        git("add", ".")
        git("-c", "user.name=n", "-c", "user.email=e@e", "commit", "-qm", file)

    def git(*args: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), *args], check=True)

    assert record.head(tmp_path) is None
    git("init", "-q")
    commit("vit_jax/a.py")
    first = record.head(tmp_path)
    commit("docs/page.md")
    assert first
    assert record.head(tmp_path) == first
    (tmp_path / "vit_jax" / "a.py").write_text("changed")
    assert record.head(tmp_path) == f"{first}+"
    commit("vit_jax/b.py")
    assert record.head(tmp_path) not in (first, f"{first}+")
    monkeypatch.setattr(record, "head", lambda: first)
    rows = [record.Row(work="a", unit="s", ours=1.0)]
    path = record.save(rows, tmp_path / "rows", "cpu")
    assert [row["head"] for row in _rows(path.parent)] == [first]


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


def test_classical_methods_score_what_was_published_on_the_same_split():
    compared = 0
    for each in classical.PUBLISHED:
        if isinstance(each.split, classical.Split):
            share, _ = classical.top1(each.method, each.split)
            assert f"{100 * share:.{len(each.top1.partition('.')[2])}f}" == each.top1
            compared += 1
    assert compared == 3


def test_splits_are_the_same_scans_in_both_forms(tmp_path):
    _, expected = load_digits(return_X_y=True)
    for split in (classical.WRITERS, classical.TENTH, classical.NINE_TENTHS, classical.HALVES):
        for rows, name in ((split.train, split.train_split), (split.test, split.test_split)):
            source = open_source("digits", str(tmp_path), name)
            labels = [int(source.read(i)["label"]) for i in range(len(source))]
            assert labels == expected[rows].tolist(), split.name


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


def test_a_table_says_which_commits_its_rows_are_of():
    old = {"date": "2026-11-24", "head": None}
    assert tables.heads([old, {"date": "2026-11-24"}]) == (
        "All rows are of the package at an unnamed commit of 2026-11-24."
    )
    assert tables.heads([{"head": "a"}, {"head": "a"}]) == "All rows are of the package at `a`."
    assert tables.heads([{"head": "b"}, {"head": "a"}, old, {"head": "a"}]) == (
        "The package's commits: `a` (2 of the rows), `b` (1), an unnamed commit of 2026-11-24 (1)."
    )


def test_a_row_below_one_has_its_slowest_operations_beside_it(tmp_path):
    common = {"cpu_ratio": 0.9, "ours": 30.0, "peer_value": 40.0}
    gradient, product, groups = (
        "dense 3152x384 to 1536, gradient of weights",
        "dense 3152x384 to 1536",
        "3x3 on 14x14x208, 26 groups",
    )
    rows = [
        common | {"work": work, "peer": peer, "ratio": ratio}
        for work, peer, ratio in (
            ("vit_s16 train batch=16 float32", "timm eager", 0.95),
            ("vit_s16 train batch=16 float32", "timm torch.compile", 0.9),
            ("vit_s16 train batch=16 float32", "plain Flax", 0.5),
            ("regnety_400mf forward batch=8 float32", "timm eager", 0.7),
            ("vit_s16 forward batch=8 bfloat16", "timm eager", 0.7),
            ("swin_t forward batch=8 float32", "timm eager", 1.2),
            (f"{gradient} float32", "PyTorch", 0.8),
            (f"{product} float32", "PyTorch", 0.92),
            (f"{groups} float32", "PyTorch", 0.3),
            ("dense 1576x384 to 1536 bfloat16", "PyTorch", 0.8),
            ("vit_s16 exported to ONNX, batch=1 float32", "timm torch.compile", 0.93),
            ("vit_s16 exported to ONNX, batch=1 float32", "ONNX Runtime of timm's export", 0.98),
        )
    ]
    (tmp_path / "x-1-core.json").write_text(json.dumps({"device": "X, 1 core", "rows": rows}))
    issue = "[jax#23713](https://github.com/jax-ml/jax/issues/23713)"
    # 2 * 3152 * 384 * 1536 = 3.718e9 operations; 2 * 8 * 14 * 14 * 9 * 8 * 208 = 4.7e7.
    assert limits.table(tmp_path).splitlines()[2:] == [
        "| vit_s16 train batch=16 float32 | X, 1 core | 0.90 | 0.90 "
        f"| {gradient}: 0.80 (112 of 149 GFLOP/s); {product}: 0.92 (112 of 149 GFLOP/s) |",
        "| regnety_400mf forward batch=8 float32 | X, 1 core | 0.70 | 0.90 "
        f"| {groups}: 0.30 (1 of 2 GFLOP/s); {issue} |",
        "| vit_s16 forward batch=8 bfloat16 | X, 1 core | 0.70 | 0.90 "
        "| dense 1576x384 to 1536: 0.80 (56 of 74 GFLOP/s) |",
        "| vit_s16 exported to ONNX, batch=1 float32 | X, 1 core | 0.93 | 0.90 "
        "| 0.98 of ONNX Runtime of timm's export |",
    ]


@pytest.mark.parametrize("name", self_supervised.STUDIES)
def test_what_is_fine_tuned_was_pretrained_before_it_with_the_same_seed(name, tmp_path):
    for first, seed in self_supervised.chains(name, [3, 4]):
        done = set()
        for words in self_supervised.commands(name, first, seed, tmp_path):
            cfg = flags.read_config(["vit_jax train", *words[1:-1]])
            config_lib.check(cfg)
            assert cfg.seed == seed
            assert {cfg.init.weights} - {""} <= done
            done.add(f"ckpt:{words[-1].removeprefix('--workdir=')}")
        assert len(done) == len(self_supervised.STUDIES[name].tuned) + (first != "scratch")


def test_a_finished_run_is_not_run_again_and_a_failed_one_is_told(tmp_path):
    words = ["train", "--config=no_such_config", f"--workdir={tmp_path / 'run'}"]
    with pytest.raises(subprocess.CalledProcessError):
        self_supervised.run(words)
    assert "no_such_config" in (tmp_path / "run.log").read_text()
    assert self_supervised.cpu_seconds(tmp_path / "run") > 0
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "finished.json").touch()
    self_supervised.run(words)


def _write(workdir, *lines):
    workdir.mkdir(parents=True)
    (workdir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_self_supervision_is_read_from_logs_with_the_time_before_interruptions(tmp_path):
    for i, first in enumerate(("scratch", "mpp", "mae", "dino")):
        place = tmp_path / "glyphs" / f"{first}-7"
        wall = {"perf/wall_seconds": 10.0 + i}
        _write(place / "labelled", {"step": 1, "test/top1": i / 10}, {"step": 1, **wall})
        if first != "scratch":
            rows = [
                {"step": 5, "knn/knn5": 0.1, "knn_ema/knn5": 0.3},
                {"step": 10, "knn/knn5": 0.2, "knn_ema/knn5": 0.4},
            ]
            if first != "dino":
                rows = [{k: v for k, v in row.items() if k != "knn_ema/knn5"} for row in rows]
            walls = [{"step": 4, "perf/wall_seconds": s} for s in (3.0, 8.0, 2.0, 7.0)]
            _write(place / "pretrained", *rows, *walls)
    rows, curves = self_supervised.collect("glyphs", [7], tmp_path)
    assert [(row.method, row.top1, row.seconds) for row in rows] == [
        ("from scratch, augmented", (0.0,), (10.0,)),
        ("MPP, then augmented", (0.1,), (11.0,)),
        ("MAE, then augmented", (0.2,), (12.0,)),
        ("DINO, then augmented", (0.3,), (13.0,)),
    ]
    assert curves[-1] == {
        "objective": "dino",
        "steps": [5, 10],
        "knn": [[0.3, 0.4]],
        "seconds": [15.0],
    }
    content = {"rows": [dataclasses.asdict(row) for row in rows], "curves": curves}
    lines = self_supervised.markdown(content).splitlines()
    assert "| MAE, then augmented | 400 | 20.0 % | 20.0 | - | 12 |" in lines
    assert lines[-2:] == ["| MAE | 10 | 20.0 % | 20.0 | 15 |", "| DINO | 10 | 40.0 % | 40.0 | 15 |"]


@pytest.mark.parametrize("name", unlabelled_curves.ARMS)
def test_every_curve_begins_at_step_0_of_the_run_that_a_user_would_start(name, tmp_path):
    for arm in unlabelled_curves.ARMS[name]:
        *before, words = unlabelled_curves.commands(name, arm, 3, tmp_path)
        if name == "continued":  # its config is written from the run before it
            (first,) = before
            place = first[-1].removeprefix("--workdir=")
            assert words[-2] == f"--config.init.weights=ckpt:{place}"
            words = first
            cfg = flags.read_config(["vit_jax train", *words[1:-1]])
        else:
            assert not before
            cfg = flags.read_config(["vit_jax train", *words[1:-1]])
            assert cfg.evals["features"].split == cfg.evals["knn"].split
        config_lib.check(cfg)
        assert cfg.seed == 3


def test_curves_are_of_all_finished_seeds_and_what_was_not_run_again_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(unlabelled_curves.record, "device", lambda: "a device")
    for seed, ends in ((0, (0.1, 0.3)), (4, (0.2, 0.5)), (5, ())):
        place = unlabelled_curves.workdir("folder", "dino", seed, tmp_path)
        rows = [
            {"step": 9 * i, "knn/knn5": 0.7, "knn_ema/knn5": end, "features_ema/rank": 2.0 + i}
            for i, end in enumerate(ends)
        ]
        _write(place, *rows)
        Path(f"{place}.cpu_seconds").write_text("3.5\n4.5\n")
        if ends:
            (place / "finished.json").touch()
    mae = {"arm": "mae", "seeds": [1], "steps": [0, 9], "knn": [[0.1, 0.2]], "rank": [[2.0, 3.0]]}
    old = {"curves": {"folder": [{"arm": "dino"}, mae | {"cpu_seconds": [1.0]}]}}
    content = unlabelled_curves.collect(old, tmp_path)
    dino, kept = content["curves"]["folder"]
    assert kept == old["curves"]["folder"][1]
    assert dino == {
        "arm": "dino",
        "seeds": [0, 4],
        "steps": [0, 9],
        "knn": [[0.1, 0.3], [0.2, 0.5]],
        "rank": [[2.0, 3.0], [2.0, 3.0]],
        "cpu_seconds": [8.0, 8.0],
        "student": [[0.7, 0.7], [0.7, 0.7]],
    }
    table = unlabelled_curves.markdown("folder", [dino, kept])
    assert "| DINO | 9 | 15.0 % | 40.0 % | 30.0, 50.0 | 2.0 to 3.0 | 8 |" in table
    out = tmp_path / "results"
    out.mkdir()
    (out / unlabelled_curves.FILE).write_text(json.dumps(content))
    unlabelled_curves.draw(unlabelled_curves.panels(out), tmp_path / "curves.png")
    assert (tmp_path / "curves.png").is_file()
    assert list(unlabelled_curves.tables(out)) == ["folder-curves"]


def test_letters_are_drawn_alike_each_time_and_no_split_has_those_of_another(tmp_path):
    for name in ("a", "b"):
        glyphs.main([str(tmp_path / name), "--share=0.02"])
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").glob("*/*/*"))
    splits = {split: sum(file.parts[0] == split for file in files) for split in glyphs.SPLITS}
    assert splits == {"unlabelled": 400, "labelled": 20, "held_out": 20, "unseen": 40}
    contents = [(tmp_path / "a" / file).read_bytes() for file in files]
    assert contents == [(tmp_path / "b" / file).read_bytes() for file in files]
    assert len(set(contents)) == len(files)
    assert {Image.open(io.BytesIO(content)).size for content in contents} == {(32, 32)}
    with pytest.raises(SystemExit, match="exists"):
        glyphs.main([str(tmp_path / "a")])


def test_scenes_are_drawn_for_all_three_tasks_and_over_none(tmp_path, capsys):
    place = tmp_path / "scenes"
    scenes.main([str(place), "--share=0.003"])
    assert capsys.readouterr().out.startswith("drew 34 scenes in ")
    for kind in ("images", "masks", "depth"):
        assert len(list((place / kind).rglob("*.png"))) == 9 + 8
    found = json.loads((place / "coco" / "val.json").read_text())
    assert len(found["images"]) == 8 <= len(found["annotations"])
    with pytest.raises(SystemExit, match="exists"):
        scenes.main([str(place)])


def test_growth_is_a_slope_of_the_larger_sizes_and_none_of_one():
    assert growth.exponent([10, 100, 1000, 10000], [5, 5, 10, 100]) == pytest.approx(1)
    rows = [{"size": size, "values": {"start": 0.5}} for size in (10, 1000)]
    lines = growth.table({"costs": {"csv": rows, "tar": rows[:1]}}).splitlines()
    assert lines[2] == "| csv | start | 10: 0.5 s | 1,000: 0.5 s | 0.00 |"
    assert lines[3] == "| tar | start | 10: 0.5 s | 10: 0.5 s |  |"


def test_coloured_letters_are_of_many_sizes_and_formats(tmp_path):
    rng = np.random.default_rng(0)
    glyphs.write(tmp_path / "a", 3, glyphs.draw_glyph, ["jpeg", "png", "webp"], rng)
    images = [Image.open(path) for path in (tmp_path / "a").glob("*/*")]
    assert len(images) == 3 * len(glyphs.CLASSES)
    assert {image.format for image in images} == {"JPEG", "PNG", "WEBP"}
    assert all(40 <= side < 200 for image in images for side in image.size)
    assert len({image.size for image in images}) > len(images) // 2
