# SPDX-License-Identifier: Apache-2.0
"""Every config file, shrunk, builds and trains two real steps, and is what its name says."""

import dataclasses
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from tests.photos import write_folder
from vit_jax import config as config_lib
from vit_jax.config import Config
from vit_jax.train.loop import fit
from vit_jax.train.writers import read_jsonl

CONFIGS = Path(__file__).parent.parent / "configs"
FILES = sorted(p for p in CONFIGS.glob("*.py") if p.stem not in ("__init__", "recipes"))


def load(path: Path) -> Config:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config()


def shrink(cfg: Config, folder: Path) -> Config:
    """Keep every choice of the recipe; cut its sizes, and read a folder of three classes."""
    patch = cfg.model.patch
    cfg.model = dataclasses.replace(
        cfg.model,
        dim=16,
        depth=2,
        num_heads=2,
        mlp_dim=32,
        pre_logits_dim=16 if cfg.model.pre_logits_dim else 0,
        num_classes=3,
        image_size=(2 * patch[0], 2 * patch[1]),
        scan_unroll=1,
    )
    if cfg.data.name != "digits":
        cfg.data.name = f"folder:{folder}"
        cfg.data.train_split = cfg.data.train_split.replace("51200", "4")
        for ev in cfg.evals.values():
            ev.split = ev.split.replace("51200", "4").replace("99%", "80%")
            ev.split = ev.split.replace("validation", "val")
            ev.every = "1 steps"
    else:
        cfg.model.num_classes, cfg.model.image_size = 10, (8, 8)
    cfg.data.batch_size, cfg.accum_steps, cfg.duration = 8, 1, "2 steps"
    cfg.optim.warmup = "1 steps"
    cfg.optim.cooldown = "1 steps" if cfg.optim.cooldown else ""
    cfg.log.every = "1 steps"
    cfg.mesh.data = 1  # what is tested here is the recipe, not the layout
    return cfg


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    write_folder(root, {"train": 8, "val": 3}, ("china", "flower", "sky"))
    return root


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_config_trains(path: Path, folder: Path, tmp_path: Path) -> None:
    cfg = load(path)
    config_lib.check(cfg)
    cfg = shrink(cfg, folder)
    result = fit(cfg, tmp_path / "run")
    assert (result.step, result.status) == (2, 0)
    rows = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    losses = [row["train/loss"] for row in rows if "train/loss" in row]
    assert len(losses) == 2
    assert np.isfinite(losses).all()
    evaluated = {name.split("/")[0] for name in result.metrics}
    assert set(cfg.evals) <= evaluated
    saved = json.loads((tmp_path / "run" / "config.json").read_text())
    assert saved == config_lib.to_json(cfg)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_docstring_says_what_a_reader_needs(path: Path) -> None:
    text = path.read_text()
    assert f"--config=configs/{path.name}" in text
    for word in ("Hardware:", "Published:"):
        assert word in text, f"{path.name} lacks {word!r}"
    assert len(text.splitlines()) <= 80


def test_variants_in_file_names() -> None:
    sizes = {"ti": 192, "s": 384, "b": 768, "l": 1024, "h": 1280}
    for path in FILES:
        _, variant, *_ = path.stem.split("_")
        if variant[0] in "sblh" or variant.startswith("ti"):
            name = variant.rstrip("0123456789")
            model = load(path).model
            assert model.dim == sizes[name], path
            assert model.patch[0] == int(variant[len(name) :]), path
