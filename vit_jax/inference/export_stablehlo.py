# SPDX-License-Identifier: Apache-2.0
"""A trained model as one StableHLO artifact, which runs with jax alone."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import export
from jaxtyping import Array, Float, UInt8

from vit_jax import trees
from vit_jax.errors import UserError
from vit_jax.inference.forward import make_apply, output_name
from vit_jax.inference.quantize import unpack
from vit_jax.inference.trained import Trained
from vit_jax.models.layers.attention import AttentionImpl

PLATFORMS = ("cpu", "cuda", "tpu")
# What holds the module, a flatbuffer, addresses 2 GiB; the program itself is within the rest.
MAX_BYTES = 2**31 - 2**26
_LOCATIONS = "jax_traceback_in_locations_limit"


def portable(trained: Trained) -> Trained:
    """Return the model with the attention that every platform has.

    Left to itself it is chosen for the device of this process.
    """
    if not hasattr(trained.model, "attention"):
        return trained
    model: Any = dataclasses.replace(trained.model, **{"attention": AttentionImpl.XLA})
    return dataclasses.replace(trained, model=model)


def serialize(trained: Trained, packed: Any) -> bytes:
    """Return the artifact of images -> logits; the weights, from `quantize.pack`, are inside.

    A model without a head returns its features, [B, D].

    So is the normalisation: it takes uint8 [B, H, W, C], cropped and resized, for any B >= 1, and
    returns float32 [B, K]. The weights of `trained` itself are not looked at.
    No device is used: a process without an accelerator writes for all of `PLATFORMS`.

    Raises UserError: weights of 2 GiB or more.
    """
    size = trees.num_bytes(packed)
    if size > MAX_BYTES:
        raise UserError(
            f"the weights are {size:,} bytes; a StableHLO artifact holds {MAX_BYTES:,}: "
            "store them smaller by --dtype=bfloat16 or int8"
        )
    apply = make_apply(portable(trained))

    def output(image: UInt8[Array, "B H W C"]) -> Float[Array, "B K"]:
        return getattr(apply(unpack(packed), image), output_name(trained))

    (batch,) = export.symbolic_shape("batch")
    shape = (batch, *trained.image_size, trained.channels)
    with _without_locations():
        exported = export.export(jax.jit(output), platforms=PLATFORMS)(
            jax.ShapeDtypeStruct(shape, jnp.uint8)
        )
        return bytes(exported.serialize())


@contextlib.contextmanager
def _without_locations() -> Iterator[None]:
    """Leave out where each operation comes from: the paths of this machine's source files."""
    before = jax.config.values[_LOCATIONS]
    jax.config.update(_LOCATIONS, 0)
    try:
        yield
    finally:
        jax.config.update(_LOCATIONS, before)
