# SPDX-License-Identifier: Apache-2.0
"""Parameters that wait at the start of a run, against a run that begins when they do."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.refusals import EFFECT, refused_by
from tests.unit.optim import test_build
from tests.unit.optim.test_build import CLOCK, PLAIN, config
from vit_jax import trees
from vit_jax.errors import UserError
from vit_jax.optim import OptimConfig, Optimizer, make_climb, make_optimizer

WAIT, STEPS = 2, 5
HELD = ("blocks/mlp/fc1/kernel", "head/kernel", "head/bias")
HOLD = {"hold": "^head/|fc1/kernel", "hold_for": f"{WAIT} steps"}


def make_params() -> Any:
    return jax.tree.map(jnp.asarray, test_build.make_params())


def make_grads(params: Any, steps: int) -> list[Any]:
    return jax.tree.map(jnp.asarray, test_build.make_grads(params, steps))


def _named(tree: Any) -> dict[str, np.ndarray]:
    return {name: np.asarray(leaf) for name, leaf in trees.named_leaves(tree)}


def _steps(cfg: OptimConfig, params: Any, grads: list[Any], valid: Any = None) -> list[Any]:
    """Return (parameters, state) before each step and after the last."""
    tx, _ = make_optimizer(cfg, params, CLOCK)
    tx = optax.with_extra_args_support(tx)
    state = tx.init(params)
    passed = [(params, state)]
    for i, g in enumerate(grads):
        ok = jnp.asarray(valid is None or valid[i])
        updates, state = tx.update(g, state, params, is_valid=ok)
        moved = optax.apply_updates(params, updates)
        params = jax.tree.map(lambda n, o, ok=ok: jnp.where(ok, n, o), moved, params)
        passed.append((params, state))
    return passed


CASES = [(name, {}) for name in Optimizer] + [(Optimizer.SGD, {"coupled_decay": True})]


@pytest.mark.parametrize(("name", "more"), CASES)
def test_they_begin_when_the_others_are_under_way(name: Optimizer, more: dict[str, Any]) -> None:
    params = make_params()
    grads = make_grads(params, steps=STEPS)
    with_nan = jax.tree.map(lambda g: g * np.nan, grads[0])
    grads[0] = trees.map_named(lambda n, g, bad: bad if n in HELD else g, grads[0], with_nan)
    held = [_named(p) for p, _ in _steps(config(name, **HOLD, **more), params, grads)]
    free = [_named(p) for p, _ in _steps(config(name, **more), params, grads)]
    late = [_named(p) for p, _ in _steps(config(name, **more), params, grads[WAIT:])]
    for step in range(STEPS + 1):
        for leaf, value in held[step].items():
            want = late[max(step - WAIT, 0)] if leaf in HELD else free[step]
            np.testing.assert_array_equal(value, want[leaf], err_msg=f"{leaf} at {step}")
    assert all((held[-1][leaf] != held[0][leaf]).any() for leaf in HELD[:2])


def test_their_state_waits_and_skipped_steps_count() -> None:
    params = make_params()
    grads = make_grads(params, steps=3)
    grads[0] = jax.tree.map(lambda g: g * np.nan, grads[0])
    cfg = config(Optimizer.ADAMW, **HOLD)
    passed = _steps(cfg, params, grads, valid=[False, True, True])
    counts = [(int(s.count), *_counts(s.inner)) for _, s in passed]
    assert counts == [(0, 0, 0), (1, 1, 0), (2, 2, 0), (3, 3, 1)]
    moments = _named(passed[2][1].inner["adamw"].inner_states["held"])
    assert not any(value.any() for value in moments.values())


def _counts(inner: Any) -> tuple[int, int]:
    """The counts of Adam's steps, of the parameters that move and of those held."""
    groups = inner["adamw"].inner_states
    return tuple(int(groups[key].inner_state.count) for key in ("moving", "held"))


def test_a_state_in_the_middle_of_the_wait_goes_on_with_the_same_bits() -> None:
    params = make_params()
    grads = make_grads(params, steps=STEPS)
    cfg = config(Optimizer.ADAMW, **HOLD, weight_decay_end=0.5)
    whole = _steps(cfg, params, grads)
    saved = jax.tree.map(
        lambda x: jnp.asarray(np.asarray(x)), whole[1]
    )  # one step done, as a checkpoint keeps it
    tx, _ = make_optimizer(cfg, params, CLOCK)
    now, state = saved
    for g in grads[1:]:
        updates, state = tx.update(g, state, now)
        now = optax.apply_updates(now, updates)
    jax.tree.map(np.testing.assert_array_equal, (now, state), whole[-1])


