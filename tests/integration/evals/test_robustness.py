# SPDX-License-Identifier: Apache-2.0
"""Corrupted passes: known answers, one decoding, one compilation, any batch size and devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.devices import sharding
from vit_jax.errors import UserError
from vit_jax.evals import Classify, corruptions, robustness

IMAGES = np.random.default_rng(0).integers(0, 256, (11, 8, 8, 1)).astype(np.uint8)
VARIANTS = [("brightness", 1), ("brightness", 5), ("gaussian_noise", 3)]


def shade(variables, batch):
    """Predict in which of 64 bands the mean level lies."""
    band = batch["image"].astype(jnp.float32).mean(axis=(1, 2, 3)) // 4
    return jax.nn.one_hot(band.astype(int), 64) * variables


def bands(images):
    return np.array([int(image.mean() // 4) for image in images], np.int32)


def evaluation(batch_size, devices, passes):
    def batches(size):
        passes.append(size)
        for start in range(0, len(IMAGES), size):
            index = np.arange(start, start + size)
            index[index >= len(IMAGES)] = -1
            image = np.where((index >= 0)[:, None, None, None], IMAGES[index], 0).astype(np.uint8)
            label, mask = bands(image), (index >= 0).astype(np.float32)
            yield {"image": image, "label": label, "index": index, "mask": mask}

    mesh = sharding.make_mesh(sharding.MeshConfig(), jax.devices()[:devices])
    return Classify(batches=batches, batch_size=batch_size, mesh=mesh, class_names=[])


@pytest.mark.parametrize("batch_size, devices", [(3, 1), (4, 8), (64, 1)])
def test_each_variant_is_scored_once_on_every_image(batch_size, devices):
    passes, traces = [], []

    def predict(variables, batch):
        traces.append(batch["image"].shape)
        return shade(variables, batch)

    found = robustness.score(evaluation(batch_size, devices, passes), predict, 1.0, VARIANTS)
    assert list(found) == VARIANTS
    for (name, severity), scores in found.items():
        made = [corruptions.corrupt(x, name, severity, i) for i, x in enumerate(IMAGES)]
        np.testing.assert_array_equal(scores.prediction, bands(made))
        np.testing.assert_array_equal(scores.label, bands(IMAGES))
    assert len(passes) == len(traces) == 1
    assert found["brightness", 5].summary()["top1"] == 0


def test_a_broken_image_ends_the_threads():
    def batches(size):
        yield from ()
        raise UserError("broken.jpg")

    mesh = sharding.make_mesh(sharding.MeshConfig(), jax.devices()[:1])
    broken = Classify(batches=batches, batch_size=1, mesh=mesh, class_names=[])
    with pytest.raises(UserError, match="broken"):
        robustness.score(broken, shade, 1.0, VARIANTS)
