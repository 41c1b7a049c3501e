# SPDX-License-Identifier: Apache-2.0
"""How many threads XLA gets, before it starts and after."""

import os

import jax
import pytest
from jax._src import xla_bridge

from vit_jax.process import threads


def test_threads_are_lent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    started = False
    monkeypatch.setattr(xla_bridge, "backends_are_initialized", lambda: started)
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    monkeypatch.setattr(threads, "_lent", "")
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setenv("PJRT_NPROC", "7")
    assert threads.lend() == ""
    assert os.environ["PJRT_NPROC"] == "7"  # the user's own
    assert threads.lend(fixed=True).startswith("warning: XLA's threads are 7, and bits are equal")
    monkeypatch.delenv("PJRT_NPROC")
    assert threads.lend() == ""  # of the command, before it reads its config
    assert os.environ["PJRT_NPROC"] == "32"  # four for each of the tests' 8 devices
    assert threads.lend(fixed=True) == ""
    assert os.environ["PJRT_NPROC"] == "64"
    started = True
    assert threads.lend(fixed=True) == ""
    monkeypatch.setenv("PJRT_NPROC", "32")
    assert "threads are 32" in threads.lend(fixed=True)
    monkeypatch.delenv("PJRT_NPROC")
    assert "threads are one for each core" in threads.lend(fixed=True)
    assert "a step on 8 devices may wait for ever; set PJRT_NPROC=32" in threads.lend()
    assert "PJRT_NPROC" not in os.environ
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert threads.lend(fixed=True) == ""


def test_one_cpu_becomes_two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, int] = {}
    monkeypatch.setattr(xla_bridge, "backends_are_initialized", lambda: False)
    monkeypatch.setattr(jax.config, "update", asked.__setitem__)
    monkeypatch.setenv("PJRT_NPROC", "64")
    for number, told in ((1, {}), (8, {}), (0, {"jax_num_cpu_devices": 2})):
        monkeypatch.setattr(threads, "_devices", lambda number=number: number)
        assert threads.lend() == threads.lend(fixed=True) == ""
        assert asked == told
    asked.clear()
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    threads.lend(fixed=True)
    assert asked == {}