def test_they_do_not_count_for_the_norm_that_clips() -> None:
    params, cfg = make_params(), config(Optimizer.SGD, **HOLD)
    (g,) = make_grads(params, steps=1)
    cfg.clip_norm, cfg.weight_decay = 0.5, 0.0
    rest = [v for name, v in _named(g).items() if name not in HELD]
    scale = 0.5 / np.sqrt(sum((v.astype(np.float64) ** 2).sum() for v in rest))
    clipped = jax.tree.map(lambda v: (v * scale).astype(np.float32), g)
    got = _named(_steps(cfg, params, [g])[-1][0])
    cfg.clip_norm = 0.0
    want = _named(_steps(cfg, params, [clipped])[-1][0])
    for name, value in got.items():
        np.testing.assert_allclose(value, want[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_sam_does_not_climb_by_them() -> None:
    params = make_params()
    more = {"momentum": 0.0, "sam_rho": 0.1}
    cfg = OptimConfig(name=Optimizer.SGD, **PLAIN, **HOLD, **more)
    climb = make_climb(cfg, params, CLOCK)
    assert climb is not None
    grads = jax.tree.map(lambda p: 4 * p**3, params)
    while_they_wait, after = (_named(climb(grads, jnp.int32(step))) for step in (WAIT - 1, WAIT))
    for name, value in _named(params).items():
        assert after[name].any() == value.any(), name
        assert while_they_wait[name].any() == (value.any() and name not in HELD), name


def test_beside_frozen_parameters() -> None:
    params = make_params()
    cfg = config(Optimizer.ADAMW, **HOLD, freeze="head/bias|cls_token|blocks/1/")
    got = _named(_steps(cfg, params, make_grads(params, steps=STEPS))[-1][0])
    before = _named(params)
    for name in ("head/bias", "cls_token"):
        np.testing.assert_array_equal(got[name], before[name])
    moved = (got[HELD[0]] != before[HELD[0]]).any(axis=(1, 2))
    assert moved.tolist() == [True, False, True]
    assert (got["head/kernel"] != before["head/kernel"]).any()


def test_without_it_the_state_is_as_ever() -> None:
    params = make_params()
    for hold in ({}, {"hold": "head", "hold_for": "0 steps"}):
        state = make_optimizer(config(Optimizer.ADAMW, **hold), params, CLOCK)[0].init(params)
        assert list(state) == ["adamw", "decay", "lr"]
        assert type(state["adamw"]) is optax.ScaleByAdamState
        assert type(state["decay"]) is optax.EmptyState


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"hold": "blocks/0/"}, ["some layers of blocks/", "name all of a stack, or none"]),
        ({"hold": "head", "freeze": "head"}, ["optim.hold='head'", "optim.freeze='head'"]),
        ({"hold": "."}, ["leaves no parameter to train for '1 epoch'"]),
        ({"hold": "head|blocks", "freeze": "cls|patch"}, ["leaves no parameter to train"]),
        ({"hold": "head", "hold_for": "10 epochs"}, ["(100 steps)", "optim.freeze"]),
    ],
)
def test_what_cannot_wait_is_a_user_error(settings: dict[str, str], words: list[str]) -> None:
    with pytest.raises(UserError) as error:
        make_optimizer(OptimConfig(**{"hold_for": "1 epoch", **settings}), make_params(), CLOCK)
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("settings", "code", "field"),
    [
        ({"hold": "haed/"}, "optim.rules._matched", "optim.hold"),
        ({"hold": "("}, "settings.fields.regex", "optim.hold"),
        ({"hold": "head", "hold_for": "one epoch"}, "settings.durations.parse", ""),
        ({"hold": "head", "hold_for": ""}, EFFECT, "optim.hold"),
        ({"hold": ""}, EFFECT, "optim.hold_for"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, str], code: str, field: str) -> None:
    with refused_by(code, field) as error:
        make_optimizer(OptimConfig(**{"hold_for": "1 epoch", **settings}), make_params(), CLOCK)
    assert "\n" not in str(error.value)
