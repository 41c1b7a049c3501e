# SPDX-License-Identifier: Apache-2.0
"""The dtype in which parameters' gradients are summed, over a device's examples and over devices.

It is context of the trace, as the target of `devices/hardware.py` is: every layer depends on it.
"""

import contextlib
import contextvars
import enum
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp


class ReduceDType(enum.StrEnum):
    """The dtype of the partial sums of a parameter's gradient."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


# None, outside of a training step: gradients are summed in the dtype that a layer computes in.
_chosen: contextvars.ContextVar[ReduceDType | None] = contextvars.ContextVar("sums", default=None)


@contextlib.contextmanager
def summing_in(dtype: ReduceDType) -> Iterator[None]:
    """Sum gradients of parameters in `dtype` in all that is traced inside."""
    token = _chosen.set(dtype)
    try:
        yield
    finally:
        _chosen.reset(token)


def is_wider(compute: Any) -> bool:
    """Return whether gradients are summed in a wider dtype than the layer computes in."""
    return _chosen.get() is ReduceDType.FLOAT32 and jnp.dtype(compute) == jnp.bfloat16
