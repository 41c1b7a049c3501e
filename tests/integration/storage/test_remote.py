# SPDX-License-Identifier: Apache-2.0
import http.server
import multiprocessing
import os
import random
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.bucket import Bucket
from tests.conftest import needs_s3fs
from vit_jax.storage import connections, remote

DATA = random.Random(0).randbytes(300_000)


@pytest.fixture
def served(bucket: Bucket) -> Bucket:
    bucket.set()
    for i in range(3):
        bucket.put(f"data/train-00{i}.tar", DATA)
    return bucket


@pytest.fixture(params=["gs://data", "s3://data", ""])
def root(request: pytest.FixtureRequest) -> str:
    if request.param.startswith("s3"):
        needs_s3fs()
    return request.param


def test_lists_and_reads(served: Bucket, root: str) -> None:
    root, last = root or f"{served.url}/data", "{000..002}" if not root else "*"
    found = remote.find(f"{root}/train-{last}.tar")
    assert [(f.path, f.size) for f in found] == [
        (f"{root}/train-00{i}.tar", len(DATA)) for i in range(3)
    ]
    path = found[1].path
    assert remote.info(path) == found[1]
    assert remote.read(path) == DATA
    assert remote.read_range(path, 5, 100) == DATA[5:100]
    assert remote.read_range(path, 299_990, 300_100) == DATA[299_990:]
    served.put("data/train-001.tar", DATA)
    assert remote.info(path).version != found[1].version
    with pytest.raises(remote.RemoteError, match=r"none\.tar: there is no such file or bucket"):
        remote.info(f"{root}/none.tar")
    with pytest.raises(remote.RemoteError, match=r"x\.tar: there is no such file or bucket"):
        remote.read_range(f"{root.rpartition('/')[0]}/missing/x.tar", 0, 9)
    served.set(forbidden="data/")
    for ask in (remote.read, remote.info):
        with pytest.raises(remote.RemoteError, match=r"001\.tar: no right to do this; "):
            ask(path)


def test_reads_through_what_fails_for_a_moment(
    served: Bucket, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_FIRST_PAUSE", 0.02)
    root = root or f"{served.url}/data"
    served.set(refused=0.1, lost=0.1, seed=3)
    path = f"{root}/train-000.tar"

    def read(start: int) -> bool:
        return remote.read_range(path, start, start + 1000) == DATA[start : start + 1000]

    with ThreadPoolExecutor(64) as pool:
        assert all(pool.map(read, range(0, 64_000, 1000)))


def test_an_answer_that_never_comes(served: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SILENCE", 0.2)
    monkeypatch.setattr(connections, "_idle", {})  # of the other tests' timeouts
    monkeypatch.setattr(remote, "_FIRST_PAUSE", 0.01)
    served.set(silent=1.0)
    with pytest.raises(remote.RemoteError, match="no answer after several tries"):
        remote.read_range(f"{served.url}/data/train-000.tar", 0, 9)


@pytest.fixture
def elsewhere(served: Bucket) -> Iterator[str]:
    """Return the address of a server that redirects all requests to the bucket's."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(307)
            self.send_header("Location", f"{served.url}/{self.path.lstrip('/')}")
            self.send_header("Content-Length", "0")
            self.end_headers()

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_a_server_that_redirects(elsewhere: str) -> None:
    for start in (5, 7):
        found = remote.read_range(f"{elsewhere}/data/train-000.tar", start, 100)
        assert found == DATA[start:100]
    assert elsewhere in remote._redirecting


def test_signed_addresses_of_another_region_are_left_to_the_driver(
    served: Bucket, elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_s3fs()
    monkeypatch.setattr(remote, "_only_driver", set())
    path = "s3://data/train-000.tar"
    assert remote.read_range(path, 5, 100) == DATA[5:100]
    assert not remote._only_driver
    assert "X-Amz-Algorithm=AWS4-HMAC-SHA256" in remote._signed(path, os.getpid(), 0)
    served.set(forbidden="data/")  # to the driver as well: no fault of the address
    with pytest.raises(remote.ForbiddenError):
        remote.read_range(path, 5, 100)
    assert not remote._only_driver
    served.set()
    monkeypatch.setattr(remote, "_signed", lambda *_: f"{elsewhere}/data/none")
    for _ in range(2):
        assert remote.read_range(path, 5, 100) == DATA[5:100]
    assert remote._only_driver == {"s3://data"}


def test_the_driver_knows_proxies_and_certificates(
    served: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_s3fs()
    path, other = "s3://data/train-000.tar", "s3://data/train-001.tar"
    monkeypatch.setattr(remote, "_only_driver", set())
    with monkeypatch.context() as patch:
        patch.setattr(remote, "_signed", lambda *_: "http://127.0.0.1:9/none")
        patch.setattr(remote, "_proxies", lambda: {"http": "http://127.0.0.1:9"})
        assert remote.read_range(path, 5, 100) == DATA[5:100]
    assert not remote._only_driver

    def untrusted(*_: object) -> None:
        raise ssl.SSLCertVerificationError("self-signed certificate")

    monkeypatch.setattr(connections, "get", untrusted)
    assert remote.read_range(other, 5, 100) == DATA[5:100]
    assert remote._only_driver == {"s3://data"}


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_FIRST_PAUSE", 0.01)
    with pytest.raises(remote.RemoteError, match=r"^http://127\.0\.0\.1:9/x: no answer"):
        remote.info("http://127.0.0.1:9/x")


def test_many_reads_are_in_flight(served: Bucket) -> None:
    served.set(latency_ms=200)
    served.stats()
    with ThreadPoolExecutor(64) as pool:
        list(pool.map(lambda i: remote.read_range("gs://data/train-000.tar", i, i + 9), range(128)))
    assert served.stats()["most"] >= 60


def _last(path: str) -> bytes:
    return remote.read_range(path, 299_999, 300_000)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_new_process_reads_by_itself(served: Bucket, method: str) -> None:
    paths = ["gs://data/train-000.tar", f"{served.url}/data/train-000.tar"]
    assert {_last(path) for path in paths} == {DATA[-1:]}
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.map_async(_last, paths).get(timeout=60) == [DATA[-1:]] * 2
    assert {_last(path) for path in paths} == {DATA[-1:]}
