# SPDX-License-Identifier: Apache-2.0
import http.client
import os
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from vit_jax.storage import connections

ANSWER = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 3\r\n\r\nabc"
Serve = Callable[..., str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a server whose n-th answer, of all connections, is a function of n; "" hangs up."""
    servers: list[socketserver.ThreadingTCPServer] = []

    def start(answer: Callable[[int], bytes], asked: list[bytes] | None = None) -> str:
        seen = [] if asked is None else asked

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                while line := self.rfile.readline():
                    seen.append(line)
                    while self.rfile.readline().strip():
                        pass
                    data = answer(len(seen))
                    self.wfile.write(data)
                    if not data.endswith(b"abc"):
                        return

        server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}/x?y=1"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_one_connection_serves_one_request_after_another(serve: Serve) -> None:
    address = serve(lambda _: ANSWER)
    for _ in range(3):
        assert connections.get(address, {"Range": "bytes=0-2"}) == (206, b"abc")
    ((_, idle),) = [item for item in connections._idle.items() if item[0][2] in address]
    assert len(idle) == 1


def test_whatever_the_status_is(serve: Serve) -> None:
    address = serve(lambda _: ANSWER.replace(b"206 Partial Content", b"404 Not Found"))
    assert connections.get(address, {}) == (404, b"abc")


def test_a_connection_that_the_server_has_closed_is_opened_again(serve: Serve) -> None:
    address = serve(lambda n: b"" if n == 2 else ANSWER)
    assert [connections.get(address, {}) for _ in range(2)] == [(206, b"abc")] * 2


def test_a_connection_over_tls_that_the_server_has_closed_is_opened_again(serve: Serve) -> None:
    class Closed(http.client.HTTPConnection):
        def request(self, *_: Any, **__: Any) -> None:  # what Python 3.11 raises after a reset
            raise ssl.SSLEOFError(8, "EOF occurred in violation of protocol")

    address = serve(lambda _: ANSWER)
    host = urlsplit(address).netloc
    connections._idle[os.getpid(), "http", host] = [Closed(host) for _ in range(2)]
    assert [connections.get(address, {}) for _ in range(3)] == [(206, b"abc")] * 3


def test_a_connection_that_the_server_ends_is_not_kept(serve: Serve) -> None:
    address = serve(lambda _: ANSWER.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    assert connections.get(address, {}) == (206, b"abc")
    assert connections._idle[os.getpid(), "http", urlsplit(address).netloc] == []


def test_a_server_that_hangs_up_at_once_is_no_closed_connection(serve: Serve) -> None:
    with pytest.raises(ConnectionError):
        connections.get(serve(lambda _: b""), {})


def test_an_answer_that_is_cut_off_ends_its_connection(serve: Serve) -> None:
    address = serve(lambda n: ANSWER if n > 1 else ANSWER[:-1])
    with pytest.raises(http.client.IncompleteRead):
        connections.get(address, {})
    assert connections.get(address, {}) == (206, b"abc")


def test_what_an_address_cannot_hold_is_quoted(serve: Serve) -> None:
    asked: list[bytes] = []
    address = serve(lambda _: ANSWER, asked).replace(
        "/x?y=1", "/müde Katze/100%25 5%.tar?key=a b+c%2F"
    )
    assert connections.get(address, {}) == (206, b"abc")
    assert asked == [b"GET /m%C3%BCde%20Katze/100%25%205%25.tar?key=a%20b+c%2F HTTP/1.1\r\n"]
