# SPDX-License-Identifier: Apache-2.0
"""`--dry_run` and `summary` say what a run would be and leave nothing behind."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from vit_jax.__main__ import main as verb_main
from vit_jax.cli.train import main

ROOT = Path(__file__).parents[3]


def run(home: Path, *args: str) -> subprocess.CompletedProcess:
    keep = ("PATH", "XLA_FLAGS", "JAX_PLATFORMS")
    env = {k: os.environ[k] for k in keep if k in os.environ}
    env |= {"HOME": str(home), "TMPDIR": str(home / "tmp"), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *args], cwd=ROOT, env=env, capture_output=True, text=True, timeout=120
    )


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "tmp").mkdir()
    return tmp_path


@pytest.fixture
def at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_digits(home: Path) -> None:
    out = run(home, "main.py", "--config=configs/vit_mu_digits.py", "--dry_run")
    assert out.returncode == 0, out.stderr
    sections = [line.split()[0] for line in out.stdout.splitlines() if line[:4].isupper()]
    assert sections == ["CONFIG", "PARAMETERS", "COST", "BATCH", "RUN"]
    assert re.search(r"^optim +name=muon lr=0.004 ", out.stdout, re.MULTILINE)
    assert "epochs of 1,293 examples" in out.stdout
    # Nothing but what was there, though opening the digits elsewhere writes them.
    left = [p for p in home.rglob("*") if p.is_file()]
    assert left == [], left


def test_a_pod_is_planned_from_a_laptop(home: Path) -> None:
    mesh = ("--config.mesh.data=32", "--config.mesh.fsdp=8")
    out = run(home, "main.py", "--config=configs/vit_l16_imagenet.py", "--dry_run", *mesh)
    assert "304,326,632" in out.stdout
    assert "256 device(s)" in out.stdout
    assert "(-, fsdp, -)" in out.stdout
    # A missing dataset does not hide the plan, and is not hidden by it.
    assert out.returncode == 2
    assert out.stderr.startswith("error: no dataset 'imagenet2012'")
    assert len(out.stderr.strip().splitlines()) == 1


@pytest.mark.usefixtures("at_root")
def test_a_folder_that_is_not_there_is_told_alone(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["main.py", "--config=configs/finetune_folder.py:small", "--dry_run"]
    assert main([*argv, "--config.data.name=/nowhere/photos"]) == 2
    printed = capsys.readouterr()
    assert not printed.out
    (line,) = printed.err.splitlines()
    assert line.startswith("error: no folder '/nowhere/photos'")


@pytest.mark.usefixtures("at_root")
def test_a_kernel_that_is_not_here_hides_no_plan_and_starts_no_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    argv = ["main.py", "--config=configs/vit_mu_digits.py", "--config.model.attention=pallas"]
    missing = "model.attention=pallas needs a TPU, not cpu; choose auto"
    assert main([*argv, "--dry_run"]) == 2
    printed = capsys.readouterr()
    assert "COST" in printed.out
    assert printed.err == f"error: {missing} (the report is of XLA's attention)\n"
    assert main([*argv, f"--workdir={tmp_path}"]) == 2
    assert capsys.readouterr().err == f"error: {missing}\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("at_root")
def test_memory_is_shared_out(capsys: pytest.CaptureFixture[str]) -> None:
    def parameters(*mesh: str) -> float:
        flags = [
            "--config=configs/vit_b16_imagenet.py",
            "--dry_run",
            "--config.model.scan_unroll=1",
        ]
        main(["main.py", *flags, *mesh])
        printed = capsys.readouterr().out
        assert "warning" not in printed
        (line,) = [x for x in printed.splitlines() if x.startswith("parameters ")]
        assert line.endswith("MiB")
        return float(line.split()[1])

    assert parameters("--config.mesh.data=1") == pytest.approx(86_567_656 * 4 / 2**20, abs=0.01)
    assert parameters("--config.mesh.data=1", "--config.mesh.fsdp=8") < 45


@pytest.mark.usefixtures("at_root")
def test_a_mesh_that_divides_no_parameter_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = [f"--config.model.{name}={n}" for name, n in {"dim": 512, "mlp_dim": 1024}.items()]
    mesh = ["--config.mesh.data=1", "--config.mesh.fsdp=7", "--config.data.batch_size=70"]
    argv = ["main.py", "--config=configs/vit_mu_digits.py", "--dry_run", *sizes, *mesh]
    assert main(argv) == 0
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("warning")]
    assert line.startswith("warning: mesh.fsdp=7 divides no axis of blocks/attn/")
    assert line.endswith("whole on every device")


def test_summary(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(home, "-m", "vit_jax", "summary", "--config=configs/vit_s16_imagenet_90ep.py")
    assert out.returncode == 0, out.stderr
    # GAP without class token and with fixed positions, and the MLP head: by the layers' shapes.
    plain = 22_050_664
    expected = plain - 384 - 197 * 384 + 384 * 384 + 384
    assert f"{expected:,}" in out.stdout
    assert re.search(r"^model +ViTConfig .*\bpool=gap\b", out.stdout, re.MULTILINE)
    assert "beta1" not in out.stdout
    assert verb_main(["vit_jax", "summary", "--help"]) == 0
    assert verb_main(["vit_jax", "sumary"]) == 2
    assert "did you mean 'summary'" in capsys.readouterr().err
