# SPDX-License-Identifier: Apache-2.0
"""Optimizers: learning-rate schedules, optax chains, and decay, lr and freeze rules by regex."""

from vit_jax.optim.build import Climb, make_climb, make_constant, make_optimizer
from vit_jax.optim.config import (
    CooldownShape,
    MatrixScale,
    MomentDtype,
    NewtonSchulz,
    OptimConfig,
    Optimizer,
    Schedule,
    also_frozen,
    trunk,
)
from vit_jax.optim.rules import Row, check_width, describe
from vit_jax.optim.schedules import cosine, make_schedule
