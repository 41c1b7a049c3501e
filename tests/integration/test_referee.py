# SPDX-License-Identifier: Apache-2.0
"""The referee is fair: one start, the same FLOPs; and what it writes is what its runs logged."""

import json
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from benchmarks import referee as bench
from vit_jax import models, objectives, trees
from vit_jax.cli.parsing import flags
from vit_jax.config.tree import Config
from vit_jax.recipes import referee
from vit_jax.sweeps.price import price


def _start(cfg: Config) -> dict[str, Any]:
    """The encoder's parameters, of two blocks, as a run of seed 3 begins with them."""
    model = models.with_fields(cfg.model, {"depth": 2})
    objective = objectives.create(cfg.objective, model, cfg.data)
    params = jax.jit(lambda key: objective.init(key)[0])(jax.random.key(3))
    own = (*objective.own_parameters, "head")
    return {k: np.asarray(v) for k, v in trees.named_leaves(params) if k.split("/")[0] not in own}


def test_arms_begin_alike_see_the_same_and_cost_the_same(tmp_path: Path) -> None:
    for name, study in bench.STUDIES.items():
        arms = {arm: study.recipe(arm) for arm in referee.ARMS}
        assert set(bench.TITLES) == {bench.START, *referee.ARMS}
        for shared in (
            lambda cfg: (cfg.data.name, cfg.data.train_split, cfg.data.batch_size),
            lambda cfg: (cfg.optim.name, cfg.optim.weight_decay, cfg.optim.warmup),
            lambda cfg: [(key, each) for key, each in cfg.evals.items()],
            lambda cfg: [getattr(cfg.model, field) for field in ("dim", "depth", "patch")],
        ):
            assert len({repr(shared(cfg)) for cfg in arms.values()}) == 1, name
    first = _start(referee.digits("mae"))
    for arm in ("lejepa", "supervised"):
        other = _start(referee.digits(arm))
        assert first.keys() == other.keys(), arm
        for key, value in first.items():
            np.testing.assert_array_equal(value, other[key], err_msg=f"{arm}: {key}")
    for arm in ("mae", "supervised"):
        long = bench.duration("digits", arm)
        words = bench.command("digits", arm, 3, long, tmp_path)
        cfg = flags.read_config(["vit_jax train", *words[1:-1]])
        assert (cfg.seed, cfg.duration) == (3, long)
        cfg.duration = long.replace("examples", "steps")
        each = price(cfg).flops / int(long.split()[0]) / cfg.data.batch_size
        examples = int(long.split()[0])
        assert abs(examples * each / bench.STUDIES["digits"].flops - 1) < 1e-4, arm
    assert bench.duration("digits", bench.START) == "1 steps"


def _write(workdir: Path, *rows: dict[str, Any], finished: bool = True) -> None:
    workdir.mkdir(parents=True)
    (workdir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if finished:
        (workdir / "finished.json").write_text("{}")


def test_the_table_is_what_finished_runs_logged(tmp_path: Path) -> None:
    root, out = tmp_path / "runs", tmp_path / "out"
    for seed, shift in ((0, 0.0), (2, 0.1)):
        for arm, linear in (("mae", 0.5), ("dino", 0.6), ("supervised", 0.8)):
            features = {f"features/{key}": 2.0 for key in ("rank", "similarity", "cka", "overlap")}
            end = {"test_knn/knn5": 0.3 + shift, "test_linear/linear": linear + shift}
            if arm == "dino":  # the teacher's count; the student's are others
                end = {k.replace("/", "_ema/"): v for k, v in end.items()} | dict.fromkeys(end, 0.0)
            curve = [{"step": step, "knn/knn5": step / 100 + shift} for step in (0, 5, 10)]
            last = {"step": 10, **end, **features}
            wall = {"step": 10, "perf/wall_seconds": 7.0}
            _write(root / "digits" / f"{arm}-{seed}", *curve, last, wall)
    _write(root / "digits" / "mae-5", {"step": 1, "knn/knn5": 0.9}, finished=False)
    # No seed is asked for: nothing is run, and what is there is read.
    words = ["digits", "--seeds", f"--root={root}", f"--out={out}", "--arms", "start"]
    bench.main([*words, f"--picture={tmp_path / 'referee.png'}"])
    content = json.loads((out / "referee_digits.json").read_text())
    assert [row["arm"] for row in content["arms"]] == ["supervised", "dino", "mae"]
    dino = content["arms"][1]
    assert dino["seeds"] == [0, 2]
    assert dino["linear"] == pytest.approx([0.6, 0.7])
    assert dino["curve"]["steps"] == [0, 5, 10]
    assert dino["curve"]["knn"][1] == pytest.approx([0.1, 0.15, 0.2])
    assert (dino["steps"], dino["examples"], dino["seconds"]) == (10, 1280, [7.0, 7.0])
    low, high = bench.interval([0.6, 0.7]) or (0, 0)
    # Student's t of one degree of freedom, 12.706, by the standard error.
    assert (low, high) == pytest.approx((0.65 - 12.706 * 0.05, 0.65 + 12.706 * 0.05), abs=1e-4)
    assert bench.interval([0.6]) is None
    assert bench.behind(content, "linear")["mae"] == pytest.approx((-0.1, -0.1))
    (table,) = bench.tables(out).values()
    rows = {line.split("|")[1].strip(): line for line in table.splitlines()}
    assert "| the best |" in rows["DINO"]
    assert "| -10.0 (-10.0 to -10.0) |" in rows["MAE"]
    assert re.search(r"\| 65\.0 \(.*\) \| 60\.0, 70\.0 \|", rows["DINO"])
    assert (tmp_path / "referee.png").stat().st_size > 1000
    with pytest.raises(SystemExit):
        bench.main(["letters"])
