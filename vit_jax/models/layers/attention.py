# SPDX-License-Identifier: Apache-2.0
"""softmax(q k^T / sqrt(d)) v: which kernel computes it, and what each kernel requires.

Flash attention has scale d**-0.5 and no [N, M] array in memory, for any number of tokens. XLA's own
matmuls do it on any device, with explicit gradients that keep few arrays.
"""

import enum
import functools
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from vit_jax.devices import hardware
from vit_jax.devices.sharding import BATCH_AXES, auto_mesh, fitted_spec
from vit_jax.errors import UserError
from vit_jax.models.layers.drop import dropout

_LANES = 128  # the Pallas kernel reads tokens in multiples of it
_BLOCKS = (512, 384, 256, 128)  # tokens at a time: the largest that divides their number
# Added to the logit of a token that is not seen. Finite: a row of padding alone sees their mean.
_UNSEEN = -1e30
_ADDED = -2  # what no token's image is numbered


class Visible(NamedTuple):
    """Which tokens of a row are seen, where that differs from row to row; one of the two.

    Attributes:
        lengths: [B] int32, how many tokens at a row's beginning are there; the rest is padding,
            which nothing sees and whose own output means nothing.
        segments: [B, M] int32, the image of each token; a token sees those of its own.
        queries: [B, N] int32, the image of each query, where these are not the tokens themselves.
    """

    lengths: Any = None
    segments: Any = None
    queries: Any = None

    def logits(self, keys: int) -> Float[Array, "B 1 N M"]:
        """Return what is added to the logits of `keys` tokens: N is 1 where all see the same."""
        if self.lengths is not None:
            seen = jnp.arange(keys)[None] < self.lengths[:, None]
            return jnp.where(seen, 0.0, _UNSEEN)[:, None, None]
        queries = self.segments if self.queries is None else self.queries
        same = queries[:, :, None] == self.segments[:, None, :]
        return jnp.where(same, 0.0, _UNSEEN)[:, None]


def cudnn(
    q: Float[Array, "B h N d"],
    k: Float[Array, "B h M d"],
    v: Float[Array, "B h M d"],
    implementation: Literal["cudnn", "xla"] = "cudnn",
    lengths: Int[Array, " B"] | None = None,
) -> Float[Array, "B h N d"]:
    """Attend by cuDNN, in half precision; `implementation="xla"` computes the same anywhere.

    With `lengths` the keys beyond each are padding.

    jax's cuDNN trains on even lengths only, so an odd one (197 with a class token, one query of a
    pooling) gains one token: a key that no query sees, a query whose output is cut off. Even
    lengths pass unchanged, without a mask.
    """
    batch, queries, keys, scale = q.shape[0], q.shape[2], k.shape[2], q.shape[-1] ** -0.5
    q, k, v = (_padded(x.swapaxes(1, 2), 1, 2) for x in (q, k, v))  # to cuDNN's [B, N, h, d]
    # Queries have no lengths: an added one attends to all real keys, so that its softmax is finite.
    if lengths is None and keys % 2:
        lengths = jnp.full(batch, keys, jnp.int32)
    out = jax.nn.dot_product_attention(
        q, k, v, scale=scale, key_value_seq_lengths=lengths, implementation=implementation
    )
    return out[:, :queries].swapaxes(1, 2)


def pallas(
    q: Float[Array, "B h N d"],
    k: Float[Array, "B h M d"],
    v: Float[Array, "B h M d"],
    interpret: bool = False,
    seen: Visible | None = None,
) -> Float[Array, "B h N d"]:
    """Attend by JAX's Pallas kernel for TPUs (splash attention).

    XLA cannot split the kernel over devices: on a mesh each device computes the images and heads
    that it holds. `interpret` computes on any device, slowly.
    """
    attend = functools.partial(_splash, interpret=interpret)
    segments = () if seen is None else _segments(seen, q.shape[2], k.shape[2])
    mesh = auto_mesh()
    if mesh.empty:
        return attend(q, k, v, *segments)
    spec: PartitionSpec = fitted_spec(q.shape, (BATCH_AXES, "tensor"), mesh)
    rows: PartitionSpec = fitted_spec(q.shape[:1], (BATCH_AXES,), mesh)
    specs = (spec, spec, spec, *[rows] * len(segments))
    # The kernel does not declare the axes over which its result varies, which the check requires.
    split = jax.shard_map(attend, mesh=mesh, in_specs=specs, out_specs=spec, check_vma=False)
    return split(q, k, v, *segments)


def _segments(seen: Visible, queries: int, keys: int) -> tuple[jax.Array, jax.Array]:
    """Number the images of queries [B, N] and of keys [B, M] for a kernel that compares them.

    A query that sees no key at all would be divided by zero; those of padding see an image's, or,
    where there are several, each other.
    """
    if seen.lengths is not None:
        there = (jnp.arange(keys)[None] < jnp.maximum(seen.lengths, 1)[:, None]).astype(jnp.int32)
        return jnp.ones((len(there), queries), jnp.int32), there
    own = seen.segments if seen.queries is None else seen.queries
    return own, seen.segments


