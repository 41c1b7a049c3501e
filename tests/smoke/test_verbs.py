# SPDX-License-Identifier: Apache-2.0
"""Every verb once, on the run of `digits`; what each prints and writes has tests of its own."""

import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import captioned, colour_pair
from tests.photos import write_folder
from tests.smoke.conftest import CONFIG, ROOT, train
from tests.unit.sweeps import files
from tests.unit.train.distilled_digits import TEACHER
from tests.unit.train.teachers import save
from vit_jax.__main__ import VERBS, main
from vit_jax.train.report.writers import read_jsonl

SCANS = f"{ROOT}/docs/images/digits"
# verb: words, and a pattern of what it prints.
CASES = {
    "predict": ("--from={run} {scans}", r"(\d+/\d+|\.png)"),
    "evaluate": ("--from={run} --out={out}", "top1"),
    "probe": ("--from={run} --methods=knn --layers=-1", "knn"),
    "configs": ("", "vit_mu_digits"),
    "models": ("vit_mu8", "vit_mu8"),
    "summary": ("{config}", "blocks/attn/qkv/kernel"),
    "visualize": ("--attention --from={run} {scans}/3.png --out={out}", r"\.png"),
    "export": ("--from={run} --to={out}/export --format=stablehlo", "{out}/export"),
    "convert": ("--from={run} --to=timm:{out}/run.safetensors", "run.safetensors"),
    "prune": ("--from={run} --mlp=0.5 --heads=0.25 --to={out}/pruned", "pruned"),
    "soup": ("--from={run}@all --to={out}/soup", "2 of 2 checkpoints"),
    "train-tokenizer": ("csv:{table} --size=300 --out={out}/words.json", r"\d+ ids"),
    "search": ("red --images={scans} --from={pair}", "cosine"),
    "zero-shot": ("--words=red,blue --from={pair} {scans}/3.png", "%"),
    "retrieval": ("--from={pair} --dataset=csv:{table} --split=train --k=1", "images find a text"),
    "doctor": ("{config}", "digits"),
    "submit": ("{config} --workdir={out}/run --gpus-per-node=0 --print", "#SBATCH --requeue"),
    "check-data": ("folder:{photos} --csv={out}/found.csv", "12 of 12 images can be decoded"),
    "prepare": ("folder:{photos} --to=arrayrecord --out={out}/records/photos", "records/photos"),
}
APART = {"train", "serve", "sweep", "cache_teacher"}  # the tests below, and conftest.py


@pytest.mark.parametrize("verb", CASES)
def test_verb(verb: str, digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = {"run": digits, "scans": SCANS, "out": tmp_path, "config": CONFIG[0]}
    if verb in ("check-data", "prepare"):
        places["photos"] = tmp_path / "photos"
        write_folder(tmp_path / "photos", {"train": 4, "val": 2}, ("china", "flower"))
    if verb in ("search", "zero-shot", "retrieval"):
        places["pair"] = colour_pair.save_run(tmp_path / "pair")
    if verb in ("train-tokenizer", "retrieval"):
        places["table"] = captioned.write(tmp_path / "captioned")
    words, pattern = CASES[verb]
    capsys.readouterr()
    assert main(["vit_jax", verb, *words.format(**places).split()]) == 0
    assert re.search(pattern.format(**places), capsys.readouterr().out)


def test_no_verb_is_left_out() -> None:
    assert CASES.keys() | APART == VERBS.keys()


def test_a_teachers_logits_are_a_runs_cache(tmp_path: Path) -> None:
    student = (
        f"--config={ROOT}/tests/unit/train/distilled_digits.py",
        f"--config.objective.distill.weights={save(tmp_path / 'teacher', TEACHER)}",
        "--config.data.mix.mixup_alpha=0",
        "--config.data.mix.cutmix_alpha=0",
        "--config.data.mix.partner=previous",
        "--config.data.erasing_prob=0",
        "--config.duration=2 steps",
        "--config.optim.warmup=1 steps",
    )
    logits = tmp_path / "logits"
    assert main(["vit_jax", "cache_teacher", *student, f"--out={logits}"]) == 0
    cached = f"--config.objective.distill.cache={logits}"
    assert train(tmp_path / "cached", *student, cached) == 0
    assert train(tmp_path / "run", *student) == 0
    rows = [read_jsonl(tmp_path / run / "metrics.jsonl") for run in ("run", "cached")]
    run, cached = ([row["train/loss"] for row in of if "train/loss" in row] for of in rows)
    assert cached == pytest.approx(run, rel=1e-3)
    assert len(run) == 2


def test_a_sweep_trains_its_point(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, place = files.grid_of(tmp_path / "lrs.py", (0.001,)), tmp_path / "out"
    assert main(["vit_jax", "sweep", "plan", str(file)]) == 0
    assert main(["vit_jax", "sweep", "run", str(file), f"--out={place}"]) == 0
    assert main(["vit_jax", "sweep", "status", str(place)]) == 0
    assert main(["vit_jax", "sweep", "report", str(place)]) == 0
    assert "1 run: 1 finished" in capsys.readouterr().out
    assert (place / "report.html").is_file()


@pytest.fixture
def page(digits: Path, ctrl_c: None) -> Iterator[str]:
    """The address of the demo page."""
    process = subprocess.Popen(
        [sys.executable, "-m", "vit_jax", "serve", f"--from={digits}", "--port=0"],
        cwd=ROOT,
        env={**os.environ, "JAX_NUM_CPU_DEVICES": "1"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    lines = []
    for line in process.stdout:
        lines.append(line)
        if found := re.match(r"the page is at (http://127\.0\.0\.1:\d+/)", line):
            break
    else:
        pytest.fail("".join(lines))
    threading.Thread(target=process.stdout.read, daemon=True).start()  # so that no print waits
    yield found[1]
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 0


def test_the_page_is_served(page: str) -> None:
    with urllib.request.urlopen(page, timeout=60) as answer:
        assert answer.status == 200
        assert "digits" in answer.read().decode()
