# SPDX-License-Identifier: Apache-2.0
"""How far predicted depths are from the true ones, as NYU and KITTI are measured.

Eigen et al. 2014 (arXiv:1406.2283 section 4): errors of the pixels whose depth is known, of each
image by itself, and then their mean over images (facebookresearch/dinov3 eval/depth/metrics.py).
"""

import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Float32, UInt8

from vit_jax.data import Reading, Source, reading, target_of
from vit_jax.data.images import ops
from vit_jax.data.images.decode import decode
from vit_jax.devices import hosts, sharding
from vit_jax.errors import UserError
from vit_jax.evals.base import EvalContext, Folder, Predict, Predictors
from vit_jax.evals.config import DepthCrop, DepthEval
from vit_jax.evals.passes import Pass, run_pass, ticking
from vit_jax.evals.probes.features import predict_batch
from vit_jax.models.resample import bilinear
from vit_jax.trees import PyTree

METRICS = ("rmse", "abs_rel", "log10", "delta1", "delta2", "delta3")
_EIGEN = (slice(45, 471), slice(41, 601)), (480, 640)  # rows and columns, of images of NYU's size


def errors(
    found: Float[np.ndarray, "h w"],
    truth: Float[np.ndarray, "h w"],
    valid: Bool[np.ndarray, "h w"],
) -> tuple[float, ...]:
    """Return the `METRICS` of an image over its valid pixels.

    Root mean square, mean |d - t| / t, mean |log10 d - log10 t|, and the shares of the pixels where
    max(d / t, t / d) is below 1.25, its square and its cube.
    """
    d, t = (x[valid].astype(np.float64) for x in (found, truth))
    ratio = np.maximum(d / t, t / d)
    deltas = ((ratio < 1.25**k).mean() for k in (1, 2, 3))
    rmse, log10 = np.sqrt(np.square(d - t).mean()), np.abs(np.log10(d) - np.log10(t)).mean()
    return tuple(float(x) for x in (rmse, (np.abs(d - t) / t).mean(), log10, *deltas))


def valid_pixels(
    truth: Float[np.ndarray, "h w"], least: float, most: float, crop: DepthCrop
) -> Bool[np.ndarray, "h w"]:
    """Return which pixels are measured: of known depth between two bounds, and in the crop.

    Raises UserError: a crop of another size of images.
    """
    valid = (truth > least) & (truth < most)
    if crop is DepthCrop.EIGEN:
        (rows, columns), size = _EIGEN
        if truth.shape != size:
            own = "{}x{}".format(*truth.shape)
            raise UserError("crop=eigen is of {}x{}, and an image is {}".format(*size, own))
        inside = np.zeros(size, bool)
        inside[rows, columns] = True
        valid &= inside
    return valid


def resized(found: Float[np.ndarray, "H W"], size: tuple[int, int]) -> Float32[np.ndarray, "h w"]:
    """Bring a map of depths to an image's (height, width) bilinearly, half-pixel centres."""
    rows, columns = (_matrix(old, new) for old, new in zip(found.shape, size, strict=True))
    return (rows @ found @ columns.T).astype(np.float32)


@functools.lru_cache(maxsize=16)
def _matrix(old: int, new: int) -> Float32[np.ndarray, "new old"]:
    return bilinear(old, new).astype(np.float32)


