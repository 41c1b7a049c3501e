# SPDX-License-Identifier: Apache-2.0
"""One checkpoint on disk, written and read with Orbax v1 (orbax.readthedocs.io).

Orbax writes each step into a temporary directory and renames it when complete. It has no checksum
of contents: record.py has. All of Orbax is in this file and in what orbax_errors.py knows of it.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from orbax.checkpoint import v1 as ocp

from vit_jax import trees
from vit_jax.checkpoints import record as record_lib
from vit_jax.checkpoints.orbax_errors import chain
from vit_jax.checkpoints.record import Damaged, Record, listed

TEMPORARY = ".orbax-checkpoint-tmp"  # in the name of a step that Orbax has not finished


@dataclasses.dataclass(frozen=True)
class HostLeaf:
    """A wanted leaf that is to be a numpy array, whole on every process."""

    shape: tuple[int, ...]
    dtype: Any


def save_async(path: Path, state: trees.PyTree, record: Record) -> Callable[[], Any]:
    """Start a save, and return once `state` is copied to the host: what waits for its end."""
    context = ocp.Context()
    # Orbax cuts replicated arrays up for their devices to save a part each; below this size (in
    # bytes) each cut, a compiled program of its own, costs more than it saves.
    context.array.saving.min_slice_bytes_for_replica_parallel = 2**20
    with context:
        return ocp.save_async(str(path), state, custom_metadata=record_lib.pack(record)).result


def read_record(path: Path) -> Record:
    """Return what is kept beside a checkpoint's arrays.

    Raises:
        Damaged: it is missing or changed.
    """
    try:
        packed = ocp.metadata(str(path)).custom_metadata
    except Exception:
        raise Damaged("its metadata is missing or unreadable") from None
    return record_lib.unpack(packed)


def load(path: Path, abstract: trees.PyTree, record: Record) -> trees.PyTree:
    """Read the arrays of `abstract`; what else the checkpoint holds stays unread.

    Args:
        path: of the checkpoint.
        abstract: the wanted tree; leaves are `jax.ShapeDtypeStruct`s, or `HostLeaf`s in plain
            dicts.
        record: the checkpoint's, to name what cannot be read.

    Raises:
        Damaged: an array cannot be read. Whether it is what was saved is for `record.verify`.
    """
    context = ocp.Context()
    context.pytree.loading.partial_load = True
    try:
        with context:
            return ocp.load(str(path), jax.tree.map(_placed, abstract))
    except Exception as error:
        text = "\n".join(str(link) for link in chain(error))
        # Arrays are stored under dotted names.
        names = [n for n in record.leaves if f'"{n.replace("/", ".")}/' in text]
        what = listed(names) if names else "its list of arrays"
        raise Damaged(f"{what} cannot be read (a file is cut, missing or damaged)") from None


def _placed(leaf: Any) -> Any:
    """Put a leaf that says no sharding on one device: Orbax would want the devices of the save."""
    if isinstance(leaf, HostLeaf) or leaf.sharding is not None:
        return leaf
    one = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=one)
