# SPDX-License-Identifier: Apache-2.0
"""Pixels, segments and objects measured by two processes are measured as by one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.train.test_layouts import by_hand

ROOT = Path(__file__).parents[3]
PROGRAM = """
import json, os, jax
jax.config.update("jax_platforms", "cpu")
if int(os.environ.get("JAX_NUM_PROCESSES", "1")) > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        os.environ["JAX_COORDINATOR_ADDRESS"], 2, int(os.environ["JAX_PROCESS_ID"])
    )
from tests.unit.evals.dense import test_evaluators as tests
for kind in (tests.SegmentationEval, tests.PanopticEval, tests.InstanceEval):
    print(json.dumps(tests._run(kind(transform=tests.WHOLE), jax.device_count())), flush=True)
"""


def _start(env: dict[str, str]) -> subprocess.Popen[str]:
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **flags, **env},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def _metrics(process: subprocess.Popen[str]) -> list[dict[str, float]]:
    out, _ = process.communicate(timeout=240)
    assert process.returncode == 0
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


@pytest.mark.slow
def test_two_processes_measure_as_one() -> None:
    alone = _metrics(_start({}))
    both = [_metrics(process) for process in [_start(env) for env in by_hand(2)]]
    assert len(alone) == 3
    assert both == [alone, alone]
