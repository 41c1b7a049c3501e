# SPDX-License-Identifier: Apache-2.0
"""Every route of the demo page's app, asked over HTTP beside a server that must never be asked."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PUBLIC = "9.9.9.9"  # an address that is not refused for being private; the namespace's own
# What the page is made of and asks; all else is closed.
OPEN = {
    "GET /",
    "HEAD /",
    "GET /config",
    "GET /favicon.ico",
    "GET /manifest.json",
    "GET /robots.txt",
    "GET /theme.css",
    "GET /gradio_api/theme.css",
    "GET /gradio_api/heartbeat/{session_hash}",
}
ASKED_WRONGLY = {
    "GET /gradio_api/queue/data",
    "GET /gradio_api/upload_progress",
    "POST /gradio_api/queue/join",
    "POST /gradio_api/upload",
}


@dataclasses.dataclass
class Visit:
    answers: dict[str, tuple[int, str]]
    asked: list[str]
    output: str
    isolated: bool

    def statuses(self, beginning: str) -> dict[str, int]:
        return {
            name.removeprefix(beginning): status
            for name, (status, _) in self.answers.items()
            if name.startswith(beginning)
        }


def has_namespaces() -> bool:
    try:
        return subprocess.run(["unshare", "-rn", "true"], capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.fixture(scope="module")
def visit(tmp_path_factory: pytest.TempPathFactory) -> Visit:
    """Visit the page in a network namespace of its own; on the loopback where there are none."""
    out = tmp_path_factory.mktemp("visit") / "out.json"
    isolated = has_namespaces()
    words = [
        sys.executable,
        "-m",
        "tests.integration.inference.visit",
        PUBLIC if isolated else "127.0.0.1",
        out,
    ]
    found = subprocess.run(
        [*(["unshare", "-rn"] if isolated else []), *words],
        cwd=ROOT, env={**os.environ, "JAX_NUM_CPU_DEVICES": "1"}, timeout=120,
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout
    result = json.loads(out.read_text())
    return Visit(result["answers"], result["asked"], found.stdout, isolated)


@pytest.mark.slow
def test_every_route_but_the_pages_own_is_closed(visit: Visit) -> None:
    routes = [name for name in visit.answers if re.match(r"(GET|HEAD|POST) /", name)]
    assert len(routes) > 70
    for known in ("POST /gradio_api/process_recording", "GET /gradio_api/dev/reload"):
        assert known in routes
    for name in routes:
        status, body = visit.answers[name]
        if name in OPEN:
            assert status == 200, name
        elif name in ASKED_WRONGLY:
            assert status == 400, name
        else:
            assert (status, body) == (404, "" if name.startswith("HEAD") else "no such page\n"), (
                name
            )


@pytest.mark.slow
def test_no_other_server_is_asked(visit: Visit) -> None:
    assert visit.answers["file of another server"] == [404, "no such page\n"]
    assert visit.answers["join address"][0] == 404
    assert visit.asked == []


@pytest.mark.slow
def test_no_public_address_is_asked(visit: Visit) -> None:
    if not visit.isolated:
        pytest.skip("no network namespace may be made here (unshare -rn): asked on 127.0.0.1 alone")
    assert visit.asked == []


@pytest.mark.slow
def test_what_the_page_itself_does_goes_through(visit: Visit) -> None:
    for name in ("upload", "uploaded", "join file", "join half", "run example", "own origin"):
        assert visit.answers[name][0] == 200, name
    assert visit.answers["answer"][0] == 200
    assert visit.answers["uploaded"][1].startswith("\x89PNG")
    (path,) = json.loads(visit.answers["upload a climb"][1])
    assert path.endswith("/image.png")
    assert not Path("/tmp/vit_jax_climb.png").exists()
    assert visit.answers["the end"][0] == 200


@pytest.mark.slow
def test_what_is_malformed_gets_one_line(visit: Visit) -> None:
    joins = visit.statuses("join ")
    assert {joins.pop(name) for name in ("file", "nothing", "half")} == {200}
    assert {joins.pop(name) for name in ("address", "passwd", "above")} == {404}
    assert len(joins) == 9
    assert set(joins.values()) == {400}
    runs = visit.statuses("run ")
    assert runs.pop("example") == 200
    assert len(runs) == 4
    assert set(runs.values()) == {400}
    bodies = visit.statuses("body ")
    assert bodies.pop("large") == 413
    assert len(bodies) == 5
    assert set(bodies.values()) == {400}
    for name, (status, told) in visit.answers.items():
        if status >= 400 and not name.startswith("HEAD"):
            assert len(told.splitlines()) == 1, name
    (line,) = visit.output.splitlines()
    assert line.startswith("the page is at http://127.0.0.1:")


@pytest.mark.slow
def test_uploads_are_images_one_by_one_within_limits(visit: Visit) -> None:
    assert visit.statuses("upload ") == {
        "text": 415,
        "a movie": 415,
        "a page": 415,
        "nothing": 415,
        "two": 400,
        "another field": 400,
        "a field besides": 400,
        "large": 413,
        "JSON": 400,
        "no boundary": 400,
        "torn": 400,
        "a climb": 200,
        "id": 400,
        "the last": 503,
    }
    assert visit.answers["upload the last"][1] == "too many uploads; come back in ten minutes\n"
    assert 16 < visit.answers["kept"][0] <= 32


@pytest.mark.slow
def test_other_hosts_and_origins_are_refused(visit: Visit) -> None:
    hosts = visit.statuses("host ")
    strangers = {name for name in hosts if "evil" in name or not name}
    assert len(strangers) == 5
    assert {hosts[name] for name in strangers} == {421}
    assert len(hosts) == 9
    assert {hosts[name] for name in hosts.keys() - strangers} == {200}
    for method in ("GET", "OPTIONS"):
        origins = visit.statuses(f"{method} origin ")
        assert len(origins) == 4
        assert set(origins.values()) == {403}
