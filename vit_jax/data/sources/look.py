# SPDX-License-Identifier: Apache-2.0
"""A look at the beginning of every image file before a run: which can be read, which are copies.

What was seen is kept in the user's cache, by path, size and time, so that a later look asks for
these alone, and one that was interrupted goes on.
"""

import contextlib
import errno
import functools
import hashlib
import os
import stat
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

from vit_jax.data.images import header as image_header
from vit_jax.data.sources.listing import CIRCLE, DANGLING, NO_FILE
from vit_jax.data.sources.look_cache import Known, Seen
from vit_jax.errors import MACHINE
from vit_jax.process import waiting
from vit_jax.storage import remote

T = TypeVar("T")

HEAD = 1 << 14  # bytes; changed, it would divide images anew that have no splits
MOST_FAR = 100_000  # files in a bucket that are looked at: each is a request
CHUNK = 256  # files, after which the cache is written
_NEAR_THREADS, _FAR_THREADS = 16, 64
_GONE, _FORBIDDEN = "gone", "that may not be read"


# Inside of `once`. Of each thread its own: two runs in one process do not end together, and what
# one has left would be all that later ones see.
_kept: ContextVar[dict[Any, Any] | None] = ContextVar("kept", default=None)


@contextlib.contextmanager
def once() -> Iterator[None]:
    """Look at each dataset once, however many of its splits are opened inside, by this thread."""
    before = _kept.get()
    token = _kept.set({} if before is None else before)
    try:
        yield
    finally:
        _kept.reset(token)


def kept(key: Hashable, make: Callable[[], T]) -> T:
    """Return what `make` makes, inside of `once` the same for the same key."""
    found = _kept.get()
    if found is None:
        return make()
    if key not in found:
        found[key] = make()
    return found[key]


def examine(
    paths: Sequence[str], name: str, facts: Mapping[str, remote.FileInfo] | None = None
) -> list[Seen]:
    """Look at files in parallel, with a line or a bar about how far it is.

    Args:
        paths: of this machine, or addresses.
        name: of the dataset, under which the cache keeps what was seen.
        facts: of addresses, what a listing has told; what is not in it is asked for.

    Returns:
        What was seen of each.

    Raises OSError: the machine has a fault, not the file. RemoteError: a bucket does not answer.
    """
    if not paths:
        return []
    known = Known(name)
    see = functools.partial(_see, kept=known.entries, facts=facts or {})
    chunks = [list(paths[at : at + CHUNK]) for at in range(0, len(paths), CHUNK)]
    far = remote.is_remote(paths[0])
    found: list[Seen] = []
    with (
        waiting.counted(f"looking at the images of {name}", len(paths)) as done,
        ThreadPoolExecutor(threads_for(paths[0])) as pool,
    ):
        try:
            # Of a bucket the files of a chunk side by side, of a disk the chunks: less to switch.
            if far:
                for chunk in chunks:
                    found += pool.map(see, chunk)
                    known.add(chunk, found[-len(chunk) :])
                    done(len(chunk))
            else:
                for chunk, seen in zip(chunks, pool.map(_each(see), chunks), strict=True):
                    found += seen
                    known.add(chunk, seen)
                    done(len(chunk))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    known.close(paths)
    return found


def threads_for(path: str) -> int:
    """Return how many files are read at once where this one is."""
    return _FAR_THREADS if remote.is_remote(path) else _NEAR_THREADS


def _each(see: Callable[[str], Seen]) -> Callable[[list[str]], list[Seen]]:
    return lambda chunk: list(map(see, chunk))


def _see(path: str, kept: Mapping[str, Seen], facts: Mapping[str, remote.FileInfo]) -> Seen:
    before = kept.get(path)
    if remote.is_remote(path):
        try:
            file = facts.get(path) or remote.info(path)
            if before and (before.size, before.stamp) == (file.size, file.version):
                return before
            head = remote.read_range(path, 0, min(HEAD, file.size)) if file.size else b""
        except remote.MissingError:
            return Seen(-1, "", _GONE)
        return _judged(head, file.size, file.version)
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            why = "link to a folder" if stat.S_ISDIR(status.st_mode) else NO_FILE
            return Seen(-1, "", why)
        stamp = str(status.st_mtime_ns)
        if before and (before.size, before.stamp) == (status.st_size, stamp):
            return before
        with open(path, "rb", buffering=0) as file:
            return _judged(file.read(HEAD), status.st_size, stamp)
    except OSError as error:
        if error.errno in MACHINE:
            raise
        return Seen(-1, "", _why(path, error))


def _why(path: str, error: OSError) -> str:
    if isinstance(error, PermissionError):
        return _FORBIDDEN
    if error.errno == errno.ELOOP:
        return CIRCLE
    if isinstance(error, FileNotFoundError):
        return DANGLING if os.path.islink(path) else _GONE
    return f"unreadable: {error.strerror}"


def _judged(head: bytes, size: int, stamp: str) -> Seen:
    digest = hashlib.blake2b(head, digest_size=10).hexdigest()
    return Seen(size, stamp, image_header.look(head, size), digest)


def is_image(path: str) -> bool:
    """Return whether a file of this machine is an image, whatever its name."""
    with contextlib.suppress(OSError), open(path, "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        head = file.read(HEAD)
        return bool(head) and not image_header.look(head, status.st_size)
    return False


def in_a_word(why: str) -> str:
    """Return the kind of a reason, in words that follow a number: "empty", "too large"."""
    kinds = (
        ("empty", "empty"),
        ("HEIC", "HEIC, which is not read here"),
        ("known format", "without an image in it"),
        ("strip of more", "too long and narrow"),
        ("pixels, where", "of too many pixels"),
        ("more pixels", "of too many pixels"),
        ("pixels", "without a pixel"),
        ("MiB", "too large"),
        ("cut off", "cut off"),
        ("truncated", "cut off"),
        ("broken header", "with a broken header"),
        ("label", "without a label"),
    )
    return next((word for part, word in kinds if part in why), why)


def believed(count: int) -> str:
    """Say that nobody looked into the images."""
    most = f"in a bucket more than {MOST_FAR:,} are believed"
    return f"nobody looked into the {count:,} images: {most}"


def places_of(root: Path | str, paths: Iterable[str]) -> list[str]:
    """Return the absolute paths, or the addresses, of files below a folder."""
    if isinstance(root, str):
        return [f"{root}/{path}".removeprefix("/") for path in paths]
    above = os.path.abspath(root)
    return [os.path.join(above, path) for path in paths]
