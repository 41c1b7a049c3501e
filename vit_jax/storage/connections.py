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
import ssl
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import SplitResult, quote, urlsplit

# Seconds without a connection, and without a byte, after which a request has failed.
CONNECT, SILENCE = 20.0, 30.0

# What is left as it is in an address: all that has a meaning there, and what is quoted already.
_LEFT = "/%:@!$&'()*+,;=?~"

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
    target = quote(parts.path or "/", _LEFT) + ("?" + quote(parts.query, _LEFT)) * bool(parts.query)
    with contextlib.suppress(IndexError, ConnectionError):  # the server may have closed it since
        return _exchange(idle.pop(), idle, target, headers)
    return _exchange(_connected(parts), idle, target, headers)


def _exchange(
    connection: http.client.HTTPConnection,
    idle: list[http.client.HTTPConnection],
    target: str,
    headers: Mapping[str, str],
) -> HttpAnswer:
    try:
        connection.request("GET", target, headers=dict(headers))
        response = connection.getresponse()
        answer = HttpAnswer(response.status, response.read())
    except BaseException:
        connection.close()
        raise
    idle.append(connection)  # if the server closes it, the next request opens it again
    return answer


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
