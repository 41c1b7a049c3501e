# SPDX-License-Identifier: Apache-2.0
"""The transformer's MLP, its GELUs, and SwiGLU (arXiv:2002.05202)."""

import enum
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.models.layers.dense import Dense, narrow
from vit_jax.models.layers.drop import Dropout
from vit_jax.models.layers.init import RULES, Init, Initializer


class Gelu(enum.StrEnum):
    """Which GELU: a property of the weights, not a choice of speed."""

    TANH = "tanh"  # the approximation that `nn.gelu` defaults to: Google's models
    ERF = "erf"  # exact: PyTorch's models
    QUICK = "quick"  # x * sigmoid(1.702 x): OpenAI's CLIP


def gelu(x: jax.Array, form: Gelu) -> jax.Array:
    """Apply a GELU; the explicit gradients of tanh and erf keep x alone.

    XLA's CPU backend needs 1.4 (tanh) and 2 times (erf) as long for autodiff's.
    """
    if form is Gelu.QUICK:
        return x * jax.nn.sigmoid(1.702 * x)
    return _gelu_tanh(x) if form is Gelu.TANH else _gelu_erf(x)


# tanh's argument is _A x + _B x^3.
_A = math.sqrt(2 / math.pi)
_B = 0.044715 * _A


@jax.custom_vjp
def _gelu_tanh(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x, approximate=True)


def _gelu_tanh_backward(x: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
    wide = x.astype(jnp.float32)
    square = wide * wide
    tanh = jnp.tanh(wide * (_A + _B * square))
    slope = 0.5 * (1 + tanh) + 0.5 * wide * (1 - tanh * tanh) * (_A + 3 * _B * square)
    return ((dy * slope).astype(x.dtype),)


_gelu_tanh.defvjp(lambda x: (_gelu_tanh(x), x), _gelu_tanh_backward)


@jax.custom_vjp
def _gelu_erf(x: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return narrow(wide * _normal_cdf(wide), x.dtype)


def _gelu_erf_backward(x: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
    wide = x.astype(jnp.float32)
    density = jnp.exp(-0.5 * wide * wide) * (1 / math.sqrt(2 * math.pi))
    return ((dy * (_normal_cdf(wide) + wide * density)).astype(x.dtype),)


def _normal_cdf(x: jax.Array) -> jax.Array:
    # By erf, as PyTorch: jax.nn.gelu's erfc takes twice as long on CPU for digits of values below
    # 1e-7.
    return 0.5 * (1 + jax.lax.erf(x * math.sqrt(0.5)))


_gelu_erf.defvjp(lambda x: (_gelu_erf(x), x), _gelu_erf_backward)


class MlpKind(enum.StrEnum):
    """What the hidden layer of an MLP is."""

    GELU = "gelu"  # gelu(fc1(x))
    SWIGLU = "swiglu"  # silu(fc1_g(x)) * fc1_x(x)


@jax.custom_vjp
def swiglu(gate: jax.Array, x: jax.Array) -> jax.Array:
    """Return silu(gate) * x; the explicit gradients keep both alone."""
    wide = gate.astype(jnp.float32)
    return narrow(wide * jax.nn.sigmoid(wide) * x.astype(jnp.float32), x.dtype)


def _swiglu_backward(
    kept: tuple[jax.Array, jax.Array], dy: jax.Array
) -> tuple[jax.Array, jax.Array]:
    gate, x = kept
    wide, dy = gate.astype(jnp.float32), dy.astype(jnp.float32)
    sigmoid = jax.nn.sigmoid(wide)
    slope = sigmoid * (1 + wide * (1 - sigmoid))
    dgate = dy * x.astype(jnp.float32) * slope
    return dgate.astype(gate.dtype), (dy * wide * sigmoid).astype(x.dtype)


swiglu.defvjp(lambda gate, x: (swiglu(gate, x), (gate, x)), _swiglu_backward)


class Mlp(nn.Module):
    """Linear, GELU, linear; dropout after each, as in google-research/vision_transformer.

    `kind` SWIGLU has two first layers; `make_norm` makes a norm of the hidden width, by its name;
    without `use_bias` no layer has one; `last_init` is another rule for the last kernel.
    """

    hidden_dim: int
    gelu: Gelu
    init_rules: Init
    dtype: Any
    dropout_rate: float = 0.0
    train: bool = False
    kind: MlpKind = MlpKind.GELU
    make_norm: Callable[[str], nn.Module] | None = None
    use_bias: bool = True
    last_init: Initializer | None = None

    @nn.compact
    def __call__(self, x: Float[Array, "*lead D"]) -> Float[Array, "*lead D"]:
        rules, dim, shape = RULES[self.init_rules], x.shape[-1], x.shape
        x = x.reshape(-1, dim)  # flat throughout: see PreNormBlock
        hidden = (self.hidden_dim, self.dtype, rules.linear, rules.mlp_bias, self.use_bias)
        if self.kind is MlpKind.SWIGLU:
            x = swiglu(Dense(*hidden, name="fc1_g")(x), Dense(*hidden, name="fc1_x")(x))
        else:
            x = gelu(Dense(*hidden, name="fc1")(x), self.gelu)
        x = Dropout(self.dropout_rate, deterministic=not self.train)(x)
        if self.make_norm is not None:
            x = self.make_norm("norm")(x)
        last = self.last_init or rules.linear
        x = Dense(dim, self.dtype, last, rules.mlp_bias, self.use_bias, name="fc2")(x)
        return Dropout(self.dropout_rate, deterministic=not self.train)(x).reshape(shape)
