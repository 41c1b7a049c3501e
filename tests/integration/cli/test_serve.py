# SPDX-License-Identifier: Apache-2.0
"""The demo page: the real command, stopped by a real signal, looked at in a real browser."""

import base64
import dataclasses
import http.client
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests import colour_pair
from tests.browser import browser_needed
from tests.unit.demo import colors
from tests.unit.demo.colors import photo
from tests.unit.demo.test_app import asked
from vit_jax import errors
from vit_jax.cli import serve
from vit_jax.inference.trained import describe

ROOT = Path(__file__).parents[3]
WAIT = 60  # seconds, for a machine that is busy


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return colors.save_run(tmp_path_factory.mktemp("runs") / "colors")


@dataclasses.dataclass
class Server:
    process: subprocess.Popen[str]
    url: str
    lines: list[str]
    temp: Path

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
        """Ask as no browser would: the path and the headers as they are."""
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=WAIT)
        connection.request(method, path, body, headers)
        with connection.getresponse() as answer:
            found = answer.status, answer.read()
        connection.close()
        return found


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
    env = {**os.environ, "TMPDIR": str(temp), "JAX_NUM_CPU_DEVICES": "1"}
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
    blue.unlink()  # it has been read
    yield Server(process, found[1], lines, temp)
    process.kill()
    process.wait()
    rest.join()


