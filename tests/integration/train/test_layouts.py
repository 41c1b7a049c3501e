# SPDX-License-Identifier: Apache-2.0
"""1 and 2 processes of 1 to 4 devices: one run handed from layout to layout is one run."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.train import layouts
from vit_jax.devices.sharding import MeshConfig

ROOT = Path(__file__).parents[3]

# Devices lent by each process, and the mesh over all of them.
# (Two that divide the batch are tests/integration/train/test_processes.py's.)
# The tensor axis spans the two, which so have the same rows; scattered, they share some of them.
OF_TWO = ("1,1,1,2", "4,2,2,2,scattered")


def start(clusters: list[dict[str, str]], workdir: Path, meshes: tuple[str, ...]) -> list[Any]:
    """Run a process in each environment; returns what they print of each mesh, put together."""
    command = [sys.executable, "-m", "tests.integration.train.layouts", str(workdir), *meshes]
    # The compiler of TPUs, where a test before this one used it, leaves the variables of a host.
    ours = {key: value for key, value in os.environ.items() if not key.startswith("TPU_")}
    shared = {**ours, "JAX_NUM_CPU_DEVICES": "8"}
    processes = [
        subprocess.Popen(
            command, cwd=ROOT, env=shared | env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for env in clusters
    ]
    try:
        outputs = [p.communicate(timeout=300)[0].decode() for p in processes]
    finally:
        for process in processes:
            process.kill()
    assert [p.returncode for p in processes] == [0] * len(processes), "\n".join(outputs)
    printed = [[json.loads(x) for x in out.splitlines() if x.startswith("{")] for out in outputs]
    return [together(legs) for legs in zip(*printed, strict=True)]


def together(legs: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    """Put the batches of all processes together; of losses there is one, on every process."""
    assert all(leg[key] == legs[0][key] for leg in legs for key in ("losses", "val"))
    parts = zip(*[leg["batches"] for leg in legs], strict=True)
    return legs[0] | {"batches": [{k: v for part in of for k, v in part.items()} for of in parts]}


def free_port(low: int = 0) -> int:
    """Find a port that nobody listens at, `low` or above."""
    for port in range(low, 65536) if low else [0]:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return probe.getsockname()[1]
    raise AssertionError("no port is free")


def slurm(count: int) -> list[dict[str, str]]:
    """What srun gives its tasks, and nothing else; jax derives the port from the job's number."""
    first = 65535 - 2**12 + 1
    job = free_port(first + os.getpid() % 2048) - first
    shared = {
        "SLURM_JOB_ID": str(job),
        "SLURM_STEP_NODELIST": "127.0.0.1",
        "SLURM_NTASKS": str(count),
        "SLURM_STEP_NUM_TASKS": str(count),
        "SLURM_STEP_NUM_NODES": "1",
    }
    return [shared | {"SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)} for i in range(count)]


def by_hand(count: int) -> list[dict[str, str]]:
    address = f"127.0.0.1:{free_port()}"
    shared = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(count)}
    return [shared | {"JAX_PROCESS_ID": str(i)} for i in range(count)]


@pytest.mark.slow
def test_a_run_handed_from_layout_to_layout_is_one_run(tmp_path: Path) -> None:
    one = layouts.lend(MeshConfig(), 1)
    relay, whole = tmp_path / "relay", tmp_path / "whole"
    for workdir in (relay, whole):
        layouts.write_logits(workdir / "logits", 32 * layouts.STEPS * 5)
    legs = [layouts.run(relay, one)]
    legs += start(slurm(2), relay, OF_TWO)
    legs.append(layouts.run(relay, one))
    assert len(legs) == 4

    expected = [layouts.run(whole, one) for _ in legs]
    # Every layout goes on where the one before stopped, and reads the same global batches.
    assert [leg["step"] for leg in legs] == [leg["step"] for leg in expected]
    assert [leg["batches"] for leg in legs] == [leg["batches"] for leg in expected]
    assert all(len(batch) == 32 for leg in legs for batch in leg["batches"])
    for leg, one_device in zip(legs, expected, strict=True):
        assert leg["val"]["num_examples"] == one_device["val"]["num_examples"]
        for key in ("top1", "loss"):
            assert leg["val"][key] == pytest.approx(one_device["val"][key], abs=1e-5)
        np.testing.assert_allclose(leg["losses"], one_device["losses"], atol=1e-5, rtol=0)
