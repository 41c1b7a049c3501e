# SPDX-License-Identifier: Apache-2.0
"""A run's teacher: weights or cached logits, read and checked before a device is filled."""

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import data, models, sharding, trees, weights
from vit_jax.config import Config
from vit_jax.data import mix
from vit_jax.errors import UserError
from vit_jax.models import DType
from vit_jax.objectives import Distillation
from vit_jax.objectives.distill import INDEX, LOGITS, REST, TOP
from vit_jax.sharding import MeshConfig
from vit_jax.train import build as build_lib
from vit_jax.train import logit_cache
from vit_jax.train.logit_cache import LogitCache

PyTree = Any
ROWS = 8  # compared at a time with the live teacher
# How far a cached logit may be from the live one, relative to the largest of its row: float16
# rounds by 2**-11, TensorFloat-32 by as much in each layer, bfloat16 by 2**-8.
_ROUNDING = {DType.FLOAT32: 2**-7, DType.BFLOAT16: 2**-4}


@dataclasses.dataclass(frozen=True)
class Teacher:
    """What a run takes from its teacher; all empty for a run without.

    Attributes:
        frozen: {"teacher": its variables}, on the host; {} where the logits are cached.
        digest: of the weights.
        cache: the logits.
    """

    frozen: PyTree
    digest: str
    cache: LogitCache | None


def check(cfg: Config) -> None:
    """Compare every key and shape of the teacher's weights with its model's, reading no array.

    Raises:
        UserError: weights that are not there or do not fit; a cache that is not there.
    """
    if cfg.objective.distill.cache:
        logit_cache.read(cfg.objective.distill.cache)
    elif cfg.objective.distill.kind is not Distillation.NONE:
        _read_flat(cfg, only_check=True)


def read(cfg: Config, source: data.Source, positions: int) -> Teacher:
    """Read the teacher of a run that sees `positions` examples of `source`.

    Cached logits are compared with their checksums, and a few of them with the live teacher's where
    its weights can be read.

    Raises:
        UserError: weights that are not there or do not fit; a cache of something else.
    """
    distill = cfg.objective.distill
    if distill.kind is Distillation.NONE:
        return Teacher({}, "", None)
    if not distill.cache:
        variables, digest = read_weights(cfg)
        return Teacher({"teacher": variables}, digest, None)
    cache = logit_cache.read(distill.cache)
    logit_cache.check_stream(cache, logit_cache.stream(cfg, source, cache.weights))
    logit_cache.check_temperature(cache, distill)
    logit_cache.check_length(cache, positions)
    cache.check_rows(positions)
    if distill.weights:
        _compare(cache, cfg, source, positions)
    return Teacher({}, cache.weights, cache)


def _compare(cache: LogitCache, cfg: Config, source: data.Source, positions: int) -> None:
    try:
        variables, digest = read_weights(cfg)
    except UserError as error:
        if jax.process_count() > 1:  # the others may well read them, and would wait
            raise
        print(f"cached logits are not compared with the live teacher: {error}", flush=True)
        return
    logit_cache.check_stream(cache, logit_cache.stream(cfg, source, digest))
    for start in (0, max(positions - ROWS, 0)):
        verify(cache, cfg, source, variables, start)


def read_weights(cfg: Config) -> tuple[PyTree, str]:
    """Read the teacher's variables, as numpy, with the digest of them all.

    Raises:
        UserError: weights that are not there, are damaged, or do not fit.
    """
    values = _read_flat(cfg)
    digest = hashlib.sha256()
    for name in sorted(values):
        digest.update(f"{name} {values[name].shape} ".encode())
        digest.update(values[name].tobytes())
    return trees.nest(values), digest.hexdigest()[:16]


def _read_flat(cfg: Config, *, only_check: bool = False) -> Mapping[str, np.ndarray]:
    distill = cfg.objective.distill
    return weights.read(
        distill.weights,
        distill.teacher,
        field="objective.distill.weights",
        ema=distill.ema,
        only_check=only_check,
    )


