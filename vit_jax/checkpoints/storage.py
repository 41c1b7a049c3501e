# SPDX-License-Identifier: Apache-2.0
"""Checkpoints on disk: one written and read with Orbax v1 (orbax.readthedocs.io), others removed.

Orbax writes each step into a temporary directory and renames it when complete. It has no checksum
of contents, which manifest.py has, and no save of one process of several that share no disk: here
each is told that it saves alone, and writes the shards of which it has the first copy. Only this
file uses Orbax; failures.py knows its errors.
"""

import contextlib
import dataclasses
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import tensorstore as ts
from orbax.checkpoint import v1 as ocp

from vit_jax import trees
from vit_jax.checkpoints import manifest as manifest_lib
from vit_jax.checkpoints.failures import chain, reading_error
from vit_jax.checkpoints.manifest import Damaged, Inaccessible, Manifest
from vit_jax.errors import some

_DESCRIPTOR = 1000  # a file descriptor's number that is free in all processes of a run
_log = logging.getLogger(__name__)
T = TypeVar("T")
_ARRAYS = "state"  # the folder of a step that holds its arrays
_TEMPORARY = ".orbax-checkpoint-tmp"  # in the name of a step that Orbax has not finished
FETCHED = f"{_TEMPORARY}-fetched"  # in the name of a step that is being copied from a bucket
_RETRIES = (0.2, 1.0)  # seconds between tries to read a new checkpoint back
_PAUSES = (0.1, 0.3, 1.0, 0.0)  # seconds: threads of a failed save may still be writing
# Orbax numbers the saves of a process by one counter, which two runs in threads would mix up.
_starting = threading.Lock()
_DELETED = ".deleted"  # renamed before removal, so that a kill leaves no half of a checkpoint
_DAMAGED = ".damaged"  # kept under this name, so that somebody can rescue parts of it


def prepare(context: Any, path: Path) -> Path:
    """Set up an `ocp.Context` for a save of one process alone; return the path to give to Orbax.

    Orbax requires the same path in all processes, but each process saves to its own directory. So
    the path names the directory by a file descriptor, whose number is the same in all processes.
    """
    index = jax.process_index()
    context.multiprocessing.primary_host = index
    context.multiprocessing.active_processes = {index}
    context.multiprocessing.barrier_sync_key_prefix = f"process_{index}"
    # In the background, one process's signal that its directory exists would count for all.
    context.asynchronous.create_directories_asynchronously = False
    context.array.saving.array_metadata_store = _alone(context.array.saving.array_metadata_store)
    directory = os.open(path.parent, os.O_RDONLY)
    os.dup2(directory, _DESCRIPTOR, inheritable=False)
    os.close(directory)
    return Path(f"/proc/self/fd/{_DESCRIPTOR}", path.name)


def _alone(store: Any) -> Any:
    """Return Orbax's store of array metadata for a directory with the metadata of one process."""

    class Alone(type(store)):
        async def read(self, checkpoint_dir: Any, process_index: int | None = None) -> Any:
            found = await super().read(checkpoint_dir, process_index)
            if process_index is None and found and len(found) == 1:
                # Orbax checks here that all processes have written the same.
                return dict.fromkeys(range(jax.process_count()), *found.values())
            return found

    return Alone()


@dataclasses.dataclass(frozen=True)
class HostLeaf:
    """Asks `load` for a leaf as a numpy array, whole on every process."""

    shape: tuple[int, ...]
    dtype: Any


def save_async(
    path: Path, state: trees.PyTree, manifest: Manifest, own: bool = False
) -> Callable[[], Any]:
    """Start a save; once `state` is copied to the host, return a function that waits for its end.

    With `own` every process has its own `path` and saves there what only it holds; see `merge`.
    """
    context = ocp.Context()
    if own:
        path = prepare(context, path)
    # Orbax cuts replicated arrays so that each device saves a part. Each cut is a compiled program;
    # below this size, in bytes, it costs more than it saves.
    context.array.saving.min_slice_bytes_for_replica_parallel = 2**20
    with _starting, context:
        return ocp.save_async(str(path), state, custom_metadata=manifest_lib.pack(manifest)).result


def read_back(path: Path, manifest: Manifest) -> None:
    """Read a finished checkpoint's manifest, and look for each of its arrays, as a restore does.

    Raises Damaged if something is missing, Inaccessible if the operating system does not let it be
    read. Either may last only a moment, so a second try follows.
    """
    for pause in _RETRIES:
        try:
            return _read_back(path, manifest)
        except (Damaged, Inaccessible):
            time.sleep(pause)
    return _read_back(path, manifest)


def _read_back(path: Path, manifest: Manifest) -> None:
    # Compared as text: a NaN is not equal to itself.
    if manifest_lib.pack(read_manifest(path)) != manifest_lib.pack(manifest):
        raise Damaged("its metadata is not what was saved")
    try:
        there = set(_arrays(path).list().result())
    except Exception as error:
        raise _why(path, error) or Damaged("its list of arrays is missing or undecodable") from None
    lost = [n for n in manifest.leaves if f"{n.replace('/', '.')}/zarr.json".encode() not in there]
    if lost:
        raise Damaged(f"{some(lost, 3)} cannot be read back")


def _arrays(path: Path) -> ts.KvStore:
    base = {"driver": "file", "path": f"{path / _ARRAYS}/"}
    return ts.KvStore.open({"driver": "ocdbt", "base": base}).result()


