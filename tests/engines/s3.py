# SPDX-License-Identifier: Apache-2.0
"""A real S3 server, moto's, behind a proxy that delays, refuses, loses and cuts answers.

It speaks as `tests.bucket.Bucket` does: `env` points s3fs to it, names are "bucket/path/of/object".
"""

import contextlib
import http.client
import http.server
import os
import random
import socket
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.bucket import forget
from tests.engines.slurm import until

NO_FAULTS: dict[str, Any] = {
    "latency_ms": 0,  # before each answer, on average
    "refused": 0.0,  # share that nothing is done for: 503
    "lost": 0.0,  # share that is done and not answered, or cut in the middle of its answer
    "away": False,  # nobody answers
    "seed": 0,  # of the draws
}
_BUSY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_HOP = {"connection", "transfer-encoding", "content-length", "date", "server", "expect"}
_XML = "{http://s3.amazonaws.com/doc/2006-03-01/}"


class S3:
    """A running server and its proxy."""

    scheme = "s3"

    def __init__(self, log: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port)]
        quiet = {"PYTHONWARNINGS": "ignore"}
        with log.open("w") as out:
            self._moto = subprocess.Popen(
                command, env={**os.environ, **quiet}, stdout=out, stderr=out
            )
        self.counts = dict.fromkeys(("requests", "refused", "lost", "cut", "away"), 0)
        self.set()
        self._proxy = _Proxy(("127.0.0.1", 0), _Handler)
        self._proxy.of = self
        threading.Thread(target=self._proxy.serve_forever, daemon=True).start()
        self.env = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._proxy.server_address[1]}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def start(self, bucket: str) -> None:
        """Wait for the server, and make a bucket."""

        def made() -> bool:
            with contextlib.suppress(OSError):
                return self.ask("PUT", f"/{bucket}")[0] == 200
            return False

        until(made, 60, lambda: "moto's server does not answer")

    def set(self, **faults: Any) -> None:
        """Make faults what is given, and everything else faultless."""
        self.faults = {**NO_FAULTS, **faults}
        self.draws = random.Random(self.faults["seed"])

    def names(self, prefix: str = "") -> list[str]:
        """Return the names of all objects that begin so."""
        bucket, _, key = prefix.partition("/")
        found, token = [], ""
        while True:
            query = f"list-type=2&prefix={quote(key, safe='')}{token}"
            tree = ET.fromstring(self.ask("GET", f"/{bucket}?{query}")[2])
            found += [f"{bucket}/{each.text}" for each in tree.iter(f"{_XML}Key")]
            more = tree.findtext(f"{_XML}NextContinuationToken")
            if not more:
                return found
            token = f"&continuation-token={quote(more, safe='')}"

    def get(self, name: str) -> bytes | None:
        """Return an object, None if there is none."""
        status, _, data = self.ask("GET", f"/{quote(name)}")
        return data if status == 200 else None

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict | None = None
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        """Ask the server itself; returns status, headers and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers or {"Authorization": "AWS key:"})
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()

    def close(self) -> None:
        """End both; the objects are gone."""
        self._proxy.shutdown()
        self._proxy.server_close()
        self._moto.kill()
        self._moto.wait()


@contextlib.contextmanager
def running(log: Path, bucket: str = "bucket") -> Iterator[S3]:
    """Start the server, and point this process to it.

    Skips a test where moto or s3fs, of locks/parity.txt, is missing.
    """
    for module in ("s3fs", "moto", "flask_cors"):
        pytest.importorskip(
            module, reason="no moto or s3fs (locks/parity.txt)", exc_type=ImportError
        )
    server = S3(log)
    try:
        server.start(bucket)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in (*server.env.items(), ("XDG_CACHE_HOME", f"{log}.cache")):
                patch.setenv(name, value)
            yield server
    finally:
        server.close()
        forget()


class _Proxy(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    of: S3

    def handle_error(self, *_: object) -> None:  # a client that was killed
        pass


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Proxy

    def log_message(self, *_: object) -> None:
        pass

    def _pass_on(self) -> None:
        s3 = self.server.of
        faults, counts = s3.faults, s3.counts
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) or None
        counts["requests"] += 1
        time.sleep(faults["latency_ms"] / 1000 * 2 * s3.draws.random())
        refused, lost = s3.draws.random(), s3.draws.random()
        if faults["away"]:
            counts["away"] += 1
            return self._cut()
        if refused < faults["refused"]:
            counts["refused"] += 1
            return self._answer(503, [("Content-Type", "application/xml")], _BUSY)
        kept = {k: v for k, v in self.headers.items() if k.lower() not in ("connection", "expect")}
        status, headers, data = s3.ask(self.command, self.path, body, kept)
        if lost < faults["lost"]:
            counts["cut" if len(data) > 1 else "lost"] += 1
            if len(data) > 1:
                self._answer(status, headers, data, half=True)
            return self._cut()
        return self._answer(status, headers, data)

    def _answer(
        self, status: int, headers: list[tuple[str, str]], data: bytes, *, half: bool = False
    ) -> None:
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in _HOP:
                self.send_header(name, value)
        told = {name.lower(): value for name, value in headers}
        length = told.get("content-length", "0") if self.command == "HEAD" else str(len(data))
        if status != 204:
            self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if half else data)

    def _cut(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on