def place(variables: PyTree, abstract: PyTree) -> PyTree:
    """Put variables of the host into the shardings of `abstract`; each process has them whole."""

    def put(leaf: jax.ShapeDtypeStruct, value: np.ndarray) -> jax.Array:
        return jax.make_array_from_callback(
            leaf.shape, leaf.sharding, lambda at: value[at].astype(leaf.dtype)
        )

    return jax.tree.map(put, abstract, variables)


def check_unchanged(teacher: Teacher, metadata: Mapping[str, Any], directory: Path) -> None:
    """Refuse to continue a run with a teacher of other weights.

    Raises:
        UserError: with both digests.
    """
    before = metadata.get("teacher", "")
    if teacher.digest != before:
        raise UserError(
            f"objective.distill.weights are not those that {directory} was started with (digest "
            f"{teacher.digest or 'none'}, not {before or 'none'}); choose another workdir, or add "
            "--allow_config_change to continue from its checkpoint anyway"
        )


def verify(
    cache: LogitCache, cfg: Config, source: data.Source, variables: PyTree, start: int
) -> None:
    """Compare a few rows from position `start` on with the live teacher's logits.

    Raises:
        UserError: they differ by more than rounding.
    """
    stop = min(start + ROWS, cache.done)
    images = _images(cfg, source, start, stop)
    # On one device of this process, whatever the mesh: a few images are no work to share.
    with jax.set_mesh(sharding.make_mesh(MeshConfig(), [jax.local_devices()[0]])):
        live = np.asarray(jax.jit(make_predict(cfg))(variables, images))
    rows = cache.rows(np.arange(start, stop))
    error = _difference(rows, live, cache.temperature) / np.maximum(np.abs(live).max(axis=1), 1e-6)
    limit = _ROUNDING[cfg.objective.distill.teacher.dtype]
    if not (error <= limit).all():
        raise UserError(
            f"{cache.place} does not hold what the teacher says: at position "
            f"{start + int(error.argmax()):,} a logit differs by {error.max():.1%} of the largest; "
            "was it written by another version? Write it again"
        )


def make_predict(cfg: Config) -> build_lib.Predict:
    """Return (the teacher's variables, uint8 images of the stream) -> logits."""
    teacher = build_lib.make_teacher(cfg)

    def predict(variables: PyTree, image: jax.Array) -> jax.Array:
        return teacher(variables, mix.normalize(image, cfg.data.mean, cfg.data.std))

    return predict


def _images(cfg: Config, source: data.Source, start: int, stop: int) -> np.ndarray:
    """Read the images of some positions of the stream, on this process alone."""
    one = dataclasses.replace(cfg.data, batch_size=1, num_workers=0, num_threads=1, prefetch=1)
    height, width, channels = models.input_shape(cfg.model)
    batches = data.train_batches(
        source,
        one,
        image_size=(height, width),
        channels=channels,
        seed=cfg.seed,
        start_step=start,
    )
    with batches:
        return np.concatenate([next(batches)["image"] for _ in range(start, stop)])


def _difference(rows: Mapping[str, np.ndarray], live: np.ndarray, temperature: float) -> np.ndarray:
    """Return the largest difference of each row."""
    if LOGITS in rows:
        return np.abs(rows[LOGITS].astype(np.float32) - live).max(axis=1)
    # Not of `compact` again, whose largest may be others where logits are as good as equal.
    index = rows[INDEX].astype(np.int64)
    top = np.abs(rows[TOP].astype(np.float32) - np.take_along_axis(live, index, axis=1))
    others = live / temperature
    np.put_along_axis(others, index, -np.inf, axis=1)
    total = np.asarray(jax.nn.logsumexp(jnp.asarray(others), axis=1))
    rest = temperature * (total - np.log(live.shape[1] - index.shape[1]))
    return np.maximum(top.max(axis=1), np.abs(rest - rows[REST]))
