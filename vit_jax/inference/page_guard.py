# SPDX-License-Identifier: Apache-2.0
"""The guard of the demo page: only requests that the page itself makes go through.

Gradio's app has some ninety routes, which fetch web addresses, convert recordings and describe
themselves. The page needs a dozen. What those are sent is read here, within limits, checked and
written anew: Gradio sees no byte of a body, no header and no query that this module has not made
or does not know.
"""

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from vit_jax.inference import page_requests
from vit_jax.inference.page_requests import Call, Refused

_JSON_BYTES = 1 << 16  # of a call: a path and a few numbers
_FORM_BYTES = 1 << 14  # of an upload's form, besides its file
_SECONDS = 60  # for the next part of a body to arrive, and for a small body
_SLOWEST = 100_000  # bytes a second of a large body
_DRAINED = 1 << 25  # of a body that is too large, so that its sender hears why
_HELD = 1 << 28  # bytes of bodies in memory, or of two that are as large as may be
_KEPT = 32  # uploads of the largest size that the folder has room for, besides the examples
_FILES = 3000  # in the folder: an upload becomes three

_HASH = r"[A-Za-z0-9_-]{1,64}"
_ROUTES = {
    "page": r"/|/config|(/gradio_api)?/theme\.css|/favicon\.ico|/manifest\.json|/robots\.txt",
    "script": r"/(assets|static|svelte)(/[A-Za-z0-9_-][A-Za-z0-9_.@+-]*)+",
    "alive": rf"/gradio_api/heartbeat/{_HASH}",
    "answers": r"/gradio_api/queue/data",
    "progress": r"/gradio_api/upload_progress",
    "file": r"/gradio_api/file=(?P<path>/.*)",
    "upload": r"/gradio_api/upload",
    "join": r"/gradio_api/queue/join",
    "run": r"/gradio_api/run/predict",
}
_POSTED = ("upload", "join", "run")
# The one parameter of a route; all others are dropped.
_QUERY = {"answers": "session_hash", "progress": "upload_id", "upload": "upload_id"}
_HEADERS = (b"host", b"accept", b"accept-encoding", b"accept-language", b"user-agent")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Guard:
    """An ASGI app before another.

    Args:
        app: the other.
        host: by which address or name the page is served, as in `--host`.
        uploads: the folder of Gradio's files.
        max_upload: bytes of a file.
        calls: the page's functions by number.
        public: the URL that a proxy serves the page by, "https://demo.example.com"; or "".
    """

    def __init__(
        self,
        app: App,
        host: str,
        uploads: Path,
        max_upload: int,
        calls: Mapping[int, Call],
        public: str = "",
    ) -> None:
        self._app, self._host, self._public = app, host, public
        self._uploads, self._max_upload, self._calls = uploads, max_upload, calls
        self._held = 0  # bytes of bodies that are being read
        self._before = page_requests.folder_size(uploads)
        self._storing = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # the server refuses a web socket that is not accepted
        status = 0

        async def sent(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._answer(scope, receive, sent)
        except Refused as refusal:
            await _refuse(refusal, sent)
        except Exception as error:  # Gradio's: in one line, and here alone
            if status in (0, 500):
                reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
                where = f"{scope['method']} {scope['path'][:100]!a}"
                print(f"error: {where}: {reason}", file=sys.stderr)
            if not status:
                await _refuse(Refused(500, "the page cannot answer this"), sent)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        by_proxy = page_requests.check_origin(scope["headers"], self._host, self._public)
        route, found = _route(scope["method"], scope["path"])
        if route == "file":
            page_requests.check_inside(found["path"], self._uploads)
        passed = {**scope, "headers": [h for h in scope["headers"] if h[0] in _HEADERS]}
        if by_proxy:  # Gradio writes links of the scheme that the visitor's browser uses
            passed["scheme"] = self._public.partition(":")[0]
        passed["query_string"] = _query(scope["query_string"], route)
        if route not in _POSTED:
            await self._app(passed, receive, send)
            return
        kind, largest = b"application/json", _JSON_BYTES
        if route == "upload":
            largest = self._max_upload + _FORM_BYTES
        body = await self._read(scope, receive, largest)
        try:
            if route == "upload":
                image, form = await page_requests.read_upload(scope["headers"], body)
                if image > self._max_upload:
                    raise Refused(413, f"more than {self._max_upload:,} bytes")
                kind, new = form
            else:
                queued = route == "join"
                new = page_requests.read_call(body, self._calls, self._uploads, queued=queued)
            passed["headers"] += [(b"content-type", kind), (b"content-length", b"%d" % len(new))]
            answer: list[Message] = []

            async def collect(message: Message) -> None:
                answer.append(message)

            async with self._storing:  # one by one, so that each sees what those before it left
                if await asyncio.to_thread(self._is_full, len(new)):
                    raise Refused(503, "too many uploads; come back in ten minutes")
                await self._app(passed, _replay(new, receive), collect)
            for message in answer:  # a visitor who does not read it makes no other wait
                await send(message)
        finally:
            self._held -= len(body)

    def _is_full(self, more: int) -> bool:
        count, size = page_requests.folder_size(self._uploads)
        count, size = count - self._before[0], size - self._before[1]
        return count >= _FILES or size + more > _KEPT * self._max_upload

    async def _read(self, scope: Scope, receive: Receive, largest: int) -> bytes:
        """Read a body; its bytes count as held from then on."""
        parts: list[bytes] = []
        size, more = 0, True
        try:
            async with asyncio.timeout(_SECONDS + largest / _SLOWEST):
                while more:
                    async with asyncio.timeout(_SECONDS):
                        message = await receive()
                    if message["type"] != "http.request":
                        raise Refused(400, "the request ended early")
                    part, more = message.get("body", b""), message.get("more_body", False)
                    size += len(part)
                    if size <= largest:
                        parts.append(part)
                        self._held += len(part)
                    if self._held > max(_HELD, 2 * (self._max_upload + _FORM_BYTES)):
                        raise Refused(503, "too many uploads at once; come back in a minute")
                    if size > _DRAINED + largest:
                        break
            if size > largest:
                raise Refused(413, f"more than {largest:,} bytes")
        except BaseException as error:
            self._held -= sum(map(len, parts))
            if isinstance(error, TimeoutError):
                raise Refused(408, "the body takes too long") from None
            raise
        return b"".join(parts)


def _route(method: str, path: str) -> tuple[str, dict[str, str]]:
    for route, pattern in _ROUTES.items():
        found = re.fullmatch(pattern, path)
        if found and method in (("POST",) if route in _POSTED else ("GET", "HEAD")):
            return route, found.groupdict()
    raise Refused(404, "no such page")


def _query(query: bytes, route: str) -> bytes:
    known = _QUERY.get(route)
    found = known and re.search(rf"(?:^|&)({known}={_HASH})(?:&|$)", query.decode("latin-1"))
    if known and not found and (query or route != "upload"):
        raise Refused(400, f"{known} is missing or malformed")
    return found[1].encode() if found else b""


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that hands out a body, then what comes after the one that was read."""
    left = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return left.pop() if left else await receive()

    return again


async def _refuse(refusal: Refused, send: Send) -> None:
    body = f"{refusal}\n".encode()
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", b"%d" % len(body)),
    ]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
