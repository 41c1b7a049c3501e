# SPDX-License-Identifier: Apache-2.0
"""The demo page of models of pixels: its routes answer with an overlay and a legend."""

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.unit.demo.test_app import asked
from vit_jax.cli import serve
from vit_jax.inference.trained import describe

GOLDEN = Path(__file__).parents[2] / "golden/next3"


def _photo() -> bytes:
    file = io.BytesIO()
    drawn = np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)
    Image.fromarray(drawn).save(file, "png")
    return file.getvalue()


@pytest.mark.parametrize("name", ["eomt", "depth_anything"])
def test_an_overlay_and_a_legend(name: str, tmp_path: Path) -> None:
    shutil.copy(GOLDEN / f"{name}.safetensors", tmp_path / "model.safetensors")
    shutil.copy(GOLDEN / f"{name}.config.json", tmp_path / "config.json")
    found = describe(f"hf:{tmp_path}")
    page = serve._make_app(serve.Serve(), found, "127.0.0.1", "")
    html = asked(page, "GET", "/").answer.decode()
    assert "What it found" in html
    assert "Where it looked" not in html
    visit = asked(page, "POST", "/predict?overlay", _photo())
    assert visit.status == 200, visit.answer
    said = json.loads(visit.answer)
    assert said["overlay"].startswith("data:image/png;base64,")
    listed = said["classes"]
    if name == "depth_anything":
        assert [each["name"] for each in listed] == ["least", "greatest"]
        assert float(listed[0]["text"]) <= float(listed[1]["text"])
    else:
        assert sum(each["probability"] for each in listed) == pytest.approx(1, abs=1e-5)
    assert all(len(each["colour"]) == 7 for each in listed)
    assert len({each["colour"] for each in listed}) == len(listed)
    broken = asked(page, "POST", "/predict", b"no image")
    assert broken.status == 415
