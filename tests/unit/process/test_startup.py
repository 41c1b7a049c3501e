# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path

import jax
import pytest

from vit_jax.errors import UserError
from vit_jax.process import startup


@pytest.mark.parametrize(
    "asked, plugin, node, left_out",
    [
        ("", "libtpu", "", True),
        ("", "", "", False),  # others' plugins are none of ours
        ("tpu,cpu", "libtpu", "", False),
        ("", "jax_cuda13_plugin", "dxg", False),  # a GPU under WSL has no other device file
    ],
)
def test_plugins_are_left_out_where_there_is_no_device(
    asked, plugin, node, left_out, monkeypatch, tmp_path
):
    done = []
    (tmp_path / node).touch()
    monkeypatch.setattr(startup, "_DEVICES", tmp_path)
    monkeypatch.setattr(startup, "stay_on_cpu", lambda: done.append(True))
    monkeypatch.setattr(startup.sys, "platform", "linux")
    monkeypatch.setattr(startup.importlib.util, "find_spec", lambda name: name == plugin or None)
    startup.ignore_plugins(asked)
    assert bool(done) == left_out


@pytest.mark.parametrize("given", ["", "relative"])
def test_a_cache_directory_that_is_no_absolute_path_is_ignored(monkeypatch, given):
    monkeypatch.setenv("XDG_CACHE_HOME", given)
    monkeypatch.setenv("HOME", "/home/someone")
    assert startup.cache_home() == Path("/home/someone/.cache")


def test_the_programs_used_last_stay(tmp_path):
    for i, name in enumerate(["old", "used", "new"]):
        path = tmp_path / f"{name}-cache"
        path.write_bytes(b"x" * 100)
        os.utime(path, (100 + i, 100 + i))
    os.utime(tmp_path / "used-cache", (500, 101))
    (tmp_path / "something else").write_bytes(b"x" * 1000)
    startup._prune(tmp_path, 300)
    assert len(list(tmp_path.iterdir())) == 4
    startup._prune(tmp_path, 250)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["new-cache", "something else", "used-cache"]
    startup._prune(tmp_path, 199)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["something else", "used-cache"]


@pytest.mark.parametrize("missing", ["JAX_NUM_PROCESSES", "JAX_PROCESS_ID"])
def test_half_described_cluster(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    full = {
        "JAX_COORDINATOR_ADDRESS": "localhost:1",
        "JAX_NUM_PROCESSES": "2",
        "JAX_PROCESS_ID": "0",
    }
    for key, value in full.items():
        if key != missing:
            monkeypatch.setenv(key, value)
    with pytest.raises(UserError, match="JAX_NUM_PROCESSES"):
        startup.join_cluster()


@pytest.mark.parametrize("address", ["localhost", "localhost:port", ""])
def test_an_address_without_a_port_is_one_line(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", address)
    monkeypatch.setenv("JAX_NUM_PROCESSES", "2")
    monkeypatch.setenv("JAX_PROCESS_ID", "0")
    with pytest.raises(UserError, match="must be HOST:PORT"):
        startup.join_cluster()


@pytest.mark.parametrize(
    "environment, joins",
    [
        ({}, False),
        ({"SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, False),
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, False),  # a batch script
        ({"SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "8"}, True),
        ({"SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "1"}, False),  # an interactive shell
        ({"SLURM_STEP_NUM_TASKS": "8", "JAX_NUM_PROCESSES": "1"}, False),
        ({"SLURM_STEP_NUM_TASKS": "", "OMPI_COMM_WORLD_SIZE": ""}, False),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, True),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, False),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "0"}, True),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, False),
        ({"TPU_WORKER_HOSTNAMES": "host-0,host-1"}, True),
        ({"TPU_ML_PLATFORM": "JAX"}, True),
        ({"TPU_ML_PLATFORM": "JAX", "TPU_SKIP_MDS_QUERY": "1"}, False),
    ],
)
def test_which_environments_are_clusters(
    monkeypatch: pytest.MonkeyPatch, environment: dict, joins: bool
) -> None:
    for key in ("TPU_SKIP_MDS_QUERY", "TPU_ML_PLATFORM"):  # jax sets them at import
        monkeypatch.delenv(key, raising=False)
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    called = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda *args, **_: called.append(args))
    startup.join_cluster()
    assert called == ([()] if joins else [])


def test_a_cluster_that_cannot_be_joined_ends_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def initialize(*_: object, **__: object) -> None:
        raise ValueError("coordinator_address should be defined.\nand more")

    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")  # as Open MPI 5: no address
    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    with pytest.raises(UserError, match=r"should be defined\.; set JAX_COORDINATOR_ADDRESS=HOST"):
        startup.join_cluster()
