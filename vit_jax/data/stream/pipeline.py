# SPDX-License-Identifier: Apache-2.0
"""Batches as a pure function of (seed, step), prepared ahead by threads or processes.

Example i of step s is element s * B + i of an infinite stream that is reshuffled every epoch, and
whatever is drawn at random for it depends on the seed and that number alone. So resuming needs the
step and nothing else, and the batches are the same for any number of threads, workers and hosts.
"""

import functools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from vit_jax.data.checks import check_fixed
from vit_jax.data.config import DataConfig, is_native, mean_color
from vit_jax.data.sources.base import Source, balance_of
from vit_jax.data.stream.batches import Batches, BatchIterator, choose
from vit_jax.data.stream.transform import View


def train_batches(
    source: Source,
    cfg: DataConfig,
    *,
    views: Mapping[str, View],
    fields: Sequence[str] = ("label",),
    seed: int,
    start_step: int = 0,
    rows: Int[np.ndarray, " b"] | None = None,
) -> BatchIterator:
    """Stream some rows of every training batch from `start_step` on, without end.

    Args:
        source: what to read; `cfg.name` and `cfg.train_split` are not looked at.
        cfg: all else that a batch depends on.
        views: the images of a batch, by the name of their array.
        fields: other fields of the source that the batch holds.
        seed: of the order and of every random crop and augmentation.
        start_step: the first batch, counted from 0.
        rows: which of the global batch are wanted, in ascending order; None is all of them.

    Returns:
        Batches: each view, uint8 (b, H, W, C) or (b, count, H, W, C); each field, as label int32
        (b,) or multi-hot uint8 (b, K); index int32 (b,), the example's number in the source; broken
        int32 (b,), the index of the unreadable example that it replaces, else -1; reason (b,)
        bytes, the error of that one; b is the number of `rows`. Native images are as
        `NativeBatches` has them; `rows` are then of `cfg.pack`, where it is set. Targets of pixels
        (`targets.FIELDS`) are as `DenseBatches` has them.

    Raises RemoteError: a bucket cannot be read; UserError: `cfg.balance` of images with several
    labels each, or without; while iterating, DataError, at the batch that it is in: an example that
    cannot be used; with `cfg.max_broken`, more than so many in a row.
    """
    rows = np.arange(cfg.pack or cfg.batch_size) if rows is None else rows
    loading = choose(
        source,
        views,
        len(rows),
        num_threads=cfg.num_threads,
        num_workers=cfg.num_workers,
        prefetch=cfg.prefetch,
    )
    dense = {key: getattr(cfg, key) for key in ("max_segments", "min_visible", "redraws")}
    batches = _kind(source, views, fields, cfg.pack, **dense)(
        source=source,
        views=views,
        fields=fields,
        batch_size=cfg.batch_size,
        rows=rows,
        length=sys.maxsize,
        num_threads=loading.num_threads,
        at_once=loading.at_once,
        num_readers=loading.num_readers,
        seed=seed,
        first=start_step,
        repeats=cfg.repeats,
        balance=balance_of(source, cfg.balance),
        max_broken=cfg.max_broken,
        fill=mean_color(cfg),
    )
    return BatchIterator(batches, loading)


def eval_batches(
    source: Source,
    views: Mapping[str, View],
    *,
    fields: Sequence[str] = ("label",),
    batch_size: int,
    rows: Int[np.ndarray, " b"] | None = None,
    num_threads: int = 0,
    num_workers: int = 0,
    prefetch: int = 2,
) -> BatchIterator:
    """Stream every example once, in the stored order, the last batch padded.

    All processes yield the same number of batches. Arguments are as in `train_batches`.

    Returns:
        Batches of views, fields and index as `train_batches` gives, and mask float32 (b,): 1 for an
        example, 0 for padding (image 0, label 0, index -1).

    Raises UserError: a transform that draws at random; RemoteError: a bucket cannot be read; while
    iterating, DataError: an example that cannot be used.
    """
    for view in views.values():
        check_fixed(view.transform)
    rows = np.arange(batch_size) if rows is None else rows
    loading = choose(
        source,
        views,
        len(rows),
        num_threads=num_threads,
        num_workers=num_workers,
        prefetch=prefetch,
    )
    batches = _kind(source, views, fields)(
        source=source,
        views=views,
        fields=fields,
        batch_size=batch_size,
        rows=rows,
        length=math.ceil(len(source) / batch_size),
        num_threads=loading.num_threads,
        at_once=loading.at_once,
        num_readers=loading.num_readers,
        seed=None,
    )
    return BatchIterator(batches, loading)


def _kind(
    source: Source,
    views: Mapping[str, View],
    fields: Sequence[str],
    pack: int = 0,
    **dense: Any,
) -> Callable[..., Batches]:
    if not source.spec.keys() >= set(fields):  # what is not read is made of targets of pixels
        from vit_jax.data.stream.dense import DenseBatches  # late: few runs have such targets

        return functools.partial(DenseBatches, **dense)
    if not any(is_native(view.transform) for view in views.values()):
        return Batches
    from vit_jax.data.stream.native import NativeBatches  # late: most runs have images of one size

    return functools.partial(NativeBatches, pack=pack)