def _splash(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    q_images: jax.Array | None = None,
    kv_images: jax.Array | None = None,
    *,
    interpret: bool,
) -> jax.Array:
    # Not at the top: this import takes longer than that of the rest of a model.
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    (_, heads, queries, width), keys = q.shape, k.shape[2]
    q, k, v = (_padded(x, 2, _LANES) for x in (q * width**-0.5, k, v))
    block_q, block_kv = (next(n for n in _BLOCKS if x.shape[2] % n == 0) for x in (q, k))
    kernel = splash.make_splash_mha_single_device(
        masks.MultiHeadMask([masks.FullMask((q.shape[2], k.shape[2]))] * heads),
        block_sizes=splash.BlockSizes(
            block_q=block_q,
            block_kv=block_kv,
            block_q_dkv=block_q,
            block_kv_dkv=block_kv,
            block_q_dq=block_q,
            block_kv_dq=block_kv,
        ),
        interpret=interpret,
    )
    if q_images is not None and kv_images is not None:
        # An added query is of a first key's image: it sees something, and is cut off.
        extra_q, extra_kv = q.shape[2] - queries, k.shape[2] - keys
        q_images = jnp.concatenate([q_images, jnp.repeat(kv_images[:, :1], extra_q, 1)], 1)
        kv_images = jnp.pad(kv_images, ((0, 0), (0, extra_kv)), constant_values=_ADDED)
        each = jax.vmap(lambda q, k, v, *ids: kernel(q, k, v, segment_ids=splash.SegmentIds(*ids)))
        return jnp.asarray(each(q, k, v, q_images, kv_images))[:, :, :queries]
    segments = None
    if keys % _LANES:  # an added key is of another segment; an added query attends to real keys
        real = (jnp.arange(k.shape[2]) < keys).astype(jnp.int32)
        segments = splash.SegmentIds(jnp.ones(q.shape[2], jnp.int32), real)
    images = jax.vmap(lambda q, k, v: jnp.asarray(kernel(q, k, v, segment_ids=segments)))
    return images(q, k, v)[:, :, :queries]


def _padded(x: jax.Array, axis: int, multiple: int) -> jax.Array:
    """Append zeros along an axis of [B, ?, ?, d] up to a whole multiple."""
    extra = -x.shape[axis] % multiple
    return jnp.pad(x, [(0, extra if i == axis else 0) for i in range(x.ndim)]) if extra else x


def xla_attend(
    q: Float[Array, "B h N d"],
    k: Float[Array, "B h M d"],
    v: Float[Array, "B h M d"],
    bias: Float[Array, "#B #h #N M"] | None,
) -> Float[Array, "B h N d"]:
    """Return softmax(q k^T + bias) v, for q with its scale; logits and softmax in float32."""
    # With a bias (Swin's windows) recomputing is slower: every matmul would read the bias too.
    if bias is None and hardware.target().platform == "tpu":
        return _recomputing(q, k, v)
    return _keeping(q, k, v, bias)


@jax.custom_vjp
def _keeping(q: jax.Array, k: jax.Array, v: jax.Array, bias: jax.Array | None) -> jax.Array:
    """Attend and keep one [N, M] array for the backward pass, exp(logits - max) in v's dtype.

    The softmax's sum divides the [N, d] output and its gradient, not the [N, M] weights.
    """
    return _keeping_forward(q, k, v, bias)[0]


def _keeping_forward(
    q: jax.Array, k: jax.Array, v: jax.Array, bias: jax.Array | None
) -> tuple[jax.Array, tuple[Any, ...]]:
    logits = _logits(q, k, bias)
    powers = jnp.exp(logits - logits.max(axis=-1, keepdims=True))
    inverse = 1 / powers.sum(axis=-1, keepdims=True)
    powers = powers.astype(v.dtype)
    out = jnp.matmul(powers, v, preferred_element_type=jnp.float32) * inverse
    out = out.astype(v.dtype)
    return out, (q, k, v, bias, powers, inverse, out)


