# SPDX-License-Identifier: Apache-2.0
"""The scripts of `submit` by bash, with stand-ins for Slurm: what they start, and what follows."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.unit.cli.test_submit import NASTY, RUN, refused, said

PAGE = Path(__file__).parents[3] / "docs" / "scale.md"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs that write down what they are called with; srun ends with $STATUS."""
    programs = {
        "srun": 'printf "%s\\0" "$@" > srun.txt; exit "$STATUS"',
        "scontrol": 'echo "$@" >> asked.txt',
        "sbatch": 'echo "$@" > sbatch.txt; cat > job.sh; echo "4711;cluster"; exit "${REFUSES:-0}"',
    }
    (tmp_path / "bin").mkdir()
    for name, body in programs.items():
        (tmp_path / "bin" / name).write_text(
            f"#!/bin/bash\ncd {shlex.quote(str(tmp_path))}\n{body}\n"
        )
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def requeued(slurm: Path, script: str, status: int, **env: str) -> str:
    """Run a script as Slurm does, and return what it asks scontrol for."""
    (slurm / "asked.txt").write_text("")
    env = {**os.environ, "STATUS": str(status), "SLURM_JOB_ID": "4711", **env}
    checked = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")
    done = subprocess.run(["bash", "-s"], input=script, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")
    return (slurm / "asked.txt").read_text()


def test_the_script_runs_the_command_and_requeues_by_its_status(
    slurm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = slurm / NASTY.replace("/", "")
    place.mkdir()
    os.chdir(place)
    run = [RUN, f"--workdir=/mnt/{NASTY}", f"--config.data.data_dir={NASTY}"]
    script = said(capsys, *run, "--gpus-per-node=8", "--print")
    assert not (slurm / "job.sh").exists()
    os.chdir(slurm)
    for status, again in {
        0: False,
        2: False,
        75: True,
        **dict.fromkeys((71, 134, 137, 143), True),
    }.items():
        assert requeued(slurm, script, status) == ("requeue 4711\n" if again else "")
        often = requeued(slurm, script, status, SLURM_RESTART_COUNT="10")
        assert often == ("requeue 4711\n" if status == 75 else "")
    kill, python, *words, end = (slurm / "srun.txt").read_text().split("\0")
    assert (kill, Path(python).name[:6], end) == ("--kill-on-bad-exit=1", "python", "")
    assert words == ["-m", "vit_jax", "train", *run]
    assert sorted(path.name for path in slurm.iterdir()) == sorted(
        ["asked.txt", "bin", "srun.txt", place.name]
    )


def test_a_task_of_an_array_requeues_itself(
    slurm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (slurm / "sweep").mkdir()
    line = (
        '{"run":"0a1b2c3d4e","name":"","config":"c.py","overrides":{},"metric":"val/loss",'
        '"params":1,"flops":1,"examples":1,"tokens":1,"steps":1,"seconds":null}\n'
    )
    (slurm / "sweep" / "manifest.jsonl").write_text(line)
    script = said(capsys, "--array=sweep", "--gpus-per-node=1", "--print")
    task = {"SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "2"}
    assert requeued(slurm, script, 75, **task) == "requeue 4711_2\n"
    assert requeued(slurm, script, 1, **task) == ""  # a point that failed
    words = (slurm / "srun.txt").read_text().split("\0")
    assert words[3:-1] == ["vit_jax", "sweep", "run", "sweep", "--index=2"]


def test_the_script_is_submitted(
    slurm: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [RUN, "--workdir=/mnt/l16", "--gpus-per-node=8"]
    assert said(capsys, *words) == "job 4711; squeue --me lists it\n"
    assert (slurm / "sbatch.txt").read_text() == "--parsable\n"
    assert (slurm / "job.sh").read_text() == said(capsys, *words, "--print")
    (slurm / "bin" / "sbatch").write_text(
        "#!/bin/bash\nprintf 'sbatch: error: %s\\n' 'no such partition' failed >&2\nexit 1\n"
    )
    assert refused(capsys, *words) == "error: sbatch refused the job: no such partition; failed\n"


def test_the_page_shows_what_is_printed(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    section = PAGE.read_text().partition("## Submitting a run\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```\w+\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    command = shlex.split(next(block for block in blocks if "--print" in block).replace("\\\n", ""))
    assert command[:2] == ["vit_jax", "submit"]
    printed = said(capsys, *command[2:])
    printed = re.sub(r"^cd .*? \|\|", "cd /home/me/vit_jax ||", printed, flags=re.MULTILINE)
    printed = re.sub(r"\S+ -m vit_jax", ".venv/bin/vit_jax", printed)
    (shown,) = [block for block in blocks if block.startswith("#!/bin/bash")]
    assert shown == printed
