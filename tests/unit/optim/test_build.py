# SPDX-License-Identifier: Apache-2.0
"""Optimizers against numpy formulas and plain optax, layer by layer of a stack."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from vit_jax import trees
from vit_jax.optim import OptimConfig, Optimizer, Schedule, make_optimizer
from vit_jax.settings.durations import Clock

CLOCK = Clock(batch_size=8, num_examples=80, total_steps=100)
LR = 0.01
STEPS = 3
PLAIN = {"schedule": Schedule.CONSTANT, "lr": LR, "clip_norm": 0.0}


def make_params(depth=3, dim=8, out=12):
    """Parameters named as a ViT's; every layer of the stack has another scale."""
    rng = np.random.default_rng(0)

    def layers(*shape):
        scale = 2.0 ** np.arange(depth).reshape(-1, *[1] * len(shape))
        return (rng.normal(size=(depth, *shape)) * scale).astype(np.float32)

    def one(*shape):
        return rng.normal(size=shape).astype(np.float32)

    return {
        "patch_embed": {"kernel": one(2, 2, 3, dim), "bias": one(dim)},
        "cls_token": one(1, 1, dim),
        "blocks": {
            "norm1": {"scale": layers(dim)},
            "mlp": {"fc1": {"kernel": layers(dim, out), "bias": layers(out)}},
        },
        "head": {"kernel": one(dim, 5), "bias": np.zeros(5, np.float32)},
    }


def make_grads(params, steps=STEPS):
    rng = np.random.default_rng(1)
    return [
        jax.tree.map(lambda p: (p * rng.normal(size=p.shape)).astype(np.float32) + 0.1, params)
        for _ in range(steps)
    ]


def run(cfg, params, grads, jit=True):
    tx, _ = make_optimizer(cfg, params, CLOCK)
    update = jax.jit(tx.update) if jit else tx.update
    state = tx.init(params)
    for g in grads:
        updates, state = update(g, state, params)
        params = optax.apply_updates(params, updates)
    return params, state


def by_layer(tree):
    """Unstack: {layer's name: tensor}."""
    layers = {}
    for name, leaf in trees.named_leaves(tree):
        names = trees.layer_names(name, leaf)
        layers |= zip(names, leaf if trees.is_stacked(name) else [leaf], strict=True)
    return {name: np.asarray(leaf, np.float64) for name, leaf in layers.items()}


def assert_layers_close(got, want, rtol=1e-5, atol=1e-6):
    got = by_layer(got)
    assert got.keys() == want.keys()
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol, atol, err_msg=name)


# Formulas for one tensor: step(name, p, g, memory, t) -> p, with t = 1, 2, ...


def adam_direction(g, memory, t, b1=0.9, b2=0.99, eps=1e-6):
    memory["m"] = b1 * memory.get("m", 0) + (1 - b1) * g
    memory["v"] = b2 * memory.get("v", 0) + (1 - b2) * g**2
    return memory["m"] / (1 - b1**t) / (np.sqrt(memory["v"] / (1 - b2**t)) + eps)


def decay_of(name, p, wd=0.1):
    return wd * p if name.endswith("kernel") else 0


def adamw(name, p, g, memory, t):
    return p - LR * (adam_direction(g, memory, t) + decay_of(name, p))


def sgd(name, p, g, memory, t):
    memory["m"] = 0.8 * memory.get("m", 0) + g
    return p - LR * (g + 0.8 * memory["m"] + decay_of(name, p))


def lamb(name, p, g, memory, t):
    u = adam_direction(g, memory, t) + decay_of(name, p)
    trust = np.linalg.norm(p) / np.linalg.norm(u) if name.endswith("kernel") else 1
    return p - LR * trust * u


def lars(name, p, g, memory, t):
    is_adapted = name.endswith("kernel")
    u = g + decay_of(name, p)
    if is_adapted:
        u = 0.001 * np.linalg.norm(p) / np.linalg.norm(u) * u
    memory["m"] = 0.8 * memory.get("m", 0) + u
    return p - LR * memory["m"]


def lion(name, p, g, memory, t):
    m = memory.get("m", 0)
    memory["m"] = 0.99 * m + 0.01 * g
    return p - LR * (np.sign(0.9 * m + 0.1 * g) + decay_of(name, p))


