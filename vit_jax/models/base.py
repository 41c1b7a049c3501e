# SPDX-License-Identifier: Apache-2.0
"""What every model family shares: the common fields of its config, its output, its checks."""

import dataclasses
import enum
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from flax import linen as nn

from vit_jax.errors import UserError
from vit_jax.settings.fields import value

CAPTURED = "intermediates"  # the collection of what layers record


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
        num_classes: K; the output dimension of the head. 0 makes a model without head, with logits
            None, for an objective without classes; for one with classes a run takes the dataset's.
        image_size: (H, W) in pixels; (S,) means square.
        channels: C of the input.
        dtype: compute dtype.
        remat: what the backward pass keeps.
        scan_unroll: blocks of a homogeneous stack per loop iteration; 0 unrolls all (fastest step)
            unless `remat` is to save memory, 1 compiles fastest. Families of unlike stages (Swin,
            BiT, RegNet) have no such stack, a ConvNeXt has one in each stage.
        zero_head, head_bias: start the head's kernel at zero; start its bias at this value
            (-log K for a sigmoid loss over K classes).
    """

    num_classes: int = value(1000, least=0, note="0 is a model without a head")
    image_size: tuple[int, ...] = value((224, 224), unit="pixels")
    channels: int = value(3, least=1)
    dtype: DType = DType.FLOAT32
    remat: Remat = value(Remat.NONE, free=True)
    scan_unroll: int = value(0, least=0, note="0 unrolls all", free=True)
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

    Raises UserError: a side of the image is not a multiple of the patch's.
    """
    if image_size[0] % patch[0] or image_size[1] % patch[1]:
        near = tuple(max(1, round(s / p)) * p for s, p in zip(image_size, patch, strict=True))
        raise UserError(
            f"model.patch={patch} does not divide model.image_size={image_size}; "
            f"the nearest image_size that it divides is {near}"
        )
    return image_size[0] // patch[0], image_size[1] // patch[1]


def patch_grid(cfg: Any, image_size: tuple[int, int] | None = None) -> tuple[int, int]:
    """Return the `grid` of an image, by default of the config's own size."""
    size = pair(cfg.image_size, "image_size") if image_size is None else image_size
    return grid(size, pair(cfg.patch, "patch"))


def check_heads(
    dim: int, num_heads: int, fields: tuple[str, str] = ("model.dim", "model.num_heads")
) -> None:
    """Refuse a width that its heads cannot share equally; `fields` are the names of both."""
    if dim % num_heads:
        raise UserError(f"{fields[1]}={num_heads} does not divide {fields[0]}={dim}")


def check_stages(depths: tuple[int, ...], dim: int, num_heads: tuple[int, ...]) -> None:
    """Refuse heads that are not one number a stage, or that a stage's width has no room for.

    `dim` is the first stage's width; each stage is twice as wide as the one before.
    """
    if not depths or len(num_heads) != len(depths):
        given = f"model.num_heads={num_heads} and model.depths={depths}"
        raise UserError(f"{given} must hold one number for each stage")
    for i, heads in enumerate(num_heads):
        if dim * 2**i % heads:
            raise UserError(
                f"model.num_heads={num_heads}: {heads} does not divide the width of stage {i}, "
                f"model.dim={dim} * {2**i}"
            )


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


def record(module: nn.Module, name: str, make: Callable[[], jax.Array]) -> None:
    """Store what `make` returns if the caller captures intermediates; else do not call it.

    A pass that captures nothing traces no further operation, and layers whose kernel never holds
    the attention weights compute them only for a capture.
    """
    if module.is_mutable_collection(CAPTURED):
        module.sow(CAPTURED, name, make())
