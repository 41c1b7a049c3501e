# SPDX-License-Identifier: Apache-2.0
"""What the demo page may be sent: hosts, files, uploads and calls, each checked in one function."""

import contextlib
import functools
import ipaddress
import json
import os
import re
import secrets
import socket
from collections.abc import AsyncGenerator, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from vit_jax.data.images import header as image_header
from vit_jax.errors import UserError

_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_WILDCARD = "0.0.0.0"

Headers = Iterable[tuple[bytes, bytes]]


class Refused(Exception):
    """A request that is not passed on: a status of HTTP, and the answer, in one line."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Call(NamedTuple):
    """A function of the page."""

    queued: bool  # it waits for its turn
    inputs: tuple[int | None, ...]  # None is an upload or nothing, N a whole number below it


def check_origin(headers: Headers, host: str, public: str = "") -> bool:
    """Raise Refused for a request that another site's page may have made; returns if by `public`.

    A site may give this machine's address a host name of its own (DNS rebinding), so that only
    expected names pass. A browser names the page that makes a request (Origin).

    Args:
        headers: of the request.
        host: as in `--host`; if that is all addresses, any numeric address passes, and this
            machine's names.
        public: the URL at which a proxy serves the page, or "".
    """
    hosts = [value for name, value in headers if name == b"host"]
    asked = hosts[0].decode("latin-1").lower() if len(hosts) == 1 else ""
    found = re.fullmatch(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::\d{1,5})?", asked)
    by_proxy = bool(public) and asked in (public.partition("://")[2], _with_port(public))
    if not by_proxy and (found is None or not _is_known(found[1], host.lower())):
        raise Refused(421, "this page is not served under that host")
    own = (public,) if by_proxy else (f"http://{asked}", f"http://{asked.removesuffix(':80')}")
    for name, value in headers:
        if name == b"origin" and value.decode("latin-1").lower() not in own:
            raise Refused(403, "requested by another site's page")
    return by_proxy


def _with_port(public: str) -> str:
    """Return the host of a URL with its scheme's own port, as a proxy may pass it on."""
    scheme, _, host = public.partition("://")
    return f"{host}:{443 if scheme == 'https' else 80}"


def read_public_url(text: str) -> str:
    """Read `--public_url`: "" or the scheme, name and port that visitors use, in lower case.

    Raises UserError: no such URL, or one with a path.
    """
    found = re.fullmatch(r"(https?://[a-z0-9_.-]+(?::\d{1,5})?)/?", text.lower())
    if text and found is None:
        must = "be the proxy's scheme and name, without a path: https://demo.example.com"
        raise UserError(f"--public_url={text} must {must}")
    return found[1] if found else ""


@functools.cache
def _own_names() -> frozenset[str]:
    """Return this machine's names: full, short, and as its neighbours look it up."""
    full = socket.gethostname().lower()
    short = full.partition(".")[0]
    return frozenset((full, short, f"{short}.local", socket.getfqdn().lower()))


def _is_known(name: str, host: str) -> bool:
    if name in (*_LOOPBACK, host):
        return True
    if host != _WILDCARD:
        return False
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return name in _own_names()
    return True


def check_inside(path: str, folder: Path) -> None:
    """Raise Refused, the same for all, if a path with links followed is no file in the folder."""
    try:
        inside = os.path.realpath(path).startswith(os.path.realpath(folder) + os.sep)
        is_file = inside and os.path.isfile(path)
    except (OSError, ValueError):  # too long, or with characters that no file's name has
        is_file = False
    if not is_file:
        raise Refused(404, "no such file")


def folder_size(folder: Path) -> tuple[int, int]:
    """Count a folder's files, at any depth, and sum their bytes."""
    count = size = 0
    for place, _, files in os.walk(folder):
        for file in files:
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                size += os.lstat(os.path.join(place, file)).st_size
                count += 1
    return count, size