def adafactor(name, p, g, memory, t, cap=0.5):
    b2 = min(cap, 1 - t**-0.8)
    square = g**2 + 1e-30
    if p.ndim == 2 and min(p.shape) >= 32:
        memory["row"] = b2 * memory.get("row", 0) + (1 - b2) * square.mean(1)
        memory["col"] = b2 * memory.get("col", 0) + (1 - b2) * square.mean(0)
        v = np.outer(memory["row"], memory["col"]) / memory["row"].mean()
    else:
        v = memory["v"] = b2 * memory.get("v", 0) + (1 - b2) * square
    memory["m"] = 0.8 * memory.get("m", 0) + 0.2 * g / np.sqrt(v)
    return p - LR * (memory["m"] + decay_of(name, p))


def coupled_sgd(name, p, g, memory, t):
    g = g + decay_of(name, p)
    memory["m"] = 0.8 * memory.get("m", 0) + g
    return p - LR * (g + 0.8 * memory["m"])


def orthogonal(x):
    x = x / np.linalg.norm(x)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x


def is_hidden(name, p):
    return name.startswith("blocks/") and p.ndim == 2


def muon(name, p, g, memory, t, beta=0.8, debias=True, even=lambda x, memory: x):
    if not is_hidden(name, p):
        return adamw(name, p, g, memory, t)
    m = memory["m"] = beta * memory.get("m", 0) + (1 - beta) * g
    late, now = (1 - beta ** (t + 1), 1 - beta**t) if debias else (1, 1)
    x = even(orthogonal(beta * m / late + (1 - beta) * g / now), memory)
    return p - LR * (0.2 * np.sqrt(max(p.shape)) * x + decay_of(name, p))


def normuon(name, p, g, memory, t):
    def even(x, memory):  # kernels are (in, out): a row of the paper's is a column
        memory["v"] = 0.99 * memory.get("v", 0) + 0.01 * (x**2).mean(0)
        y = x / np.sqrt(memory["v"])
        return y * np.linalg.norm(x) / np.linalg.norm(y)

    return muon(name, p, g, memory, t, even=even)


def adamuon(name, p, g, memory, t, beta=0.8, nesterov=False):
    m = memory["mu"] = beta * memory.get("mu", 0) + (1 - beta) * g
    if not is_hidden(name, p):
        if nesterov:  # of Adam's first moment alone
            adam_direction(g, memory, t)
            ahead = (0.9 * memory["m"] + 0.1 * g) / (1 - 0.9**t)
            u = ahead / (np.sqrt(memory["v"] / (1 - 0.99**t)) + 1e-6)
            return p - LR * (u + decay_of(name, p))
        return adamw(name, p, g, memory, t)
    x = orthogonal(beta * m + (1 - beta) * g if nesterov else m)
    memory["v"] = 0.99 * memory.get("v", 0) + 0.01 * x**2
    y = x / (np.sqrt(memory["v"]) + 1e-6)
    return p - LR * (0.2 * np.sqrt(p.size) * y / np.linalg.norm(y) + decay_of(name, p))


def nadamuon(name, p, g, memory, t):
    return adamuon(name, p, g, memory, t, nesterov=True)


ADAM = {"beta2": 0.99, "eps": 1e-6}
CASES = {
    Optimizer.ADAMW: (adamw, ADAM),
    Optimizer.SGD: (sgd, {"momentum": 0.8, "nesterov": True}),
    Optimizer.LAMB: (lamb, ADAM),
    Optimizer.LARS: (lars, {"momentum": 0.8}),
    Optimizer.LION: (lion, {"beta2": 0.99}),
    Optimizer.ADAFACTOR: (adafactor, {"beta2": 0.5, "momentum": 0.8}),
    Optimizer.MUON: (muon, ADAM | {"momentum": 0.8, "nesterov": True}),
    Optimizer.NORMUON: (normuon, ADAM | {"momentum": 0.8, "nesterov": True}),
    Optimizer.ADAMUON: (adamuon, ADAM | {"momentum": 0.8}),
    Optimizer.NADAMUON: (nadamuon, ADAM | {"momentum": 0.8}),
}


def config(name, **settings):
    return OptimConfig(name=name, weight_decay=0.1, **PLAIN, **CASES[name][1], **settings)


def by_formula(formula, params, grads):
    want, memory = by_layer(params), {layer: {} for layer in by_layer(params)}
    for t, g in enumerate(grads, 1):
        g = by_layer(g)
        want = {layer: formula(layer, p, g[layer], memory[layer], t) for layer, p in want.items()}
    return want


