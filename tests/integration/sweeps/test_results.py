# SPDX-License-Identifier: Apache-2.0
import json
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.browser import browser_needed
from tests.unit.sweeps import synthetic
from tests.unit.sweeps.test_results import _new
from vit_jax.cli.sweep import main
from vit_jax.sweeps import point as point_lib
from vit_jax.sweeps import results
from vit_jax.sweeps.results import State

EVIL = 'N=1 </script><script>document.title = "taken"</script> $5'


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("sweep") / "sizes & lengths"
    made = synthetic.points()
    made[0] = synthetic.renamed(made[0], name=EVIL)
    synthetic.sweep(place, made, noise=0.005)
    return place


def test_report_writes_a_picture_a_page_and_numbers(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["vit_jax sweep", "report", str(place)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^runs of equal compute +N\(C\) = ", out, flags=re.MULTILINE)
    assert re.search(r"alpha = 0\.\d+ \(0\.\d+ to 0\.\d+\)", out)
    assert "not fitted" not in out
    with Image.open(place / "report.png") as picture:
        assert min(picture.size) > 900
    fits = json.loads((place / "fits.json").read_text())
    assert fits["joint"]["intervals"]["alpha"][0] < 0.4 < fits["joint"]["intervals"]["alpha"][1]
    page = (place / "report.html").read_text()
    assert "<title>sizes &amp; lengths</title>" in page
    assert not re.search(r"(src|href)=[\"'](?!data:)", page)
    data = re.search(r'id="data">(.*?)</script>', page, flags=re.DOTALL)[1]
    curves = json.loads(data)
    assert len(curves) == 35
    assert curves[0]["name"] == EVIL
    assert [step for step, _ in curves[0]["curve"]] == [25, 50, 100]


@pytest.mark.slow
@browser_needed
def test_the_page_draws_its_curves(place: Path, chrome: Any) -> None:
    assert main(["vit_jax sweep", "report", str(place), "--title=Sizes"]) == 0
    chrome.get((place / "report.html").as_uri())
    assert chrome.title == "Sizes"

    def count(selector: str) -> int:
        return len(chrome.find_elements("css selector", selector))

    def texts() -> list[str]:
        return [each.text for each in chrome.find_elements("css selector", "#chart text")]

    assert count("#chart path") == 35
    assert count("#list label") == 35
    assert chrome.find_element("css selector", "img").get_property("naturalWidth") > 900
    by_flops = texts()
    assert "training FLOPs" in by_flops
    chrome.find_elements("css selector", "#list input")[3].click()
    assert count("#chart path") == 34
    chrome.find_element("css selector", "#none").click()
    assert texts() == ["nothing to show"]
    chrome.find_element("css selector", "#all").click()
    assert texts() == by_flops
    chrome.find_element("css selector", "#against option[value=steps]").click()
    assert "steps" in texts()
    assert texts() != by_flops
    chrome.find_element("css selector", "#what option[value=train]").click()
    assert count("#chart path") == 35
    # Of one value, and where none is a 1, 2 or 5 of its decade.
    assert chrome.execute_script("return ticks(1616, 1616).map(short)") == ["1616"]
    values = ["0.93", "0.94", "0.95", "0.96", "0.97"]
    assert chrome.execute_script("return ticks(0.93, 0.978).map(short)") == values
    assert chrome.execute_script("return [1e5, 1.5e-3].map(short)") == ["1e5", "1.5e-3"]
    assert [e for e in chrome.get_log("browser") if e["level"] == "SEVERE"] == []


def test_a_search_is_drawn_against_each_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [
        synthetic.renamed(
            synthetic.points()[0],
            run=f"{i:04d}",
            name=f"lr={lr:g}",
            overrides={"optim.lr": lr, "model.dropout_rate": i / 10, "optim.name": "adamw"},
        )
        for i, lr in enumerate((1e-4, 1e-3, 1e-2))
    ]
    point_lib.write_manifest(tmp_path, made)
    for point, value in zip(made[:2], (0.8, 0.3), strict=True):
        synthetic.finish(tmp_path, point, value)
    results.mark_ended(_new(made[2].workdir(tmp_path)), State.PRUNED, "worse")
    assert main(["vit_jax sweep", "report", str(tmp_path)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[:2] == ["val/loss 0.3000  lr=0.001", "val/loss 0.8000  lr=0.0001"]
    with Image.open(tmp_path / "report.png") as picture:
        assert picture.size[0] > 2 * picture.size[1]  # two panels, of the two numbers
    assert not (tmp_path / "fits.json").exists()