def read_call(body: bytes, calls: Mapping[int, Call], uploads: Path, *, queued: bool) -> bytes:
    """Check a call of one of the page's functions and write it anew, of known fields alone.

    `body` is JSON, `uploads` where files lie; `queued` is of the route.

    Raises Refused: no such function, other arguments than it takes, a file that is no upload.
    """
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused(400, "the body is no JSON") from None
    if not isinstance(found, dict):
        raise Refused(400, "the body is no JSON object")
    number, session, data = (found.get(name) for name in ("fn_index", "session_hash", "data"))
    call = calls.get(number) if type(number) is int else None
    if call is None or call.queued != queued:
        raise Refused(400, "fn_index is not a function of this page")
    if not isinstance(session, str) or not re.fullmatch("[A-Za-z0-9]{1,64}", session):
        raise Refused(400, "session_hash is malformed")
    if not isinstance(data, list) or len(data) != len(call.inputs):
        raise Refused(400, f"data must have {len(call.inputs)} value(s)")
    trigger = found.get("trigger_id")
    kept = {
        "fn_index": number,
        "session_hash": session,
        "data": [_read_input(*pair, uploads) for pair in zip(data, call.inputs, strict=True)],
        "trigger_id": trigger if type(trigger) is int and 0 <= trigger < 1 << 31 else None,
        "event_data": None,
    }
    return json.dumps(kept).encode()


def _read_input(value: Any, kind: int | None, uploads: Path) -> Any:
    if kind is not None:
        if type(value) is int and 0 <= value < kind:
            return value
        raise Refused(400, f"a number below {kind} was expected")
    if value is None:
        return None
    path = value.get("path") if isinstance(value, dict) else None
    if not isinstance(path, str):
        raise Refused(400, "an upload was expected")
    check_inside(path, uploads)
    given = value.get("orig_name")
    # JSON may hold halves of characters, which cannot be written again.
    name = given.encode("utf-8", "replace").decode()[:255] if isinstance(given, str) else None
    return {"path": path, "orig_name": name, "meta": {"_type": "gradio.FileData"}}


async def read_upload(headers: Headers, body: bytes) -> tuple[int, tuple[bytes, bytes]]:
    """Check the form of an upload and write it anew; returns the file's size, and type and body.

    The file is named by its format: a visitor's name of it comes with the call.

    Raises Refused: no form of one file, or a file that is no image.
    """
    from starlette.datastructures import Headers as StarletteHeaders
    from starlette.datastructures import UploadFile
    from starlette.formparsers import MultiPartException, MultiPartParser

    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    known = StarletteHeaders(raw=list(headers))
    if not known.get("content-type", "").lower().startswith("multipart/form-data"):
        raise Refused(400, "an upload is a form (multipart/form-data)")
    try:
        form = await MultiPartParser(known, stream(), max_files=1, max_fields=0).parse()
    except MultiPartException as error:
        raise Refused(400, f"one file at a time, in a form: {error.message}") from None
    except Exception:  # of a malformed form the parser may raise anything
        raise Refused(400, "the form is malformed") from None
    try:
        file = form.get("files")
        if not isinstance(file, UploadFile):
            raise Refused(400, "the form holds no file by the name of files")
        data = await file.read()
    finally:
        await form.close()
    disposition = f'form-data; name="files"; filename="image.{_image_format(data)}"'
    boundary = secrets.token_hex()  # which no image can have been made to hold
    head = f"--{boundary}\r\nContent-Disposition: {disposition}\r\n\r\n".encode()
    kind = f"multipart/form-data; boundary={boundary}".encode()
    return len(data), (kind, head + data + f"\r\n--{boundary}--\r\n".encode())


def _image_format(data: bytes) -> str:
    """Name the format of an image by its first bytes."""
    try:
        with image_header.open_image(data) as image:
            return str(image.format).lower()
    except Exception as error:  # of broken files Pillow's readers raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise Refused(415, reason) from None
