# SPDX-License-Identifier: Apache-2.0
"""A sweep in a bucket: the directory of this machine that stands for it, and what workers share.

Each run is kept in the bucket by itself (workdir/mirror.py); its staging directory lies below that
directory. Points, claims and the queue of the sweep are objects.
"""

import contextlib
import fcntl
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vit_jax.checkpoints import DIRECTORY as CHECKPOINTS
from vit_jax.errors import UserError
from vit_jax.storage import foreign
from vit_jax.storage.bucket import Folder
from vit_jax.workdir import folder as workdir
from vit_jax.workdir import lock as bucket_lock
from vit_jax.workdir.lock import BucketLock

CLAIMS, QUEUE = "claims", "queue"
# What a sweep writes in its directory, and Optuna's journal, whose lock is a link of its own.
_WRITTEN = ("manifest.jsonl", "points", "runs", CLAIMS, "queue.log", "fits.json", ".staging")
_MOST = 1 << 32  # bytes of a file that is no checkpoint's
_APART = {CHECKPOINTS, CLAIMS, QUEUE, bucket_lock.NAME}  # not a file in the directory


def opened(directory: Path) -> Path:
    """Return the directory of a sweep; of one in a bucket, with what the bucket has by now.

    Raises UserError: what is written there is a link.
    """
    path, url = workdir.resolve(directory)
    if not url:
        workdir.check_links(directory, _WRITTEN)
        return directory
    pull(path)
    return path


def pull(path: Path) -> None:
    """Fetch the small files of a sweep, or of a run, that are here shorter or not at all.

    A sweep's runs that this machine trains now are left alone: a continued one drops lines.
    """
    url = workdir.address(path)
    if not url:
        return
    folder = Folder(url)
    busy = {file.name for file in (path / CLAIMS).glob("*") if _is_locked(file)}
    sizes = {
        name: size
        for name, size in folder.names().items()
        if not (_APART | busy) & set(name.split("/")) and not foreign.is_hidden(name)
    }
    for name, size in sizes.items():
        if size > _MOST:
            raise UserError(f"{url}/{name} has {size:,} bytes; at most {_MOST:,} are fetched of it")
    here = {name: foreign.inside(path, name, url) for name in sizes}
    folder.fetch(
        (name, file)
        for name, file in here.items()
        if not file.is_file() or file.stat().st_size < sizes[name]
    )


def _is_locked(file: Path) -> bool:
    with file.open() as opened:
        return not locked(opened.fileno(), fcntl.LOCK_SH)


def locked(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Lock an open file, unless another process has; returns whether it is locked."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def send(file: Path) -> None:
    """Send a file of a sweep, or that it is gone, to where it is kept besides."""
    if url := workdir.address(file.parent):
        folder = Folder(url)
        if file.exists():
            folder.send([(file, file.name)])
        else:
            folder.remove([file.name])


@contextlib.contextmanager
def claim(place: Path, run: Path) -> Iterator[bool]:
    """Hold a run of a sweep, of all machines; yields whether nobody else does.

    A process that trains it holds it too: a run outlives its worker, and starts only once.
    """
    url = workdir.address(place)
    if not url:
        yield True
        return
    mark = place / ".staging"
    if not mark.exists():
        mark.write_text(uuid.uuid4().hex)
    lock = BucketLock(Folder(f"{url}/{CLAIMS}/{run.name}"), mark.read_text())
    try:
        lock.acquire()
    except UserError:
        yield False
        return
    try:
        yield not bucket_lock.holder(Folder(workdir.address(run)), sure=True)
        pull(run)
    finally:
        lock.release()


def holder(place: Path, run: str, *, sure: bool) -> str:
    """Return which process of any machine has claimed a run; "" where it is free.

    To be `sure` that one which says so lives takes some seconds.
    """
    url = workdir.address(place)
    return bucket_lock.holder(Folder(f"{url}/{CLAIMS}/{run}"), sure=sure) if url else ""


class Journal:
    """Optuna's journal in a bucket: each entry is the object of the next number.

    It is created on condition that there is none, so that of two writers one takes the next number.
    """

    def __init__(self, url: str) -> None:
        """Take the sweep's address."""
        self._folder = Folder(url)
        self._entries = 0
        self._logs: list[dict[str, Any]] = []

    def read_logs(self, log_number_from: int) -> list[dict[str, Any]]:
        """Return the lines from a number on."""
        for name in list(self._folder.names(QUEUE))[self._entries :]:
            where = f"{self._folder.url}/{name}"
            lines = foreign.tree(self._folder.read(name), where).get("lines")
            if not isinstance(lines, list) or not all(isinstance(line, dict) for line in lines):
                raise UserError(f"{where} is no entry of a sweep's queue; delete the queue there")
            self._logs += lines
            self._entries += 1
        return self._logs[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Add lines at the end."""
        entry = json.dumps({"by": uuid.uuid4().hex, "lines": logs}).encode()
        while not self._folder.create(f"{QUEUE}/{self._entries:08}.json", entry):
            self.read_logs(0)
