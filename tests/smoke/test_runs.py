# SPDX-License-Identifier: Apache-2.0
"""A run's numbers, on one device and on eight; killed, stopped or damaged, the same bits."""

import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.faults.test_damaged_checkpoints import flip, stopped
from tests.integration.train.test_resume import digest, start, wait_for_step
from tests.smoke.conftest import CONFIG, ROOT, STEPS, train
from vit_jax.process.preemption import INTERRUPTED
from vit_jax.train.report.writers import read_jsonl

CHILDREN = resource.RUSAGE_CHILDREN
# One or eight devices, and the passes of XLA that tests leave out, move them by less than 1e-6.
LOSSES = """
2.302585 2.302585 2.305863 2.305259 2.286882 2.292392 2.306243 2.262257 2.260195 2.243818
2.273130 2.204925 2.127038 2.206948 2.077641 2.149954 2.100200 2.294774 2.198635 2.214666
"""


def measured(workdir: Path, name: str) -> list[tuple[int, float]]:
    """Return (step, value) of each line that has the metric."""
    rows = read_jsonl(workdir / "metrics.jsonl")
    return [(row["step"], row[name]) for row in rows if name in row]


def test_the_losses_are_those_of_the_versions_before(digits: Path) -> None:
    expected = [float(loss) for loss in LOSSES.split()]
    found = [loss for _, loss in measured(digits, "train/loss")]
    assert found[: len(expected)] == pytest.approx(expected, abs=1e-5)


def test_a_finished_run_is_left_as_it_is(digits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (digits / "finished.json").stat().st_mtime_ns
    assert train(digits, *CONFIG) == 0
    assert f"has finished its {STEPS} steps; nothing to do" in capsys.readouterr().out
    assert (digits / "finished.json").stat().st_mtime_ns == before


def test_eight_devices_train_as_one(digits: Path, tmp_path: Path) -> None:
    mesh = ("--config.mesh.data=4", "--config.mesh.fsdp=2")
    assert train(tmp_path / "run", *CONFIG, *mesh) == 0
    eight, one = (measured(place, "train/loss") for place in (tmp_path / "run", digits))
    assert [step for step, _ in eight] == list(range(1, STEPS + 1))
    np.testing.assert_allclose(eight, one, atol=1e-4, rtol=0)


def test_killed_and_stopped_runs_end_with_the_same_bits(digits: Path, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(10**6)
    rng = random.Random(seed)
    workdir = tmp_path / "run"
    kill, stop = sorted(rng.sample(range(1, STEPS - 10), 2))
    process = start(workdir, run=CONFIG)
    wait_for_step(process, workdir, kill)
    time.sleep(rng.uniform(0, 0.03))  # anywhere: in a step, a save, an evaluation
    process.send_signal(signal.SIGKILL)
    process.wait()
    # SIGTERM saves, and the same command continues.
    process = start(workdir, run=CONFIG)
    wait_for_step(process, workdir, stop)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == INTERRUPTED
    assert "the same command continues" in workdir.with_suffix(".log").read_text()
    # Neither this process, with its eight devices, nor other loader threads must matter.
    assert train(workdir, *CONFIG, "--config.data.num_threads=3") == 0
    told = f"seed {seed}: kill at {kill}, stop at {stop}"
    assert digest(workdir, CONFIG) == digest(digits, CONFIG), told
    for name in ("train/loss", "val/top1", "test/loss"):
        assert measured(workdir, name) == measured(digits, name), f"{name}; {told}"


def test_a_damaged_checkpoint_is_passed_over(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(stopped(digits, tmp_path / "run", STEPS))
    assert train(tmp_path / "run", *CONFIG) == 0
    assert f"at step {STEPS - 10} of {STEPS}" in capsys.readouterr().out
    assert digest(tmp_path / "run", CONFIG) == digest(digits, CONFIG)


# Prints what is imported when the last step is done and only the curve is left to draw.
_COUNTING = """
import sys
from vit_jax.cli.train import main
from vit_jax.train import ending
def learning_curve(*args, **kwargs):
    print(*sorted({n if n.split(".")[0] == "vit_jax" else n.split(".")[0] for n in sys.modules}))
ending.learning_curve = learning_curve
sys.exit(main(sys.argv))
"""
_HEAVY = {
    *("torch", "tensorflow", "matplotlib", "pandas", "IPython", "sklearn", "timm"),
    *("gcsfs", "s3fs", "aiohttp", "tokenizers", "sentencepiece", "ftfy"),
}


@pytest.mark.usefixtures("digits")  # which has prepared them, by scikit-learn
def test_a_run_imports_what_it_uses(tmp_path: Path) -> None:
    words = (*CONFIG, f"--workdir={tmp_path / 'run'}", "--config.duration=6 steps")
    words = (*words, "--config.evals.test.report=false")
    done = subprocess.run(
        [sys.executable, "-c", _COUNTING, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "step 6/6" in done.stdout
    (imported,) = [line for line in done.stdout.splitlines() if " vit_jax.train.ending " in line]
    modules = set(imported.split())
    assert {"jax", "orbax", "flax"} <= modules
    assert modules & _HEAVY == set()
    found = sorted(name for name in modules if name.split(".")[0] == "vit_jax")
    families = [name.rpartition(".")[2] for name in found if ".families." in name]
    assert families == ["vit", "vit_config", "vit_family"]
    others = r"weights\.(readers|names)|distill\.|workdir\.(mirror|lock)"
    others += r"|objectives\.(dino|mae|contrastive)"
    others += r"|text\.|models\.(text|two_towers|contrastive)|evals\.(zero_shot|retrieval)"
    assert not [name for name in found if re.match(rf"vit_jax\.({others})", name)]
    assert 100 < len(found) <= 160


def test_a_typo_is_one_line_soon(tmp_path: Path) -> None:
    words = ("main.py", CONFIG[0], f"--workdir={tmp_path / 'run'}", "--config.optim.lrr=1")
    env, before = {**os.environ, "JAX_PLATFORMS": "no_such_platform"}, resource.getrusage(CHILDREN)
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=env, capture_output=True, text=True
    )
    after = resource.getrusage(CHILDREN)
    assert done.returncode == 2
    # CPU seconds of all threads: wall time would grow with whatever else the machine does.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 5
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert "did you mean --config.optim.lr?" in line
    assert not (tmp_path / "run").exists()
