# SPDX-License-Identifier: Apache-2.0
"""The port at which the tasks of a Slurm step meet."""

import os

_FIRST, _COUNT = 61_440, 4096  # jax's own range, above Linux's ports for connections
_APART = 509  # no factor of the count


def set_port() -> None:
    """Give each step of a job a port of its own; JAX_COORDINATOR_PORT wins.

    jax derives one from the job alone, so that two steps at once would take the same. The first
    step's is jax's.
    """
    if "SLURM_STEP_ID" in os.environ:
        job, step = (int(os.environ[f"SLURM_{name}_ID"]) for name in ("JOB", "STEP"))
        port = _FIRST + (job + _APART * step) % _COUNT
        os.environ.setdefault("JAX_COORDINATOR_PORT", str(port))
