# SPDX-License-Identifier: Apache-2.0
"""A look at the beginning of every image file before a run: which can be read, which are copies.

Copies are told by their content. What was seen is kept in the user's cache, by path, size and time,
so that a later look reads only what is new, and one that was interrupted goes on.
"""

import contextlib
import dataclasses
import errno
import functools
import hashlib
import json
import os
import stat
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from vit_jax.data.images import header as image_header
from vit_jax.data.sources.listing import CIRCLE, DANGLING, NO_FILE
from vit_jax.errors import MACHINE
from vit_jax.process import waiting
from vit_jax.storage import files, remote
from vit_jax.storage.files import cache_home

_SPARE = 256  # lines about deleted files that may stay in the cache
_VERSION = 1  # raise it when `header.look` changes its verdicts
T = TypeVar("T")
HEAD = 1 << 14  # bytes; another number would draw other splits for images without splits
MOST_FAR = 100_000  # with more files in a bucket, none is looked at: each is a request
CHUNK = 256  # files between two writes of the cache
_NEAR_THREADS, _FAR_THREADS = 16, 64
_GONE, _FORBIDDEN = "gone", "that may not be read"
BY_CONTENT = "(by content)"  # in the notes on copies alone
# What `kept` has made inside of `once`. Each thread has its own: two runs in one process do not end
# at the same time, and a later run must not see what an earlier one has left.
_kept: ContextVar[dict[Any, Any] | None] = ContextVar("kept", default=None)


class Seen(NamedTuple):
    """The result of a look at one file.

    Attributes:
        size: bytes; -1 if there is no file.
        stamp: the file's time of change, or its version in a bucket.
        why: why the file is no readable image, by its first bytes; "" if it seems to be one.
        head: a digest of its first `look.HEAD` bytes.
    """

    size: int
    stamp: str
    why: str
    head: str = ""

    @property
    def key(self) -> str:
        """A key that copies share, and other files hardly ever."""
        return f"{self.size} {self.head}"


@dataclasses.dataclass
class Known:
    """The cached results of earlier looks at a dataset's files, one line of JSON each."""

    name: str
    entries: dict[str, Seen] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        digest = hashlib.sha256(os.fsencode(f"{_VERSION} {self.name}")).hexdigest()[:24]
        self._file = cache_home() / "vit_jax" / "look" / f"{digest}.jsonl"
        self._lines = 0
        with contextlib.suppress(OSError):
            for line in self._file.read_bytes().splitlines():
                self._lines += 1
                with contextlib.suppress(ValueError, TypeError):  # written by two at once, or cut
                    path, *seen = json.loads(line)
                    self.entries[path] = Seen(*seen)

    def add(self, paths: Sequence[str], seen: Sequence[Seen]) -> None:
        """Append new results to the cache; if it cannot be written, do nothing."""
        lines = [
            json.dumps([path, *each])
            for path, each in zip(paths, seen, strict=True)
            if each.stamp and self.entries.get(path) != each
        ]
        if not lines:
            return
        self._lines += len(lines)
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with open(self._file, "ab", buffering=0) as file:  # appended in one write
                file.write("".join(f"\n{line}" for line in lines).encode())

    def close(self, paths: Iterable[str]) -> None:
        """Rewrite the cache if most of its lines are about deleted files."""
        paths = {*paths}
        if self._lines <= 2 * len(paths) + _SPARE:
            return
        fresh = Known(self.name)
        lines = (json.dumps([p, *each]) for p, each in fresh.entries.items() if p in paths)
        with contextlib.suppress(OSError):
            files.write(self._file, "\n".join(lines))


@contextlib.contextmanager
def once() -> Iterator[None]:
    """Let this thread look at each dataset only once, however many of its splits it opens."""
    before = _kept.get()
    token = _kept.set({} if before is None else before)
    try:
        yield
    finally:
        _kept.reset(token)


def kept(key: Hashable, make: Callable[[], T]) -> T:
    """Return `make()`; inside of `once`, return the same object for the same key."""
    found = _kept.get()
    if found is None:
        return make()
    if key not in found:
        found[key] = make()
    return found[key]


def examine(
    paths: Sequence[str], name: str, facts: Mapping[str, remote.FileInfo] | None = None
) -> list[Seen]:
    """Look at files in parallel, and show the progress.

    Args:
        paths: of files on this machine, or addresses in a bucket.
        name: the dataset's, under which the cache stores the results.
        facts: what a listing has told about addresses; each of the others takes a request.

    Returns:
        The result for each path.

    Raises OSError: the machine is at fault, not the file. RemoteError: a bucket does not answer.
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
            # From a bucket, the files of a chunk are read in parallel; from a disk the chunks are,
            # which switches threads less often.
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
    """Return how many files to read at once, by whether `path` is in a bucket."""
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
    """Return whether a file on this machine is an image, by its content and not its name."""
    with contextlib.suppress(OSError), open(path, "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        head = file.read(HEAD)
        return bool(head) and not image_header.look(head, status.st_size)
    return False


def in_a_word(why: str) -> str:
    """Return a reason's kind in words that can follow a number: "empty", "too large"."""
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