class DepthErrors:
    """Evaluator of depths over one split."""

    def __init__(self, cfg: DepthEval, context: EvalContext) -> None:
        """Prepare the split under ""."""
        self._cfg, self._context = cfg, context
        self._source = context.sources[""]
        self._size = cfg.size(context.image_size)

    def run(
        self, predictors: Predictors, variables: PyTree, report_dir: Folder = None, of: str = ""
    ) -> dict[str, float]:
        """Return the `METRICS`, means over the images with a measured pixel, and num_examples.

        Raises UserError: an image or its depths that cannot be read, or no image with any.
        """
        del report_dir, of
        mesh, source = self._context.mesh, self._source
        predict = _mirrored(predictors["depth"]) if self._cfg.flip else predictors["depth"]
        found: dict[int, tuple[float, ...]] = {}
        own: set[int] = set()

        def start(size: int) -> Pass:
            for number, batch in enumerate(self._batches(size, own)):
                yield {**batch, "first": np.full(len(batch["mask"]), number * size, np.int32)}

        def compute(batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
            rest = {"first": batch.pop("first"), "mask": batch.pop("mask")}
            return predict_batch(variables, batch, rest, predict=predict, mesh=mesh)

        def take(result: dict[str, jax.Array]) -> None:
            depths, first = np.asarray(result["features"]), int(np.asarray(result["first"])[0])
            for row, depth in enumerate(depths):
                if first + row in own and (measured := self._measured(first + row, depth)):
                    found[first + row] = measured

        tick = self._context.tick
        batch_size = self._cfg.batch_size or self._context.data.batch_size
        run_pass(ticking(start, tick) if tick else start, batch_size, mesh, compute, take)
        rows = {int(i): row for each in hosts.gather(list(found.items())) for i, row in each}
        if not rows:
            raise UserError(f"{source.name} has no pixel of known depth to evaluate on")
        columns = zip(*(rows[i] for i in sorted(rows)), strict=True)
        # fsum rounds once, so that the order and size of the batches have no effect.
        means = {n: math.fsum(x) / len(rows) for n, x in zip(METRICS, columns, strict=True)}
        return {**means, "num_examples": float(len(rows))}

    def _batches(self, size: int, own: set[int]) -> Iterator[dict[str, np.ndarray]]:
        """Yield this process's rows of batches of resized images; note in `own` which they are."""
        rows = sharding.batch_rows(self._context.mesh, size)
        shape = (*self._size, self._context.channels)
        rules, kind = reading(self._context.data), self._cfg.transform.resize
        for start in range(0, len(self._source), size):
            images = np.zeros((len(rows), *shape), _dtype(rules))
            mask = np.zeros(len(rows), np.float32)
            for at, row in enumerate(rows.tolist()):
                if (index := start + row) < len(self._source):
                    image = _read(self._source, index, shape[-1], rules)
                    images[at], mask[at] = ops.resize(image, self._size, kind), 1
                    own.add(index)
            yield {"image": images, "mask": mask}

    def _measured(self, index: int, depth: Float[np.ndarray, "H W"]) -> tuple[float, ...]:
        """Return the errors of an image's depths, () if it has no valid pixel."""
        cfg = self._cfg
        try:
            truth = target_of(self._source, index).depth
        except ValueError as error:
            name = self._source.example_id(index)
            raise UserError(f"{self._source.name}: {name}: {error}") from None
        assert truth is not None, "check_sources has asked for depths"
        valid = valid_pixels(truth, cfg.min_depth, cfg.max_depth, cfg.crop)
        if not valid.any():
            return ()
        own = resized(depth, truth.shape)
        return errors(own.clip(cfg.min_depth, cfg.max_depth), truth, valid)


def _read(source: Source, index: int, channels: int, rules: Reading) -> UInt8[np.ndarray, "H W C"]:
    name = source.example_id(index)
    try:
        return decode(source.read(index)["image"], channels, rules, name=lambda: name)
    except ValueError as error:
        raise UserError(f"{source.name}: {name} cannot be read: {error}") from None


def _dtype(rules: Reading) -> np.dtype:
    return np.dtype(rules.dtype.value if rules.bands else np.uint8)


@functools.lru_cache(maxsize=8)  # one function object each, so that jit finds its program
def _mirrored(predict: Predict) -> Predict:
    """Average depths with those of the mirrored image, turned back."""

    def both(variables: PyTree, batch: Mapping[str, jax.Array]) -> jax.Array:
        other: Any = predict(variables, {**batch, "image": jnp.flip(batch["image"], axis=2)})
        return (predict(variables, batch) + jnp.flip(other, axis=2)) / 2

    return both


def create(cfg: DepthEval, context: EvalContext) -> DepthErrors:
    """Build the evaluator of a split."""
    return DepthErrors(cfg, context)
