# SPDX-License-Identifier: Apache-2.0
"""A workdir in a bucket: the run works in a staging directory, which a thread copies there.

A checkpoint is saved to the staging directory as on any disk. The thread then sends its files, the
metrics and other small files, and last the mark that says that the checkpoint is whole. So a new
host, which starts from the bucket, finds every log line up to the step where it continues.
"""

import contextlib
import logging
import shutil
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Set
from pathlib import Path

import jax

from vit_jax.checkpoints import DIRECTORY as CHECKPOINTS
from vit_jax.checkpoints import copies
from vit_jax.checkpoints.config import steps_in
from vit_jax.devices import hosts
from vit_jax.errors import IO_ERROR, UserError
from vit_jax.process import escapes, signals, waiting
from vit_jax.process.preemption import INTERRUPTED, Preemption
from vit_jax.storage import files, foreign
from vit_jax.storage.bucket import Folder
from vit_jax.storage.remote import RemoteError
from vit_jax.workdir import folder as workdir
from vit_jax.workdir.lock import BucketLock

_log = logging.getLogger(__name__)
# A file in each staging directory that once had what the bucket had. It holds the identity with
# which the directory held the lock, the lock's number and the number of processes.
_MARK = ".staging"
_LOOK = 1.0  # seconds between two searches for a new checkpoint
_SMALL = 30.0  # seconds between copies of the files that grow
_PAUSE = 5.0  # seconds to wait after the bucket did not answer
# Seconds to send the rest: at the end, after an error, and before a machine is taken away.
_AT_END, _AFTER_ERROR, GRACE = 600.0, 10.0, 25.0


@contextlib.contextmanager
def mirrored(url: str, path: Path, stop: Preemption) -> Iterator["Mirror"]:
    """Copy the run in `path`, which this process has locked, to the bucket at `url`.

    Raises UserError: another process uses the bucket's folder, or the bucket did not take all
    files; RemoteError.
    """
    if jax.process_index() == 0:
        print(f"{url}: the run works in {path}, and is copied from there", flush=True)
    mirror = Mirror(url, path)
    limit = _AFTER_ERROR
    try:
        yield mirror
        limit = GRACE if stop.stopped or stop.signal else _AT_END
        mirror.listen()
    finally:
        left = mirror.close(limit, lambda: mirror.told.is_set() or stop.signal is not None)
        if left and limit == _AT_END:
            refusal = UserError(left)
            refusal.status = INTERRUPTED if mirror.told.is_set() or stop.signal else IO_ERROR
            raise refusal
        if left:
            _log.warning("%s", left)


