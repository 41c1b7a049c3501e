# SPDX-License-Identifier: Apache-2.0
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.unit.sweeps import files
from vit_jax.sweeps import queue


def test_a_worker_killed_while_it_writes_does_not_lock_the_queue_for_ever(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from vit_jax.sweeps import queue\n"
        "study = queue.open_study(Path(sys.argv[1]))\nprint('go', flush=True)\n"
        "for i in range(10**6): queue.assign(study.ask(), str(i))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=files.ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    process.stdout.readline()
    files.wait_until(lambda: (tmp_path / "queue.log").stat().st_size > 2000)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    study = queue.open_study(tmp_path)
    queue.assign(study.ask(), "mine")
    assert "mine" in {trial.user_attrs.get("run") for trial in study.get_trials()}
