# SPDX-License-Identifier: Apache-2.0
"""The notebook runs from top to bottom, and is committed with pictures and without a machine's."""

import base64
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from configs import finetune_vit
from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.models import DType

ROOT = Path(__file__).parents[2]
PATH = ROOT / "examples" / "finetune_and_explain.ipynb"
CELLS: list[dict[str, Any]] = json.loads(PATH.read_text())["cells"]
CODE = {cell["id"]: cell for cell in CELLS if cell["cell_type"] == "code"}


def source(name: str) -> str:
    return "".join(CODE[name]["source"])


@pytest.mark.slow
def test_it_runs_from_top_to_bottom(tmp_path: Path) -> None:
    """As a reader does, by nbmake, with trainings of a few steps; no kernel is installed for it."""
    env = {
        **os.environ,
        "VIT_JAX_QUICK": "1",
        "JAX_NUM_CPU_DEVICES": "1",
        "TMPDIR": str(tmp_path),
        "HOME": str(tmp_path),
        "TFDS_DATA_DIR": os.environ.get("TFDS_DATA_DIR", f"{Path.home()}/tensorflow_datasets"),
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--nbmake",
        "--nbmake-timeout=300",
        "-p",
        "no:cacheprovider",
        str(PATH),
    ]
    out = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert out.returncode == 0, out.stdout[-3000:]
    assert "1 passed" in out.stdout
    assert not list(tmp_path.rglob("kernel.json"))
    (runs,) = [path.parent for path in tmp_path.glob("*/finetune")]
    assert (runs / "finetune" / "test" / "confusion.png").is_file()


def test_every_cell_was_run_and_shows_what_it_should() -> None:
    counts = [cell["execution_count"] for cell in CODE.values()]
    assert counts == list(range(1, len(CODE) + 1))
    outputs = {name: cell["outputs"] for name, cell in CODE.items()}
    assert not [o for each in outputs.values() for o in each if o["output_type"] == "error"]
    for name in ("curve", "show", "confusion", "look", "heads", "mistakes"):
        shown = [o.get("data", {}) for o in outputs[name]]
        pictures = [each["image/png"] for each in shown if "image/png" in each]
        assert pictures, name
        assert all(base64.b64decode(png).startswith(b"\x89PNG") for png in pictures)
    printed = "".join("".join(o["text"]) for o in outputs["predict"] if "text" in o)
    (right,) = re.findall(r"^([\d.]+)% of 180 test images are right", printed)
    assert float(right) > 80  # a real run, not a cut one


def test_it_is_small_and_tells_nothing_of_the_machine() -> None:
    assert PATH.stat().st_size < 600_000
    texts = [
        "".join(o.get("text", o.get("data", {}).get("text/plain", "")))
        for cell in CODE.values()
        for o in cell["outputs"]
    ]
    for text in texts:
        assert not re.search(r"(^|[\s'\"(:])/(home|root|tmp|work|usr|Users)\b", text), text
    assert {tuple(cell["metadata"]) for cell in CELLS} == {()}


def test_the_run_on_colab_can_be() -> None:
    names: dict[str, Any] = {"COLAB": True, "QUICK": False, "WEIGHTS": "npz:ViT-B_16.npz"}
    names |= {"finetune_vit": finetune_vit, "Config": config_lib.Config}
    exec(source("config"), names)
    config = names["config"]
    config_lib.check(config)
    assert config.data.name == "cifar10"
    assert config.data.transform.crop is data.Crop.INCEPTION
    assert config.model.dtype is DType.FLOAT32
    assert config.model.image_size == (128, 128)
    assert config.init.skip == ("^head/", "^pre_logits/")


def test_the_weights_come_from_where_the_config_says() -> None:
    (address,) = re.findall(r"https://\S+\.npz", source("fetch"))
    assert address in (ROOT / "configs" / "finetune_vit.py").read_text()


def test_links_lead_somewhere() -> None:
    links = [
        m for cell in CELLS for m in re.findall(r"\]\((\.\./[^)]+)\)", "".join(cell["source"]))
    ]
    assert links
    for link in links:
        assert (PATH.parent / link).exists(), link
