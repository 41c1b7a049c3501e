# SPDX-License-Identifier: Apache-2.0
"""Many runs of one question: a list of points, a queue of workers, and what came of it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vit_jax.analysis import scaling


def __getattr__(name: str) -> Any:
    if name == "scaling":  # late: most sweeps fit no law
        from vit_jax.analysis import scaling

        return scaling
    raise AttributeError(f"vit_jax.sweeps has no {name!r}")
