# SPDX-License-Identifier: Apache-2.0
"""Mistakes on the command line: one line, a suggestion, status 2, before any device work."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
DIGITS = "--config=configs/vit_mu_digits.py"
IMAGENET = "--config=configs/vit_b16_imagenet.py"


def run(*args: str, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *args],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=120,
    )


CASES = {
    "no config": ([], "which run? add --config=FILE"),
    "config file": (
        ["--config=configs/vit_mu_digts.py"],
        "did you mean 'configs/vit_mu_digits.py'",
    ),
    "key": ([DIGITS, "--config.optim.lrr=1"], "did you mean 'lr'"),
    "nested key": ([DIGITS, "--config.modl.depth=1"], "did you mean 'model'"),
    "eval name": ([DIGITS, "--config.evals.vall.split=x"], "did you mean 'val'"),
    "flag": ([DIGITS, "--workdr=x"], "did you mean '--workdir'"),
    "positional": ([DIGITS, "train"], "unexpected argument 'train'"),
    "float for int": ([DIGITS, "--config.model.depth=1e3"], "config.model.depth=1e3"),
    "enum": ([DIGITS, "--config.model.pool=gpa"], "cls|gap|map"),
    "patch": ([DIGITS, "--config.model.patch=3"], "does not divide model.image_size"),
    "heads": ([DIGITS, "--config.model.num_heads=5"], "model.num_heads=5"),
    "batch": ([DIGITS, "--config.mesh.fsdp=3"], "cannot be split over 3 devices"),
    "micro-batch": ([DIGITS, "--config.accum_steps=3"], "accum_steps=3 must divide"),
    "weights": (
        [DIGITS, "--workdir=x", "--config.init.weights=timm:no.safetensors"],
        "no.safetensors: no such file",
    ),
    "kind of weights": ([DIGITS, "--config.init.weights=no.npz"], "npz:FILE"),
    "duration": ([DIGITS, "--config.duration=90"], "cannot read the duration '90'"),
    "regex": ([DIGITS, "--workdir=x", "--config.optim.freeze=hed"], "optim.freeze"),
    "classes": (
        [DIGITS, "--workdir=x", "--config.model.num_classes=9"],
        "--config.model.num_classes=10",
    ),
    "dataset": ([IMAGENET, "--workdir=x"], "imagenet2012"),
    "folder": ([IMAGENET, "--workdir=x", "--config.data.name=folder:/nowhere"], "/nowhere"),
    "no workdir": ([DIGITS], "--workdir=DIR"),
}


@pytest.mark.parametrize("case", CASES)
def test_one_clear_line(case: str, tmp_path: Path) -> None:
    args, expected = CASES[case]
    args = [a.replace("--workdir=x", f"--workdir={tmp_path / 'w'}") for a in args]
    out = run("main.py", *args, TFDS_DATA_DIR=str(tmp_path))
    assert out.returncode == 2, out.stderr
    lines = out.stderr.strip().splitlines()
    assert len(lines) == 1, out.stderr
    assert lines[0].startswith("error: ")
    assert expected in lines[0]
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize("case", ["key", "batch", "patch", "kind of weights", "duration"])
def test_no_device_is_touched(case: str) -> None:
    # A platform that does not exist: touching a device would fail, with another message.
    out = run("main.py", *CASES[case][0], JAX_PLATFORMS="no_such_platform")
    assert CASES[case][1] in out.stderr


def test_debug_shows_the_traceback() -> None:
    out = run("main.py", DIGITS, "--debug", "--config.model.patch=3")
    assert out.returncode == 2
    assert "Traceback" in out.stderr


def test_a_broken_config_file_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("def get_config():\n    return 1 / 0\n")
    out = run("main.py", f"--config={broken}")
    assert (
        out.stderr.strip() == f"error: {broken} cannot be read: ZeroDivisionError: division by zero"
    )
