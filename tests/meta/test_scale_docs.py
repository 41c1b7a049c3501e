# SPDX-License-Identifier: Apache-2.0
"""The batch script of docs/scale.md by each status of srun; in a real Slurm: tests/engines."""

import os
import re
import subprocess
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"


@pytest.mark.parametrize(
    "status, restarts, requeued",
    [
        (0, "", False),
        (75, "", True),  # told to stop
        (75, "10", True),
        (2, "", False),
        (74, "", False),
        (71, "", True),  # a task hung,
        (134, "9", True),  # was aborted
        (137, "", True),  # or killed
        (137, "10", False),  # too often
        (143, "", True),  # or told to stop as it started
    ],
)
def test_the_batch_script_requeues_a_run_that_can_go_on(
    tmp_path: Path, status: int, restarts: str, requeued: bool
) -> None:
    found = re.search(r"<!-- sbatch -->\n\n```shell\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    stand_ins = {"srun": f'echo "$@" >> srun.txt; exit {status}', "scontrol": 'echo "$@" >> to.txt'}
    for name, body in stand_ins.items():
        program = tmp_path / name
        program.write_text(f"#!/bin/bash\n{body}\n")
        program.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "4711"}
    env |= {"SLURM_RESTART_COUNT": restarts} if restarts else {}
    done = subprocess.run(["bash", "-c", found[1]], cwd=tmp_path, env=env, check=False)
    assert done.returncode == status
    told = (tmp_path / "srun.txt").read_text()
    assert "main.py --config=configs/vit_l16_imagenet.py" in told
    assert "--kill-on-bad-exit=1" in told
    asked = tmp_path / "to.txt"
    assert (asked.read_text() if asked.exists() else "") == ("requeue 4711\n" if requeued else "")
