# SPDX-License-Identifier: Apache-2.0
"""Texts found by images and images by texts: the shares that have their own among the first k.

An image with several captions counts if any of them is among its first k texts, and each caption
counts by itself, as CLIP, big_vision and open_clip do on COCO and Flickr30k. Of equal similarities
the order is left open: an image counts as often as it would over all orders, so that embeddings
that are all alike score what guessing does.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float32, Int

from vit_jax import data
from vit_jax.errors import UserError
from vit_jax.evals.base import EvalContext, EvalStream, Folder, Predictors
from vit_jax.evals.config import RetrievalEval
from vit_jax.evals.probes.features import encode_all
from vit_jax.evals.zero_shot import embedder
from vit_jax.trees import PyTree

K = (1, 5, 10)
_ROWS = 1024  # similarities of so many queries are in memory at a time


def recall(
    images: Float32[np.ndarray, "M E"],
    texts: Float32[np.ndarray, "T E"],
    owner: Int[np.ndarray, " T"],
    k: Sequence[int] = K,
) -> dict[str, float]:
    """Return image_to_text_r<k> and text_to_image_r<k>, shares in [0, 1].

    Args:
        images, texts: unit vectors.
        owner: the image of each text.
        k: numbers of results that count.

    Raises UserError: an image without a text, which nothing can find.
    """
    counts = np.bincount(owner, minlength=len(images))
    if counts.min() < 1:
        raise UserError(f"image {int(counts.argmin())} of {len(images):,} has no text")
    found: dict[str, float] = {}
    by_image = [_chances(row, owner == i, k) for i, row in _rows(images, texts)]
    numbers = np.arange(len(images))
    by_text = [_chances(row, numbers == owner[i], k) for i, row in _rows(texts, images)]
    for name, rows in (("image_to_text", by_image), ("text_to_image", by_text)):
        for n, value in zip(k, np.mean(rows, axis=0), strict=True):
            found[f"{name}_r{n}"] = float(value)
    return found


def _rows(queries: np.ndarray, targets: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each query's number and its similarities."""
    for start in range(0, len(queries), _ROWS):
        block = queries[start : start + _ROWS] @ targets.T
        yield from enumerate(block, start)


def _chances(row: np.ndarray, own: np.ndarray, k: Sequence[int]) -> list[float]:
    """Return for each k how likely an own target is among the first k, equal ones in any order."""
    best = row[own].max()
    before = int((row[~own] > best).sum())
    equal, mine = int((row[~own] == best).sum()), int((row[own] == best).sum())
    return [_chance(n - before, equal, mine) for n in k]


def _chance(places: int, others: int, mine: int) -> float:
    """Return how likely one of `mine` is on one of the first places, among `others` beside it."""
    if places <= 0:
        return 0.0
    if places > others:
        return 1.0
    return 1.0 - math.comb(others, places) / math.comb(others + mine, places)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Retrieval:
    """Evaluator of `recall` over a split, all captions of each image in the stored order."""

    stream: EvalStream
    context: EvalContext
    k: tuple[int, ...]

    def run(
        self, predictors: Predictors, variables: PyTree, report_dir: Folder = None, of: str = ""
    ) -> dict[str, float]:
        """Return recall both ways and num_examples, the images; raises what `recall` does."""
        del report_dir, of
        source, context = self.stream.source, self.context
        captions = data.all_captions(source)
        owner = np.repeat(np.arange(len(captions)), [len(each) for each in captions])
        embed = embedder(predictors["text_embedding"], variables, context)
        texts = embed([text for each in captions for text in each])
        images = np.empty((len(source), texts.shape[1]), np.float32)
        encode_all(
            predictors["image_embedding"],
            variables,
            self.stream.batches,
            {"features": images},
            mesh=context.mesh,
            batch_size=self.stream.batch_size,
            name=source.name,
        )
        return {**recall(images, texts, owner, self.k), "num_examples": float(len(source))}


def create(cfg: RetrievalEval, context: EvalContext) -> Retrieval:
    """Build the evaluator of a config."""
    return Retrieval(stream=EvalStream(cfg, context), context=context, k=cfg.k)
