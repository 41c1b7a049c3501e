# SPDX-License-Identifier: Apache-2.0
"""The emulated bucket serves the real clients of gs://, s3:// and http://."""

import http.client
import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pytest
import tensorstore
from array_record.python import array_record_module

from tests.bucket import Bucket
from tests.conftest import needs_s3fs

ROWS = [b"record %03d" % i * 50 for i in range(200)]


@pytest.fixture
def gcs(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> fsspec.AbstractFileSystem:
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # it would speak gRPC
    bucket.set()
    return fsspec.filesystem("gs", token="anon", use_listings_cache=False)


def test_gcsfs(bucket: Bucket, gcs: fsspec.AbstractFileSystem) -> None:
    large = bytes(range(256)) * 9000
    gcs.pipe_file("data/few.txt", b"hello world")
    # One upload of several parts.
    with gcs.open("data/deep/large", "wb", block_size=2**18) as stream:
        stream.write(large)
    assert bucket.get("data/deep/large") == large
    assert gcs.cat_file("data/few.txt", start=6, end=99) == b"world"
    assert gcs.ls("data", detail=False) == ["data/deep", "data/few.txt"]
    assert gcs.glob("data/**/l*") == ["data/deep/large"]
    assert gcs.info("data/few.txt")["size"] == 11
    gcs.mv("data/few.txt", "data/other.txt")
    gcs.rm("data/deep", recursive=True)
    assert bucket.names("data/") == ["data/other.txt"]
    for gone in ("data/few.txt", "missing/few.txt"):
        with pytest.raises(FileNotFoundError):
            gcs.cat_file(gone)


def test_lists_by_pages(bucket: Bucket, gcs: fsspec.AbstractFileSystem) -> None:
    for i in range(1005):
        bucket.put(f"many/{i:04d}", b"")
    assert len(gcs.ls("many")) == 1005


def test_tensorstore(bucket: Bucket) -> None:
    bucket.set()
    store = tensorstore.KvStore.open({"driver": "gcs", "bucket": "shapes", "path": "a/"}).result()
    first = store.write("x", b"1").result()
    store.write("x", b"2", if_equal=first.generation).result()
    stale = store.write("x", b"3", if_equal=first.generation).result()
    assert stale.generation != first.generation
    assert (store["x"], store.list().result(), bucket.get("shapes/a/x")) == (b"2", [b"x"], b"2")
    store.delete_range(tensorstore.KvStore.KeyRange()).result()
    assert bucket.names("shapes/") == []


def test_array_record(bucket: Bucket, tmp_path: Path) -> None:
    bucket.set()
    file = tmp_path / "r.array_record"
    writer = array_record_module.ArrayRecordWriter(str(file), "group_size:1")
    for row in ROWS:
        writer.write(row)
    writer.close()
    bucket.put("data/r.array_record", file.read_bytes())
    reader = array_record_module.ArrayRecordReader("gs://data/r.array_record")
    assert reader.num_records() == len(ROWS)
    assert reader.read([7, 199]) == [ROWS[7], ROWS[199]]


def test_s3_and_http(bucket: Bucket) -> None:
    bucket.set()
    needs_s3fs()
    s3 = fsspec.filesystem("s3", use_listings_cache=False)
    s3.pipe_file("data/a/b.txt", b"hello")
    assert (s3.cat_file("data/a/b.txt", start=1, end=3), s3.info("data/a/b.txt")["size"]) == (
        b"el",
        5,
    )
    assert s3.ls("data/a", detail=False) == s3.glob("data/*/b*") == ["data/a/b.txt"]
    s3.rm_file("data/a/b.txt")
    with pytest.raises(FileNotFoundError):
        s3.info("data/a/b.txt")
    bucket.put("data/c", b"hello")
    url = f"{bucket.url}/data/c"
    assert fsspec.filesystem("http").cat_file(url, start=1, end=3) == b"el"


def _ask(bucket: Bucket, method: str, path: str, body: dict | None = None) -> int:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"{bucket.url}/storage/v1/b/data/o/{path}", data, method=method
    )
    try:
        return urllib.request.urlopen(request, timeout=20).status
    except urllib.error.HTTPError as error:
        return error.code


def test_conditions(bucket: Bucket) -> None:
    bucket.set()
    bucket.put("data/x", b"1")
    bucket.put("data/y", b"2")
    both = {"sourceObjects": [{"name": "x"}, {"name": "y"}]}
    assert _ask(bucket, "POST", "x/compose?ifGenerationMatch=0", both) == 412
    assert _ask(bucket, "POST", "z/compose?ifGenerationMatch=0", both) == 200
    assert bucket.get("data/z") == b"12"
    assert _ask(bucket, "GET", "x?ifGenerationMatch=5") == 412
    assert _ask(bucket, "GET", "x?ifMetagenerationNotMatch=1") == 304
    line = http.client.HTTPConnection(bucket.host, timeout=20)
    for place, status in (("x?ifMetagenerationNotMatch=1", 304), ("x", 200)):  # no body between
        line.request("GET", f"/storage/v1/b/data/o/{place}")
        answer = line.getresponse()
        assert (answer.status, answer.read() == b"") == (status, status == 304)
    line.close()
    assert _ask(bucket, "POST", "x/rewriteTo/b/data/o/x2?ifGenerationMatch=0") == 200
    assert _ask(bucket, "POST", "x/rewriteTo/b/data/o/x2?ifGenerationMatch=0") == 412
    assert _ask(bucket, "DELETE", "x?ifGenerationMatch=5") == 412
    assert _ask(bucket, "DELETE", "x") == 204


def test_faults(bucket: Bucket) -> None:
    bucket.put("data/x", b"12")
    bucket.set(refused=0.5, seed=1)
    drawn = [_ask(bucket, "GET", "x") for _ in range(20)]
    assert set(drawn) == {200, 503}
    bucket.set(refused=0.5, seed=1)
    assert drawn == [_ask(bucket, "GET", "x") for _ in range(20)]
    bucket.set(forbidden="data/x", readonly="data/y")
    bucket.put("data/y", b"12")
    assert [_ask(bucket, "GET", "x"), _ask(bucket, "GET", "y"), _ask(bucket, "DELETE", "y")] == [
        403,
        200,
        403,
    ]
    bucket.set(lost=1.0)
    with pytest.raises(Exception, match=r"closed|IncompleteRead|reset"):
        urllib.request.urlopen(f"{bucket.url}/data/x", timeout=20).read()
    bucket.set(silent=1.0)
    with pytest.raises(TimeoutError):
        urllib.request.urlopen(f"{bucket.url}/data/x", timeout=0.1)
    bucket.set(latency_ms=50)
    bucket.stats()
    with ThreadPoolExecutor(64) as pool:
        list(pool.map(lambda _: _ask(bucket, "GET", "x"), range(64)))
    assert bucket.stats()["most"] > 16
    bucket.set()
