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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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
from vit_jax.train.health import peers
from vit_jax.train.health.preemption import Preemption

_log = logging.getLogger(__name__)
_MARK = ".staging"  # in a staging directory that has been what the bucket has: its identity
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
    if jax.process_index() == 0:
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
    """Sends what appears in a staging directory; the thread ends with `close`.

    Every process of a run has one, and a staging directory. Process 0 holds the lock, sends the
    small files, and marks a checkpoint when the parts of all are there.
    """

    def __init__(self, url: str, path: Path) -> None:
        """Lock the bucket's folder, and let the directory have what the bucket has."""
        self._folder, self._path, self._url = Folder(url), path, url
        self._index, self._count = jax.process_index(), jax.process_count()
        self._sent: dict[str, tuple[int, int]] = {}  # of small files
        self._known: dict[int, _Identity] = {}  # checkpoints that need not be sent
        self._parts: dict[int, _Identity] = {}  # checkpoints of which this process's part is sent
        self._away = ""  # why the last pass failed
        self._closing, self._failed = threading.Event(), threading.Event()
        mark = path / _MARK
        here = mark.read_text() if mark.is_file() else uuid.uuid4().hex
        mine, *before = here.split()
        self._lock = BucketLock(self._folder, mine)
        with waiting.said(f"waiting for {url}", after=3):
            first = _led(lambda: [self._lock.acquire(), here, self._lock.number])
        first_id, self._attempt = first[1].split()[0], str(first[2])
        ours = all(peers.gather(first[0] and bool(before) and here == first[1]))
        try:
            self._begin(ours, *before)
            files.write(mark, f"{first_id} {self._attempt}")
        except BaseException:
            self._lock.release()
            raise
        self._thread = threading.Thread(target=self._work, name="mirror", daemon=True)
        self._thread.start()

    def _begin(self, ours: bool, attempt: str = "") -> None:
        """Let the directory have the bucket's checkpoints, after it has sent what is newer."""
        if self._count > 1 and ours:
            self._send_parts(attempt)
        whole = _led(lambda: list(copies.whole(self._folder).items()))
        self._whole: dict[int, copies.Files] = dict(whole)  # in the bucket
        steps = self._path / CHECKPOINTS
        if not ours:
            for entry in self._path.iterdir():
                if entry.name not in (workdir.LOCK, workdir.OUTPUT):  # others have them open
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            rest = (CHECKPOINTS, LOCK)
            names = [n for n in self._folder.names() if n.partition("/")[0] not in rest]
            self._folder.fetch((name, self._path / name) for name in names if not self._index)
            self._sent = self._small()
        elif self._count > 1:  # the parts that some have, and the others have not
            shutil.rmtree(steps, ignore_errors=True)
        there = set(steps_in(steps))
        if max(self._whole, default=-1) > max(there, default=-1):
            for step in sorted(self._whole.keys() - there):
                copies.fetch(self._folder, self._whole[step], steps / str(step))
                self._known[step] = _identity(steps / str(step))
        for step in there & self._whole.keys():
            if copies.described(steps / str(step)) == self._whole[step]:
                self._known[step] = _identity(steps / str(step))

    def _send_parts(self, attempt: str) -> None:
        """Send, with all processes, what the last start of this run has not."""
        whole = _led(lambda: list(copies.whole(self._folder)))
        steps = sorted(set(steps_in(self._path / CHECKPOINTS)) - set(whole))
        for step in steps:
            path = self._path / CHECKPOINTS / str(step)
            copies.send_part(self._folder, path, self._index, attempt)
        if self._index == 0:
            self._send_small()
        peers.gather(None)
        for step in steps if self._index == 0 else ():
            if found := copies.parts(self._folder, step, self._count, attempt):
                copies.mark(self._folder, str(step), found)

    def scalars(self) -> dict[str, float]:
        """Return `run/bucket_lag_steps`, by which the bucket's newest checkpoint is behind.

        Raises UserError: another process has taken the run over.
        """
        if self._lock.lost:
            raise UserError(
                f"{self._url} was taken over by {self._lock.lost} while it did not answer here; "
                "this process ends"
            )
        newest = max(steps_in(self._path / CHECKPOINTS), default=0)
        return {"run/bucket_lag_steps": float(newest - max(self._whole, default=0))}

    def complete(self, step: int) -> None:
        """Let the directory have a whole checkpoint, where it has this process's part of it."""
        if self._count == 1:
            return
        while step not in (whole := dict(_led(lambda: list(self._whole.items())))):
            if self._failed.is_set():
                raise RemoteError(f"{self._url} has no checkpoint of step {step}")
            time.sleep(_LOOK)
        path = self._path / CHECKPOINTS / str(step)
        copies.fetch(self._folder, whole[step], path)
        self._known[step] = _identity(path)

    def close(self, limit: float) -> str:
        """Send what is left for so many seconds; returns "", or what has not reached the bucket."""
        self._closing.set()
        with waiting.said(f"sending to {self._url}", after=30):
            self._thread.join(limit)
        over = not self._thread.is_alive() and not self._failed.is_set()
        self._failed.set()  # no pass after this
        self._lock.release()
        if over:
            return ""
        at = f"the checkpoint of step {max(self._whole)}" if self._whole else "no checkpoint"
        why = self._away or self._lock.lost or "too slow"
        return f"{self._url} has {at}, {self._path} has all ({why})"

    def _work(self) -> None:
        """Pass over the directory again and again; after `close` until nothing is left."""
        small = 0.0
        while not self._failed.is_set() and not self._lock.lost:
            closing = self._closing.is_set()
            try:
                due = closing or time.monotonic() - small > _SMALL
                done = self._pass()
                if due and self._index == 0:
                    self._send_small(last=done)
                    small = time.monotonic()
                if self._away:
                    _log.warning("%s answers again", self._url)
                    self._away = ""
                if closing and done:
                    return
            except (RemoteError, OSError) as error:  # OSError: a checkpoint is deleted meanwhile
                if isinstance(error, RemoteError) and not self._away:
                    what = "checkpoints stay here and go later"
                    _log.warning("%s; %s: %s", error, what, self._path)
                    self._away = str(error)
                self._failed.wait(_PAUSE if self._away else _LOOK)
                continue
            (self._failed if self._closing.is_set() else self._closing).wait(_LOOK)
        self._failed.set()

    def _pass(self) -> bool:
        """Send the checkpoints that are new; returns whether none is left."""
        self._check_lock()
        saved = self._path / CHECKPOINTS
        found = {step: _identity(saved / str(step)) for step in steps_in(saved)}
        waits = [step for step, identity in found.items() if self._known.get(step) != identity]
        done = True
        for step in reversed(waits):  # a bucket that is slow skips some
            sent = self._send_one(saved / str(step), found[step])
            if sent is not None and self._index == 0:
                self._send_small()
                self._check_lock()
                copies.mark(self._folder, str(step), sent)
                self._whole[step] = sent
            if sent is None:
                done = False
            else:
                self._known[step] = found[step]
        if self._index == 0 and self._whole.keys() & found.keys():
            for step in sorted(self._whole.keys() - found.keys()):
                copies.remove(self._folder, step)
                del self._whole[step]
        return done

    def _send_one(self, path: Path, identity: "_Identity") -> copies.Files | None:
        """Send a checkpoint or this process's part; returns its files, None if others' lack."""
        if self._count == 1:
            return copies.send(self._folder, path)
        step = int(path.name)
        if self._parts.get(step) != identity:
            copies.send_part(self._folder, path, self._index, self._attempt)
            self._parts[step] = identity
        return {} if self._index else copies.parts(self._folder, step, self._count, self._attempt)

    def _check_lock(self) -> None:
        if self._index == 0 and not self._lock.is_held():
            raise RemoteError(f"{self._url} does not answer")

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


_Identity = tuple[int, int]


def _identity(path: Path) -> _Identity:
    """Return what tells a checkpoint from one that takes its place."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns


def _led(do: Callable[[], Any]) -> Any:
    """Return what `do` returns in process 0, JSON, in all processes, or raise its error there."""
    value, failure = None, None
    try:
        value = do() if jax.process_index() == 0 else None
    except UserError as error:
        failure = error
    if jax.process_count() > 1:
        value, told = peers.gather([value, str(failure or "")])[0]
        failure = failure or (UserError(told) if told else None)
    if failure is not None:
        raise failure
    return value
