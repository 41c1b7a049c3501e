# SPDX-License-Identifier: Apache-2.0
"""How a save ended: in this process, and in all of a run's."""

import shutil
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from vit_jax.checkpoints.manifest import Manifest
from vit_jax.checkpoints.orbax_errors import cause
from vit_jax.errors import IO_ERROR, UserError


class SaveFailed(UserError):
    """A checkpoint could not be written; the older ones are intact."""

    status = IO_ERROR


class Ended(NamedTuple):
    """How a save ended; `damaged` if what is there is not what was saved."""

    step: int
    manifest: Manifest
    failed: SaveFailed | None = None
    damaged: bool = False


def agreed(ended: Ended) -> Ended:
    """Return how a save ended that all processes made: well only where it did in each."""
    if jax.process_count() == 1:
        return ended
    state = np.asarray(0 if ended.failed is None else 2 if ended.damaged else 1)
    worst = multihost_utils.process_allgather(state).max()
    failed = ended.failed
    if worst and failed is None:
        failed = SaveFailed(
            f"the checkpoint of step {ended.step} could not be saved by another process, whose "
            "line says why"
        )
    return Ended(ended.step, ended.manifest, failed, bool(worst == 2))


def failed(
    directory: Path, step: int, num_bytes: int, newest: int | None, error: BaseException
) -> SaveFailed:
    """Build the error of a failed save: its cause, the free space, the newest intact checkpoint."""
    try:
        free = f"{shutil.disk_usage(directory).free / 1e6:,.1f}"
    except OSError:  # the disk is gone
        free = "unknown"
    older = "there is no other" if newest is None else f"newest intact: step {newest}"
    return SaveFailed(
        f"could not save the checkpoint of step {step} to {directory} (needs up to "
        f"{num_bytes / 1e6:,.1f} MB, {free} MB free; {older}): {cause(error)}"
    )
