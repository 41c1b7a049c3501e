# SPDX-License-Identifier: Apache-2.0
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from vit_jax.errors import UserError
from vit_jax.workdir import folder as workdir

HOLD = """
import sys, time
from pathlib import Path
from vit_jax.train import workdir
with workdir.lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def _holder(path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_second_process_is_refused_and_a_killed_one_is_not_in_the_way(tmp_path):
    process = _holder(tmp_path / "run")
    try:
        with pytest.raises(UserError) as caught, workdir.lock(tmp_path / "run"):
            pass
        assert f"pid {process.pid} on {socket.gethostname()}" in str(caught.value)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    with workdir.lock(tmp_path / "run"):
        assert f"pid {os.getpid()} on" in (tmp_path / "run" / ".lock").read_text()
