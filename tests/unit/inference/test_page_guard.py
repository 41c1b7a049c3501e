# SPDX-License-Identifier: Apache-2.0
"""The demo page's guard before an app: nobody's slowness is another's wait."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from vit_jax.inference import page_guard
from vit_jax.inference.page_guard import Guard
from vit_jax.inference.page_requests import Call

CALL = {"fn_index": 0, "session_hash": "a", "data": []}
Send = Callable[[Any], Awaitable[None]]


async def app(scope: Any, receive: Any, send: Send) -> None:
    await receive()
    scheme = scope["scheme"].encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"scheme", scheme)]})
    await send({"type": "http.response.body", "body": b"x" * 100})


def guard(uploads: Path, **fields: Any) -> Guard:
    return Guard(app, "127.0.0.1", uploads, 1000, {0: Call(True, ())}, **fields)


async def ask(
    guard: Guard, parts: list[bytes], send: Send, *, pause: float = 0.0, host: str = "localhost"
) -> None:
    left = list(parts)

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(pause)
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    scope = {"type": "http", "method": "POST", "path": "/gradio_api/queue/join", "scheme": "http"}
    scope |= {"query_string": b"", "headers": [(b"host", host.encode())]}
    await guard(scope, receive, send)


def answered(guard: Guard, parts: list[bytes], **how: Any) -> Any:
    """Return the first message of the answer."""
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    asyncio.run(ask(guard, parts, send, **how))
    return messages[0]


def test_a_visitor_who_does_not_read_makes_no_other_wait(tmp_path: Path) -> None:
    async def both() -> int:
        page, body, status = guard(tmp_path), json.dumps(CALL).encode(), 0

        async def stuck(message: Any) -> None:
            await asyncio.Event().wait()

        async def send(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)

        first = asyncio.create_task(ask(page, [body], stuck))
        await asyncio.sleep(0.1)
        await asyncio.wait_for(ask(page, [body], send), 5)
        first.cancel()
        return status

    assert asyncio.run(both()) == 200


def test_a_body_may_take_long_but_must_keep_coming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_guard, "_SECONDS", 0.2)
    monkeypatch.setattr(page_guard, "_JSON_BYTES", 100_000)  # a second more by its size
    body = json.dumps(CALL).encode()
    parts = [body[i : i + 8] for i in range(0, len(body), 8)]
    assert len(parts) * 0.1 > 0.4
    assert answered(guard(tmp_path), parts, pause=0.1)["status"] == 200
    assert answered(guard(tmp_path), parts, pause=0.4)["status"] == 408


def test_by_the_public_url_links_have_its_scheme(tmp_path: Path) -> None:
    page, body = guard(tmp_path, public="https://demo.example.com"), [json.dumps(CALL).encode()]
    for host, scheme in (("demo.example.com", b"https"), ("localhost", b"http")):
        assert answered(page, body, host=host)["headers"] == [(b"scheme", scheme)]
