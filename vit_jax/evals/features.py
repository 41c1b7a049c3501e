# SPDX-License-Identifier: Apache-2.0
"""Frozen features of a whole split: what a network makes of every example, once, in its order."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Float32

from vit_jax import data
from vit_jax.errors import UserError
from vit_jax.evals.base import Predict
from vit_jax.evals.passes import Arrays, Batches, run_pass

PyTree = Any
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


def pixels(variables: PyTree, batch: Mapping[str, jax.Array]) -> jax.Array:
    """Return each image's own pixels [B, H*W*C] in [0, 1]: what a network should improve on."""
    del variables
    image = batch["image"]
    return image.reshape(image.shape[0], -1).astype(jnp.float32) / 255


def extract(
    encode: Predict,
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
        encode: (variables, batch) -> features, one function object for all splits.
        variables: what it takes, on the devices.
        source: the split.
        batches: starts one pass over it, as `split_batches` does.
        shape: (H, W, C) of what the network takes.
        mesh: the devices; each process gets the features of all examples.
        batch_size: taken up to the next multiple of the devices.
        allocate: makes the arrays "features" and "labels".

    Raises UserError: features that are not finite, or an image that cannot be read.
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
    views = data.one_view(transform, shape[:2], shape[2])
    return lambda size: data.eval_batches(source, views, batch_size=size)


def encode_all(
    encode: Predict,
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

    Raises UserError: features that are not finite.
    """
    done = 0

    def compute(batch: Arrays) -> Arrays:
        wanted = {key: batch[key] for key in ("mask", "label") if key in into or key == "mask"}
        return predict_batch(variables, batch, wanted, predict=encode, mesh=mesh)

    def take(result: Arrays) -> None:
        nonlocal done
        values = {key: np.asarray(value) for key, value in result.items()}
        real = values.pop("mask") > 0
        stop = done + int(real.sum())
        for key, value in values.items():
            into["features" if key == "rows" else key][done:stop] = value[real]
        if not np.isfinite(into["features"][done:stop]).all():
            raise UserError(f"{name}: the features are not finite; are these the model's weights?")
        done = stop

    run_pass(batches, batch_size, mesh, compute, take)
    return done


@functools.partial(jax.jit, static_argnames=("predict", "mesh"))
def predict_batch(
    variables: PyTree, batch: Arrays, rest: Arrays, *, predict: Predict, mesh: Mesh
) -> Arrays:
    """Return the `rest` and the predictor's "rows", in float32 whatever the network computes in.

    Every process gets the whole of both.
    """
    result = {"rows": predict(variables, batch).astype(jnp.float32), **rest}
    return jax.lax.with_sharding_constraint(result, NamedSharding(mesh, PartitionSpec()))


def feature_width(encode: Predict, variables: PyTree, shape: tuple[int, int, int]) -> int:
    """Return D for images of a shape (H, W, C), computing nothing."""
    batch = {"image": jax.ShapeDtypeStruct((1, *shape), jnp.uint8)}
    return int(jax.eval_shape(encode, variables, batch).shape[-1])
