# SPDX-License-Identifier: Apache-2.0
"""The site builds without a warning, has all that is public, and needs no other host."""

import dataclasses
import fcntl
import functools
import http.server
import json
import os
import re
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import vit_jax
from tests.browser import browser_needed
from vit_jax import models
from vit_jax.cli.models import main as list_models

ROOT = Path(__file__).parents[2]
WAIT = 30  # seconds, for a machine that is busy
# To trace every named model takes most of a minute; these show that the table's sizes are traced.
SIZED = ("vit_ti16", "swin_t", "mixer_s32", "resnet50")
BUILD = f"""
from mkdocs.__main__ import cli
from vit_jax.models import VARIANTS
from website import models

traced = {{name: models.traced(VARIANTS[name]) for name in {SIZED}}}
others = {{name: (number**2, 0) for number, name in enumerate(reversed(VARIANTS))}}
models._kept_sizes = lambda: others | traced
cli(prog_name="mkdocs")
"""

for package in ("mkdocs", "material", "mkdocstrings", "griffe"):
    pytest.importorskip(package, reason="no site builder: make .venv/installed-docs")

from website import api, outside, settings, tables  # noqa: E402
from website import models as models_page  # noqa: E402


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make docs` does: links, anchors and names that lead nowhere are errors.

    The sizes of all but a few models are made up. One of pytest's workers builds it for all.
    """
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "site").exists():
            _build(shared / "unchecked").rename(shared / "site")
    return shared / "site"


def _build(place: Path) -> Path:
    words = [sys.executable, "-c", BUILD, "build", "--strict", "--site-dir", str(place)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "JAX_NUM_CPU_DEVICES": "1"}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    return place


def _text(site: Path, page: str) -> str:
    return (site / page / "index.html").read_text()


@pytest.mark.slow
def test_every_public_name_has_an_entry(site: Path) -> None:
    listed = zlib.decompress((site / "objects.inv").read_bytes().split(b"zlib.\n", 1)[1]).decode()
    known = {line.split()[0]: line.split()[3] for line in listed.splitlines()}
    public = {f"vit_jax.{name}" for name in vit_jax.__all__ if name not in api.MODULES}
    in_modules = {name for names in api.names().values() for name in names}
    assert len(public) > 60
    assert len(in_modules) > 200
    assert not (public | in_modules) - known.keys()
    pages: dict[str, str] = {}
    for name in public | in_modules:
        page, _, anchor = known[name].partition("#")
        pages[page] = pages.get(page) or _text(site, page)
        assert f'id="{anchor.replace("$", name)}"' in pages[page], name


def test_modules_offer_what_they_define() -> None:
    names = {name for names in api.names().values() for name in names}
    for name in ("data.open_source", "models.variant", "models.create", "evals.create"):
        assert f"vit_jax.{name}" in names
    for name in ("objectives.create", "weights.from_timm", "sweeps.scaling.fit_power_law"):
        assert f"vit_jax.{name}" in names
    assert {"vit_jax.recipes.folder.images", "vit_jax.recipes.deit3.pretrain"} <= names
    assert not [name for name in names if name.rpartition(".")[2].startswith("_")]


def test_every_field_has_a_meaning(subtests: pytest.Subtests) -> None:
    kinds = {cls for _, _, cls in settings.groups()}
    configs = {
        getattr(vit_jax, name) for name in vit_jax.__all__ if re.search("(Config|Eval)$", name)
    }
    abstract = {vit_jax.ModelConfig, vit_jax.ObjectiveConfig, vit_jax.EvalConfig}
    assert kinds == configs - abstract
    page = settings.page()
    for title, prefix, cls in settings.groups():
        part = page.partition(f"## {title}\n")[2].partition("\n## ")[0]
        for field in dataclasses.fields(cls):
            with subtests.test(title, field=field.name):
                row = re.search(
                    rf"<tr>.*<code>{re.escape(prefix + field.name)}</code>.*</tr>", part
                )
                assert row is not None
                cells = re.findall(r"<td[^>]*>(.*?)</td>", row[0])
                assert len(cells) == 4
                assert all(cells), row[0]


def test_fields_show_default_range_and_unit() -> None:
    page = settings.page()

    def row(field: str) -> str:
        (found,) = re.findall(rf"<tr><td[^>]*><a[^>]*><code>{field}</code>.*?</tr>", page)
        return re.sub("<[^>]*>", "|", found)

    assert "|0.001|" in row("optim.lr")
    assert "a number, above 0" in row("optim.lr")
    assert "a number, at least 0 and at most 180, degrees" in row("data.transform.degrees")
    assert "a string, duration" in row("optim.warmup")
    assert "0 is off" in row("data.mix.mixup_alpha")
    assert "|&#x27;adamw&#x27;| |&#x27;sgd&#x27;|" in row("optim.name")
    assert "2 of them" in row("data.transform.scale")


@pytest.mark.slow
def test_every_model_is_in_the_table(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = _text(site, "reference/models")  # without its script: a plain table
    rows = re.findall(r"<tr><td><code>(\w+)</code></td>(.*?)</tr>", page)
    assert [name for name, _ in rows] == list(models.VARIANTS)
    cells = {name: re.findall(r'data-sort="(\d+)"', row) for name, row in rows}
    assert list_models(["vit_jax models", f"^({'|'.join(SIZED)})$"]) == 0
    printed = capsys.readouterr().out.splitlines()[1:]
    assert len(printed) == len(SIZED)
    for line in printed:
        name, size, params, macs = line.split()
        pixels, *numbers, _ = cells[name]
        assert int(pixels) == int(size.split("x")[0]) * int(size.split("x")[1])
        assert int(numbers[0]) == int(params.replace(",", ""))
        assert round(int(numbers[1]) / 1e9, 3) == float(macs)
    weights = dict(rows)["vit_b16"]
    assert "<code>hub:timm/vit_base_patch16_224.augreg2_in21k_ft_in1k</code>" in weights
    assert "<code>imagenet21k/ViT-B_16.npz</code>" in weights


def test_a_size_is_that_of_the_config() -> None:
    cfg = models.variant("vit_ti16", image_size=32, depth=1)
    wide = models.variant("vit_ti16", image_size=32, depth=2)
    (params, macs), (more, larger) = models_page.traced(cfg), models_page.traced(wide)
    dim, tokens, mlp = cfg.dim, 5, cfg.mlp_dim
    block = tokens * (4 * dim**2 + 2 * dim * mlp) + 2 * tokens**2 * dim
    assert larger - macs == block
    assert more - params == 4 * dim**2 + 2 * dim * mlp + 9 * dim + mlp


def test_sizes_are_kept_until_the_code_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[models.ModelConfig] = []
    monkeypatch.setattr(models_page, "_CACHE", tmp_path / "site" / "models.json")
    monkeypatch.setattr(models_page, "traced", lambda cfg: asked.append(cfg) or (len(asked), 2))
    monkeypatch.setattr(models_page, "_key", lambda: "one")
    first = models_page._kept_sizes()
    assert first.keys() == models.VARIANTS.keys()
    assert asked == list(models.VARIANTS.values())
    kept = models_page._kept_sizes()
    assert {name: tuple(sizes) for name, sizes in kept.items()} == first
    assert len(asked) == len(first)
    monkeypatch.setattr(models_page, "_key", lambda: "another")
    assert models_page._kept_sizes() != first


def test_every_picture_is_in_the_gallery_with_a_command() -> None:
    page = (ROOT / "docs" / "gallery.md").read_text()
    parts = re.split(r"^### ", page, flags=re.MULTILINE)[1:]
    shown = [re.search(r"!\[.+\]\(images/(\w+)\.png\)", part) for part in parts]
    assert all(shown)
    for part in parts:
        assert re.search(r"^(```sh\n|    )(vit_jax|make|python) ", part, re.MULTILINE), part
        assert re.search(r"\]\(\w+\.md", part), part
    pictures = {path.stem for path in (ROOT / "docs" / "images").glob("*.png")}
    assert {found[1] for found in shown if found} == pictures


