# SPDX-License-Identifier: Apache-2.0
"""docs/scaling.md: its commands, on sweeps that are over at once, its scripts, its example."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.unit.sweeps import files
from vit_jax.__main__ import main

PAGE = (files.ROOT / "docs" / "scaling.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = [shlex.split(line) for block in BLOCKS for line in block.splitlines()]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the page's sweeps are small ones of the same names."""
    place = tmp_path_factory.mktemp("docs")
    (place / "configs" / "sweeps").mkdir(parents=True)
    sizes = (
        "def sweep():\n    for width in (4, 8):\n"
        "        yield {**SMALL, 'model.dim': width, 'model.num_heads': 1, 'duration': '9 steps'}\n"
    )
    files.write(place / "configs" / "sweeps" / "scaling_digits.py", sizes)
    search = (
        "import optuna\nTRIALS = 1\nSAMPLER = optuna.samplers.TPESampler(seed=0)\n"
        "def search(trial):\n"
        "    return {**SMALL, 'duration': '9 steps',\n"
        "            'optim.lr': trial.suggest_float('lr', 1e-4, 1e-2, log=True)}\n"
    )
    files.write(place / "configs" / "sweeps" / "search_digits.py", search)
    priced = "scaling_imagenet.py"
    (place / "configs" / "sweeps" / priced).write_text(
        (files.ROOT / "configs" / "sweeps" / priced)
        .read_text()
        .replace('"configs/vit_b16', f'"{files.ROOT}/configs/vit_b16')
    )
    return place


def call(words: list[str], capfd: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """Call `vit_jax ...` in this process; returns what it and its runs printed."""
    capfd.readouterr()
    status = main(["vit_jax", *words])
    out, err = capfd.readouterr()
    assert status == 0, f"{words}: {out}{err}"
    return out, err


def run(command: list[str], place: Path, **env: str) -> tuple[int, str]:
    """Run a script, whose programs are `place`'s own; its status, and what it printed."""
    path = f"{place}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, **env}
    done = subprocess.run(command, cwd=place, env=env, stdout=subprocess.PIPE, text=True)
    return done.returncode, done.stdout


@pytest.mark.slow
def test_the_pages_commands_run_in_their_order(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")  # of the sweeps' runs
    monkeypatch.setenv("PYTHONPATH", str(files.ROOT))
    for command in COMMANDS:
        assert command[0] == "vit_jax"
        words = command[1 : command.index(">")] if ">" in command else command[1:]
        _, err = call(words, capfd)
        if "scaling_imagenet.py" in " ".join(words):
            (told,) = re.findall(r"^```text\n\.\.\.\n(.*runs, .*device-hours.*)\n```$", PAGE, re.M)
            assert told == err.strip()
    for name in ("runs/scaling", "runs/search"):
        assert (place / name / "report.html").exists()
    assert "1 finished" in call(["sweep", "status", "runs/search"], capfd)[0]

    # What the cluster's scripts start, where all has finished: nothing is left to do.
    script = re.search(r"<!-- sbatch -->\n\n```shell\n(.*?)```", PAGE, re.DOTALL)[1]
    (place / ".venv" / "bin").mkdir(parents=True)
    programs = {
        "srun": 'shift; "$@"; exit $STATUS',  # after --kill-on-bad-exit
        "scontrol": 'echo "$@" >> asked.txt',
        ".venv/bin/vit_jax": 'echo "$@"',
        "vit_jax": 'echo "$@"',
    }
    for name, body in programs.items():
        (place / name).write_text(f"#!/bin/bash\n{body}\n")
        (place / name).chmod(0o755)
    slurm = {"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_JOB_ID": "4711"}
    status, line = run(["bash", "-c", script], place, **slurm, STATUS="0")
    assert status == 0
    assert not (place / "asked.txt").exists()
    assert call(line.split(), capfd)[0] == "1 run: 1 finished\n"
    assert run(["bash", "-c", script], place, **slurm, STATUS="75")[0] == 75
    assert run(["bash", "-c", script], place, **slurm, STATUS="137")[0] == 137
    assert (place / "asked.txt").read_text() == "requeue 4711_1\n" * 2
    container = re.search(r"command: \[sh, -c, \"(.*?)\"\]", PAGE)[1]
    container = container.replace("/mnt/shared/scaling", "runs/scaling")
    status, line = run(["sh", "-c", container], place, JOB_COMPLETION_INDEX="0")
    assert status == 0
    assert call(line.split(), capfd)[0] == "1 run: 1 finished\n"


def test_the_jobs_have_as_many_tasks_as_the_sweep_points() -> None:
    from vit_jax.cli.sweeps import plan as sweep_plan

    count = len(list(sweep_plan.read(files.ROOT / "configs/sweeps/scaling_digits.py").sweep()))
    assert re.search(r"--array=0-(\d+)%", PAGE)[1] == str(count - 1)
    yaml = re.search(r"<!-- kubernetes -->\n\n```yaml\n(.*?)```", PAGE, re.DOTALL)[1]
    import yaml as parser

    job = parser.safe_load(yaml)
    assert job["spec"]["completions"] == count
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"] == [75]


def test_the_readmes_commands_are_the_pages() -> None:
    readme = (files.ROOT / "README.md").read_text()
    found = [shlex.split(line) for line in readme.splitlines() if line.startswith("vit_jax sweep")]
    assert found
    assert all(command in COMMANDS for command in found)


def test_example_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    example = r"```python\n(from vit_jax.sweeps import scaling.*?)```\n\n```text\n(.*?)```"
    found = re.search(example, PAGE, re.DOTALL)
    assert found is not None
    exec(found[1], {})
    assert capsys.readouterr().out == found[2]
