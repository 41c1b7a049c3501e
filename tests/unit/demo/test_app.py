# SPDX-License-Identifier: Apache-2.0
"""The demo page's routes: who may ask them, and that nobody takes all of the machine."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from vit_jax.demo import app
from vit_jax.demo.app import check_origin, read_public_url
from vit_jax.demo.page import Reply
from vit_jax.errors import UserError

PAGE = "<p>a page</p><script>1</script>"
EXAMPLE = np.full((1, 1, 3), 7, np.uint8)


def read(body: bytes) -> np.ndarray:
    if body.startswith(b"bad"):
        raise UserError("image: no image of a known format")
    return np.full((1, 1, 3), body[:1] or b"\0", "S1").view(np.uint8)


def answer(view: np.ndarray, *, picture: bool) -> Reply:
    drawn = np.zeros((2, 2, 3), np.uint8) if picture else None
    return Reply([(f"class {view.max()}", 1.0)], drawn)


def make_app(read: Any = read, answer: Any = answer, **fields: Any) -> Any:
    fields = {"host": "127.0.0.1", "max_upload": 1000, **fields}
    return app.make_app(PAGE, read, answer, [EXAMPLE], **fields)


class Visit:
    """A request and what is answered; `read` is how many parts of the body were taken."""

    def __init__(self, method: str, target: str, *parts: bytes, pause: float = 0.0) -> None:
        self.method, (self.path, _, self.query) = method, target.partition("?")
        self.parts, self.pause, self.read = parts or (b"",), pause, 0
        self.headers = [(b"host", b"localhost")]
        self.status, self.answer, self.answered = 0, b"", {}
        self.gone = False
        self.rest: asyncio.Event | None = None  # for which the last part waits

    async def receive(self) -> dict[str, Any]:
        if self.gone and self.read == len(self.parts):
            return {"type": "http.disconnect"}
        await asyncio.sleep(self.pause)
        if self.read == len(self.parts):
            await asyncio.Event().wait()
        if self.rest and self.read == len(self.parts) - 1:
            await self.rest.wait()
        self.read += 1
        more = self.gone or self.read < len(self.parts)
        return {"type": "http.request", "body": self.parts[self.read - 1], "more_body": more}

    async def send(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        self.answered |= dict(message.get("headers", ()))
        self.answer += message.get("body", b"")

    async def ask(self, page: Any) -> "Visit":
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": self.path,
            "query_string": self.query.encode(),
            "headers": self.headers,
        }
        await page(scope, self.receive, self.send)
        return self


def asked(page: Any, method: str, target: str, *parts: bytes, **how: Any) -> Visit:
    return asyncio.run(Visit(method, target, *parts, **how).ask(page))


def test_the_page_and_its_policy() -> None:
    found = asked(make_app(), "GET", "/")
    assert (found.status, found.answer) == (200, PAGE.encode())
    assert found.answered[b"content-type"] == b"text/html; charset=utf-8"
    assert found.answered[b"content-security-policy"].startswith(b"default-src 'none'; script-src")
    assert found.answered[b"x-content-type-options"] == b"nosniff"


def test_an_image_gets_classes_and_the_picture_where_asked() -> None:
    found = asked(make_app(), "POST", "/predict", b"\x05", b"of it")
    assert found.status == 200
    assert json.loads(found.answer) == {"classes": [{"name": "class 5", "probability": 1.0}]}
    shown = json.loads(asked(make_app(), "POST", "/predict?overlay", b"\x05").answer)
    assert shown.keys() == {"classes", "overlay"}
    example = json.loads(asked(make_app(), "POST", "/predict?overlay&example=0").answer)
    assert example["classes"][0]["name"] == "class 7"


@pytest.mark.parametrize("number", ["1", "-1", "", "x", "0x0", "%D9%A0", "9" * 5000, "../0"])
def test_an_example_is_one_of_the_pages(number: str) -> None:
    found = asked(make_app(), "POST", f"/predict?example={number}")
    assert (found.status, found.answer) == (404, b"no such example\n")


def test_what_is_no_image_gets_one_line() -> None:
    found = asked(make_app(), "POST", "/predict", b"bad")
    assert (found.status, found.answer) == (415, b"no image of a known format\n")
    assert found.answered[b"content-type"] == b"text/plain; charset=utf-8"


OTHER = {
    "GET /predict": 405,
    "POST /": 405,
    "OPTIONS /": 405,
    "GET /config": 404,
    "GET /openapi.json": 404,
    "GET /etc/passwd": 404,
    "GET //etc/passwd": 404,
    "GET /../../etc/passwd": 404,
    "GET /http://example.com/a.png": 404,
    "POST /predict/": 404,
    "POST /upload": 404,
}


@pytest.mark.parametrize("request_line", OTHER)
def test_every_other_route_is_closed(request_line: str) -> None:
    found = asked(make_app(), *request_line.split())
    assert found.status == OTHER[request_line]
    assert len(found.answer.splitlines()) == 1


@pytest.mark.parametrize("target", ["GET /", "POST /predict", "GET /other", "OPTIONS /predict"])
def test_strangers_are_refused_on_every_route(target: str) -> None:
    for header, status in ((b"host", 421), (b"origin", 403)):
        visit = Visit(*target.split())
        visit.headers = [*(visit.headers if header == b"origin" else ()), (header, b"evil.example")]
        assert asyncio.run(visit.ask(make_app())).status == status
        assert len(visit.answer.splitlines()) == 1


def test_a_fault_of_ours_is_told_in_one_line_here_alone(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(view: np.ndarray, *, picture: bool) -> Reply:
        raise RuntimeError("a secret\nof two\x1b[2J lines")

    page, visit = make_app(answer=broken), Visit("POST", "/predict", b"1")
    with pytest.raises(RuntimeError):  # for the server's log, which is off
        asyncio.run(visit.ask(page))
    assert (visit.status, visit.answer) == (500, b"the page cannot answer this\n")
    assert capsys.readouterr().err == (
        "error: POST '/predict': RuntimeError: a secret of two\\x1b[2J lines\n"
    )


def test_a_body_that_is_too_large_is_read_on_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_DRAINED", 5000)
    page = make_app()
    assert asked(page, "POST", "/predict", bytes(1000)).status == 200
    found = asked(page, "POST", "/predict", bytes(1001))
    assert (found.status, found.answer) == (413, b"more than 1,000 bytes\n")
    found = asked(page, "POST", "/predict", *[bytes(100)] * 1000)
    assert found.status == 413
    assert found.read == 61


def test_a_body_may_take_long_but_must_keep_coming(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_SECONDS", 0.5)
    monkeypatch.setattr(app, "_SLOWEST", 1000)
    parts, large = [b"1234"] * 14, 10_000  # ten seconds more by its size
    assert asked(make_app(max_upload=large), "POST", "/predict", *parts, pause=0.05).status == 200
    found = asked(make_app(max_upload=large), "POST", "/predict", b"1", pause=0.6)
    assert (found.status, found.answer) == (408, b"the body takes too long\n")
    assert asked(make_app(max_upload=100), "POST", "/predict", *parts, pause=0.05).status == 408


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.01)  # what has been read is looked at


def test_bodies_in_memory_are_limited_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_HELD", 2500)

    async def visits() -> list[int]:
        page = make_app()
        slow = [Visit("POST", "/predict", bytes(1000), b"") for _ in range(2)]
        for visit in slow:
            visit.rest = asyncio.Event()
        tasks = [asyncio.create_task(visit.ask(page)) for visit in slow]
        await until(lambda: all(visit.read == 1 for visit in slow))
        third = await Visit("POST", "/predict", bytes(501)).ask(page)
        assert third.answer == b"too many uploads at once; come back in a minute\n"
        fitting = await Visit("POST", "/predict", bytes(500)).ask(page)
        for visit in slow:
            visit.rest.set()
        await asyncio.gather(*tasks)
        gone = Visit("POST", "/predict", bytes(1000))
        gone.gone = True
        assert (await gone.ask(page)).status == 400
        await Visit("POST", "/predict", b"bad", bytes(997)).ask(page)
        await Visit("POST", "/predict", bytes(1000), bytes(1000)).ask(page)
        # Nothing is held by now, or not all of these would fit.
        slow = [Visit("POST", "/predict", bytes(600), bytes(230), pause=0.1) for _ in range(3)]
        later = await asyncio.gather(*(visit.ask(page) for visit in slow))
        return [third.status, fitting.status, *(visit.status for visit in later)]

    assert asyncio.run(visits()) == [503, 200, 200, 200, 200]


def _with_a_slow_model(visits: Callable[..., Coroutine[Any, Any, None]]) -> list[int]:
    """Run visits(page, go), where the model answers after `go` is set; returns what it was given.

    No two images are computed at a time.
    """
    go, at_once, given = threading.Event(), threading.Lock(), []

    def slowly(view: np.ndarray, *, picture: bool) -> Reply:
        assert at_once.acquire(blocking=False)
        given.append(int(view.max()))
        assert go.wait(20)
        time.sleep(0.01)
        at_once.release()
        return answer(view, picture=picture)

    asyncio.run(visits(make_app(answer=slowly), go))
    return given


def test_one_image_is_computed_at_a_time_and_sixteen_wait() -> None:
    async def visits(page: Any, go: threading.Event) -> None:
        asking = [Visit("POST", "/predict", bytes([n])) for n in range(17)]
        tasks = [asyncio.create_task(visit.ask(page)) for visit in asking]
        await until(lambda: all(visit.read == 1 for visit in asking))
        for target in ("/predict", "/predict?example=0"):
            late = await Visit("POST", target, b"\x63").ask(page)
            assert late.status == 503
            assert late.answer == b"too many images at once; come back in a minute\n"
        go.set()
        await asyncio.gather(*tasks)
        assert [visit.status for visit in asking] == [200] * 17
        assert (await Visit("POST", "/predict", b"\x63").ask(page)).status == 200

    assert _with_a_slow_model(visits) == [*range(17), 99]


def test_an_image_whose_visitor_has_gone_is_not_computed() -> None:
    async def visits(page: Any, go: threading.Event) -> None:
        asking = [Visit("POST", "/predict", bytes([n])) for n in range(3)]
        tasks = [asyncio.create_task(visit.ask(page)) for visit in asking]
        await until(lambda: all(visit.read == 1 for visit in asking))
        asking[1].gone = True
        go.set()
        await asyncio.gather(*tasks)

    assert _with_a_slow_model(visits) == [0, 2]


def test_a_visitor_who_does_not_read_makes_no_other_wait() -> None:
    async def both() -> int:
        page, stuck = make_app(), Visit("POST", "/predict", b"1")

        async def wait(message: Any) -> None:
            await asyncio.Event().wait()

        stuck.send = wait
        first = asyncio.create_task(stuck.ask(page))
        await asyncio.sleep(0.1)
        second = await asyncio.wait_for(Visit("POST", "/predict", b"1").ask(page), 20)
        first.cancel()
        return second.status

    assert asyncio.run(both()) == 200


ASKED = [
    # --host, Host, Origin, answer
    ("127.0.0.1", "127.0.0.1:7860", None, None),
    ("127.0.0.1", "LOCALHOST:8000", "http://localhost:8000", None),
    ("127.0.0.1", "localhost", "http://localhost:80", 403),
    ("127.0.0.1", "localhost:80", "http://localhost", None),
    ("127.0.0.1", "10.0.0.7:7860", None, 421),
    ("127.0.0.1", "localhost.", None, 421),
    ("gpu.example", "gpu.example:7860", "http://gpu.example:7860", None),
    ("gpu.example", "localhost:7860", None, None),
    ("gpu.example", "evil.example:7860", None, 421),
    ("gpu.example", "gpu.example:7860", "http://evil.example", 403),
    ("0.0.0.0", "10.0.0.7:7860", "http://10.0.0.7:7860", None),
    ("0.0.0.0", "[2001:db8::7]:7860", None, None),
    ("0.0.0.0", socket.gethostname(), None, None),
    ("0.0.0.0", socket.gethostname().partition(".")[0] + ".local:7860", None, None),
    ("0.0.0.0", socket.getfqdn(), None, None),
    ("0.0.0.0", "evil.example:7860", None, 421),
    ("0.0.0.0", "10.0.0.7.evil.example", None, 421),
]


@pytest.mark.parametrize("host, asked, origin, status", ASKED)
def test_hosts_and_origins(host: str, asked: str, origin: str | None, status: int | None) -> None:
    headers = Headers({"host": asked, **({"origin": origin} if origin else {})})
    if status is None:
        check_origin(headers, host)
        return
    with pytest.raises(HTTPException) as refused:
        check_origin(headers, host)
    assert refused.value.status_code == status


PUBLIC = "https://demo.example.com"
BY_PROXY = [
    # Host, Origin, answer
    ("demo.example.com", None, None),
    ("Demo.example.com:443", PUBLIC, None),
    ("demo.example.com", "http://demo.example.com", 403),
    ("demo.example.com", "https://evil.example", 403),
    ("demo.example.com:8443", PUBLIC, 421),
    ("evil.example", None, 421),
    ("127.0.0.1:7860", "http://127.0.0.1:7860", None),
]


@pytest.mark.parametrize("asked, origin, status", BY_PROXY)
def test_a_proxy_serves_it_by_its_public_url(
    asked: str, origin: str | None, status: int | None
) -> None:
    headers = Headers({"host": asked, **({"origin": origin} if origin else {})})
    if status is None:
        check_origin(headers, "127.0.0.1", PUBLIC)
        return
    with pytest.raises(HTTPException) as refused:
        check_origin(headers, "127.0.0.1", PUBLIC)
    assert refused.value.status_code == status


def test_a_public_url_is_a_scheme_and_a_name() -> None:
    assert read_public_url("") == ""
    assert read_public_url("HTTPS://Demo.example.com/") == PUBLIC
    assert read_public_url("http://demo.example.com:8080") == "http://demo.example.com:8080"
    for wrong in ("demo.example.com", "https://demo.example.com/vit", "ftp://demo.example.com"):
        with pytest.raises(UserError, match="without a path"):
            read_public_url(wrong)


@pytest.mark.parametrize("hosts", [[], [b"localhost", b"localhost"], [b"localhost", b"evil"]])
def test_one_host_must_be_named(hosts: list[bytes]) -> None:
    with pytest.raises(HTTPException, match="under that host"):
        check_origin(Headers(raw=[(b"host", host) for host in hosts]), "127.0.0.1")


def test_words_are_asked_for_where_the_model_takes_them() -> None:
    seen: list[tuple[str, ...]] = []

    def answer_words(view: np.ndarray, words: tuple[str, ...], *, picture: bool) -> Reply:
        seen.append(words)
        return Reply([(word, 0.5) for word in words], np.zeros((2, 2, 3), np.uint8))

    served = make_app(answer=answer_words, takes_words=True)
    query = "words=a%20%20red%0Abicycle,cat,%20,%3Cb%3E,cat"
    found = asked(served, "POST", f"/predict?{query}", b"\x05")
    assert found.status == 200
    assert seen == [("a red bicycle", "cat", "<b>")]
    asked(served, "POST", f"/predict?example=0&{query}")
    assert seen[1] == seen[0]
    many = ",".join(map(str, range(33)))
    for query in ("", "words=", "words=%20,", f"words={many}", f"words={'a' * 81}"):
        found = asked(served, "POST", f"/predict?{query}", b"\x05")
        assert found.status == 400
        assert b"words" in found.answer
    long = asked(served, "POST", f"/predict?words={'a,' * 2001}", b"\x05")
    assert (long.status, len(seen)) == (400, 2)
    # A model of classes pays them no heed.
    assert asked(make_app(), "POST", "/predict?words=cat", b"\x05").status == 200