def test_links_that_leave_the_documents() -> None:
    text = "[a](../README.md#kill-it) [b](data.md) [c](../vit_jax/api.py#L3) [d](https://x.y/z)\n"
    fence = "```sh\n[e](../LICENSE)\n```\n"
    changed = outside.relink(text + fence, "python.md")
    assert changed == (
        "[a](repository/README.md.md#kill-it) [b](data.md) "
        "[c](repository/vit_jax/api.py.md#L3) [d](https://x.y/z)\n" + fence
    )
    back = outside.relink("[f](docs/data.md) ![g](docs/images/a.png)", "repository/README.md.md")
    assert back == "[f](../data.md) ![g](../images/a.png)"
    made = outside.pages(ROOT, {"docs/python.md": text})
    assert {"repository/README.md.md", "repository/vit_jax/api.py.md"} <= made.keys()
    assert "repository/CONTRIBUTING.md.md" in made  # by README
    assert "repository/LICENSE.md" in made
    folder = outside.pages(ROOT, {"docs/a.md": "[h](images/digits) [i](../examples)"})
    assert "![3.png](digits/3.png)" in folder["repository/docs/images/digits.md"]
    notebook = folder["repository/examples/finetune_and_explain.ipynb.md"]
    assert "```python\n" in notebook
    assert "data:image/png;base64," in notebook
    assert len(re.findall(r'<span id="L\d+"', made["repository/vit_jax/api.py.md"])) == len(
        (ROOT / "vit_jax" / "api.py").read_text().splitlines()
    )


