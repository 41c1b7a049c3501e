# SPDX-License-Identifier: Apache-2.0
"""Linear layers over tokens flattened to two dimensions, the head of every family among them.

Parameters are float32, used in a narrower dtype. On request their gradients are summed in float32,
over a device's examples and over devices; `summing_in` says so for a trace, as the target of
devices/hardware.py is said, since every layer depends on it. The partitioner adds partial sums over
devices in the output dtype of the gradient's own matmul or sum. Autodiff's is the compute dtype:
sums over a whole pod would be bfloat16. Here the forward pass (weights gathered in the compute
dtype) and the gradient's operands are unchanged, but the gradient's sum is float32 from the first
product on. Only derivatives are explicit, not by a `custom_vjp`: rematerialisation policies must
see the forward matmul.
"""

import contextlib
import contextvars
import enum
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.custom_derivatives import SymbolicZero, linear_call
from jaxtyping import Array, Float

from vit_jax.devices import hardware
from vit_jax.devices.sharding import constrain_parameter
from vit_jax.models.base import ModelConfig
from vit_jax.models.layers.init import Initializer

LORA_A, LORA_B = "lora_a", "lora_b"


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


def in_step() -> bool:
    """Return whether a training step is traced."""
    return _chosen.get() is not None


# Whether what is traced runs here, and may be in the forms that are fast here.
_here: contextvars.ContextVar[bool] = contextvars.ContextVar("here", default=False)


@contextlib.contextmanager
def for_this_machine() -> Iterator[None]:
    """Trace for this machine, and not for any, as an export does.

    On AMD's CPUs with AVX512-BF16 products of bfloat16 come in float32 and are rounded then, by
    `narrow`. The rounding is the same, and only the order of the sums is another. XLA's CPU backend
    has kernels for bfloat16 that return float32 alone, and widens the operands of others: there
    these have twice the speed, and on Intel's CPUs two thirds (benchmarks/NOTES.md). On any CPU
    depthwise convolutions are loops, and the stem's max-pool is a maximum of shifted maps
    (models/conv/conv.py). Evaluation while training keeps its bits without.
    """
    token = _here.set(True)
    try:
        yield
    finally:
        _here.reset(token)


def is_for_this_machine() -> bool:
    """Return whether a pass is traced that runs on this machine alone."""
    return _here.get()


def narrow(x: Float[Array, "..."], dtype: Any) -> Float[Array, "..."]:
    """Cast float32 to the dtype of a layer.

    Where passes are traced in forms for an AMD CPU, to bfloat16 by integers, which gives the bits
    of a cast for all numbers, infinities and the NaNs of arithmetic: around a GELU XLA's own cast
    takes twice the time.
    """
    return jnp.asarray(_by_integers(x)) if _has_wide_products(dtype) else x.astype(dtype)


@jax.custom_jvp
def _by_integers(x: jax.Array) -> jax.Array:
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    rounded = bits + 0x7FFF + (bits >> 16 & 1)  # half to even
    return jax.lax.bitcast_convert_type((rounded >> 16).astype(jnp.uint16), jnp.bfloat16)


