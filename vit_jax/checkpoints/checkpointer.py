# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of one run that survive kills, full disks and flipped bits.

A checkpoint gets its final name only when it is complete (storage.py). A digest of every leaf
(manifest.py) is saved with the state and verified on restore.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, SupportsFloat, TypeVar

import jax

from vit_jax import trees
from vit_jax.checkpoints import manifest as manifest_lib
from vit_jax.checkpoints import storage
from vit_jax.checkpoints.config import CheckpointConfig, check_path, ranked, steps_in
from vit_jax.checkpoints.failures import Ended, SaveFailed, agreed, failed, silence_orbax
from vit_jax.checkpoints.manifest import Damaged
from vit_jax.errors import UserError

_log = logging.getLogger(__name__)
T = TypeVar("T")


class CorruptCheckpoints(UserError):
    """There are checkpoints, but none that can be used."""

    status = 66  # EX_NOINPUT


class Restored(NamedTuple):
    """A state with the step and the metadata it was saved with."""

    state: trees.PyTree
    step: int
    metadata: dict[str, Any]


class Checkpointer:
    """Saves and restores the states of one run in `directory`, one subdirectory a step.

    Every process of a run makes the same calls in the same order.
    """

    def __init__(self, directory: str | Path, cfg: CheckpointConfig, *, own: bool = False) -> None:
        """Open or create `directory`; change nothing in it before the first save.

        With `own` each process has its own directory and saves there the part of the arrays that
        it holds; the checkpoints that it finds when it opens the directory must be whole.
        """
        silence_orbax()
        self._directory = Path(directory).absolute()
        check_path(self._directory)
        self._cfg = cfg
        self._own = own and jax.process_count() > 1
        self._leads = self._own or jax.process_index() == 0  # on its disk
        self._metrics: dict[int, dict[str, float]] = {}  # of every finished checkpoint
        self._ours: set[int] = set()  # saved by this process, or restored and verified
        self._bad: set[int] = set()  # found damaged
        self._pending: threading.Thread | None = None
        self._ended: Ended | None = None  # of the last save, until all processes have agreed on it
        self._failure: SaveFailed | None = None
        manifest_lib.on_all_processes(self._open)

    @manifest_lib.raising_inaccessible
    def _open(self) -> None:
        if self._leads:
            self._directory.mkdir(parents=True, exist_ok=True)
        for step in steps_in(self._directory):
            try:
                self._metrics[step] = storage.read_manifest(self._path(step)).metrics
            except Damaged:
                self._metrics[step] = {}
                self._bad.add(step)

    def save(
        self,
        step: int,
        state: trees.PyTree,
        *,
        metadata: Mapping[str, Any],
        metrics: Mapping[str, SupportsFloat] | None = None,
    ) -> bool:
        """Start to save `state`; return once it is copied to the host, False if `step` is saved.

        The caller may donate `state` right after. `metadata` is any JSON. `metrics` decide which
        checkpoint is best, so they must be passed with the first save of a step.

        Raises:
            SaveFailed: this save could not start, or the one before has failed (then this one has
                started).
            UserError: the directory holds this or a later step that this run did not restore.
            NonFinite: the state holds NaN or infinity.
        """
        failure = self._join()
        if step in self._ours:
            if failure:
                raise failure
            return False
        foreign = [s for s in self.steps() if s >= step]
        if foreign:
            raise UserError(
                f"{self._directory} holds a checkpoint of step {foreign[-1]}, but this run is at "
                f"step {step} and did not continue from it; choose another workdir"
            )
        if step in self._bad:
            self._remove({step})
        self._clear()
        manifest = manifest_lib.describe(state, metadata, metrics or {})
        num_bytes = trees.num_bytes(state)
        try:
            manifest_lib.on_all_processes(self._try_to_write)
        except Damaged as error:
            raise self._failed(step, num_bytes, error) from None
        try:
            complete = storage.save_async(self._path(step), state, manifest, self._own)
        except Exception as error:
            failure = self._failed(step, num_bytes, error)
            if jax.process_count() == 1:
                raise failure from None
            self._ended = Ended(
                step, manifest, failure
            )  # the other processes learn of it in `wait`
            return True

        def finish() -> None:
            failure, damaged = None, False
            try:
                complete()
                if self._leads:  # its file system has the renamed files
                    storage.read_back(self._path(step), manifest)
            except BaseException as error:
                failure, damaged = self._failed(step, num_bytes, error), isinstance(error, Damaged)
            self._ended = Ended(step, manifest, failure, damaged)
            if jax.process_count() == 1:
                self._settle(self._ended)

        # Not a daemon: a process that ends normally still completes its last checkpoint.
        self._pending = threading.Thread(target=finish, name=f"checkpoint-{step}")
        self._pending.start()
        if failure:
            raise failure
        return True

    def restore(self, abstract: trees.PyTree) -> Restored | None:
        """Load the newest intact checkpoint; None if there is none at all.

        `abstract` is the wanted tree of `jax.ShapeDtypeStruct`s; its shardings may be of any mesh.
        Each damaged checkpoint on the way is reported by one warning.

        Raises CorruptCheckpoints: there are checkpoints, and every one is damaged, or UserError:
        the checkpoint is of another model or optimizer.
        """
        self.wait()
        reasons = []
        for step in sorted(self._metrics, reverse=True):
            try:
                return self._load(abstract, step)
            except Damaged as damage:
                reasons.append(f"step {step}: {damage}")
                self._bad.add(step)
                _log.warning("checkpoint %s is unusable, trying an older one: %s", step, damage)
        if reasons:
            raise CorruptCheckpoints(
                f"no checkpoint in {self._directory} is usable ({'; '.join(reasons)}); "
                "bring back a copy, or choose another workdir to start from step 0"
            )
        return None

    def restore_step(self, abstract: trees.PyTree, step: int) -> Restored:
        """Load the checkpoint of one step, as `restore` does."""
        self.wait()
        return self._intact(step, lambda: self._load(abstract, step))

    def metadata(self, step: int) -> dict[str, Any]:
        """Return the metadata saved with a step, without reading its arrays."""
        return self._intact(step, lambda: storage.read_manifest(self._path(step))).metadata

    def steps(self) -> list[int]:
        """List the steps of the finished checkpoints not known to be damaged, oldest first."""
        return sorted(set(self._metrics) - self._bad)

    def latest_step(self) -> int | None:
        """Return the newest of `steps()`, None if there is none."""
        return max(self.steps(), default=None)

    def best_step(self) -> int | None:
        """Return the step of the best `cfg.metric` (the later of equals), None if none has it."""
        return next(iter(self._best()), None)

    def wait(self, seconds: float | None = None, *, alone: bool = False) -> None:
        """Wait until the current save is on disk, for at most `seconds`.

        Every process calls it at the same point of the run; a process that ends by itself passes
        `alone`.

        Raises SaveFailed: since the last call a save failed in this process or, unless `alone`, in
        another one.
        """
        failure = self._join(seconds, alone=alone)
        if failure:
            raise failure

    def _join(self, seconds: float | None = None, *, alone: bool = False) -> SaveFailed | None:
        if self._pending is not None:
            self._pending.join(seconds)
            if self._pending.is_alive():
                return None
            self._pending = None
        if self._ended is not None:
            self._settle(self._ended if alone else agreed(self._ended))
        failure, self._failure = self._failure, None
        return failure

    def _settle(self, ended: Ended) -> None:
        """Record how a save ended; after a good one, remove checkpoints beyond `keep`."""
        self._ended, self._failure = None, ended.failed
        if ended.failed is not None and not ended.damaged:
            return  # what is on disk, if anything, is unknown: neither delete nor count it
        self._metrics[ended.step] = ended.manifest.metrics
        if ended.damaged:
            self._bad.add(ended.step)
        else:
            self._ours.add(ended.step)
            kept = {*self.steps()[-self._cfg.keep :], *self._best()[: self._cfg.keep_best]}
            self._remove(self._metrics.keys() - kept)

    def _path(self, step: int) -> Path:
        return self._directory / str(step)

    def _intact(self, step: int, read: Callable[[], T]) -> T:
        """Return `read()`; raise UserError if the checkpoint of `step` is missing or damaged."""
        if step not in self._metrics:
            there = ", ".join(map(str, sorted(self._metrics))) or "none"
            raise UserError(f"no checkpoint of step {step} in {self._directory}; there: {there}")
        try:
            return read()
        except Damaged as damage:
            self._bad.add(step)
            path = self._path(step)
            raise CorruptCheckpoints(f"checkpoint {path} is unusable: {damage}") from None

    def _best(self) -> list[int]:
        # A copy: the thread of a save may add and remove steps at the same time.
        intact = {s: m for s, m in self._metrics.copy().items() if s not in self._bad}
        return ranked(intact, self._cfg.metric, self._cfg.mode)

    def _remove(self, steps: set[int]) -> None:
        """Delete intact checkpoints, and set damaged ones aside."""
        for step in steps:
            del self._metrics[step]
            self._ours.discard(step)
            damaged = step in self._bad
            self._bad.discard(step)
            if self._leads:
                (storage.set_aside if damaged else storage.delete)(self._path(step))

    def _clear(self) -> None:
        if self._leads:
            storage.clear(self._directory)

    def _try_to_write(self) -> None:
        if self._leads:
            storage.try_to_write(self._directory)

    def _failed(self, step: int, num_bytes: int, error: BaseException) -> SaveFailed:
        self._clear()  # the disk may be full: give back what was written
        return failed(self._directory, step, num_bytes, self.latest_step(), error)

    def _load(self, abstract: trees.PyTree, step: int) -> Restored:
        manifest = manifest_lib.on_all_processes(lambda: storage.read_manifest(self._path(step)))
        manifest_lib.check_structure(manifest, abstract, self._path(step))
        state = manifest_lib.on_all_processes(
            lambda: storage.load(self._path(step), abstract, manifest)
        )
        manifest_lib.verify(manifest, state)
        self._ours.add(step)
        self._bad.discard(step)
        return Restored(state, step, manifest.metadata)
