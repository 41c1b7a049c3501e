# SPDX-License-Identifier: Apache-2.0
"""Every config file builds and is what its name says; shrunk, each kind of run trains two steps."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from benchmarks import several_labels
from tests import captioned, dense_sets
from tests.unit.test_configs import CONFIGS, TRAINED, load, shrink
from tests.unit.train import teachers
from tests.unit.weights import google_writer
from vit_jax import models, weights
from vit_jax.config import saved as config_json
from vit_jax.config.tree import Config
from vit_jax.models import BiTConfig, SwinConfig, pair, two_towers
from vit_jax.objectives import contrastive
from vit_jax.train.loop import fit
from vit_jax.train.report.writers import read_jsonl
from vit_jax.weights import two_towers as pair_names


def write_weights(kind: str, model: Any, place: Path) -> str:
    """Write random weights as those of `kind` are published; returns what names them."""
    if kind == "ckpt":
        return teachers.save(place, model)
    variables = google_writer.random_variables(models.abstract(model))
    variables = jax.tree.map(np.abs, variables)  # of BatchNorm's variances
    if kind == "timm":
        save_file(weights.to_timm(variables, model), f"{place}.safetensors")
        return f"timm:{place}.safetensors"
    params = variables["params"]
    bit = isinstance(model, BiTConfig)
    flat = google_writer.bit(params) if bit else google_writer.vit(params, model.num_heads)
    np.savez(f"{place}.npz", **flat)
    return f"npz:{place}.npz"


def write_pair(cfg: Config, place: Path) -> str:
    """Write a random pair of a run's towers as transformers has them; returns what names it."""
    both = contrastive.pair(cfg.objective, cfg.model)
    params, _ = jax.jit(lambda key: two_towers.init(both, key))(jax.random.key(1))
    params = jax.tree.map(np.asarray, params)
    written = pair_names.state({"params": params}, both, pair_names.Codebase.TRANSFORMERS)
    save_file(written, f"{place}.safetensors")
    return f"timm:{place}.safetensors"


def place(cfg: Config, folder: Path, tmp_path: Path) -> Config:
    """Point a shrunk run to images and, where it has any, to weights of another size and head."""
    if cfg.objective.gives_numbers:
        several_labels.write(tmp_path / "tables")
        cfg.data.name = f"csv:{tmp_path}/tables/numbers.csv?target=ink,slant"
        cfg.model.num_classes = 2
    elif cfg.data.name == "folder":
        cfg.data.name = f"folder:{folder}"
    elif cfg.objective.pixel_target:
        cfg.data.name = dense_sets.WRITERS[cfg.objective.pixel_target](tmp_path / "set")
    if cfg.objective.embeds_texts:
        cfg.data.name = f"csv:{folder}/captions.csv"
        cfg.objective.tokenizer = str(captioned.write_tokenizer(tmp_path / "words.json"))
    if cfg.init.weights.startswith("hub:"):
        cfg.init.weights = write_pair(cfg, tmp_path / "init")
    elif cfg.init.weights:
        changes: dict[str, Any] = {"num_classes": 5} if "^head/" in cfg.init.skip else {}
        if "^pre_logits/" in cfg.init.skip:
            changes["pre_logits_dim"] = 16
        if isinstance(cfg.model, SwinConfig):
            changes["window"] = (2,)
        elif hasattr(cfg.model, "patch"):
            changes["image_size"] = tuple(3 * side for side in pair(cfg.model.patch, "patch"))
        before = dataclasses.replace(cfg.model, **changes)
        kind = cfg.init.weights.split(":")[0].replace("hf", "timm")
        cfg.init.weights = write_weights(kind, before, tmp_path / "init")
    distill = getattr(cfg.objective, "distill", None)
    if distill is not None:
        kind = distill.weights.split(":")[0]
        distill.weights = write_weights(kind, distill.teacher, tmp_path / "teacher")
    return cfg


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    captioned.write(root)
    return root


@pytest.mark.parametrize("run", TRAINED)
def test_config_trains(run: str, folder: Path, tmp_path: Path) -> None:
    name, _, argument = run.partition(":")
    cfg = place(shrink(load(CONFIGS / f"{name}.py", argument)), folder, tmp_path)
    result = fit(cfg, tmp_path / "run")
    assert (result.step, result.status) == (2, 0)
    rows = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    losses = [row["train/loss"] for row in rows if "train/loss" in row]
    assert len(losses) == 2
    assert np.isfinite(losses).all()
    evaluated = {name.split("/")[0] for name in result.metrics}
    assert set(cfg.evals) <= evaluated
    saved = json.loads((tmp_path / "run" / "config.json").read_text())
    expected = config_json.to_json(cfg)
    assert saved["checkpoint"].pop("mode") in ("max", "min")  # "" is the metric's own
    del expected["checkpoint"]["mode"]
    if cfg.objective.gives_numbers:  # a run keeps the spread of its numbers
        for key in ("mean", "std"):
            assert len(saved["objective"].pop(key)) == cfg.model.num_classes
            assert expected["objective"].pop(key) == []
    assert saved == expected
