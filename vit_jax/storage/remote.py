# SPDX-License-Identifier: Apache-2.0
"""Files on disk and in buckets by one name: DIR/a.tar, gs://, s3://, hf:// and https:// addresses.

A name may have braces, as shells have them: {000..146}, {a,b}. The drivers are fsspec's, an extra
each; ranges of gs://, s3:// and https:// files are read without them, for a quarter to two fifths
of the CPU time. A request that fails for a moment is tried again with growing pauses, by the driver
where it does so itself; what stays wrong is one line that names the address.
"""

import functools
import glob as local_glob
import logging
import os
import random
import re
import ssl
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from vit_jax.errors import IO_ERROR, DataError, UserError, install, shown
from vit_jax.storage import connections, foreign

T = TypeVar("T")
_TRIES = 6
_PUBLIC = "the file must be public, or the address signed"
_ADDRESS = re.compile(r"([a-z][a-z0-9+]*)://")
# Seconds before the second try; each pause is twice the one before.
_FIRST_PAUSE = 0.5
# Connections of a process, as many as aiohttp's.
_CONNECTIONS = 100
# Seconds that a signed address is valid, and after which it is signed again: credentials that a
# machine is lent are renewed a quarter of an hour before they end.
_SIGNED_FOR, _SIGN_EVERY = 3600, 600


def braces(pattern: str) -> list[str]:
    """Expand "{000..146}" and "{a,b}" of a pattern, as a shell does."""
    match = re.search(r"\{([^{}]*)\}", pattern)
    if match is None:
        return [pattern]
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", match[1])
    if numbers:
        first, last = numbers.groups()
        is_padded = any(re.match(r"0\d", end) for end in numbers.groups())
        width = max(len(first), len(last)) if is_padded else 0
        words = [str(n).zfill(width) for n in range(int(first), int(last) + 1)]
    else:
        words = match[1].split(",")
    before, after = pattern[: match.start()], pattern[match.end() :]
    return [text for word in words for text in braces(f"{before}{word}{after}")]


class _Kind(NamedTuple):
    """What differs between the kinds of addresses."""

    extra: str  # what to install, vitjax[extra]
    login: str  # what to do without rights
    tries: int = _TRIES  # of one request; 1 where the driver tries again itself, for half a minute


_KINDS = {
    "gs": _Kind("gcs", "run `gcloud auth application-default login`", tries=1),
    "s3": _Kind("s3", "run `aws configure`, or set FSSPEC_S3_ANON=true for a public bucket"),
    "hf": _Kind("hub", "run `hf auth login`, or set HF_TOKEN", tries=1),
    "https": _Kind("http", _PUBLIC),
    "http": _Kind("http", _PUBLIC),
}
SCHEMES = tuple(_KINDS)


class RemoteError(UserError):
    """A bucket or a server does not answer, or refuses."""

    status = IO_ERROR


class MissingError(RemoteError, DataError):
    """There is no such file, or no such bucket; an image that is gone is an unreadable one."""


class ForbiddenError(RemoteError):
    """No right to do this; many stores answer so to what is not there if they may not list it."""


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
    """Return fsspec's file system for an address; raises UserError: its driver is not installed.

    It serves all threads of a process; a forked one gets its own.
    """
    return _driver(scheme(path), os.getpid())


@functools.cache
def _driver(kind: str, _process: int) -> Any:
    # Otherwise gcsfs asks each bucket for its layout, by gRPC, and waits where that is refused.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    try:
        import fsspec  # late: most runs read no bucket

        driver = fsspec.filesystem(kind, **_options(kind))
    except ImportError as error:
        lacks, extra = error.name or "a driver", _KINDS[kind].extra
        raise UserError(f"{kind}:// needs {lacks}: {install(extra)}") from None
    if kind == "s3":
        driver.retries = 1  # `trying` does it
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # tracebacks of what is raised anyway
    return driver


def _options(kind: str) -> dict[str, Any]:
    """Return what a driver is made with: timeouts, proxies, no cached listings."""
    if kind == "hf":
        return {}
    if kind == "s3":
        times = {"connect_timeout": connections.CONNECT, "read_timeout": connections.SILENCE}
        once = {"retries": {"total_max_attempts": 1}, "max_pool_connections": _CONNECTIONS}
        return {"use_listings_cache": False, "config_kwargs": times | once}
    import aiohttp

    timeout = aiohttp.ClientTimeout(
        total=None, sock_connect=connections.CONNECT, sock_read=connections.SILENCE
    )
    proxies = {"trust_env": True}
    if kind != "gs":
        return {"client_kwargs": {"timeout": timeout, **proxies}}
    token = "anon" if os.environ.get("STORAGE_EMULATOR_HOST") else None
    rest = {"session_kwargs": proxies, "requests_timeout": timeout, "token": token}
    return {"use_listings_cache": False, "project": "", **rest}


