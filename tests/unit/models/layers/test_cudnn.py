# SPDX-License-Identifier: Apache-2.0
"""cuDNN's attention without a GPU: every config's step traces, and padding changes nothing.

jax's checks of the kernel answer for a described H100, so that a refused shape fails here.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.cost import topology
from vit_jax.devices import hardware
from vit_jax.models.layers import flash

H100 = hardware.Target("gpu", "NVIDIA H100 80GB HBM3", (9, 0))


def value_and_gradients(attend: Callable[..., jax.Array], *args: jax.Array) -> list[np.ndarray]:
    shape = jax.eval_shape(attend, *args)
    cotangent = jax.random.normal(jax.random.key(3), shape.shape).astype(shape.dtype)

    def both(*args: jax.Array) -> Any:
        out, pull = jax.vjp(attend, *args)
        return out, *pull(cotangent)

    return [np.asarray(x, np.float32) for x in jax.jit(both)(*args)]


def test_even_numbers_of_tokens_have_neither_padding_nor_mask() -> None:
    q = jax.ShapeDtypeStruct((2, 2, 196, 16), jnp.bfloat16)
    with topology.cudnn_answers(H100):
        program = str(jax.make_jaxpr(flash.cudnn)(q, q, q))
        odd = str(jax.make_jaxpr(flash.cudnn)(*[jax.ShapeDtypeStruct((2, 2, 7, 16), q.dtype)] * 3))
    assert ["NO_MASK" in text for text in (program, odd)] == [True, False]
    assert ["pad[" in text for text in (program, odd)] == [False, True]
