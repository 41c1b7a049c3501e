# SPDX-License-Identifier: Apache-2.0
"""docs/add_an_objective.md is true: its file, registered as it says, does all that a run does."""

import dataclasses
import importlib.util
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest

from tests.refusals import refused_by
from vit_jax import config as config_lib
from vit_jax import objectives, trees
from vit_jax.__main__ import main as verb_main
from vit_jax.cli.dry_run import dry_run
from vit_jax.config import saved as config_json
from vit_jax.config.tree import Config
from vit_jax.devices import sharding
from vit_jax.evals import ClassifyEval
from vit_jax.sweeps.price import price
from vit_jax.train import build as build_lib
from vit_jax.train.loop import fit
from vit_jax.train.report.writers import read_jsonl

PAGE = Path(__file__).parents[2] / "docs" / "add_an_objective.md"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """Do what the page says: write the file, register it, read its config."""
    text = PAGE.read_text()
    code, config = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(code.splitlines()) <= 120
    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        module = load(folder / "denoising.py", code, "vit_jax.objectives.denoising", patch)
        (entry,) = re.findall(r"^    (\"DenoisingConfig\": .*),$", text, re.MULTILINE)
        for name, file in json.loads(f"{{{entry}}}").items():
            patch.setitem(objectives.OBJECTIVES, name, file)
        module.get_config = load(folder / "config.py", config, "config", patch).get_config
        yield module


def load(file: Path, code: str, name: str, patch: pytest.MonkeyPatch) -> ModuleType:
    file.write_text(code)
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    patch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def small(page: ModuleType) -> Config:
    cfg = page.get_config()
    sizes = {"dim": 16, "depth": 1, "num_heads": 2, "mlp_dim": 32, "dropout_rate": 0.1}
    cfg.model = dataclasses.replace(cfg.model, **sizes)
    cfg.data.batch_size, cfg.duration, cfg.optim.warmup = 32, "6 steps", "1 steps"
    cfg.evals["val"].every = cfg.evals["knn"].every = "3 steps"
    cfg.evals["knn"].train_split, cfg.mesh.data = "train[:200]", 1
    cfg.checkpoint.every, cfg.log.every, cfg.log.tensorboard = "3 steps", "1 steps", False
    return cfg


@pytest.fixture(scope="module")
def run(page: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    place = tmp_path_factory.mktemp("run") / "run"
    return fit(small(page), place), place


def test_it_trains_and_is_evaluated_by_its_loss_and_by_neighbours(run: tuple[Any, Path]) -> None:
    rows = read_jsonl(run[1] / "metrics.jsonl")
    losses = [row["train/loss"] for row in rows if "train/loss" in row]
    assert len(losses) == 6
    assert losses[-1] < losses[0]
    val = [row["val/loss"] for row in rows if "val/loss" in row]
    assert len(val) == 2
    assert val[1] < val[0]
    assert 0.1 < run[0].metrics["knn/knn20"] <= 1


def test_it_resumes_to_the_bit(page: ModuleType, run: tuple[Any, Path], tmp_path: Path) -> None:
    shutil.copytree(run[1], tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "6")
    (tmp_path / "run" / "finished.json").unlink()
    again = fit(small(page), tmp_path / "run")
    jax.tree.map(np.testing.assert_array_equal, again.state.params, run[0].state.params)
    assert again.metrics == run[0].metrics
    other = small(page)
    other.objective.noise = 0.5
    (tmp_path / "run" / "finished.json").unlink()
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "6")
    with refused_by("train.metadata.check_unchanged") as caught:
        fit(other, tmp_path / "run")
    assert "objective.noise: 1.0 -> 0.5" in str(caught.value)
    assert config_json.from_json(config_json.to_json(other)) == other


@pytest.mark.slow
def test_eight_devices_and_two_micro_batches_compute_the_same(page: ModuleType) -> None:
    norms = []
    for devices, accum_steps in ((1, 1), (8, 1), (1, 2)):
        cfg = small(page)
        # Each micro-batch has noise of its own: without any they are alike.
        cfg.objective.noise, cfg.model.dropout_rate, cfg.accum_steps = 0.0, 0.0, accum_steps
        cfg.mesh.data, cfg.mesh.fsdp = (devices // 2 or 1), 2 if devices > 1 else 1
        mesh = sharding.make_mesh(cfg.mesh, jax.devices()[:devices])
        parts = build_lib.build(cfg, 1000)
        state = build_lib.init_state(cfg, parts, mesh)
        image = np.random.default_rng(0).integers(0, 256, (32, 32, 32, 1), np.uint8)
        with jax.set_mesh(mesh):
            batch = sharding.global_batch({"image": image}, mesh, batch_size=32)
            _, metrics = build_lib.compile_steps(parts, mesh)[0](state, {}, batch)
        norms.append([float(metrics["loss"]), float(metrics["grad_norm"])])
    np.testing.assert_allclose(norms[1:], [norms[0]] * 2, rtol=1e-4)


def test_it_is_priced(page: ModuleType, run: tuple[Any, Path]) -> None:
    cfg = small(page)
    report, missing = dry_run(cfg)
    assert missing is None
    assert "decoder/kernel" in report
    parts = build_lib.build(cfg, 1000)
    flops = build_lib.example_flops(parts)
    assert price(cfg).flops == flops * 6 * 32
    assert price(cfg).params == trees.num_params(run[0].state.params)


def test_a_classifier_starts_from_it(
    run: tuple[Any, Path], tmp_path: Path, page: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    cfg = small(page)
    cfg.model.num_classes, cfg.objective = 10, objectives.SupervisedConfig()
    cfg.evals, cfg.checkpoint.metric = {}, "val/top1"
    cfg.init.weights = f"ckpt:{run[1]}@latest"
    cfg.duration = "1 steps"
    result = fit(cfg, tmp_path / "tuned")
    assert "started anew: params/head/" in capsys.readouterr().out
    assert "decoder" not in result.state.params


def test_what_does_not_go_with_it_is_one_line(
    page: ModuleType, run: tuple[Any, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    cfg = small(page)
    cfg.model.num_classes = 10
    with refused_by("config.checks.head_is_trained"):
        config_lib.check(cfg)
    cfg = small(page)
    cfg.evals["top1"] = ClassifyEval()
    with refused_by("config.checks._check_eval") as caught:
        config_lib.check(cfg)
    assert "evals.top1" in str(caught.value)
    assert verb_main(["vit_jax", "predict", f"--from={run[1]}", str(PAGE)]) == 2
    assert "a network without a head, and so no classes" in capsys.readouterr().err
