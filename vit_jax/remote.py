# SPDX-License-Identifier: Apache-2.0
"""Files on disk and in buckets by one name: DIR/a.tar, gs://, s3://, hf:// and https:// addresses.

The drivers are fsspec's, an extra each. A read that fails for a moment is tried again with growing
pauses; what stays wrong is one line that names the address.
"""

import functools
import glob as local_glob
import os
import random
import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from vit_jax.errors import IO_ERROR, UserError, shown

T = TypeVar("T")

# What to install for an address that starts so; None is part of fsspec or of the package.
_EXTRA = {"gs": "gcs", "s3": "s3", "hf": "hub", "https": "http", "http": "http"}
SCHEMES = tuple(_EXTRA)
_ADDRESS = re.compile(r"([a-z][a-z0-9+]*)://")

# Tries of one request, and the seconds before the second; each pause is twice the one before.
TRIES, _FIRST_PAUSE = 6, 0.25
# Errors that no second try changes.
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, UserError)


class RemoteError(UserError):
    """A bucket or a server does not answer, or refuses."""

    status = IO_ERROR


class FileInfo(NamedTuple):
    """What a listing says of one file."""

    path: str  # with its scheme, as `read` takes it
    size: int  # in bytes
    version: str  # changes with the content: an etag, a generation, or the time of the last change


def scheme(path: str) -> str:
    """Return "gs" of "gs://bucket/name", "" of a path of this machine.

    Raises UserError: an address of a kind that is not read here.
    """
    found = _ADDRESS.match(path)
    if found is None:
        return ""
    if found[1] not in SCHEMES:
        kinds = ", ".join(f"{name}://" for name in SCHEMES)
        raise UserError(f"{shown(path)}: {found[1]}:// is not read here; use a path or {kinds}")
    return found[1]


def is_remote(path: str) -> bool:
    """Return whether a name is an address and no path of this machine."""
    return bool(scheme(path))


def filesystem(path: str) -> Any:
    """Return fsspec's file system for an address; raises UserError: its driver is not installed."""
    return _driver(scheme(path))


@functools.cache
def _driver(kind: str) -> Any:
    import fsspec  # late: most runs read no bucket

    try:
        return fsspec.filesystem(kind)
    except ImportError as error:
        raise UserError(
            f"{kind}:// needs {error.name or 'a driver'}: pip install 'vitjax[{_EXTRA[kind]}]'"
        ) from None


def trying(path: str, do: Callable[[], T]) -> T:
    """Return `do()`, tried again where the network or the server failed for a moment.

    Raises RemoteError: no right to read, nothing there, or no answer after all tries.
    """
    for attempt in range(TRIES):
        try:
            return do()
        except _FINAL as error:
            raise _final(path, error) from error
        except Exception as error:  # each driver has kinds of its own
            if attempt == TRIES - 1:
                why = " ".join(str(error).split())[:200] or type(error).__name__
                raise RemoteError(
                    f"{shown(path)}: no answer after {TRIES} tries ({why})"
                ) from error
            # Many threads fail together; they should not come back together.
            time.sleep(_FIRST_PAUSE * 2**attempt * random.uniform(0.5, 1.5))
    raise AssertionError


def _final(path: str, error: Exception) -> Exception:
    if isinstance(error, UserError):
        return error
    if isinstance(error, PermissionError):
        return RemoteError(
            f"{shown(path)}: no right to do this; log in as the driver of {scheme(path)}:// asks"
        )
    return RemoteError(f"{shown(path)}: there is no such file")


def info(path: str) -> FileInfo:
    """Return size and version of one file; raises RemoteError, or OSError for a local one."""
    if not is_remote(path):
        found = os.stat(path)
        return FileInfo(path, found.st_size, str(found.st_mtime_ns))
    driver = filesystem(path)
    return _info(path, trying(path, lambda: driver.info(path)))


def _info(path: str, facts: dict[str, Any]) -> FileInfo:
    keys = ("generation", "etag", "ETag", "md5Hash", "blob_id", "mtime", "updated", "LastModified")
    version = next((str(facts[key]) for key in keys if facts.get(key)), "")
    return FileInfo(path, int(facts["size"] or 0), version)


def find(pattern: str) -> list[FileInfo]:
    """List the files of a pattern with *, ?, [] and braces, "{000..146}" or "{a,b}", by name.

    A pattern of an https:// address may hold braces alone: a server lists nothing.

    Raises RemoteError: the listing fails, or UserError: no driver.
    """
    found: dict[str, FileInfo] = {}
    for each in braces(pattern):
        kind = scheme(each)
        if not kind:
            names = local_glob.glob(os.path.expanduser(each), recursive=True)
            found |= {name: info(name) for name in names if os.path.isfile(name)}
        elif not re.search(r"[*?[]", each):
            found[each] = info(each)
        else:
            driver = filesystem(each)
            listed = trying(each, functools.partial(driver.glob, each, detail=True))
            files = {f"{kind}://{name}": f for name, f in listed.items() if f["type"] == "file"}
            found |= {name: _info(name, facts) for name, facts in files.items()}
    return [found[name] for name in sorted(found)]


def braces(pattern: str) -> list[str]:
    """Expand "{000..146}" and "{a,b}" of a pattern, as a shell does."""
    match = re.search(r"\{([^{}]*)\}", pattern)
    if match is None:
        return [pattern]
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", match[1])
    if numbers:
        first, last = numbers.groups()
        width = len(first) if first.startswith("0") or len(first) == len(last) else 0
        words = [str(n).zfill(width) for n in range(int(first), int(last) + 1)]
    else:
        words = match[1].split(",")
    before, after = pattern[: match.start()], pattern[match.end() :]
    return [text for word in words for text in braces(f"{before}{word}{after}")]


def read_range(path: str, start: int, stop: int) -> bytes:
    """Read bytes start..stop-1 of a file; fewer where the file ends before.

    Raises RemoteError, or OSError for a local file.
    """
    if not is_remote(path):
        with open(path, "rb") as stream:
            return os.pread(stream.fileno(), stop - start, start)
    driver = filesystem(path)
    return trying(path, lambda: driver.cat_file(path, start=start, end=stop))


def read(path: str) -> bytes:
    """Read a whole file; raises RemoteError, or OSError for a local one."""
    if not is_remote(path):
        with open(path, "rb") as stream:
            return stream.read()
    driver = filesystem(path)
    return trying(path, lambda: driver.cat_file(path))
