# SPDX-License-Identifier: Apache-2.0
"""The lock of a folder in a bucket: an object that one process creates and keeps changing.

An owner creates the object with the next number, which the bucket refuses if it exists; the object
with the highest number is the lock. The owner rewrites it every `BEAT` seconds. If it has not
changed for `LEASE` seconds, its owner is dead and another process may take it over. A process with
the same staging directory on the same host need not wait: it holds that directory's file lock,
which the kernel frees when its owner dies.
"""

import contextlib
import json
import os
import re
import socket
import threading
import time
import uuid
from typing import Any, NamedTuple

from vit_jax.errors import UserError
from vit_jax.storage import foreign
from vit_jax.storage.bucket import Folder
from vit_jax.storage.remote import RemoteError

NAME = ".lock"
_NAMED = re.compile(rf"{re.escape(NAME)}/[0-9]{{1,18}}")
BEAT, LEASE = 5.0, 20.0


class _Held(NamedTuple):
    number: int
    said: dict[str, Any]


class BucketLock:
    """Locks a folder of a bucket for a staging directory; a thread keeps the lock alive."""

    def __init__(self, folder: Folder, staging: str) -> None:
        """Prepare to lock `folder` for the identity of a staging directory that is locked."""
        self._folder, self.staging = folder, staging
        self.number = 0  # the number of the lock's object; each owner has another
        self._beat = 0
        self._confirmed = self._asked = 0.0
        self._asking = threading.Lock()
        self._follows = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True, name="bucket-lock")
        self.lost = ""  # the process that took the lock over

    def acquire(self) -> bool:
        """Take the lock; return whether the last owner had this staging directory too.

        If not, the directory gets a new identity, `staging`. Its files are not yet the bucket's: a
        process that is killed before they are must not look like the bucket's last owner.

        Raises UserError: another process holds it, or RemoteError.
        """
        while True:
            last = self._newest()
            ours = last is not None and last.said["staging"] == self.staging
            if last is not None:
                here = ours and last.said["host"] == socket.gethostname()
                if last.said["held"] and not here:
                    self._await_end(last)
                self.staging = self.staging if ours else uuid.uuid4().hex
            self.number = 1 if last is None else last.number + 1
            now = time.monotonic()
            if self._folder.create(self._name(self.number), self._said(held=True)):
                break
        self._confirmed = now
        self._folder.remove([self._name(last.number)] if last is not None else [])
        self._thread.start()
        return ours

    def follow(self, number: int) -> None:
        """Watch the lock `number`, which another process of the same run has acquired."""
        self.number, self._follows = number, True

    def is_held(self) -> bool:
        """Return whether no other run can have taken the lock over; ask the bucket if need be."""
        with self._asking:  # many threads want to know
            known = max(self._confirmed, self._asked)
            if not self.lost and time.monotonic() - known > LEASE / 2:
                with contextlib.suppress(RemoteError):
                    self._confirm()
                self._asked = time.monotonic()
        return not self._over.is_set() and self._is_confirmed()

    def _is_confirmed(self) -> bool:
        return not self.lost and time.monotonic() - self._confirmed < LEASE

    def release(self, *, expire: bool = False) -> None:
        """Free the lock at once, or let it expire after `LEASE` if the bucket does not answer.

        With `expire`, always let it expire: requests that change the folder may be under way.
        """
        self._over.set()
        if self._thread.ident is None:  # never acquired
            return
        self._thread.join(BEAT)  # no longer: a request without an answer takes minutes
        with contextlib.suppress(RemoteError):
            if self._is_confirmed() and not (expire or self._thread.is_alive()):
                self._folder.write(self._name(self.number), self._said(held=False))

    def _keep(self) -> None:
        while not self._over.wait(BEAT) and not self.lost:
            with contextlib.suppress(Exception):  # no answer: the lock may expire
                self._confirm()

    def _confirm(self) -> None:
        now = time.monotonic()
        newest = self._newest()
        if newest is None or newest.number != self.number:
            self.lost = _holder(newest)
            return
        if not self._follows:
            self._folder.write(self._name(self.number), self._said(held=True))
        self._confirmed = now

    def _await_end(self, last: _Held) -> None:
        """Wait until another owner's lock is free; raises UserError: that owner is alive."""
        seen = asked = time.monotonic()
        while asked - seen < LEASE:  # an answer is as old as its request
            time.sleep(BEAT / 5)
            asked = time.monotonic()
            now = self._newest()
            if now != last:
                if now is None or not now.said["held"]:
                    return
                raise UserError(
                    f"workdir {self._folder.url} is in use by {_holder(now)}; wait for it, stop "
                    "it, or choose another"
                )

    def _newest(self) -> _Held | None:
        while names := [name for name in self._folder.names(NAME) if _NAMED.fullmatch(name)]:
            name = max(names, key=lambda name: int(name.rpartition("/")[2]))
            try:
                return _Held(int(name.rpartition("/")[2]), self._read(name))
            except RemoteError:  # a new owner has just removed it
                if name in self._folder.names(NAME):
                    raise
        return None

    def _read(self, name: str) -> dict[str, Any]:
        where = f"{self._folder.url}/{name}"
        said = foreign.tree(self._folder.read(name), where)
        if not {"pid", "host", "staging", "held"} <= said.keys():
            raise UserError(f"{where} is no lock of a run; delete it")
        return said

    def _said(self, *, held: bool) -> bytes:
        self._beat += 1
        who = {"pid": os.getpid(), "host": socket.gethostname(), "staging": self.staging}
        return json.dumps({**who, "held": held, "beat": self._beat}).encode()

    @staticmethod
    def _name(number: int) -> str:
        return f"{NAME}/{number:08}"


def holder(folder: Folder, *, sure: bool = False) -> str:
    """Return who holds a folder, "" for nobody; with `sure`, watch whether that owner is alive."""
    lock = BucketLock(folder, "")
    last = lock._newest()
    if last is None or not last.said["held"]:
        return ""
    try:
        if sure:
            lock._await_end(last)
            return ""
    except UserError:
        pass
    return _holder(last)


def _holder(held: _Held | None) -> str:
    return "nobody" if held is None else f"pid {held.said['pid']} on {held.said['host']}"
