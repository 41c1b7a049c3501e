# SPDX-License-Identifier: Apache-2.0
"""Two processes of one run, and one of them is told to stop, dies or cannot write.

One that hangs is in tests/engines/test_slurm.py.
"""

import re
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import disks
from tests.integration.train.test_processes import start
from vit_jax.errors import IO_ERROR
from vit_jax.process import startup
from vit_jax.process.preemption import INTERRUPTED
from vit_jax.train.health.watchdog import HUNG
from vit_jax.train.report.writers import read_jsonl

TOLD = "another (process of this run|task) died"
# Seconds without progress after which the watchdog ends a run. Half of the heartbeats' timeout may
# be over when a process stops, and the watchdog is to be first.
SECONDS = startup.HEARTBEAT_TIMEOUT // 3
LONG = (
    "--config.duration=100000 steps",
    "--config.optim.warmup=2 steps",
    f"--config.faults.hang_seconds={SECONDS}",
    "--config.evals.val.every=100000 steps",  # so that its program is not compiled
)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[subprocess.Popen]]:
    """Two processes that train, and have taken some steps."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    cluster = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "JAX_NUM_PROCESSES": "2"}
    own = [{**cluster, "JAX_PROCESS_ID": str(i)} for i in range(2)]
    processes = [start(tmp_path / "run", 1, *LONG, **env) for env in own]
    deadline = time.monotonic() + 150
    while len(read_jsonl(tmp_path / "run" / "metrics.jsonl")) < 5:
        assert time.monotonic() < deadline
        assert [p.poll() for p in processes] == [None, None]
        time.sleep(0.05)
    yield processes
    for process in processes:
        process.kill()


@pytest.mark.slow
def test_told_to_one_both_stop_at_one_step(pair: list[subprocess.Popen], tmp_path: Path) -> None:
    pair[1].send_signal(signal.SIGTERM)
    outputs = [p.communicate(timeout=60)[0] for p in pair]
    assert [p.returncode for p in pair] == [INTERRUPTED, INTERRUPTED], outputs
    rows = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    newest = max(int(e.name) for e in (tmp_path / "run" / "checkpoints").iterdir())
    assert newest == rows[-1]["step"]
    assert f"saved step {newest:,}" in outputs[0]


@pytest.mark.slow
def test_of_the_first_that_dies_the_other_hears(pair: list[subprocess.Popen]) -> None:
    """A process other than the first dies in tests/faults/test_lost_host.py."""
    pair[0].kill()
    output = pair[1].communicate(timeout=startup.HEARTBEAT_TIMEOUT + 30)[0]
    # Without process 0, which all talk to, jax's coordination service may be the first to say so.
    assert pair[1].returncode in (INTERRUPTED, -signal.SIGABRT), output
    assert "Traceback" not in output, output
    assert re.search(TOLD, output), output


@pytest.mark.slow
def test_of_one_whose_disk_is_full_both_end(pair: list[subprocess.Popen]) -> None:
    with disks.limited(pair[1], resource.RLIMIT_FSIZE):
        pair[0].send_signal(signal.SIGTERM)
        outputs = [p.communicate(timeout=SECONDS + startup.HEARTBEAT_TIMEOUT + 30)[0] for p in pair]
    # The one cannot save; the other has its part, and waits for it.
    assert {p.returncode for p in pair} <= {HUNG, IO_ERROR, INTERRUPTED, -signal.SIGABRT}, outputs
    assert "saved step" not in outputs[0]
    for output in outputs:
        assert "Traceback" not in output, output
    assert any("error: could not save" in x or "of saving a checkpoint" in x for x in outputs)
