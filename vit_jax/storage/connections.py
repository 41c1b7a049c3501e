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
from urllib.parse import urlsplit

# Seconds without a connection, and without a byte, after which a request has failed.
CONNECT, SILENCE = 20.0, 30.0

# By process and server: a forked process must not speak over its parent's connections.
_idle: dict[tuple[int, str, str], list[http.client.HTTPConnection]] = {}


class Answer(NamedTuple):
    """What a server says."""

    status: int
    data: bytes


def get(address: str, headers: Mapping[str, str]) -> Answer:
    """Ask for an address of http:// or https://, for whatever status.

    Raises OSError or http.client.HTTPException: no answer, or one that is cut off.
    """
    parts = urlsplit(address)
    idle = _idle.setdefault((os.getpid(), parts.scheme, parts.netloc), [])
    target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    with contextlib.suppress(IndexError, ConnectionError):  # the server may have closed it since
        return _exchange(idle.pop(), idle, target, headers)
    return _exchange(_connected(parts.scheme, parts.netloc), idle, target, headers)


def _exchange(
    connection: http.client.HTTPConnection,
    idle: list[http.client.HTTPConnection],
    target: str,
    headers: Mapping[str, str],
) -> Answer:
    try:
        connection.request("GET", target, headers=dict(headers))
        response = connection.getresponse()
        answer = Answer(response.status, response.read())
    except BaseException:
        connection.close()
        raise
    idle.append(connection)  # if the server closes it, the next request opens it again
    return answer


def _connected(scheme: str, netloc: str) -> http.client.HTTPConnection:
    if scheme == "https":
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            netloc, timeout=CONNECT, context=_tls()
        )
    else:
        connection = http.client.HTTPConnection(netloc, timeout=CONNECT)
    connection.connect()
    connection.sock.settimeout(SILENCE)
    return connection


@functools.cache
def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