def trying(path: str, do: Callable[[], T], tries: int = 0) -> T:
    """Return `do()`, tried again where the network or the server failed for a moment.

    `tries` is 0 for what the driver does, which may try again itself.

    Raises MissingError: nothing there; ForbiddenError: no right; RemoteError: no answer after all
    tries; FileExistsError and UserError as they come.
    """
    kind = _KINDS[scheme(path)]
    tries = tries or kind.tries
    for attempt in range(tries):
        try:
            return do()
        except (UserError, FileExistsError):
            raise
        except Exception as error:  # each driver has kinds of its own
            status = _status(error)
            if status in (404, 410):
                raise MissingError(f"{shown(path)}: there is no such file or bucket") from error
            if status in (401, 403):
                why = f"{shown(path)}: no right to do this; {kind.login}"
                raise ForbiddenError(why) from error
            if 400 <= status < 500 and status not in (408, 425, 429):
                why = f"the server refuses ({_text(error)})"
            elif attempt == tries - 1:
                why = f"no answer after several tries ({_text(error)})"
            else:  # many threads fail together; they should not come back together
                time.sleep(_FIRST_PAUSE * 2**attempt * random.uniform(0.5, 1.5))
                continue
            raise RemoteError(f"{shown(path)}: {why}") from error
    raise AssertionError


def _text(error: Exception) -> str:
    why = getattr(error, "reason", None) or error  # urllib3's, without the address
    return " ".join(str(why).split())[:200] or type(error).__name__


def _status(error: BaseException) -> int:
    """Return the HTTP status that a driver's error stands for; 0: none, as of a lost connection."""
    # fsspec's http and hf:// call everything FileNotFoundError, s3fs much of it OSError.
    if type(error) in (FileNotFoundError, OSError) and error.__cause__ is not None:
        return _status(error.__cause__)
    response: Any = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore
        return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    # One by one: aiohttp warns where its `code` is read, which is its `status`.
    for told, name in ((error, "status"), (error, "code"), (response, "status_code")):
        if str(status := getattr(told, name, None)).isdecimal():
            return int(str(status))
    rights = ("Forbidden", "Unable to locate credentials")  # gcsfs, botocore
    if isinstance(error, PermissionError) or str(error).startswith(rights):
        return 403
    missing = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
    return 404 if isinstance(error, missing) else 0


def info(path: str) -> FileInfo:
    """Return size and version of one file; raises RemoteError, or OSError for a local one."""
    if not is_remote(path):
        found = os.stat(path)
        return FileInfo(path, found.st_size, str(found.st_mtime_ns))
    driver = filesystem(path)
    return _info(path, trying(path, lambda: driver.info(path)))


def _info(path: str, facts: dict[str, Any]) -> FileInfo:
    keys = ("generation", "etag", "ETag", "blob_id", "mtime", "LastModified", "Last-Modified")
    version = next((str(facts[key]) for key in keys if facts.get(key)), "")
    if facts.get("type") == "directory":
        raise MissingError(f"{shown(path)}: is no file, but a folder; name the files in it")
    if facts.get("size") is None:
        raise RemoteError(f"{shown(path)}: the server does not tell its size; download it")
    return FileInfo(path, int(facts["size"]), version)


def find(pattern: str, folder: str = "") -> list[FileInfo]:
    """List the files of a pattern with *, ?, [] and braces, "{000..146}" or "{a,b}", by name.

    A pattern of an https:// address may hold braces alone: a server lists nothing. With `folder`
    the pattern is of names in it, and its own name is none, whatever it holds.

    Raises RemoteError: the listing fails, or UserError: no driver, a pattern out of the folder.
    """
    found: dict[str, FileInfo] = {}
    single: list[str] = []
    listed = braces(pattern)
    if folder:
        for each in listed:
            foreign.checked(each, folder)
        folder = folder if scheme(folder) else os.path.expanduser(folder)
        listed = [f"{local_glob.escape(folder)}/{each}" for each in listed]
    for each in listed:
        kind = scheme(each)
        if not kind:
            path = os.path.expanduser(each)
            exact = os.path.isfile(path)  # whose name may hold a [
            names = [path] if exact else local_glob.glob(path, recursive=True)
            found |= {name: info(name) for name in names if os.path.isfile(name)}
        elif kind in ("http", "https") or not re.search(r"[*?[]", each):
            single.append(each)
        else:
            driver = filesystem(each)
            seen = trying(each, functools.partial(driver.glob, each, detail=True))
            files = {f"{kind}://{name}": f for name, f in seen.items() if f["type"] == "file"}
            found |= {name: _info(name, facts) for name, facts in files.items()}
    if single:
        with ThreadPoolExecutor(min(32, len(single))) as pool:  # a request each
            found |= {facts.path: facts for facts in pool.map(info, single)}
    return [found[name] for name in sorted(found)]


