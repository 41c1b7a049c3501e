# SPDX-License-Identifier: Apache-2.0
"""The demo page: the real command, stopped by a real signal, looked at in a real browser."""

import dataclasses
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.browser import browser_needed
from tests.unit.cli.test_serve import MODEL, NAMES, color_params
from tests.unit.weights import runs
from vit_jax.checkpoints import CheckpointConfig
from vit_jax.checkpoints.checkpointer import Checkpointer
from vit_jax.cli import serve
from vit_jax.config import saved as config_json
from vit_jax.config.tree import Config
from vit_jax.data import Crop, TransformConfig
from vit_jax.evals import ClassifyEval
from vit_jax.inference import page

ROOT = Path(__file__).parents[3]
WAIT = 60  # seconds, for a machine that is busy


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs") / "colors"
    cfg = Config(model=MODEL)
    cfg.data.mean, cfg.data.std = (0.0,), (1.0,)
    cfg.evals = {"val": ClassifyEval(transform=TransformConfig(crop=Crop.RESIZE))}
    metadata = {"config": config_json.to_json(cfg), "class_names": NAMES}
    checkpoints = Checkpointer(place / "checkpoints", CheckpointConfig())
    state = dataclasses.replace(runs.make_state(MODEL, 1234), params=color_params())
    checkpoints.save(1234, state, metadata=metadata, metrics={})
    checkpoints.wait()
    return place


def photo(color: int, *, orientation: int = 1) -> bytes:
    """Write a black JPEG with a coloured patch in the first corner, as a phone that was turned."""
    pixels = np.zeros((64, 64, 3), np.uint8)
    pixels[:16, :16, color] = 255
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=95, subsampling=0, exif=exif)
    return file.getvalue()


def png() -> bytes:
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    Image.fromarray(noise).save(file, "PNG")
    return file.getvalue()


@dataclasses.dataclass
class Server:
    process: subprocess.Popen[str]
    url: str
    lines: list[str]
    temp: Path


