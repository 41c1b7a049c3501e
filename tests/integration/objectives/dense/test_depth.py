# SPDX-License-Identifier: Apache-2.0
"""Runs that learn depth: on eight devices as on one, frozen, stopped and continued to the bit."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from tests.dense_sets import write_depth
from vit_jax import models, trees
from vit_jax.checkpoints import CheckpointConfig
from vit_jax.checkpoints.reader import find
from vit_jax.checkpoints.reader import load as read
from vit_jax.config.tree import Config, LogConfig
from vit_jax.data import Crop, DataConfig, TransformConfig
from vit_jax.devices import sharding
from vit_jax.devices.sharding import MeshConfig
from vit_jax.evals import DepthEval
from vit_jax.inference import dense
from vit_jax.models.dense.dpt import DptConfig
from vit_jax.objectives import DepthConfig, DepthHead
from vit_jax.optim import OptimConfig, Optimizer
from vit_jax.train import build as build_lib
from vit_jax.train.loop import fit
from vit_jax.workdir.folder import CHECKPOINTS

BATCH, STEPS = 8, 2
SIZES: dict[str, Any] = {"image_size": (16, 16), "patch": (4, 4), "dim": 8, "num_heads": 2}
HEADS = {
    "linear": DepthConfig(bins=8, variance_after=1),
    "dpt": DepthConfig(
        head=DepthHead.DPT,
        variance_after=1,
        dpt=DptConfig(
            taps=(0, 1, 2, 3), widths=(4, 4, 8, 8), dim=8, hidden_dim=4, residual_norm=True
        ),
    ),
    "frozen": DepthConfig(bins=8, frozen=True),
}


def config(run: str, name: str = "depth:none") -> Config:
    model = models.variant("vit_mu8", num_classes=0, depth=4, mlp_dim=16, **SIZES)
    whole = TransformConfig(crop=Crop.RESIZE)
    return Config(
        model=models.with_fields(model, {"class_token": True, "pool": "cls"}),
        data=DataConfig(
            name=name, batch_size=BATCH, transform=dataclasses.replace(whole, flip=True)
        ),
        # Its steps are the gradients, not their signs.
        optim=OptimConfig(name=Optimizer.SGD, lr=0.01, momentum=0.0, clip_norm=35.0),
        objective=HEADS[run],
        duration="4 steps",
        evals={"val": DepthEval(split="val", transform=whole, every="2 steps")},
        checkpoint=CheckpointConfig(every="2 steps", metric="val/rmse", keep=9),
        log=LogConfig(every="1 steps", tensorboard=False),
    )


Run = tuple[list[dict[str, float]], Any]


def train(run: str, mesh: MeshConfig, devices: int) -> Run:
    """Return the metrics of each step, and the variables after the last."""
    parts = build_lib.build(config(run), 1000)
    on = sharding.make_mesh(mesh, jax.devices()[:devices])
    rng = np.random.default_rng(0)
    with jax.set_mesh(on):
        state = build_lib.init_state(config(run), parts, on)
        start = jax.device_get(state.params)
        step, seen = build_lib.compile_steps(parts, on)[0], []
        for _ in range(STEPS):
            shape = (BATCH, *SIZES["image_size"])
            depth = rng.uniform(0, 5, shape).astype(np.float32)
            depth[depth < 1] = 0  # a fifth is not known, of each image another share
            batch = {"image": rng.integers(0, 256, (*shape, 3), np.uint8), "depth": depth}
            state, metrics = step(state, {}, jax.device_put(batch, sharding.batch_sharding(on)))
            seen.append({name: float(value) for name, value in metrics.items()})
        end = jax.device_get({"params": state.params, **state.model_state})
    return seen, {"start": start, "end": end}


def test_eight_devices_train_as_one_does() -> None:
    found, expected = train("dpt", MeshConfig(data=4, fsdp=2), 8), train("dpt", MeshConfig(), 1)
    for one, other in zip(found[0], expected[0], strict=True):
        assert one == pytest.approx(other, rel=2e-4, abs=2e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-4, 1e-5), found[1], expected[1])
    # The variance is left out in the first step: it is nearly all of the loss of such noise.
    assert expected[0][1]["loss"] > 1.3 * expected[0][0]["loss"]
    print(expected[0])
    assert 0.7 < expected[0][0]["known"] < 0.9


def test_a_frozen_encoder_stays() -> None:
    _, found = train("frozen", MeshConfig(), 1)
    start, end = found["start"], found["end"]
    for name, leaf in trees.named_leaves(start):
        same = np.array_equal(leaf, dict(trees.named_leaves(end["params"]))[name])
        assert same != name.startswith("depth_head/"), name
    assert np.any(end["batch_stats"]["depth_head"]["norm"]["mean"])


def test_a_run_that_is_continued_ends_with_the_same_bits(tmp_path: Path) -> None:
    cfg = config("linear", write_depth(tmp_path / "scenes"))
    whole, rest = tmp_path / "all", tmp_path / "two"
    measured = fit(cfg, whole).metrics
    assert measured.keys() >= {"val/rmse", "val/abs_rel", "val/delta1"}
    shutil.copytree(whole / CHECKPOINTS / "2", rest / CHECKPOINTS / "2")
    assert fit(cfg, rest).metrics == measured
    saved = [find(str(place), "4") for place in (whole, rest)]
    names = [name for name in saved[0].manifest.leaves if "rng" not in name]
    before, after = (read(each, names) for each in saved)
    for name in names:
        np.testing.assert_array_equal(np.asarray(before[name]), np.asarray(after[name]), name)
    assert any("batch_stats/depth_head" in name for name in names)
    # A loaded run says the same of an image as its evaluation did.
    found = dense.load(f"ckpt:{whole}")
    assert found.head == cfg.objective.pixel_head
    image = np.asarray(Image.open(tmp_path / "scenes/images/val/0.png").resize((16, 16)))
    depth = dense.predictors(found)["depth"](found.variables, {"image": jnp.asarray(image[None])})
    assert depth.shape == (1, 16, 16)
    assert np.all(np.isfinite(depth))