def shapes(tree):
    return {name: (leaf.shape, leaf.dtype) for name, leaf in trees.named_leaves(tree)}


def test_coupled_decay_is_not_clipped():
    params = make_params()
    (g,) = make_grads(params, steps=1)
    cfg = config(Optimizer.SGD, coupled_decay=True)
    cfg.clip_norm = 0.5
    scale = 0.5 / np.sqrt(sum((v**2).sum() for v in by_layer(g).values()))
    clipped = [jax.tree.map(lambda v: v * scale, g)]
    assert_layers_close(run(cfg, params, [g])[0], by_formula(coupled_sgd, params, clipped))


def test_muon_keeps_embeddings_and_head_with_adam():
    outputs = ("head_dist", "patch_head", "prototypes", "decoder_pred")
    params = make_params() | {key: {"kernel": np.ones((8, 5), np.float32)} for key in outputs}
    state = jax.eval_shape(make_optimizer(config(Optimizer.MUON), params, CLOCK)[0].init, params)
    groups = state["muon"].inner_states
    on_muon = {name.split("mu/")[-1] for name, leaf in trees.named_leaves(groups["muon"])}
    assert on_muon - {"inner_state/count", "inner_state/ns_coeffs"} >= {"blocks/mlp/fc1/kernel"}
    others = ("head", "patch", "token", "prototypes", "pred")
    assert not [name for name in on_muon if any(word in name for word in others)]
    on_adam = {name.split("mu/")[-1] for name, _ in trees.named_leaves(groups["adam"])}
    assert {f"{key}/kernel" for key in outputs} <= on_adam
    assert {"head/kernel", "patch_embed/kernel", "cls_token"} <= on_adam


@pytest.mark.parametrize("freeze", ["", "patch_embed|head"])
@pytest.mark.parametrize("name", list(Optimizer))
def test_state_leaves_end_in_their_parameters_name(name, freeze):
    params = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, make_params(36, 34, 32)))
    tx, _ = make_optimizer(config(name, freeze=freeze), params, CLOCK)
    shapes = {n: leaf.shape for n, leaf in trees.named_leaves(params)}
    owners = set()
    for path, leaf in trees.named_leaves(jax.eval_shape(tx.init, params)):
        owner = max((n for n in shapes if path.endswith(f"/{n}")), key=len, default=None)
        if owner is None:
            assert leaf.size <= 3, path  # a counter, or Newton-Schulz's coefficients
        elif "/v_row/" in path or "/v_col/" in path:
            assert leaf.ndim == len(shapes[owner]) - 1, path
        else:
            assert leaf.shape == shapes[owner], path
        owners.add(owner)
    frozen = {n for n in shapes if freeze and n.startswith(tuple(freeze.split("|")))}
    assert owners - {None} == shapes.keys() - frozen


@pytest.mark.parametrize("name", list(Optimizer))
def test_state_keeps_its_structure_and_shapes(name):
    # Or the jitted step compiles twice, and a donated state cannot be reused.
    params = make_params()
    tx, _ = make_optimizer(config(name, freeze="cls_token|blocks/1/"), params, CLOCK)
    state = jax.eval_shape(tx.init, params)
    _, after = jax.eval_shape(tx.update, params, state, params)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert shapes(after) == shapes(state)


def test_clip_is_by_the_global_norm_of_what_is_trained():
    params = make_params()
    (g,) = make_grads(params, steps=1)
    cfg = OptimConfig(
        name=Optimizer.SGD, momentum=0.0, schedule=Schedule.CONSTANT, lr=1.0, clip_norm=0.5,
        freeze="head|blocks/0/",
    )  # fmt: skip
    got, _ = run(cfg, params, [g])
    trained = {
        k: v for k, v in by_layer(g).items() if not k.startswith(("head", "blocks/0/"))
    }  # fmt: skip
    norm = np.sqrt(sum((v**2).sum() for v in trained.values()))
    assert norm > 0.5
    moved = by_layer(jax.tree.map(lambda a, b: a - b, params, got))
    for layer, v in trained.items():
        np.testing.assert_allclose(moved[layer], v * 0.5 / norm, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("step", "strength"), [(0, 0.1), (1, 0.2), (2, 0.3)])
