# SPDX-License-Identifier: Apache-2.0
"""Muon and its kin against trajectories of timm 1.0.31 and of NorMuon's own update.

tests/golden/muon_family.npz: 20 steps on sum(curvature * (p - goal)^2) / 2 in float64, a matrix a
step after step; matrices are (out, in). timm's Newton-Schulz ran in float64 too.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from vit_jax import trees
from vit_jax.devices import sharding
from vit_jax.optim import (
    MatrixScale,
    NewtonSchulz,
    OptimConfig,
    Optimizer,
    Schedule,
    make_optimizer,
)
from vit_jax.optim.muon import coefficients
from vit_jax.settings.durations import Clock

GOLDEN = Path(__file__).parents[2] / "golden" / "muon_family.npz"
CLOCK = Clock(batch_size=1, num_examples=1, total_steps=20)
QUINTIC, POLAR = NewtonSchulz.QUINTIC, NewtonSchulz.POLAR_EXPRESS
TIMM = {"lr": 0.02, "weight_decay": 0.01, "muon_coefficients": QUINTIC}
ADA = {"lr": 0.01, "weight_decay": 0.05}
NESTEROV = {"nesterov": True, "muon_debias": False}
CASES = {
    "muon": (Optimizer.MUON, TIMM),
    "nmuon": (Optimizer.MUON, TIMM | NESTEROV | {"adam_nesterov": True}),
    "normuon": (
        Optimizer.NORMUON,
        {
            **(TIMM | NESTEROV),
            "muon_coefficients": POLAR,
            "muon_safety": 1.01,
            "muon_scale": MatrixScale.JORDAN,
        },
    ),
    "adamuon": (Optimizer.ADAMUON, ADA | {"muon_coefficients": QUINTIC}),
    "nadamuon": (Optimizer.NADAMUON, ADA | {"muon_coefficients": QUINTIC}),
    "nadamuon_polar": (
        Optimizer.NADAMUON,
        ADA | {"muon_coefficients": POLAR, "muon_steps": 6, "muon_safety": 1.01},
    ),
}


def tree(golden: np.lib.npyio.NpzFile, what: str, *, other: float) -> dict:
    """The golden's arrays as parameters of a model; a second layer is `other` times the first."""

    def stack(name: str) -> np.ndarray:
        kernel = golden[f"{what}_{name}"].T
        return np.stack([kernel, kernel * np.float32(other)])

    blocks = {"qkv": {"kernel": stack("w")}, "fc2": {"kernel": stack("tall")}}
    return {"blocks": blocks, "bias": golden[f"{what}_b"]}


@pytest.mark.parametrize("case", CASES)
def test_trajectory(case: str) -> None:
    name, settings = CASES[case]
    golden = np.load(GOLDEN)
    # Bias and kernels alike are decayed, as timm does.
    cfg = OptimConfig(
        name=name, schedule=Schedule.CONSTANT, clip_norm=0.0, momentum=0.95, beta1=0.9,
        beta2=0.95, eps=1e-7, decay=".", **settings,
    )  # fmt: skip
    cfg.check()
    params = tree(golden, f"{case}_in_start", other=-2.0)
    goal = tree(golden, f"{case}_in_goal", other=3.0)
    curvature = tree(golden, f"{case}_in_curvature", other=0.5)
    tx, _ = make_optimizer(cfg, params, CLOCK)

    @jax.jit
    def run(params: dict) -> tuple[dict, dict]:
        def step(carry: tuple, _: None) -> tuple:
            params, state = carry
            grads = jax.tree.map(lambda c, p, g: c * (p - g), curvature, params, goal)
            updates, state = tx.update(grads, state, params)
            params = optax.apply_updates(params, updates)
            return (params, state), params

        (_, state), path = jax.lax.scan(step, (params, tx.init(params)), None, length=20)
        return path, state

    with jax.default_matmul_precision("highest"):
        path, state = run(jax.tree.map(jnp.asarray, params))
    for ours, theirs in ((("blocks", "qkv"), "w"), (("blocks", "fc2"), "tall")):
        got = path[ours[0]][ours[1]]["kernel"]
        np.testing.assert_allclose(got[:, 0].mT, golden[f"{case}_out_{theirs}"], atol=5e-5, rtol=0)
        assert np.abs(got[:, 1] - got[:, 0]).min() < np.abs(got[:, 1] - got[:, 0]).max()
    if f"{case}_out_b" in golden:
        np.testing.assert_allclose(path["bias"], golden[f"{case}_out_b"], atol=5e-5, rtol=0)
    # Each moment of a matrix is cut over devices as the matrix; one of its rows is on all of them.
    specs = {
        leaf_name: (leaf.shape, sharding.spec(leaf_name, leaf.shape, {"fsdp": 2, "tensor": 1}))
        for leaf_name, leaf in trees.named_leaves(state)
        if leaf_name.endswith("qkv/kernel")
    }
    shapes = sorted(shape for shape, _ in specs.values())
    rows = [(2, 6)] if case == "normuon" else []
    assert shapes == rows + [(2, 8, 6)] * (2 if "adamuon" in case else 1)
    assert all(bool(any(where)) == (len(shape) == 3) for shape, where in specs.values())
    assert {leaf.shape for n, leaf in trees.named_leaves(state) if "ns_coeffs" in n} == {(3,)}


def test_iterations_make_a_matrix_orthogonal() -> None:
    worst = {}
    for table in NewtonSchulz:
        cfg = OptimConfig(
            name=Optimizer.MUON, muon_coefficients=table, muon_steps=9, muon_safety=1.01
        )
        x = np.geomspace(1e-3, 1.0, 200)
        for a, b, c in coefficients(cfg).astype(np.float64):
            x = a * x + b * x**3 + c * x**5
        worst[table] = np.abs(x - 1).max()
    assert worst[POLAR] < 0.02
    assert worst[POLAR] < worst[QUINTIC] < 0.35
    assert worst[NewtonSchulz.JORDAN] > 0.2
