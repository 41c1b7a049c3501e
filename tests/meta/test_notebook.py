# SPDX-License-Identifier: Apache-2.0
"""Notebooks run from top to bottom, and are committed with pictures and without a machine's."""

import base64
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vit_jax import config as config_lib
from vit_jax import data, get_config
from vit_jax.models import DType

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
FINETUNE, UNLABELLED, SCALING = PATHS = [
    EXAMPLES / f"{name}.ipynb"
    for name in ("finetune_and_explain", "learn_without_labels", "scaling_law")
]
STARTS = ("from_scratch", "after_MAE")
PICTURES = {
    FINETUNE: ("curve", "show", "confusion", "look", "heads", "mistakes"),
    UNLABELLED: ("watch", "reconstruct", "alike", "compare"),
    SCALING: ("draw", "best-size"),
}


def cells(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["cells"]


def code(path: Path) -> dict[str, dict[str, Any]]:
    return {cell["id"]: cell for cell in cells(path) if cell["cell_type"] == "code"}


def source(name: str) -> str:
    return "".join(code(FINETUNE)[name]["source"])


def printed(path: Path, name: str) -> str:
    return "".join("".join(o["text"]) for o in code(path)[name]["outputs"] if "text" in o)


def test_all_of_them_are_tested() -> None:
    assert {*EXAMPLES.glob("*.ipynb")} == {*PATHS}


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_it_runs_from_top_to_bottom(tmp_path: Path, path: Path) -> None:
    """As a reader does, by nbmake, with trainings of a few steps; no kernel is installed for it."""
    env = {
        **os.environ,
        "VIT_JAX_QUICK": "1",
        "JAX_NUM_CPU_DEVICES": "1",
        "PYTHONPATH": str(ROOT),
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
        str(path),
    ]
    out = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert out.returncode == 0, out.stdout[-3000:]
    assert "1 passed" in out.stdout
    assert not list(tmp_path.rglob("kernel.json"))
    ran = {run.parent.name for run in tmp_path.glob("*/*/config.json")}
    assert (
        ran
        == {
            FINETUNE: {"pretrain", "finetune"},
            UNLABELLED: {"mae", *(f"plain_{start}_0" for start in STARTS)},
            SCALING: {"width=8_4_steps"},
        }[path]
    )


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_every_cell_was_run_and_shows_what_it_should(path: Path) -> None:
    found = code(path)
    counts = [cell["execution_count"] for cell in found.values()]
    assert counts == list(range(1, len(found) + 1))
    outputs = {name: cell["outputs"] for name, cell in found.items()}
    assert not [o for each in outputs.values() for o in each if o["output_type"] == "error"]
    for name in PICTURES[path]:
        shown = [o.get("data", {}) for o in outputs[name]]
        pictures = [each["image/png"] for each in shown if "image/png" in each]
        assert pictures, name
        assert all(base64.b64decode(png).startswith(b"\x89PNG") for png in pictures)


def test_their_runs_were_not_cut() -> None:
    (right,) = re.findall(r"^([\d.]+)% of 180 test images are right", printed(FINETUNE, "predict"))
    assert float(right) > 80
    top1 = re.findall(
        r"^(\w+, [\w ]+), seed \d: ([\d.]+)% of 360", printed(UNLABELLED, "train"), re.M
    )
    seeds = {name: [float(x) for n, x in top1 if n == name] for name, _ in top1}
    assert [len(each) for each in seeds.values()] == [2, 2, 1, 1]
    assert min(seeds["plain, after MAE"]) > max(seeds["plain, from scratch"])  # as its text says
    assert min(x for name, each in seeds.items() if "augmented" in name for x in each) > 80
    losses = re.findall(r"loss ([\d.]+)$", printed(SCALING, "train"), re.M)
    assert len(losses) == 12
    assert "held out:\n" in printed(SCALING, "fit")


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_it_is_small_and_tells_nothing_of_the_machine(path: Path) -> None:
    assert path.stat().st_size < 400_000
    texts = [
        "".join(o.get("text", o.get("data", {}).get("text/plain", "")))
        for cell in code(path).values()
        for o in cell["outputs"]
    ]
    for text in texts:
        assert not re.search(r"(^|[\s'\"(:])/(home|root|tmp|work|usr|Users)\b", text), text
    assert {tuple(cell["metadata"]) for cell in cells(path)} == {()}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_it_installs_the_package_where_it_is_missing(path: Path) -> None:
    """A clone is not there on Colab: no file of one is imported, and none is copied."""
    found = ["".join(cell["source"]) for cell in code(path).values()]
    (install,) = [text for text in found if "%pip install" in text]
    assert 'find_spec("vit_jax") is None' in install
    assert '"vitjax[train]"' in install
    of_clone = re.compile(r"git clone|^from configs|\bdocs/", re.MULTILINE)
    assert not [text for text in found if of_clone.search(text)]


def test_the_run_on_colab_can_be() -> None:
    names: dict[str, Any] = {"COLAB": True, "QUICK": False, "WEIGHTS": "npz:ViT-B_16.npz"}
    names |= {"get_config": get_config, "Config": config_lib.Config}
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


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_links_lead_somewhere(path: Path) -> None:
    links = [
        m
        for cell in cells(path)
        for m in re.findall(r"\]\((\.\./[^)]+)\)", "".join(cell["source"]))
    ]
    assert links
    for link in links:
        assert (path.parent / link).exists(), link
