# SPDX-License-Identifier: Apache-2.0
"""The training stream on the devices: global batches, each with what is cached for it."""

import contextlib
from collections.abc import Generator

import jax
from jax.sharding import Mesh

from vit_jax import data, models, sharding
from vit_jax.config import Config
from vit_jax.train.broken import Broken
from vit_jax.train.logit_cache import LogitCache


def device_batches(
    cfg: Config,
    source: data.Source,
    mesh: Mesh,
    start: int,
    cache: LogitCache | None = None,
    broken: Broken | None = None,
) -> Generator[dict[str, jax.Array], None, None]:
    """Yield global batches from step `start` on, each on its way to the devices.

    Its transfer goes on beside the steps before it, which the host does not wait for (`Meter`).
    Every process reads the rows of each that its devices hold, of the images and of the teacher's
    cached logits.

    Raises:
        DataError: more broken examples than data.max_broken, which `broken` counts.
    """
    if broken is None:
        broken = Broken(cfg.data.max_broken, source.example_id)
    height, width, channels = models.input_shape(cfg.model)
    rows = sharding.batch_rows(mesh, cfg.data.batch_size)
    batches = data.train_batches(
        source,
        cfg.data,
        image_size=(height, width),
        channels=channels,
        seed=cfg.seed,
        start_step=start,
        rows=rows,
    )
    with contextlib.closing(batches):
        for step, batch in enumerate(batches, start):
            broken.note(batch)
            arrays = {key: batch[key] for key in ("image", "label")}
            if cache is not None:
                arrays |= cache.rows(step * cfg.data.batch_size + rows)
            yield sharding.global_batch(arrays, mesh, batch_size=cfg.data.batch_size)
