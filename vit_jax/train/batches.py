# SPDX-License-Identifier: Apache-2.0
"""The training stream on the devices: global batches, each with what is cached for it."""

import contextlib
from collections.abc import Callable, Generator, Mapping

import jax
import numpy as np
from jax.sharding import Mesh

from vit_jax import data
from vit_jax.data import DataConfig
from vit_jax.devices import sharding
from vit_jax.objectives import Objective
from vit_jax.train.health.unreadable import Unreadable

Rows = Callable[[np.ndarray], Mapping[str, np.ndarray]]


def device_batches(
    cfg: DataConfig,
    objective: Objective,
    source: data.Source,
    mesh: Mesh,
    *,
    seed: int,
    start: int,
    rows: Rows | None = None,
    unreadable: Unreadable | None = None,
) -> Generator[dict[str, jax.Array], None, None]:
    """Yield global batches of the objective's arrays from step `start` on.

    Host-to-device transfer overlaps with earlier steps, which run asynchronously. Every process
    reads the rows of each batch that its devices hold.

    Args:
        cfg: batch size and reading options.
        objective: names the views and fields of a batch.
        source: the training split.
        mesh: the devices.
        seed: the run's.
        start: the first step.
        rows: further arrays by positions of the stream [n], as `Extras.rows`.
        unreadable: counts examples that cannot be read.

    Raises DataError: more unreadable examples than data.max_broken.
    """
    if unreadable is None:
        unreadable = Unreadable(cfg.max_broken, source.example_id)
    size = cfg.pack or cfg.batch_size
    own = sharding.batch_rows(mesh, size)  # the rows of the batch that are read here
    batches = data.train_batches(
        source,
        cfg,
        views=objective.views,
        fields=objective.fields,
        seed=seed,
        start_step=start,
        rows=own,
    )
    names = (*objective.views, data.GRIDS, *objective.fields)
    with contextlib.closing(batches):
        for step, batch in enumerate(batches, start):
            unreadable.add(batch)
            arrays = {name: batch[name] for name in names if name in batch}
            if rows is not None:
                arrays |= rows(step * cfg.batch_size + own)
            yield sharding.global_batch(arrays, mesh, batch_size=size)
