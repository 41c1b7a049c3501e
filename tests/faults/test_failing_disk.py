# SPDX-License-Identifier: Apache-2.0
"""A disk that does not let checkpoints be read: an error with its errno, and nothing is removed."""

import os
from pathlib import Path

import pytest

from tests.faults import disks
from tests.integration.train.test_processes import ARGS, CONFIG, ROOT, start
from tests.integration.train.test_resume import finish
from vit_jax.errors import IO_ERROR


@pytest.mark.slow
def test_reads_that_fail_end_a_start_and_take_nothing(tmp_path: Path) -> None:
    found = disks.failing(tmp_path)
    if found is None:
        pytest.skip("no C compiler (cc) is in PATH")
    switch, env = found
    run = tmp_path / "run"
    here = (f"--config={ROOT}/{CONFIG}", *ARGS[1:], "--config.checkpoint.keep=1")
    finish(run, run=here)
    (run / "finished.json").unlink()
    before = sorted(os.walk(run / "checkpoints"))
    switch.touch()
    process = start(run, 1, "--config.checkpoint.keep=1", **env)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == IO_ERROR, output
    assert "Input/output error (errno 5)" in output.splitlines()[-1]
    assert sorted(os.walk(run / "checkpoints")) == before
    switch.unlink()
    finish(run, run=here)
