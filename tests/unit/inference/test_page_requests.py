# SPDX-License-Identifier: Apache-2.0
"""By which hosts the demo page is known, and from which origins."""

import socket

import pytest

from vit_jax.errors import UserError
from vit_jax.inference.page_requests import Refused, check_origin, read_public_url

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
    headers = [(b"host", asked.encode())] + ([(b"origin", origin.encode())] if origin else [])
    if status is None:
        check_origin(headers, host)
        return
    with pytest.raises(Refused) as refused:
        check_origin(headers, host)
    assert refused.value.status == status


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
    headers = [(b"host", asked.encode())] + ([(b"origin", origin.encode())] if origin else [])
    if status is None:
        assert check_origin(headers, "127.0.0.1", PUBLIC) == ("demo" in asked.lower())
        return
    with pytest.raises(Refused) as refused:
        check_origin(headers, "127.0.0.1", PUBLIC)
    assert refused.value.status == status


def test_a_public_url_is_a_scheme_and_a_name() -> None:
    assert read_public_url("") == ""
    assert read_public_url("HTTPS://Demo.example.com/") == PUBLIC
    assert read_public_url("http://demo.example.com:8080") == "http://demo.example.com:8080"
    for wrong in ("demo.example.com", "https://demo.example.com/vit", "ftp://demo.example.com"):
        with pytest.raises(UserError, match="without a path"):
            read_public_url(wrong)


@pytest.mark.parametrize("hosts", [[], [b"localhost", b"localhost"], [b"localhost", b"evil"]])
def test_one_host_must_be_named(hosts: list[bytes]) -> None:
    with pytest.raises(Refused, match="under that host"):
        check_origin([(b"host", host) for host in hosts], "127.0.0.1")
