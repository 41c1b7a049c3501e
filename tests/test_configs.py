# SPDX-License-Identifier: Apache-2.0
"""Every config file, shrunk, builds and trains two real steps, and is what its name says."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from tests.models.tiny import SHRINK
from tests.models.tiny import shrink as shrink_model
from tests.photos import write_folder
from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.config import Config
from vit_jax.optim import Schedule
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
    digits = cfg.data.name == "digits"
    cfg.model = shrink_model(cfg.model, num_classes=10 if digits else 3)
    if not digits:
        cfg.data.name = f"folder:{folder}"
        cfg.data.train_split = cfg.data.train_split.replace("51200", "4")
        for ev in cfg.evals.values():
            ev.split = ev.split.replace("51200", "4").replace("99%", "80%")
            ev.split = ev.split.replace("validation", "val")
            ev.every = "1 steps"
    cfg.data.batch_size, cfg.accum_steps, cfg.duration = 8, 1, "2 steps"
    cfg.optim.warmup = "1 steps"
    cfg.optim.cooldown = "1 steps" if cfg.optim.cooldown else ""
    if cfg.optim.schedule is Schedule.STEP:
        cfg.optim.milestones = ("1 steps",)
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


def test_file_names_say_the_variant() -> None:
    for path in FILES:
        name, published, _ = path.stem.partition("_imagenet")
        if not published:
            continue
        cfg, variant = load(path).model, models.variant(name)
        assert type(cfg) is type(variant), path
        for field in SHRINK[type(cfg)](cfg):
            if field not in ("image_size", "pre_logits_dim"):
                assert getattr(cfg, field) == getattr(variant, field), f"{path}: {field}"


def test_every_family_has_a_published_run_and_a_small_one() -> None:
    families = {type(cfg) for cfg in models.VARIANTS.values()}
    loaded = {path.stem: type(load(path).model) for path in FILES}
    assert {family for stem, family in loaded.items() if "imagenet" in stem} == families
    assert {family for stem, family in loaded.items() if "digits" in stem} == families


def test_what_an_older_version_did_not_write_was_at_its_default() -> None:
    cfg = load(CONFIGS / "vit_mu_digits.py")
    saved = config_lib.to_json(cfg)
    del saved["init"], saved["model"]["pool_prefix"]
    assert config_lib.changes(saved, config_lib.to_json(cfg)) == []
    cfg.init.weights, cfg.model.pool_prefix = "npz:x", True
    assert config_lib.changes(saved, config_lib.to_json(cfg)) == [
        "init.weights: '' -> 'npz:x'",
        "model.pool_prefix: False -> True",
    ]