@pytest.fixture(scope="module")
def server(run: Path, tmp_path_factory: pytest.TempPathFactory, ctrl_c: None) -> Iterator[Server]:
    """Run the first command of docs/serve.md, on this run, a free port and its own temp folder."""
    place = tmp_path_factory.mktemp("serve")
    (temp := place / "temp").mkdir()
    (blue := place / "blue.jpg").write_bytes(photo(2))
    text = (ROOT / "docs" / "serve.md").read_text()
    (command, *_) = re.findall(r"^(vit_jax serve .*)$", text, re.MULTILINE)
    words = command.replace("runs/vit_mu_digits", str(run)).replace("docs/images/digits", str(blue))
    assert {str(run), str(blue)} <= {word.partition("=")[2] for word in shlex.split(words)}
    env = {
        **os.environ,
        "TMPDIR": str(temp),
        "JAX_NUM_CPU_DEVICES": "1",
        "GRADIO_ALLOWED_PATHS": "/",  # whoever has set these for something else
        "GRADIO_SHARE": "true",
        "HTTP_PROXY": "http://127.0.0.1:9",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", *shlex.split(words), "--port=0", "--max_upload_mb=1"],
        cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if found := re.match(r"the page is at (http://127\.0\.0\.1:\d+)/", line):
            break
    else:
        pytest.fail("".join(lines))
    rest = threading.Thread(target=lambda: lines.extend(process.stdout), daemon=True)
    rest.start()
    yield Server(process, found[1], lines, temp)
    process.kill()
    process.wait()
    rest.join()


def wait(chrome: Any, condition: Any) -> Any:
    """Wait until the condition holds; Svelte replaces elements while one looks at them."""
    from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
    from selenium.webdriver.support.ui import WebDriverWait

    missing = (NoSuchElementException, StaleElementReferenceException)
    return WebDriverWait(chrome, WAIT, 0.1, missing).until(condition)


def text(chrome: Any, selector: str = "body") -> str:
    return chrome.find_element("css selector", selector).text


def upload(chrome: Any, path: Path) -> None:
    wait(chrome, lambda c: c.find_element("css selector", "#image input[type=file]")).send_keys(
        str(path)
    )


def probability(chrome: Any) -> dict[str, int]:
    """Read the bars: per cent by class."""
    found = re.findall(r"^(\w+)\n(\d+)%$", text(chrome, "#classes"), re.MULTILINE)
    return {name: int(number) for name, number in found}


def shown_overlay(chrome: Any) -> np.ndarray:
    url = chrome.find_element("css selector", "#overlay img").get_attribute("src")
    return np.asarray(Image.open(io.BytesIO(httpx.get(url, trust_env=False).content)), np.float32)


@browser_needed
@pytest.mark.slow
def test_a_visitor(chrome: Any, server: Server, tmp_path: Path) -> None:
    chrome.get(server.url)
    # A phone that was turned: the corner that is first in the file is on the right.
    (red := tmp_path / "red.jpg").write_bytes(photo(0, orientation=6))
    upload(chrome, red)
    wait(chrome, probability)
    head = text(chrome)
    assert "colors\nViT · " in head
    assert " parameters · 32x32 pixels · 3 classes · step 1,234\n" in head
    assert "Attention rollout, mean over the patches" in head
    found = probability(chrome)
    assert next(iter(found)) == "red"
    assert found["red"] > 90
    assert set(found) == set(NAMES)
    light = shown_overlay(chrome).sum(-1)
    assert light.shape == (448, 448)
    row, column = np.unravel_index(light.argmax(), light.shape)
    assert (row // 112, column // 112) == (0, 3)
    assert light[:112, 336:].mean() > 2 * light[224:, :224].mean()

    # A text file by the name of an image: not taken, and the answer is gone.
    (bad := tmp_path / "bad.png").write_text("not an image")
    chrome.find_element("css selector", "#image button[aria-label='Remove Image']").click()
    wait(chrome, lambda c: not probability(c))
    upload(chrome, bad)
    wait(chrome, lambda c: "no image of a known format" in text(c))
    assert not probability(chrome)

    # Half an image: said on the page.
    (half := tmp_path / "half.png").write_bytes(png()[:-40])
    upload(chrome, half)
    wait(chrome, lambda c: "half.png: " in text(c, "#problem"))
    assert str(server.temp) not in text(chrome)
    assert not probability(chrome)

    # An example; the complaint goes.
    chrome.find_element("css selector", ".gallery-item").click()
    wait(chrome, lambda c: probability(c) and next(iter(probability(c))) == "blue")
    assert not chrome.find_elements("css selector", "#problem p")

    (large := tmp_path / "large.jpg").write_bytes(photo(1) + bytes(1 << 20))
    chrome.find_element("css selector", "#image button[aria-label='Remove Image']").click()
    upload(chrome, large)
    wait(chrome, lambda c: "exceed the maximum allowed size of 1.0 Mb" in text(c))
    assert not probability(chrome)

    messages = [json.loads(entry["message"])["message"] for entry in chrome.get_log("performance")]
    asked = [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]
    assert len(asked) > 10
    assert [url for url in asked if not url.startswith((server.url, "data:", "blob:"))] == []
    assert not any("Traceback" in line for line in server.lines)


@pytest.mark.slow
def test_no_file_but_uploads(server: Server) -> None:
    api = f"{server.url}/gradio_api"

    def get(path: str) -> int:
        return httpx.get(path, trust_env=False).status_code

    for path in ("/etc/passwd", f"{ROOT}/README.md", "../../../../etc/passwd", f"{server.temp}/"):
        assert get(f"{api}/file={path}") == 404, path
        assert get(f"{api}/file/{path}") == 404, path
        assert get(f"{server.url}/static/{path}") == 404, path
    assert get(f"{server.url}/monitoring/summary") == 404

    large = httpx.post(f"{api}/upload", files={"files": ("a.png", bytes(2 << 20))}, trust_env=False)
    assert large.status_code == 413
    for path in ("/etc/passwd", f"{ROOT}/docs/images/flower.jpg"):
        assert _join(api, path, "a").status_code == 404
    (name,) = httpx.post(
        f"{api}/upload", files={"files": ("a.jpg", photo(1))}, trust_env=False
    ).json()
    assert name.startswith(str(server.temp))
    assert _ask(api, name)["success"] is True


def _join(api: str, path: str, session: str) -> httpx.Response:
    """Call the page's function as its script does."""
    config = httpx.get(f"{api.removesuffix('/gradio_api')}/config", trust_env=False).json()
    (index,) = [d["id"] for d in config["dependencies"] if d["targets"][0][1] == "change"]
    upload = {"path": path, "meta": {"_type": "gradio.FileData"}}
    body = {"data": [upload], "fn_index": index, "session_hash": session}
    return httpx.post(f"{api}/queue/join", json=body, trust_env=False)


def _ask(api: str, path: str) -> dict[str, Any]:
    session = uuid.uuid4().hex
    _join(api, path, session).raise_for_status()
    with httpx.Client(trust_env=False, timeout=WAIT) as client:
        events = client.stream("GET", f"{api}/queue/data", params={"session_hash": session})
        with events as stream:
            for line in stream.iter_lines():
                if "process_completed" in line:
                    return json.loads(line.removeprefix("data: "))
    raise AssertionError("no answer")


@pytest.mark.slow
def test_a_second_page_names_the_port_and_ctrl_c_ends_the_first(
    server: Server,
    run: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(page, "build", None)  # else a page that should not be would wait for ever
    port = server.url.rpartition(":")[2]
    assert serve.main(["vit_jax serve", f"--from={run}", f"--port={port}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: --port={port}: ")
    assert line.endswith("choose another, or --port=0 for a free one")

    assert any(server.temp.iterdir())
    said = len(server.lines)
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(WAIT) == 0
    assert server.lines[said:] == []
    assert list(server.temp.iterdir()) == []


ERRORS = {
    "gradio": ([], 'needs gradio: pip install -e ".[serve]"'),
    "host": (["--host=203.0.113.1"], "--host=203.0.113.1 is no IPv4 address of this machine"),
    "no example": (["--examples=no.png"], "no.png: no such file"),
    "broken example": ([f"--examples={__file__}"], "test_serve.py: no image"),
    "port": (["--port=70000"], "--port=70000"),
    "size": (["--max_upload_mb=0"], "--max_upload_mb=0"),
    "word": (["cat.jpg"], "unexpected argument 'cat.jpg'"),
    "merging": (["--model.token_merging=2"], "--model.token_merging=0"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_a_mistake_is_one_line(
    case: str, run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    args, expected = ERRORS[case]
    monkeypatch.setattr(page, "build", None)
    if case == "gradio":
        monkeypatch.setattr(serve.importlib.util, "find_spec", lambda name: None)
    assert serve.main(["vit_jax serve", f"--from={run}", *args]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert expected in line
