# SPDX-License-Identifier: Apache-2.0
"""A step finds its batch prepared and on its way to the device, as bytes."""

import contextlib
import time

import jax.numpy as jnp
import pytest

from tests.photos import write_folder
from vit_jax import data, models, objectives
from vit_jax.config.tree import Config
from vit_jax.data.stream import prefetch
from vit_jax.devices import sharding
from vit_jax.train.batches import device_batches

PREFETCH = 2


@pytest.fixture
def run(tmp_path):
    """The stream of a run on JPEG files."""
    write_folder(tmp_path, {"train": 8}, ("cat", "dog"))
    cfg = Config(
        model=models.variant("vit_ti16", image_size=(32, 32), num_classes=2),
        data=data.DataConfig(
            name=f"folder:{tmp_path}",
            batch_size=8,
            prefetch=PREFETCH,
            transform=data.TransformConfig(crop=data.Crop.INCEPTION, flip=True),
        ),
    )
    source = data.open_source(cfg.data.name)
    objective = objectives.create(cfg.objective, cfg.model, cfg.data)
    return cfg.data, objective, source, sharding.make_mesh(cfg.mesh)


def test_a_step_slower_than_the_pipeline_never_waits(run, monkeypatch):
    """While a step lasts, the pipeline does its work unasked, so the next step finds a batch.

    Here a step lasts until the pipeline has nothing left to do, however loaded the machine is.
    """
    pipelines, waited = [], []
    take = prefetch.Threads.__next__

    def asked(self):
        pipelines.append(self)
        waited.append(not self._ahead[0].done())
        return take(self)

    monkeypatch.setattr(prefetch.Threads, "__next__", asked)
    with contextlib.closing(device_batches(*run, seed=0, start=0)) as batches:
        for _ in range(10):
            next(batches)
            limit = time.monotonic() + 60
            ahead = pipelines[0]._ahead
            assert len(ahead) == PREFETCH
            while not all(batch.done() for batch in ahead):
                assert time.monotonic() < limit, "nothing is prepared unasked"
                time.sleep(0.001)
    assert len(waited) == 10
    assert not any(waited[1:])


def test_batches_travel_as_bytes_and_none_is_read_for_no_step(run, monkeypatch):
    """The host runs ahead of the device (Meter), so a batch travels while earlier steps compute."""
    transfers = []
    place = sharding.global_batch

    def placed(arrays, mesh, *, batch_size):
        transfers.append(sorted((key, str(x.dtype)) for key, x in arrays.items()))
        return place(arrays, mesh, batch_size=batch_size)

    monkeypatch.setattr(sharding, "global_batch", placed)
    with contextlib.closing(device_batches(*run, seed=0, start=0)) as batches:
        for step in range(3):
            batch = next(batches)
            assert batch["image"].dtype == jnp.uint8
            assert batch["image"].shape == (8, 32, 32, 3)
            assert len(transfers) == step + 1
    assert transfers[0] == [("image", "uint8"), ("label", "int32")]
