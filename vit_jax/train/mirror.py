# SPDX-License-Identifier: Apache-2.0
"""A workdir in a bucket: the run works in a staging directory, of which a thread sends all.

Checkpoints are saved to the staging directory as on any disk and reach the bucket later: the files
of a checkpoint, then metrics and the other small files, then the mark that it is whole. So a new
host, which begins with what the bucket has, finds every line up to the step where it continues.
"""

import contextlib
import logging
import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import jax

from vit_jax import files, waiting
from vit_jax.bucket_folder import Folder
from vit_jax.checkpoints import DIRECTORY as CHECKPOINTS
from vit_jax.checkpoints import copies
from vit_jax.checkpoints.config import steps_in
from vit_jax.errors import IO_ERROR, UserError
from vit_jax.remote import RemoteError
from vit_jax.train import workdir
from vit_jax.train.bucket_lock import NAME as LOCK
from vit_jax.train.bucket_lock import BucketLock
from vit_jax.train.health.preemption import Preemption

_log = logging.getLogger(__name__)
_PLACE = ".place"  # in a staging directory that has been what the bucket has: its identity
_LOOK = 1.0  # seconds between looks for a new checkpoint
_SMALL = 30.0  # seconds between copies of the files that grow
_PAUSE = 5.0  # seconds, after a bucket has not answered
# Seconds for what is left: at the end, after an error, and before a machine is taken away.
_AT_END, _AFTER_ERROR, _GRACE = 600.0, 10.0, 25.0


@contextlib.contextmanager
def mirrored(url: str, path: Path, stop: Preemption) -> Iterator["Mirror | None"]:
    """Keep the run in `path`, whose lock is held, in the bucket at `url`; "" for no bucket.

    Raises UserError: another process has it, what the bucket does not take, RemoteError.
    """
    if not url:
        yield None
        return
    if jax.process_count() > 1:
        raise UserError(f"{url}: a run of several processes needs a shared disk; mount the bucket")
    print(f"{url}: the run works in {path}, and is copied from there", flush=True)
    mirror = Mirror(url, path)
    limit = _AFTER_ERROR
    try:
        yield mirror
        limit = _AT_END if stop.signal is None else _GRACE
    finally:
        left = mirror.close(limit)
        if left and limit == _AT_END:
            refusal = UserError(f"{left}; the same command here sends the rest")
            refusal.status = IO_ERROR
            raise refusal
        if left:
            _log.warning("%s; the same command here sends the rest", left)


