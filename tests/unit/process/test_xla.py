# SPDX-License-Identifier: Apache-2.0
"""How many threads XLA gets, before it starts and after, and where the tasks of Slurm meet."""

import os

import jax
import pytest
from jax._src import xla_bridge
from jax._src.clusters import SlurmCluster

from vit_jax.process import startup, xla


def test_commands_in_the_process_of_the_tests_set_no_other_flags() -> None:
    before = os.environ["XLA_FLAGS"]
    xla.set_flags()
    assert os.environ["XLA_FLAGS"] == before


def test_threads_are_lent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    started = False
    monkeypatch.setattr(xla_bridge, "backends_are_initialized", lambda: started)
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    monkeypatch.setattr(xla, "_lent", "")
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setenv("PJRT_NPROC", "7")
    assert xla.lend_threads() == ""
    assert os.environ["PJRT_NPROC"] == "7"  # the user's own
    assert xla.lend_threads(fixed=True).startswith(
        "warning: XLA's threads are 7, and bits are equal"
    )
    monkeypatch.delenv("PJRT_NPROC")
    assert xla.lend_threads() == ""  # of the command, before it reads its config
    assert os.environ["PJRT_NPROC"] == "32"  # four for each of the tests' 8 devices
    assert xla.lend_threads(fixed=True) == ""
    assert os.environ["PJRT_NPROC"] == "64"
    started = True
    assert xla.lend_threads(fixed=True) == ""
    monkeypatch.setenv("PJRT_NPROC", "32")
    assert "threads are 32" in xla.lend_threads(fixed=True)
    monkeypatch.delenv("PJRT_NPROC")
    assert "threads are one for each core" in xla.lend_threads(fixed=True)
    assert "a step on 8 devices may wait for ever; set PJRT_NPROC=32" in xla.lend_threads()
    assert "PJRT_NPROC" not in os.environ
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert xla.lend_threads(fixed=True) == ""


def test_one_cpu_becomes_two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, int] = {}
    monkeypatch.setattr(xla_bridge, "backends_are_initialized", lambda: False)
    monkeypatch.setattr(jax.config, "update", asked.__setitem__)
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_prefer_vector_width=256")
    monkeypatch.setenv("PJRT_NPROC", "64")
    for number, told in ((1, {}), (8, {}), (0, {"jax_num_cpu_devices": 2})):
        monkeypatch.setattr(xla, "_devices", lambda number=number: number)
        assert xla.lend_threads() == xla.lend_threads(fixed=True) == ""
        assert asked == told
    # A call from Python has the flags of the command line.
    assert os.environ["XLA_FLAGS"] == (
        "--xla_cpu_enable_concurrency_optimized_scheduler=false --xla_cpu_prefer_vector_width=256"
    )
    asked.clear()
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    xla.lend_threads(fixed=True)
    assert asked == {}


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