def test_cells_show_what_they_are_given() -> None:
    assert tables.prose("a<b of `x|y`") == "a&lt;b of <code>x|y</code>"


@pytest.mark.slow
def test_the_first_page_leads_to_own_images(site: Path) -> None:
    doors = re.search(r'<ul class="doors">(.*?)</ul>', _text(site, ""), re.DOTALL)
    assert doors is not None
    links = re.findall(r'href="([^"]+)"', doors[1])
    assert links == ["own_images/", "own_images_unlabelled/", "from_timm/"]
    for link in links[:2]:
        assert "vit_jax train --config=" in re.sub("<[^>]*>", "", _text(site, link))


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def _until(chrome: Any, script: str) -> Any:
    end = time.monotonic() + WAIT
    while not (found := chrome.execute_script(f"return {script}")):
        assert time.monotonic() < end, script
        time.sleep(0.1)
    return found


@pytest.mark.slow
@browser_needed
def test_the_search_finds_and_nothing_comes_from_elsewhere(chrome: Any, address: str) -> None:
    chrome.get(address)
    chrome.execute_script("document.querySelector('[data-md-toggle=search]').click()")
    field = chrome.find_element("css selector", "[data-md-component=search-query]")
    field.send_keys("fewshot")
    found = _until(
        chrome, "[...document.querySelectorAll('.md-search-result__link')].map(a => a.href)"
    )
    assert any(link.startswith(f"{address}probe/") for link in found), found
    log = [json.loads(entry["message"])["message"] for entry in chrome.get_log("performance")]
    sent = [entry["params"] for entry in log if entry["method"] == "Network.requestWillBeSent"]
    asked = [each["request"]["url"] for each in sent]
    assert any(url.endswith("search_index.json") for url in asked)
    others = [url for url in asked if not url.startswith((address, "data:", "blob:"))]
    assert not others


@pytest.mark.slow
@browser_needed
def test_the_table_is_sorted_and_filtered_on_a_narrow_screen(chrome: Any, address: str) -> None:
    narrow = {"width": 375, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", narrow)
    for page in ("reference/models/", ""):
        chrome.get(address + page)
        assert chrome.execute_script("return document.documentElement.scrollWidth") == 375
    chrome.get(f"{address}reference/models/")
    shown = "[...document.querySelectorAll('.sortable tbody tr')].filter(row => !row.hidden)"
    assert len(_until(chrome, shown)) == len(models.VARIANTS)
    field = chrome.find_element("css selector", "input.filter")
    field.send_keys("DINOv3 224x")
    names = f"{shown}.map(row => row.cells[0].textContent)"
    _until(chrome, f"{shown}.length < 20")
    some = chrome.execute_script(f"return {names}")
    assert {"vit_s16_dinov3", "vit_7b16_dinov3"} <= set(some)
    assert "swin_t" not in some
    for backwards in (False, True):
        chrome.execute_script("document.querySelectorAll('.sortable th')[3].click()")
        params = chrome.execute_script(f"return {shown}.map(row => +row.cells[3].dataset.sort)")
        assert params == sorted(params, reverse=backwards)
