# SPDX-License-Identifier: Apache-2.0
"""A run trains wherever Python runs: in a thread, beside an event loop, in a process of a pool."""

import asyncio
import concurrent.futures
import multiprocessing
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.refusals import refused_by
from tests.unit.train.test_early_stop import config
from vit_jax.config.tree import Config
from vit_jax.errors import UserError
from vit_jax.train.loop import fit

ROOT = Path(__file__).parents[3]
FORK = """
import multiprocessing, sys
import jax
from tests.integration.train.test_loop import quick, fit
from vit_jax.errors import UserError

def child(folder, told):
    try:
        fit(quick(), folder)
    except UserError as error:
        told.put(str(error))

if __name__ == "__main__":
    jax.devices()
    context = multiprocessing.get_context("fork")
    told = context.SimpleQueue()
    process = context.Process(target=child, args=(sys.argv[1] + "/child", told))
    process.start()
    process.join(60)
    process.kill()
    print("TOLD", told.get())
"""


def quick() -> Config:
    cfg = config(patience=0)
    cfg.duration, cfg.evals = "2 steps", {}
    return cfg


def status(folder: Path) -> int:
    return fit(quick(), folder).status


def test_in_a_thread_and_beside_an_event_loop(tmp_path: Path) -> None:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:  # two runs at once
        both = [pool.submit(status, tmp_path / name) for name in ("a", "b")]
        assert [each.result() for each in both] == [0, 0]

    async def cell() -> list[int]:  # as a notebook's cell is run
        return [status(tmp_path / "c"), await asyncio.to_thread(status, tmp_path / "d")]

    assert asyncio.run(cell()) == [0, 0]
    assert threading.current_thread() is threading.main_thread()
    # An error, and a second call on the same workdir, find its lock free.
    broken = quick()
    broken.data.train_split = "nothing"
    for _ in range(2):
        with refused_by("data.sources.partition.absolute_slices"):
            fit(broken, tmp_path / "a")


def test_a_finished_run_returns_what_it_measured(tmp_path: Path) -> None:
    cfg = quick()
    cfg.evals = {"val": config().evals["val"]}
    first, again = fit(cfg, tmp_path / "run"), fit(cfg, tmp_path / "run")
    assert (again.state, again.status) == (None, 0)
    assert again.metrics == first.metrics
    assert "val/loss" in first.metrics
    assert "Array" not in repr(first)  # a notebook's cell that ends with a call shows it


@pytest.mark.slow
def test_in_a_child_that_is_spawned_and_not_in_one_that_is_forked(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        assert pool.submit(status, tmp_path / "spawned").result(timeout=120) == 0
    script = tmp_path / "fork.py"
    script.write_text(FORK)
    told = subprocess.run(
        [sys.executable, script, tmp_path],
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_NUM_CPU_DEVICES": "8"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert "TOLD this process was forked from one in which JAX runs" in told.stdout, told.stderr


def test_too_much_for_the_memory_is_one_line(tmp_path: Path) -> None:
    cfg = quick()
    cfg.model.dim, cfg.model.mlp_dim = 4 * 10**5, 10**6
    # Some machines, and some libraries that allocate, promise more memory than there is.
    allowed = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (2**40, allowed[1]))
    try:
        with pytest.raises(UserError, match=r"(?s)out of memory \(.* bytes.*lower data.batch_size"):
            fit(cfg, tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, allowed)
