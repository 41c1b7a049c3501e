# SPDX-License-Identifier: Apache-2.0
"""What a look at the files of a dataset has seen, kept in the user's cache for the next one."""

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from vit_jax.storage import files
from vit_jax.storage.files import cache_home

_SPARE = 256  # lines of files that are no more, which are left there
_VERSION = 1  # another when `image_header.look` judges otherwise


class Seen(NamedTuple):
    """What a look at one file has seen.

    Attributes:
        size: bytes; -1 where there is no file.
        stamp: its time, or its version in a bucket.
        why: why it is no image that can be read, by its beginning; "" where it seems to be one.
        head: a digest of its first `look.HEAD` bytes.
    """

    size: int
    stamp: str
    why: str
    head: str = ""

    @property
    def key(self) -> str:
        """What copies have in common, and hardly any two other files."""
        return f"{self.size} {self.head}"


@dataclasses.dataclass
class Known:
    """What was seen of a dataset's files, in the user's cache: a line of JSON each."""

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
        """Keep what is new; a cache that cannot be written keeps nothing."""
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
            with open(self._file, "ab", buffering=0) as file:  # appended in one piece
                file.write("".join(f"\n{line}" for line in lines).encode())

    def close(self, paths: Iterable[str]) -> None:
        """Write the cache anew where most of it is of files that are no more."""
        paths = {*paths}
        if self._lines <= 2 * len(paths) + _SPARE:
            return
        fresh = Known(self.name)
        lines = (json.dumps([p, *each]) for p, each in fresh.entries.items() if p in paths)
        with contextlib.suppress(OSError):
            files.write(self._file, "\n".join(lines))
