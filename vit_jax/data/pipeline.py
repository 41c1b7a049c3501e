# SPDX-License-Identifier: Apache-2.0
"""Batches as a pure function of (seed, step), prepared ahead by threads or processes.

Example i of step s is element s * B + i of an infinite stream that is reshuffled every epoch, and
whatever is drawn at random for it depends on the seed and that number alone. So resuming needs the
step and nothing else, and the batches are the same for any number of threads, workers and hosts.
"""

import math
import os
import sys

import jax
import numpy as np
from jaxtyping import Int

from vit_jax.data.batches import Batches, label_dtype
from vit_jax.data.checks import check_fixed
from vit_jax.data.config import DataConfig, TransformConfig, mean_color
from vit_jax.data.prefetch import BatchIterator
from vit_jax.data.sources import Source
from vit_jax.data.transform import Transform

# Below this many values an image is quicker decoded than handed to another Python thread.
_TINY = 4096


def train_batches(
    source: Source,
    cfg: DataConfig,
    *,
    image_size: tuple[int, int],
    channels: int,
    seed: int,
    start_step: int = 0,
    rows: Int[np.ndarray, " b"] | None = None,
) -> BatchIterator:
    """Stream some rows of every training batch from `start_step` on, without end.

    Args:
        source: what to read; `cfg.name` and `cfg.train_split` are not looked at.
        cfg: batch size, transform and the mean it fills with, repeats, whether broken examples are
            replaced, threads and workers.
        image_size: (height, width) the model takes.
        channels: 1 or 3.
        seed: of the order and of every random crop and augmentation.
        start_step: the first batch, counted from 0.
        rows: which of the global batch are wanted, in ascending order; None is all of them.

    Returns:
        Batches: image uint8 (b, H, W, C), label int32 (b,) or multi-hot uint8 (b, K), index int32
        (b,), the example's number in the source; broken int32 (b,), the number of the example in
        whose place it is, else -1, and reason (b,) bytes, what is wrong with that one; b =
        batch_size / process_count.

    Raises:
        UserError: the batch cannot be divided evenly.
        DataError: while iterating, at the batch that it is in: an example that cannot be used; with
            `cfg.max_broken`, more than so many in a row.
    """
    batches = Batches(
        source,
        Transform(
            cfg=cfg.transform,
            image_size=image_size,
            channels=channels,
            exact=False,
            fill=mean_color(cfg),
        ),
        batch_size=cfg.batch_size,
        rows=np.arange(cfg.batch_size) if rows is None else rows,
        length=sys.maxsize,
        num_threads=_num_threads(cfg.num_threads, cfg.num_workers, image_size, channels),
        seed=seed,
        first=start_step,
        repeats=cfg.repeats,
        max_broken=cfg.max_broken,
    )
    return BatchIterator(batches, num_workers=cfg.num_workers, prefetch=cfg.prefetch)


def eval_batches(
    source: Source,
    transform: TransformConfig,
    *,
    batch_size: int,
    image_size: tuple[int, int],
    channels: int,
    rows: Int[np.ndarray, " b"] | None = None,
    num_threads: int = 0,
    num_workers: int = 0,
    prefetch: int = 2,
) -> BatchIterator:
    """Stream every example once, in the stored order, the last batch padded.

    All processes yield the same number of batches. Arguments are as in `train_batches`.

    Returns:
        Batches of image, label and index as `train_batches` gives, and mask float32 (b,): 1 for an
        example, 0 for padding (image 0, label 0, index -1).

    Raises:
        UserError: a transform that draws at random.
        DataError: while iterating, an example that cannot be used: each counts exactly once.
    """
    check_fixed(transform)
    batches = Batches(
        source,
        Transform(cfg=transform, image_size=image_size, channels=channels, exact=True),
        batch_size=batch_size,
        rows=np.arange(batch_size) if rows is None else rows,
        length=math.ceil(len(source) / batch_size),
        num_threads=_num_threads(num_threads, num_workers, image_size, channels),
        seed=None,
    )
    return BatchIterator(batches, num_workers=num_workers, prefetch=prefetch)


def batch_spec(
    source: Source,
    *,
    batch_size: int,
    image_size: tuple[int, int],
    channels: int,
    masked: bool = False,
) -> dict[str, jax.ShapeDtypeStruct]:
    """Return shape and dtype of each array of a global batch; `masked` for an evaluation's.

    Without `broken` and `reason`, which stay on the host.
    """
    rows = (batch_size,)
    classes = (source.num_classes,) if source.multi_label else ()
    spec = {
        "image": jax.ShapeDtypeStruct((*rows, *image_size, channels), np.uint8),
        "label": jax.ShapeDtypeStruct(rows + classes, label_dtype(source)),
        "index": jax.ShapeDtypeStruct(rows, np.int32),
    }
    return spec | ({"mask": jax.ShapeDtypeStruct(rows, np.float32)} if masked else {})


def _num_threads(asked: int, num_workers: int, image_size: tuple[int, int], channels: int) -> int:
    if asked:
        return asked
    if math.prod(image_size) * channels <= _TINY:
        return 1
    affinity = getattr(os, "sched_getaffinity", None)  # Linux: the cores this process may use
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, 2 * cores // max(num_workers, 1))