def _keeping_backward(
    kept: tuple[Any, ...], dout: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
    q, k, v, bias, powers, inverse, out = kept
    return _gradients(q, k, v, bias, powers, out, dout.astype(jnp.float32) * inverse)


_keeping.defvjp(_keeping_forward, _keeping_backward)


@jax.custom_vjp
def _recomputing(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Attend and keep no [N, M] array; write none to memory in float32 either.

    A TPU multiplies q and k again in less time than it writes and reads their product. XLA fuses a
    matmul with the next operations only if nothing else reads its result, so each use of the logits
    has its own matmul: maximum, powers, backward pass. Barriers keep XLA from merging these.
    """
    return _recomputing_forward(q, k, v)[0]


def _recomputing_forward(
    q: jax.Array, k: jax.Array, v: jax.Array
) -> tuple[jax.Array, tuple[Any, ...]]:
    largest = _logits(q, k).max(axis=-1, keepdims=True)
    again, largest = jax.lax.optimization_barrier((q, largest))
    powers = jnp.exp(_logits(again, k) - largest)
    total = powers.sum(axis=-1, keepdims=True)
    out = jnp.matmul(powers.astype(v.dtype), v, preferred_element_type=jnp.float32) / total
    out = out.astype(v.dtype)
    return out, (q, k, v, largest + jnp.log(total), out)


def _recomputing_backward(
    kept: tuple[Any, ...], dout: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    q, k, v, log_total, out = kept
    again, log_total, dout = jax.lax.optimization_barrier((q, log_total, dout))
    weights = jnp.exp(_logits(again, k) - log_total).astype(v.dtype)
    weights = jax.lax.optimization_barrier(weights)  # for two matmuls: written once, narrow
    dq, dk, dv, _ = _gradients(q, k, v, None, weights, out, dout.astype(jnp.float32))
    return dq, dk, dv


_recomputing.defvjp(_recomputing_forward, _recomputing_backward)


def _logits(q: jax.Array, k: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    logits = jnp.matmul(q, k.swapaxes(-1, -2), preferred_element_type=jnp.float32)
    return logits if bias is None else logits + bias


def _gradients(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    bias: jax.Array | None,
    weights: jax.Array,
    out: jax.Array,
    dout: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
    """Return the gradients of q, k, v and the bias.

    Either `weights` (in v's dtype) or `dout` (the output's gradient, float32) has been divided by
    the softmax's sum.
    """
    mean = (dout * out).sum(axis=-1, keepdims=True)  # mean gradient of the weights
    dout = dout.astype(v.dtype)
    dv = jnp.matmul(weights.swapaxes(-1, -2), dout)
    dweights = jnp.matmul(dout, v.swapaxes(-1, -2), preferred_element_type=jnp.float32)
    dlogits = weights * (dweights - mean)
    dbias = None if bias is None else _sum_to(dlogits, bias.shape).astype(bias.dtype)
    dlogits = dlogits.astype(q.dtype)
    return jnp.matmul(dlogits, k), jnp.matmul(dlogits.swapaxes(-1, -2), q), dv, dbias


def _sum_to(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Undo a broadcast from `shape`: sum over its axes of length 1."""
    axes = [axis for axis, size in enumerate(shape) if size == 1]
    return x.sum(axis=axes, keepdims=True)


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
    if not has_kernel(impl):
        target = hardware.target()
        needs = {AttentionImpl.CUDNN: "an NVIDIA GPU from Ampere on", AttentionImpl.PALLAS: "a TPU"}
        raise UserError(
            f"model.attention={impl} needs {needs[impl]}, not {target.kind or target.platform}; "
            "choose auto"
        )


def has_kernel(impl: AttentionImpl) -> bool:
    """Return whether the hardware that is traced for has the kernel."""
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
        return impl if has_kernel(impl) else AttentionImpl.XLA
    half = q.dtype in (jnp.bfloat16, jnp.float16)
    fits = q.shape[-1] % 8 == 0 and q.shape[-1] <= 128 and dropout_rate == 0
    flash = half and fits and has_kernel(AttentionImpl.CUDNN)
    return AttentionImpl.CUDNN if flash else AttentionImpl.XLA


def causal_logits(count: int) -> Float[Array, "1 1 N N"]:
    """Return what is added to logits so that a token sees itself and those before it."""
    return jnp.where(jnp.tri(count, dtype=bool), 0.0, -jnp.inf)[None, None]


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
    seen: Visible | None = None,
    impl: AttentionImpl = AttentionImpl.AUTO,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
) -> Float[Array, "B h N d"]:
    """Attend with scale d**-0.5; logits and softmax in float32.

    `dropout_key` drops attention weights (None: evaluation); `bias` is added to the logits. Only
    XLA's form has either. `seen` says which image of its row a token is of: the Pallas kernel takes
    the images' numbers, cuDNN's takes lengths alone, and several images are an [N, M] bias there.
    """
    dropping = dropout_rate if dropout_key is not None else 0.0
    chosen = _choose(impl, q, dropping) if bias is None else AttentionImpl.XLA
    lengths = None if seen is None else seen.lengths
    if chosen is AttentionImpl.CUDNN and (seen is None or lengths is not None):
        return cudnn(q, k, v, lengths=lengths)
    if chosen is AttentionImpl.PALLAS:
        return pallas(q, k, v, seen=seen)
    if seen is not None:
        bias = seen.logits(k.shape[2])
    if dropout_key is None or dropout_rate == 0:
        return xla_attend(q * q.shape[-1] ** -0.5, k, v, bias)
    weights = attention_weights(q, k, bias).astype(v.dtype)
    return jnp.matmul(dropout(weights, dropout_rate, dropout_key), v)
