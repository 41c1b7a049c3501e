# SPDX-License-Identifier: Apache-2.0
"""All that lies below a folder, here or in a bucket: each file once, or why it is none.

A folder in a bucket is listed once, and that listing answers for all paths in it.
"""

import dataclasses
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from vit_jax.data.account import SYSTEM
from vit_jax.data.images.header import SUFFIXES, UNREAD_SUFFIXES
from vit_jax.data.names import is_hidden
from vit_jax.data.sources.partition import ARCHIVES
from vit_jax.errors import UserError, shown
from vit_jax.storage import remote

_LINKS = 4  # most links below one another, so that a circle of links ends
FILE, FOLDER = "a file", "a folder"
# Reasons why a file is not read as an image, in words that follow a number.
NO_IMAGE = "not an image"
NO_NAME = "not named as an image"
UNREAD = "of a format that is not read here"
ARCHIVE = "archive, to be unpacked"
CIRCLE = "link in a circle"
DANGLING = "dangling link"
NO_FILE = "pipe, socket or device"
NAMELESS = "of names with // in them"
# Suffixes of files that are no images, so that no look at them is needed.
_OTHERS = (
    *(".txt", ".csv", ".tsv", ".json", ".jsonl", ".xml", ".yaml", ".yml", ".md", ".html", ".htm"),
    *(".pdf", ".doc", ".docx", ".xls", ".xlsx", ".npy", ".npz", ".pkl", ".pt", ".pth", ".h5"),
    *(".mat", ".cls", ".tar", ".parquet", ".mp4", ".mov", ".avi", ".mkv", ".webm", ".mp3", ".wav"),
    *(".py", ".ipynb", ".sh", ".log", ".cache", ".ini", ".cfg", ".url", ".lnk"),
)


@dataclasses.dataclass(frozen=True)
class RemoteFolder:
    """A folder in a bucket, with the methods of `Path` that `folders` calls."""

    address: str
    inside: dict[str, dict[str, bool]]  # by address: the names in it, and whether each is a folder
    below: tuple[remote.FileInfo, ...] = ()  # all files

    @classmethod
    def open(cls, address: str) -> "RemoteFolder":
        """List all below an address; raises RemoteError, or UserError: it is a web server's."""
        if remote.scheme(address).startswith("http"):
            advice = "a server lists nothing; name the files in a table, csv:https://..."
            raise UserError(f"folder:{shown(address)}: {advice}")
        address = address.rstrip("/")
        inside: dict[str, dict[str, bool]] = {address: {}}
        below = tuple(f for f in remote.find(f"{address}/**") if not f.path.endswith("/"))
        for file in below:
            path, is_folder = file.path, False
            while len(path) > len(address):
                above, _, name = path.rpartition("/")
                names = inside.setdefault(above, {})
                if names.get(name):  # a file may have the name of a folder
                    break
                names[name] = is_folder
                path, is_folder = above, True
        return cls(address, inside, below)

    def walk(self) -> Iterator[tuple[str, bool]]:
        """Yield the paths of all files and folders below, and whether each is a folder."""
        seen: set[str] = set()
        for file in self.below:
            path = file.path.removeprefix(f"{self.address}/")
            above = path
            while above := above.rpartition("/")[0]:
                if above in seen:
                    break
                seen.add(above)
                yield above, True
            yield path, False

    def __truediv__(self, name: str) -> "RemoteFolder":
        return RemoteFolder(f"{self.address}/{name}".rstrip("/"), self.inside)

    def __str__(self) -> str:
        return self.address

    def is_absolute(self) -> bool:
        """Return True: messages write the address unchanged."""
        return True

    def is_dir(self) -> bool:
        """Return whether the folder holds anything."""
        return bool(self.inside.get(self.address))

    def folders(self) -> list[str]:
        """Return the names of the folders in it."""
        return [name for name, is_folder in self.inside.get(self.address, {}).items() if is_folder]

    def files(self) -> list[str]:
        """Return the names of the files in it."""
        names = self.inside.get(self.address, {}).items()
        return [name for name, is_folder in names if not is_folder]


class Listing(NamedTuple):
    """The files and folders below a folder, by relative paths with "/" as separator.

    Attributes:
        images: files with the name of an image.
        unnamed: files whose name does not tell whether they are images.
        others: (reason, path) of all other files.
        folders: all folders that are not hidden.
    """

    images: list[str]
    unnamed: list[str]
    others: list[tuple[str, str]]
    folders: list[str]


def list_all(root: Path | RemoteFolder) -> Listing:
    """List a folder and all folders below it; raises OSError: one of them cannot be read."""
    listing = Listing([], [], [], [])
    entries = _far(root) if isinstance(root, RemoteFolder) else _near(root)
    for path, kind in entries:
        parts = path.split("/")
        if any(map(is_hidden, parts)):
            listing.others.extend([(SYSTEM, path)] if kind is not FOLDER else [])
        elif not all(parts):  # in a bucket
            listing.others.extend([(NAMELESS, path)] if kind is not FOLDER else [])
        elif kind is FOLDER:
            listing.folders.append(path)
        elif kind is not FILE:
            listing.others.append((kind, path))
        elif why := _by_name(path):
            listing.others.append((why, path))
        else:
            named = path.lower().endswith(SUFFIXES)
            (listing.images if named else listing.unnamed).append(path)
    return listing


def _by_name(path: str) -> str:
    """Return why a file is no image, by its name; "" if the name does not tell."""
    lowered = path.lower()
    if lowered.endswith(SUFFIXES):
        return ""
    if lowered.endswith(UNREAD_SUFFIXES):
        heic = lowered.endswith((".heic", ".heif", ".hif"))
        return "HEIC, which is not read here" if heic else UNREAD
    if lowered.endswith((*ARCHIVES, ".tar")):
        return ARCHIVE
    return NO_IMAGE if lowered.endswith(_OTHERS) else ""


def _far(root: RemoteFolder) -> Iterator[tuple[str, str]]:
    for path, is_folder in root.walk():
        yield path, FOLDER if is_folder else FILE


def _near(root: Path) -> Iterator[tuple[str, str]]:
    """Yield (path, kind) of everything below a folder, links followed; kind may be a reason."""
    status = os.stat(root)
    waiting: list[tuple[str, tuple[tuple[int, int], ...], int]]
    waiting = [("", ((status.st_dev, status.st_ino),), 0)]
    while waiting:
        before, above, links = waiting.pop()
        try:
            with os.scandir(root / before) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError:
            if not any(is_hidden(part) for part in before.split("/")):
                raise
            yield before, SYSTEM
            continue
        for entry in entries:
            path = f"{before}/{entry.name}" if before else entry.name
            is_link = entry.is_symlink()
            # A link that is named as an image counts as a file: following a million links over a
            # network takes minutes. The later look at the file sees what it is.
            if is_link and entry.name.lower().endswith(SUFFIXES):
                yield path, FILE
            elif _is_folder(entry):
                status = os.stat(entry.path)
                place = (status.st_dev, status.st_ino)
                if is_link and (place in above or links == _LINKS):
                    yield path, CIRCLE
                    continue
                yield path, FOLDER
                waiting.append((path, (*above, place), links + is_link))
            else:
                yield path, _kind(entry, is_link)


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _kind(entry: "os.DirEntry[str]", is_link: bool) -> str:
    if not is_link:
        return FILE if entry.is_file() else NO_FILE
    try:
        return FILE if stat.S_ISREG(os.stat(entry.path).st_mode) else NO_FILE
    except FileNotFoundError:
        return DANGLING
    except OSError as error:
        return CIRCLE if error.errno == errno.ELOOP else DANGLING