class Mirror:
    """Sends what appears in a staging directory; the thread ends with `close`."""

    def __init__(self, url: str, path: Path) -> None:
        """Lock the bucket's folder, and let the directory have what the bucket has."""
        self._folder, self._path = Folder(url), path
        self._sent: dict[str, tuple[int, int]] = {}
        self._away = ""  # why the last pass failed
        self._closing, self._failed = threading.Event(), threading.Event()
        mark = path / _PLACE
        place = mark.read_text() if mark.is_file() else uuid.uuid4().hex
        self._lock = BucketLock(self._folder, place)
        with waiting.said(f"waiting for {url}", after=3):
            ours = self._lock.acquire()
        try:
            self._whole = copies.whole(self._folder)
            if not (ours and mark.is_file()):
                self._replace()
                files.write(mark, place)
            elif self._whole and max(self._whole) > max(steps_in(path / CHECKPOINTS), default=-1):
                self._fetch_checkpoints()
        except BaseException:
            self._lock.release()
            raise
        self._thread = threading.Thread(target=self._work, name="mirror", daemon=True)
        self._thread.start()

    def scalars(self) -> dict[str, float]:
        """Return `run/bucket_lag_steps`, by which the bucket's newest checkpoint is behind.

        Raises UserError: another process has taken the run over.
        """
        if self._lock.lost:
            raise UserError(
                f"{self._folder.url} was taken over by {self._lock.lost} while it did not answer "
                "here; this process ends"
            )
        newest = max(steps_in(self._path / CHECKPOINTS), default=0)
        return {"run/bucket_lag_steps": float(newest - max(self._whole, default=0))}

    def close(self, limit: float) -> str:
        """Send what is left for so many seconds; returns "", or what has not reached the bucket."""
        self._closing.set()
        with waiting.said(f"sending to {self._folder.url}", after=30):
            self._thread.join(limit)
        over = not self._thread.is_alive() and not self._failed.is_set()
        self._failed.set()  # no pass after this
        self._lock.release()
        if over:
            return ""
        at = f"the checkpoint of step {max(self._whole)}" if self._whole else "no checkpoint"
        why = self._away or self._lock.lost or "too slow"
        return f"{self._folder.url} has {at}, {self._path} has all ({why})"

    def _replace(self) -> None:
        """Let the directory have what the bucket has, and nothing else."""
        for entry in self._path.iterdir():
            if entry.name != workdir.LOCK:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        rest = (CHECKPOINTS, LOCK)
        names = [n for n in self._folder.names() if n.partition("/")[0] not in rest]
        self._folder.fetch((name, self._path / name) for name in names)
        self._sent = self._small()
        self._fetch_checkpoints()

    def _fetch_checkpoints(self) -> None:
        there = steps_in(self._path / CHECKPOINTS)
        for step in sorted(self._whole.keys() - set(there)):
            copies.fetch(self._folder, self._whole[step], self._path / CHECKPOINTS / str(step))

    def _work(self) -> None:
        """Pass over the directory again and again; after `close` until nothing is left."""
        small = 0.0
        while not self._failed.is_set() and not self._lock.lost:
            closing = self._closing.is_set()
            try:
                due = closing or time.monotonic() - small > _SMALL
                if self._pass(everything=due):
                    small = time.monotonic()
                if self._away:
                    _log.warning("%s answers again", self._folder.url)
                    self._away = ""
                if closing:
                    return
            except (RemoteError, OSError) as error:  # OSError: a checkpoint is deleted meanwhile
                if isinstance(error, RemoteError) and not self._away:
                    what = "checkpoints stay here and go later"
                    _log.warning("%s; %s: %s", error, what, self._path)
                    self._away = str(error)
                self._failed.wait(_PAUSE if self._away else _LOOK)
                continue
            self._closing.wait(_LOOK)
        self._failed.set()

    def _pass(self, *, everything: bool) -> bool:
        """Send what is new; returns whether the small files are sent, too."""
        if not self._lock.is_held():
            raise RemoteError(f"{self._folder.url} does not answer")
        place = self._path / CHECKPOINTS
        here = {step: copies.described(place / str(step)) for step in steps_in(place)}
        waits = [step for step, found in here.items() if self._whole.get(step) != found]
        for step in reversed(waits):  # a bucket that is slow skips some
            sent = copies.send(self._folder, place / str(step))
            self._send_small()
            if not self._lock.is_held():
                raise RemoteError(f"{self._folder.url} does not answer")
            copies.mark(self._folder, step, sent)
            self._whole[step] = sent
        there = set(steps_in(place))
        gone = self._whole.keys() - there if self._whole.keys() & there else ()
        for step in sorted(gone):
            copies.remove(self._folder, step)
            del self._whole[step]
        if everything:
            self._send_small(last=True)
        return everything or bool(waits)

    def _send_small(self, *, last: bool = False) -> None:
        """Send the files that changed; the mark of a finished run after all else."""
        found = self._small()
        new = [n for n, state in found.items() if self._sent.get(n) != state]
        for name in sorted(new, key=lambda name: (name == workdir.FINISHED, name)):
            if name != workdir.FINISHED or last:
                self._folder.write(name, (self._path / name).read_bytes())
                self._sent[name] = found[name]

    def _small(self) -> dict[str, tuple[int, int]]:
        """Return time of change and size of every file that is no checkpoint's, and not hidden."""
        found = {}
        for entry in self._path.iterdir():
            below = (entry, *entry.rglob("*")) if entry.name != CHECKPOINTS else ()
            for file in (f for f in below if f.is_file()):
                name, state = file.relative_to(self._path), file.stat()
                if not any(part.startswith(".") for part in name.parts):
                    found[str(name)] = (state.st_mtime_ns, state.st_size)
        return found
