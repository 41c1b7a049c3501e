# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a run: saved whole, verified when read. Orbax is imported by `storage` alone."""

from vit_jax.checkpoints.config import CheckpointConfig
from vit_jax.settings.measures import Mode

DIRECTORY = "checkpoints"  # within the directory of a run

# `checkpointer` and `reader` take long to import: the check of a config does without them.