def check_overlay(url: str) -> None:
    """Check that the model looked at the last corner of the first row, and nowhere else."""
    kind, _, data = url.partition(",")
    assert kind == "data:image/png;base64"
    light = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))), np.float32).sum(-1)
    assert light.shape == (448, 448)
    row, column = np.unravel_index(light.argmax(), light.shape)
    assert (row // 112, column // 112) == (0, 3)
    assert light[:112, 336:].mean() > 2 * light[224:, :224].mean()


@pytest.mark.slow
def test_an_image_gets_its_answer(server: Server) -> None:
    # A phone that was turned: the corner that is first in the file is on the right.
    status, body = server.ask("POST", "/predict?overlay", photo(0, orientation=6))
    assert status == 200
    found = json.loads(body)
    chances = {each["name"]: each["probability"] for each in found["classes"]}
    assert sorted(chances) == sorted(colors.NAMES)
    assert list(chances.values()) == sorted(chances.values(), reverse=True)
    assert chances["red"] > 0.9
    assert sum(chances.values()) == pytest.approx(1)
    check_overlay(found["overlay"])

    status, body = server.ask("POST", "/predict?example=0")
    found = json.loads(body)
    assert status == 200
    assert found["classes"][0]["name"] == "blue"
    assert "overlay" not in found


@pytest.mark.slow
def test_what_is_no_image_is_refused_and_nothing_is_written(server: Server) -> None:
    said = len(server.lines)
    svg = b"<svg xmlns='http://www.w3.org/2000/svg'/>"
    for body in (b"no image", b"", svg, b"\0\0\0\x20ftypisom" + bytes(99), colors.half_png()):
        status, text = server.ask("POST", "/predict", body)
        assert status == 415, text
        assert len(text.splitlines()) == 1
        assert str(server.temp.parent).encode() not in text
    status, text = server.ask("POST", "/predict", photo(1) + bytes(1 << 20))
    assert (status, text) == (413, b"more than 1,048,576 bytes\n")
    for path in ("/etc/passwd", "/../../../../etc/passwd", f"{server.temp}/", "//etc/passwd"):
        assert server.ask("GET", path)[0] == 404, path
    assert server.ask("GET", "/", Host="evil.example")[0] == 421
    assert server.ask("POST", "/predict", photo(0), Origin="http://evil.example")[0] == 403
    assert server.ask("GET", "/")[0] == 200
    assert server.lines[said:] == []
    assert list(server.temp.iterdir()) == []


def wait(chrome: Any, condition: Any) -> Any:
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(chrome, WAIT, 0.1).until(condition)


def text(chrome: Any, selector: str = "body") -> str:
    return chrome.find_element("css selector", selector).text


def upload(chrome: Any, path: Path) -> None:
    chrome.find_element("css selector", "input[type=file]").send_keys(str(path))


def probability(chrome: Any) -> dict[str, int]:
    """Read the bars: per cent by class."""
    found = re.findall(r"^(\w+)\s+(\d+)%$", text(chrome, "table"), re.MULTILINE)
    return {name: int(number) for name, number in found}


@browser_needed
@pytest.mark.slow
def test_a_visitor(chrome: Any, server: Server, tmp_path: Path) -> None:
    chrome.get(server.url)
    (red := tmp_path / "red.jpg").write_bytes(photo(0, orientation=6))
    upload(chrome, red)
    wait(chrome, probability)
    head = text(chrome)
    assert "ViT · step 1,234\nViT · " in head
    assert " parameters · 32x32 pixels · 3 classes\ncolors\n" in head
    assert "Attention rollout, mean over the patches" in head
    found = probability(chrome)
    assert next(iter(found)) == text(chrome, "#best") == "red"
    assert found["red"] > 90
    assert set(found) == set(colors.NAMES)
    check_overlay(chrome.find_element("css selector", "#overlay img").get_attribute("src"))
    shown = chrome.find_element("css selector", "#image img")
    assert shown.get_property("naturalWidth") == 64

    # A text file by the name of an image: not taken, and the answer is gone.
    (bad := tmp_path / "bad.png").write_text("not an image")
    upload(chrome, bad)
    wait(chrome, lambda c: "bad.png: no image of a known format" in text(c, "#problem"))
    assert not probability(chrome)
    assert not shown.is_displayed()
    assert not chrome.find_element("css selector", "#overlay img").is_displayed()

    (half := tmp_path / "half <b>.png").write_bytes(colors.half_png())
    upload(chrome, half)
    wait(chrome, lambda c: "half <b>.png: " in text(c, "#problem"))
    assert not probability(chrome)

    # An example; the complaint goes.
    chrome.find_element("css selector", "#examples button").click()
    wait(chrome, lambda c: probability(c) and next(iter(probability(c))) == "blue")
    assert text(chrome, "#problem") == ""
    assert shown.get_property("naturalWidth") == 64

    chrome.find_element("css selector", "#clear").click()
    assert not probability(chrome)
    assert not shown.is_displayed()

    (large := tmp_path / "large.jpg").write_bytes(photo(1) + bytes(1 << 20))
    upload(chrome, large)
    wait(chrome, lambda c: "large.jpg: more than 1,048,576 bytes" in text(c, "#problem"))
    assert not probability(chrome)

    messages = [json.loads(entry["message"])["message"] for entry in chrome.get_log("performance")]
    asked = [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]
    asked = [url for url in asked if not url.startswith(("data:", "blob:"))]
    predict = f"{server.url}/predict?overlay"
    assert asked == [f"{server.url}/", *[predict] * 3, f"{predict}&example=0"]
    refused = [entry["message"] for entry in chrome.get_log("browser")]
    assert not [line for line in refused if "415" not in line], refused
    assert not any("Traceback" in line for line in server.lines)


_PASTE = """
const bytes = Uint8Array.from(atob(arguments[0]), letter => letter.charCodeAt(0));
const data = new DataTransfer();
data.items.add(new File([bytes], "red.jpg", {type: "image/jpeg"}));
const event = arguments[1] === "paste"
  ? new ClipboardEvent("paste", {clipboardData: data, bubbles: true})
  : new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true});
document.querySelector("h1").dispatchEvent(event);
"""


@browser_needed
@pytest.mark.slow
@pytest.mark.parametrize("how", ["paste", "drop"])
def test_an_image_may_be_pasted_or_dropped(chrome: Any, server: Server, how: str) -> None:
    chrome.get(server.url)
    chrome.execute_script(_PASTE, base64.b64encode(photo(0)).decode(), how)
    wait(chrome, lambda c: next(iter(probability(c)), "") == "red")


@browser_needed
@pytest.mark.slow
def test_by_keyboard_on_a_narrow_dark_screen(chrome: Any, server: Server) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    def style(name: str, selector: str = "body") -> str:
        return chrome.find_element("css selector", selector).value_of_css_property(name)

    def press(key: str) -> Any:
        ActionChains(chrome).send_keys(key).perform()
        return chrome.switch_to.active_element

    chrome.get(server.url)
    light = style("background-color"), style("color")
    narrow = {"width": 320, "height": 640, "deviceScaleFactor": 1, "mobile": True}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", narrow)
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    try:
        assert press(Keys.TAB).tag_name == "input"
        assert style("outline-style", "label") == "solid"
        assert press(Keys.TAB).get_attribute("title") == "blue.jpg"
        press(Keys.ENTER)
        wait(chrome, lambda c: text(c, "#best") == "blue")
        assert chrome.execute_script("return document.documentElement.scrollWidth") == 320
        assert (style("background-color"), style("color")) != light
        tree = chrome.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    finally:
        chrome.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    heard = {
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in tree
        if not node["ignored"]
    }
    assert heard >= {
        ("heading", "ViT · step 1,234"),
        ("region", "Image"),
        ("region", "Classes"),
        ("region", "Where it looked"),
        ("button", "blue.jpg"),
        ("button", "Clear"),
        ("link", "Download"),
        ("image", "The image, coloured where the model looked"),
        ("rowheader", "blue"),
    }
    assert {"status", "alert"} <= {role for role, _ in heard}


@pytest.mark.slow
def test_a_second_page_names_the_port_and_ctrl_c_ends_the_first(
    server: Server,
    run: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serve, "_serve", None)  # a page that should not be would wait for ever
    port = server.url.rpartition(":")[2]
    assert serve.main(["vit_jax serve", f"--from={run}", f"--port={port}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: --port={port}: ")
    assert line.endswith("choose another, or --port=0 for a free one")

    said = len(server.lines)
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(WAIT) == 0
    assert server.lines[said:] == []
    assert list(server.temp.iterdir()) == []


ERRORS = {
    "packages": ([], f"needs starlette and uvicorn: {errors.install('serve')}"),
    "host": (["--host=203.0.113.1"], "--host=203.0.113.1 is no IPv4 address of this machine"),
    "proxy": (["--public_url=example.com"], "--public_url=example.com must be the proxy's scheme"),
    "no example": (["--examples=no.png"], "no.png: no such file"),
    "broken example": ([f"--examples={__file__}"], "test_serve.py: no image"),
    "port": (["--port=70000"], "--port=70000"),
    "size": (["--max_upload_mb=0"], "--max_upload_mb=0"),
    "words": (["--tokenizer=clip"], "--tokenizer is of both towers, and "),
    "word": (["cat.jpg"], "unexpected argument 'cat.jpg'"),
    "merging": (["--model.token_merging=2"], "--model.token_merging=0"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_a_mistake_is_one_line(
    case: str, run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    args, expected = ERRORS[case]
    monkeypatch.setattr(serve, "_serve", None)
    if case == "packages":
        monkeypatch.setattr(serve.importlib.util, "find_spec", lambda name: None)
    assert serve.main(["vit_jax serve", f"--from={run}", "--port=0", *args]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert expected in line


def test_words_are_told_by_a_model_of_images_and_texts(tmp_path: Path) -> None:
    found = describe(str(colour_pair.save_run(tmp_path / "pair", sigmoid=True)))
    given = serve.Serve(from_=found.ref)
    page = serve._make_app(given, found, "127.0.0.1", "")
    body = photo(1)
    target = "/predict?overlay&words=red,green,%3Cb%3E%1b%5B2J"
    answer = json.loads(asked(page, "POST", target, body).answer)
    names = [each["name"] for each in answer["classes"]]
    assert names[0] == "green"
    assert names[1:] == ["<b> [2J", "red"] or names[1:] == ["red", "<b> [2J"]
    chances = {each["name"]: each["probability"] for each in answer["classes"]}
    assert chances["green"] > 0.5 > chances["red"]  # each by itself: a sigmoid
    assert answer["overlay"].startswith("data:image/png")
    assert asked(page, "POST", "/predict", body).status == 400
    assert b">Words</h2>" in asked(page, "GET", "/").answer
