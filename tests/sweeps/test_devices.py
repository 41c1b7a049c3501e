# SPDX-License-Identifier: Apache-2.0
import os
import threading

import pytest

from vit_jax.errors import UserError
from vit_jax.sweeps import devices


def test_workers_share_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert devices.share(0, 2) == {"CUDA_VISIBLE_DEVICES": "4,6"}
    assert devices.share(1, 2) == {"CUDA_VISIBLE_DEVICES": "5,7"}
    assert devices.share(0, 1) == {}
    with pytest.raises(UserError, match="--workers=5, but here are 4 GPUs"):
        devices.share(0, 5)


def test_without_gpus_there_is_nothing_to_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert devices.share(1, 3) == {}


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="Linux has it")
def test_workers_share_the_cores() -> None:
    cores, seen = os.sched_getaffinity(0), {}

    def keep(worker: int, count: int) -> None:
        devices.keep_to_cores(worker, count)
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
