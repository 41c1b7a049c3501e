# SPDX-License-Identifier: Apache-2.0
import fcntl
import os
import threading
from pathlib import Path

import pytest

from vit_jax.sweeps import queue
from vit_jax.sweeps.queue import claim, holder


def test_a_run_is_claimed_once(tmp_path: Path) -> None:
    assert holder(tmp_path, "run") is None
    with claim(tmp_path, "run") as first:
        assert first is not None
        told = holder(tmp_path, "run")
        assert told is not None
        assert told.startswith(f"pid {os.getpid()} on ")
        with claim(tmp_path, "run") as second:
            assert second is None
        with claim(tmp_path, "another") as other:
            assert other is not None
    assert holder(tmp_path, "run") is None
    with claim(tmp_path, "run") as again:
        assert again is not None


def test_a_look_does_not_keep_a_worker_from_its_claim(tmp_path: Path) -> None:
    with claim(tmp_path, "run"):  # makes the file
        pass
    with open(tmp_path / "claims" / "run") as looked_at:
        fcntl.flock(looked_at, fcntl.LOCK_SH)  # as `holder` has it for a moment
        moment = threading.Timer(0.05, fcntl.flock, (looked_at, fcntl.LOCK_UN))
        moment.start()
        with claim(tmp_path, "run") as descriptor:
            assert descriptor is not None
        moment.join()


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="Linux has it")
def test_workers_share_the_cores() -> None:
    cores, seen = os.sched_getaffinity(0), {}

    def keep(worker: int, count: int) -> None:
        queue.keep_to_cores(worker, count)
        seen[worker] = os.sched_getaffinity(0)

    for count in (len(cores), len(cores) + 1):
        for worker in range(count):
            thread = threading.Thread(target=keep, args=(worker, count))
            thread.start()
            thread.join()
        shares = list(seen.values())
        if 1 < count <= len(cores):
            assert set().union(*shares) == cores
            assert sum(map(len, shares)) == len(cores)
        else:  # more workers than cores: the system shares them
            assert all(share == cores for share in shares)
        seen.clear()
    assert os.sched_getaffinity(0) == cores  # this thread keeps them all
