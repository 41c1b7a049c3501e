# SPDX-License-Identifier: Apache-2.0
"""Float32 parameters used in a narrower dtype, with gradients summed in float32 where asked for.

The partitioner adds up partial sums over devices in the dtype that the gradient's own matmul or sum
puts out. Autodiff's is the one computed in, so bfloat16 would be that of sums over a whole pod.
Here the forward pass is as ever, weights gathered in its dtype included; the gradient's operands
too, but its sum is float32 from the first product on. Only derivatives are written out, and not a
`custom_vjp`: rematerialisation policies must see the forward matmul.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero, linear_call
from jaxtyping import Array, Float

from vit_jax import reduction


def matmul(x: Float[Array, "T I"], kernel: Float[Array, "I O"]) -> Float[Array, "T O"]:
    """Multiply by a float32 kernel in the dtype of x."""
    return _matmul(x, kernel) if reduction.is_wider(x.dtype) else _product(x, kernel)


def spread(p: Float[Array, "..."], shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Bring a float32 parameter to `dtype`, and to what broadcasting makes `shape` of."""
    lead = len(shape) - p.ndim
    if not reduction.is_wider(dtype):
        return p.astype(dtype)[(None,) * lead]
    over = [i for i in range(len(shape)) if i < lead or p.shape[i - lead] != shape[i]]

    def gradient(_: None, dy: jax.Array) -> jax.Array:
        return dy.sum(axis=over, dtype=jnp.float32).reshape(p.shape)

    return linear_call(lambda _, p: jnp.broadcast_to(p.astype(dtype), shape), gradient, None, p)


def _product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return x @ kernel.astype(x.dtype)


def _kernel_gradient(x: jax.Array, dy: jax.Array) -> jax.Array:
    over_tokens = (((0,), (0,)), ((), ()))
    return jax.lax.dot_general(x, dy, over_tokens, preferred_element_type=jnp.float32)


_matmul = jax.custom_jvp(_product)


def _tangent(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
    (x, kernel), (dx, dkernel) = primals, tangents
    narrow = kernel.astype(x.dtype)  # once, and so gathered once for both products
    y = x @ narrow  # and not `_matmul`, which would hide it from rematerialisation policies
    if isinstance(dkernel, SymbolicZero):
        return y, dx @ narrow
    moved = linear_call(_product, _kernel_gradient, x, dkernel)
    return y, moved if isinstance(dx, SymbolicZero) else dx @ narrow + moved


_matmul.defjvp(_tangent, symbolic_zeros=True)
