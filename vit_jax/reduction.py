# SPDX-License-Identifier: Apache-2.0
"""The dtype in which parameters' gradients are summed, over a device's examples and over devices.

Chosen while a step is traced, as `vit_jax/hardware.py` chooses kernels, since every layer asks.
"""

import contextlib
import contextvars
import enum
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp


class ReduceDType(enum.StrEnum):
    """What the partial sums of a parameter's gradient are."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


# Outside of a training step a layer differentiates as jax does: in the dtype it computes in.
_chosen: contextvars.ContextVar[ReduceDType | None] = contextvars.ContextVar("sums", default=None)


@contextlib.contextmanager
def summing_in(dtype: ReduceDType) -> Iterator[None]:
    """Trace what is inside so that gradients of parameters are summed in `dtype`."""
    token = _chosen.set(dtype)
    try:
        yield
    finally:
        _chosen.reset(token)


def is_wider(compute: Any) -> bool:
    """Return whether gradients are summed in a wider dtype than the layer computes in."""
    return _chosen.get() is ReduceDType.FLOAT32 and jnp.dtype(compute) == jnp.bfloat16
