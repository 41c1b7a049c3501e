# SPDX-License-Identifier: Apache-2.0
"""A small server that answers the Hub's client on downloads as the Hub does."""

import contextlib
import hashlib
import http.server
import threading
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest

# repository -> revision -> file -> its bytes
Repositories = Mapping[str, Mapping[str, Mapping[str, bytes]]]
GATED = "meta/gated"


def commit(repo: str, revision: str) -> str:
    """Return the hash of a revision's commit."""
    return hashlib.sha1(f"{repo}@{revision}".encode()).hexdigest()


class Hub(NamedTuple):
    address: str
    seen: list[str]  # method, repository, revision and file of each request


class _Handler(http.server.BaseHTTPRequestHandler):
    repositories: Repositories
    seen: list[str]

    def log_message(self, *_: Any) -> None:
        pass

    def _reply(self) -> None:
        user, name, _, revision, file = self.path.lstrip("/").split("/", 4)
        repo = f"{user}/{name}"
        self.seen.append(f"{self.command} {repo} {revision} {file}")
        if repo == GATED:
            return self._refuse(403, "GatedRepo")
        if repo not in self.repositories:
            return self._refuse(401, "RepoNotFound")
        revisions = self.repositories[repo]
        hashes = {commit(repo, each): each for each in revisions}
        revision = hashes.get(revision, revision)
        if revision not in revisions:
            return self._refuse(404, "RevisionNotFound")
        data = revisions[revision].get(file)
        if data is None:
            return self._refuse(404, "EntryNotFound", commit(repo, revision))
        self.send_response(200)
        self.send_header("X-Repo-Commit", commit(repo, revision))
        self.send_header("ETag", f'"{hashlib.sha1(data).hexdigest()}"')
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def _refuse(self, status: int, code: str, of: str = "") -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", f"said by the server: {code}")
        if of:
            self.send_header("X-Repo-Commit", of)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD = _reply


@contextlib.contextmanager
def serving(repositories: Repositories) -> Iterator[Hub]:
    """Serve repositories until the end; the mapping may change meanwhile."""
    seen: list[str] = []
    handler = type("Handler", (_Handler,), {"repositories": repositories, "seen": seen})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield Hub(f"http://127.0.0.1:{server.server_port}", seen)
    finally:
        server.shutdown()
        server.server_close()


def use(monkeypatch: pytest.MonkeyPatch, address: str, cache: Any) -> None:
    """Have the Hub's client ask this address, with a cache of its own."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the client do what HF_HUB_OFFLINE=1 says."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