@_by_integers.defjvp
def _by_integers_tangent(
    primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    return jnp.asarray(_by_integers(*primals)), tangents[0].astype(jnp.bfloat16)


def _has_wide_products(dtype: Any) -> bool:
    return dtype == jnp.bfloat16 and _here.get() and hardware.has_fast_bfloat16()


def is_wider(compute: Any) -> bool:
    """Return whether gradients are summed in a wider dtype than the layer computes in."""
    return _chosen.get() is ReduceDType.FLOAT32 and jnp.dtype(compute) == jnp.bfloat16


def matmul(x: Float[Array, "T I"], kernel: Float[Array, "I O"]) -> Float[Array, "T O"]:
    """Multiply by a float32 kernel in the dtype of x."""
    if is_wider(x.dtype) or _is_turned(x, kernel):
        return _contract("ti,io->to", x, kernel)
    return _rounded(lambda wide: jnp.matmul(x, kernel.astype(x.dtype), **wide), x.dtype)


def to_heads(x: Float[Array, "B N I"], kernel: Float[Array, "I h d"]) -> Float[Array, "B h N d"]:
    """Multiply by a float32 kernel in the dtype of x, one product for each head."""
    subscripts = "bni,ihd->bhnd"
    return (_contract if is_wider(x.dtype) else _product)(subscripts, x, kernel)


def spread(p: Float[Array, "..."], shape: Sequence[Any], dtype: Any) -> Any:
    """Cast a float32 parameter to `dtype`, in a form that broadcasts to `shape`.

    A size may be symbolic, such as an export's batch.
    """
    lead = len(shape) - p.ndim
    if not is_wider(dtype):
        return p.astype(dtype)[(None,) * lead]
    over = [i for i in range(len(shape)) if i < lead or p.shape[i - lead] != shape[i]]

    def gradient(_: None, dy: jax.Array) -> jax.Array:
        return dy.sum(axis=over, dtype=jnp.float32).reshape(p.shape)

    return linear_call(lambda _, p: jnp.broadcast_to(p.astype(dtype), shape), gradient, None, p)


def _product(subscripts: str, x: jax.Array, kernel: jax.Array) -> jax.Array:
    return _rounded(lambda wide: jnp.einsum(subscripts, x, kernel.astype(x.dtype), **wide), x.dtype)


def _rounded(product: Callable[[dict[str, Any]], jax.Array], dtype: Any) -> jax.Array:
    if not _has_wide_products(dtype):
        return product({})
    return narrow(product({"preferred_element_type": jnp.float32}), dtype)


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
    turned = kernel.ndim == 2 and _is_turned(x, kernel)
    gradient = _turned_gradient if turned else _kernel_gradient(subscripts)
    moved = linear_call(functools.partial(_product, subscripts), gradient, x, dkernel)
    if isinstance(dx, SymbolicZero):
        return y, moved
    return y, jnp.einsum(subscripts, dx, narrow) + moved


_contract.defjvp(_tangent, symbolic_zeros=True)


def _kernel_gradient(subscripts: str) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Return (x, dy) -> the kernel's gradient, summed in float32."""
    of_x, of_kernel, of_y = re.split(",|->", subscripts)
    swapped = f"{of_x},{of_y}->{of_kernel}"
    return lambda x, dy: jnp.einsum(swapped, x, dy, preferred_element_type=jnp.float32)


def _is_turned(x: Float[Array, "T I"], kernel: Float[Array, "I O"]) -> bool:
    """Return whether a kernel's gradient is computed as its transpose.

    With twice the inputs x^T dy takes XLA for CPUs 1.3 to 2.1 times as long as dy^T x. The bits are
    the same on one and two threads. With four or more, threads share the tokens where outputs are
    few (64 to 128), and last bits differ.
    """
    inputs, outputs = kernel.shape
    wide = x.dtype == jnp.float32 and inputs >= 2 * outputs >= 128
    return wide and in_step() and hardware.target().platform == "cpu"


def _turned_gradient(x: Float[Array, "T I"], dy: Float[Array, "T O"]) -> Float[Array, "I O"]:
    return jax.lax.optimization_barrier(dy.T @ x).T  # without it XLA turns the product back


class Dense(nn.Module):
    """Linear layer; kernel [in, out] and bias [out] in float32, computed in `dtype`.

    Where `lora_a` [in, r] and `lora_b` [r, out] stand beside the kernel (models/lora.py), it adds
    x A B; without them nothing of it is traced.

    Differs from `nn.Dense` in flattening all leading dimensions first, so that the gradient of the
    kernel is one plain 2-D matmul: XLA's CPU backend takes 1.6 times as long from 3-D operands.
    """

    features: int
    dtype: Any
    kernel_init: Initializer
    bias_init: Initializer = nn.initializers.zeros
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: Float[Array, "*lead I"]) -> Float[Array, "*lead O"]:
        return self._linear(x, *self._parameters(x.shape[-1]))

    def _parameters(self, inputs: int) -> tuple[jax.Array, jax.Array | None]:
        """Return kernel and bias (None: has none), float32."""
        kernel = self.param("kernel", self.kernel_init, (inputs, self.features), jnp.float32)
        kernel = constrain_parameter(jnp.asarray(kernel), f"{self.name}/kernel")
        if not self.use_bias:
            return kernel, None
        return kernel, jnp.asarray(
            self.param("bias", self.bias_init, (self._bias_size(),), jnp.float32)
        )

    def _bias_size(self) -> int:
        return self.features

    def _factors(self) -> tuple[jax.Array, jax.Array] | None:
        """Return A and B of a low-rank addition to the kernel, float32; None without one."""
        if not self.has_variable("params", LORA_A):
            return None
        given = ((name, self.get_variable("params", name)) for name in (LORA_A, LORA_B))
        a, b = (constrain_parameter(jnp.asarray(x), f"{self.name}/{name}") for name, x in given)
        return a, b

    def _linear(
        self, x: Float[Array, "*lead I"], kernel: jax.Array, bias: jax.Array | None
    ) -> Float[Array, "*lead O"]:
        flat = x.reshape(-1, x.shape[-1]).astype(self.dtype)
        y = matmul(flat, kernel)
        if (factors := self._factors()) is not None:
            y = y + matmul(matmul(flat, factors[0]), factors[1])
        if bias is not None:
            y = y + spread(bias, y.shape, self.dtype)
        return y.reshape(*x.shape[:-1], self.features)


