# SPDX-License-Identifier: Apache-2.0
"""The Config of one run: its tree, what goes together, what it is fitted to, how it is saved."""

from vit_jax.checkpoints import CheckpointConfig
from vit_jax.config.checks import check, check_batch, check_classes, check_kernel, check_types
from vit_jax.config.reproducible import check_statistics
from vit_jax.config.tree import (
    Config,
    FaultsConfig,
    LogConfig,
    Plan,
    fitted,
    guessed,
    metric_periods,
    plan,
)
