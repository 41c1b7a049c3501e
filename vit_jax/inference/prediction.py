# SPDX-License-Identifier: Apache-2.0
"""The likeliest classes of images; decoding, in threads, goes on while the device computes."""

import functools
import itertools
import math
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float32, Int32

from vit_jax.devices import hardware, sharding
from vit_jax.errors import UserError
from vit_jax.evals.passes import ahead
from vit_jax.inference.forward import Forward, make_apply, of_batch, probabilities
from vit_jax.inference.trained import Trained
from vit_jax.inference.units import as_numpy
from vit_jax.inference.views import Source, as_batch, check_channels, is_one, read_view
from vit_jax.models.losses import Loss

# Batches that are decoded before they are wanted, and those on the device before one is waited for.
_DECODED, _COMPUTED = 2, 1
# A batch of images, and their views being decoded; that of an unreadable image is its error, a str.
_Decoding = tuple[Sequence[Source], list[Future]]


class Prediction(NamedTuple):
    """A class and how likely it is: of all classes, or by a sigmoid loss of its own.

    For a model of numbers it is an output and its number, in the units of the data.
    """

    class_id: int
    name: str
    probability: float


class Answer(NamedTuple):
    """An image's likeliest classes, the first the likeliest; or what is wrong with it."""

    source: Source
    predictions: list[Prediction]
    error: str = ""


@hardware.explained("lower the batch size, batch_size=N")
def predict(
    trained: Trained, images: Sequence[Source] | Source, top: int = 5, *, batch_size: int = 32
) -> list[list[Prediction]]:
    """Return the `top` likeliest classes of each image: `predict(trained, ["cat.jpg"])[0][0].name`.

    Args:
        trained: from `load`; of a model of numbers the outputs come in their order, all of them.
        images: files by name or open, encoded bytes, Pillow's images or uint8 arrays (H, W, C) of
            pixels, C the model's, of any library; one of these, or an array (B, H, W, C).
        top: of K classes at most K.
        batch_size: images at once; the program compiles once for each size.

    Raises UserError: an image that cannot be read.
    """
    if is_one(images):
        images = [images]
    elif not isinstance(images, Sequence):
        if not hasattr(images, "__array__"):
            raise UserError(f"{type(images).__name__} is no image and no list of images")
        images = list(as_numpy(images))
    found: list[list[Prediction]] = []
    batches = stream(trained, images, top, batch_size=batch_size)
    for result in itertools.chain.from_iterable(batches):
        if result.error:
            raise UserError(result.error)
        found.append(result.predictions)
    return found


def stream(
    trained: Trained,
    images: Sequence[Source],
    top: int = 5,
    *,
    batch_size: int = 32,
    thresholds: Sequence[float] = (),
) -> Generator[list[Answer], None, None]:
    """Do what `predict` does, batch by batch, in order; a broken image is a result too.

    With `thresholds`, one for each class, the classes of an image are those that reach theirs, the
    likeliest first and at most `top`: several, or none.

    All local devices share a batch, which is taken up to a multiple of them. Only a few batches are
    held at a time. Close the iterator, if it is not exhausted, to stop its threads.

    Raises UserError: a model of other images than grey or RGB.
    """
    check_channels(trained)
    if not len(images):
        return
    size = min(batch_size, len(images))
    devices = jax.local_devices()[:size]
    mesh = sharding.make_mesh(sharding.MeshConfig(), devices)
    size = math.ceil(size / len(devices)) * len(devices)
    variables = jax.device_put(trained.variables, NamedSharding(mesh, PartitionSpec()))
    apply, count = make_apply(trained), trained.model.num_classes
    # Of numbers all; of several labels those below their thresholds are left out at the end.
    most = count if trained.gives_numbers else min(top, count)
    top = count if len(thresholds) else most
    loss = None if trained.gives_numbers else trained.loss
    pool = ThreadPoolExecutor(thread_name_prefix="decode")
    read = functools.partial(read_view, trained)

    def decode(start: int) -> _Decoding:
        sources = images[start : start + size]
        return sources, [pool.submit(read, source) for source in sources]

    def compute(decoding: _Decoding) -> tuple[_Decoding, Any]:
        views = {row: view.result() for row, view in enumerate(decoding[1])}
        seen = {row: view for row, view in views.items() if not isinstance(view, str)}
        batch = jax.device_put(as_batch(trained, seen, size), sharding.batch_sharding(mesh))
        return decoding, _rank(variables, batch, apply=apply, loss=loss, top=top)

    try:
        decoded = ahead(range(0, len(images), size), decode, _DECODED)
        for decoding, ranked in ahead(decoded, compute, _COMPUTED):
            ids, values = (np.asarray(array).tolist() for array in ranked)
            # The last batch has rows of padding.
            rows = zip(*decoding, ids, values, strict=False)
            found = [_answer(trained.class_names, *row) for row in rows]
            yield [_above(each, thresholds, most) for each in found] if len(thresholds) else found
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _answer(
    names: Sequence[str], source: Source, view: Future, ids: list[int], values: list[float]
) -> Answer:
    error = view.result()
    if isinstance(error, str):
        return Answer(source, [], error)
    pairs = zip(ids, values, strict=True)
    return Answer(source, [Prediction(k, names[k], value) for k, value in pairs])


def _above(answer: Answer, thresholds: Sequence[float], most: int) -> Answer:
    """Keep the classes that reach their thresholds, at most so many."""
    kept = [x for x in answer.predictions if x.probability >= thresholds[x.class_id]]
    return answer._replace(predictions=kept[:most])


# One function for all calls: another call with the same model does not compile again.
@functools.partial(jax.jit, static_argnames=("apply", "loss", "top"))
def _rank(
    variables: Any, batch: Mapping[str, Array], *, apply: Forward, loss: Loss | None, top: int
) -> tuple[Int32[Array, "B top"], Float32[Array, "B top"]]:
    logits = of_batch(apply, variables, batch).logits.astype(jnp.float32)
    if loss is None:  # numbers, in their order
        return jnp.broadcast_to(jnp.arange(top, dtype=jnp.int32), logits.shape), logits
    # By logits, of which fewer are equal; ties go to the lower class id, as in evaluation.
    ids = jax.lax.top_k(logits, top)[1]
    return ids, jnp.take_along_axis(probabilities(logits, loss), ids, axis=-1)
