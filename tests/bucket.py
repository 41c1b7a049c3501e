# SPDX-License-Identifier: Apache-2.0
"""An emulated bucket on loopback, a process of its own: Google's JSON API, some of S3, http ranges.

Objects are in its memory; it ends when its standard input is closed. `Bucket` starts it and speaks
to it; the fixture `bucket` is one. `Bucket.env` points gcsfs, TensorStore, ArrayRecord's
reader and s3fs to it. Every bucket that is named exists, but for "missing".
"""

import asyncio
import base64
import contextlib
import hashlib
import itertools
import json
import os
import random
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

ROOT = Path(__file__).parent.parent
_PIECE = 1 << 18
_HEADERS = {"X-GUploader-UploadID": "emulated"}
NO_FAULTS: dict[str, Any] = {
    "latency_ms": 0,  # before each answer
    "refused": 0.0,  # share that nothing is done for: 503
    "lost": 0.0,  # share that is done and cut in the middle of its answer
    "silent": 0.0,  # share that is done and never answered
    "forbidden": "",  # names that begin so, "bucket/prefix": 403
    "readonly": "",  # the same, for writes
    "seed": 0,  # of the draws
}


class Bucket:
    """A running server; a context manager. Names are "bucket/path/of/object"."""

    def __init__(self, **faults: Any) -> None:
        command = [sys.executable, "-m", "tests.bucket", json.dumps(faults)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(command, cwd=ROOT, text=True, **pipes)
        assert self._process.stdout is not None
        self.host = self._process.stdout.readline().strip()
        self.url = f"http://{self.host}"
        self.env = {
            "STORAGE_EMULATOR_HOST": self.url,  # gcsfs
            "TENSORSTORE_GCS_HTTP_URL": self.url,
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "anonymous",  # TensorStore asks no metadata server
            "CLOUD_STORAGE_EMULATOR_ENDPOINT": self.url,  # google-cloud-cpp, so ArrayRecord
            "AWS_ENDPOINT_URL": self.url,  # s3fs
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def __enter__(self) -> "Bucket":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server; its objects are gone."""
        self._process.communicate("")

    def set(self, **faults: Any) -> None:
        """Make faults what is given, and everything else faultless."""
        self._ask("POST", "/faults", json.dumps(faults).encode())

    def stats(self) -> dict[str, int]:
        """Return requests, the most at once (since the last call) and bytes sent."""
        return json.loads(self._ask("GET", "/faults"))

    def put(self, name: str, data: bytes) -> None:
        """Store an object."""
        self._ask("PUT", f"/put/{quote(name)}", data)

    def put_tree(self, folder: Path, name: str) -> None:
        """Store every file of a folder under a name."""
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            self.put(f"{name}/{path.relative_to(folder)}", path.read_bytes())

    def get(self, name: str) -> bytes | None:
        """Return an object, None if there is none."""
        try:
            return self._ask("GET", f"/put/{quote(name)}")
        except urllib.error.HTTPError:
            return None

    def names(self, prefix: str = "") -> list[str]:
        """Return the names of all objects that begin so."""
        names = json.loads(self._ask("GET", "/put"))
        return [name for name in names if name.startswith(prefix)]

    def _ask(self, method: str, path: str, data: bytes | None = None) -> bytes:
        request = urllib.request.Request(self.url + path, data, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read()


def forget() -> None:
    """Drop what this process keeps of a bucket's address: drivers, and what they have signed."""
    if "s3fs" in sys.modules:
        sys.modules["s3fs"].S3FileSystem.clear_instance_cache()
    if remote := sys.modules.get("vit_jax.storage.remote"):
        for cached in (remote._driver, remote._signer, remote._signed):
            cached.cache_clear()
        remote._only_driver.clear()


class _Object(NamedTuple):
    data: bytes
    generation: int
    about: dict[str, Any]  # what the client said: contentType, metadata
    metageneration: int = 1


class _Fail(Exception):
    def __init__(self, status: int, why: str) -> None:
        super().__init__(status, why)
        self.status, self.why = status, why


class _Server:
    def __init__(self, faults: dict[str, Any]) -> None:
        self.objects: dict[str, _Object] = {}
        self.uploads: dict[str, tuple[str, dict[str, Any], dict[str, str], bytearray]] = {}
        self.clock = itertools.count(1_700_000_000_000_000)
        self.now = self.most = self.requests = self.sent = 0
        self.set(faults)

    def set(self, faults: dict[str, Any]) -> None:
        unknown = faults.keys() - NO_FAULTS.keys()
        assert not unknown, unknown
        self.faults = NO_FAULTS | faults
        self.random = random.Random(self.faults["seed"])

    # -- one request ---------------------------------------------------------------------------

    async def handle(self, request: Any) -> Any:
        from aiohttp import web

        path, query = request.rel_url.raw_path, dict(request.query)
        if "100-continue" in request.headers.get("Expect", "").lower():
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await request.content.read()  # of any length
        if path == "/faults" or path.split("/")[1] == "put":
            return self._control(web, request.method, unquote(path), body)
        self.requests += 1
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            # All draws of a request at once: its faults do not depend on those of others.
            refused, lost, silent = (self.random.random() for _ in range(3))
            if self.faults["latency_ms"]:
                await asyncio.sleep(self.faults["latency_ms"] / 1000)
            try:
                if refused < self.faults["refused"]:
                    raise _Fail(503, "Backend Error")
                status, headers, data = self._answer(request, path, query, body)
            except _Fail as fail:
                said = {"error": {"code": fail.status, "message": fail.why, "errors": []}}
                status, headers, data = fail.status, {}, json.dumps(said).encode()
                data = b"" if status == 304 else data  # which has no body
            if silent < self.faults["silent"]:
                await asyncio.sleep(3600)
            length = headers.pop("Content-Length", str(len(data)))
            answer = web.StreamResponse(status=status, headers={**_HEADERS, **headers})
            answer.content_length = int(length)
            with contextlib.suppress(ConnectionError):  # the client went away
                await answer.prepare(request)
                if lost < self.faults["lost"]:
                    await answer.write(data[: len(data) // 2])
                    request.transport.close()
                elif request.method != "HEAD":
                    for start in range(0, len(data), _PIECE):  # a client may want no more
                        await answer.write(data[start : start + _PIECE])
                        self.sent += len(data[start : start + _PIECE])
            return answer
        finally:
            self.now -= 1

    def _control(self, web: Any, method: str, path: str, body: bytes) -> Any:
        if path == "/faults" and method == "POST":
            self.set(json.loads(body))
            return web.Response()
        if path == "/faults":
            counts = {"requests": self.requests, "most": self.most, "sent": self.sent}
            self.most = 0
            return web.json_response(counts)
        if path == "/put":
            return web.json_response(sorted(self.objects))
        name = path.removeprefix("/put/")
        if method == "PUT":
            self._store(name, body, {}, {})
            return web.Response()
        found = self.objects.get(name)
        return web.Response(body=found.data) if found else web.Response(status=404)

    def _answer(
        self, request: Any, path: str, query: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        method, headers = request.method, request.headers
        if path == "/batch/storage/v1":
            return self._batch(headers["Content-Type"], body)
        google = re.fullmatch(r"(?:/(?:upload|download))?/storage/v1/b(?:/([^/]+)(/.*)?)?", path)
        if google is None:
            return self._plain(method, unquote(path).strip("/"), query, headers, body)
        bucket, rest = unquote(google[1] or ""), google[2] or ""
        parts = [unquote(part) for part in rest.split("/")[1:]]  # "o", name, action ...
        self._may(method, f"{bucket}/{(parts + [''] * 2)[1] or query.get('name', '')}")
        if bucket == "missing":
            raise _Fail(404, "The specified bucket does not exist.")
        if not rest:
            return _json({"kind": "storage#bucket", "name": bucket, "metageneration": "1"})
        if path.startswith("/upload/"):
            return self._upload(bucket, query, headers, body)
        if len(parts) == 1:
            return self._list(bucket, query)
        name = f"{bucket}/{parts[1]}"
        action = parts[2] if len(parts) > 2 else ""
        if action in ("rewriteTo", "copyTo", "moveTo"):
            source = self._find(name, _source(query))
            target = "/".join([bucket, parts[4]] if action == "moveTo" else [parts[4], parts[6]])
            self._may(method, target)
            about = {**source.about, **(json.loads(body) if body else {})}
            made = self._store(target, source.data, about, query)
            if action == "moveTo":
                del self.objects[name]
            size = str(len(source.data))
            done = {"done": True, "totalBytesRewritten": size, "objectSize": size}
            told = {"kind": "storage#rewriteResponse", **done, "resource": _about(target, made)}
            return _json(told if action == "rewriteTo" else told["resource"])
        if action == "compose":
            asked = json.loads(body)
            pieces = [self._find(f"{bucket}/{s['name']}", {}) for s in asked["sourceObjects"]]
            whole = b"".join(piece.data for piece in pieces)
            made = self._store(name, whole, asked.get("destination", {}), query)
            return _json(_about(name, made))
        if method == "DELETE":
            self._find(name, query)
            del self.objects[name]
            return 204, {}, b""
        found = self._find(name, query)
        if method in ("PATCH", "PUT"):
            about = {**found.about, **json.loads(body)}
            found = found._replace(about=about, metageneration=found.metageneration + 1)
            self.objects[name] = found
        if query.get("alt") == "media":
            return _media(found, headers)
        return _json(_about(name, found))

    def _may(self, method: str, name: str) -> None:
        keys = ("forbidden",) if method in ("GET", "HEAD") else ("forbidden", "readonly")
        for prefix in filter(None, (self.faults[key] for key in keys)):
            if name.startswith(prefix):
                raise _Fail(403, "Permission 'storage.objects' denied on resource")

    def _find(self, name: str, query: dict[str, str]) -> _Object:
        found = self.objects.get(name)
        self._check(found, query)
        if found is None or query.get("generation", str(found.generation)) != str(found.generation):
            raise _Fail(404, f"No such object: {name}")
        return found

    def _check(self, found: _Object | None, query: dict[str, str]) -> None:
        for key, field in (("Generation", "generation"), ("Metageneration", "metageneration")):
            value = str(getattr(found, field, 0))
            if query.get(f"if{key}Match", value) != value:
                raise _Fail(412, "At least one of the pre-conditions you specified did not hold.")
            if query.get(f"if{key}NotMatch") == value:
                raise _Fail(304, "Not Modified")

    def _store(self, name: str, data: bytes, about: dict, query: dict[str, str]) -> _Object:
        self._check(self.objects.get(name), query)
        keep = {k: v for k, v in about.items() if k in ("contentType", "metadata")}
        self.objects[name] = made = _Object(bytes(data), next(self.clock), keep)
        return made

    def _upload(
        self, bucket: str, query: dict[str, str], headers: Any, body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        kind = headers.get("Content-Type", "")
        if "upload_id" in query:
            return self._resume(query["upload_id"], headers, body)
        if query["uploadType"] == "media":
            about, data = {"contentType": kind}, body
        elif query["uploadType"] == "multipart":
            mark = b"--" + re.search(r'boundary="?([^";]+)', kind)[1].encode()  # type: ignore[index]
            first, second = body.split(mark, 2)[1:]
            about = json.loads(re.split(rb"\r?\n\r?\n", first, maxsplit=1)[1])
            data = re.split(rb"\r?\n\r?\n", second, maxsplit=1)[1].rsplit(mark, 1)[0]
            data = data.removesuffix(b"\n").removesuffix(b"\r")
        else:
            about = json.loads(body) if body else {}
            name = f"{bucket}/{query.get('name') or about['name']}"
            self._may("POST", name)
            self._check(self.objects.get(name), query)
            key = str(next(self.clock))
            self.uploads[key] = (name, about, query, bytearray())
            place = f"http://{headers['Host']}/upload/storage/v1/b/{bucket}/o?upload_id={key}"
            return 200, {"Location": place}, b""
        name = f"{bucket}/{query.get('name') or about['name']}"
        self._may("POST", name)
        return _json(_about(name, self._store(name, data, about, query)))

    def _resume(self, key: str, headers: Any, body: bytes) -> tuple[int, dict[str, str], bytes]:
        if key not in self.uploads:
            raise _Fail(404, "No such upload")
        name, about, query, data = self.uploads[key]
        found = re.fullmatch(
            r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)", headers.get("Content-Range", "bytes */*")
        )
        assert found is not None
        if found[1] is not None:
            data[int(found[1]) :] = body
        elif "Content-Range" not in headers:  # all at once
            data[:] = body
        complete = (
            found[2] != "*" and len(data) >= int(found[2])
        ) or "Content-Range" not in headers
        if not complete:
            return 308, {"Range": f"bytes=0-{len(data) - 1}"} if data else {}, b""
        made = self._store(name, bytes(data), about, query)
        return _json(_about(name, made))

    def _list(self, bucket: str, query: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        names, prefixes, token = self._page(bucket, query, int(query.get("maxResults") or 1000))
        answer: dict[str, Any] = {"kind": "storage#objects"}
        answer["items"] = [_about(name, self.objects[name]) for name in names]
        answer["prefixes"] = prefixes
        return _json({**answer, **({"nextPageToken": token} if token else {})})

    def _page(
        self, bucket: str, query: dict[str, str], most: int
    ) -> tuple[list[str], list[str], str]:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        start, end = query.get("startOffset", ""), query.get("endOffset", "")
        token = query.get("pageToken") or query.get("continuation-token") or ""
        names: list[str] = []
        prefixes: list[str] = []
        last = ""
        for name in sorted(name for name in self.objects if name.startswith(f"{bucket}/{prefix}")):
            key = name.removeprefix(f"{bucket}/")
            cut = key.find(delimiter, len(prefix)) if delimiter else -1
            entry = key[: cut + len(delimiter)] if cut >= 0 else key
            if entry < start or (end and entry >= end) or entry <= token or entry in prefixes:
                continue
            if len(names) + len(prefixes) == most:
                return names, prefixes, last
            (names.append(name) if cut < 0 else prefixes.append(entry))
            last = entry
        return names, prefixes, ""

    def _batch(self, kind: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        answers = []
        for found in re.finditer(rb"DELETE /storage/v1/b/([^/ ]+)/o/([^? ]+)", body):
            name = "/".join(unquote(part.decode()) for part in found.groups())
            try:
                self._may("DELETE", name)
                self._find(name, {})
                del self.objects[name]
                answers.append("HTTP/1.1 204 No Content\r\n")
            except _Fail as fail:
                answers.append(f"HTTP/1.1 {fail.status} Failed\r\n")
        parts = [f"--b\r\nContent-Type: application/http\r\n\r\n{a}\r\n" for a in answers]
        text = "".join(parts) + "--b--"
        return 200, {"Content-Type": "multipart/mixed; boundary=b"}, text.encode()

    # -- /bucket/object: S3, Google's XML API and plain http -----------------------------------

    def _plain(
        self, method: str, name: str, query: dict[str, str], headers: Any, body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        self._may(method, name or query.get("prefix", ""))
        bucket = name.partition("/")[0]
        if bucket == "missing":
            return 404, {}, b"<Error><Code>NoSuchBucket</Code></Error>"
        if "list-type" in query:
            names, prefixes, token = self._page(bucket, query, int(query.get("max-keys", 1000)))
            found = [(name.removeprefix(f"{bucket}/"), self.objects[name]) for name in names]
            rows = [
                f"<Contents><Key>{key}</Key><Size>{len(o.data)}</Size><ETag>{_etag(o)}</ETag>"
                "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
                for key, o in found
            ]
            rows += [f"<CommonPrefixes><Prefix>{p}</Prefix></CommonPrefixes>" for p in prefixes]
            more = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
            cut = f"<IsTruncated>{str(bool(token)).lower()}</IsTruncated>{more}"
            text = f"<ListBucketResult><Name>{bucket}</Name>{cut}{''.join(rows)}</ListBucketResult>"
            return 200, {"Content-Type": "application/xml"}, text.encode()
        if method == "PUT":
            return 200, {"ETag": _etag(self._store(name, body, {}, {}))}, b""
        if name == bucket:
            return 200, {}, b""
        if name not in self.objects:
            return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
        if method == "DELETE":
            del self.objects[name]
            return 204, {}, b""
        return _media(self.objects[name], headers)


def _source(query: dict[str, str]) -> dict[str, str]:
    """Return the conditions on the source of a copy, under the names of a read's."""
    found = {k: v for k, v in query.items() if k.startswith(("ifSource", "sourceGeneration"))}
    return {
        k.replace("ifSource", "if").replace("sourceGeneration", "generation"): v
        for k, v in found.items()
    }


def _media(found: _Object, headers: Any) -> tuple[int, dict[str, str], Any]:
    told = {
        "ETag": _etag(found),
        "x-goog-generation": str(found.generation),
        "x-goog-metageneration": str(found.metageneration),
        "x-goog-stored-content-length": str(len(found.data)),
        "Accept-Ranges": "bytes",
        "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT",
        "Content-Type": "application/octet-stream",
    }
    asked = re.fullmatch(r"bytes=(\d*)-(\d*)", headers.get("Range", ""))
    if asked is None:
        return 200, told, found.data
    size = len(found.data)
    first = int(asked[1]) if asked[1] else max(size - int(asked[2]), 0)
    stop = min(int(asked[2]) + 1, size) if asked[1] and asked[2] else size
    if first >= size:
        raise _Fail(416, "Requested range not satisfiable")
    told["Content-Range"] = f"bytes {first}-{stop - 1}/{size}"
    return 206, told, memoryview(found.data)[first:stop]


def _etag(found: _Object) -> str:
    return f'"{found.generation}"'


def _about(name: str, found: _Object) -> dict[str, Any]:
    bucket, _, key = name.partition("/")
    return {
        "kind": "storage#object",
        "id": f"{name}/{found.generation}",
        "bucket": bucket,
        "name": key,
        "generation": str(found.generation),
        "metageneration": str(found.metageneration),
        "size": str(len(found.data)),
        "md5Hash": base64.b64encode(hashlib.md5(found.data).digest()).decode(),
        "etag": str(found.generation),
        "timeCreated": "2026-01-01T00:00:00.000Z",
        "updated": "2026-01-01T00:00:00.000Z",
        "storageClass": "STANDARD",
        "contentType": "application/octet-stream",
        **found.about,
    }


def _json(value: Any) -> tuple[int, dict[str, str], bytes]:
    return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()


async def _serve(faults: dict[str, Any]) -> None:
    from aiohttp import web

    runner = web.ServerRunner(web.Server(_Server(faults).handle, access_log=None))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    assert site._server is not None
    host, port = site._server.sockets[0].getsockname()  # type: ignore[union-attr]
    print(f"{host}:{port}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    os._exit(0)  # answers that never come hold no process


if __name__ == "__main__":
    asyncio.run(_serve(json.loads(sys.argv[1])))
