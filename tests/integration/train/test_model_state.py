# SPDX-License-Identifier: Apache-2.0
"""BatchNorm's statistics through the train loop: accumulation, EMA, NaN, evaluation, resume."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.unit.models.tiny import TINY
from vit_jax import models
from vit_jax.config import CheckpointConfig
from vit_jax.config.tree import Config, LogConfig
from vit_jax.data import Crop, DataConfig, TransformConfig
from vit_jax.devices import sharding
from vit_jax.evals import ClassifyEval
from vit_jax.models.losses import Loss, example_loss
from vit_jax.objectives import SupervisedConfig
from vit_jax.optim import OptimConfig, Optimizer
from vit_jax.train import build as build_lib
from vit_jax.train.loop import fit
from vit_jax.train.report.writers import read_jsonl

BATCH = 16


def tiny(**fields: Any) -> Config:
    return Config(
        model=dataclasses.replace(TINY["regnet"], zero_init_last=False),
        data=DataConfig(batch_size=BATCH),
        optim=OptimConfig(name=Optimizer.SGD, lr=0.1, nesterov=True),
        duration="3 steps",
        **fields,
    )


def draw() -> dict[str, np.ndarray]:
    """Draw a batch of unlike examples: a part of it has other statistics than the whole."""
    rng = np.random.default_rng(0)
    light = rng.integers(1, 256, (BATCH, 1, 1, 3))
    image = (rng.random((BATCH, 16, 16, 3)) * light).astype(np.uint8)
    return {"image": image, "label": rng.integers(0, 3, BATCH, np.int32)}


def run(cfg: Config, damage: Any = None) -> Any:
    """Return the state before (on the host) and after a step, and its metrics."""
    mesh = sharding.make_mesh(cfg.mesh, jax.devices()[:1])
    parts = build_lib.build(cfg, num_examples=1000)
    state = build_lib.init_state(cfg, parts, mesh)
    if damage is not None:
        damage(state)
    before = jax.device_get(dataclasses.replace(state, rng=None))
    with jax.set_mesh(mesh):
        batch = sharding.global_batch(draw(), mesh, batch_size=BATCH)
        state, metrics = build_lib.compile_steps(parts, mesh)[0](state, {}, batch)
    return before, state, {name: float(value) for name, value in metrics.items()}


def assert_close(a: Any, b: Any, **tolerance: float) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **tolerance), a, b)


def assert_same(a: Any, b: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, a, b)


def assert_moved(a: Any, b: Any) -> None:
    assert all(jax.tree.leaves(jax.tree.map(lambda x, y: (x != y).any(), a, b)))


def test_a_step_moves_the_statistics_and_their_moving_average() -> None:
    before, after, _ = run(tiny(ema_decay=0.75))
    assert set(before.model_state) == {"batch_stats"}
    assert_moved(before.model_state, after.model_state)
    old, new = ({"params": state.params, **state.model_state} for state in (before, after))
    expected = jax.tree.map(lambda o, n: 0.75 * o + 0.25 * np.asarray(n), old, new)
    assert_close(after.ema, expected, rtol=1e-6, atol=1e-7)
    assert_moved(after.ema["batch_stats"], new["batch_stats"])


def test_trained_as_evaluated_the_statistics_stay_and_are_what_it_normalises_by() -> None:
    cfg = tiny(objective=SupervisedConfig(train_mode=False))
    before, after, metrics = run(cfg)
    assert_same(before.model_state, after.model_state)
    assert not np.array_equal(before.params["head"]["kernel"], after.params["head"]["kernel"])
    parts = build_lib.build(cfg, num_examples=1000)
    batch = jax.tree.map(jnp.asarray, draw())
    variables = {"params": before.params, **before.model_state}
    logits = jax.jit(parts.objective.predictors["logits"])(variables, batch)
    targets = jax.nn.one_hot(batch["label"], logits.shape[-1])
    loss = example_loss(logits, targets, Loss.SOFTMAX).mean()
    assert metrics["loss"] == pytest.approx(float(loss), rel=1e-4)


def test_each_micro_batch_has_statistics_of_its_own() -> None:
    cfg = tiny(accum_steps=2)
    before, after, _ = run(cfg)
    module, parts = models.create(cfg.model), build_lib.build(cfg, num_examples=1000)
    batch = jax.tree.map(jnp.asarray, draw())
    image = parts.objective.prepare(batch, jax.random.key(0))["image"]

    @jax.jit
    def forward(variables: Any, image: jax.Array) -> Any:
        return module.apply(variables, image, train=True, mutable=["batch_stats"])[1]

    state = before.model_state
    for i in range(2):  # every second example, in turn, on the same parameters
        state = forward({"params": before.params, **state}, image[i::2])
    assert_close(after.model_state, state, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("value", [np.nan, 1e25])
def test_statistics_that_are_not_finite_are_not_kept(value: float) -> None:
    def damage(state: Any) -> None:
        kernel = state.params["stem"]["conv"]["kernel"]
        # 1e25 squares to an infinite variance, which the loss does not see: it divides to zero.
        state.params["stem"]["conv"]["kernel"] = jnp.full_like(kernel, value)

    before, after, metrics = run(tiny(ema_decay=0.75), damage=damage)
    assert metrics["nonfinite"] == 1
    assert np.isfinite(metrics["loss"]) == np.isfinite(value)
    assert_same(after.model_state, before.model_state)
    assert_same(after.params, before.params)
    assert_same(after.ema, before.ema)


def digits() -> Config:
    plain = TransformConfig(crop=Crop.RESIZE)
    cfg = tiny(ema_decay=0.5)
    cfg.model = dataclasses.replace(cfg.model, num_classes=10, channels=1)
    cfg.data = DataConfig(name="digits", batch_size=32, transform=plain)
    cfg.duration, cfg.mesh.data = "4 steps", 1
    cfg.evals = {"val": ClassifyEval(split="test[:64]", every="2 steps", transform=plain)}
    cfg.checkpoint = CheckpointConfig(every="2 steps", keep=2, keep_best=0)
    cfg.log = LogConfig(every="1 steps", tensorboard=False)
    return cfg


@pytest.mark.slow
def test_a_continued_run_has_the_same_bits_and_evaluates_by_its_statistics(tmp_path: Path) -> None:
    whole, part = tmp_path / "whole", tmp_path / "part"
    full = fit(digits(), whole)
    shutil.copytree(whole, part)
    shutil.rmtree(part / "checkpoints" / "4")
    (part / "finished.json").unlink()
    again = fit(digits(), part)
    rows = [r for r in read_jsonl(part / "metrics.jsonl") if {"train/loss", "val/loss"} & set(r)]
    assert [row["step"] for row in rows] == [1, 2, 2, 3, 4, 4]
    for name in ("params", "model_state", "opt_state", "ema"):
        assert_same(getattr(again.state, name), getattr(full.state, name))
    assert again.metrics == full.metrics

    # What was measured is what the state's own statistics give.
    cfg, state = digits(), full.state
    parts = build_lib.build(cfg, num_examples=1000)
    source = build_lib.open_train(cfg)
    sources = build_lib.open_evals(cfg, source)
    mesh = sharding.make_mesh(cfg.mesh)
    evaluator = build_lib.evaluators(cfg, sources, source, mesh, lambda: None)["val"]
    trained = {"params": state.params, **state.model_state}
    for name, variables in (("val", trained), ("val_ema", state.ema)):
        scores = evaluator.run(parts.objective.predictors, variables)
        assert scores["loss"] == full.metrics[f"{name}/loss"]
    mixed = {"params": state.ema["params"], **state.model_state}
    assert evaluator.run(parts.objective.predictors, mixed)["loss"] != full.metrics["val_ema/loss"]
