# SPDX-License-Identifier: Apache-2.0
"""A run's teacher: weights or cached logits, read and checked before a device is filled."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vit_jax import data, models, trees, weights
from vit_jax.data import classes, one_view, reading
from vit_jax.data.augment import mix
from vit_jax.devices import sharding
from vit_jax.devices.sharding import MeshConfig
from vit_jax.distill import cache as cache_lib
from vit_jax.distill import stream as stream_lib
from vit_jax.distill.cache import INDEX, LOGITS, REST, TOP, LogitCache
from vit_jax.distill.config import FIELD, TeacherConfig, of_student
from vit_jax.distill.stream import Stream
from vit_jax.errors import UserError
from vit_jax.models import DType
from vit_jax.trees import PyTree
from vit_jax.weights import heads
from vit_jax.weights.files import digest

Teacher = Callable[[Any, Float[Array, "B H W C"]], Float[Array, "B K"]]
ROWS = 8  # compared at a time with the live teacher
# How far a cached logit may be from the live one, relative to the largest of its row: float16
# rounds by 2**-11, TensorFloat-32 by as much in each layer, bfloat16 by 2**-8.
_ROUNDING = {DType.FLOAT32: 2**-7, DType.BFLOAT16: 2**-4}


def check_source(cfg: TeacherConfig) -> None:
    """Raise UserError if the cache is missing, or the weights by names and shapes do not fit."""
    if cfg.cache:
        cache_lib.read(cfg.cache)
    else:
        _read_flat(cfg, only_check=True)


def open_teacher(stream: Stream, positions: int) -> tuple[PyTree | None, str, LogitCache | None]:
    """Read the teacher of a run of `positions` examples.

    Cached logits are compared with their checksums, and a few of them with the live teacher's where
    its weights can be read.

    Returns its variables or, where its logits are cached, None; its digest; the cache or None.

    Raises UserError: weights that are not there or do not fit; a cache of something else.
    """
    cfg = stream.cfg
    if not cfg.cache:
        return (*read_weights(cfg, stream.source.class_names), None)
    cache = cache_lib.read(cfg.cache)
    names = stream.source.class_names
    stream_lib.check_stream(cache, stream.identity(cache.weights), names)
    stream_lib.check_temperature(cache, cfg)
    stream_lib.check_length(cache, positions)
    cache.check_rows(positions)
    if cfg.weights:
        _compare(cache, stream, positions)
    return None, cache.weights, cache


def _compare(cache: LogitCache, stream: Stream, positions: int) -> None:
    try:
        variables, digest = read_weights(stream.cfg, stream.source.class_names)
    except UserError as error:
        if jax.process_count() > 1:  # the others may well read them, and would wait
            raise
        print(f"cached logits are not compared with the live teacher: {error}", flush=True)
        return
    stream_lib.check_stream(cache, stream.identity(digest), stream.source.class_names)
    for start in (0, max(positions - ROWS, 0)):
        verify(cache, stream, variables, start)


def read_weights(cfg: TeacherConfig, class_names: Sequence[str] = ()) -> tuple[PyTree, str]:
    """Read the teacher's variables, as numpy, with the digest of them all.

    Its head's rows are those of the student's `class_names`, in their order, where the weights name
    their classes (`heads.move`).

    Raises UserError: weights that are not there, are damaged, or do not fit; a teacher that does
    not know one of the classes.
    """
    values = _read_flat(cfg)
    if class_names:
        values = _of_student(cfg, values, class_names)
    return trees.nest(values), digest(values)


def _of_student(
    cfg: TeacherConfig, values: Mapping[str, np.ndarray], class_names: Sequence[str]
) -> Mapping[str, np.ndarray]:
    move, theirs = heads.move(cfg.weights, class_names, ema=cfg.ema), cfg.teacher.num_classes
    ours = f"the student's {len(class_names):,} ({classes.shown(class_names)})"
    if not move.there and theirs != len(class_names):
        raise UserError(
            f"{FIELD}.weights: {cfg.weights} names no classes, and has {theirs:,}, not {ours}; "
            "choose or train another teacher"
        )
    if move.new:
        raise UserError(
            f"{FIELD}.weights: {cfg.weights} does not know {classes.shown(move.new)} of {ours}; "
            f"its {theirs:,} classes are {classes.shown(move.there)}: choose or train another "
            "teacher"
        )
    if move.stays:
        return values
    if jax.process_index() == 0:
        print(f"teacher: {len(class_names):,} of its {theirs:,} classes, by name", flush=True)
    model = of_student(cfg, len(class_names)).teacher
    return heads.moved(values, model, move)


def _read_flat(cfg: TeacherConfig, *, only_check: bool = False) -> Mapping[str, np.ndarray]:
    return weights.read(
        cfg.weights, cfg.teacher, field=f"{FIELD}.weights", ema=cfg.ema, only_check=only_check
    )


def verify(cache: LogitCache, stream: Stream, variables: PyTree, start: int) -> None:
    """Compare a few rows from position `start` on with the live teacher's logits.

    Raises UserError: they differ by more than rounding.
    """
    stop = min(start + ROWS, cache.done)
    images = _images(stream, start, stop)
    # One device of this process computes the few images, whatever the mesh.
    with jax.set_mesh(sharding.make_mesh(MeshConfig(), [jax.local_devices()[0]])):
        live = np.asarray(jax.jit(make_predict(stream))(variables, images))
    rows = cache.rows(np.arange(start, stop))
    error = _difference(rows, live, cache.temperature) / np.maximum(np.abs(live).max(axis=1), 1e-6)
    limit = _ROUNDING[stream.cfg.teacher.dtype]
    if not (error <= limit).all():
        raise UserError(
            f"{cache.path} holds other logits than the teacher's: at position "
            f"{start + int(error.argmax()):,} a logit differs by {error.max():.1%} of the largest; "
            "was it written by another version? Write it again"
        )


def make_predict(stream: Stream) -> Callable[[PyTree, jax.Array], jax.Array]:
    """Return (the teacher's variables, uint8 images of the stream) -> logits."""
    mean, std = stream.data.mean, stream.data.std
    height, width, _ = models.input_shape(stream.model)
    teacher = make_teacher(stream.taught, mean, std, (height, width))

    def predict(variables: PyTree, image: jax.Array) -> jax.Array:
        return teacher(variables, mix.normalize(image, mean, std))

    return predict


def _images(stream: Stream, start: int, stop: int) -> np.ndarray:
    """Read the images of some positions of the stream, on this process alone."""
    one = dataclasses.replace(stream.data, batch_size=1, num_workers=0, num_threads=1, prefetch=1)
    height, width, channels = models.input_shape(stream.model)
    batches = data.train_batches(
        stream.source,
        one,
        views=one_view(one.transform, (height, width), channels, reading(one)),
        seed=stream.seed,
        start_step=start,
    )
    with batches:
        return np.concatenate([next(batches)["image"] for _ in range(start, stop)])


def _difference(rows: Mapping[str, np.ndarray], live: np.ndarray, temperature: float) -> np.ndarray:
    """Return the largest difference of each row."""
    if LOGITS in rows:
        return np.abs(rows[LOGITS].astype(np.float32) - live).max(axis=1)
    # `compact` might choose other indices among nearly equal logits.
    index = rows[INDEX].astype(np.int64)
    top = np.abs(rows[TOP].astype(np.float32) - np.take_along_axis(live, index, axis=1))
    others = live / temperature
    np.put_along_axis(others, index, -np.inf, axis=1)
    total = np.asarray(jax.nn.logsumexp(jnp.asarray(others), axis=1))
    rest = temperature * (total - np.log(live.shape[1] - index.shape[1]))
    return np.maximum(top.max(axis=1), np.abs(rest - rows[REST]))


def make_teacher(
    cfg: TeacherConfig, mean: tuple[float, ...], std: tuple[float, ...], size: tuple[int, int]
) -> Teacher:
    """Build the teacher in evaluation mode, on images as the student gets them.

    They are resized (bicubic with antialiasing, as Pillow and timm) and normalised anew where the
    teacher's image size, mean or std is another; the order of the two makes no difference.

    The student's images are normalised by `mean` and `std`, and of `size` (height, width).
    """
    module = models.create(cfg.teacher)
    height, width, channels = models.input_shape(cfg.teacher)
    new = cfg.mean or mean, cfg.std or std

    def teacher(variables: Any, image: Float[Array, "B H W C"]) -> Float[Array, "B K"]:
        if (height, width) != size:
            shape = (image.shape[0], height, width, channels)
            image = jax.image.resize(image, shape, "cubic", antialias=True)
        if new != (mean, std):
            shift, scale, center, spread = (
                jnp.asarray(value, jnp.float32).reshape(1, 1, 1, -1) for value in (mean, std, *new)
            )
            image = (image * scale + shift - center) / spread
        out: Any = module.apply(variables, image, train=False)
        return out.logits.astype(jnp.float32)

    return teacher
