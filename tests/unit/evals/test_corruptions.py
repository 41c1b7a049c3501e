# SPDX-License-Identifier: Apache-2.0
"""Each corruption against its definition, written another way."""

import colorsys

import cv2
import numpy as np
import pytest
from sklearn.datasets import load_sample_image

from vit_jax.errors import UserError
from vit_jax.evals.corruptions import NAMES, benchmark, corrupt, variants


@pytest.fixture(scope="module")
def photo():
    return load_sample_image("china.jpg")[100:324, 200:424]


def grey(level, side, channels=3):
    return np.full((side, side, channels), level, np.uint8)


@pytest.mark.parametrize(
    "side, whose", [(32, "CIFAR-10-C"), (64, "CIFAR-10-C"), (224, "ImageNet-C")]
)
def test_severities_are_chosen_by_size(side, whose):
    assert benchmark((side, 300)) == benchmark((300, side)) == whose


@pytest.mark.parametrize("side, severity, amount", [(32, 5, 0.07), (224, 4, 0.17)])
def test_impulse_noise_hits_single_values(side, severity, amount):
    hit = np.stack([corrupt(grey(100, side), "impulse_noise", severity, i) for i in range(20)])
    assert (hit == 0).mean() == pytest.approx(amount / 2, rel=0.05)
    assert (hit == 255).mean() == pytest.approx(amount / 2, rel=0.05)
    assert ((hit == 0) | (hit == 255) | (hit == 100)).all()
    some = (hit != 100).any(axis=-1).mean()  # each channel alone
    assert some == pytest.approx(1 - (1 - amount) ** 3, rel=0.05)


def star(side, channels=1):
    image = np.zeros((side, side, channels), np.uint8)
    image[side // 2, side // 2] = 255
    return image


@pytest.mark.parametrize("side, severity, radius", [(32, 5, 1.5), (32, 4, 1), (100, 1, 3)])
def test_defocus_blur_spreads_a_point_over_a_disk(side, severity, radius):
    seen = corrupt(star(side), "defocus_blur", severity, 0)[..., 0]
    place = np.arange(side) - side // 2
    inside = place[:, None] ** 2 + place[None, :] ** 2 <= radius**2
    # The softened edge takes at most a hundredth with it at these severities.
    np.testing.assert_allclose(seen[inside], 255 / inside.sum(), atol=1.5)
    assert seen[~inside].max() <= 1


def test_defocus_blur_softens_the_edge():
    seen = corrupt(star(100), "defocus_blur", 3, 0)[..., 0] / 255  # radius 6, deviation 0.5
    disk = np.hypot(*np.mgrid[-50:50, -50:50]) <= 6
    weights = np.exp(-(np.arange(-1, 2) ** 2) / (2 * 0.5**2))
    kernel = np.outer(weights, weights) / weights.sum() ** 2
    soft = sum(
        kernel[dy + 1, dx + 1] * np.roll(disk / disk.sum(), (dy, dx), (0, 1))
        for dy in (-1, 0, 1)
        for dx in (-1, 0, 1)
    )
    np.testing.assert_allclose(seen, soft, atol=1.01 / 255)


@pytest.mark.parametrize("side, amount", [(32, 0.3), (100, 0.5)])
def test_brightness_adds_to_the_value(side, amount):
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (side, side, 3)).astype(np.uint8)
    image[0, 0] = 0
    seen = corrupt(image, "brightness", 5, 0)
    for y, x in [(0, 0), *rng.integers(0, side, (50, 2))]:
        hue, saturation, value = colorsys.rgb_to_hsv(*(image[y, x] / 255))
        wanted = colorsys.hsv_to_rgb(hue, saturation, min(value + amount, 1))
        np.testing.assert_allclose(seen[y, x], np.floor(255 * np.array(wanted) + 1e-3), atol=1)


@pytest.mark.parametrize("side, factor", [(32, 0.15), (100, 0.05)])
def test_contrast_draws_to_each_channels_mean(side, factor, photo):
    image = photo[:side, :side]
    mean = image.reshape(-1, 3).mean(axis=0)
    wanted = np.floor((image - mean) * factor + mean + 1e-3)
    np.testing.assert_allclose(corrupt(image, "contrast", 5, 0), wanted, atol=1)
    assert corrupt(image, "contrast", 5, 0).std() < image.std() / 3


def test_pixelate_averages_blocks(photo):
    image = photo[:100, :200]
    blocks = image.reshape(50, 2, 100, 2, 3).mean(axis=(1, 3))
    wanted = blocks.repeat(2, axis=0).repeat(2, axis=1)
    np.testing.assert_allclose(corrupt(image, "pixelate", 2, 0), wanted, atol=1)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("side, severity, quality", [(32, 1, 80), (224, 5, 7)])
def test_jpeg_is_another_librarys(side, severity, quality, channels, photo):
    image = photo[:side, :side, :channels]
    bgr = np.ascontiguousarray(image[..., ::-1])
    data = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, quality])[1]
    decoded = cv2.imdecode(data, cv2.IMREAD_UNCHANGED)
    assert decoded is not None
    wanted = decoded.reshape(bgr.shape)[..., ::-1]
    np.testing.assert_allclose(
        corrupt(image, "jpeg_compression", severity, 0).astype(int), wanted, atol=2
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_index_alone_decides_what_is_drawn(name, photo):
    image = photo[:90, :100]
    once = corrupt(image, name, 3, 7)
    assert once.dtype == np.uint8
    assert once.shape == image.shape
    np.testing.assert_array_equal(corrupt(image.copy(), name, 3, 7), once)
    random = name.endswith("noise") or name == "motion_blur"
    assert np.array_equal(corrupt(image, name, 3, 8), once) == (not random)


@pytest.mark.parametrize("side", [32, 100])
@pytest.mark.parametrize("name", NAMES)
def test_grey_images_and_growing_severity(name, side, photo):
    image = photo[:side, :side, :1]
    errors = [
        np.abs(corrupt(image, name, severity, 0).astype(int) - image).mean()
        for severity in (1, 2, 3, 4, 5)
    ]
    assert corrupt(image, name, 1, 0).shape == (side, side, 1)
    assert errors[0] < errors[2] < errors[4]


def test_what_is_not_published_is_refused():
    with pytest.raises(UserError, match="unknown corruption 'pixelat'; did you mean 'pixelate'"):
        variants(["pixelat"], [1])
    for severity in (0, 6):
        with pytest.raises(UserError, match=rf"severity {severity} must be in 1\.\.5"):
            variants(["contrast"], [1, severity])
