# SPDX-License-Identifier: Apache-2.0
"""A save of one process of several that share no disk, which Orbax has a save of all for.

Each process is told that it saves alone: it writes the shards of which it has the first copy.
"""

import os
from pathlib import Path
from typing import Any

import jax

_DESCRIPTOR = 1000  # of the directory, a number that is free in all processes of a run


def prepare(context: Any, path: Path) -> Path:
    """Set an `ocp.Context` up for such a save, and return the path to give to Orbax.

    Orbax compares the paths of all processes. Those of one machine have to differ and look alike,
    as by a descriptor's number.
    """
    index = jax.process_index()
    context.multiprocessing.primary_host = index
    context.multiprocessing.active_processes = {index}
    context.multiprocessing.barrier_sync_key_prefix = f"process_{index}"
    # In the background, Orbax's signal that one process has its directory would serve all.
    context.asynchronous.create_directories_asynchronously = False
    context.array.saving.array_metadata_store = _alone(context.array.saving.array_metadata_store)
    directory = os.open(path.parent, os.O_RDONLY)
    os.dup2(directory, _DESCRIPTOR, inheritable=False)
    os.close(directory)
    return Path(f"/proc/self/fd/{_DESCRIPTOR}", path.name)


def _alone(store: Any) -> Any:
    """Return Orbax's store of arrays' metadata for a directory that has one process's alone."""

    class Alone(type(store)):
        async def read(self, checkpoint_dir: Any, process_index: int | None = None) -> Any:
            found = await super().read(checkpoint_dir, process_index)
            if process_index is None and found and len(found) == 1:
                # What Orbax checks here is that all processes have written the same.
                return dict.fromkeys(range(jax.process_count()), *found.values())
            return found

    return Alone()