def believed(count: int, which: str = "") -> str:
    """Return the note that the images were not looked at, as `which` are not in a bucket.

    By default those are more than `MOST_FAR` images.
    """
    which = which or f"more than {MOST_FAR:,}"
    return f"nobody looked into the {count:,} images: in a bucket {which} are believed"


def places_of(root: Path | str, paths: Iterable[str]) -> list[str]:
    """Return the absolute paths, or the addresses, of files below a folder."""
    if isinstance(root, str):
        return [f"{root}/{path}".removeprefix("/") for path in paths]
    above = os.path.abspath(root)
    return [os.path.join(above, path) for path in paths]


def same_content(paths: Sequence[str], seen: Sequence[Seen], name: str) -> list[list[int]]:
    """Return groups of files with equal content, by index; a file without a copy is in none.

    Only files that agree in size and first bytes are read, and the cache keeps their digests.
    """
    alike: dict[str, list[int]] = defaultdict(list)
    for index, each in enumerate(seen):
        if not each.why and each.head:
            alike[each.key].append(index)
    groups = [members for members in alike.values() if len(members) > 1]
    short = [members for members in groups if seen[members[0]].size <= HEAD]
    longer = [index for members in groups if seen[members[0]].size > HEAD for index in members]
    if not longer:
        return short
    known = Known(f"{name}, contents")
    digest = functools.partial(_digest, kept=known.entries)
    by_content: dict[str, list[int]] = defaultdict(list)
    with (
        waiting.counted(f"comparing images of {name} that may be copies", len(longer)) as done,
        ThreadPoolExecutor(threads_for(paths[longer[0]])) as pool,
    ):
        for at in range(0, len(longer), CHUNK):
            chunk = longer[at : at + CHUNK]
            near = [paths[i] for i in chunk]
            found = list(pool.map(digest, near, [seen[i] for i in chunk]))
            known.add(near, found)
            for index, each in zip(chunk, found, strict=True):
                by_content[each.key if each.head else f"?{index}"].append(index)
            done(len(chunk))
    known.close([paths[i] for i in longer])
    return short + [members for members in by_content.values() if len(members) > 1]


def _digest(path: str, seen: Seen, kept: Mapping[str, Seen]) -> Seen:
    before = kept.get(path)
    if before and (before.size, before.stamp) == (seen.size, seen.stamp):
        return before
    try:
        if remote.is_remote(path):
            digest = hashlib.blake2b(remote.read(path), digest_size=16).hexdigest()
        else:
            with open(path, "rb") as file:
                digest = hashlib.file_digest(file, _blake).hexdigest()
    except (OSError, remote.MissingError, remote.ForbiddenError):
        return Seen(seen.size, "", "", "")
    return Seen(seen.size, seen.stamp, "", digest)


def _blake() -> Any:
    return hashlib.blake2b(digest_size=16)


def copies_told(
    groups: Iterable[Sequence[int]],
    names: Sequence[str],
    splits: Sequence[str],
    classes: Sequence[str],
) -> list[str]:
    """Return notes on images that occur more than once: in two splits, in two classes, in one.

    Args:
        groups: indices of images with equal content.
        names: of all images, as messages show them.
        splits: of all images; "" if splits are drawn, since a draw keeps copies together.
        classes: of all images; "" for no label.
    """
    across: dict[tuple[str, ...], list[str]] = defaultdict(list)
    classed: list[str] = []
    twice: list[str] = []
    for members in groups:
        members = sorted(members, key=lambda i: names[i])
        first = [names[i] for i in members]
        of_split = {splits[i]: names[i] for i in reversed(members)}
        of_class = {classes[i]: names[i] for i in reversed(members) if classes[i]}
        if len(of_split) > 1:
            across[tuple(sorted(of_split))].append(" = ".join(sorted(of_split.values())))
        if len(of_class) > 1:
            classed.append(" = ".join(sorted(of_class.values())))
        if len({(splits[i], classes[i]) for i in members}) < len(members):
            twice.append(" = ".join(first[:2]))
    found = [
        f"{_images(pairs)} in {' and in '.join(where)} {BY_CONTENT}, first: {min(pairs)}"
        for where, pairs in sorted(across.items())
    ]
    if classed:
        have = f"{len(classed):,} images have" if len(classed) > 1 else "1 image has"
        found.append(f"{have} two classes or more {BY_CONTENT}, first: {min(classed)}")
    if twice:
        times = "there twice or more in a class" if any(classes) else "there twice or more"
        are = f"{len(twice):,} images are" if len(twice) > 1 else "1 image is"
        found.append(f"{are} {times} {BY_CONTENT}, first: {min(twice)}")
    return found


def _images(pairs: Sequence[str]) -> str:
    return f"{len(pairs):,} images lie" if len(pairs) > 1 else "1 image lies"