class Mirror:
    """Sends new files of a staging directory to a bucket, in a thread that `close` ends.

    Every process of a run has a mirror and a staging directory. Process 0 holds the lock, sends the
    small files, and marks a checkpoint as whole when all processes have sent their parts.
    """

    def __init__(self, url: str, path: Path) -> None:
        """Lock the bucket's folder, and fetch what it has into the staging directory."""
        self._folder, self._path, self._url = Folder(url, self._check_lock), path, url
        self._index, self._count = jax.process_index(), jax.process_count()
        self._sent: dict[str, tuple[int, int]] = {}  # of small files
        self._known: dict[int, _Identity] = {}  # checkpoints that the bucket has
        self._parts: dict[int, _Identity] = {}  # checkpoints whose part of this process is sent
        self._away = ""  # why the last round failed
        self._closing, self._failed = threading.Event(), threading.Event()
        self.told = threading.Event()  # of a SIGTERM to one of several processes, since `listen`
        self._done = False  # everything is sent
        self._still = threading.Lock()  # held while a checkpoint takes another's place
        mark = path / _MARK
        here = mark.read_text() if mark.is_file() else ""
        mine, before, count = [*(here.split() or [uuid.uuid4().hex]), "", ""][:3]
        self._lock = BucketLock(Folder(url), mine)
        with waiting.said(f"waiting for {url}", after=3):
            was_last, first, now = hosts.led(lambda: self._acquire(here))
        self._attempt = now.split()[1]
        if self._index:
            self._lock.follow(int(self._attempt))
        # With another number of processes, the parts here are not those that are needed.
        ours = all(hosts.gather(was_last and here == first and count == str(self._count)))
        try:
            self._begin(ours, before)
            files.write(mark, now)
        except BaseException:
            self._lock.release()
            raise
        self._thread = threading.Thread(target=self._work, name="mirror", daemon=True)
        self._thread.start()

    def _acquire(self, here: str) -> tuple[bool, str, str]:
        """Take the lock; return whether this directory had it last, its old and its new mark."""
        steps = steps_in(self._path / CHECKPOINTS)
        if here and steps and not self._folder.names():
            raise UserError(
                f"{self._url} is empty, and {self._path} has the run at step {steps[-1]:,}: delete "
                f"the latter to start anew, or continue it there, with --workdir={self._path}"
            )
        was_last = self._lock.acquire()
        return was_last, here, f"{self._lock.staging} {self._lock.number} {self._count}"

    def _begin(self, ours: bool, attempt: str) -> None:
        """Send checkpoints that are newer than the bucket's, then fetch the bucket's."""
        if self._count > 1 and ours:
            self._send_parts(attempt)
        whole = hosts.led(lambda: list(copies.whole(self._folder).items()))
        self._whole: dict[int, copies.Files] = dict(whole)  # in the bucket
        steps = self._path / CHECKPOINTS
        if not ours:
            for entry in sorted(self._path.iterdir()):  # `_MARK` first: it vouches for the others
                if entry.name not in (workdir.LOCK, workdir.OUTPUT):  # others have them open
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            names = [] if self._index else [*self._folder.names()]
            self._folder.fetch(
                (name, foreign.inside(self._path, name, self._url))
                for name in names  # hidden files belong to this directory alone
                if name.partition("/")[0] != CHECKPOINTS and not foreign.is_hidden(name)
            )
            self._sent = self._small()
        elif self._count > 1:  # a part may be missing on another process
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
        """Send the parts that the last start of this run did not send; all processes call it."""
        whole = hosts.led(lambda: list(copies.whole(self._folder)))
        steps = sorted(set(steps_in(self._path / CHECKPOINTS)) - set(whole))
        for step in steps:
            path = self._path / CHECKPOINTS / str(step)
            copies.send_part(self._folder, path, self._index, attempt)
        if self._index == 0:
            self._send_small()
        hosts.gather(None)
        for step in steps if self._index == 0 else ():
            if found := copies.parts(self._folder, step, self._count, attempt):
                copies.mark(self._folder, str(step), found)

    def scalars(self) -> dict[str, float]:
        """Return `run/bucket_lag_steps`: how many steps the bucket's newest checkpoint is behind.

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
        """Replace this process's part of a checkpoint by the whole checkpoint from the bucket."""
        if self._count == 1:
            return
        self.listen()
        end = time.monotonic() + _AT_END
        while step not in (whole := dict(hosts.led(lambda: list(self._whole.items())))):
            late = self._failed.is_set() or self.told.is_set() or time.monotonic() > end
            if any(hosts.gather(late)):
                raise RemoteError(f"{self._url} has no checkpoint of step {step}")
            time.sleep(_LOOK)
        path = self._path / CHECKPOINTS / str(step)
        with self._still:
            copies.fetch(self._folder, whole[step], path)
            self._known[step] = _identity(path)

    def listen(self) -> None:
        """Take SIGTERM from JAX: past the last step, several processes have none to agree on."""
        if self._count > 1:
            signals.heed({signal.SIGTERM: lambda *_: self.told.set()})

    def close(self, limit: float, told: Callable[[], bool] = lambda: False) -> str:
        """Send the rest for at most `limit` seconds; return "", or what is not in the bucket.

        Once `told()` is true, this machine is about to be taken away: 25 seconds more at most.
        """
        self._closing.set()
        end = time.monotonic() + limit
        with waiting.said(f"sending to {self._url}", after=30):
            while self._thread.is_alive() and (left := end - time.monotonic()) > 0:
                self._thread.join(min(left, _LOOK))
                if told():
                    end, told = min(end, time.monotonic() + GRACE), lambda: False
        away = self._away or "too slow"
        self._failed.set()  # no round after this, and no object
        self._lock.release(expire=self._thread.is_alive())
        if self._done:
            return ""
        at = f"the checkpoint of step {max(self._whole)}" if self._whole else "no checkpoint"
        rest = f"({away}); the same command here sends the rest"
        if self._lock.lost:
            rest = f"(taken over by {self._lock.lost})"
        return f"{self._url} has {at}, {self._path} has all {rest}"

    def _work(self) -> None:
        """Send new files in rounds; after `close`, until none is left."""
        small = 0.0
        while not self._failed.is_set() and not self._lock.lost:
            closing = self._closing.is_set()
            try:
                due = closing or time.monotonic() - small > _SMALL
                done = self._pass()
                if due and self._index == 0:
                    self._send_small(last=closing and done)
                    small = time.monotonic()
                if self._away:
                    _log.warning("%s answers again", self._url)
                    self._away = ""
                if closing and done and self._is_marked():
                    self._done = True
                    return
            except FileNotFoundError:  # a checkpoint was deleted meanwhile
                self._failed.wait(_LOOK)
                continue
            except Exception as error:  # whatever it was, the next round may succeed
                if not self._away:
                    self._away = escapes.terminal(error) or type(error).__name__
                    what = "checkpoints stay here and go later"
                    _log.warning("%s; %s: %s", self._away, what, self._path)
                self._failed.wait(_PAUSE)
                continue
            (self._failed if self._closing.is_set() else self._closing).wait(_LOOK)
        self._failed.set()

    def _is_marked(self) -> bool:
        """Return whether the newest checkpoint is whole, so that all processes can end together.

        jax kills a run if one of its processes waits a minute for another at the end.
        """
        steps = steps_in(self._path / CHECKPOINTS)
        if self._index == 0 or not steps:
            return True
        return f"{CHECKPOINTS}/{steps[-1]}.json" in self._folder.names(CHECKPOINTS)

    def _pass(self) -> bool:
        """Send the new checkpoints; return whether none is left."""
        saved = self._path / CHECKPOINTS
        with self._still:
            found = {step: _identity(saved / str(step)) for step in steps_in(saved)}
        waits = [step for step, identity in found.items() if self._known.get(step) != identity]
        missing = 0
        for step in reversed(waits):  # newest first: a slow bucket gets only some
            sent = self._send_one(saved / str(step), found[step])
            if sent is None:
                missing += 1
                continue
            if self._index == 0:
                self._send_small()
                copies.mark(self._folder, str(step), sent)
                self._whole[step] = sent
            self._known[step] = found[step]
        if self._index == 0:
            self._remove_old(found.keys(), search=missing < len(waits))
        return not missing

    def _remove_old(self, saved: Set[int], *, search: bool) -> None:
        """Delete the bucket's older checkpoints that are no longer on this disk.

        Those before the newest whole checkpoint are meant. With `search`, also look for checkpoints
        that were deleted here after only a part of them was sent.
        """
        # Damaged on this disk: the bucket's copy may be intact.
        damaged = (self._path / CHECKPOINTS).glob("*.damaged*")
        aside = {int(path.name.partition(".")[0]) for path in damaged}
        newest = max(self._whole.keys() & saved, default=-1)
        there = self._whole.keys() | (copies.steps(self._folder) if search else set())
        for step in sorted(step for step in there - saved - aside if step < newest):
            copies.remove(self._folder, step)
            self._whole.pop(step, None)

    def _send_one(self, path: Path, identity: "_Identity") -> copies.Files | None:
        """Send a checkpoint or a part; return its files, None while another part is missing."""
        if self._count == 1:
            return copies.send(self._folder, path)
        step = int(path.name)
        if self._parts.get(step) != identity:
            copies.send_part(self._folder, path, self._index, self._attempt)
            self._parts[step] = identity
        return {} if self._index else copies.parts(self._folder, step, self._count, self._attempt)

    def _check_lock(self) -> None:
        """Raise RemoteError unless this process may change the bucket; called for each object."""
        if self._failed.is_set() or not self._lock.is_held():
            raise RemoteError(f"{self._url} does not answer")

    def _send_small(self, *, last: bool = False) -> None:
        """Send the small files that changed; the mark of a finished run goes last."""
        found = self._small()
        new = [n for n, state in found.items() if self._sent.get(n) != state]
        for name in sorted(new, key=lambda name: (name == workdir.FINISHED, name)):
            if name != workdir.FINISHED or last:
                self._folder.write(name, (self._path / name).read_bytes())
                self._sent[name] = found[name]

    def _small(self) -> dict[str, tuple[int, int]]:
        """Return the time of change and the size of every visible file outside the checkpoints."""
        found = {}
        for entry in self._path.iterdir():
            below = (entry, *entry.rglob("*")) if entry.name != CHECKPOINTS else ()
            for file in (f for f in below if f.is_file()):
                name, state = str(file.relative_to(self._path)), file.stat()
                if not foreign.is_hidden(name):
                    found[name] = (state.st_mtime_ns, state.st_size)
        return found


_Identity = tuple[int, int]


def _identity(path: Path) -> _Identity:
    """Return what distinguishes a checkpoint from one that replaces it under the same name."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns
