# SPDX-License-Identifier: Apache-2.0
"""Optimizers against numpy formulas and plain optax, layer by layer of a stack."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.unit.models.tiny import TINY
from tests.unit.optim.test_build import (
    CASES,
    CLOCK,
    LR,
    assert_layers_close,
    by_formula,
    by_layer,
    config,
    coupled_sgd,
    make_grads,
    make_params,
    muon,
    run,
    shapes,
)
from vit_jax import models, trees
from vit_jax.optim import MomentDtype, Optimizer, make_optimizer


def jordans_muon(name, p, g, memory, t):
    return muon(name, p, g, memory, t, debias=False)


# Other forms of them: the formula, and what is set besides.
FORMS = {
    "coupled": (Optimizer.SGD, coupled_sgd, {"coupled_decay": True}),
    "jordan": (Optimizer.MUON, jordans_muon, {"muon_debias": False}),
}


@pytest.mark.parametrize("name", list(Optimizer))
def test_each_layer_follows_the_formula(name):
    # Deeper than wide, and wide enough to factor: Adafactor must not factor the depth.
    params = make_params(depth=36, dim=34, out=32) if name == Optimizer.ADAFACTOR else make_params()
    grads = make_grads(params)
    got, _ = run(config(name), params, grads)
    assert_layers_close(got, by_formula(CASES[name][0], params, grads), rtol=5e-5, atol=2e-6)


@pytest.mark.parametrize("form", FORMS)
def test_each_layer_follows_the_formula_of_a_form(form):
    name, formula, settings = FORMS[form]
    params = make_params()
    grads = make_grads(params)
    plain, before = run(config(name), params, grads)
    got, state = run(config(name, **settings), params, grads)
    assert_layers_close(got, by_formula(formula, params, grads), rtol=5e-5, atol=2e-6)
    with pytest.raises(AssertionError):
        assert_layers_close(plain, by_layer(got), rtol=1e-3, atol=1e-5)
    # What is stored of a run is the same, its counters too.
    assert shapes(state) == shapes(before)
    counts = [
        {n: int(leaf) for n, leaf in trees.named_leaves(s) if n.endswith("count")}
        for s in (state, before)
    ]
    assert counts[0] == counts[1]


def test_adamw_equals_optax_bitwise():
    params = make_params()
    grads = make_grads(params)
    kernels = lambda p: trees.map_named(lambda name, _: name.endswith("kernel"), p)  # noqa: E731
    plain = optax.adamw(LR, 0.9, 0.99, 1e-6, weight_decay=0.1, mask=kernels)
    got, _ = run(config(Optimizer.ADAMW), params, grads, jit=False)
    state = plain.init(params)
    for g in grads:
        updates, state = plain.update(g, state, params)
        params = optax.apply_updates(params, updates)
    jax.tree.map(np.testing.assert_array_equal, got, params)


def test_muon_equals_optax_on_each_matrix():
    params = make_params()
    grads = make_grads(params)
    got, _ = run(config(Optimizer.MUON), params, grads)
    plain = optax.contrib.muon(
        LR, beta=0.8, eps=1e-6, weight_decay=0.1, consistent_rms=0.2, nesterov=True
    )
    for layer in range(3):
        matrix = jnp.asarray(params["blocks"]["mlp"]["fc1"]["kernel"][layer])
        state = plain.init(matrix)
        for g in grads:
            updates, state = plain.update(g["blocks"]["mlp"]["fc1"]["kernel"][layer], state, matrix)
            matrix += updates
        np.testing.assert_allclose(got["blocks"]["mlp"]["fc1"]["kernel"][layer], matrix, rtol=1e-5)


@pytest.mark.parametrize("family", TINY)
def test_muon_has_a_step_for_every_leaf_of_every_family(family):
    params = models.abstract(TINY[family])["params"]
    tx, _ = make_optimizer(config(Optimizer.MUON), params, CLOCK)
    updates, _ = jax.eval_shape(tx.update, params, jax.eval_shape(tx.init, params), params)
    assert trees.named_leaves(updates) == trees.named_leaves(params)


@pytest.mark.parametrize("name", list(Optimizer))
def test_mu_dtype_is_stored(name):
    params = make_params()
    cfg = config(name, mu_dtype=MomentDtype.BFLOAT16)
    got, state = run(cfg, params, make_grads(params))
    first = [
        leaf
        for path, leaf in trees.named_leaves(state)
        if {"mu", "trace", "ema"} & {*path.split("/")}
    ]
    others = [
        leaf for path, leaf in trees.named_leaves(state)
        if leaf.ndim and not {"mu", "trace", "ema"} & {*path.split("/")}
    ]  # fmt: skip
    assert len(first) == len(jax.tree.leaves(params))
    assert {leaf.dtype for leaf in first} == {jnp.bfloat16.dtype}
    assert all(leaf.dtype == jnp.float32 for leaf in others)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(got))
    full, _ = run(config(name), params, make_grads(params))
    assert_layers_close(got, by_layer(full), rtol=0.05, atol=0.02)


@pytest.mark.parametrize("name", list(Optimizer))
def test_frozen_layers_stay_bitwise_whatever_their_gradient(name):
    params = make_params()
    params["cls_token"][0, 0, :2] = [0.0, -0.0]
    params["blocks"]["norm1"]["scale"][1, :2] = [0.0, -0.0]
    grads = make_grads(params)
    for g in grads:
        g["cls_token"][:] = np.nan
        g["blocks"]["mlp"]["fc1"]["kernel"][1] = np.inf
    cfg = config(name, freeze="cls_token|blocks/1/|head/kernel")
    cfg.clip_norm = 1.0
    got, state = run(cfg, params, grads)
    before, after = by_layer(params), by_layer(got)
    for layer in before:
        same = before[layer].tobytes() == after[layer].tobytes()
        frozen = layer in ("cls_token", "head/kernel") or "/1/" in layer
        assert same == frozen, layer
        assert np.isfinite(after[layer]).all(), layer
    assert not [p for p, _ in trees.named_leaves(state) if p.endswith(("cls_token", "head/kernel"))]
