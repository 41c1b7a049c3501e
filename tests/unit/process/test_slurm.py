# SPDX-License-Identifier: Apache-2.0
import os

import jax
import pytest
from jax._src.clusters import SlurmCluster

from vit_jax.process import startup


def test_steps_of_one_job_have_ports_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = []
    for name, value in (("JOB_ID", "4711"), ("STEP_NUM_TASKS", "2"), ("STEP_NODELIST", "n[1-2]")):
        monkeypatch.setenv(f"SLURM_{name}", value)

    def joined(*_: object, **__: object) -> None:
        given = os.environ["JAX_COORDINATOR_PORT"]
        ports.append(SlurmCluster.get_coordinator_address(None, given))

    monkeypatch.setattr(jax.distributed, "initialize", joined)
    for step in range(3):
        monkeypatch.setenv("JAX_COORDINATOR_PORT", "")  # to have it as it was afterwards
        monkeypatch.delenv("JAX_COORDINATOR_PORT")
        monkeypatch.setenv("SLURM_STEP_ID", str(step))
        startup.join_cluster()
    assert ports[0] == SlurmCluster.get_coordinator_address(None, None)  # jax's own
    assert len(set(ports)) == 3
    monkeypatch.setenv("JAX_COORDINATOR_PORT", "1234")
    startup.join_cluster()
    assert ports[-1] == "n1:1234"
