# SPDX-License-Identifier: Apache-2.0
"""Serve the demo page and ask it for all that its app knows, beside a server that may hear of it.

`python -m tests.integration.inference.visit ADDRESS OUT.json`; another ADDRESS than 127.0.0.1 is
added to the loopback device first, which takes a network namespace of one's own. Results are JSON.
"""

import contextlib
import fcntl
import http.server
import io
import json
import re
import socket
import struct
import sys
import tempfile
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image

from vit_jax.cli import serve

MAX_UPLOAD = 1 << 18
_SIOCSIFFLAGS, _SIOCSIFADDR = 0x8914, 0x8916


def raise_loopback(address: str) -> None:
    """Bring up the loopback device of a new namespace, with another address on it."""
    with socket.socket() as any_socket:
        flags = struct.pack("16sH14x", b"lo", 0x1)  # IFF_UP
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, flags)
        ip = struct.pack("16sHH4s8x", b"lo:1", socket.AF_INET, 0, socket.inet_aton(address))
        fcntl.ioctl(any_socket, _SIOCSIFADDR, ip)


@contextlib.contextmanager
def listening(address: str) -> Iterator[tuple[str, list[str]]]:
    """Serve a word to everyone who asks on `address`; yields the URL and who asked for what."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"{self.command} {self.path}")
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"a secret of another server")

        do_HEAD = do_POST = do_GET

        def log_message(self, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer((address, 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://{address}:{server.server_port}", asked
    server.shutdown()
    server.server_close()


def routes(found: Any) -> Iterator[tuple[str, str]]:
    """List (method, path) of an app, also of those within it."""
    for route in found:
        for method in getattr(route, "methods", None) or ():
            yield method, route.path
        inner = getattr(route, "original_router", None)
        if inner is None and not getattr(route, "methods", None):
            inner = getattr(route, "app", None)
        yield from routes(getattr(inner, "routes", ()))


def photo(seed: int = 0, side: int = 32) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


class Visitor:
    """Asks a page and notes each answer under a name."""

    def __init__(self, url: str) -> None:
        self.url, self.answers = url, {}
        self.client = httpx.Client(trust_env=False, timeout=20)

    def ask(self, name: str, method: str, path: str, **more: Any) -> str:
        """Return the body's beginning; of an endless one the first part."""
        url = path if path.startswith("http") else self.url + path
        with self.client.stream(method, url, **more) as answer:
            parts = (part for part in answer.iter_raw() if part)
            body = next(parts, b"") if answer.status_code == 200 else answer.read()
            self.answers[name] = [answer.status_code, body.decode("latin-1")[:1000]]
        return self.answers[name][1]


def every_route(visitor: Visitor, found: Any, outside: str) -> None:
    """Ask for each route of the app, its parameters filled in with another server's address."""
    for method, path in found:
        filled = re.sub(r"\{[^}]*:path\}", f"{outside}/x", path)
        filled = re.sub(r"\{[^}]*\}", "respond", filled)
        body = {} if method != "POST" else {"json": {"url": outside, "data": [outside]}}
        visitor.ask(f"{method} {path}", method, filled, **body)


def calls(visitor: Visitor, outside: str) -> None:
    """Call the page's function, rightly and not."""
    api = "/gradio_api"
    good = {"files": ("a.png", photo())}
    (path,) = json.loads(visitor.ask("upload", "POST", f"{api}/upload", files=good))
    visitor.ask("uploaded", "GET", f"{api}/file={path}")
    meta = {"_type": "gradio.FileData"}

    def join(name: str, value: Any, **more: Any) -> None:
        body = {"fn_index": 1, "session_hash": name, "data": [value], **more}
        visitor.ask(f"join {name}", "POST", f"{api}/queue/join", content=json.dumps(body))

    join("file", {"path": path, "url": f"{outside}/url", "meta": meta})
    visitor.ask("answer", "GET", f"{api}/queue/data?session_hash=file")
    join("nothing", None)
    join("address", {"path": f"{outside}/path", "url": f"{outside}/url", "meta": meta})
    join("passwd", {"path": "/etc/passwd", "meta": meta})
    join("above", {"path": f"{path}/../../../../etc/passwd", "meta": meta})
    for name, value in {"text": outside, "number": 7, "list": [path], "pathless": {}}.items():
        join(name, value)
    join("unknown", None, fn_index=99)
    join("boolean", None, fn_index=True)
    join("unqueued", 0, fn_index=0)
    join("longer", None, data=[None, None])
    join("session", None, session_hash="../..")
    join("half", {"path": path, "orig_name": "\ud800", "meta": meta})
    run = {"fn_index": 0, "session_hash": "example", "data": [0]}
    visitor.ask("run example", "POST", f"{api}/run/predict", json=run)
    for name, index in {"negative": -1, "beyond": 1, "word": outside}.items():
        visitor.ask(f"run {name}", "POST", f"{api}/run/predict", json={**run, "data": [index]})
    past = {**run, "fn_index": 1, "data": [None]}
    visitor.ask("run past the queue", "POST", f"{api}/run/predict", json=past)
    for name, raw in {
        "no JSON": b"{",
        "deep": b"[" * 60_000,
        "a list": b"[]",
        "bytes": bytes(range(256)),
        "large": b" " * 3_000_000,
        "nothing": b"",
    }.items():
        visitor.ask(f"body {name}", "POST", f"{api}/queue/join", content=raw)


