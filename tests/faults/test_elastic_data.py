# SPDX-License-Identifier: Apache-2.0
"""A run that continues with other loader workers and hosts sees the examples it would have seen."""

import itertools

import numpy as np
import pytest

from tests.photos import write_folder
from vit_jax import data

BATCH = 8


def take(source, count, start_step, host, hosts, num_workers):
    transform = data.TransformConfig(crop=data.Crop.RANDOM_RESIZED, flip=True)
    cfg = data.DataConfig(batch_size=BATCH, transform=transform, num_workers=num_workers)
    batches = data.train_batches(
        source,
        cfg,
        views=data.one_view(cfg.transform, (16, 16), 3),
        seed=5,
        start_step=start_step,
        rows=np.split(np.arange(BATCH), hosts)[host],
    )
    with batches:
        return list(itertools.islice(batches, count))


@pytest.mark.slow
def test_workers_0_to_2_and_hosts_1_to_2_leave_the_global_order_as_it_was(tmp_path):
    write_folder(tmp_path, {"train": 10}, ("cat", "dog"))
    source = data.open_source(f"folder:{tmp_path}")
    steps, stopped = 6, 2  # of 20 examples: beyond the second epoch
    reference = take(source, steps, 0, 0, 1, num_workers=0)
    rest = steps - stopped
    shares = [take(source, rest, stopped, i, 2, num_workers) for i, num_workers in ((0, 2), (1, 0))]
    for step, (one, two) in enumerate(zip(*shares, strict=True), stopped):
        for key, whole in reference[step].items():
            np.testing.assert_array_equal(np.concatenate([one[key], two[key]]), whole)
