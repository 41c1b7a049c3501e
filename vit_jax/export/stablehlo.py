# SPDX-License-Identifier: Apache-2.0
"""A trained model as a StableHLO program and its weights, which run with jax alone.

The weights are the program's argument: XLA would fold, hash and compile constants inside of it, and
keep them in its cache: 23 CPU seconds to the first answer of a ViT-B instead of 6, later 9 for 3.
"""

import contextlib
import dataclasses
import io
from collections.abc import Callable, Iterator
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax import export
from jaxtyping import Array, Num

from vit_jax import trees
from vit_jax.export import outputs
from vit_jax.export.quantize import unpack
from vit_jax.inference.trained import Trained
from vit_jax.models.layers.attention import AttentionImpl

PLATFORMS = ("cpu", "cuda", "tpu")
_LOCATIONS = "jax_traceback_in_locations_limit"


def portable(trained: Trained) -> Trained:
    """Return the model with the attention that every platform has.

    Left to itself it is chosen for the device of this process.
    """
    if not hasattr(trained.model, "attention"):
        return trained
    model: Any = dataclasses.replace(trained.model, **{"attention": AttentionImpl.XLA})
    return dataclasses.replace(trained, model=model)


def serialize(trained: Trained, packed: Any) -> tuple[bytes, bytes]:
    """Return the program of (weights, images) -> logits, and the weights as an .npz file.

    A model without a head returns its features, [B, D], one of pixels what `outputs` names.

    The program takes what `numpy.load` reads as a dict, and uint8 [B, H, W, C], of bands in the
    data's dtype, cropped and resized, for any B >= 1: normalisation is inside. It returns float32
    [B, K]. The weights are those of `packed`, from `quantize.pack`; those of `trained` itself are
    not looked at.
    No device is used: a process without an accelerator writes for all of `PLATFORMS`.
    """
    apply, named = outputs.make(portable(trained)), trees.named_leaves(packed)
    arrays = {name: _storable(np.asarray(leaf)) for name, leaf in named}

    def output(weights: Any, image: Num[Array, "B H W C"]) -> Any:
        leaves = [weights[name].view(leaf.dtype) for name, leaf in named]
        variables = unpack(jax.tree.unflatten(jax.tree.structure(packed), leaves))
        return apply(variables, image)

    (batch,) = export.symbolic_shape("batch")
    shape = (batch, *trained.image_size, trained.channels)
    with _without_locations():
        exported = export.export(jax.jit(output), platforms=PLATFORMS)(
            {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in arrays.items()},
            jax.ShapeDtypeStruct(shape, trained.dtype),
        )
        program = bytes(exported.serialize())
    file = io.BytesIO()
    np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
    return program, file.getvalue()


def runner(program: bytes, weights: bytes) -> Callable[[Any], Any]:
    """Return images -> logits of what `serialize` wrote, as the model card's lines do."""
    call = jax.jit(export.deserialize(bytearray(program)).call)
    arrays = jax.device_put(dict(np.load(io.BytesIO(weights))))
    return lambda images: call(arrays, images)


def _storable(leaf: np.ndarray) -> np.ndarray:
    """Give bfloat16, which .npz files do not know, as the integers of its bits."""
    return leaf.view(np.uint16) if leaf.dtype == ml_dtypes.bfloat16 else leaf


@contextlib.contextmanager
def _without_locations() -> Iterator[None]:
    """Leave out where each operation comes from: the paths of this machine's source files."""
    before = jax.config.values[_LOCATIONS]
    jax.config.update(_LOCATIONS, 0)
    try:
        yield
    finally:
        jax.config.update(_LOCATIONS, before)
