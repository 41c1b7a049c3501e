# SPDX-License-Identifier: Apache-2.0
"""Moments that a step without finite numbers leaves alone, and what of a step needs memory."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.unit.optim.test_moments import CLOCK, SIDE, make_params
from vit_jax.objectives import Aux, Batch, Context
from vit_jax.optim import MomentDtype, OptimConfig, Optimizer, make_climb, make_optimizer
from vit_jax.train.state import TrainState, make_init
from vit_jax.train.step import make_train_step

# As a run compiles, and the tests, in haste, do not.
AS_TRAINED: dict[str, str | bool] = {"xla_cpu_opt_preset": "CPU_OPT_PRESET_DEFAULT"}
SIZE = 2 * SIDE * SIDE * 4  # bytes of the parameters


class Product:
    """A loss whose gradient is a product, and little else: what is left is the optimizer's."""

    def prepare(self, batch: Batch, rng: jax.Array) -> Batch:
        """Leave the batch as it is."""
        return batch

    def bounded(self, params: Any) -> Any:
        """Leave the parameters as they are."""
        return params

    def loss(self, params: Any, ctx: Context, batch: Batch, rng: jax.Array) -> Any:
        """Return the mean square of x through the layers."""
        kernel = params["blocks"]["fc1"]["kernel"]
        loss = jnp.mean(jax.vmap(jnp.matmul, (None, 0))(batch["x"], kernel) ** 2)
        return loss, Aux({"loss": loss}, ctx.model_state, ctx.objective)


def temporary(cfg: OptimConfig, *, accum_steps: int = 1, ema: bool = False) -> float:
    """Return what XLA plans for the step beside its state, in sizes of the parameters."""
    params = make_params()
    tx, schedule = make_optimizer(cfg, params, CLOCK)
    init = make_init(lambda _: (params, {}), tx, with_ema=ema)
    climb = make_climb(cfg, params, CLOCK)
    step = make_train_step(
        Product(), tx, schedule, accum_steps=accum_steps, ema_decay=0.5 * ema, climb=climb
    )
    state: TrainState = jax.eval_shape(init, jax.random.key(0))
    batch = {"x": jax.ShapeDtypeStruct((accum_steps, SIDE), jnp.float32)}
    lowered = jax.jit(step, donate_argnums=0).lower(state, {}, batch)
    plan: Any = lowered.compile(compiler_options=AS_TRAINED).memory_analysis()
    return plan.temp_size_in_bytes / SIZE


ADAMW = OptimConfig(weight_decay=0.1, clip_norm=1.0)


@pytest.mark.parametrize(
    ("cfg", "limit"),
    [
        (ADAMW, 1),
        (dataclasses.replace(ADAMW, weight_decay_end=0.4), 1),
        (dataclasses.replace(ADAMW, mu_dtype=MomentDtype.BFLOAT16), 1.5),
        (dataclasses.replace(ADAMW, name=Optimizer.LAMB), 2),
        (dataclasses.replace(ADAMW, name=Optimizer.SGD, nesterov=True), 1),
        (dataclasses.replace(ADAMW, sam_rho=0.1), 2),
    ],
)
def test_a_step_holds_one_gradient_and_no_copy_of_its_state(cfg: OptimConfig, limit: float) -> None:
    """Of bfloat16 moments a copy is made, half as large; LAMB stores the update that it scales, SAM
    the parameters uphill."""
    assert temporary(cfg) < limit + 0.1


def test_a_moving_average_needs_nothing_and_micro_batches_a_sum() -> None:
    assert temporary(ADAMW, ema=True) < 1.1
    assert temporary(ADAMW, accum_steps=4) < 2.1
