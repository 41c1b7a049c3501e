# SPDX-License-Identifier: Apache-2.0
"""Frozen features of a whole split: what a network makes of every example, once, in its order."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Float32, UInt8

from vit_jax import data
from vit_jax.errors import UserError
from vit_jax.evals.passes import Arrays, Batches, run_pass

PyTree = Any
Encode = Callable[[PyTree, UInt8[Array, "B H W C"]], Float[Array, "B D"]]
# (name, shape, dtype) -> an array to fill, in memory or on the disk
Allocate = Callable[[str, tuple[int, ...], np.dtype], np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureSet:
    """The features of a split.

    Attributes:
        name: of the split, for messages.
        features: [N, D] float32, N the number of examples, in the split's order.
        labels: [N] int32 class ids, or [N, K] uint8 multi-hot.
        class_names: K of them.
    """

    name: str
    features: Float32[np.ndarray, "N D"]
    labels: np.ndarray
    class_names: Sequence[str]

    @property
    def num_classes(self) -> int:
        """K."""
        return len(self.class_names)


def in_memory(name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Allocate as `np.empty` does."""
    del name
    return np.empty(shape, dtype)


def pixels(variables: PyTree, image: UInt8[Array, "B H W C"]) -> Float32[Array, "B HWC"]:
    """Encode an image as its own pixels, in [0, 1]: what a network should improve on."""
    del variables
    return image.reshape(image.shape[0], -1).astype(jnp.float32) / 255


def extract(
    encode: Encode,
    variables: PyTree,
    source: data.Source,
    batches: Callable[[int], Batches],
    *,
    shape: tuple[int, int, int],
    mesh: Mesh,
    batch_size: int,
    allocate: Allocate = in_memory,
) -> FeatureSet:
    """Encode every example of a split, on all devices of the mesh.

    Args:
        encode: (variables, images) -> features, one function object for all splits.
        variables: what it takes, on the devices.
        source: the split.
        batches: starts one pass over it, as `split_batches` does.
        shape: (H, W, C) of what the network takes.
        mesh: devices of this process.
        batch_size: taken up to the next multiple of the devices.
        allocate: makes the arrays "features" and "labels".

    Raises:
        UserError: features that are not finite, or an image that cannot be read.
    """
    count, multi = len(source), source.multi_label
    label = (count, source.num_classes) if multi else (count,)
    labels = allocate("labels", label, np.dtype(np.uint8 if multi else np.int32))
    width = feature_width(encode, variables, shape)
    features = allocate("features", (count, width), np.dtype(np.float32))
    encode_all(
        encode,
        variables,
        batches,
        {"features": features, "label": labels},
        mesh=mesh,
        batch_size=batch_size,
        name=source.name,
    )
    return FeatureSet(
        name=source.name, features=features, labels=labels, class_names=source.class_names
    )


def split_batches(
    source: data.Source, transform: data.TransformConfig, shape: tuple[int, int, int]
) -> Callable[[int], Batches]:
    """Return what starts a pass over a split, for images of (H, W, C)."""
    return lambda size: data.eval_batches(
        source, transform, batch_size=size, image_size=shape[:2], channels=shape[2]
    )


def encode_all(
    encode: Encode,
    variables: PyTree,
    batches: Callable[[int], Batches],
    into: dict[str, np.ndarray],
    *,
    mesh: Mesh,
    batch_size: int,
    name: str,
) -> int:
    """Fill arrays with the features, and the labels, of a stream; returns how many rows it had.

    Args:
        encode, variables, mesh, batch_size: as in `extract`.
        batches: starts the stream, of image, mask and whatever else of `into` it has.
        into: "features" [N, D] and, where there are labels, "label" [N] or [N, K].
        name: of the stream, for messages.

    Raises:
        UserError: features that are not finite.
    """
    done = 0

    def compute(batch: Arrays) -> Arrays:
        features = encode_batch(variables, batch["image"], encode=encode)
        return {"features": features, **{key: batch[key] for key in batch if key != "image"}}

    def take(result: Arrays) -> None:
        nonlocal done
        values = {key: np.asarray(value) for key, value in result.items()}
        real = values.pop("mask") > 0
        stop = done + int(real.sum())
        for key, value in values.items():
            into[key][done:stop] = value[real]
        if not np.isfinite(into["features"][done:stop]).all():
            raise UserError(f"{name}: the features are not finite; are these the model's weights?")
        done = stop

    run_pass(batches, batch_size, mesh, compute, take)
    return done


@functools.partial(jax.jit, static_argnames=("encode",))
def encode_batch(
    variables: PyTree, image: UInt8[Array, "B H W C"], *, encode: Encode
) -> Float32[Array, "B D"]:
    """Encode a batch, in float32 whatever the network computes in."""
    return encode(variables, image).astype(jnp.float32)


def feature_width(encode: Encode, variables: PyTree, shape: tuple[int, int, int]) -> int:
    """Return D for images of a shape (H, W, C), computing nothing."""
    image = jax.ShapeDtypeStruct((1, *shape), jnp.uint8)
    return int(jax.eval_shape(encode, variables, image).shape[-1])