def merge(parts: Sequence[Path]) -> Path:
    """Copy the arrays of all processes' parts of a checkpoint into the first part; return that."""
    whole = _arrays(parts[0])
    for part in map(_arrays, parts[1:]):
        for key in part.list().result():  # no two parts have a key in common
            whole.write(key, part.read(key).result().value).result()
    return parts[0]


def read_manifest(path: Path) -> Manifest:
    """Read a checkpoint's manifest, or raise Damaged or Inaccessible."""
    try:
        return _twice(path, lambda: manifest_lib.unpack(ocp.metadata(str(path)).custom_metadata))
    except (Damaged, Inaccessible):
        raise
    except Exception:
        raise Damaged("its metadata is missing or undecodable") from None


def load(path: Path, abstract: trees.PyTree, manifest: Manifest) -> trees.PyTree:
    """Read the arrays of `abstract`, and no others.

    The leaves of `abstract` are `jax.ShapeDtypeStruct`s, or `HostLeaf`s in plain dicts; `manifest`
    supplies the names of arrays for messages. `manifest.verify` checks the values afterwards.

    Raises Damaged: an array is missing or cannot be decoded; Inaccessible: the operating system
    does not let it be read.
    """
    try:
        return _twice(path, lambda: _load(path, abstract))
    except Inaccessible:
        raise
    except Exception as error:
        text = "\n".join(str(link) for link in chain(error))
        # Arrays are stored under dotted names.
        names = [n for n in manifest.leaves if f'"{n.replace("/", ".")}/' in text]
        what = some(names, 3) if names else "its list of arrays"
        raise Damaged(f"{what} cannot be read (a file is cut, missing or damaged)") from None


def _load(path: Path, abstract: trees.PyTree) -> trees.PyTree:
    context = ocp.Context()
    context.pytree.loading.partial_load = True
    with context:
        state = ocp.load(str(path), jax.tree.map(_placed, abstract))
    # If the file that marks an array as a PRNG key is missing, Orbax returns its numbers.
    for leaf, wanted in zip(jax.tree.leaves(state), jax.tree.leaves(abstract), strict=True):
        if leaf.dtype != wanted.dtype:
            raise TypeError(f"{leaf.dtype} is not {wanted.dtype}")
    return state


def _twice(path: Path, do: Callable[[], T]) -> T:
    """Return `do()`, tried twice: a failure may be momentary, such as too many open files.

    With several processes it is tried once: all of them take part, and one cannot repeat it alone.
    """
    for last in (jax.process_count() > 1, True):
        try:
            return do()
        except Exception as error:
            unreadable = _why(path, error)
            if unreadable is not None:
                raise unreadable from None
            if last:
                raise
    raise AssertionError


def _why(path: Path, error: BaseException) -> Inaccessible | None:
    """Return an Inaccessible error if the system does not let a file be read now, else None.

    Tries to read every file, since Orbax reports some files that it cannot open as missing.
    """

    def stop(error: OSError) -> None:
        raise error

    found = reading_error(error)
    try:
        for folder, _, names in () if found else os.walk(path, onerror=stop):
            for name in names:
                with open(os.path.join(folder, name), "rb") as file:
                    file.read(1)
    except OSError as unopened:
        found = reading_error(unopened)
    if found is None:
        return None
    return Inaccessible(
        f"cannot read checkpoint {path}: {found}; it was not changed; mend that and start again"
    )


def _placed(leaf: Any) -> Any:
    """Put a leaf without a sharding on one device; Orbax would use the devices of the save."""
    if isinstance(leaf, HostLeaf) or leaf.sharding is not None:
        return leaf
    one = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=one)


def delete(path: Path) -> None:
    """Delete an intact checkpoint; if the disk does not allow it, keep it."""
    with contextlib.suppress(OSError):
        doomed = path.with_name(f"{path.name}{_DELETED}")
        path.rename(doomed)
        shutil.rmtree(doomed)


def set_aside(path: Path) -> None:
    """Rename a damaged checkpoint, so that another may take its place, and log it."""
    names = (f"{path.name}{_DAMAGED}{n}" for n in ("", *range(2, 1000)))
    aside = next(p for p in map(path.with_name, names) if not p.exists())
    with contextlib.suppress(OSError):
        path.rename(aside)
        _log.warning("checkpoint %s is damaged and kept as %s", path.name, aside)


def clear(directory: Path) -> None:
    """Remove the remains of saves and deletions that failed or were killed."""
    with contextlib.suppress(OSError):  # the disk is gone; the save will raise
        doomed = [*directory.glob(f"*{_TEMPORARY}*"), *directory.glob(f"*{_DELETED}")]
        for pause in _PAUSES:
            for entry in doomed:
                shutil.rmtree(entry, ignore_errors=True)
            doomed = [entry for entry in doomed if entry.exists()]
            if not doomed:
                return
            time.sleep(pause)


def try_to_write(directory: Path) -> None:
    """Create and remove a directory, as a save does first; raise Damaged with the system's reason.

    If that failed in a save, Orbax's threads would wait for 20 minutes.
    """
    try:
        os.rmdir(tempfile.mkdtemp(suffix=_DELETED, dir=directory))
    except OSError as error:
        raise Damaged(error.strerror) from error
