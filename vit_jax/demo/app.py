# SPDX-License-Identifier: Apache-2.0
"""The demo page's two routes: who may ask them, and how much of this machine an asker may take."""

import asyncio
import functools
import ipaddress
import re
import socket
import sys
from collections.abc import Callable, Sequence

import numpy as np
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from vit_jax.demo.page import MOST_WORDS, Reply, content_policy
from vit_jax.errors import UserError
from vit_jax.process.escapes import terminal

_SECONDS = 60  # for the next part of a body to arrive, and for a small body
_SLOWEST = 100_000  # bytes a second of a large body
_DRAINED = 1 << 25  # of a body that is too large, so that its sender hears why
_HELD = 1 << 28  # bytes of bodies in memory, or of two that are as large as may be
_WAITING = 16  # images, besides the one that is computed
_MOST_LETTERS, _MOST_TEXT = 80, 4000  # of a word, and of all of them

_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_WILDCARD = "0.0.0.0"


def make_app(
    page: str,
    read: Callable[[bytes], np.ndarray],
    answer: Callable[..., Reply],
    examples: Sequence[np.ndarray],
    *,
    host: str,
    max_upload: int,
    public: str = "",
    takes_words: bool = False,
) -> ASGIApp:
    """Return the ASGI app: `GET /` is the page, `POST /predict` answers an image in JSON.

    The body of a POST is an image file, or its query is `example=N` and the body empty. The answer
    is {"classes": [{"name", "probability"}, ...]}, likeliest first; the query `overlay` adds
    "overlay", a data: URL of the picture of where the model looked. Every refusal is a line.

    Args:
        page: the HTML.
        read: a file's bytes to the view that the model takes; raises UserError: no image.
        answer: what the model says of a view, or with `takes_words` of a view and words; `picture`
            asks for the picture of where it looked.
        examples: the views of the page's examples.
        host: by which address or name the page is served, as in `--host`.
        max_upload: bytes of a file.
        public: the URL that a proxy serves the page by, "https://demo.example.com"; or "".
        takes_words: the query has the words to choose among, `words=cat,dog`.
    """
    line = _Line(read, answer, max_upload)
    headers = {
        "content-security-policy": content_policy(page),
        "x-content-type-options": "nosniff",
    }

    async def show(request: Request) -> Response:
        return HTMLResponse(page, headers=headers)

    async def predict(request: Request) -> Response:
        number, picture = request.query_params.get("example"), "overlay" in request.query_params
        more = (read_words(request.query_params.get("words", "")),) if takes_words else ()
        if number is None:
            found = await line.upload(request, *more, picture=picture)
        elif re.fullmatch(r"[0-9]{1,6}", number) and int(number) < len(examples):
            view = examples[int(number)]
            found = await line.wait(request, lambda: view, *more, picture=picture)
        else:
            raise HTTPException(404, "no such example")
        return JSONResponse(found.as_json())

    inner = Starlette(
        routes=[Route("/", show), Route("/predict", predict, methods=["POST"])],
        exception_handlers={HTTPException: _refuse, Exception: _fail},
    )
    inner.router.redirect_slashes = False

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["type"] == "http":
                check_origin(Headers(scope=scope), host, public)
        except HTTPException as refusal:
            await _refuse(Request(scope), refusal)(scope, receive, send)
        else:
            await inner(scope, receive, send)

    return guarded


def _refuse(request: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, HTTPException)
    return PlainTextResponse(f"{refusal.detail}\n", refusal.status_code, refusal.headers)


def _fail(request: Request, error: Exception) -> Response:
    """Print a fault of this program as one line on stderr; a visitor learns that it failed."""
    reason = terminal(" ".join(f"{type(error).__name__}: {error}".split())[:200])
    print(f"error: {request.method} {request.url.path[:100]!a}: {reason}", file=sys.stderr)
    return PlainTextResponse("the page cannot answer this\n", 500)