def uploads(visitor: Visitor) -> None:
    """Upload what the page does not take."""
    place = "/gradio_api/upload"

    def send(name: str, **more: Any) -> None:
        visitor.ask(f"upload {name}", "POST", place, **more)

    send("text", files={"files": ("a.png", b"no image")})
    send("a movie", files={"files": ("a.png", b"\0\0\0\x20ftypisom" + bytes(99))})
    send("a page", files={"files": ("a.png", b"<svg xmlns='http://www.w3.org/2000/svg'/>")})
    send("nothing", files={"files": ("a.png", b"")})
    send("two", files=[("files", (f"{i}.png", photo(i))) for i in range(2)])
    send("another field", files={"other": ("a.png", photo())})
    send("a field besides", files={"files": ("a.png", photo())}, data={"more": "1"})
    send("large", files={"files": ("a.png", photo() + bytes(8 * MAX_UPLOAD))})
    send("JSON", json=["a.png"])
    send("no boundary", content=photo(), headers={"content-type": "multipart/form-data"})
    torn = {"content-type": "multipart/form-data; boundary=x"}
    send("torn", content=b"--x\r\nContent-Dis", headers=torn)
    send("a climb", files={"files": ("../../../../tmp/vit_jax_climb.png", photo())})
    visitor.ask("upload id", "POST", f"{place}?upload_id=../..", files={"files": photo()})


def origins(visitor: Visitor) -> None:
    """Ask as the page of another site would have a browser ask."""
    port = visitor.url.rpartition(":")[2]
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "127.0.0.1@evil"):
        visitor.ask(f"host {host}", "GET", "/config", headers={"host": host})
    for host in (f"localhost:{port}", "localhost:8000", "127.0.0.1", f"[::1]:{port}"):
        visitor.ask(f"host {host}", "GET", "/config", headers={"host": host})
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1"):
        for method in ("GET", "OPTIONS"):
            more = {"origin": origin, "access-control-request-method": "POST"}
            visitor.ask(f"{method} origin {origin}", method, "/config", headers=more)
    visitor.ask("own origin", "GET", "/config", headers={"origin": visitor.url})


def fill(visitor: Visitor, uploads: Path) -> None:
    """Upload until there is no more room."""
    for seed in range(1, 99):
        image = {"files": ("a.png", photo(seed, side=280))}
        visitor.ask("upload the last", "POST", "/gradio_api/upload", files=image)
        if visitor.answers["upload the last"][0] != 200:
            break
    kept = sum(file.stat().st_size for file in uploads.rglob("*") if file.is_file())
    visitor.answers["kept"] = [kept // MAX_UPLOAD, ""]


def _answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def main(address: str, out: str) -> None:
    if address != "127.0.0.1":
        raise_loopback(address)
    with tempfile.TemporaryDirectory() as folder, listening(address) as (outside, asked):
        serve._only_here(folder)
        from vit_jax.inference import page
        from vit_jax.visual import saliency

        page.title = page.facts = lambda trained: "a model"
        saliency.method = lambda model: "a map"
        seen = page.Answer({"cat": 0.75, "dog": 0.25}, np.zeros((8, 8, 3), np.uint8))
        (example := Path(folder, "example.png")).write_bytes(photo(99))
        blocks = page.build(types.SimpleNamespace(model=None), lambda file: seen, [str(example)])
        app = page.app(blocks, "127.0.0.1", Path(folder), MAX_UPLOAD)
        found = sorted({*routes(app._app.routes)})
        socket_of_page, told = serve._listen("127.0.0.1", 0), threading.Event()
        port = socket_of_page.getsockname()[1]
        job = threading.Thread(
            target=serve._serve, args=(told, app, "127.0.0.1", socket_of_page), daemon=True
        )
        job.start()
        visitor = Visitor(f"http://127.0.0.1:{port}")
        while not _answers(port):
            time.sleep(0.05)
        every_route(visitor, found, outside)
        visitor.ask("file of another server", "GET", f"/gradio_api/file={outside}/file")
        calls(visitor, outside)
        uploads(visitor)
        origins(visitor)
        fill(visitor, Path(folder))
        visitor.ask("the end", "GET", "/config")
        told.set()
        job.join()
        result = {"answers": visitor.answers, "asked": asked, "folder": folder}
        Path(out).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