def read_range(path: str, start: int, stop: int) -> bytes:
    """Read bytes start..stop-1 of a file; fewer where the file ends before.

    Raises RemoteError, or OSError for a local file.
    """
    if not is_remote(path):
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # a file object takes twice the time
        try:
            return os.pread(file, stop - start, start)
        finally:
            os.close(file)
    kind, driver = scheme(path), filesystem(path)
    # s3fs knows for which hosts a proxy is.
    by_driver = kind == "hf" or (kind == "s3" and _proxies()) or _place(path) in _only_driver
    if by_driver or getattr(driver, "requester_pays", False):
        # hf:// would read megabytes ahead.
        ahead = {"cache_type": "none"} if kind == "hf" else {}
        data = trying(path, lambda: driver.cat_file(path, start=start, end=stop, **ahead))
    else:
        data = trying(path, lambda: _ranged(path, start, stop), _TRIES)
    if len(data) > stop - start:
        raise RemoteError(f"{shown(path)}: the server sends whole files alone; download it")
    return data


class _Refused(Exception):
    def __init__(self, status: int, data: bytes) -> None:
        super().__init__(f"{status} {data[:200].decode(errors='replace')}")
        self.status = status


_REDIRECTS = (301, 302, 303, 307, 308)
# Servers that redirect, which urllib3 follows, and buckets that refuse signed addresses, as one of
# another region does.
_redirecting: set[str] = set()
_only_driver: set[str] = set()


def _place(path: str) -> str:
    """Return an address up to its server or bucket."""
    return "/".join(path.split("/", 3)[:3])


def _ranged(path: str, start: int, stop: int) -> bytes:
    kind, driver = scheme(path), filesystem(path)
    headers, address = {"Range": f"bytes={start}-{stop - 1}"}, path
    if kind == "gs":
        driver.credentials.apply(headers)
        address = driver.url(path)
    elif kind == "s3":
        return _by_signature(path, start, stop, headers)
    if _proxies() or _place(path) in _redirecting:
        found = _pool(os.getpid()).request("GET", address, headers=headers)
    else:
        found = connections.get(address, headers)
    if found.status in _REDIRECTS:
        _redirecting.add(_place(path))
        found = _pool(os.getpid()).request("GET", address, headers=headers)
    return _data(found)


def _data(found: Any) -> bytes:
    if found.status >= 400:
        raise _Refused(found.status, found.data)
    return found.data


def _by_signature(path: str, start: int, stop: int, headers: dict[str, str]) -> bytes:
    """Read a range of s3:// by a signed address, or by the driver where that is refused.

    Where the driver may read then, it reads all else of the bucket as well.
    """
    address = _signed(path, os.getpid(), int(time.time() // _SIGN_EVERY))
    try:
        found = connections.get(address, headers)
    except ssl.SSLCertVerificationError:  # the driver has certificates of its own
        found = None
    if found is None or found.status in (*_REDIRECTS, 400, 403):
        data = filesystem(path).cat_file(path, start=start, end=stop)
        _only_driver.add(_place(path))
        return data
    return _data(found)


@functools.lru_cache(1 << 14)
def _signed(path: str, process: int, _period: int) -> str:
    """Sign an address of s3://, which takes as long as a request, once for many."""
    return _signer(process).url(path, expires=_SIGNED_FOR)


@functools.cache
def _signer(_process: int) -> Any:
    """Return a driver that signs in the form of all regions; the default is an older one."""
    import fsspec

    options = _options("s3")
    options["config_kwargs"]["signature_version"] = "s3v4"
    return fsspec.filesystem("s3", **options)


@functools.cache
def _proxies() -> dict[str, str]:
    """Return the proxies of http:// and https:// that the environment names."""
    return {k: v for k, v in urllib.request.getproxies().items() if k in ("http", "https")}


@functools.cache
def _pool(_process: int) -> Any:
    import urllib3  # late

    once = urllib3.Retry(total=None, connect=0, read=0, status=0, other=0, redirect=5)
    timeout = urllib3.Timeout(connect=connections.CONNECT, read=connections.SILENCE)
    how = {"maxsize": _CONNECTIONS, "timeout": timeout, "retries": once}
    proxy = _proxies().get("https", "")
    return urllib3.ProxyManager(proxy, **how) if proxy else urllib3.PoolManager(**how)


def read(path: str, most: int = 0) -> bytes:
    """Read a whole file; raises RemoteError, or OSError for a local one.

    Raises UserError: it has more bytes than `most`, if that is given.
    """
    if not is_remote(path):
        return foreign.read(Path(path), most) if most else Path(path).read_bytes()
    if most and (size := info(path).size) > most:
        raise UserError(f"{shown(path)} has {size:,} bytes; at most {most:,} are read of it")
    driver = filesystem(path)
    return trying(path, lambda: driver.cat_file(path))