class _Line:
    """The images that wait: one is computed at a time, and the bodies of all of them take room."""

    def __init__(
        self,
        read: Callable[[bytes], np.ndarray],
        answer: Callable[..., Reply],
        max_upload: int,
    ) -> None:
        self._read, self._answer, self._max_upload = read, answer, max_upload
        self._held = 0  # bytes of bodies
        self._waiting = 0  # images, the one that is computed included
        self._turn = asyncio.Lock()

    async def upload(self, request: Request, *more: tuple[str, ...], picture: bool) -> Reply:
        """Return the answer for a request's body, and the words if any, in its turn."""
        body = await self._receive(request.receive)
        try:
            return await self.wait(request, lambda: self._read(body), *more, picture=picture)
        finally:
            self._held -= len(body)

    async def wait(
        self,
        request: Request,
        view: Callable[[], np.ndarray],
        *more: tuple[str, ...],
        picture: bool,
    ) -> Reply:
        """Return the answer for a view, which is made in its turn too."""
        if self._waiting > _WAITING:
            raise HTTPException(503, "too many images at once; come back in a minute")
        self._waiting += 1
        try:
            async with self._turn:
                if await request.is_disconnected():
                    raise HTTPException(400, "the request ended early")
                return await asyncio.to_thread(lambda: self._answer(view(), *more, picture=picture))
        except UserError as error:
            raise HTTPException(415, str(error).removeprefix("image: ")) from None
        finally:
            self._waiting -= 1

    async def _receive(self, receive: Receive) -> bytes:
        """Read a body; its bytes count as held from then on."""
        parts: list[bytes] = []
        size, more, largest = 0, True, self._max_upload
        try:
            async with asyncio.timeout(_SECONDS + largest / _SLOWEST):
                while more:
                    async with asyncio.timeout(_SECONDS):
                        message = await receive()
                    if message["type"] != "http.request":
                        raise HTTPException(400, "the request ended early")
                    part, more = message.get("body", b""), message.get("more_body", False)
                    size += len(part)
                    if size <= largest:
                        parts.append(part)
                        self._held += len(part)
                    if self._held > max(_HELD, 2 * largest):
                        raise HTTPException(503, "too many uploads at once; come back in a minute")
                    if size > _DRAINED + largest:
                        break
            if size > largest:
                raise HTTPException(413, f"more than {largest:,} bytes")
        except BaseException as error:
            self._held -= sum(map(len, parts))
            if isinstance(error, TimeoutError):
                raise HTTPException(408, "the body takes too long") from None
            raise
        return b"".join(parts)


def read_words(text: str) -> tuple[str, ...]:
    """Read words with commas between them, each once; refuses, by an HTTPException, none or many.

    Control characters become blanks.
    """
    plain = "".join(letter if letter.isprintable() else " " for letter in text[:_MOST_TEXT])
    found = tuple(dict.fromkeys(" ".join(word.split()) for word in plain.split(",")))
    found = tuple(filter(None, found))
    if not found:
        raise HTTPException(400, "write words to choose among, with commas between them")
    if len(text) > _MOST_TEXT or len(found) > MOST_WORDS or max(map(len, found)) > _MOST_LETTERS:
        most = f"at most {MOST_WORDS} words of {_MOST_LETTERS} letters"
        raise HTTPException(400, f"{most}, please")
    return found


def check_origin(headers: Headers, host: str, public: str = "") -> None:
    """Refuse, by an HTTPException, what another site's page may have requested.

    A site may give this machine's address a host name of its own (DNS rebinding), so that only
    expected names pass. A browser names the page that makes a request (Origin).

    Args:
        headers: of the request.
        host: as in `--host`; if that is all addresses, any numeric address passes, and this
            machine's names.
        public: the URL at which a proxy serves the page, or "".
    """
    hosts = headers.getlist("host")
    asked = hosts[0].lower() if len(hosts) == 1 else ""
    found = re.fullmatch(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::\d{1,5})?", asked)
    by_proxy = bool(public) and asked in (public.partition("://")[2], _with_port(public))
    if not by_proxy and (found is None or not _is_known(found[1], host.lower())):
        raise HTTPException(421, "this page is not served under that host")
    own = (public,) if by_proxy else (f"http://{asked}", f"http://{asked.removesuffix(':80')}")
    if not {origin.lower() for origin in headers.getlist("origin")} <= set(own):
        raise HTTPException(403, "requested by another site's page")


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
