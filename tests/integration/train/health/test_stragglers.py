# SPDX-License-Identifier: Apache-2.0
"""The log names the host that the others wait for."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from tests.integration.train.test_layouts import by_hand
from tests.integration.train.test_processes import ARGS, ROOT
from tests.unit.train.health.test_stragglers import SCALARS
from vit_jax.devices import sharding
from vit_jax.devices.sharding import MeshConfig
from vit_jax.train.health import stragglers
from vit_jax.train.report.writers import read_jsonl


def test_the_order_of_the_runs_devices_is_of_no_matter() -> None:
    tidy = sharding.make_mesh(MeshConfig())
    back_to_front = Mesh(tidy.devices[::-1], tidy.axis_names, axis_types=tidy.axis_types)
    with jax.set_mesh(back_to_front):
        gathered = stragglers._gather(np.array([1.0, 2.0], np.float32))
    np.testing.assert_array_equal(gathered, [[1.0, 2.0]])


@pytest.mark.slow
def test_of_two_processes_the_one_with_the_slow_loader_is_named(tmp_path: Path) -> None:
    slow = 1
    command = [
        sys.executable,
        "-m",
        "tests.integration.train.slowed",
        f"--workdir={tmp_path}",
        *ARGS,
    ]
    # Without evaluations, behind which a slow loader catches up.
    command += ["--config.log.every=2 steps", "--config.duration=14 steps"]
    command += ["--config.evals.val.every=14 steps", "--config.checkpoint.every=14 steps"]
    processes = []
    for index, cluster in enumerate(by_hand(2)):
        own = {"JAX_NUM_CPU_DEVICES": "1", "SLOW": "0.3" if index == slow else "0"}
        env = {**os.environ, **cluster, **own}
        processes.append(
            subprocess.Popen(
                command,
                cwd=ROOT,
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    outputs = [p.communicate(timeout=240)[0] for p in processes]
    assert [p.returncode for p in processes] == [0, 0], "\n".join(outputs)
    rows = [r for r in read_jsonl(tmp_path / "metrics.jsonl") if "train/loss" in r]
    assert [SCALARS[0] in row for row in rows] == [False] + 6 * [True]
    # The lines before these tell of the start, where either may be the later.
    assert [row[SCALARS[0]] for row in rows[3:]] == 4 * [slow]
    assert min(row[SCALARS[1]] for row in rows[3:]) > 0.3
