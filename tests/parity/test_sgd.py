# SPDX-License-Identifier: Apache-2.0
"""SGD with coupled weight decay steps as torch.optim.SGD: clipped, then decayed."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.parity.torch_models import torch
from vit_jax.optim import OptimConfig, Optimizer, Schedule, make_optimizer
from vit_jax.settings.durations import Clock

STEPS = 60
RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 6)).astype(np.float32)
Y = RNG.normal(size=(16, 3)).astype(np.float32)


def initial() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    shapes = {"stem": (6, 8), "head": (8, 3)}
    return {
        name: {
            "kernel": rng.normal(size=shape).astype(np.float32),
            "bias": rng.normal(size=shape[1:]).astype(np.float32),
        }
        for name, shape in shapes.items()
    }


def by_torch(decay_all: bool, clip: float, nesterov: bool) -> tuple[list[float], dict[str, Any]]:
    """Return the loss of every step and the last parameters."""
    params = {
        layer: {name: torch.nn.Parameter(torch.tensor(value)) for name, value in leaves.items()}
        for layer, leaves in initial().items()
    }
    kernels = [leaves["kernel"] for leaves in params.values()]
    biases = [leaves["bias"] for leaves in params.values()]
    groups = [
        {"params": kernels, "weight_decay": 0.05},
        {"params": biases, "weight_decay": 0.05 if decay_all else 0.0},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=nesterov)
    losses = []
    for _ in range(STEPS):
        hidden = torch.tanh(torch.from_numpy(X) @ params["stem"]["kernel"] + params["stem"]["bias"])
        out = hidden @ params["head"]["kernel"] + params["head"]["bias"]
        loss = ((out - torch.from_numpy(Y)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_([*kernels, *biases], clip)
        optimizer.step()
        losses.append(loss.item())
    return losses, {
        layer: {name: value.detach().numpy() for name, value in leaves.items()}
        for layer, leaves in params.items()
    }


def by_us(cfg: OptimConfig) -> tuple[list[float], dict[str, Any]]:
    params = jax.tree.map(jnp.asarray, initial())
    tx, _ = make_optimizer(cfg, params, Clock(batch_size=16, num_examples=16, total_steps=STEPS))
    state = tx.init(params)

    @jax.jit
    def step(params: Any, state: Any) -> tuple[jax.Array, Any, Any]:
        def loss(params: Any) -> jax.Array:
            hidden = jnp.tanh(X @ params["stem"]["kernel"] + params["stem"]["bias"][None])
            out = hidden @ params["head"]["kernel"] + params["head"]["bias"][None]
            return jnp.square(out - Y).mean()

        value, grads = jax.value_and_grad(loss)(params)
        updates, state = tx.update(grads, state, params)
        return value, optax.apply_updates(params, updates), state

    losses = []
    with jax.default_matmul_precision("highest"):
        for _ in range(STEPS):
            value, params, state = step(params, state)
            losses.append(float(value))
    return losses, params


@pytest.mark.parametrize(
    "decay_all, clip, nesterov", [(True, 0.0, True), (False, 0.3, True), (True, 0.3, False)]
)
def test_steps_are_torchs(decay_all: bool, clip: float, nesterov: bool) -> None:
    cfg = OptimConfig(
        name=Optimizer.SGD,
        lr=0.1,
        schedule=Schedule.CONSTANT,
        nesterov=nesterov,
        weight_decay=0.05,
        coupled_decay=True,
        decay="." if decay_all else "kernel$",
        clip_norm=clip,
    )
    losses, last = by_us(cfg)
    expected, expected_last = by_torch(decay_all, clip, nesterov)
    np.testing.assert_allclose(losses, expected, rtol=2e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), last, expected_last)
    cfg.coupled_decay = False
    assert np.abs(np.subtract(by_us(cfg)[0], expected)).max() > 0.01, "too alike to tell a mistake"
