# SPDX-License-Identifier: Apache-2.0
"""The seam for evaluations: their context, and the protocol of an evaluator."""

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import jax
from jax.sharding import Mesh

from vit_jax import data
from vit_jax.data import DataConfig, Source, one_view, reading
from vit_jax.data.sources import look
from vit_jax.devices import sharding
from vit_jax.errors import setting
from vit_jax.evals.config import EvalConfig
from vit_jax.evals.passes import Pass, keep_passes, ticking
from vit_jax.models.losses import Loss
from vit_jax.trees import PyTree

# (variables, batch of the data) -> one row for each example, in evaluation mode
Predict = Callable[[PyTree, Mapping[str, jax.Array]], jax.Array]
Predictors = Mapping[str, Predict]
Folder = str | os.PathLike[str] | None


@runtime_checkable
class Evaluator(Protocol):
    """What the training loop calls."""

    def run(
        self, predictors: Predictors, variables: PyTree, report_dir: Folder = None, of: str = ""
    ) -> dict[str, float]:
        """Return metrics by name; with `report_dir`, write files there as well.

        `of` says in their pictures whose variables these are: "step 1,616, the last".
        """
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalContext:
    """What an evaluator is built from besides its config."""

    data: DataConfig  # the run's, for reading options
    sources: Mapping[str, Source]  # by name, as in `EvalConfig.splits`
    image_size: tuple[int, int]  # (H, W) the model takes
    channels: int  # of the images
    mesh: Mesh
    patch: tuple[int, int] = (0, 0)  # of a model of native images, (rows, columns)
    loss: Loss | None = Loss.SOFTMAX  # that trains the logits; None without logits
    name: str = ""  # of the evaluation, for messages and pictures
    tokenizer: Any = None  # of an objective of images and texts
    tick: Callable[[], None] | None = None  # called after each batch, for a watchdog


class EvalStream:
    """Passes over one split, from memory if the decoded split fits into it."""

    def __init__(self, cfg: EvalConfig, context: EvalContext, which: str = "") -> None:
        """Prepare one of the evaluation's splits, by name."""
        self.source = context.sources[which]
        self.batch_size = cfg.batch_size or context.data.batch_size
        self.name = context.name or self.source.name
        padded = math.ceil(len(self.source) / self.batch_size) * self.batch_size
        rules = reading(context.data)
        views = one_view(
            cfg.transform, context.image_size, context.channels, rules, patch=context.patch
        )
        pixels = math.prod(views["image"].shape)
        num_bytes = int(padded * sharding.own_share(context.mesh)) * pixels
        num_bytes *= views["image"].dtype.itemsize

        def batches(batch_size: int) -> Pass:
            return data.eval_batches(
                self.source,
                views,
                fields=tuple(self.source.spec),
                batch_size=batch_size,
                rows=sharding.batch_rows(context.mesh, batch_size),
                num_threads=context.data.num_threads,
                num_workers=context.data.num_workers,
                prefetch=context.data.prefetch,
            )

        # Each pass yields this process's rows of global batches of a given size.
        self.batches = keep_passes(batches) if num_bytes <= data.MAX_CACHED_BYTES else batches
        if context.tick is not None:
            self.batches = ticking(self.batches, context.tick)


@look.once()
def open_splits(cfg: EvalConfig, data_cfg: DataConfig, field: str = "") -> dict[str, Source]:
    """Open the splits of an evaluation; those of the training set keep its `data.classes`.

    `field` is the evaluation's own, "evals.val", for the message on a split that does not exist.

    Raises UserError: no such dataset or split.
    """
    name = cfg.dataset or data_cfg.name
    own = name == data_cfg.name
    classes = data_cfg.classes if own else ()
    sources: dict[str, Source] = {}
    for key, split in cfg.splits.items():
        flag = setting(f"config.{field}.{f'{key}_split' if key else 'split'}")
        named = data.split_of(flag, in_training=own)
        with named if field else contextlib.nullcontext():
            sources[key] = data.open_source(
                name,
                data_cfg.data_dir,
                split,
                cache=data_cfg.cache,
                classes=classes,
                bands=data_cfg.bands,
                captions=data.Captions.NEEDED if cfg.needs_captions else data.Captions.UNREAD,
                target=cfg.needs_target,
            )
    return sources
