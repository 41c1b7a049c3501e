# SPDX-License-Identifier: Apache-2.0
"""Runs on images of their own shapes: a program a length, resume, layouts, what is asked after."""

import dataclasses
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image

from configs.naflex_folder import get_config
from vit_jax import inference
from vit_jax.config.tree import Config
from vit_jax.data.stream.native import drawn_length
from vit_jax.devices.sharding import MeshConfig
from vit_jax.inference import evaluate as evaluate_lib
from vit_jax.inference.forward import Layers, make_encode
from vit_jax.inference.views import file_batches
from vit_jax.objectives import Supervised
from vit_jax.optim import OptimConfig, Optimizer
from vit_jax.train import build as build_lib
from vit_jax.train import estimate
from vit_jax.train.loop import fit

LENGTHS = (8, 16)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, rng = tmp_path_factory.mktemp("shapes"), np.random.default_rng(0)
    for split, count in (("train", 16), ("val", 6)):
        for i in range(count):
            height, width = rng.integers(10, 48, 2).tolist()
            place = root / split / f"class{i % 2}"
            place.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 256, (height, width, 3), np.uint8) // (1 + i % 2)
            Image.fromarray(pixels).save(place / f"{i}.png")
    return root


def config(folder: Path, pack: int = 0, devices: int = 1) -> Config:
    cfg = get_config("small_packed" if pack else "small")
    cfg.model = dataclasses.replace(
        cfg.model, dim=16, depth=1, num_heads=2, mlp_dim=32, drop_path_rate=0.0
    )
    cfg.data.name, cfg.data.batch_size, cfg.data.pack = f"folder:{folder}", 8, pack
    cfg.data.transform.lengths = (32,) if pack else LENGTHS
    cfg.duration, cfg.optim = "4 steps", OptimConfig(name=Optimizer.SGD, lr=0.1)
    cfg.log.every, cfg.log.tensorboard = "1 steps", False
    cfg.checkpoint = dataclasses.replace(cfg.checkpoint, every="2 steps", keep=9, keep_best=0)
    cfg.mesh = MeshConfig(data=devices)
    cfg.evals["val"].every, cfg.evals["val"].report = "", False
    cfg.evals["val"].transform.lengths = (16,)
    return cfg


def numbers(state: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state.params)]


def test_a_program_for_each_length_and_the_same_run_when_it_is_continued(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traced: Counter[int] = Counter()
    loss = Supervised.loss

    def counted(self: Any, params: Any, ctx: Any, batch: Any, rng: Any) -> Any:
        traced[batch["image"].shape[1]] += 1
        return loss(self, params, ctx, batch, rng)

    cfg = config(folder)
    drawn = [drawn_length(LENGTHS, cfg.seed, step) for step in range(4)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Supervised, "loss", counted)
        whole = fit(cfg, tmp_path / "whole")
    assert set(traced) == set(drawn) == set(LENGTHS)
    assert len(set(traced.values())) == 1
    assert "fill" in (tmp_path / "whole" / "metrics.jsonl").read_text()
    saved = tmp_path / "again" / "checkpoints"
    shutil.copytree(tmp_path / "whole" / "checkpoints" / "2", saved / "2")
    again = fit(config(folder), tmp_path / "again")
    for one, other in zip(numbers(whole.state), numbers(again.state), strict=True):
        np.testing.assert_array_equal(one, other)
    # What is asked of the run sees images in their shapes.
    trained = inference.load(f"ckpt:{tmp_path / 'whole'}")
    files = sorted(str(path) for path in (folder / "val").rglob("*.png"))
    answers = inference.predict(trained, files, 2, batch_size=4)
    target = evaluate_lib.open_target(trained, split="val")
    mesh = jax.sharding.Mesh(
        np.array(jax.devices()[:1]).reshape(1, 1, 1), ("data", "fsdp", "tensor")
    )
    measuring = evaluate_lib.Measuring(trained, target, mesh)
    scores, found = evaluate_lib.measure(measuring)
    assert found["top1"] == whole.metrics["val/top1"]
    confident = {names[0].class_id: names[0].probability for names in answers}
    assert set(confident) <= {0, 1}
    by_file = [each[0].probability for each in answers]
    np.testing.assert_allclose(sorted(by_file), sorted(scores.confidence), rtol=1e-5)
    names, errors = [], []
    (batch,) = file_batches(trained, files, 6, names, errors)
    arrays = jax.tree.map(jax.numpy.asarray, (dict(trained.variables), batch))
    features = make_encode(trained, Layers())(*arrays)
    assert not errors
    assert features.shape == (6, 16)


def test_packed_runs_are_the_same_on_every_layout(folder: Path, tmp_path: Path) -> None:
    one, two = (
        fit(config(folder, pack=4, devices=count), tmp_path / str(count)) for count in (1, 2)
    )
    for ours, theirs in zip(numbers(one.state), numbers(two.state), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)
    cfg = config(folder, pack=4)
    cfg.model.num_classes = 2
    parts = build_lib.build(cfg, num_examples=16)
    shapes = {key: x.shape for key, x in estimate.abstract_batch(cfg, parts).items()}
    assert shapes == {"image": (4, 32, 192), "grids": (4, 4, 2), "label": (4, 4)}
