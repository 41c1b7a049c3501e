# SPDX-License-Identifier: Apache-2.0
"""A folder of a bucket (gs://, s3://) that is written: objects appear whole or not at all."""

import contextlib
import re
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from vit_jax.errors import UserError, shown
from vit_jax.storage import foreign, remote

# Kinds whose drivers can create an object on condition that there is none.
_WRITTEN = ("gs", "s3")
_AT_ONCE = 16  # copies


def address(path: str | Path) -> str:
    """Return the address that a path is, "" for one of this machine.

    A `Path` has dropped one of the two slashes. Raises UserError: a part of it is empty or of dots.
    """
    found = re.match(rf"({'|'.join(_WRITTEN)}):/+", str(path))
    if found is None:
        return ""
    name = str(path)[found.end() :].rstrip("/")
    if name and (why := foreign.fault(name)):  # it names directories of this machine, too
        raise UserError(f"{shown(str(path))}: the name {why}; write it as gs://BUCKET/a/b")
    return f"{found[1]}://{name}"


class Folder:
    """A folder of a bucket; names are relative to it. Every method raises RemoteError."""

    def __init__(self, url: str, guard: Callable[[], None] = lambda: None) -> None:
        """Take an address such as "gs://bucket/runs/x"; UserError: its driver is not installed.

        `guard` is called before each object is written or deleted, and raises where it must not be.
        """
        self.url, self._guard = url, guard
        self._driver = remote.filesystem(url)

    def names(self, below: str = "") -> dict[str, int]:
        """Return the names of all objects, or of those below a name, with their sizes in bytes.

        Raises UserError: a name that leads out of the folder.
        """
        place = f"{self.url}/{below}".rstrip("/")
        root = f"{self.url.partition('://')[2]}/"  # the driver's names have no scheme

        def find() -> dict[str, int]:
            try:
                found = self._driver.find(place, detail=True)
            except FileNotFoundError:
                return {}
            return {
                name.removeprefix(root): int(found[name]["size"])
                for name in sorted(found)
                if name.startswith(root)
                and found[name]["type"] == "file"
                # What consoles make for an empty folder is no file.
                and not (name.endswith("/") and not found[name]["size"])
            }

        return {
            foreign.checked(n, self.url): size for n, size in remote.trying(place, find).items()
        }

    def read(self, name: str) -> bytes:
        """Read an object; there must be one, of at most `foreign.MOST` bytes."""
        return remote.read(f"{self.url}/{name}", foreign.MOST)

    def write(self, name: str, data: bytes) -> None:
        """Write an object, in place of one that is there."""
        self._change(name, lambda url: self._driver.pipe_file(url, data))

    def create(self, name: str, data: bytes) -> bool:
        """Write an object unless there is one; returns whether this very content is there.

        The bucket checks the condition (generation 0): one alone of several creators succeeds.
        """
        with contextlib.suppress(FileExistsError):  # maybe by a try whose answer was lost
            self._change(name, lambda url: self._driver.pipe_file(url, data, mode="create"))
        return self.read(name) == data

    def send(self, files: Iterable[tuple[Path, str]]) -> None:
        """Copy files to objects, many at once; raises FileNotFoundError where one is gone."""

        def put(file: Path, name: str) -> None:
            try:
                self._change(name, lambda url: self._driver.put_file(str(file), url))
            except remote.MissingError:
                if file.exists():
                    raise
                raise FileNotFoundError(file) from None

        _at_once(put, files)

    def fetch(self, names: Iterable[tuple[str, Path]]) -> None:
        """Copy objects to files, whose paths `foreign.inside` has made; many at once.

        Raises UserError: a name that leads out of the folder, or is a file's and a folder's.
        """

        def get(name: str, file: Path) -> None:
            url = f"{self.url}/{foreign.checked(name, self.url)}"
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
            except (FileExistsError, NotADirectoryError):
                raise UserError(f"{url}: above it lies a file, {file.parent}") from None
            if file.is_dir():
                raise UserError(f"{url} is a file, and there are others below it")
            remote.trying(url, lambda: self._driver.get_file(url, str(file)))

        _at_once(get, names)

    def remove(self, names: Iterable[str]) -> None:
        """Delete objects, one after the other; one that is not there is no error."""

        def delete(url: str) -> None:
            with contextlib.suppress(FileNotFoundError):
                self._driver.rm_file(url)

        for name in names:
            self._change(name, delete)

    def _change(self, name: str, do: Callable[[str], object]) -> None:
        """Call `do` with an object's address, tried again, each time after the guard."""
        url = f"{self.url}/{name}"

        def guarded() -> None:
            self._guard()
            do(url)

        remote.trying(url, guarded)


def _at_once(do: Callable[..., None], each: Iterable[tuple[Any, ...]]) -> None:
    """Call `do` with each of many arguments in threads until one raises; then raise its error.

    The threads are daemons: a process ends though a request has no answer yet.
    """
    listed, errors = list(each), []
    left = iter(listed)

    def work() -> None:
        for arguments in left:
            if errors:
                return
            try:
                do(*arguments)
            except BaseException as error:
                errors.append(error)

    count = min(_AT_ONCE, len(listed))
    threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
