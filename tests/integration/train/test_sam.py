# SPDX-License-Identifier: Apache-2.0
"""SAM in the step: two gradients on one batch, against the same written out."""

import jax
import numpy as np
import pytest

from tests.unit.train.test_sam import DATA, LR, RHO, Cosh, _gradient, _step
from vit_jax import models
from vit_jax.config.tree import Config
from vit_jax.cost.flops import count
from vit_jax.train import build as build_lib


def test_the_step_is_by_the_gradient_uphill_and_all_else_is_of_the_parameters() -> None:
    before, after, metrics = _step(Cosh())
    w = np.asarray(before.params["w"])
    first = _gradient(w)
    second = _gradient(w + RHO * first / np.linalg.norm(first))
    assert np.abs(second - first).max() > 1e-2
    np.testing.assert_allclose(after.params["w"], w - LR * second, rtol=1e-5)
    np.testing.assert_allclose(after.ema["params"]["w"], w - 0.5 * LR * second, rtol=1e-5)
    np.testing.assert_array_equal(after.model_state["mean"], w)
    loss = np.log(np.cosh(DATA @ w)).mean()
    assert float(metrics["loss"]) == pytest.approx(loss, rel=1e-5)
    assert float(metrics["grad_norm"]) == pytest.approx(np.linalg.norm(second), rel=1e-5)
    assert float(metrics["nonfinite"]) == 0


def test_both_passes_drop_the_same() -> None:
    before, after, _ = _step(Cosh(dropout=True))
    key = jax.random.split(jax.random.fold_in(before.rng, 0))[1]
    masks = np.asarray(jax.random.bernoulli(key, 0.5, DATA.shape))
    w = np.asarray(before.params["w"])
    first = _gradient(w, masks)
    second = _gradient(w + RHO * first / np.linalg.norm(first), masks)
    np.testing.assert_allclose(after.params["w"], w - LR * second, rtol=1e-5)


def test_each_gradient_is_of_the_whole_batch() -> None:
    _, whole, _ = _step(Cosh())
    _, split, _ = _step(Cosh(), accum_steps=4)
    np.testing.assert_allclose(split.params["w"], whole.params["w"], rtol=1e-6)


@pytest.mark.parametrize("cliff", [0.9, 1.01], ids=["here", "uphill"])
def test_a_pass_that_is_not_finite_changes_nothing(cliff: float) -> None:
    before, after, metrics = _step(Cosh(cliff=cliff))
    assert float(metrics["nonfinite"]) == 1
    assert np.isfinite(metrics["loss"]) == (cliff > 1)
    for name in ("params", "model_state", "ema"):
        jax.tree.map(np.testing.assert_array_equal, getattr(before, name), getattr(after, name))


def test_two_passes_are_twice_the_work() -> None:
    cfg, found = Config(model=models.variant("vit_mu8", num_classes=8), duration="1 steps"), []
    batch = {"image": jax.ShapeDtypeStruct((2, *models.input_shape(cfg.model)), "uint8")}
    batch |= {"label": jax.ShapeDtypeStruct((2,), "int32")}
    for cfg.optim.sam_rho in (0.0, RHO):
        parts = build_lib.build(cfg, 1000)
        step = count(parts.programs[0].step, parts.abstract, parts.frozen, batch)
        found.append((build_lib.example_flops(parts), step))
    (once, step), (twice, of_both) = found
    assert twice == 2 * once
    assert of_both == pytest.approx(2 * step, rel=0.01)
