# SPDX-License-Identifier: Apache-2.0
"""The lock of a folder in a bucket: an object that one process creates and keeps changing.

Each owner creates the object of the next number, on condition that there is none; the highest is
the lock. The owner rewrites it every `BEAT` seconds. One that has not changed for `LEASE` seconds
was left by a dead process. It is taken over at once from the same staging directory on the same
host: the lock of that directory, which the kernel frees, shows that no process there lives.
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
    """Holds a folder of a bucket for a staging directory, by a thread of its own."""

    def __init__(self, folder: Folder, staging: str) -> None:
        """Take the identity of a directory whose own lock is held."""
        self._folder, self.staging = folder, staging
        self.number = 0  # of the lock's object, another one for each owner
        self._beat = 0
        self._confirmed = self._asked = 0.0
        self._asking = threading.Lock()
        self._follows = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True, name="bucket-lock")
        self.lost = ""  # who has taken it over

    def acquire(self) -> bool:
        """Take the lock; returns whether this directory was also the last to have it.

        Where it was not, it gets another identity, `staging`: killed before it has become what the
        bucket has, it must not look like that afterwards.

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
        """Let `is_held` tell of a lock that another process of the same run has acquired."""
        self.number, self._follows = number, True

    def is_held(self) -> bool:
        """Return whether no other run can have taken it over; asks the bucket if need be."""
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
        """Let the next one have it at once, or after `LEASE`: where the bucket does not answer.

        With `expire` it is after `LEASE` too: requests may be under way that change the folder.
        """
        self._over.set()
        if self._thread.ident is None:  # never acquired
            return
        self._thread.join(BEAT)  # a request without an answer takes minutes
        with contextlib.suppress(RemoteError):
            if self._is_confirmed() and not (expire or self._thread.is_alive()):
                self._folder.write(self._name(self.number), self._said(held=False))

    def _keep(self) -> None:
        while not self._over.wait(BEAT) and not self.lost:
            with contextlib.suppress(Exception):  # away, or worse: the lock may expire meanwhile
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
        """Watch another's lock until it is free; raises UserError: its owner lives."""
        seen = asked = time.monotonic()
        while asked - seen < LEASE:  # an answer that is late tells what was when it was asked
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
            except RemoteError:  # a new owner has removed it meanwhile
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
    """Return who holds a folder, "" for nobody; to be `sure`, watch whether its owner lives."""
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
