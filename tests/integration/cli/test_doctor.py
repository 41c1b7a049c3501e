# SPDX-License-Identifier: Apache-2.0
"""`doctor`: a sound machine is told so, and each thing that can be wrong is a line of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.test_broken_records import labelled, rewritten
from tests.refusals import refused_by
from tests.unit.cli.test_doctor import DIGITS, ROOT, digits
from vit_jax.cli import doctor
from vit_jax.cli.checks import machine
from vit_jax.cli.checks.machine import BROKEN, OK, WARNING
from vit_jax.data.sources.digits import prepare

LINE = re.compile(r"(\w+) +(ok|warning|broken) +(\S.*)")


def run(*args: str, **env: str) -> tuple[int, dict[str, tuple[str, str]], str]:
    """Run the verb in a process of its own: status, {check: (state, text)}, its last line."""
    done = subprocess.run(
        [sys.executable, "-m", "vit_jax", "doctor", *args],
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_NUM_CPU_DEVICES": "1", **env},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    *lines, last = done.stdout.splitlines()
    found = [LINE.fullmatch(line) for line in lines]
    assert all(found), done.stdout + done.stderr
    return done.returncode, {m[1]: (m[2], m[3]) for m in found if m}, last


@pytest.mark.slow
def test_the_page_shows_what_is_printed(tmp_path: Path) -> None:
    env = {"TFDS_DATA_DIR": str(tmp_path)}
    status, found, last = run(DIGITS, f"--workdir={tmp_path / 'runs'}", **env)
    assert status == 0, found
    assert {state for state, _ in found.values()} <= {OK, WARNING}
    assert last.startswith(f"{len(found)} ok") or "warning" in last
    page = (ROOT / "docs" / "doctor.md").read_text()
    shown = page.split("```log\n")[1].split("```")[0].splitlines()
    assert [LINE.fullmatch(line)[1] for line in shown[:-1]] == list(found)
    for line in shown[:-1]:
        _, state, text = LINE.fullmatch(line).groups()
        assert words(text) == words(found[line.split()[0]][1]) or state != OK
    assert words(shown[-1]) == words(last)
    assert list(tmp_path.iterdir()) == []  # neither a workdir nor a dataset


def words(text: str) -> list[str]:
    """Drop what differs between machines: numbers, units, paths."""
    return re.sub(r"(/\S+|[\d.,e+-]*\d|[KMG]iB)", "", text).split()


@pytest.mark.slow
def test_every_check_may_fail(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    status, found, last = run(
        DIGITS,
        f"--workdir={tmp_path}/file/run",
        JAX_PLATFORMS="no_such_platform",
        XDG_CACHE_HOME=str(tmp_path / "file"),
        JAX_COMPILATION_CACHE_DIR="",
        TFDS_DATA_DIR=str(tmp_path / "file"),
    )
    assert status == 1
    broken = {name for name, (state, _) in found.items() if state == BROKEN}
    assert broken == {"devices", "step", "size", "disk"}
    assert "no_such_platform" in found["devices"][1]
    assert found["disk"][1] == f"{tmp_path}/file is no folder; choose another place"
    assert f"{len(broken)} broken" in last


def test_a_command_that_is_cut_short(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped() -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor.machine, "packages", stopped)
    assert doctor.main(["doctor"]) == 130
    assert capsys.readouterr().err == "interrupted\n"
    done = subprocess.run(
        f"for verb in doctor 'predict --help'; do {sys.executable} -m vit_jax $verb | true; "
        "echo ${PIPESTATUS[0]}; done",
        shell=True,
        executable="/bin/bash",
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("141\n141\n", "")


def test_a_step_on_all_devices() -> None:
    assert machine.step() == (OK, "a tiny ViT trains; the same loss on 8 devices", "")


def test_a_run_larger_than_the_machine(tmp_path: Path) -> None:
    with refused_by("config.checks.check_batch", "data.batch_size") as caught:
        doctor.size(digits(batch_size=12), tmp_path)
    assert "batch_size=12" in str(caught.value)
    cfg = digits(batch_size=2**26)
    assert doctor.size(cfg, tmp_path).state == WARNING
    cfg.mesh.data = 3_000
    with refused_by("devices.sharding.mesh_shape", "mesh.data"):
        doctor.size(cfg, tmp_path)


def test_an_evaluation_without_labels(tmp_path: Path) -> None:
    prepare(tmp_path / "whole")
    rewritten(tmp_path / "whole", tmp_path / "digits", labelled(-1))
    state, text, _ = doctor.dataset(digits(data_dir=str(tmp_path / "digits")))
    assert (state, text.endswith("10 classes, and a label -1")) == (BROKEN, True), text
