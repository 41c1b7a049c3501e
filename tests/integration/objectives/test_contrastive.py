# SPDX-License-Identifier: Apache-2.0
"""Runs that learn from captions: to the bit, on any devices, and with a tower that is locked."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import captioned
from tests.unit.models.tiny import TINY
from tests.unit.test_configs import shrink
from tests.unit.train import teachers
from vit_jax import trees
from vit_jax.checkpoints.reader import find
from vit_jax.checkpoints.reader import load as read
from vit_jax.config.tree import Config
from vit_jax.data import Crop
from vit_jax.models.text import TowerHead
from vit_jax.objectives import Lock
from vit_jax.optim import OptimConfig, Optimizer
from vit_jax.recipes import image_text
from vit_jax.train.loop import fit
from vit_jax.train.report.writers import read_jsonl
from vit_jax.weights.config import InitConfig
from vit_jax.workdir.folder import CHECKPOINTS


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("captioned")
    captioned.write(root)
    captioned.write_tokenizer(root / "words.json")
    return root


def _config(place: Path) -> Config:
    cfg = shrink(image_text.small())
    cfg.data.name, cfg.data.batch_size = f"csv:{place}/captions.csv", 16
    cfg.objective.tokenizer = str(place / "words.json")
    cfg.duration, cfg.optim.warmup = "4 steps", ""
    cfg.checkpoint.every, cfg.checkpoint.keep, cfg.checkpoint.keep_best = "2 steps", 9, 0
    cfg.evals, cfg.checkpoint.metric = {}, ""
    return cfg


def _saved(path: Path, step: int) -> dict[str, np.ndarray]:
    saved = find(str(path), str(step))
    names = [name for name in saved.manifest.leaves if "rng" not in name]
    return {name: np.asarray(value) for name, value in read(saved, names).items()}


def _metric(path: Path, name: str) -> list[float]:
    rows = read_jsonl(path / "metrics.jsonl")
    return [row[f"train/{name}"] for row in rows if f"train/{name}" in row]


def test_a_run_goes_on_to_the_bit_and_eight_devices_train_as_one(
    place: Path, tmp_path: Path
) -> None:
    def config(**fields: Any) -> Config:
        cfg = _config(place)
        # Its steps are the gradients, not their signs.
        cfg.optim = OptimConfig(name=Optimizer.SGD, lr=0.01, clip_norm=0.0)
        cfg.objective.scale, cfg.objective.max_scale = 20.0, 10.0
        return dataclasses.replace(cfg, **fields)

    whole, rest, eight = tmp_path / "whole", tmp_path / "rest", tmp_path / "eight"
    fit(config(), whole)
    shutil.copytree(whole / CHECKPOINTS / "2", rest / CHECKPOINTS / "2")
    fit(config(), rest)
    before, after = _saved(whole, 4), _saved(rest, 4)
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(value, after[name], err_msg=name)
    assert _metric(rest, "loss") == _metric(whole, "loss")[2:]
    # An image has up to three captions, and another one in another epoch: 24 images, 16 a step.
    assert len(set(_metric(whole, "loss"))) == 4
    cfg = config()
    cfg.mesh.data = 8
    fit(cfg, eight)
    np.testing.assert_allclose(_metric(eight, "loss"), _metric(whole, "loss"), rtol=1e-6, atol=0)
    # The scale begins beyond its bound, and is there after a step.
    first, second, *others = _metric(whole, "logit_scale")
    assert (first, second) == pytest.approx((20.0, 10.0))
    assert max(others) <= 10.0 * (1 + 1e-6)


def test_a_locked_image_tower_stays_to_the_bit_with_its_statistics(
    place: Path, tmp_path: Path
) -> None:
    tower = dataclasses.replace(TINY["resnet"], num_classes=3)
    teachers.save(tmp_path / "tower", tower)
    cfg = _config(place)
    cfg.model = dataclasses.replace(tower, num_classes=0)
    cfg.objective.lock, cfg.objective.image_projection = Lock.IMAGE, TowerHead.LINEAR
    cfg.init = InitConfig(weights=f"ckpt:{tmp_path / 'tower'}", skip=("^head/",))
    cfg.data.transform.crop, cfg.data.transform.area = Crop.RESIZE, ()
    cfg.duration, cfg.checkpoint.every = "2 steps", "1 steps"
    assert cfg.optim.weight_decay  # which does not act on it
    fit(cfg, tmp_path / "run")
    saved = [find(str(tmp_path / "run"), step) for step in ("1", "2")]
    leaves = saved[1].manifest.leaves
    names = [name for name in leaves if name.startswith(("params/", "model_state/"))]
    before, after = (read(each, names) for each in saved)
    theirs = teachers.variables(tower)
    theirs = {"params": theirs.pop("params"), "model_state": theirs}
    kept = {n: x for n, x in trees.named_leaves(theirs) if not n.startswith("params/head/")}
    assert any(name.startswith("model_state/batch_stats/") for name in kept)
    for name, value in kept.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)
    rest = [name for name in after if name.startswith("params/") and name not in kept]
    beside = {"text", "image_head", "logit_scale"}
    assert {name.split("/")[1] for name in rest} == beside
    for name in rest:
        assert (before[name] != after[name]).any(), name
    # Nothing that the optimizer keeps is of the locked tower.
    moments = {name for name in leaves if name.startswith("opt_state/")}
    layers = {name.removeprefix("params/") for name in kept}
    assert not {n for n in moments if any(n.endswith(f"/{layer}") for layer in layers)}
    assert any(name.endswith("/text/token_embed") for name in moments)