class HeadsDense(Dense):
    """A `Dense` to `parts` vectors a head, such as q, k and v, each as [B, h, N, d].

    The columns of the kernel are ordered (head, part, d), so that tensor parallelism, which splits
    them, splits whole heads. The parts of `unbiased` have no bias: that of the others has their
    columns alone.
    """

    num_heads: int = 1
    parts: int = 3
    unbiased: tuple[int, ...] = ()

    @nn.compact
    def __call__(self, x: Float[Array, "B N I"]) -> tuple[Float[Array, "B h N d"], ...]:
        kernel, bias = self._parameters(x.shape[-1])
        if bias is not None and self.unbiased:
            bias = self._with_zeros(bias)
        if hardware.target().platform == "tpu":
            return self._by_part(x.astype(self.dtype), kernel, bias)
        y = self._linear(x, kernel, bias).reshape(*x.shape[:-1], *self._columns())
        return tuple(y.transpose(3, 0, 2, 1, 4))

    def _bias_size(self) -> int:
        return self.features // self.parts * (self.parts - len(self.unbiased))

    def _with_zeros(self, bias: Float[Array, "F"]) -> Float[Array, "O"]:
        """Return the bias of all parts, in the order of the columns."""
        heads, parts, width = self._columns()
        given = iter(bias.reshape(heads, -1, width).swapaxes(0, 1))
        zeros = jnp.zeros((heads, width))
        found = [zeros if part in self.unbiased else next(given) for part in range(parts)]
        return jnp.stack(found, axis=1).reshape(-1)

    def _columns(self) -> tuple[int, int, int]:
        return self.num_heads, self.parts, self.features // (self.num_heads * self.parts)

    def _by_part(
        self, x: Float[Array, "B N I"], kernel: jax.Array, bias: jax.Array | None
    ) -> tuple[Float[Array, "B h N d"], ...]:
        """Re-order the kernel, not the activations, which TPUs do at a fraction of the cost."""
        columns, factors = self._columns(), self._factors()
        kernel, found = kernel.reshape(x.shape[-1], *columns), []
        if factors is not None:
            inner = matmul(x.reshape(-1, x.shape[-1]), factors[0]).reshape(*x.shape[:-1], -1)
            factors = inner, factors[1].reshape(-1, *columns)
        for part in range(self.parts):
            y = to_heads(x, kernel[:, :, part])
            if factors is not None:
                y = y + to_heads(factors[0], factors[1][:, :, part])
            if bias is not None:
                own = bias.reshape(columns)[:, part, None]
                y = y + spread(own, y.shape, self.dtype)
            found.append(y)
        return tuple(found)


def classifier(
    cfg: ModelConfig, kernel_init: Initializer, name: str = "head"
) -> Callable[[jax.Array], Any]:
    """Create the head [E, K], in float32: K-way logits are cheap, and the loss wants their digits.

    `kernel_init` applies unless `cfg.zero_head` is set. Without classes it returns None.
    """
    if not cfg.num_classes:
        return lambda features: None
    return Dense(
        cfg.num_classes,
        jnp.float32,
        nn.initializers.zeros if cfg.zero_head else kernel_init,
        nn.initializers.constant(cfg.head_bias),
        name=name,
    )
