# SPDX-License-Identifier: Apache-2.0
"""What every model family shares: its config's common fields, its output, its enums."""

import dataclasses
import enum
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from vit_jax.errors import UserError


class DType(enum.StrEnum):
    """Compute dtype. Parameters, LayerNorm statistics, softmax and the head are float32."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class Remat(enum.StrEnum):
    """What a block keeps for the backward pass (recomputing the rest)."""

    NONE = "none"  # keep everything XLA wants: fastest, most memory
    DOTS = "dots"  # keep the outputs of weight matmuls, recompute attention and element-wise work
    FULL = "full"  # keep the block's input only: least memory, one more forward


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class ModelConfig:
    """Fields of every family.

    Attributes:
        num_classes: K; the output dimension of the head. 0 is a model without one, whose logits are
            None, for an objective that learns no classes.
        image_size: (H, W) in pixels; (S,) means square.
        channels: C of the input.
        dtype: compute dtype.
        remat: what the backward pass keeps.
        scan_unroll: blocks of a homogeneous stack per loop iteration; 0 unrolls all (fastest step)
            unless `remat` is to save memory, 1 compiles fastest. Families of unlike stages (Swin,
            BiT, RegNet) have no such stack.
        zero_head, head_bias: start the head's kernel at zero; start its bias at this value
            (-log K for a sigmoid loss over K classes).
    """

    num_classes: int = 1000
    image_size: tuple[int, ...] = (224, 224)
    channels: int = 3
    dtype: DType = DType.FLOAT32
    remat: Remat = Remat.NONE
    scan_unroll: int = 0
    zero_head: bool = False
    head_bias: float = 0.0


@flax.struct.dataclass
class Output:
    """What a model returns; jit prunes what its caller does not use.

    The fields are typed `Any`: transformations also fill a pytree's nodes with abstract values.

    Attributes:
        logits: [B, K], float32; None of a model without a head.
        features: [B, E], what the head sees (after pooling and the pre-logits layer).
        tokens: [B, N, D] after the encoder (and its final norm where it comes before pooling), or
            None for a network without tokens.
        aux: what one family adds, such as the logits of a distillation head.
    """

    logits: Any
    features: Any
    tokens: Any
    aux: dict[str, Any] = flax.struct.field(default_factory=dict)


def pair(size: tuple[int, ...], name: str) -> tuple[int, int]:
    """Read (S,) as (S, S); `--config.model.image_size=384` arrives as (384,)."""
    if len(size) == 1:
        size = (size[0], size[0])
    if len(size) != 2 or min(size) < 1:
        raise UserError(f"model.{name}={size}: give one positive number or two, (height, width)")
    return size[0], size[1]


def grid(image_size: tuple[int, int], patch: tuple[int, int]) -> tuple[int, int]:
    """Return the token grid (rows, columns) of an image cut into patches.

    Raises:
        UserError: a side of the image is not a multiple of the patch's.
    """
    if image_size[0] % patch[0] or image_size[1] % patch[1]:
        near = tuple(max(1, round(s / p)) * p for s, p in zip(image_size, patch, strict=True))
        raise UserError(
            f"model.patch={patch} does not divide model.image_size={image_size}; "
            f"the nearest image_size that it divides is {near}"
        )
    return image_size[0] // patch[0], image_size[1] // patch[1]


def check_positive(cfg: ModelConfig, *names: str) -> None:
    """Refuse a size below 1, in a number or anywhere in a tuple, by name."""
    if cfg.num_classes < 0:
        raise UserError(f"model.num_classes={cfg.num_classes} must be at least 1 (0: no head)")
    for name in ("channels", *names):
        value = getattr(cfg, name)
        if min(value if isinstance(value, tuple) else (value,), default=1) < 1:
            raise UserError(f"model.{name}={value} must be at least 1")
    if cfg.scan_unroll < 0:
        raise UserError(
            f"model.scan_unroll={cfg.scan_unroll} must be 0 (all) or a number of blocks"
        )


def check_rates(cfg: ModelConfig, *names: str) -> None:
    """Refuse a probability outside [0, 1), by name."""
    for name in names:
        if not 0 <= getattr(cfg, name) < 1:
            raise UserError(f"model.{name}={getattr(cfg, name)} must be in [0, 1)")


def check_heads(dim: int, num_heads: int) -> None:
    """Refuse a width that its heads cannot share equally."""
    if dim % num_heads:
        raise UserError(f"model.num_heads={num_heads} does not divide model.dim={dim}")


def compute_dtype(cfg: ModelConfig) -> jnp.dtype:
    """Return the jnp dtype of `cfg.dtype`."""
    return jnp.dtype(cfg.dtype.value)


def check_input(image: jax.Array, size: tuple[int, int], channels: int) -> None:
    """Refuse an image batch of another size than the model was built for, by name."""
    if image.ndim != 4 or image.shape[1:] != (*size, channels):
        raise UserError(
            f"the model takes images [B, {size[0]}, {size[1]}, {channels}], "
            f"not {list(image.shape)}; set model.image_size and model.channels to the data's"
        )
