# SPDX-License-Identifier: Apache-2.0
"""What a machine's workers share: its cores, or its GPUs."""

import os
import re
from collections.abc import Mapping

from vit_jax.errors import UserError

_GPUS = "CUDA_VISIBLE_DEVICES"


def share(worker: int, count: int) -> Mapping[str, str]:
    """Return the variables by which a worker's runs see its GPUs only; none without GPUs.

    Raises:
        UserError: more workers than GPUs.
    """
    gpus = _gpus()
    if not gpus or count == 1:
        return {}
    if count > len(gpus):
        raise UserError(f"--workers={count}, but here are {len(gpus)} GPUs; one worker needs one")
    return {_GPUS: ",".join(gpus[worker::count])}


def _gpus() -> list[str]:
    if _GPUS in os.environ:
        return [gpu for gpu in os.environ[_GPUS].split(",") if gpu]
    found = [re.fullmatch(r"nvidia(\d+)", name) for name in os.listdir("/dev")]
    return sorted((match[1] for match in found if match), key=int)


def keep_to_cores(worker: int, count: int) -> None:
    """Keep this thread, and what it starts, to its part of the cores, where each can have some.

    Runs that take each other's cores in turns are slower than runs with fewer cores.
    """
    if not hasattr(os, "sched_setaffinity"):  # Linux has it
        return
    cores = sorted(os.sched_getaffinity(0))
    if 1 < count <= len(cores):
        os.sched_setaffinity(0, cores[worker::count])