@pytest.mark.parametrize(
    ("name", "coupled"), [*((name, False) for name in Optimizer), (Optimizer.SGD, True)]
)
def test_decay_that_rises_is_at_every_step_a_constant_one(name, coupled, step, strength):
    params = jax.tree.map(jnp.asarray, make_params())
    clock = dataclasses.replace(CLOCK, total_steps=2)
    tx, _ = make_optimizer(config(name, coupled_decay=coupled, weight_decay_end=0.3), params, clock)
    state = before = tx.init(params)
    for g in jax.tree.map(jnp.asarray, make_grads(params, steps=step + 1)):
        before = state
        updates, state = tx.update(g, state, params)
    assert state["decay"].count == step + 1
    constant = config(name, coupled_decay=coupled)
    constant.weight_decay = strength
    tx, _ = make_optimizer(constant, params, clock)
    want, _ = tx.update(g, {**before, "decay": optax.EmptyState()}, params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), updates, want)


def test_decay_may_rise_from_nothing_and_spares_what_is_frozen():
    params = jax.tree.map(jnp.asarray, make_params())
    cfg = OptimConfig(
        name=Optimizer.SGD, momentum=0.0, weight_decay_end=0.4, freeze="head|blocks/1/",
        lr_multipliers=(("patch", 0.5),), **PLAIN,
    )  # fmt: skip
    none = [jax.tree.map(jnp.zeros_like, params)] * 2
    tx, _ = make_optimizer(cfg, params, dataclasses.replace(CLOCK, total_steps=2))
    first, state = tx.update(none[0], tx.init(params), params)
    assert not any(leaf.any() for leaf in jax.tree.leaves(first))
    second, _ = tx.update(none[1], state, params)
    before = by_layer(params)
    for layer, update in by_layer(second).items():
        strength = {"patch_embed/kernel": 0.1}.get(layer, 0.2)
        decays = layer.endswith("kernel") and not layer.startswith(("head", "blocks/1/"))
        want = -LR * strength * before[layer] * decays
        np.testing.assert_allclose(update, want, rtol=1e-5, atol=1e-9, err_msg=layer)


def test_lr_factors_scale_step_and_decay():
    params = make_params()
    grads = make_grads(params, steps=1)
    one = run(config(Optimizer.ADAMW), params, grads)[0]
    cfg = config(Optimizer.ADAMW, lr_multipliers=(("blocks/2/", 0.25), ("head|blocks", 3.0)))
    scaled = by_layer(run(cfg, params, grads)[0])
    before, one = by_layer(params), by_layer(one)
    for layer in before:
        factor = 0.25 if "blocks/2/" in layer else 3.0 if layer[:4] in ("head", "bloc") else 1.0
        np.testing.assert_allclose(
            scaled[layer] - before[layer], factor * (one[layer] - before[layer]), atol=2e-6
        )


def test_first_update_uses_the_schedule_at_step_zero():
    params = make_params()
    cfg = OptimConfig(
        name=Optimizer.SGD, momentum=0.0, clip_norm=0.0, lr=1.0, warmup="10 steps", warmup_lr=0.5
    )
    (g,) = make_grads(params, steps=1)
    got, _ = run(cfg, params, [g])
    want = {k: v - 0.5 * by_layer(g)[k] for k, v in by_layer(params).items()}
    assert_layers_close(got, want)


def test_late_parameters_have_their_own_rate_and_moments_from_the_start():
    params = {"a": jnp.ones(2), "b": jnp.ones(2)}
    grads = {"a": jnp.full(2, 0.5), "b": jnp.full(2, 0.5)}
    plain = {"lr": 0.1, "schedule": "poly", "clip_norm": 0.0}
    clock = Clock(batch_size=1, num_examples=1, total_steps=8)
    tx, _ = make_optimizer(OptimConfig(**plain, late="^b$", late_start="2 steps"), params, clock)
    whole, _ = make_optimizer(OptimConfig(**plain), params, clock)
    state, usual = tx.init(params), whole.init(params)
    for step in range(4):
        found, state = tx.update(grads, state, params)
        wanted, usual = whole.update(grads, usual, params)
        np.testing.assert_array_equal(found["a"], wanted["a"])
        # (1 - (s - 2) / 6) ** 0.9 after two steps at 0, beside (1 - s / 8) ** 0.9.
        ratio = 0.0 if step < 2 else ((1 - (step - 2) / 6) / (1 - step / 8)) ** 0.9
        np.testing.assert_allclose(found["b"], ratio * wanted["a"], rtol=1e-5)
