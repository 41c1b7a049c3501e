# SPDX-License-Identifier: Apache-2.0
"""GET requests over connections that stay open, by the standard library's client.

It takes half of urllib3's CPU time for a small range, and releases Python's lock less often:
readers of a bucket ask once for every image (benchmarks/NOTES.md). Redirects and proxies are not
followed here.
"""

import contextlib
import functools
import http.client
import os
import re
import ssl
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import SplitResult, quote, urlsplit

# Seconds without a connection, and without a byte, after which a request has failed.
CONNECT, SILENCE = 20.0, 30.0

# What is left as it is in an address: all that has a meaning there, and what is quoted already.
_LEFT = "/%:@!$&'()*+,;=?~"
_STRAY = re.compile("%(?![0-9A-Fa-f]{2})")
_HEADERS = {"User-Agent": "vitjax"}  # some servers refuse clients without one

# By process and server: a forked process must not speak over its parent's connections.
_idle: dict[tuple[int, str, str], list[http.client.HTTPConnection]] = {}


class HttpAnswer(NamedTuple):
    """What a server says."""

    status: int
    data: bytes


def get(address: str, headers: Mapping[str, str]) -> HttpAnswer:
    """Ask for an address of http:// or https://, for whatever status.

    Raises OSError or http.client.HTTPException: no answer, or one that is cut off.
    """
    parts = urlsplit(address)
    idle = _idle.setdefault((os.getpid(), parts.scheme, parts.netloc), [])
    target = _quoted(parts.path or "/") + (f"?{_quoted(parts.query)}" if parts.query else "")
    # The server may have closed it since; over TLS that is no ConnectionError.
    with contextlib.suppress(IndexError, ConnectionError, ssl.SSLError):
        return _exchange(idle.pop(), idle, target, headers)
    return _exchange(_connected(parts), idle, target, headers)


def _exchange(
    connection: http.client.HTTPConnection,
    idle: list[http.client.HTTPConnection],
    target: str,
    headers: Mapping[str, str],
) -> HttpAnswer:
    try:
        connection.request("GET", target, headers={**_HEADERS, **headers})
        response = connection.getresponse()
        answer = HttpAnswer(response.status, response.read())
    except BaseException:
        connection.close()
        raise
    if connection.sock is not None:  # else the server has said that it closes it
        idle.append(connection)
    return answer


def _quoted(text: str) -> str:
    return quote(_STRAY.sub("%25", text), _LEFT)


def _connected(parts: SplitResult) -> http.client.HTTPConnection:
    host, is_secure = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if is_secure else 80)
    connection = (
        http.client.HTTPSConnection(host, port, timeout=CONNECT, context=_tls())
        if is_secure
        else http.client.HTTPConnection(host, port, timeout=CONNECT)
    )
    connection.connect()
    connection.sock.settimeout(SILENCE)
    return connection


@functools.cache
def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
