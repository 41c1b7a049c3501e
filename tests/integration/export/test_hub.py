# SPDX-License-Identifier: Apache-2.0
"""The Hub's own client against a small server that answers as the Hub does."""

import base64
import http.server
import importlib.util
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("huggingface_hub") is None, reason="needs the extra [hub]"
)

# A process of its own: the client reads where the Hub is when it is imported.
_PUSHES = """
import os, pathlib
from vit_jax.errors import UserError
from vit_jax.inference import hub

for repo, token in (("me/new", "good"), ("me/open", "good"), ("them/x", "good"),
                    ("nobody/x", "good"), ("me/gone", "good"), ("me/new", "bad"), ("me/new", "")):
    os.environ["HF_TOKEN"] = token
    try:
        hub.check(repo)
        names = ["README.md", "model.onnx"]
        public = repo == "me/open"
        print(hub.push(pathlib.Path("out"), names, repo, public=public, message="said"))
    except UserError as error:
        print("error:", error)
"""


class Request(NamedTuple):
    path: str
    token: str
    body: bytes


class Hub(http.server.BaseHTTPRequestHandler):
    """Knows the user `me` by the token `good`, and an organisation where `me` may not write."""

    seen: list[Request]

    def log_message(self, *_: Any) -> None:
        pass

    def _reply(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        token = self.headers.get("Authorization", "")
        self.seen.append(Request(self.path, token, body))
        status, answer = self._answer(token, body)
        if status is None:
            self.connection.close()
            return
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _answer(self, token: str, body: bytes) -> tuple[int | None, dict]:
        here = f"http://{self.headers['Host']}"
        if token != "Bearer good":
            return 401, {"error": "Invalid username or password."}
        if "whoami" in self.path:
            return 200, {"name": "me", "type": "user", "orgs": []}
        if self.path == "/api/repos/create":
            wanted = json.loads(body)
            if wanted["name"] == "gone":
                return None, {}
            owner = wanted["organization"]
            if owner == "them":
                return 403, {"error": "You have no rights here."}
            if owner == "nobody":
                return 404, {"error": "No such namespace."}
            return 200, {"url": f"{here}/{owner}/{wanted['name']}"}
        if "/preupload/" in self.path:
            plain = {"uploadMode": "regular", "shouldIgnore": False}
            return 200, {"files": [plain | {"path": f["path"]} for f in json.loads(body)["files"]]}
        if "/commit/" in self.path:
            owner = "/".join(self.path.split("/")[3:5])
            return 200, {"commitUrl": f"{here}/{owner}/commit/1", "commitOid": "1", "success": True}
        if self.command == "GET":  # is the repository there already?
            return 404, {"error": "Repository not found"}
        return 200, {}

    do_GET = do_POST = _reply


def test_a_push_and_its_refusals(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    for name in ("README.md", "model.onnx", "private.txt"):
        (tmp_path / "out" / name).write_text(f"text of {name}")
    handler = type("Handler", (Hub,), {"seen": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    here = f"http://127.0.0.1:{server.server_port}"
    env = {**os.environ, "HF_ENDPOINT": here, "HF_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", _PUSHES],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    server.shutdown()
    assert done.returncode == 0, done.stderr
    pushed, opened, forbidden, nobody, gone, unknown, without = done.stdout.splitlines()
    assert (pushed, opened) == (f"{here}/me/new", f"{here}/me/open")
    assert "error: --push=them/x: the Hub refuses the token (403: You have no rights" in forbidden
    assert forbidden.endswith("; out is complete, and can be pushed again")
    assert "nobody/x: the Hub has no such user or organisation" in nobody
    assert "gone: the Hub cannot be reached, or its answer not read: " in gone
    assert "error: --push=me/new: the Hub refuses the token (401: Invalid user" in unknown
    assert without.startswith("error: --push needs a token")
    created = [json.loads(r.body) for r in handler.seen if r.path == "/api/repos/create"]
    assert [r["visibility"] for r in created[:2]] == ["private", "public"]
    assert [r.path for r in handler.seen if r.token == "Bearer bad"] == ["/api/whoami-v2"]
    commits = [r for r in handler.seen if "/commit/" in r.path]
    assert [r.path for r in commits] == [
        "/api/models/me/new/commit/main",
        "/api/models/me/open/commit/main",
    ]
    header, *files = map(json.loads, commits[0].body.decode().splitlines())
    assert header["value"]["summary"] == "said"
    found = {f["value"]["path"]: base64.b64decode(f["value"]["content"]) for f in files}
    assert found == {name: f"text of {name}".encode() for name in ("README.md", "model.onnx")}
    assert all("private.txt" not in str(r.body) for r in handler.seen)
