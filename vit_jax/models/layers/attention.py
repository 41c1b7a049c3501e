# SPDX-License-Identifier: Apache-2.0
"""softmax(q k^T / sqrt(d)) v: which kernel computes it, and what each kernel requires."""

import enum

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vit_jax.devices import hardware
from vit_jax.errors import UserError
from vit_jax.models.layers import flash, xla
from vit_jax.models.layers.drop import dropout


class AttentionImpl(enum.StrEnum):
    """Which kernel computes softmax(q k^T / sqrt(d)) v; all agree to rounding."""

    AUTO = "auto"  # cuDNN's flash attention where it applies, XLA elsewhere
    XLA = "xla"
    CUDNN = "cudnn"
    PALLAS = "pallas"  # JAX's flash attention for TPUs; worth a try above 1,024 tokens


def check_impl(impl: AttentionImpl, half: bool, head_dim: int, dropout_rate: float) -> None:
    """Raise a UserError if a kernel lacks dropout, the dtype or the head width."""
    if impl in (AttentionImpl.CUDNN, AttentionImpl.PALLAS) and dropout_rate:
        advice = "set model.attention_dropout_rate=0"
        raise UserError(f"model.attention={impl} cannot drop weights; {advice}")
    if impl is AttentionImpl.CUDNN and (not half or head_dim % 8 or head_dim > 128):
        raise UserError(
            "model.attention=cudnn needs model.dtype=bfloat16 and a head width (dim/num_heads="
            f"{head_dim}) that is a multiple of 8 up to 128; choose auto"
        )


def check_target(impl: AttentionImpl) -> None:
    """Raise a UserError if the hardware that is traced for lacks the kernel, before training."""
    if not _has(impl):
        target = hardware.target()
        needs = {AttentionImpl.CUDNN: "an NVIDIA GPU from Ampere on", AttentionImpl.PALLAS: "a TPU"}
        raise UserError(
            f"model.attention={impl} needs {needs[impl]}, not {target.kind or target.platform}; "
            "choose auto"
        )


def _has(impl: AttentionImpl) -> bool:
    target = hardware.target()
    if impl is AttentionImpl.CUDNN:
        return target.has_cudnn
    return impl is not AttentionImpl.PALLAS or target.platform == "tpu"


def _choose(impl: AttentionImpl, q: jax.Array, dropout_rate: float) -> AttentionImpl:
    """Return the kernel to use without a bias: `impl`, or the fastest one of the target.

    XLA replaces a kernel that the target lacks: a model that was trained on a GPU predicts on a
    laptop. `check_target` is for callers that accept no replacement.
    """
    if impl is not AttentionImpl.AUTO:
        return impl if _has(impl) else AttentionImpl.XLA
    half = q.dtype in (jnp.bfloat16, jnp.float16)
    fits = q.shape[-1] % 8 == 0 and q.shape[-1] <= 128 and dropout_rate == 0
    return AttentionImpl.CUDNN if half and fits and _has(AttentionImpl.CUDNN) else AttentionImpl.XLA


def attention_weights(
    q: Float[Array, "B h N d"],
    k: Float[Array, "B h M d"],
    bias: Float[Array, "#B #h #N M"] | None = None,
) -> Float[Array, "B h N M"]:
    """Return softmax(q k^T / sqrt(d) + bias), in float32."""
    scale = q.shape[-1] ** -0.5
    logits = jnp.matmul(q * scale, k.swapaxes(-1, -2), preferred_element_type=jnp.float32)
    if bias is not None:
        logits = logits + bias
    return jax.nn.softmax(logits, axis=-1)


def attend(
    q: Float[Array, "B h N d"],
    k: Float[Array, "B h M d"],
    v: Float[Array, "B h M d"],
    *,
    bias: Float[Array, "#B #h #N M"] | None = None,
    impl: AttentionImpl = AttentionImpl.AUTO,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
) -> Float[Array, "B h N d"]:
    """Attend with scale d**-0.5; logits and softmax in float32.

    `dropout_key` drops attention weights (None: evaluation); `bias` is added to the logits. Only
    XLA's form has either.
    """
    dropping = dropout_rate if dropout_key is not None else 0.0
    chosen = _choose(impl, q, dropping) if bias is None else AttentionImpl.XLA
    if chosen is AttentionImpl.CUDNN:
        return flash.cudnn(q, k, v)
    if chosen is AttentionImpl.PALLAS:
        return flash.pallas(q, k, v)
    if dropout_key is None or dropout_rate == 0:
        return xla.attend(q * q.shape[-1] ** -0.5, k, v, bias)
    weights = attention_weights(q, k, bias).astype(v.dtype)
    return jnp.matmul(dropout(weights, dropout_rate, dropout_key), v)
