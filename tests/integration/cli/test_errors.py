# SPDX-License-Identifier: Apache-2.0
"""Mistakes on the command line: one line, a suggestion, status 2, before any device work."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.test_errors import DIGITS, ROOT
from vit_jax.cli.dry_run import dry_run
from vit_jax.cli.parsing import flags as cli_flags
from vit_jax.cli.train import main

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
        "did you mean 'vit_mu_digits' or ",
    ),
    "key": ([DIGITS, "--config.optim.lrr=1"], "did you mean --config.optim.lr?"),
    "nested key": ([DIGITS, "--config.modl.depth=1"], "did you mean --config.model.depth?"),
    "eval name": (
        [DIGITS, "--config.evals.vall.split=x"],
        "did you mean --config.evals.val.split or --config.evals.test.split?",
    ),
    "leaf": ([DIGITS, "--config.lr=1"], "did you mean --config.optim.lr?"),
    "leaf of several": (
        [DIGITS, "--config.batch_size=8"],
        "did you mean --config.data.batch_size or --config.evals.val.batch_size or",
    ),
    "epochs": ([DIGITS, "--config.epochs=8"], "did you mean --config.duration?"),
    "learning rate": ([DIGITS, "--config.learning_rate=1"], "did you mean --config.optim.lr?"),
    "patch size": ([DIGITS, "--config.patch_size=8"], "did you mean --config.model.patch?"),
    "mixup": ([DIGITS, "--config.mixup=1"], "did you mean --config.data.mix.mixup_alpha?"),
    "average": ([DIGITS, "--config.ema=1"], "did you mean --config.ema_decay?"),
    "flag of a leaf": ([DIGITS, "--lr=1"], "unknown flag '--lr'; did you mean --config.optim.lr?"),
    "negated": ([DIGITS, "--noconfig.data.cach"], "did you mean --config.data.cache?"),
    "nothing near": ([DIGITS, "--config.zzz=1"], "config has no field 'zzz'; valid: accum_steps, "),
    "field of a value": ([DIGITS, "--config.seed.x=1"], "config.seed is a value, it has no field"),
    "patch of a model by name": (
        [DIGITS, "--config.model=vit_s16", "--config.model.patch=5"],
        "model.patch=(5, 5) does not divide model.image_size=(32, 32)",
    ),
    "unknown model": (
        [DIGITS, "--config.model=vit_s166"],
        "unknown model 'vit_s166'; did you mean",
    ),
    "group": (
        [DIGITS, "--config.optim=sgd"],
        "--config.optim is a group of fields, which only a config file can set as a whole; here "
        "set one of --config.optim.name, --config.optim.lr, ",
    ),
    "evaluation": (
        [DIGITS, "--config.evals.val=x"],
        "unknown --config.evals.val 'x'; valid: classify, depth, features, fewshot, instance, knn, "
        "linear, loss, multilabel, none, panoptic, regression, ... (15 in all).",
    ),
    "evaluation to drop": (
        [DIGITS, "--config.evals.vall=none"],
        "unknown evaluation to drop, --config.evals.vall: 'vall'; did you mean 'val'?",
    ),
    "transform": (
        [DIGITS, "--config.data.transform=inceptoin"],
        "unknown --config.data.transform 'inceptoin'; did you mean 'inception'?",
    ),
    "flag": ([DIGITS, "--workdr=x"], "did you mean '--workdir'"),
    "positional": ([DIGITS, "train"], "unexpected argument 'train'"),
    "float for int": ([DIGITS, "--config.model.depth=1e3"], "config.model.depth=1e3"),
    "enum": (
        [DIGITS, "--config.model.pool=gpa"],
        "unknown --config.model.pool 'gpa'; did you mean 'gap'?",
    ),
    "enum, nothing near": (
        [DIGITS, "--config.model.pool=xyz"],
        "unknown --config.model.pool 'xyz'; valid: cls, gap, map, query.",
    ),
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
    "path for a name": (
        [DIGITS, "--workdir=x", "--config.data.name=/abs/path"],
        "no folder '/abs/path'; expected /abs/path/[{train,val}/]<class>/*",
    ),
    "folder that is here": (
        [DIGITS, "--workdir=x", "--config.data.name=docs"],
        "data.name='docs' is a folder; write folder:docs",
    ),
    "version alone": (
        [DIGITS, "--workdir=x", "--config.data.name=:1.0.0"],
        "data.name=':1.0.0' names no dataset before its version; add it",
    ),
    "no workdir": ([DIGITS], "--workdir=DIR"),
}


def check_line(case: str, status: int, stderr: str) -> None:
    assert status == 2, stderr
    lines = stderr.strip().splitlines()
    assert len(lines) == 1, stderr
    assert lines[0].startswith("error: ")
    assert CASES[case][1] in lines[0]


@pytest.mark.parametrize("case", CASES)
def test_one_clear_line(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    args = [a.replace("--workdir=x", f"--workdir={tmp_path / 'w'}") for a in CASES[case][0]]
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    check_line(case, main(["main.py", *args]), capfd.readouterr().err)
    assert not (tmp_path / "w").exists()


# The rest of what is read says no more either: tests/smoke/test_runs.py has a typo.
@pytest.mark.parametrize("case", ["classes", "dataset"])
def test_a_process_of_its_own_says_no_more(case: str, tmp_path: Path) -> None:
    args = [a.replace("--workdir=x", f"--workdir={tmp_path / 'w'}") for a in CASES[case][0]]
    out = run("main.py", *args, TFDS_DATA_DIR=str(tmp_path))
    # A machine that is busy makes one wait, which is said.
    told = re.sub(r"^opening .*\n", "", out.stderr, flags=re.MULTILINE)
    check_line(case, out.returncode, told)


@pytest.mark.parametrize(
    "file, field, told",
    [
        (
            "vit_mu_digits.py",
            "init.weights",
            "no.npz: no such file; the config's docstring has its address; or name another: "
            "init.weights=npz:FILE",
        ),
        (
            "distill_digits.py",
            "objective.distill.weights",
            "no.npz: no such file; the config's docstring has its address; or name another: "
            "objective.distill.weights=npz:FILE",
        ),
    ],
)
def test_missing_weights_are_named_and_do_not_hide_the_plan(
    file: str, field: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    argv = ["main.py", f"--config={ROOT}/configs/{file}", f"--config.{field}=npz:no.npz"]
    report, missing = dry_run(cli_flags.read_config(argv))
    assert str(missing) == f"{field}: {told}"
    assert "examples = " in report  # of data that are there, so the run's length is known
    assert "no.npz" in report.splitlines()[-1]


@pytest.mark.parametrize("case", ["batch", "duration"])  # after flags and files were read
def test_no_device_is_touched(case: str) -> None:
    # A platform that does not exist: touching a device would fail, with another message.
    out = run("main.py", *CASES[case][0], JAX_PLATFORMS="no_such_platform")
    assert CASES[case][1] in out.stderr
