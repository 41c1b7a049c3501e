# SPDX-License-Identifier: Apache-2.0
"""Some seconds of everything at once: kills, stops, a full disk, damaged checkpoints."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_seconds_of_faults_changes_no_bit() -> None:
    command = [sys.executable, "-m", "tests.faults.soak", "--minutes=0.2", "--steps=300"]
    env = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal to the bit" in done.stdout
