# SPDX-License-Identifier: Apache-2.0
"""Each corruption against its definition, written another way."""

import numpy as np
import pytest
from sklearn.datasets import load_sample_image

from tests.unit.evals.test_corruptions import grey
from vit_jax.evals.corruptions import corrupt


@pytest.fixture(scope="module")
def photo():
    return load_sample_image("china.jpg")[100:324, 200:424]


def levels(image):
    return image.astype(np.float64) / 255


@pytest.mark.parametrize("side, severity, scale", [(32, 1, 0.04), (32, 5, 0.10), (224, 2, 0.12)])
def test_gaussian_noise_has_the_published_deviation(side, severity, scale):
    noise = np.stack(
        [levels(corrupt(grey(128, side), "gaussian_noise", severity, i)) for i in range(20)]
    )
    assert noise.std() == pytest.approx(scale, rel=0.02)
    assert noise.mean() == pytest.approx(0.5, abs=0.004)


@pytest.mark.parametrize("side, severity, photons", [(32, 5, 50), (224, 1, 60)])
def test_shot_noise_is_poissons(side, severity, photons):
    for level in (51, 128):
        shots = np.stack(
            [levels(corrupt(grey(level, side), "shot_noise", severity, i)) for i in range(20)]
        )
        assert shots.mean() == pytest.approx(level / 255, abs=0.004)
        assert shots.var() == pytest.approx(level / 255 / photons, rel=0.04)
        # Whole photons, truncated to levels.
        assert {int(n / photons * 255 + 1e-3) for n in range(photons + 1)} >= {*shots.ravel() * 255}


@pytest.mark.parametrize("side, severity, radius, sigma", [(24, 5, 9, 2.5), (86, 1, 10, 3)])
def test_motion_blur_is_imagemagicks_at_some_angle(side, severity, radius, sigma, photo):
    image = photo[60 : 60 + side, 90 : 90 + side, :1]
    seen = corrupt(image, "motion_blur", severity, 3).astype(float)
    steps = range(2 * radius + 1)
    weights = [np.exp(-(i**2) / (2 * sigma**2)) for i in steps]
    differences = []
    for angle in np.radians(np.arange(-45, 45.01, 0.2)):
        total = np.zeros(image.shape)
        for i, weight in zip(steps, weights, strict=True):
            down, right = (int(np.ceil(i * part - 0.5)) for part in (np.sin(angle), np.cos(angle)))
            rows = np.clip(np.arange(side) + down, 0, side - 1)
            columns = np.clip(np.arange(side) + right, 0, side - 1)
            total += weight * image[rows][:, columns]
        differences.append(np.abs(np.floor(total / sum(weights)) - seen).max())
    assert min(differences) <= 1
    assert sorted(differences)[len(differences) // 2] > 5  # of other angles it is not
