# SPDX-License-Identifier: Apache-2.0
"""Float32 parameters used in a narrower dtype, with gradients summed in float32 on request.

The partitioner adds partial sums over devices in the output dtype of the gradient's own matmul or
sum. Autodiff's is the compute dtype: sums over a whole pod would be bfloat16. Here the forward pass
(weights gathered in the compute dtype) and the gradient's operands are unchanged, but the
gradient's sum is float32 from the first product on. Only derivatives are explicit, not by a
`custom_vjp`: rematerialisation policies must see the forward matmul.
"""

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero, linear_call
from jaxtyping import Array, Float

from vit_jax.models import reduction


def matmul(x: Float[Array, "T I"], kernel: Float[Array, "I O"]) -> Float[Array, "T O"]:
    """Multiply by a float32 kernel in the dtype of x."""
    if reduction.is_wider(x.dtype):
        return _contract("ti,io->to", x, kernel)
    return x @ kernel.astype(x.dtype)


def to_heads(x: Float[Array, "B N I"], kernel: Float[Array, "I h d"]) -> Float[Array, "B h N d"]:
    """Multiply by a float32 kernel in the dtype of x, one product for each head."""
    subscripts = "bni,ihd->bhnd"
    return (_contract if reduction.is_wider(x.dtype) else _product)(subscripts, x, kernel)


def spread(p: Float[Array, "..."], shape: Sequence[Any], dtype: Any) -> Any:
    """Cast a float32 parameter to `dtype`, in a form that broadcasts to `shape`.

    A size may be symbolic, such as an export's batch.
    """
    lead = len(shape) - p.ndim
    if not reduction.is_wider(dtype):
        return p.astype(dtype)[(None,) * lead]
    over = [i for i in range(len(shape)) if i < lead or p.shape[i - lead] != shape[i]]

    def gradient(_: None, dy: jax.Array) -> jax.Array:
        return dy.sum(axis=over, dtype=jnp.float32).reshape(p.shape)

    return linear_call(lambda _, p: jnp.broadcast_to(p.astype(dtype), shape), gradient, None, p)


def _product(subscripts: str, x: jax.Array, kernel: jax.Array) -> jax.Array:
    return jnp.einsum(subscripts, x, kernel.astype(x.dtype))


_contract = jax.custom_jvp(_product, nondiff_argnums=(0,))


def _tangent(
    subscripts: str, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[jax.Array, jax.Array]:
    (x, kernel), (dx, dkernel) = primals, tangents
    narrow = kernel.astype(x.dtype)  # once, and so gathered once for both products
    # Not `_contract`, which would hide the product from rematerialisation policies.
    y = jnp.einsum(subscripts, x, narrow)
    if isinstance(dkernel, SymbolicZero):
        return y, jnp.einsum(subscripts, dx, narrow)
    forward, gradient = functools.partial(_product, subscripts), _kernel_gradient(subscripts)
    moved = linear_call(forward, gradient, x, dkernel)
    if isinstance(dx, SymbolicZero):
        return y, moved
    return y, jnp.einsum(subscripts, dx, narrow) + moved


_contract.defjvp(_tangent, symbolic_zeros=True)


def _kernel_gradient(subscripts: str) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Return (x, dy) -> the kernel's gradient, summed in float32."""
    of_x, of_kernel, of_y = re.split(",|->", subscripts)
    swapped = f"{of_x},{of_y}->{of_kernel}"
    return lambda x, dy: jnp.einsum(swapped, x, dy, preferred_element_type=jnp.float32)
